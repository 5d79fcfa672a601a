"""
Actions of tenants on their bare machines: whose operation a node's moves are told to.

Revision ID: c3d80f5b71aa
Revises: c93e0d5a7f18
"""

import sqlalchemy as sa

from alembic import op

revision = "c3d80f5b71aa"
down_revision = "c93e0d5a7f18"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("acting_for", sa.Text(), nullable=True))
    op.create_index("ix_boots_allocation", "boots", ["allocation_id", "id"], postgresql_where=sa.text("allocation_id IS NOT NULL"))


def downgrade() -> None:
    op.drop_index("ix_boots_allocation", "boots")
    op.drop_column("nodes", "acting_for")
