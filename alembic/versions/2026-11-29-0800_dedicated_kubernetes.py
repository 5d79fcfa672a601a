"""
Kubernetes clusters of one's own: what was offered when they were ordered, and control planes among their node sets.

Revision ID: 4d8e16b7a05c
Revises: 7b1f40d9e6a2
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "4d8e16b7a05c"
down_revision = "7b1f40d9e6a2"
branch_labels = None
depends_on = None

CHECK = "ck_node_sets_role"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("clusters", sa.Column("kubernetes", postgresql.JSONB(), nullable=True))
    op.drop_constraint(op.f(CHECK), "node_sets", type_="check")
    op.create_check_constraint(op.f(CHECK), "node_sets", "role IN ('worker','head','login','control_plane')")


def downgrade() -> None:
    op.execute("UPDATE node_sets SET role = 'head' WHERE role = 'control_plane'")
    op.drop_constraint(op.f(CHECK), "node_sets", type_="check")
    op.create_check_constraint(op.f(CHECK), "node_sets", "role IN ('worker','head','login')")
    op.drop_column("clusters", "kubernetes")
