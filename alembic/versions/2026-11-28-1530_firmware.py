"""
Firmware: images of what machines of a type must have, and how far a node's update is.

Revision ID: b41f7c20d9e3
Revises: f4c81a0d27e9
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "b41f7c20d9e3"
down_revision = "f4c81a0d27e9"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table, column in (("instance_type_parts", "firmware_images"), ("nodes", "updating")):
        op.add_column(table, sa.Column(column, postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False))


def downgrade() -> None:
    # A node in the middle of an update goes on as one that a person looks at: the older code knows no such state.
    op.execute(
        "UPDATE nodes SET state = 'quarantined', step = '', reason = 'Its update was cut off.', deadline_at = NULL, due_at = NULL "
        "WHERE state = 'updating'"
    )
    op.drop_column("nodes", "updating")
    op.drop_column("instance_type_parts", "firmware_images")
