"""
Slurm clusters of one's own: roles of node sets, what their machines boot with, and schedulers that belong to one cluster.

Revision ID: e1c07d4f9a26
Revises: b7c41d90e2a5
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "e1c07d4f9a26"
down_revision = "b7c41d90e2a5"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("providers", sa.Column("cluster_id", sa.Text(), nullable=True))
    op.create_index(
        "uq_providers_cluster", "providers", ["cluster_id"], unique=True, postgresql_where=sa.text("cluster_id IS NOT NULL")
    )
    op.add_column("node_sets", sa.Column("role", sa.Text(), server_default="worker", nullable=False))
    op.create_check_constraint(op.f("ck_node_sets_role"), "node_sets", "role IN ('worker','head','login')")
    op.add_column("node_sets", sa.Column("blueprint_id", sa.Text(), nullable=True))
    op.add_column("clusters", sa.Column("slurm", postgresql.JSONB(), nullable=True))
    op.add_column("clusters", sa.Column("peer_id", sa.Text(), nullable=True))
    op.create_foreign_key(op.f("fk_clusters_peer_id_providers"), "clusters", "providers", ["peer_id"], ["id"])


def downgrade() -> None:
    op.drop_constraint(op.f("fk_clusters_peer_id_providers"), "clusters", type_="foreignkey")
    op.drop_column("clusters", "peer_id")
    op.drop_column("clusters", "slurm")
    op.drop_column("node_sets", "blueprint_id")
    op.drop_constraint(op.f("ck_node_sets_role"), "node_sets", type_="check")
    op.drop_column("node_sets", "role")
    op.drop_index("uq_providers_cluster", table_name="providers")
    op.drop_column("providers", "cluster_id")
