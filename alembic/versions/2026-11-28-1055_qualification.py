"""
qualification: baselines, measurements, standings and policies

Revision ID: b7c41d90e2a5
Revises: 5b1f0c7a9e42
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "b7c41d90e2a5"
down_revision = "5b1f0c7a9e42"
branch_labels = None
depends_on = None

KINDS = "subject_kind IN ('node','pair','leaf','rail')"
VERDICTS = "verdict IN ('passed','failed','not_measured','not_judged')"
JUDGES = "judged_by IN ('baseline','tool','provider','nothing')"
UNCHANGEABLE = ("baselines", "measurements")
APPEND_ONLY = r"""
CREATE FUNCTION cp_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'rows of % are never changed or removed', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "baselines",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("scope_kind", sa.Text(), nullable=False),
        sa.Column("scope_name", sa.Text(), nullable=False),
        sa.Column("subject_kind", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("comparison", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("tolerance", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("withdrawn", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.CheckConstraint("scope_kind IN ('gpu_model','instance_type')", name=op.f("ck_baselines_scope_kind")),
        sa.CheckConstraint(KINDS, name=op.f("ck_baselines_subject_kind")),
        sa.CheckConstraint("comparison IN ('at_least','at_most')", name=op.f("ck_baselines_comparison")),
        sa.PrimaryKeyConstraint("id", "version", name=op.f("pk_baselines")),
    )
    op.create_index(
        "uq_baselines_place",
        "baselines",
        ["scope_kind", "scope_name", "subject_kind", "metric"],
        unique=True,
        postgresql_where=sa.text("version = 1"),
    )
    op.create_table(
        "measurements",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("subject_kind", sa.Text(), nullable=False),
        sa.Column("subject_key", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), server_default="", nullable=False),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("peer_node_id", sa.Text(), nullable=True),
        sa.Column("site", sa.Text(), nullable=True),
        sa.Column("leaf", sa.Text(), nullable=True),
        sa.Column("rail", sa.BigInteger(), nullable=True),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("judged_by", sa.Text(), nullable=False),
        sa.Column("baseline_id", sa.Text(), nullable=True),
        sa.Column("baseline_version", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.CheckConstraint(KINDS, name=op.f("ck_measurements_subject_kind")),
        sa.CheckConstraint(VERDICTS, name=op.f("ck_measurements_verdict")),
        sa.CheckConstraint(JUDGES, name=op.f("ck_measurements_judged_by")),
        sa.CheckConstraint("(value IS NULL) = (verdict = 'not_measured')", name=op.f("ck_measurements_measured")),
        sa.ForeignKeyConstraint(
            ["baseline_id", "baseline_version"],
            ["baselines.id", "baselines.version"],
            name=op.f("fk_measurements_baseline_id_baseline_version"),
        ),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_measurements_node_id")),
        sa.ForeignKeyConstraint(["peer_node_id"], ["nodes.id"], name=op.f("fk_measurements_peer_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurements")),
        sa.UniqueConstraint("run_id", "tool", "subject_kind", "subject_key", "part", "metric", name="uq_measurements_once"),
    )
    op.create_index(
        "ix_measurements_standing", "measurements", ["subject_kind", "subject_key", "part", "metric", "taken_at"], unique=False
    )
    op.create_index("ix_measurements_node", "measurements", ["node_id", "id"], unique=False)
    op.create_index(
        "ix_measurements_peer",
        "measurements",
        ["peer_node_id", "id"],
        unique=False,
        postgresql_where=sa.text("peer_node_id IS NOT NULL"),
    )
    op.create_table(
        "standings",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("subject_kind", sa.Text(), nullable=False),
        sa.Column("subject_key", sa.Text(), nullable=False),
        sa.Column("part", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=True),
        sa.Column("peer_node_id", sa.Text(), nullable=True),
        sa.Column("site", sa.Text(), nullable=True),
        sa.Column("leaf", sa.Text(), nullable=True),
        sa.Column("rail", sa.BigInteger(), nullable=True),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("judged_by", sa.Text(), nullable=False),
        sa.Column("baseline_id", sa.Text(), nullable=True),
        sa.Column("baseline_version", sa.BigInteger(), nullable=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("measurement_id", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("recent", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("trend", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("drifting", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint(KINDS, name=op.f("ck_standings_subject_kind")),
        sa.CheckConstraint(VERDICTS, name=op.f("ck_standings_verdict")),
        sa.CheckConstraint(JUDGES, name=op.f("ck_standings_judged_by")),
        sa.ForeignKeyConstraint(["measurement_id"], ["measurements.id"], name=op.f("fk_standings_measurement_id")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_standings_node_id")),
        sa.ForeignKeyConstraint(["peer_node_id"], ["nodes.id"], name=op.f("fk_standings_peer_node_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_standings")),
        sa.UniqueConstraint("subject_kind", "subject_key", "part", "metric", name="uq_standings_place"),
    )
    op.create_index("ix_standings_node", "standings", ["node_id", "id"], unique=False)
    op.create_index(
        "ix_standings_peer", "standings", ["peer_node_id"], unique=False, postgresql_where=sa.text("peer_node_id IS NOT NULL")
    )
    op.create_index("ix_standings_leaf", "standings", ["site", "leaf"], unique=False, postgresql_where=sa.text("leaf IS NOT NULL"))
    op.create_index("ix_standings_metric", "standings", ["metric", "subject_kind"], unique=False)
    op.create_index(
        "ix_standings_failed_pairs",
        "standings",
        ["node_id", "peer_node_id"],
        unique=False,
        postgresql_where=sa.text("subject_kind = 'pair' AND verdict = 'failed'"),
    )
    op.create_table(
        "node_qualifications",
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("below", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("missing", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("good_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fails_with", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("reasons", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_qualifications_node_id")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_node_qualifications")),
    )
    op.create_table(
        "qualification_policies",
        sa.Column("instance_type", sa.Text(), nullable=False),
        sa.Column("required", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'::text[]"), nullable=False),
        sa.Column("sell_not_measured", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("max_age_s", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("cp_clock()"), nullable=False),
        sa.ForeignKeyConstraint(["instance_type"], ["instance_types.name"], name=op.f("fk_qualification_policies_instance_type")),
        sa.PrimaryKeyConstraint("instance_type", name=op.f("pk_qualification_policies")),
    )
    guard()


def guard() -> None:
    """
    The application's role has what it needs and no more; what was measured and what was in force is never changed, by whomever.
    """
    op.execute(APPEND_ONLY)
    for table in ("baselines", "measurements", "standings", "node_qualifications", "qualification_policies"):
        op.execute(f"GRANT SELECT, INSERT, UPDATE ON {table} TO cp_application")
    for table in UNCHANGEABLE:
        op.execute(f"REVOKE UPDATE ON {table} FROM cp_application")
        op.execute(
            f"CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION cp_refuse_change()"
        )


def downgrade() -> None:
    for table in ("qualification_policies", "node_qualifications", "standings", "measurements", "baselines"):
        op.drop_table(table)
    op.execute("DROP FUNCTION cp_refuse_change()")
