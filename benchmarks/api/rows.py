"""
The baseline's own mapping of the tables that it shares with the product.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ForeignKey, LargeBinary
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSONB(), list[Any]: JSONB()}  # noqa: RUF012


class Project(Base):
    __tablename__ = "projects"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]


class Site(Base):
    __tablename__ = "sites"
    name: Mapped[str] = mapped_column(primary_key=True)


class InstanceType(Base):
    __tablename__ = "instance_types"
    name: Mapped[str] = mapped_column(primary_key=True)
    gpus: Mapped[int]
    gpu_model: Mapped[str]


class Cluster(Base):
    __tablename__ = "clusters"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    reseller_id: Mapped[str]
    project_id: Mapped[str]
    name: Mapped[str]
    labels: Mapped[dict[str, Any]]
    kind: Mapped[str]
    site: Mapped[str]
    spec: Mapped[dict[str, Any]]
    slurm: Mapped[dict[str, Any] | None]
    placement: Mapped[dict[str, Any]] = mapped_column(default=dict)
    issues: Mapped[list[Any]] = mapped_column(default=list)
    checks: Mapped[list[Any]] = mapped_column(default=list)
    state: Mapped[str] = mapped_column(default="pending")
    reason: Mapped[str] = mapped_column(default="Ordered.")
    attention: Mapped[str] = mapped_column(default="")
    state_since: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))
    deadline_at: Mapped[datetime | None]
    running_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))
    updated_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))
    version: Mapped[int] = mapped_column(default=1)
    node_sets: Mapped[list["NodeSet"]] = relationship(order_by="NodeSet.id")
    members: Mapped[list["Allocation"]] = relationship(
        primaryjoin="and_(Cluster.id == foreign(Allocation.cluster_id), Allocation.state != 'ended')", viewonly=True
    )
    operations: Mapped[list["Operation"]] = relationship(
        primaryjoin="and_(Cluster.id == foreign(Operation.resource_id), Operation.state.in_(('pending','running','needs_attention')))",
        viewonly=True,
    )


class NodeSet(Base):
    __tablename__ = "node_sets"
    id: Mapped[str] = mapped_column(primary_key=True)
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"))
    tenant_id: Mapped[str]
    name: Mapped[str]
    role: Mapped[str] = mapped_column(default="worker")
    image_id: Mapped[str | None]
    instance_type: Mapped[str]
    count: Mapped[int]
    gpus: Mapped[int]
    gpu_model: Mapped[str]
    unplaced: Mapped[int]


class Allocation(Base):
    __tablename__ = "allocations"
    id: Mapped[str] = mapped_column(primary_key=True)
    cluster_id: Mapped[str]
    node_set_id: Mapped[str]
    state: Mapped[str]
    image_id: Mapped[str | None]


class Operation(Base):
    __tablename__ = "operations"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    project_id: Mapped[str]
    type: Mapped[str]
    resource_kind: Mapped[str]
    resource_id: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    steps: Mapped[list[Any]]
    principal_id: Mapped[str]


class Event(Base):
    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    project_id: Mapped[str]
    type: Mapped[str]
    resource_kind: Mapped[str]
    resource_id: Mapped[str]
    data: Mapped[dict[str, Any]]


class History(Base):
    __tablename__ = "state_history"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    resource_id: Mapped[str]
    tenant_id: Mapped[str]
    before: Mapped[str]
    after: Mapped[str]
    reason: Mapped[str]
    fence: Mapped[int]


class Quota(Base):
    __tablename__ = "quotas"
    id: Mapped[str] = mapped_column(primary_key=True)
    depth: Mapped[int]
    scope_id: Mapped[str]
    resource: Mapped[str]
    gpu_model: Mapped[str]
    site: Mapped[str]
    ceiling: Mapped[int | None]
    used: Mapped[int]


class AuditHead(Base):
    __tablename__ = "audit_heads"
    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int]
    hash: Mapped[bytes] = mapped_column(LargeBinary)


class AuditEntry(Base):
    __tablename__ = "audit_entries"
    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    prev: Mapped[bytes] = mapped_column(LargeBinary)
    hash: Mapped[bytes] = mapped_column(LargeBinary)
    body: Mapped[bytes] = mapped_column(LargeBinary)


class IdempotencyKey(Base):
    __tablename__ = "idempotency_keys"
    principal_id: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary)
    status: Mapped[int]
    headers: Mapped[dict[str, Any]]
    body: Mapped[bytes] = mapped_column(LargeBinary)
