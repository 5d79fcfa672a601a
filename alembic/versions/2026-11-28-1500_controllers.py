"""
Controllers: passwords that change, the way from hosts to them, and their restarts.

Revision ID: c93e0d5a7f18
Revises: c3e9a17d5b08
"""

import sqlalchemy as sa

from alembic import op

revision = "c93e0d5a7f18"
down_revision = "c3e9a17d5b08"
branch_labels = None
depends_on = None

COLUMNS = ("restarted_at", "door", "refusals", "rotated_at", "rotate_at", "rotation", "sealed_next")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("nodes", sa.Column("sealed_next", sa.LargeBinary(), nullable=True))
    op.add_column("nodes", sa.Column("rotation", sa.Text(), server_default="", nullable=False))
    op.add_column("nodes", sa.Column("rotate_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("nodes", sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("nodes", sa.Column("refusals", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("nodes", sa.Column("door", sa.Text(), server_default="", nullable=False))
    op.add_column("nodes", sa.Column("restarted_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_nodes_rotate", "nodes", ["rotate_at"], postgresql_where=sa.text("rotate_at IS NOT NULL"))
    op.create_check_constraint(
        op.f("ck_nodes_next_password"), "nodes", "(sealed_next IS NOT NULL) = (rotation IN ('prepared','told'))"
    )
    # Machines that are in use keep their passwords until they are wiped next.
    op.execute("UPDATE nodes SET rotation = 'due' WHERE access <> '{}'::jsonb AND state <> 'retired'")


def downgrade() -> None:
    # A password that a controller may have already must not be forgotten with its column.
    op.execute("""DO $$ BEGIN
      IF EXISTS (SELECT 1 FROM nodes WHERE sealed_next IS NOT NULL) THEN
        RAISE EXCEPTION 'passwords of controllers are being changed: wait until no rotation is prepared or told';
      END IF; END $$""")
    op.drop_constraint(op.f("ck_nodes_next_password"), "nodes")
    op.drop_index("ix_nodes_rotate", "nodes")
    for column in COLUMNS:
        op.drop_column("nodes", column)
