"""
What physically happened in a simulated world, read from its file as plain values.

The ledger is the judge of the control plane: nothing here comes from the control plane's own tables. An instant that is planned and
not yet past is None, as one that will never come.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime

from controlplane.providers.adapters.simulated.clock import from_us, instant_or_none
from controlplane.providers.adapters.simulated.members import MemberRow, all_members
from controlplane.providers.adapters.simulated.slices import Device


@dataclass(frozen=True, slots=True)
class Tenancy:
    """
    One deployment of one machine.
    """

    order: int
    """Place among all tenancies and wipes, also within one instant."""
    ref: str
    """The machine."""
    token: str
    """The allocation."""
    tenant_id: str
    """Whose."""
    cluster_id: str
    """For which cluster."""
    gpus: int
    """GPUs of the machine."""
    requested_at: datetime
    """When the peer began to deploy."""
    reachable_from: datetime | None
    """When the tenant's network reached the machine; None: it never did."""
    ready_at: datetime | None
    """When it was deployed."""
    release_requested_at: datetime | None
    """When the peer was told to end it."""
    release_accepted_at: datetime | None
    """When, as told, the tenant's release was accepted."""
    detached_at: datetime | None
    """When the network was taken away."""
    powered_off_at: datetime | None
    """When the machine was off."""


@dataclass(frozen=True, slots=True)
class Wipe:
    """
    One wipe of one machine.
    """

    order: int
    """Place among all tenancies and wipes."""
    ref: str
    """The machine."""
    token: str
    """The wipe's id."""
    requested_at: datetime
    """When it began."""
    finished_at: datetime | None
    """When it ended."""
    cleared: tuple[str, ...]
    """The places that were really cleared, whatever the report said."""


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """
    One cluster at the peer; deleting and applying again makes another.
    """

    cluster_id: str
    """Our id."""
    tenant_id: str
    """Whose."""
    created_at: datetime
    """When it was made."""
    deleted_at: datetime | None
    """When it was gone."""
    verified_at: datetime | None
    """When it was first complete and up; kept once somebody looked after that instant."""


@dataclass(frozen=True, slots=True)
class Membership:
    """
    One machine's time in one cluster.
    """

    cluster_id: str
    """The cluster."""
    ref: str
    """The machine."""
    token: str
    """The allocation."""
    gpus: int
    """GPUs it brings."""
    added_at: datetime
    """When it was added."""
    up_since: datetime | None
    """When it was first up."""
    removed_at: datetime | None
    """When it left."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """
    One job at the peer.
    """

    cluster_id: str
    """Where."""
    token: str
    """Its name."""
    tenant_id: str
    """Whose."""
    submissions: int
    """How often its submission arrived."""
    requeues: int
    """How often the peer started it again."""
    phase: str
    """Where it stood when the peer last looked."""
    started_at: tuple[datetime, ...]
    """The start of each run."""
    ended_at: datetime | None
    """When it was over."""
    nodes: tuple[str, ...]
    """Machines of its last run."""


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """
    One service at the peer.
    """

    service_id: str
    """Its name."""
    cluster_id: str
    """Where."""
    tenant_id: str
    """Whose."""
    turn: int
    """The turn it was told of last."""
    replicas: int
    """Those that have a place and were not told to end."""
    ended_at: datetime | None
    """When it was told to end, or its cluster was, and its last replica had ended."""


@dataclass(frozen=True, slots=True)
class Use:
    """
    The time of a GPU, or of a slice of one, with a job's run or a service's replica: the half-open interval [since, until).
    """

    ref: str
    """The machine."""
    gpu: Device
    """Which of its GPUs, or which slice of one."""
    holder: str
    """The job's token or the service's id, and which run or replica."""
    since: datetime
    """When it was taken."""
    until: datetime | None
    """When it was free again; None: it is still held."""


@dataclass(frozen=True, slots=True)
class Link:
    """
    One port's time in one network: the half-open interval [since, until).
    """

    switch: str
    """The leaf."""
    port: str
    """Its port."""
    ref: str
    """The machine whose cable ends there."""
    network: str
    """The network's name; `by hand` where nobody asked for it through the port."""
    tenant_id: str
    """Whose."""
    segment: int
    """Its number."""
    since: datetime
    """When the port came in."""
    until: datetime | None
    """When it went; None: it is still there."""
    carries: bool
    """Whether anything could pass: not while it was half-made."""


@dataclass(frozen=True, slots=True)
class Call:
    """
    One call as the peer got it.
    """

    seq: int
    """Place among all calls."""
    at: datetime
    """When it came."""
    operation: str
    """The port's method."""
    target: str
    """Machine, cluster or job."""
    token: str
    """Its token, where it has one."""
    tenant_id: str
    """Its tenant, where it names one."""
    reads: bool
    """Whether it only reads."""
    effect: bool
    """Whether it changed the world."""
    answer: str
    """`ok`, or the error's class and code."""
    fault: str
    """The fault that was played on it; empty for none."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """
    Everything up to one instant.
    """

    at: datetime
    """The instant."""
    tenancies: tuple[Tenancy, ...]
    """In order."""
    wipes: tuple[Wipe, ...]
    """In order."""
    clusters: tuple[ClusterObject, ...]
    """In the order they were made."""
    memberships: tuple[Membership, ...]
    """In the order they were made."""
    jobs: tuple[JobRecord, ...]
    """In the order they were submitted."""
    links: tuple[Link, ...] = ()
    """In the order they were made."""
    services: tuple[ServiceRecord, ...] = ()
    """In the order they were told of first."""
    uses: tuple[Use, ...] = ()
    """Of runs, then of replicas, each in the order they began."""


_SERVICES = """
    SELECT s.*, c.delete_requested_at AS cluster_gone,
      (SELECT max(coalesce(r.ended_at, c.delete_requested_at, 9000000000000000000)) FROM replicas r WHERE r.service = s.id) AS last_ended,
      (SELECT count(*) FROM replicas r WHERE r.service = s.id AND r.placed_at <= :at AND r.ending_at IS NULL) AS replicas
    FROM services s JOIN clusters c ON c.id = s.object_id WHERE s.spec != '' AND s.created_at <= :at ORDER BY s.id
"""
_USES = """
    SELECT j.token || ' run ' || r.id AS holder, r.nodes, r.started_at AS since, r.freed_at AS until
    FROM runs r JOIN jobs j ON j.id = r.job_id WHERE r.started_at <= :at
    UNION ALL
    SELECT s.service_id || ' replica ' || r.id, r.nodes, r.placed_at, coalesce(r.ended_at, c.delete_requested_at)
    FROM replicas r JOIN services s ON s.id = r.service JOIN clusters c ON c.id = r.object_id WHERE r.placed_at <= :at
"""
_LINKS = "SELECT * FROM links WHERE from_at <= ? AND (until_at IS NULL OR until_at > from_at) ORDER BY id"


def read_ledger(db: sqlite3.Connection, at_us: int, *, need_deployment: bool) -> Ledger:
    """
    The ledger as it stands at that time; what is planned for later is left out.
    """
    clusters = db.execute("SELECT * FROM clusters WHERE created_at <= ? ORDER BY id", (at_us,)).fetchall()
    return Ledger(
        at=from_us(at_us),
        tenancies=tuple(
            _tenancy(row, at_us)
            for row in db.execute("SELECT * FROM tenancies WHERE requested_at <= ? AND tenant_id != '' ORDER BY id", (at_us,))
        ),
        wipes=tuple(
            Wipe(
                order=row["id"],
                ref=row["ref"],
                token=row["token"],
                requested_at=from_us(row["requested_at"]),
                finished_at=_past(row["finished_at"], at_us),
                cleared=tuple(json.loads(row["cleared"])),
            )
            for row in db.execute("SELECT * FROM wipes WHERE requested_at <= ? ORDER BY id", (at_us,))
        ),
        clusters=tuple(_cluster(row, at_us) for row in clusters),
        memberships=tuple(
            _membership(row["cluster_id"], member, at_us)
            for row in clusters
            for member in all_members(db, row["id"], need_deployment=need_deployment)
            if member.added_at <= at_us
        ),
        jobs=tuple(_job(db, row, at_us) for row in db.execute("SELECT * FROM jobs WHERE submitted_at <= ? ORDER BY id", (at_us,))),
        links=tuple(_link(row, at_us) for row in db.execute(_LINKS, (at_us,))),
        services=tuple(_service(row, at_us) for row in db.execute(_SERVICES, {"at": at_us})),
        uses=tuple(use for row in db.execute(_USES, {"at": at_us}) for use in _uses(row, at_us)),
    )


def read_calls(
    db: sqlite3.Connection, *, after: int = 0, operation: str | None = None, target: str | None = None
) -> tuple[Call, ...]:
    """
    The calls after a place, in the order they came.
    """
    rows = db.execute(
        "SELECT * FROM calls WHERE seq > :after AND (:operation IS NULL OR operation = :operation)"
        " AND (:target IS NULL OR target = :target) ORDER BY seq",
        {"after": after, "operation": operation, "target": target},
    )
    return tuple(
        Call(
            seq=row["seq"],
            at=from_us(row["at"]),
            operation=row["operation"],
            target=row["target"],
            token=row["token"],
            tenant_id=row["tenant_id"],
            reads=bool(row["reads"]),
            effect=bool(row["effect"]),
            answer=row["answer"],
            fault=row["fault"],
        )
        for row in rows
    )


def _past(micros: int | None, at_us: int) -> datetime | None:
    return instant_or_none(micros if micros is not None and micros <= at_us else None)


def _tenancy(row: sqlite3.Row, at_us: int) -> Tenancy:
    reached = row["reachable_from"]
    if reached is not None and row["detached_at"] is not None and row["detached_at"] < reached:
        reached = None
    return Tenancy(
        order=row["id"],
        ref=row["ref"],
        token=row["token"],
        tenant_id=row["tenant_id"],
        cluster_id=row["cluster_id"],
        gpus=row["gpus"],
        requested_at=from_us(row["requested_at"]),
        reachable_from=_past(reached, at_us),
        ready_at=_past(row["ready_at"], at_us),
        release_requested_at=_past(row["release_requested_at"], at_us),
        release_accepted_at=_past(row["release_accepted_at"], at_us),
        detached_at=_past(row["detached_at"], at_us),
        powered_off_at=_past(row["powered_off_at"], at_us),
    )


def _cluster(row: sqlite3.Row, at_us: int) -> ClusterObject:
    return ClusterObject(
        cluster_id=row["cluster_id"],
        tenant_id=row["tenant_id"],
        created_at=from_us(row["created_at"]),
        deleted_at=_past(row["deleted_at"], at_us),
        verified_at=_past(row["verified_at"], at_us),
    )


def _membership(cluster_id: str, member: MemberRow, at_us: int) -> Membership:
    up = member.next_answer(member.added_at)
    if up is not None and member.removed_at is not None and member.removed_at <= up:
        up = None
    return Membership(
        cluster_id=cluster_id,
        ref=member.ref,
        token=member.token,
        gpus=member.wanted_gpus,
        added_at=from_us(member.added_at),
        up_since=_past(up, at_us),
        removed_at=_past(member.removed_at, at_us),
    )


def _link(row: sqlite3.Row, at_us: int) -> Link:
    return Link(
        switch=row["switch"],
        port=row["port"],
        ref=row["ref"],
        network=row["network"],
        tenant_id=row["tenant_id"],
        segment=row["segment"],
        since=from_us(row["from_at"]),
        until=_past(row["until_at"], at_us),
        carries=not row["shut"],
    )


def _job(db: sqlite3.Connection, row: sqlite3.Row, at_us: int) -> JobRecord:
    runs = db.execute("SELECT * FROM runs WHERE job_id = ? AND started_at <= ? ORDER BY id", (row["id"], at_us)).fetchall()
    return JobRecord(
        cluster_id=row["cluster_id"],
        token=row["token"],
        tenant_id=row["tenant_id"],
        submissions=row["submissions"],
        requeues=row["requeues"],
        phase=row["phase"],
        started_at=tuple(from_us(run["started_at"]) for run in runs),
        ended_at=_past(row["ended_at"], at_us),
        nodes=tuple(ref for ref, _ in json.loads(runs[-1]["nodes"])) if runs else (),
    )


def _service(row: sqlite3.Row, at_us: int) -> ServiceRecord:
    told = [one for one in (row["delete_requested_at"], row["cluster_gone"]) if one is not None]
    ended = None if not told else max(min(told), row["last_ended"] or 0)
    return ServiceRecord(row["service_id"], row["cluster_id"], row["tenant_id"], row["turn"], row["replicas"], _past(ended, at_us))


def _uses(row: sqlite3.Row, at_us: int) -> list[Use]:
    since, until = from_us(row["since"]), _past(row["until"], at_us)
    return [Use(ref, gpu, row["holder"], since, until) for ref, gpus in json.loads(row["nodes"]) for gpu in gpus]
