"""
Clusters that were found at providers, and which of ours were taken over.

Revision ID: 7c1e90b2a4d6
Revises: 7e41c0b8d925
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op
from controlplane.kit.clock import CpClock

revision = "7c1e90b2a4d6"
down_revision = "7e41c0b8d925"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "found_clusters",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("facts", postgresql.JSONB(), nullable=False),
        sa.Column("refusal", postgresql.JSONB(), nullable=True),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.Column("gone_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_found_clusters_provider_id_providers")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_found_clusters")),
        sa.UniqueConstraint("provider_id", "uid", name=op.f("uq_found_clusters_provider_id_uid")),
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON found_clusters TO cp_application")
    op.add_column("clusters", sa.Column("adopted", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("clusters", "adopted")
    op.drop_table("found_clusters")
