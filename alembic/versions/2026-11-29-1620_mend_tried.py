"""
When a cluster's sick nodes were last looked at to be replaced.

Revision ID: 8b3d40c96ef2
Revises: 5a9c27f1d3b8
"""

import sqlalchemy as sa

from alembic import op

revision = "8b3d40c96ef2"
down_revision = "5a9c27f1d3b8"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("clusters", sa.Column("mend_tried_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("clusters", "mend_tried_at")
