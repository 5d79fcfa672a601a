"""
Images that are in use: node sets and allocations name the image on their disks, boots the one they install; what is used is not deleted.

Revision ID: a7c41e90d2b5
Revises: b7d4e19a52c6
"""

import sqlalchemy as sa

from alembic import op

revision = "a7c41e90d2b5"
down_revision = "b7d4e19a52c6"
branch_labels = None
depends_on = None

USERS = ("node_sets", "allocations")
TRIGGERS = """
CREATE FUNCTION cp_image_in_use(image text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET cp.scope = 'all' AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM node_sets s JOIN clusters c ON c.id = s.cluster_id WHERE s.image_id = image AND c.state <> 'deleted')
    OR EXISTS (SELECT 1 FROM allocations a WHERE a.image_id = image AND a.state IN ('held', 'active'));
END $$;
-- Both ends take the same lock, so neither can be decided on what the other is about to change.
CREATE FUNCTION cp_keep_used_image() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('image-uses:' || NEW.id, 0));
  IF cp_image_in_use(NEW.id) THEN
    RAISE EXCEPTION 'image % is in use', NEW.id USING ERRCODE = 'check_violation', CONSTRAINT = 'image_in_use';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER used_stays BEFORE UPDATE OF state ON images FOR EACH ROW
  WHEN (NEW.state = 'deleted' AND OLD.state <> 'deleted') EXECUTE FUNCTION cp_keep_used_image();
CREATE FUNCTION cp_use_ready_image() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET cp.scope = 'all' AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('image-uses:' || NEW.image_id, 0));
  IF NOT EXISTS (SELECT 1 FROM images i WHERE i.id = NEW.image_id AND i.state = 'ready') THEN
    RAISE EXCEPTION 'image % is not ready', NEW.image_id USING ERRCODE = 'check_violation', CONSTRAINT = 'image_ready';
  END IF;
  RETURN NEW;
END $$;
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in (*USERS, "boots"):
        op.add_column(table, sa.Column("image_id", sa.Text(), nullable=True))
        op.create_foreign_key(op.f(f"fk_{table}_image_id_images"), table, "images", ["image_id"], ["id"])
        op.create_index(f"ix_{table}_image", table, ["image_id"], postgresql_where=sa.text("image_id IS NOT NULL"))
    allow("deploy", "wipe", "check", "rescue", "install")
    op.execute(TRIGGERS)
    for table in USERS:
        op.execute(
            f"CREATE TRIGGER ready_is_used BEFORE INSERT OR UPDATE OF image_id ON {table} FOR EACH ROW "
            "WHEN (NEW.image_id IS NOT NULL) EXECUTE FUNCTION cp_use_ready_image()"
        )


def allow(*purposes: str) -> None:
    """
    Boots are for one of these and nothing else.
    """
    known = ",".join(f"'{one}'" for one in purposes)
    op.drop_constraint(op.f("ck_boots_purpose"), "boots")
    op.create_check_constraint(op.f("ck_boots_purpose"), "boots", f"purpose IN ({known})")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in USERS:
        op.execute(f"DROP TRIGGER ready_is_used ON {table}")
    op.execute("DROP TRIGGER used_stays ON images")
    for function in ("cp_use_ready_image()", "cp_keep_used_image()", "cp_image_in_use(text)"):
        op.execute(f"DROP FUNCTION {function}")
    op.execute("DELETE FROM boot_console WHERE boot_id IN (SELECT id FROM boots WHERE purpose = 'install')")
    op.execute("UPDATE nodes SET boot_id = NULL WHERE boot_id IN (SELECT id FROM boots WHERE purpose = 'install')")
    op.execute("DELETE FROM boots WHERE purpose = 'install'")
    allow("deploy", "wipe", "check", "rescue")
    for table in (*USERS, "boots"):
        op.drop_index(f"ix_{table}_image", table)
        op.drop_column(table, "image_id")
