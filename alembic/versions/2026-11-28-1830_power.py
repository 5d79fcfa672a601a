"""
Power: what each machine says of it, and since when it is not what its state wants.

Revision ID: b7d4e19a52c6
Revises: 5c0be71f29d4
"""

import sqlalchemy as sa

from alembic import op

revision = "b7d4e19a52c6"
down_revision = "5c0be71f29d4"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("power", sa.Text(), server_default="unknown", nullable=False))
    op.add_column("nodes", sa.Column("power_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("nodes", sa.Column("power_amiss_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("nodes", "power_amiss_at")
    op.drop_column("nodes", "power_at")
    op.drop_column("nodes", "power")
