"""
spine

Revision ID: d287e2c3d330
Revises:
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

BEFORE = r"""
CREATE EXTENSION IF NOT EXISTS btree_gist;
CREATE FUNCTION cp_clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT clock_timestamp()';
COMMENT ON FUNCTION cp_clock() IS 'The one clock of all rows; tests replace it with a virtual one.';
DO $$ BEGIN
  CREATE ROLE cp_application NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
"""

AFTER = r"""
CREATE FUNCTION cp_check_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM state_moves m WHERE m.kind = TG_ARGV[0] AND m.before = OLD.state AND m.after = NEW.state) THEN
    RAISE EXCEPTION '% % may not move from % to %', TG_ARGV[0], NEW.id, OLD.state, NEW.state
      USING ERRCODE = 'check_violation', CONSTRAINT = 'legal_move';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER legal_move BEFORE UPDATE OF state ON nodes FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state)
  EXECUTE FUNCTION cp_check_move('node');
CREATE TRIGGER legal_move BEFORE UPDATE OF state ON clusters FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state)
  EXECUTE FUNCTION cp_check_move('cluster');
CREATE TRIGGER legal_move BEFORE UPDATE OF state ON jobs FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state)
  EXECUTE FUNCTION cp_check_move('job');

CREATE FUNCTION cp_check_wiped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (
    SELECT 1 FROM wipes w WHERE w.node_id = NEW.id AND w.verified AND w.requested_at >= coalesce(
      (SELECT max(a.release_accepted_at) FROM allocations a WHERE a.node_id = NEW.id), '-infinity'))
    OR EXISTS (SELECT 1 FROM allocations a WHERE a.node_id = NEW.id AND a.state NOT IN ('releasing', 'ended'))
  THEN
    RAISE EXCEPTION 'node % has no verified wipe newer than its last tenancy', NEW.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'wiped_before_available';
  END IF;
  RETURN NEW;
END $$;
-- Deferred to the commit: the wipe's record is written in the same transaction, after the move.
CREATE CONSTRAINT TRIGGER wiped_before_available AFTER UPDATE OF state ON nodes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (NEW.state = 'available' AND OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION cp_check_wiped();
CREATE FUNCTION cp_refuse_available() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a node is not enrolled as available' USING ERRCODE = 'check_violation', CONSTRAINT = 'wiped_before_available';
END $$;
CREATE TRIGGER enrolled_first BEFORE INSERT ON nodes FOR EACH ROW WHEN (NEW.state = 'available') EXECUTE FUNCTION cp_refuse_available();

CREATE FUNCTION cp_audit_append(chain text, entry bytea) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET cp.scope = 'all' AS $$
DECLARE last_seq bigint; last_hash bytea; next_hash bytea;
BEGIN
  INSERT INTO audit_heads (tenant_id) VALUES (chain) ON CONFLICT DO NOTHING;
  SELECT seq, hash INTO last_seq, last_hash FROM audit_heads WHERE tenant_id = chain FOR UPDATE;
  next_hash := sha256(last_hash || int8send(last_seq + 1) || entry);
  INSERT INTO audit_entries (tenant_id, seq, prev, hash, body) VALUES (chain, last_seq + 1, last_hash, next_hash, entry);
  UPDATE audit_heads SET seq = last_seq + 1, hash = next_hash WHERE tenant_id = chain;
  RETURN last_seq + 1;
END $$;
-- Open operations are counted where they begin and end, whoever writes them. A delete is never refused.
CREATE FUNCTION cp_count_operation() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET cp.scope = 'all' AS $$
DECLARE scopes text[]; full_scope text; change bigint := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
  scopes := ARRAY['platform', (SELECT t.reseller_id FROM tenants t WHERE t.id = NEW.tenant_id), NEW.tenant_id, NEW.project_id];
  PERFORM 1 FROM quotas q WHERE q.scope_id = ANY(scopes) AND q.resource = 'operations' ORDER BY q.depth, q.scope_id FOR UPDATE;
  IF change > 0 AND NEW.type NOT LIKE '%.delete' THEN
    SELECT q.scope_kind INTO full_scope FROM quotas q
      WHERE q.scope_id = ANY(scopes) AND q.resource = 'operations' AND q.used >= q.ceiling ORDER BY q.depth DESC LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION 'too many operations are open' USING ERRCODE = 'check_violation', CONSTRAINT = 'operations_quota', DETAIL = full_scope;
    END IF;
  END IF;
  UPDATE quotas q SET used = q.used + change, updated_at = cp_clock() WHERE q.scope_id = ANY(scopes) AND q.resource = 'operations';
  RETURN NULL;
END $$;
CREATE TRIGGER counted_when_begun AFTER INSERT ON operations FOR EACH ROW WHEN (NEW.tenant_id IS NOT NULL)
  EXECUTE FUNCTION cp_count_operation();
CREATE TRIGGER counted_when_ended AFTER UPDATE OF state ON operations FOR EACH ROW
  WHEN (NEW.tenant_id IS NOT NULL AND NEW.state IN ('succeeded', 'failed', 'cancelled')
        AND OLD.state NOT IN ('succeeded', 'failed', 'cancelled')) EXECUTE FUNCTION cp_count_operation();
REVOKE ALL ON FUNCTION cp_audit_append(text, bytea) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cp_audit_append(text, bytea) TO cp_application;
"""

WORKERS = "current_setting('cp.scope', true) = 'all'"
TENANT = "nullif(current_setting('cp.tenant', true), '')"
RESELLER = "nullif(current_setting('cp.reseller', true), '')"
OF_RESELLER = f"(SELECT t.id FROM tenants t WHERE t.reseller_id = {RESELLER})"
WALLS = {
    "resellers": f"id = {RESELLER}",
    "reseller_domains": f"reseller_id = {RESELLER}",
    "tenants": f"id = {TENANT} OR reseller_id = {RESELLER}",
    "principals": f"tenant_id = {TENANT} OR reseller_id = {RESELLER}",
    "role_bindings": f"tenant_id = {TENANT} OR reseller_id = {RESELLER}",
    "api_keys": f"tenant_id = {TENANT} OR reseller_id = {RESELLER}",
    "quotas": f"tenant_id IS NULL OR tenant_id = {TENANT} OR reseller_id = {RESELLER}",
    "audit_entries": f"tenant_id = {TENANT} OR tenant_id = {RESELLER}",
    "audit_heads": f"tenant_id = {TENANT} OR tenant_id = {RESELLER}",
    "idempotency_keys": f"tenant_id = {TENANT} OR tenant_id = {RESELLER}",
    "price_books": f"is_base OR reseller_id = {RESELLER} OR reseller_id = (SELECT t.reseller_id FROM tenants t WHERE t.id = {TENANT})",
} | dict.fromkeys(
    (
        "projects",
        "meter_intervals",
        "allocations",
        "clusters",
        "node_sets",
        "jobs",
        "job_logs",
        "events",
        "state_history",
        "operations",
        "provider_users",
    ),
    f"tenant_id = {TENANT} OR tenant_id IN {OF_RESELLER}",
)
READ_ONLY = ("audit_entries", "audit_heads", "state_moves", "alembic_version")
APPEND_ONLY = ("events", "state_history")
DELETABLE = ("idempotency_keys", "reseller_domains", "role_bindings", "provider_users", "job_logs", "health_reports")


def guard() -> None:
    """
    Row-level security stands on every table of customer data, and the application's role has what it needs and no more.
    """
    for table, wall in WALLS.items():
        clause = f"{WORKERS} OR ({wall})"
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY everyone ON {table} USING (true) WITH CHECK (true)")
        op.execute(f"CREATE POLICY tenant_wall ON {table} AS RESTRICTIVE USING ({clause}) WITH CHECK ({clause})")
    op.execute("GRANT USAGE ON SCHEMA public TO cp_application")
    op.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO cp_application")
    op.execute("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO cp_application")
    for table in READ_ONLY:
        op.execute(f"REVOKE INSERT, UPDATE ON {table} FROM cp_application")
    for table in APPEND_ONLY:
        op.execute(f"REVOKE UPDATE ON {table} FROM cp_application")
    for table in DELETABLE:
        op.execute(f"GRANT DELETE ON {table} TO cp_application")


revision = "d287e2c3d330"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(BEFORE)
    op.create_table(
        "audit_entries",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("prev", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "seq", name=op.f("pk_audit_entries")),
        sa.UniqueConstraint("tenant_id", "prev", name="uq_audit_entries_prev"),
    )
    op.create_table(
        "audit_heads",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("hash", sa.LargeBinary(), server_default=sa.text("decode(repeat('00', 32), 'hex')"), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_audit_heads")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("xact", sa.Text(), server_default=sa.text("lpad(pg_current_xact_id()::text, 20, '0')"), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("resource_kind", sa.Text(), nullable=False),
        sa.Column("resource_id", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_position", "events", ["xact", "id"], unique=False)
    op.create_index("ix_events_tenant", "events", ["tenant_id", "xact", "id"], unique=False)
    op.create_table(
        "gpu_models",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=False),
        sa.Column("memory_gib", sa.BigInteger(), nullable=False),
        sa.Column("memory_bandwidth_gb_s", sa.BigInteger(), nullable=False),
        sa.Column("tflops", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("tdp_w", sa.BigInteger(), nullable=False),
        sa.Column("nvlink_generation", sa.BigInteger(), nullable=True),
        sa.Column("mig_profiles", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_gpu_models")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("principal_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=False),
        sa.Column("headers", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.PrimaryKeyConstraint("principal_id", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index("ix_idempotency_keys_created", "idempotency_keys", ["created_at"], unique=False)
    op.create_table(
        "meter_intervals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("allocation_id", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.Text(), server_default="on_demand", nullable=False),
        sa.Column("during", postgresql.TSTZRANGE(), nullable=False),
        sa.Column("opened_by", sa.Text(), nullable=False),
        sa.Column("closed_by", sa.Text(), server_default="", nullable=False),
        postgresql.ExcludeConstraint(
            (sa.column("allocation_id"), "="), (sa.column("during"), "&&"), using="gist", name="ex_meter_intervals_once"
        ),
        sa.CheckConstraint(
            "isempty(during) OR (lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during))",
            name=op.f("ck_meter_intervals_half_open"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_meter_intervals")),
    )
    op.create_index("ix_meter_intervals_allocation", "meter_intervals", ["allocation_id"], unique=False)
    op.create_index("ix_meter_intervals_cluster", "meter_intervals", ["cluster_id"], unique=False)
    op.create_index("ix_meter_intervals_tenant", "meter_intervals", ["tenant_id", "id"], unique=False)
    op.create_index("ix_meter_intervals_during", "meter_intervals", ["tenant_id", "during"], unique=False, postgresql_using="gist")
    op.create_table(
        "operations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("resource_kind", sa.Text(), nullable=False),
        sa.Column("resource_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("steps", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("error", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("principal_id", sa.Text(), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint(
            "state IN ('pending','running','needs_attention','succeeded','failed','cancelled')", name=op.f("ck_operations_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
    )
    op.create_index(
        "ix_operations_open",
        "operations",
        ["deadline_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('pending','running','needs_attention')"),
    )
    op.create_index("ix_operations_tenant", "operations", ["tenant_id", "id"], unique=False)
    op.create_index(
        "uq_operations_one_active",
        "operations",
        ["resource_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('pending','running','needs_attention')"),
    )
    op.create_table(
        "quotas",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("depth", sa.BigInteger(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=True),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("gpu_model", sa.Text(), server_default="", nullable=False),
        sa.Column("site", sa.Text(), server_default="", nullable=False),
        sa.Column("ceiling", sa.BigInteger(), nullable=True),
        sa.Column("used", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("resource IN ('gpus','clusters','keys','operations')", name=op.f("ck_quotas_resource")),
        sa.CheckConstraint("scope_kind IN ('platform','reseller','tenant','project')", name=op.f("ck_quotas_scope_kind")),
        sa.CheckConstraint("ceiling IS NULL OR ceiling >= 0", name=op.f("ck_quotas_ceiling_not_negative")),
        sa.CheckConstraint("used >= 0", name=op.f("ck_quotas_used_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quotas")),
    )
    op.create_index("uq_quotas_scope", "quotas", ["scope_id", "resource", "gpu_model", "site"], unique=True)
    op.create_table(
        "resellers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("is_platform", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("brand", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("state IN ('active','suspended','deleted')", name=op.f("ck_resellers_state")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_resellers")),
    )
    op.create_index("uq_resellers_name", "resellers", ["name"], unique=True, postgresql_where=sa.text("state <> 'deleted'"))
    op.create_index("uq_resellers_platform", "resellers", ["is_platform"], unique=True, postgresql_where=sa.text("is_platform"))
    op.create_table(
        "sites",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("region", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sites")),
    )
    op.create_table(
        "state_history",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("resource_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_state_history")),
    )
    op.create_index("ix_state_history_resource", "state_history", ["resource_id", "id"], unique=False)
    op.create_table(
        "state_moves",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("before", sa.Text(), nullable=False),
        sa.Column("after", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "before", "after", name=op.f("pk_state_moves")),
    )
    op.create_table(
        "instance_types",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("gpu_model", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("cpus", sa.BigInteger(), nullable=False),
        sa.Column("memory_gib", sa.BigInteger(), nullable=False),
        sa.Column("nics", sa.BigInteger(), nullable=False),
        sa.Column("nic_gbit_s", sa.BigInteger(), nullable=False),
        sa.Column("nvme_gib", sa.BigInteger(), nullable=False),
        sa.Column("power_kw", sa.Numeric(precision=8, scale=3), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(["gpu_model"], ["gpu_models.name"], name=op.f("fk_instance_types_gpu_model")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_instance_types")),
    )
    op.create_table(
        "price_books",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=False),
        sa.Column("is_base", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["reseller_id"], ["resellers.id"], name=op.f("fk_price_books_reseller_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_books")),
        sa.UniqueConstraint("reseller_id", "number", name=op.f("uq_price_books_reseller_id_number")),
    )
    op.create_table(
        "providers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("adapter", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("config", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("capabilities", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("shared", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("checked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("problem", sa.Text(), server_default="", nullable=False),
        sa.Column("findings", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("state IN ('active','disabled','deleted')", name=op.f("ck_providers_state")),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_providers_site")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_providers")),
        sa.UniqueConstraint("name", name=op.f("uq_providers_name")),
    )
    op.create_table(
        "reseller_domains",
        sa.Column("domain", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["reseller_id"], ["resellers.id"], name=op.f("fk_reseller_domains_reseller_id")),
        sa.PrimaryKeyConstraint("domain", name=op.f("pk_reseller_domains")),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("suspended_by", sa.Text(), server_default="", nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("state IN ('active','suspended','deleting','deleted')", name=op.f("ck_tenants_state")),
        sa.ForeignKeyConstraint(["reseller_id"], ["resellers.id"], name=op.f("fk_tenants_reseller_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_index(
        "uq_tenants_name", "tenants", ["reseller_id", "name"], unique=True, postgresql_where=sa.text("state <> 'deleted'")
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("block", sa.Text(), nullable=False),
        sa.Column("leaf", sa.Text(), nullable=False),
        sa.Column("rack", sa.Text(), nullable=False),
        sa.Column("nvlink_domain", sa.Text(), nullable=True),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("allocation_id", sa.Text(), nullable=True),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("inventory", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("health", sa.Text(), server_default="ok", nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wakes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attention", sa.Text(), server_default="", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["instance_type"], ["instance_types.name"], name=op.f("fk_nodes_instance_type")),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_nodes_provider_id")),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_nodes_site")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
        sa.UniqueConstraint("provider_id", "ref", name=op.f("uq_nodes_provider_id_ref")),
    )
    op.create_index("ix_nodes_attention", "nodes", ["id"], unique=False, postgresql_where=sa.text("attention <> ''"))
    op.create_index(
        "ix_nodes_available", "nodes", ["site", "instance_type"], unique=False, postgresql_where=sa.text("state = 'available'")
    )
    op.create_index("ix_nodes_due", "nodes", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_table(
        "prices",
        sa.Column("price_book_id", sa.Text(), nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("per_gpu_hour", sa.Numeric(precision=18, scale=6), nullable=False),
        sa.ForeignKeyConstraint(["price_book_id"], ["price_books.id"], name=op.f("fk_prices_price_book_id")),
        sa.PrimaryKeyConstraint("price_book_id", "instance_type", "mode", name=op.f("pk_prices")),
    )
    op.create_table(
        "principals",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=True),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("kind IN ('user','service_account')", name=op.f("ck_principals_kind")),
        sa.CheckConstraint("state IN ('active','disabled','deleted')", name=op.f("ck_principals_state")),
        sa.ForeignKeyConstraint(["reseller_id"], ["resellers.id"], name=op.f("fk_principals_reseller_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_principals_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_principals")),
    )
    op.create_index(
        "uq_principals_email",
        "principals",
        ["tenant_id", "reseller_id", "email"],
        unique=True,
        postgresql_where=sa.text("state <> 'deleted'"),
        postgresql_nulls_not_distinct=True,
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.CheckConstraint("state IN ('active','deleted')", name=op.f("ck_projects_state")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_projects_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
    )
    op.create_index(
        "uq_projects_name", "projects", ["tenant_id", "name"], unique=True, postgresql_where=sa.text("state <> 'deleted'")
    )
    op.create_table(
        "provider_users",
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_provider_users_provider_id")),
        sa.PrimaryKeyConstraint("provider_id", "user", name=op.f("pk_provider_users")),
    )
    op.create_table(
        "allocations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("node_set_id", sa.Text(), nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="held", nullable=False),
        sa.Column("network", sa.Text(), nullable=False),
        sa.Column("during", postgresql.TSTZRANGE(), nullable=False),
        sa.Column("release_accepted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("charged", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("leaving", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("end_reason", sa.Text(), server_default="", nullable=False),
        postgresql.ExcludeConstraint(
            (sa.column("node_id"), "="), (sa.column("during"), "&&"), using="gist", name="ex_allocations_one_tenant"
        ),
        sa.CheckConstraint("state IN ('held','active','releasing','ended')", name=op.f("ck_allocations_state")),
        sa.CheckConstraint(
            "lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during)", name=op.f("ck_allocations_half_open")
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_allocations_node_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_allocations_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_allocations_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocations")),
    )
    op.create_index("ix_allocations_cluster", "allocations", ["cluster_id", "state"], unique=False)
    op.create_index("ix_allocations_tenant", "allocations", ["tenant_id", "id"], unique=False)
    op.create_index("uq_allocations_active", "allocations", ["node_id"], unique=True, postgresql_where=sa.text("state <> 'ended'"))
    op.create_index("uq_allocations_instance", "allocations", ["instance_id"], unique=True)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=True),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("permissions", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("networks", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scope_kind IN ('platform','reseller','tenant','project')", name=op.f("ck_api_keys_scope_kind")),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name=op.f("fk_api_keys_principal_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_index("ix_api_keys_principal", "api_keys", ["principal_id"], unique=False)
    op.create_index("ix_api_keys_tenant", "api_keys", ["tenant_id", "id"], unique=False)
    op.create_table(
        "clusters",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=True),
        sa.Column("provider_user", sa.Text(), server_default="", nullable=False),
        sa.Column("placement", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("issues", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("checks", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("running_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("charged", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("delete_accepted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wakes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attention", sa.Text(), server_default="", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_clusters_project_id")),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_clusters_provider_id")),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_clusters_site")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_clusters_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
    )
    op.create_index("ix_clusters_due", "clusters", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index("ix_clusters_project", "clusters", ["project_id", "id"], unique=False)
    op.create_index("ix_clusters_tenant", "clusters", ["tenant_id", "id"], unique=False)
    op.create_index(
        "uq_clusters_name", "clusters", ["project_id", "name"], unique=True, postgresql_where=sa.text("state <> 'deleted'")
    )
    op.create_table(
        "health_reports",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("check_name", sa.Text(), nullable=False),
        sa.Column("class", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_health_reports_node_id")),
        sa.PrimaryKeyConstraint("node_id", "source", "check_name", name=op.f("pk_health_reports")),
    )
    op.create_table(
        "node_holds",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lifted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_holds_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_holds")),
    )
    op.create_index("ix_node_holds_open", "node_holds", ["node_id"], unique=False, postgresql_where=sa.text("lifted_at IS NULL"))
    op.create_table(
        "role_bindings",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("principal_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=False),
        sa.Column("reseller_id", sa.Text(), nullable=True),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.CheckConstraint("scope_kind IN ('platform','reseller','tenant','project')", name=op.f("ck_role_bindings_scope_kind")),
        sa.ForeignKeyConstraint(["principal_id"], ["principals.id"], name=op.f("fk_role_bindings_principal_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_role_bindings")),
        sa.UniqueConstraint("principal_id", "role", "scope_id", name=op.f("uq_role_bindings_principal_id_role_scope_id")),
    )
    op.create_table(
        "wipes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("verified", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("checks", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_wipes_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_wipes")),
    )
    op.create_index("ix_wipes_node", "wipes", ["node_id", "requested_at"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("labels", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("attempt", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("external_id", sa.Text(), server_default="", nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("signal", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.Text(), server_default="", nullable=False),
        sa.Column("failure_class", sa.Text(), nullable=True),
        sa.Column("placement", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expected_start_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("requeues", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempt_requeues", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("log_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("issues", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("state_since", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wakes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attention", sa.Text(), server_default="", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_jobs_cluster_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_jobs_project_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_jobs_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_cluster", "jobs", ["cluster_id", "state"], unique=False)
    op.create_index("ix_jobs_due", "jobs", ["due_at"], unique=False, postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index("ix_jobs_project", "jobs", ["project_id", "id"], unique=False)
    op.create_index("ix_jobs_tenant", "jobs", ["tenant_id", "id"], unique=False)
    op.create_table(
        "node_sets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), nullable=False),
        sa.Column("gpu_model", sa.Text(), nullable=False),
        sa.Column("unplaced", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["cluster_id"], ["clusters.id"], name=op.f("fk_node_sets_cluster_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_sets")),
        sa.UniqueConstraint("cluster_id", "name", name=op.f("uq_node_sets_cluster_id_name")),
    )
    op.create_table(
        "job_logs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_logs_job_id")),
        sa.PrimaryKeyConstraint("job_id", "attempt", "byte_offset", name=op.f("pk_job_logs")),
    )
    op.execute(AFTER)
    guard()


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in WALLS:
        op.execute(f"DROP POLICY tenant_wall ON {table}")
    op.drop_table("job_logs")
    op.drop_table("node_sets")
    op.drop_index("ix_jobs_tenant", table_name="jobs")
    op.drop_index("ix_jobs_project", table_name="jobs")
    op.drop_index("ix_jobs_due", table_name="jobs", postgresql_where=sa.text("due_at IS NOT NULL"))
    op.drop_index("ix_jobs_cluster", table_name="jobs")
    op.drop_table("jobs")
    op.drop_index("ix_wipes_node", table_name="wipes")
    op.drop_table("wipes")
    op.drop_table("role_bindings")
    op.drop_index("ix_node_holds_open", table_name="node_holds", postgresql_where=sa.text("lifted_at IS NULL"))
    op.drop_table("node_holds")
    op.drop_table("health_reports")
    op.drop_index("uq_clusters_name", table_name="clusters", postgresql_where=sa.text("state <> 'deleted'"))
    op.drop_index("ix_clusters_tenant", table_name="clusters")
    op.drop_index("ix_clusters_project", table_name="clusters")
    op.drop_index("ix_clusters_due", table_name="clusters", postgresql_where=sa.text("due_at IS NOT NULL"))
    op.drop_table("clusters")
    op.drop_index("ix_api_keys_tenant", table_name="api_keys")
    op.drop_index("ix_api_keys_principal", table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_index("uq_allocations_instance", table_name="allocations")
    op.drop_index("uq_allocations_active", table_name="allocations", postgresql_where=sa.text("state <> 'ended'"))
    op.drop_index("ix_allocations_tenant", table_name="allocations")
    op.drop_index("ix_allocations_cluster", table_name="allocations")
    op.drop_table("allocations")
    op.drop_table("provider_users")
    op.drop_index("uq_projects_name", table_name="projects", postgresql_where=sa.text("state <> 'deleted'"))
    op.drop_table("projects")
    op.drop_index(
        "uq_principals_email",
        table_name="principals",
        postgresql_where=sa.text("state <> 'deleted'"),
        postgresql_nulls_not_distinct=True,
    )
    op.drop_table("principals")
    op.drop_table("prices")
    op.drop_index("ix_nodes_due", table_name="nodes", postgresql_where=sa.text("due_at IS NOT NULL"))
    op.drop_index("ix_nodes_available", table_name="nodes", postgresql_where=sa.text("state = 'available'"))
    op.drop_index("ix_nodes_attention", table_name="nodes", postgresql_where=sa.text("attention <> ''"))
    op.drop_table("nodes")
    op.drop_index("uq_tenants_name", table_name="tenants", postgresql_where=sa.text("state <> 'deleted'"))
    op.drop_table("tenants")
    op.drop_table("reseller_domains")
    op.drop_table("providers")
    op.drop_table("price_books")
    op.drop_table("instance_types")
    op.drop_table("state_moves")
    op.drop_index("ix_state_history_resource", table_name="state_history")
    op.drop_table("state_history")
    op.drop_table("sites")
    op.drop_index("uq_resellers_platform", table_name="resellers", postgresql_where=sa.text("is_platform"))
    op.drop_index("uq_resellers_name", table_name="resellers", postgresql_where=sa.text("state <> 'deleted'"))
    op.drop_table("resellers")
    op.drop_index("uq_quotas_scope", table_name="quotas")
    op.drop_table("quotas")
    op.drop_index(
        "uq_operations_one_active",
        table_name="operations",
        postgresql_where=sa.text("state IN ('pending','running','needs_attention')"),
    )
    op.drop_index("ix_operations_tenant", table_name="operations")
    op.drop_index(
        "ix_operations_open", table_name="operations", postgresql_where=sa.text("state IN ('pending','running','needs_attention')")
    )
    op.drop_table("operations")
    op.drop_index("ix_meter_intervals_during", table_name="meter_intervals", postgresql_using="gist")
    op.drop_index("ix_meter_intervals_tenant", table_name="meter_intervals")
    op.drop_index("ix_meter_intervals_cluster", table_name="meter_intervals")
    op.drop_index("ix_meter_intervals_allocation", table_name="meter_intervals")
    op.drop_table("meter_intervals")
    op.drop_index("ix_idempotency_keys_created", table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_table("gpu_models")
    op.drop_index("ix_events_tenant", table_name="events")
    op.drop_index("ix_events_position", table_name="events")
    op.drop_table("events")
    op.drop_table("audit_heads")
    op.drop_table("audit_entries")
    for function in ("cp_check_move", "cp_check_wiped", "cp_refuse_available", "cp_count_operation", "cp_clock"):
        op.execute(f"DROP FUNCTION {function}()")
    op.execute("DROP FUNCTION cp_audit_append(text, bytea)")
