"""
The baseline: the same two endpoints as anybody would write them first with FastAPI and the ORM, without keys, quotas, audit or walls.

`def` handlers, a session per request from a dependency, `response_model`. It reads and writes the product's own tables.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Response
from pydantic import BaseModel, ConfigDict, computed_field
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session, selectinload, sessionmaker

from benchmarks.api.rows import (
    AuditEntry,
    AuditHead,
    Cluster,
    Event,
    History,
    IdempotencyKey,
    InstanceType,
    NodeSet,
    Operation,
    Project,
    Quota,
    Site,
)
from controlplane.kit.ids import new_id

engine = create_engine(os.environ["BASELINE_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1), pool_size=12)
SessionLocal = sessionmaker(engine)
app = FastAPI()


class Out(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class ImageOut(Out):
    image: str | None
    count: int


class NodeSetOut(Out):
    id: str
    name: str
    instance_type: str
    count: int
    ready: int
    gpus_per_node: int
    role: str
    image: str | None
    images: list[ImageOut]


class SpecOut(Out):
    kind: str
    site: str
    node_sets: list[NodeSetOut]
    wait: bool
    login: dict[str, Any] | None
    slurm: dict[str, Any] | None
    kubernetes: dict[str, Any] | None


class PlacementOut(Out):
    domain_kind: str
    explanation: str


class ConditionOut(Out):
    name: str
    result: str
    detail: str = ""


class IssueOut(Out):
    code: str
    message: str


class StatusOut(Out):
    state: str
    reason: str
    since: datetime
    deadline: datetime | None
    conditions: list[ConditionOut]
    issues: list[IssueOut]
    placement: PlacementOut | None
    running_at: datetime | None
    upgrade: dict[str, Any] | None = None


class ClusterOut(Out):
    id: str
    name: str
    project_id: str
    labels: dict[str, str]
    created_at: datetime
    updated_at: datetime
    spec: SpecOut
    status: StatusOut
    version: int
    operation: str | None


class ClusterList(Out):
    items: list[ClusterOut]
    next_page_token: str | None


class LeanSetOut(Out):
    id: str
    name: str
    instance_type: str
    count: int
    gpus: int


class LeanOut(Out):
    """
    One level, straight from the row: the least that still lists clusters with their node sets.
    """

    id: str
    name: str
    project_id: str
    labels: dict[str, str]
    kind: str
    site: str
    state: str
    reason: str
    created_at: datetime
    updated_at: datetime
    version: int
    node_sets: list[LeanSetOut]


class LeanList(Out):
    items: list[LeanOut]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.items)


class SetIn(BaseModel):
    name: str
    instance_type: str
    count: int


class SpecIn(BaseModel):
    kind: str
    site: str
    node_sets: list[SetIn]
    wait: bool = False


class ClusterIn(BaseModel):
    name: str
    labels: dict[str, str] = {}
    spec: SpecIn


def get_session() -> Iterator[Session]:
    session = SessionLocal()
    try:
        yield session
    finally:
        session.close()


Db = Annotated[Session, Depends(get_session)]


def find_project(project_id: str, session: Db) -> Project:
    project = session.get(Project, project_id)
    if project is None:
        raise HTTPException(404)
    return project


InProject = Annotated[Project, Depends(find_project)]


def shown(row: Cluster) -> dict[str, Any]:
    ready: dict[str, int] = {}
    images: dict[str, Counter[str | None]] = {}
    for member in row.members:
        if member.state == "active":
            ready[member.node_set_id] = ready.get(member.node_set_id, 0) + 1
            images.setdefault(member.node_set_id, Counter())[member.image_id] += 1
    sets = [
        {"ready": ready.get(one.id, 0), "gpus_per_node": one.gpus, "image": one.image_id}
        | {"images": [{"image": image, "count": count} for image, count in images.get(one.id, Counter()).items()]}
        | {name: getattr(one, name) for name in ("id", "name", "instance_type", "count", "role")}
        for one in row.node_sets
    ]
    status = {
        "state": row.state,
        "reason": row.reason,
        "since": row.state_since,
        "deadline": row.deadline_at,
        "conditions": row.checks,
        "issues": row.issues,
        "placement": row.placement or None,
        "running_at": row.running_at,
    }
    return {
        "id": row.id,
        "name": row.name,
        "project_id": row.project_id,
        "labels": row.labels,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "spec": {name: row.spec.get(name) for name in ("login",)}
        | {
            "kind": row.kind,
            "site": row.site,
            "node_sets": sets,
            "wait": bool(row.spec.get("wait")),
            "slurm": row.slurm,
            "kubernetes": row.kubernetes,
        },
        "status": status,
        "version": row.version,
        "operation": row.operations[0].id if row.operations else None,
    }


@app.get("/healthz")
def healthz() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/v1/projects/{project_id}/clusters", response_model=ClusterList)  # noqa: FAST003 - its dependency takes it
def list_clusters(project: InProject, session: Db, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Any:
    query = (
        select(Cluster).where(Cluster.project_id == project.id, Cluster.state != "deleted").order_by(Cluster.id).limit(limit + 1)
    )
    query = query.options(selectinload(Cluster.node_sets), selectinload(Cluster.members), selectinload(Cluster.operations))
    rows = session.scalars(query).all()
    return {"items": [shown(row) for row in rows[:limit]], "next_page_token": rows[limit - 1].id if len(rows) > limit else None}


@app.get("/lean/projects/{project_id}/clusters", response_model=LeanList)
def list_lean(project_id: str, session: Db, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> Any:
    query = select(Cluster).where(Cluster.project_id == project_id, Cluster.state != "deleted").order_by(Cluster.id).limit(limit)
    return {"items": session.scalars(query.options(selectinload(Cluster.node_sets))).all()}


def _cluster(project: Project, body: ClusterIn) -> Cluster:
    return Cluster(
        id=new_id("clu"),
        tenant_id=project.tenant_id,
        reseller_id="none",
        project_id=project.id,
        name=body.name,
        labels=body.labels,
        kind=body.spec.kind,
        site=body.spec.site,
        spec=body.spec.model_dump(),
    )


@app.post("/v1/projects/{project_id}/clusters", status_code=202, response_model=ClusterOut)  # noqa: FAST003 - its dependency takes it
def create_one_row(project: InProject, body: ClusterIn, session: Db) -> Any:
    """
    One row: the cluster.
    """
    row = _cluster(project, body)
    session.add(row)
    session.commit()
    session.refresh(row)
    return shown(row)


Key = Annotated[str, Header(alias="Idempotency-Key")]


@app.post("/bare/projects/{project_id}/clusters", status_code=202, response_model=ClusterOut)  # noqa: FAST003 - its dependency takes it
def create_bare(project: InProject, body: ClusterIn, session: Db, key: Key) -> Any:
    """
    The same endpoint without authentication, quota and audit: a repeated key gets the first answer, site and types are looked up, and
    cluster, node sets, operation, event, history and idempotency record are written.
    """
    fingerprint = hashlib.sha256(body.model_dump_json().encode()).digest()
    first = session.get(IdempotencyKey, ("bench", key))
    if first is not None:
        if first.fingerprint != fingerprint:
            raise HTTPException(409)
        return Response(first.body, first.status, media_type="application/json")
    types = known_types(session, body)
    row = with_sets(_cluster(project, body), project, body, types)
    session.add(row)
    tell(session, project, row)
    session.flush()
    remember(session, project, key, fingerprint, row)
    session.commit()
    session.refresh(row)
    return shown(row)


@app.post("/same/projects/{project_id}/clusters", status_code=202, response_model=ClusterOut)  # noqa: FAST003 - its dependency takes it
def create_same_rows(project: InProject, body: ClusterIn, session: Db) -> Any:
    """
    Every row that the product writes for one order, through the ORM: cluster, node sets, operation, event, history, counters of every
    level, audit entry and head, idempotency record.
    """
    row = with_sets(_cluster(project, body), project, body, {})
    session.add(row)
    count_up(session, project, row)
    tell(session, project, row)
    session.flush()
    chain(session, project.tenant_id, {"action": "clusters:create", "target": row.id, "outcome": "done"})
    remember(session, project, row.id, hashlib.sha256(body.model_dump_json().encode()).digest(), row)
    session.commit()
    session.refresh(row)
    return shown(row)


def known_types(session: Session, body: ClusterIn) -> dict[str, InstanceType]:
    if session.get(Site, body.spec.site) is None:
        raise HTTPException(422)
    names = {one.instance_type for one in body.spec.node_sets}
    types = {one.name: one for one in session.scalars(select(InstanceType).where(InstanceType.name.in_(names)))}
    if names - types.keys():
        raise HTTPException(422)
    return types


def with_sets(row: Cluster, project: Project, body: ClusterIn, types: dict[str, InstanceType]) -> Cluster:
    for one in body.spec.node_sets:
        facts = types.get(one.instance_type)
        row.node_sets.append(
            NodeSet(
                id=new_id("nds"),
                tenant_id=project.tenant_id,
                name=one.name,
                instance_type=one.instance_type,
                count=one.count,
                gpus=facts.gpus if facts else 8,
                gpu_model=facts.gpu_model if facts else os.environ["BASELINE_MODEL"],
                unplaced=one.count,
            )
        )
    return row


def remember(session: Session, project: Project, key: str, fingerprint: bytes, row: Cluster) -> None:
    session.add(
        IdempotencyKey(
            principal_id="bench",
            key=key,
            tenant_id=project.tenant_id,
            fingerprint=fingerprint,
            status=202,
            headers={},
            body=ClusterOut.model_validate(shown(row)).model_dump_json().encode(),
        )
    )


def count_up(session: Session, project: Project, row: Cluster) -> None:
    scopes = [project.id, project.tenant_id, "platform", os.environ["BASELINE_RESELLER"]]
    query = select(Quota).where(Quota.scope_id.in_(scopes), Quota.resource.in_(("clusters", "gpus")))
    nodes = sum(one.count * one.gpus for one in row.node_sets)
    for quota in session.scalars(query.order_by(Quota.depth, Quota.scope_id, Quota.resource).with_for_update()):
        amount = 1 if quota.resource == "clusters" else nodes
        if quota.ceiling is not None and quota.used + amount > quota.ceiling:
            raise HTTPException(409)
        quota.used += amount


def tell(session: Session, project: Project, row: Cluster) -> None:
    who = {"tenant_id": project.tenant_id, "project_id": project.id}
    session.add(
        Operation(
            id=new_id("opr"),
            type="cluster.create",
            resource_kind="cluster",
            resource_id=row.id,
            state="running",
            reason="Ordered.",
            steps=[{"name": "pending", "reason": "Ordered."}],
            principal_id="bench",
            **who,
        )
    )
    session.add(Event(type="cluster.pending", resource_kind="cluster", resource_id=row.id, data={"state": "pending"}, **who))
    session.add(
        History(
            kind="cluster", resource_id=row.id, tenant_id=project.tenant_id, before="", after="pending", reason="Ordered.", fence=0
        )
    )


def chain(session: Session, tenant_id: str, entry: dict[str, Any]) -> None:
    head = session.scalars(select(AuditHead).where(AuditHead.tenant_id == tenant_id).with_for_update()).one()
    body = json.dumps(entry).encode()
    next_hash = hashlib.sha256(head.hash + (head.seq + 1).to_bytes(8, "big") + body).digest()
    session.add(AuditEntry(tenant_id=tenant_id, seq=head.seq + 1, prev=head.hash, hash=next_hash, body=body))
    head.seq, head.hash = head.seq + 1, next_hash
