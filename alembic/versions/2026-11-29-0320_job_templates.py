"""
Job templates: named jobs with places for values, in versions; a job keeps what it was made of.

Revision ID: 5f0c8a71e3d2
Revises: d19e6b40a7c2
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "5f0c8a71e3d2"
down_revision = "d19e6b40a7c2"
branch_labels = None
depends_on = None

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "job_templates",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("latest", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_job_templates_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_templates_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_templates")),
    )
    op.create_index("uq_job_templates_name", "job_templates", ["tenant_id", "project_id", "name"], unique=True)
    op.create_table(
        "job_template_versions",
        sa.Column("template_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["template_id"], ["job_templates.id"], name=op.f("fk_job_template_versions_template_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_job_template_versions_tenant_id")),
        sa.PrimaryKeyConstraint("template_id", "version", name=op.f("pk_job_template_versions")),
    )
    for table in ("job_templates", "job_template_versions"):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY everyone ON {table} USING (true) WITH CHECK (true)")
        op.execute(f"CREATE POLICY tenant_wall ON {table} AS RESTRICTIVE USING ({OWN}) WITH CHECK ({OWN})")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON job_templates TO cp_application")
    # a version is never changed; it goes with its template
    op.execute("GRANT SELECT, INSERT ON job_template_versions TO cp_application")
    op.add_column("jobs", sa.Column("template", postgresql.JSONB(), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("jobs", "template")
    op.drop_table("job_template_versions")
    op.drop_table("job_templates")
