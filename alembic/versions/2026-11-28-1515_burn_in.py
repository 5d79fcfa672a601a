"""
burn-in: which tests a check boot runs, and what became of each output

Revision ID: e4a90c17d3b8
Revises: c3d80f5b71aa
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "e4a90c17d3b8"
down_revision = "c3d80f5b71aa"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("qualification_policies", sa.Column("burn_in", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column(
        "boots",
        sa.Column("burn_in", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
    )
    op.create_table(
        "boot_outputs",
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("figures", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.Text(), server_default="", nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["boot_id"], ["boots.id"], name=op.f("fk_boot_outputs_boot_id")),
        sa.PrimaryKeyConstraint("boot_id", "name", name=op.f("pk_boot_outputs")),
    )
    op.execute("GRANT SELECT, INSERT ON boot_outputs TO cp_application")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("boot_outputs")
    op.drop_column("boots", "burn_in")
    op.drop_column("qualification_policies", "burn_in")
