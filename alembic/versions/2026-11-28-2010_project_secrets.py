"""
Project secrets: values that jobs are given and nobody can read.

Revision ID: 91e4d7c2a60b
Revises: 3d9b60c8e1f7
"""

import sqlalchemy as sa

from alembic import op

revision = "91e4d7c2a60b"
down_revision = "3d9b60c8e1f7"
branch_labels = None
depends_on = None

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "project_secrets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_project_secrets_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_project_secrets_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project_secrets")),
    )
    op.create_index("uq_project_secrets_name", "project_secrets", ["tenant_id", "project_id", "name"], unique=True)
    op.execute("ALTER TABLE project_secrets ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE project_secrets FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY everyone ON project_secrets USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON project_secrets AS RESTRICTIVE USING ({OWN}) WITH CHECK ({OWN})")
    op.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON project_secrets TO cp_application")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("project_secrets")
