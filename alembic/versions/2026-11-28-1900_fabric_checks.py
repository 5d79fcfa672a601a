"""
Fabric checks: tools between free nodes, and the loan of a node to a check.

Revision ID: 5c1f0e8b72d4
Revises: b41f7c20d9e3
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op
from controlplane.kit.clock import CpClock

revision = "5c1f0e8b72d4"
down_revision = "b41f7c20d9e3"
branch_labels = None
depends_on = None

EMPTY_LIST = sa.text("'[]'::jsonb")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    checks_table()
    op.create_index("ix_fabric_checks_due", "fabric_checks", ["due_at"], postgresql_where=sa.text("due_at IS NOT NULL"))
    op.create_index("ix_fabric_checks_leaf", "fabric_checks", ["site", "leaf", "created_at"])
    op.create_table(
        "fabric_check_nodes",
        sa.Column("check_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("taken_at", MOMENT, server_default=CpClock(), nullable=False),
        sa.Column("returned_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(["check_id"], ["fabric_checks.id"], name=op.f("fk_fabric_check_nodes_check_id_fabric_checks")),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_fabric_check_nodes_node_id_nodes")),
        sa.PrimaryKeyConstraint("check_id", "node_id", name=op.f("pk_fabric_check_nodes")),
    )
    op.create_index(
        "uq_fabric_check_nodes_held",
        "fabric_check_nodes",
        ["node_id"],
        unique=True,
        postgresql_where=sa.text("returned_at IS NULL"),
    )
    op.add_column("nodes", sa.Column("check_id", sa.Text(), nullable=True))
    op.create_index("ix_nodes_check", "nodes", ["check_id"], postgresql_where=sa.text("check_id IS NOT NULL"))
    op.create_check_constraint(op.f("ck_nodes_lent"), "nodes", "(check_id IS NOT NULL) = (state = 'checking')")
    op.create_check_constraint(op.f("ck_nodes_lent_or_held"), "nodes", "check_id IS NULL OR allocation_id IS NULL")
    op.execute("GRANT SELECT, INSERT, UPDATE ON fabric_checks, fabric_check_nodes TO cp_application")
    op.execute(
        "CREATE TRIGGER legal_move BEFORE UPDATE OF state ON fabric_checks FOR EACH ROW "
        "WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION cp_check_move('fabric_check')"
    )


def checks_table() -> None:
    op.create_table(
        "fabric_checks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("site", sa.Text(), nullable=False),
        sa.Column("block", sa.Text(), server_default="", nullable=False),
        sa.Column("leaf", sa.Text(), server_default="", nullable=False),
        sa.Column("rail", sa.BigInteger(), nullable=True),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=False),
        sa.Column("rounds", postgresql.JSONB(), nullable=False),
        sa.Column("left_out", postgresql.JSONB(), server_default=EMPTY_LIST, nullable=False),
        sa.Column("results", postgresql.JSONB(), server_default=EMPTY_LIST, nullable=False),
        sa.Column("verdict", sa.Text(), server_default="", nullable=False),
        sa.Column("blamed", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("ending", sa.Text(), server_default="", nullable=False),
        sa.Column("failure", sa.Text(), server_default="", nullable=False),
        sa.Column("cancel_requested_at", MOMENT, nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("state_since", MOMENT, server_default=CpClock(), nullable=False),
        sa.Column("deadline_at", MOMENT, nullable=True),
        sa.Column("due_at", MOMENT, server_default=CpClock(), nullable=True),
        sa.Column("lease_until", MOMENT, nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wakes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attention", sa.Text(), server_default="", nullable=False),
        sa.Column("version", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("created_at", MOMENT, server_default=CpClock(), nullable=False),
        sa.Column("updated_at", MOMENT, server_default=CpClock(), nullable=False),
        sa.CheckConstraint("scope IN ('pair','leaf','rail','block')", name=op.f("ck_fabric_checks_scope")),
        sa.CheckConstraint("tool IN ('nccl-tests','ib_write_bw')", name=op.f("ck_fabric_checks_tool")),
        sa.CheckConstraint("verdict IN ('','passed','failed','not_measured','not_judged')", name=op.f("ck_fabric_checks_verdict")),
        sa.CheckConstraint("ending IN ('','done','failed','cancelled')", name=op.f("ck_fabric_checks_ending")),
        sa.ForeignKeyConstraint(["site"], ["sites.name"], name=op.f("fk_fabric_checks_site_sites")),
        sa.ForeignKeyConstraint(["provider_id"], ["providers.id"], name=op.f("fk_fabric_checks_provider_id_providers")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fabric_checks")),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # A lent node is wiped and nobody's: without the loan it is free.
    op.execute("ALTER TABLE nodes DROP CONSTRAINT ck_nodes_lent")
    op.execute("UPDATE nodes SET state = 'available', check_id = NULL WHERE state = 'checking'")
    op.execute("ALTER TABLE nodes DROP CONSTRAINT ck_nodes_lent_or_held")
    op.drop_index("ix_nodes_check", table_name="nodes")
    op.drop_column("nodes", "check_id")
    op.drop_table("fabric_check_nodes")
    op.drop_table("fabric_checks")
