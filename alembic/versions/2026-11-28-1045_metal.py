"""
Bare machines: how their controllers are reached, how their ports are wired, tenant networks with their numbers, what they boot.

Revision ID: 5f1c0a7d9e42
Revises: 8a2f4c6e1b90
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op
from controlplane.kit.clock import CpClock

revision = "5f1c0a7d9e42"
down_revision = "8a2f4c6e1b90"
branch_labels = None
depends_on = None

TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
WALL = f"""current_setting('cp.scope', true) = 'all' OR tenant_id = {TENANT}
  OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"""


def upgrade() -> None:
    op.create_table(
        "networks",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column(
            "segment", sa.BigInteger(), sa.Identity(always=True, start=10001, minvalue=10001, maxvalue=16777215), nullable=False
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=CpClock(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_networks_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_networks")),
        sa.UniqueConstraint("segment", name=op.f("uq_networks_segment")),
    )
    op.create_table(
        "node_ports",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("switch", sa.Text(), nullable=False),
        sa.Column("port", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_ports_node_id_nodes")),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_node_ports_provider_id_providers")),
        sa.PrimaryKeyConstraint("node_id", "name", name=op.f("pk_node_ports")),
        sa.UniqueConstraint("provider_id", "switch", "port", name=op.f("uq_node_ports_provider_id_switch_port")),
    )
    op.add_column("nodes", sa.Column("access", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False))
    op.add_column("nodes", sa.Column("sealed", sa.LargeBinary(), nullable=True))
    op.add_column("nodes", sa.Column("address", sa.Text(), nullable=True))
    op.add_column("nodes", sa.Column("boot_id", sa.Text(), nullable=True))
    op.add_column("nodes", sa.Column("looked_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("allocations", sa.Column("blueprint_id", sa.Text(), nullable=True))
    op.add_column("clusters", sa.Column("blueprint_id", sa.Text(), nullable=True))
    op.execute("SELECT set_config('cp.scope', 'all', true)")
    op.execute("INSERT INTO networks (name, tenant_id) SELECT DISTINCT network, tenant_id FROM allocations ORDER BY 1")
    op.execute("ALTER TABLE networks ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE networks FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY everyone ON networks USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON networks AS RESTRICTIVE USING ({WALL}) WITH CHECK ({WALL})")
    op.execute("GRANT SELECT, INSERT ON networks TO cp_application")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON node_ports TO cp_application")


def downgrade() -> None:
    op.drop_column("clusters", "blueprint_id")
    op.drop_column("allocations", "blueprint_id")
    for column in ("looked_at", "boot_id", "address", "sealed", "access"):
        op.drop_column("nodes", column)
    op.drop_table("node_ports")
    op.drop_table("networks")
