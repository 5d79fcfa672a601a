"""
Job dependencies: jobs that wait for others of their project.

Revision ID: 3d9b60c8e1f7
Revises: a7c41e90d2b5
"""

import sqlalchemy as sa

from alembic import op

revision = "3d9b60c8e1f7"
down_revision = "a7c41e90d2b5"
branch_labels = None
depends_on = None

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "job_dependencies",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("parent_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("condition", sa.Text(), nullable=False),
        sa.CheckConstraint("condition IN ('afterok','afterany')", name=op.f("ck_job_dependencies_condition")),
        sa.CheckConstraint("job_id <> parent_id", name=op.f("ck_job_dependencies_not_itself")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_dependencies_job_id")),
        sa.ForeignKeyConstraint(["parent_id"], ["jobs.id"], name=op.f("fk_job_dependencies_parent_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_dependencies_tenant_id")),
        sa.PrimaryKeyConstraint("job_id", "parent_id", name=op.f("pk_job_dependencies")),
    )
    op.create_index("ix_job_dependencies_parent", "job_dependencies", ["parent_id"])
    op.execute("ALTER TABLE job_dependencies ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE job_dependencies FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY everyone ON job_dependencies USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON job_dependencies AS RESTRICTIVE USING ({OWN}) WITH CHECK ({OWN})")
    # never changed: a job can only name jobs that were there before it, so no circle can come about
    op.execute("GRANT SELECT, INSERT ON job_dependencies TO cp_application")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("job_dependencies")
