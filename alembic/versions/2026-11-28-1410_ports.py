"""
Looks at the ports of bare machines: when each is due, and what was found wrong since when.

Revision ID: c3e9a17d5b08
Revises: e1c07d4f9a26
"""

import sqlalchemy as sa

from alembic import op
from controlplane.kit.clock import CpClock

revision = "c3e9a17d5b08"
down_revision = "e1c07d4f9a26"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("node_ports", sa.Column("look_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False))
    op.add_column("node_ports", sa.Column("trouble", sa.Text(), server_default="", nullable=False))
    op.add_column("node_ports", sa.Column("trouble_since", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_node_ports_look", "node_ports", ["look_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_node_ports_look", table_name="node_ports")
    for column in ("trouble_since", "trouble", "look_at"):
        op.drop_column("node_ports", column)
