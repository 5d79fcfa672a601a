"""
Clusters keep how far the upgrade of their workers is.

Revision ID: c35b7e02d9f4
Revises: c5e20b7f94d1
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "c35b7e02d9f4"
down_revision = "c5e20b7f94d1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("clusters", sa.Column("upgrade", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("clusters", "upgrade")
