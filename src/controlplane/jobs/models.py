"""
Rows of jobs and of what they print.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, text
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
        Index("uq_jobs_array", "array_id", "array_index", unique=True, postgresql_where=text("array_id IS NOT NULL")),
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
    last_checkpoint: Mapped[dict[str, Any] | None]
    """{id, step, location}: the last good one, where a restart goes on from; kept by whoever changes a checkpoint of the job."""
    log_source: Mapped[str] = mapped_column(server_default="")
    """Instance that sends it, where nodes do that themselves; empty before its first piece."""
    log_base: Mapped[int] = mapped_column(server_default="0")
    """Bytes of it that came before the source's own first byte."""
    log_closed: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether its source has said that nothing follows."""
    issues: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """[{code, message}]."""
    template: Mapped[dict[str, Any] | None]
    """{name, version, parameters, overrides} of the template it was made from; none where it was sent whole."""
    array_id: Mapped[str | None] = mapped_column(ForeignKey("job_arrays.id"))
    """The array that it is a task of."""
    array_index: Mapped[int | None]
    """Which of its tasks."""


class JobArrayRow(Base):
    """
    The same job for many indexes. Where it stands is what its tasks' states come to.
    """

    __tablename__ = "job_arrays"
    __table_args__ = (
        CheckConstraint("first <= last AND step >= 1 AND max_parallel >= 1", name="numbers"),
        Index("ix_job_arrays_project", "project_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`jar_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """Its project."""
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"))
    """Where its tasks run."""
    name: Mapped[str]
    """Its tasks share it."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Its tasks share them."""
    spec: Mapped[dict[str, Any]]
    """What each task runs, defaults filled in."""
    first: Mapped[int]
    """The first index."""
    last: Mapped[int]
    """No index is larger."""
    step: Mapped[int]
    """From one index to the next."""
    max_parallel: Mapped[int | None]
    """So many tasks may be under way at once; none: any number."""
    template: Mapped[dict[str, Any] | None]
    """{name, version, parameters, overrides} of the template it was made from; none where it was sent whole."""
    cancel_requested_at: Mapped[datetime | None]
    """When somebody asked to stop it."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was accepted."""


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


class JobDependencyRow(Base):
    """
    A job that does not start before another one has ended. Written with the job and never changed, so there are no circles.
    """

    __tablename__ = "job_dependencies"
    __table_args__ = (
        CheckConstraint("condition IN ('afterok','afterany')", name="condition"),
        CheckConstraint("job_id <> parent_id", name="not_itself"),
        Index("ix_job_dependencies_parent", "parent_id"),
    )

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    """The job that waits."""
    parent_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    """The job that it waits for, of the same project."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    condition: Mapped[str]
    """afterok: it must succeed; afterany: it must end."""


class ProjectSecretRow(Base):
    """
    A value that a project's jobs are given and nobody can read.
    """

    __tablename__ = "project_secrets"
    __table_args__ = (Index("uq_project_secrets_name", "tenant_id", "project_id", "name", unique=True),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`sec_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """Its project."""
    name: Mapped[str]
    """By which jobs name it."""
    sealed: Mapped[bytes] = mapped_column(LargeBinary())
    """The value, sealed for this row."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Rises with every value."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was first written."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When its value was last written."""


class JobTemplateRow(Base):
    """
    A job with places for values, by name.
    """

    __tablename__ = "job_templates"
    __table_args__ = (Index("uq_job_templates_name", "tenant_id", "project_id", "name", unique=True),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`jtp_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """Its project."""
    name: Mapped[str]
    """Under which jobs are made from it."""
    latest: Mapped[int]
    """Its newest version."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was first written."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When its newest version was written."""


class JobTemplateVersionRow(Base):
    """
    What a template said at one time; never changed.
    """

    __tablename__ = "job_template_versions"

    template_id: Mapped[str] = mapped_column(ForeignKey("job_templates.id", ondelete="CASCADE"), primary_key=True)
    """Of which template."""
    version: Mapped[int] = mapped_column(primary_key=True)
    """1, 2, …"""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    document: Mapped[dict[str, Any]]
    """Description, parameters, labels and spec."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was written."""


class CheckpointRow(Base):
    """
    What a job has saved of its work. The data lies with the tenant; the row says where.
    """

    __tablename__ = "checkpoints"
    __table_args__ = (
        CheckConstraint("state IN ('writing','good','bad','deleted')", name="state"),
        CheckConstraint("state <> 'good' OR size_bytes IS NOT NULL", name="good_has_size"),
        CheckConstraint("step >= 0 AND attempt >= 1 AND size_bytes >= 0", name="numbers"),
        CheckConstraint("kind IN ('full','sharded','incremental','weights')", name="kind"),
        CheckConstraint("tier IN ('hot','warm','cold')", name="tier"),
        Index(
            "uq_checkpoints_place",
            *("job_id", "step", "kind", "location"),
            unique=True,
            postgresql_where=text("state IN ('writing','good')"),
        ),
        Index("ix_checkpoints_job", "job_id", "step", "id"),
        Index("ix_checkpoints_project", "project_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`ckp_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """The job's project."""
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    """Whose work it is."""
    attempt: Mapped[int]
    """Which try saved it."""
    step: Mapped[int]
    """The training step it was taken at."""
    kind: Mapped[str]
    """full, sharded, incremental or weights."""
    location: Mapped[str]
    """A path or URL that the job can read."""
    size_bytes: Mapped[int | None]
    """Its size; none while it is being written."""
    tier: Mapped[str] = mapped_column(server_default="hot")
    """Where it lies as its owner says: hot, warm or cold."""
    taken_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was taken, as its owner says."""
    state: Mapped[str]
    """As in `CHECKPOINT_STATES`."""
    reason: Mapped[str] = mapped_column(server_default="")
    """Why it is in this state."""
    state_since: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it came to this state."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was registered."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it last changed."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Rises with every change."""


class CheckpointPolicyRow(Base):
    """
    How long the checkpoints of a project are kept, and where.
    """

    __tablename__ = "checkpoint_policies"
    __table_args__ = (
        CheckConstraint("hot_last >= 1 AND warm_last >= 0 AND cold_every_steps >= 1 AND cold_days >= 1", name="numbers"),
    )

    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    """Of which project."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    hot_last: Mapped[int]
    """So many of a job's last good ones are hot."""
    warm_last: Mapped[int]
    """So many before these are warm."""
    cold_every_steps: Mapped[int | None]
    """Of older ones, those whose step is a multiple of this are cold, the others can go; none: all are kept."""
    cold_days: Mapped[int | None]
    """Older ones can go after so many days; none: never."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it last changed."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Rises with every change."""
