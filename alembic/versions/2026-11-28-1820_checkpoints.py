"""
checkpoints: what jobs have saved, and how long it is kept

Revision ID: f4c81a0d27e9
Revises: e2d91c4b7a60
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "f4c81a0d27e9"
down_revision = "e2d91c4b7a60"
branch_labels = None
depends_on = None

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"


def guard(table: str) -> None:
    """
    Nobody but its tenant, its reseller and the workers sees or writes a row.
    """
    op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
    op.execute(f"CREATE POLICY everyone ON {table} USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON {table} AS RESTRICTIVE USING ({OWN}) WITH CHECK ({OWN})")
    op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO cp_application")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("location", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("tier", sa.Text(), server_default="hot", nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("state IN ('writing','good','bad','deleted')", name=op.f("ck_checkpoints_state")),
        sa.CheckConstraint("state <> 'good' OR size_bytes IS NOT NULL", name=op.f("ck_checkpoints_good_has_size")),
        sa.CheckConstraint("step >= 0 AND attempt >= 1 AND size_bytes >= 0", name=op.f("ck_checkpoints_numbers")),
        sa.CheckConstraint("kind IN ('full','sharded','incremental','weights')", name=op.f("ck_checkpoints_kind")),
        sa.CheckConstraint("tier IN ('hot','warm','cold')", name=op.f("ck_checkpoints_tier")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_checkpoints_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_checkpoints_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
    )
    op.create_index(
        "uq_checkpoints_place",
        "checkpoints",
        ["job_id", "step", "kind", "location"],
        unique=True,
        postgresql_where=sa.text("state IN ('writing','good')"),
    )
    op.create_index("ix_checkpoints_job", "checkpoints", ["job_id", "step", "id"])
    op.create_index("ix_checkpoints_project", "checkpoints", ["project_id", "id"])
    op.create_table(
        "checkpoint_policies",
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("hot_last", sa.BigInteger(), nullable=False),
        sa.Column("warm_last", sa.BigInteger(), nullable=False),
        sa.Column("cold_every_steps", sa.BigInteger(), nullable=True),
        sa.Column("cold_days", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint(
            "hot_last >= 1 AND warm_last >= 0 AND cold_every_steps >= 1 AND cold_days >= 1",
            name=op.f("ck_checkpoint_policies_numbers"),
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_checkpoint_policies_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_checkpoint_policies_tenant_id")),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_checkpoint_policies")),
    )
    op.add_column("jobs", sa.Column("last_checkpoint", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    guard("checkpoints")
    guard("checkpoint_policies")
    op.execute(
        "CREATE TRIGGER legal_move BEFORE UPDATE OF state ON checkpoints FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) "
        "EXECUTE FUNCTION cp_check_move('checkpoint')"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("jobs", "last_checkpoint")
    op.drop_table("checkpoint_policies")
    op.drop_table("checkpoints")
