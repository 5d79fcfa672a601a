"""
Fabric checks of machines that boot through us: what each machine said when it came, and who was there for which run and said what of it.

Revision ID: d19e6b40a7c2
Revises: c35b7e02d9f4
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op
from controlplane.kit.clock import CpClock

revision = "d19e6b40a7c2"
down_revision = "c35b7e02d9f4"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
KNOWN = ("deploy", "wipe", "check", "rescue", "install")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    allow(*KNOWN, "fabric")
    op.add_column("fabric_check_nodes", sa.Column("address", postgresql.INET(), nullable=True))
    op.add_column(
        "fabric_check_nodes", sa.Column("told", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    )
    op.add_column("fabric_check_nodes", sa.Column("arrived_at", MOMENT, nullable=True))
    op.create_table(
        "fabric_check_attendances",
        sa.Column("check_id", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("opened_at", MOMENT, server_default=CpClock(), nullable=False),
        sa.Column("came_at", MOMENT, nullable=True),
        sa.Column("result", sa.Text(), server_default="", nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("output", sa.Text(), server_default="", nullable=False),
        sa.Column("digest", sa.Text(), server_default="", nullable=False),
        sa.Column("told_at", MOMENT, nullable=True),
        sa.Column("closed_at", MOMENT, nullable=True),
        sa.CheckConstraint("result IN ('','passed','failed','not_measured')", name=op.f("ck_fabric_check_attendances_result")),
        sa.CheckConstraint("(told_at IS NULL) = (result = '')", name=op.f("ck_fabric_check_attendances_told")),
        sa.CheckConstraint("told_at IS NULL OR came_at IS NOT NULL", name=op.f("ck_fabric_check_attendances_came_first")),
        sa.CheckConstraint("closed_at IS NULL OR output = ''", name=op.f("ck_fabric_check_attendances_not_kept")),
        sa.ForeignKeyConstraint(
            ["check_id", "node_id"],
            ["fabric_check_nodes.check_id", "fabric_check_nodes.node_id"],
            name=op.f("fk_fabric_check_attendances_member"),
        ),
        sa.PrimaryKeyConstraint("check_id", "run", "node_id", name=op.f("pk_fabric_check_attendances")),
    )
    op.create_index(
        "uq_fabric_check_attendances_open",
        "fabric_check_attendances",
        ["node_id"],
        unique=True,
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.execute("GRANT SELECT, INSERT, UPDATE ON fabric_check_attendances TO cp_application")


def allow(*purposes: str) -> None:
    """
    Boots are for one of these and nothing else.
    """
    known = ",".join(f"'{one}'" for one in purposes)
    op.drop_constraint(op.f("ck_boots_purpose"), "boots")
    op.create_check_constraint(op.f("ck_boots_purpose"), "boots", f"purpose IN ({known})")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("fabric_check_attendances")
    for column in ("arrived_at", "told", "address"):
        op.drop_column("fabric_check_nodes", column)
    op.execute("DELETE FROM boot_console WHERE boot_id IN (SELECT id FROM boots WHERE purpose = 'fabric')")
    op.execute("UPDATE nodes SET boot_id = NULL WHERE boot_id IN (SELECT id FROM boots WHERE purpose = 'fabric')")
    op.execute("DELETE FROM boots WHERE purpose = 'fabric'")
    # Nobody drives a machine back that is lent still: a person looks at it, as at everything whose state is not known.
    op.execute("UPDATE nodes SET due_at = NULL, step = '' WHERE state = 'checking'")
    allow(*KNOWN)
