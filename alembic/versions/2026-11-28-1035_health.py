"""
What follows from nodes' health: since when it is what it is, blocks where nothing follows by itself, and repairs that are asked for.

Revision ID: 8a2f4c6e1b90
Revises: 5b1c70a9e2f4
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op
from controlplane.kit.clock import CpClock

revision = "8a2f4c6e1b90"
down_revision = "5b1c70a9e2f4"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("health_since", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False))
    op.create_table(
        "automation_freezes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("block", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.Column("lifted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lifted_by", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_automation_freezes_site_sites")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_automation_freezes")),
    )
    op.create_index(
        "uq_automation_freezes_block",
        "automation_freezes",
        ["site", "block"],
        unique=True,
        postgresql_where=sa.text("lifted_at IS NULL"),
    )
    op.create_table(
        "repair_tickets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.Column("reports", postgresql.JSONB(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_repair_tickets_node_id_nodes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_repair_tickets")),
    )
    op.create_index(
        "uq_repair_tickets_open", "repair_tickets", ["node_id"], unique=True, postgresql_where=sa.text("closed_at IS NULL")
    )
    op.create_index("ix_repair_tickets_due", "repair_tickets", ["due_at"], postgresql_where=sa.text("delivered_at IS NULL"))
    for table in ("automation_freezes", "repair_tickets"):
        op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO cp_application")


def downgrade() -> None:
    op.drop_table("repair_tickets")
    op.drop_table("automation_freezes")
    op.drop_column("nodes", "health_since")
