"""
services: kept up in replicas, in numbered versions, with what replicas printed last

Revision ID: c5e20b7f94d1
Revises: 91e4d7c2a60b
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op
from controlplane.kit.clock import CpClock

revision = "c5e20b7f94d1"
down_revision = "91e4d7c2a60b"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"


def guard(table: str, verbs: str) -> None:
    """
    Nobody but its tenant, its reseller and the workers sees or writes a row.
    """
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY everyone ON {table} USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON {table} AS RESTRICTIVE USING ({OWN}) WITH CHECK ({OWN})")
    op.execute(f"GRANT {verbs} ON {table} TO cp_application")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    services_table()
    op.create_index(
        "uq_services_name", "services", ["project_id", "name"], unique=True, postgresql_where=sa.text("state <> 'deleted'")
    )
    op.create_index("ix_services_due", "services", ["due_at"], postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index("ix_services_project", "services", ["project_id", "id"])
    op.create_index("ix_services_cluster", "services", ["cluster_id", "state"])
    op.create_index("ix_services_tenant", "services", ["tenant_id", "id"])
    op.create_table(
        "service_versions",
        sa.Column("service_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("template", postgresql.JSONB(), nullable=False),
        sa.Column("proposal", postgresql.JSONB(), nullable=True),
        sa.Column("restored", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), server_default="", nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", MOMENT, server_default=CpClock(), nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("ck_service_versions_number")),
        sa.CheckConstraint("outcome IN ('','ready','failed','replaced')", name=op.f("ck_service_versions_outcome")),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], name=op.f("fk_service_versions_service_id_services")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_service_versions_tenant_id_tenants")),
        sa.PrimaryKeyConstraint("service_id", "number", name=op.f("pk_service_versions")),
    )
    op.create_table(
        "service_logs",
        sa.Column("service_id", sa.Text(), nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("at", MOMENT, server_default=CpClock(), nullable=False),
        sa.ForeignKeyConstraint(["service_id"], ["services.id"], name=op.f("fk_service_logs_service_id_services")),
        sa.PrimaryKeyConstraint("service_id", "replica", name=op.f("pk_service_logs")),
    )
    guard("services", "SELECT, INSERT, UPDATE")
    guard("service_versions", "SELECT, INSERT, UPDATE")
    guard("service_logs", "SELECT, INSERT, UPDATE, DELETE")
    op.execute(
        "CREATE TRIGGER legal_move BEFORE UPDATE OF state ON services FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) "
        "EXECUTE FUNCTION cp_check_move('service')"
    )


def services_table() -> None:
    op.create_table(
        "services",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("current_version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("turn", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("replicas", sa.BigInteger(), nullable=False),
        sa.Column("scaling", postgresql.JSONB(), nullable=True),
        sa.Column("rollout", postgresql.JSONB(), nullable=False),
        sa.Column("suspended", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("seen", postgresql.JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("aimed_at", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("address", sa.Text(), server_default="", nullable=False),
        sa.Column("trouble", sa.Text(), server_default="", nullable=False),
        sa.Column("seen_at", MOMENT, nullable=True),
        sa.Column("next_tail", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("gpus_held", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("gpu_microseconds", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("state_since", MOMENT, server_default=CpClock(), nullable=False),
        sa.Column("deadline_at", MOMENT, nullable=True),
        sa.Column("due_at", MOMENT, server_default=CpClock(), nullable=True),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wakes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attention", sa.Text(), server_default="", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", MOMENT, server_default=CpClock(), nullable=False),
        sa.Column("updated_at", MOMENT, server_default=CpClock(), nullable=False),
        sa.CheckConstraint("replicas >= 0 AND current_version >= 1 AND turn >= 1", name=op.f("ck_services_numbers")),
        sa.CheckConstraint("gpu_microseconds >= 0 AND gpus_held >= 0", name=op.f("ck_services_usage")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_services_tenant_id_tenants")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_services_project_id_projects")),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_services_cluster_id_clusters")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_services")),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("service_logs")
    op.drop_table("service_versions")
    op.drop_table("services")
