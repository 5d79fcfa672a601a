"""
boots

Revision ID: 5b1c70a9e2f4
Revises: d287e2c3d330
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OF_RESELLER = f"(SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"
TABLES = ("blueprints", "boots", "boot_console")

revision = "5b1c70a9e2f4"
down_revision = "d287e2c3d330"
branch_labels = None
depends_on = None


def guard() -> None:
    """
    The walls of every table of tenants; what has no tenant is seen by workers and operators only.
    """
    clause = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN {OF_RESELLER}"
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY everyone ON {table} USING (true) WITH CHECK (true)")
        op.execute(f"CREATE POLICY tenant_wall ON {table} AS RESTRICTIVE USING ({clause}) WITH CHECK ({clause})")
        op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO cp_application")
    op.execute("GRANT DELETE ON boot_console TO cp_application")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "blueprints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("cluster_id", sa.Text(), nullable=True),
        sa.Column("image", sa.Text(), server_default="", nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("scripts", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("files", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_blueprints_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_blueprints")),
    )
    op.create_index("ix_blueprints_cluster", "blueprints", ["cluster_id"])
    op.create_table(
        "boots",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("allocation_id", sa.Text(), nullable=True),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("blueprint_id", sa.Text(), nullable=True),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("facts", postgresql.JSONB(), nullable=False),
        sa.Column("address", postgresql.INET(), nullable=True),
        sa.Column("state", sa.Text(), server_default="made", nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fetched_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("phoned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("host_keys", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("stages", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("checks", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("failure_code", sa.Text(), server_default="", nullable=False),
        sa.Column("failure", sa.Text(), server_default="", nullable=False),
        sa.Column("applied_version", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("apply_failure", sa.Text(), server_default="", nullable=False),
        sa.Column("applied_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("console_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("console_pieces", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('made','fetched','reporting','ready','failed','ended')", name=op.f("ck_boots_state")),
        sa.CheckConstraint("purpose IN ('deploy','wipe','check','rescue')", name=op.f("ck_boots_purpose")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_boots_node_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_boots_tenant_id")),
        sa.ForeignKeyConstraint(["blueprint_id"], ["blueprints.id"], name=op.f("fk_boots_blueprint_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_boots")),
    )
    op.create_index("uq_boots_open", "boots", ["node_id"], unique=True, postgresql_where=sa.text("state <> 'ended'"))
    op.create_index("ix_boots_node", "boots", ["node_id", "id"])
    op.create_index("ix_boots_address", "boots", ["address"], postgresql_where=sa.text("state <> 'ended' AND address IS NOT NULL"))
    op.create_index("ix_boots_blueprint", "boots", ["blueprint_id"])
    op.create_table(
        "boot_console",
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("piece", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["boot_id"], ["boots.id"], name=op.f("fk_boot_console_boot_id")),
        sa.PrimaryKeyConstraint("boot_id", "piece", name=op.f("pk_boot_console")),
    )
    guard()


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("boot_console")
    op.drop_table("boots")
    op.drop_table("blueprints")
