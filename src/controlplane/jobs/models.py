"""
Rows of jobs and of what they print.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base
from controlplane.kit.moving import Moving


class JobRow(Moving, Base):
    """
    Work with an end.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
        Index("ix_jobs_project", "project_id", "id"),
        Index("ix_jobs_cluster", "cluster_id", "state"),
        Index("ix_jobs_tenant", "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`job_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """Its project."""
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"))
    """Where it runs."""
    name: Mapped[str]
    """For people; need not be unique."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs."""
    spec: Mapped[dict[str, Any]]
    """The job as the caller sent it, defaults filled in."""
    attempt: Mapped[int] = mapped_column(server_default="1")
    """The try under way: 1, 2, …; `<id>-<attempt>` is its token at the provider."""
    external_id: Mapped[str] = mapped_column(server_default="")
    """The provider's id of the attempt."""
    exit_code: Mapped[int | None]
    """Of the last attempt's script."""
    signal: Mapped[int | None]
    """That ended it."""
    verdict: Mapped[str] = mapped_column(server_default="")
    """The final state that the attempt's end stands for; empty while it has not ended."""
    failure_class: Mapped[str | None]
    """Set when it failed."""
    placement: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """Instance ids it runs, or ran, on."""
    started_at: Mapped[datetime | None]
    """When the last attempt started."""
    ended_at: Mapped[datetime | None]
    """When it ended."""
    expected_start_at: Mapped[datetime | None]
    """Estimate while it waits."""
    requeues: Mapped[int] = mapped_column(server_default="0")
    """Restarts by the scheduler and by us, over all attempts."""
    attempt_requeues: Mapped[int] = mapped_column(server_default="0")
    """Of these, by the scheduler within the present attempt."""
    cancel_requested_at: Mapped[datetime | None]
    """When somebody asked to stop it."""
    log_bytes: Mapped[int] = mapped_column(server_default="0")
    """Output stored of the present attempt."""
    issues: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """[{code, message}]."""


class JobLogRow(Base):
    """
    A piece of what an attempt printed.
    """

    __tablename__ = "job_logs"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    """Which job."""
    attempt: Mapped[int] = mapped_column(primary_key=True)
    """Which try."""
    byte_offset: Mapped[int] = mapped_column(primary_key=True)
    """Where the piece starts."""
    tenant_id: Mapped[str]
    """Whose."""
    data: Mapped[bytes] = mapped_column(LargeBinary())
    """The bytes as printed."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was read."""
