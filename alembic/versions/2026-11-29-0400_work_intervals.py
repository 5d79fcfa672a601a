"""
Work intervals: GPU time of jobs and services, beside the meter of what was held.

Revision ID: 7b1f40d9e6a2
Revises: 7b21d9e4c065
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "7b1f40d9e6a2"
down_revision = "7b21d9e4c065"
branch_labels = None
depends_on = None

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "work_intervals",
        sa.Column("work_id", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("during", postgresql.TSTZRANGE(), nullable=False),
        sa.CheckConstraint("kind IN ('job','service')", name=op.f("ck_work_intervals_kind")),
        sa.CheckConstraint("gpus > 0", name=op.f("ck_work_intervals_gpus")),
        sa.CheckConstraint(
            "isempty(during) OR (lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during))",
            name=op.f("ck_work_intervals_half_open"),
        ),
        sa.PrimaryKeyConstraint("work_id", "part", name=op.f("pk_work_intervals")),
    )
    op.create_index("ix_work_intervals_during", "work_intervals", ["tenant_id", "during"], postgresql_using="gist")
    op.execute("ALTER TABLE work_intervals ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE work_intervals FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY everyone ON work_intervals USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON work_intervals AS RESTRICTIVE USING ({OWN}) WITH CHECK ({OWN})")
    op.execute("GRANT SELECT, INSERT, UPDATE ON work_intervals TO cp_application")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("work_intervals")
