"""
images

Revision ID: 5b1f0c7a9e42
Revises: 5f1c0a7d9e42
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "5b1f0c7a9e42"
down_revision = "5f1c0a7d9e42"
branch_labels = None
depends_on = None

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OWN = f"{WORKERS} OR tenant_id = {TENANT} OR tenant_id IN (SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"
SHOWN = f"{OWN} OR (visibility = 'public' AND state = 'ready')"


def guard() -> None:
    """
    Everybody reads what is public and ready; only its owner writes an image.
    """
    op.execute("ALTER TABLE images ENABLE ROW LEVEL SECURITY")
    op.execute("ALTER TABLE images FORCE ROW LEVEL SECURITY")
    op.execute("CREATE POLICY everyone ON images USING (true) WITH CHECK (true)")
    op.execute(f"CREATE POLICY tenant_wall ON images AS RESTRICTIVE FOR SELECT USING ({SHOWN})")
    op.execute(f"CREATE POLICY tenant_wall_insert ON images AS RESTRICTIVE FOR INSERT WITH CHECK ({OWN})")
    op.execute(f"CREATE POLICY tenant_wall_update ON images AS RESTRICTIVE FOR UPDATE USING ({OWN}) WITH CHECK ({OWN})")
    op.execute("GRANT SELECT, INSERT, UPDATE ON images TO cp_application")
    op.execute(
        "CREATE TRIGGER legal_move BEFORE UPDATE OF state ON images FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) "
        "EXECUTE FUNCTION cp_check_move('image')"
    )


def limit_quotas(*resources: str) -> None:
    """
    Counters are of these resources and no other.
    """
    known = ",".join(f"'{one}'" for one in resources)
    op.drop_constraint(op.f("ck_quotas_resource"), "quotas")
    op.create_check_constraint(op.f("ck_quotas_resource"), "quotas", f"resource IN ({known})")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "images",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("reseller_id", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("visibility", sa.Text(), server_default="tenant", nullable=False),
        sa.Column("os_family", sa.Text(), nullable=False),
        sa.Column("os_version", sa.Text(), nullable=False),
        sa.Column("arch", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("actual_sha256", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("arch IN ('x86_64','aarch64')", name=op.f("ck_images_arch")),
        sa.CheckConstraint("format IN ('raw','qcow2','iso','kernel-bundle')", name=op.f("ck_images_format")),
        sa.CheckConstraint("visibility IN ('tenant','public')", name=op.f("ck_images_visibility")),
        sa.CheckConstraint("state IN ('uploading','verifying','ready','failed','deleted')", name=op.f("ck_images_state")),
        sa.CheckConstraint("sha256 ~ '^[0-9a-f]{64}$' AND actual_sha256 ~ '^([0-9a-f]{64})?$'", name=op.f("ck_images_digests")),
        sa.CheckConstraint("size_bytes > 0 AND received_bytes BETWEEN 0 AND size_bytes", name=op.f("ck_images_sizes")),
        sa.CheckConstraint(
            "state = 'uploading' OR state = 'deleted' OR received_bytes = size_bytes", name=op.f("ck_images_complete")
        ),
        sa.CheckConstraint("state <> 'ready' OR actual_sha256 = sha256", name=op.f("ck_images_ready_is_checked")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_images_tenant_id")),
        sa.ForeignKeyConstraint(["reseller_id"], ["resellers.id"], name=op.f("fk_images_reseller_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_images")),
    )
    op.create_index(
        "uq_images_name",
        "images",
        ["tenant_id", "name"],
        unique=True,
        postgresql_where=sa.text("state <> 'deleted'"),
        postgresql_nulls_not_distinct=True,
    )
    op.create_index(
        "ix_images_public", "images", ["id"], unique=False, postgresql_where=sa.text("visibility = 'public' AND state = 'ready'")
    )
    op.create_index("ix_images_verifying", "images", ["id"], unique=False, postgresql_where=sa.text("state = 'verifying'"))
    op.create_index("ix_images_tenant", "images", ["tenant_id", "id"], unique=False)
    limit_quotas("gpus", "clusters", "keys", "operations", "image_bytes")
    guard()


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("images")
    op.execute("DELETE FROM quotas WHERE resource = 'image_bytes'")
    limit_quotas("gpus", "clusters", "keys", "operations")
