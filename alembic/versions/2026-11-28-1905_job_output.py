"""
Job output that nodes send themselves: who sends it, where its own bytes begin, and whether all of it is there.

Revision ID: 5c0be71f29d4
Revises: 5c1f0e8b72d4
"""

import sqlalchemy as sa

from alembic import op

revision = "5c0be71f29d4"
down_revision = "5c1f0e8b72d4"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("log_source", sa.Text(), server_default="", nullable=False))
    op.add_column("jobs", sa.Column("log_base", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("log_closed", sa.Boolean(), server_default=sa.text("false"), nullable=False))


def downgrade() -> None:
    op.drop_column("jobs", "log_closed")
    op.drop_column("jobs", "log_base")
    op.drop_column("jobs", "log_source")
