"""
Slices of GPUs that the replicas of services hold.

Revision ID: 7e41c0b8d925
Revises: 8b3d40c96ef2
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "7e41c0b8d925"
down_revision = "8b3d40c96ef2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    none = sa.text("'[]'::jsonb")
    op.add_column("services", sa.Column("slices_held", postgresql.JSONB(), server_default=none, nullable=False))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("services", "slices_held")
