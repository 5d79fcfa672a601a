"""
Holding nodes for clusters and giving them back: the only place where allocations begin and end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import Range
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.catalog import service as catalog
from controlplane.kit.clock import CpClock
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import wake
from controlplane.kit.operations import supersede
from controlplane.metering import service as metering
from controlplane.nodes.models import AllocationRow, NetworkRow, NodeRow
from controlplane.nodes.states import NODE_STATES, TENANTS
from controlplane.quotas import service as quotas


@dataclass(frozen=True, slots=True)
class Hold:
    """
    A node that placement chose.
    """

    node_id: str
    """Which node."""
    cluster_id: str
    """For which cluster."""
    node_set_id: str
    """For which node set."""
    tenant_id: str
    """Whose."""
    reseller_id: str
    """The tenant's reseller."""
    project_id: str
    """For which project."""
    blueprint_id: str | None = None
    """What the node boots with, where we drive the machine ourselves."""
    image_id: str | None = None
    """What is written to its disk."""


DEPLOY_FAILED = "deploy_failed"
"""Why an allocation ended whose node could not be deployed."""
TAKE = text(
    """
    UPDATE nodes n SET state = 'reserved', state_since = cp_clock(), deadline_at = cp_clock() + make_interval(secs => :stay),
      due_at = cp_clock(), step = '', reason = :reason, version = version + 1, updated_at = cp_clock(), allocation_id = w.allocation_id
    FROM (SELECT id, allocation_id FROM unnest(CAST(:nodes AS text[]), CAST(:allocations AS text[])) AS u(id, allocation_id)) w
    WHERE n.id = w.id AND n.state = 'available' AND n.allocation_id IS NULL
    RETURNING n.id, n.instance_type, n.site, n.gpus, n.allocation_id, cp_clock() AS held_at
    """
)


def hold(session: Session, wanted: Sequence[Hold]) -> bool:
    """
    All the nodes are reserved for their clusters, or none is and False is returned: somebody else was quicker.

    The conditional update decides; a constraint makes a second allocation of a node unstorable besides.
    """
    ordered = sorted(wanted, key=lambda one: one.node_id)
    tokens = [new_id("alc") for _ in ordered]
    with session.begin_nested() as savepoint:
        rows = session.execute(
            TAKE,
            {
                "nodes": [one.node_id for one in ordered],
                "allocations": tokens,
                "stay": NODE_STATES.by_name["reserved"].longest_stay_s,
                "reason": "Chosen for a cluster.",
            },
        ).all()
        if len(rows) != len(ordered):
            savepoint.rollback()
            return False
        taken = {row.id: row for row in rows}
        networks = [{"name": network_of(one), "tenant_id": one} for one in sorted({one.tenant_id for one in ordered})]
        session.execute(upsert(NetworkRow).on_conflict_do_nothing(), networks)
        session.execute(insert(AllocationRow), [allocation_of(one, taken[one.node_id]) for one in ordered])
        record(session, [], [Move("node", one.node_id, "available", "reserved", f"for {one.cluster_id}") for one in ordered])
    return True


def network_of(tenant_id: str) -> str:
    """
    The name of the tenant's network.
    """
    return f"net-{tenant_id}"


def accept_release(session: Session, cluster_id: str, at: datetime) -> None:
    """
    Giving back all of the cluster's nodes was accepted at this moment: no second after it is billed.
    """
    ids = session.execute(
        update(AllocationRow)
        .where(AllocationRow.cluster_id == cluster_id, AllocationRow.state != "ended", AllocationRow.release_accepted_at.is_(None))
        .values(release_accepted_at=at)
        .returning(AllocationRow.id)
    ).scalars()
    metering.close_intervals(session, list(ids), at=at, evidence=f"release of {cluster_id} accepted")


TAKE_DOWN = text(
    """
    UPDATE nodes n SET state = 'releasing', step = '', state_since = cp_clock(), due_at = cp_clock(), reason = :reason, attempts = 0,
      attention = '', acting_for = NULL, deadline_at = cp_clock() + make_interval(secs => :stay), version = version + 1,
      updated_at = cp_clock()
    FROM (SELECT id, state, acting_for FROM nodes WHERE id IN :ids AND state = ANY(:held) ORDER BY id FOR UPDATE) was
    WHERE n.id = was.id RETURNING n.id, n.boot_id, was.state AS before, was.acting_for
    """
).bindparams(bindparam("ids", expanding=True))


def give_back(session: Session, allocation_ids: Sequence[str], *, reason: str) -> None:
    """
    The allocations are being released: their meters have stopped and their nodes are on their way to be wiped.
    """
    if not allocation_ids:
        return
    at = session.execute(select(CpClock())).scalar_one()
    rows = session.execute(
        update(AllocationRow)
        .where(AllocationRow.id.in_(allocation_ids), AllocationRow.state.in_(("held", "active")))
        .values(
            state="releasing",
            release_accepted_at=func.coalesce(AllocationRow.release_accepted_at, at),
            end_reason=reason,
        )
        .returning(AllocationRow.id, AllocationRow.node_id)
    ).all()
    metering.close_intervals(session, [row.id for row in rows], at=at, evidence=f"{reason}")
    _take_down(session, [row.node_id for row in rows], reason)


def _take_down(session: Session, node_ids: Sequence[str], reason: str) -> None:
    """
    Deployed nodes move on to be released, whatever their tenants had them do; those still being deployed are woken and find out by
    themselves.
    """
    stay = NODE_STATES.by_name["releasing"].longest_stay_s
    given = {"ids": list(node_ids) or [""], "stay": stay, "reason": "Given back.", "held": sorted(TENANTS)}
    moved = session.execute(TAKE_DOWN, given).all()
    gone = [row.id for row in moved]
    boots.end(session, [row.boot_id for row in moved if row.boot_id is not None])  # what it booted with opens nothing any more
    for row in moved:
        if row.acting_for is not None:
            supersede(session, row.acting_for, "The instance was given back.")
    record(
        session,
        [
            Event("node.releasing", "node", row.id, data={"state": "releasing", "before": row.before, "reason": reason})
            for row in moved
        ],
        [Move("node", row.id, row.before, "releasing", reason) for row in moved],
    )
    wake(session, "nodes", [one for one in node_ids if one not in set(gone)])


def end_allocations(session: Session, allocations: Mapping[str, str]) -> None:
    """
    The allocations are over and their nodes are nobody's; what they were charged is back in the quota.

    `allocations` maps allocation id to node id.
    """
    if not allocations:
        return
    at = session.execute(select(CpClock())).scalar_one()
    table = AllocationRow.__table__
    rows = session.execute(
        update(table)  # type: ignore[arg-type]
        .where(table.c.id.in_(list(allocations)), table.c.state != "ended")
        .values(
            state="ended",
            during=func.tstzrange(
                func.lower(table.c.during), func.greatest(at, func.lower(table.c.during) + text("interval '1 microsecond'"))
            ),
            release_accepted_at=func.coalesce(table.c.release_accepted_at, at),
            end_reason=func.coalesce(func.nullif(table.c.end_reason, ""), "released"),
        )
        .returning(
            table.c.id,
            table.c.reseller_id,
            table.c.tenant_id,
            table.c.project_id,
            table.c.cluster_id,
            table.c.gpus,
            table.c.instance_type,
            table.c.site,
            table.c.charged,
        )
    ).all()
    metering.close_intervals(session, [row.id for row in rows], at=at, evidence="allocation ended")
    session.execute(update(NodeRow).where(NodeRow.id.in_(list(allocations.values()))).values(allocation_id=None))
    facts = catalog.instance_facts(session)
    returned: dict[quotas.Chain, list[quotas.Need]] = {}
    for row in rows:
        if row.charged:
            need = quotas.Need("gpus", row.gpus, facts[row.instance_type].gpu_model, row.site)
            returned.setdefault(quotas.Chain(row.reseller_id, row.tenant_id, row.project_id), []).append(need)
    for chain in sorted(returned, key=str):
        quotas.give_back(session, chain, returned[chain])
    wake(session, "clusters", sorted({row.cluster_id for row in rows}))


LOST = text(
    """
    SELECT c.id, count(*) AS lost FROM unnest(CAST(:ids AS text[]), CAST(:since AS timestamptz[])) AS c (id, since)
    JOIN allocations a ON a.cluster_id = c.id AND a.end_reason = :reason AND (c.since IS NULL OR lower(a.during) >= c.since)
    GROUP BY c.id
    """
)


def failed_deployments(session: Session, clusters: Mapping[str, datetime | None]) -> dict[str, int]:
    """
    How many nodes were given to each of the clusters, since the moment beside it if there is one, and could not be deployed for it; those
    without any are left out. One query.
    """
    if not clusters:
        return {}
    rows = session.execute(LOST, {"ids": list(clusters), "since": list(clusters.values()), "reason": DEPLOY_FAILED})
    return {row.id: row.lost for row in rows}


def mark_leaving(session: Session, allocation_ids: Sequence[str]) -> None:
    """
    The allocations are taken out of their cluster by the update that is under way.
    """
    if allocation_ids:
        session.execute(update(AllocationRow).where(AllocationRow.id.in_(allocation_ids)).values(leaving=True))


def keep(session: Session, allocation_ids: Sequence[str]) -> list[str]:
    """
    The allocations stay in their cluster after all; those of them that have given their charge away are returned.
    """
    if not allocation_ids:
        return []
    kept = update(AllocationRow).where(AllocationRow.id.in_(allocation_ids)).values(leaving=False)
    rows = session.execute(kept.returning(AllocationRow.id, AllocationRow.charged)).all()
    return sorted(row.id for row in rows if not row.charged)


def recharge(session: Session, allocation_ids: Sequence[str]) -> None:
    """
    The allocations count against quota: a charge that was given away, or one newly taken, is theirs.
    """
    if allocation_ids:
        session.execute(update(AllocationRow).where(AllocationRow.id.in_(allocation_ids)).values(charged=True))


def transfer_charge(session: Session, allocation_ids: Sequence[str]) -> int:
    """
    The allocations no longer count against quota because replacements take the charge over; how many did is returned.
    """
    if not allocation_ids:
        return 0
    changed = session.execute(
        update(AllocationRow)
        .where(AllocationRow.id.in_(allocation_ids), AllocationRow.charged, AllocationRow.state != "ended")
        .values(charged=False)
        .returning(AllocationRow.id)
    ).all()
    return len(changed)


def allocation_of(one: Hold, node: Any) -> dict[str, object]:
    """
    The columns of an allocation whose node was taken as `node` says.
    """
    return {
        "id": node.allocation_id,
        "instance_id": new_id("ins"),
        "node_id": one.node_id,
        "tenant_id": one.tenant_id,
        "reseller_id": one.reseller_id,
        "project_id": one.project_id,
        "cluster_id": one.cluster_id,
        "node_set_id": one.node_set_id,
        "instance_type": node.instance_type,
        "site": node.site,
        "gpus": node.gpus,
        "network": network_of(one.tenant_id),
        "blueprint_id": one.blueprint_id,
        "image_id": one.image_id,
        "during": Range(node.held_at, None, bounds="[)"),
    }
