"""
Arrays made from templates, and shares of GPUs in the work of jobs and services.

Revision ID: 5a9c27f1d3b8
Revises: 4d8e16b7a05c
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision = "5a9c27f1d3b8"
down_revision = "4d8e16b7a05c"
branch_labels = None
depends_on = None

CHECK = "ck_work_intervals_share"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("job_arrays", sa.Column("template", postgresql.JSONB(), nullable=True))
    op.add_column("work_intervals", sa.Column("profile", sa.Text(), server_default="", nullable=False))
    op.add_column("work_intervals", sa.Column("slices", sa.BigInteger(), server_default="1", nullable=False))
    op.add_column("work_intervals", sa.Column("of_slices", sa.BigInteger(), server_default="1", nullable=False))
    op.create_check_constraint(op.f(CHECK), "work_intervals", "slices >= 1 AND slices <= of_slices")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_constraint(op.f(CHECK), "work_intervals", type_="check")
    op.drop_column("work_intervals", "of_slices")
    op.drop_column("work_intervals", "slices")
    op.drop_column("work_intervals", "profile")
    op.drop_column("job_arrays", "template")
