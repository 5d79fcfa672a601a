"""
Enrolment: serial numbers and rack units of nodes, what machines of a type must have, machines that were found.

Revision ID: e2d91c4b7a60
Revises: e4a90c17d3b8
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op
from controlplane.kit.clock import CpClock

revision = "e2d91c4b7a60"
down_revision = "e4a90c17d3b8"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("nodes", sa.Column("serial", sa.Text(), nullable=True))
    op.add_column("nodes", sa.Column("unit", sa.BigInteger(), nullable=True))
    op.create_index(
        "uq_nodes_serial", "nodes", ["serial"], unique=True, postgresql_where=sa.text("serial IS NOT NULL AND state <> 'retired'")
    )
    op.add_column("providers", sa.Column("discovered_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("providers", sa.Column("listed_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "instance_type_parts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("gpu_memory_gib", sa.BigInteger(), nullable=True),
        sa.Column("nics", sa.BigInteger(), nullable=True),
        sa.Column("nic_gbit_s", sa.BigInteger(), nullable=True),
        sa.Column("drives", sa.BigInteger(), nullable=True),
        sa.Column("drive_gib", sa.BigInteger(), nullable=True),
        sa.Column("firmware", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.ForeignKeyConstraint(["name"], ["instance_types.name"], name=op.f("fk_instance_type_parts_name_instance_types")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_instance_type_parts")),
    )
    op.create_table(
        "discovery_targets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("system", sa.Text(), server_default="", nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("problem", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_discovery_targets_provider_id_providers")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_discovery_targets")),
        sa.UniqueConstraint("provider_id", "url", "system", name=op.f("uq_discovery_targets_provider_id_url_system")),
    )
    op.create_table(
        "discovered_machines",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("serial", sa.Text(), server_default="", nullable=False),
        sa.Column("controller_url", sa.Text(), server_default="", nullable=False),
        sa.Column("controller_system", sa.Text(), server_default="", nullable=False),
        sa.Column("place", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("inventory", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.Column("gone_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_discovered_machines_provider_id_providers")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_discovered_machines")),
        sa.UniqueConstraint("provider_id", "ref", name=op.f("uq_discovered_machines_provider_id_ref")),
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON instance_type_parts, discovered_machines TO cp_application")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON discovery_targets TO cp_application")


def downgrade() -> None:
    for table in ("discovered_machines", "discovery_targets", "instance_type_parts"):
        op.drop_table(table)
    for column in ("listed_at", "discovered_at"):
        op.drop_column("providers", column)
    op.drop_index("uq_nodes_serial", table_name="nodes")
    for column in ("unit", "serial"):
        op.drop_column("nodes", column)
