"""
Rows of services, of their versions and of what their replicas printed last.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base
from controlplane.kit.moving import Moving


class ServiceRow(Moving, Base):
    """
    Work without an end.
    """

    __tablename__ = "services"
    __table_args__ = (
        CheckConstraint("replicas >= 0 AND current_version >= 1 AND turn >= 1", name="numbers"),
        CheckConstraint("gpu_microseconds >= 0 AND gpus_held >= 0", name="usage"),
        Index("uq_services_name", "project_id", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
        Index("ix_services_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
        Index("ix_services_project", "project_id", "id"),
        Index("ix_services_cluster", "cluster_id", "state"),
        Index("ix_services_tenant", "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`svc_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """Its project."""
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"))
    """Where it runs."""
    name: Mapped[str]
    """Unique in the project among what is not deleted."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs."""
    current_version: Mapped[int] = mapped_column(server_default="1")
    """The version that is wanted."""
    turn: Mapped[int] = mapped_column(server_default="1")
    """Rises with every change of what is wanted, so that a late older one changes nothing at the cluster."""
    replicas: Mapped[int]
    """How many are wanted; where a metric decides, how many to begin with."""
    scaling: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """{least, most, metric, target}; none: the number is fixed."""
    rollout: Mapped[dict[str, Any]]
    """{surge, unavailable, timeout_s}."""
    suspended: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether it is to have no replicas for now."""
    seen: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """Replicas as the last look found them."""
    aimed_at: Mapped[int] = mapped_column(server_default="0")
    """Replicas that the cluster aimed at then."""
    address: Mapped[str] = mapped_column(server_default="")
    """Where others on the cluster reach it."""
    trouble: Mapped[str] = mapped_column(server_default="")
    """Code of what is wrong; empty where nothing is."""
    seen_at: Mapped[datetime | None]
    """When the cluster was last seen."""
    next_tail: Mapped[int] = mapped_column(server_default="0")
    """Which replica's output is read first by the next look."""
    gpus_held: Mapped[int] = mapped_column(server_default="0")
    """Whole GPUs that its replicas held then."""
    slices_held: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """Slices of GPUs that they held then: [{profile, count, slices, of}]."""
    gpu_microseconds: Mapped[int] = mapped_column(server_default="0")
    """GPU time up to then; evidence of use, never billed: the cluster's nodes are."""
    created_by: Mapped[str]
    """Who asked for it."""


class ServiceVersionRow(Base):
    """
    What a replica was, or is, at one version. Never changed but for what came of it.
    """

    __tablename__ = "service_versions"
    __table_args__ = (
        CheckConstraint("number >= 1", name="number"),
        CheckConstraint("outcome IN ('','ready','failed','replaced')", name="outcome"),
    )

    service_id: Mapped[str] = mapped_column(ForeignKey("services.id"), primary_key=True)
    """Which service."""
    number: Mapped[int] = mapped_column(primary_key=True)
    """1, 2, …"""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    template: Mapped[dict[str, Any]]
    """{image, command, worker_command, env, secrets, files, port, readiness, gpus_per_node, mig, nodes_per_replica, engine}."""
    proposal: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """How an engine's GPUs and parallelism were found: formulas, inputs, assumptions, sources."""
    restored: Mapped[int | None]
    """The version that it repeats, after a rollback."""
    outcome: Mapped[str] = mapped_column(server_default="")
    """ready, failed or replaced; empty while it is not known."""
    created_by: Mapped[str]
    """Who asked for it."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class ServiceLogRow(Base):
    """
    What one replica printed last.
    """

    __tablename__ = "service_logs"

    service_id: Mapped[str] = mapped_column(ForeignKey("services.id"), primary_key=True)
    """Which service."""
    replica: Mapped[str] = mapped_column(primary_key=True)
    """Which replica, by the cluster's name of it."""
    tenant_id: Mapped[str]
    """Whose."""
    version: Mapped[int]
    """Its version."""
    data: Mapped[bytes] = mapped_column(LargeBinary())
    """The last bytes as printed."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was read."""
