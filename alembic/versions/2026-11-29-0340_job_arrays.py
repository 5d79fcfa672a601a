"""
Job arrays: the same job for many indexes, of which so many are under way at once.

Revision ID: 7b21d9e4c065
Revises: 5f0c8a71e3d2
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "7b21d9e4c065"
down_revision = "5f0c8a71e3d2"
branch_labels = None
depends_on = None

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "job_arrays",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("max_parallel", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.CheckConstraint("first <= last AND step >= 1 AND max_parallel >= 1", name=op.f("ck_job_arrays_numbers")),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_job_arrays_cluster_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_job_arrays_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_arrays_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_arrays")),
    )
    op.create_index("ix_job_arrays_project", "job_arrays", ["project_id", "id"])
    op.execute("ALTER TABLE job_arrays ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE job_arrays FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY everyone ON job_arrays USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON job_arrays AS RESTRICTIVE USING ({OWN}) WITH CHECK ({OWN})")
    op.execute("GRANT SELECT, INSERT, UPDATE ON job_arrays TO cp_application")
    op.add_column("jobs", sa.Column("array_id", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("array_index", sa.BigInteger(), nullable=True))
    op.create_foreign_key(op.f("fk_jobs_array_id"), "jobs", "job_arrays", ["array_id"], ["id"])
    op.create_index(
        "uq_jobs_array", "jobs", ["array_id", "array_index"], unique=True, postgresql_where=sa.text("array_id IS NOT NULL")
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("uq_jobs_array", "jobs")
    op.drop_column("jobs", "array_index")
    op.drop_column("jobs", "array_id")
    op.drop_table("job_arrays")
