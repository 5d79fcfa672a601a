"""
What the lifecycle engine asks of this room: snapshots for steps, and what an outcome means beyond the move itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.catalog import service as catalog
from controlplane.kit.clock import CpClock
from controlplane.kit.events import Event, record
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import Claim, Result, wake
from controlplane.kit.outcome import Advance, Fail
from controlplane.nodes import repository
from controlplane.nodes.allocating import DEPLOY_FAILED, end_allocations
from controlplane.nodes.models import AllocationRow, HoldRow, NodeRow, ProviderRow, WipeRow
from controlplane.nodes.reporting import close_tickets, open_tickets
from controlplane.nodes.rotating import make_due, store_learnt
from controlplane.nodes.states import ACTING, NODE_STATES, NodeFacts, NodeSnapshot, host_name
from controlplane.qualification import service as qualification

TASK_PREFIX = {"inspecting": "tsk", "qualifying": "tsk", "cleaning": "wip"}
BOOTS: Mapping[str, boots.Purpose] = {
    "qualifying": "check",
    "deploying": "deploy",
    "reinstalling": "deploy",
    "rescuing": "rescue",
    "cleaning": "wipe",
    "checking": "fabric",
}
"""States that a bare machine spends on a boot of ours."""
LONGEST_LOAN_S = 6 * 3600.0
"""What a boot for a fabric check may last: longer than all states of the check before its way back."""
FREE_AGAIN = frozenset({"available", "quarantined", "maintenance"})
OPERATION_ENDS: Mapping[str, str] = {
    "available": "succeeded",
    "active": "succeeded",
    "stopped": "succeeded",
    "rescued": "succeeded",
    "quarantined": "failed",
    "maintenance": "succeeded",
    "retired": "succeeded",
}


def snapshots(session: Session, claims: Sequence[Claim]) -> Mapping[str, NodeSnapshot]:
    """
    What the steps of these nodes need.
    """
    return repository.read_snapshots(session, [claim.row for claim in claims], catalog.instance_facts(session))


def apply(session: Session, results: Sequence[Result]) -> None:
    """
    Tokens, wipes, inventories, allocations and clusters' calls for attention follow from these outcomes; a few statements for all.
    """
    entered: dict[str, list[Result]] = {}
    for result in results:
        target = _target(result)
        if target is not None:
            entered.setdefault(target, []).append(result)
    _store_facts(session, results)
    for state in {**TASK_PREFIX, **BOOTS}:
        begin_task(session, state, [one.claim.id for one in entered.get(state, [])])
    _end_boots(session, entered)
    make_due(session, [one.claim.id for one in entered.get("cleaning", []) if one.claim.row["allocation_id"] is not None])
    _activate(session, entered.get("active", []))
    _withdraw(session, entered.get("releasing", []))
    _end_acts(session, entered)
    open_tickets(session, [one.claim.id for one in entered.get("quarantined", [])])
    close_tickets(session, [one.claim.id for one in entered.get("available", [])])
    leaving = [one for state in FREE_AGAIN for one in entered.get(state, []) if one.claim.row["allocation_id"] is not None]
    end_allocations(session, {one.claim.row["allocation_id"]: one.claim.id for one in leaving})


def _target(result: Result) -> str | None:
    if isinstance(result.outcome, Advance):
        return result.outcome.to
    if isinstance(result.outcome, Fail):
        return NODE_STATES.by_name[result.claim.state].fails_to
    return None


def _store_facts(session: Session, results: Sequence[Result]) -> None:
    found = [(one.claim.id, one.outcome.facts) for one in results if isinstance(one.outcome.facts, NodeFacts)]
    inventories = [{"node": node_id, "found": facts.inventory} for node_id, facts in found if facts.inventory is not None]
    if inventories:
        statement = update(NodeRow.__table__).where(NodeRow.__table__.c.id == bindparam("node"))  # type: ignore[arg-type]
        session.connection().execute(statement.values(inventory=bindparam("found", type_=JSONB())), inventories)
    updates = [{"node": node_id, "told": asdict(facts.update)} for node_id, facts in found if facts.update is not None]
    if updates:
        statement = update(NodeRow.__table__).where(NodeRow.__table__.c.id == bindparam("node"))  # type: ignore[arg-type]
        session.connection().execute(statement.values(updating=bindparam("told", type_=JSONB())), updates)
    store_learnt(session, [(one.claim.id, one.outcome) for one in results])
    for state in BOOTS:
        done = [one.claim.id for one in results if one.claim.state == state]
        _begin_boots(session, state, [one for one, facts in found if one in done and facts.installed], installed=True)
    wipes = [
        {
            "wipe": facts.wipe_id,
            "end": facts.wipe_finished_at,
            "good": facts.wipe_verified,
            "seen": list(facts.checks),
        }
        for _, facts in found
        if facts.wipe_id is not None
    ]
    if wipes:
        table = WipeRow.__table__
        changed = update(table).where(table.c.id == bindparam("wipe"))  # type: ignore[arg-type]
        values = {"finished_at": bindparam("end"), "verified": bindparam("good"), "checks": bindparam("seen", type_=JSONB())}
        session.connection().execute(changed.values(values), wipes)
    qualification.record_checks(
        session,
        [
            qualification.NodeChecks(one.claim.id, one.claim.row["task_id"], one.outcome.facts.checks)
            for one in results
            if one.claim.state == "qualifying" and isinstance(one.outcome.facts, NodeFacts)
        ],
    )


def begin_task(session: Session, state: str, node_ids: Sequence[str]) -> None:
    """
    The nodes have a fresh token for the state's work at the provider, for a wipe its record, and, where we drive the machines ourselves, a
    boot; nothing for states without such work.
    """
    if node_ids and state in BOOTS:
        _begin_boots(session, state, node_ids)
    if not node_ids or state not in TASK_PREFIX:
        return
    tokens = [{"node": one, "token": new_id(TASK_PREFIX[state])} for one in node_ids]
    table = NodeRow.__table__
    begun = update(table).where(table.c.id == bindparam("node")).values(task_id=bindparam("token"))  # type: ignore[arg-type]
    session.connection().execute(begun, tokens)
    if state == "cleaning":
        session.execute(insert(WipeRow), [{"id": one["token"], "node_id": one["node"]} for one in tokens])


BARE = (
    select(
        NodeRow.id,
        NodeRow.address,
        NodeRow.gpus,
        NodeRow.instance_type,
        NodeRow.allocation_id,
        AllocationRow.tenant_id,
        AllocationRow.instance_id,
        AllocationRow.blueprint_id,
        AllocationRow.image_id,
        NodeRow.access,
        NodeRow.boot_id,
        ProviderRow.config,
    )
    .join(ProviderRow, ProviderRow.id == NodeRow.provider_id)
    .outerjoin(AllocationRow, AllocationRow.id == NodeRow.allocation_id)
)


SEEDED = AllocationRow.blueprint_id.isnot(None) & (
    AllocationRow.image_id.isnot(None) | ProviderRow.config.contains({"seeds": True})
)
"""A machine whose provider owns its life is handed what its tenant wants of it with an image of the tenant's, or where the operator says
that the provider's own images take it (`seeds`); only then it can report, and only then it must."""


def _begin_boots(session: Session, state: str, node_ids: Sequence[str], *, installed: bool = False) -> None:
    """
    Each bare machine among these has a boot of its own for what the state wants of it; earlier ones are over. What deploys a machine with
    an image is two boots: one that installs it, then, `installed`, the one from its disk. A machine whose provider installs it has the
    second alone, while it is deployed, and keeps it: what was handed out speaks for no other.
    """
    if not node_ids:
        return
    ours = NodeRow.access != {}
    rows = session.execute(BARE.where(NodeRow.id.in_(node_ids), ours | SEEDED if state == "deploying" else ours)).all()
    kept = _handed_out(session, rows)
    rows = [row for row in rows if row.id not in kept]
    if not rows:
        return
    purpose, within_s = BOOTS[state], NODE_STATES.by_name[state].longest_stay_s or LONGEST_LOAN_S
    tests = qualification.tests_of(session, {row.instance_type for row in rows}) if purpose == "check" else {}
    installing = [purpose == "deploy" and row.image_id is not None and not installed and bool(row.access) for row in rows]
    wanted = [
        _new_boot(row, "install" if first else purpose, within_s, tests.get(row.instance_type, ()))
        for row, first in zip(rows, installing, strict=True)
    ]
    begun = boots.begin_many(session, wanted)
    table = NodeRow.__table__
    noted = update(table).where(table.c.id == bindparam("node")).values(boot_id=bindparam("boot"))  # type: ignore[arg-type]
    session.connection().execute(noted, [{"node": node_id, "boot": boot_id} for node_id, boot_id in begun.items()])


def _handed_out(session: Session, rows: Sequence[Any]) -> frozenset[str]:
    """
    Those of the nodes whose provider may have been handed the seed of an open boot for this very tenancy.
    """
    theirs = {row.boot_id: row for row in rows if not row.access and row.boot_id is not None}
    found = boots.views(session, list(theirs))
    return frozenset(
        row.id
        for boot_id, row in theirs.items()
        if boot_id in found
        and found[boot_id].allocation_id == row.allocation_id
        and found[boot_id].state not in {"ended", "failed"}
    )


def _new_boot(row: Any, purpose: boots.Purpose, within_s: float, tests: Sequence[qualification.BurnTest]) -> boots.NewBoot:
    tenants = purpose in {"deploy", "rescue", "install"}
    name = host_name(row.instance_id if tenants else row.id)
    return boots.NewBoot(
        node_id=row.id,
        purpose=purpose,
        facts=boots.Facts(hostname=name, address=row.address, tags=_tags(row)),
        within_s=within_s,
        allocation_id=row.allocation_id if tenants else None,
        tenant_id=row.tenant_id if tenants else None,
        blueprint_id=row.blueprint_id if tenants and purpose != "install" else None,  # a tenant's scripts run in its own system
        image_id=row.image_id if purpose in {"deploy", "install"} else None,
        burn_in=tuple(asdict(one) for one in tests),
    )


def _tags(row: Any) -> dict[str, str]:
    """
    What a machine is told of itself.
    """
    tags = {"gpus": str(row.gpus)}
    if row.config.get("root_disk"):
        tags["root_disk"] = str(row.config["root_disk"])
    return {**tags, "diskless": "yes"} if row.config.get("diskless") is True else tags


def _end_boots(session: Session, entered: Mapping[str, Sequence[Result]]) -> None:
    """
    The token of a boot opens nothing any more once its machine is given back, put aside or done.
    """
    over = [
        one.claim.row["boot_id"]
        for state, results in entered.items()
        if state in FREE_AGAIN or state == "releasing"
        for one in results
        if one.claim.row["boot_id"] is not None
    ]
    if over:
        boots.end(session, over)


def _activate(session: Session, results: Sequence[Result]) -> None:
    ids = [one.claim.row["allocation_id"] for one in results]
    if not ids:
        return
    clusters = session.execute(
        update(AllocationRow)
        .where(AllocationRow.id.in_(ids), AllocationRow.state == "held")
        .values(state="active")
        .returning(AllocationRow.cluster_id)
    ).scalars()
    wake(session, "clusters", list(clusters))


def _end_acts(session: Session, entered: Mapping[str, Sequence[Result]]) -> None:
    """
    What tenants did with their machines has come to an end, and they hear of it.
    """
    ended = [(state, one) for state, results in entered.items() for one in results if one.claim.state in ACTING]
    if not ended:
        return
    ids = [one.claim.id for _, one in ended]
    held = select(NodeRow.id, AllocationRow.instance_id, AllocationRow.tenant_id, AllocationRow.project_id).join(
        AllocationRow, AllocationRow.id == NodeRow.allocation_id
    )
    whose = {row.id: row for row in session.execute(held.where(NodeRow.id.in_(ids)))}
    session.execute(update(NodeRow).where(NodeRow.id.in_(ids)).values(acting_for=None))
    record(
        session,
        [
            instance_event(whose[one.claim.id], before=one.claim.state, after=state, reason=_words(one, state))
            for state, one in ended
            if one.claim.id in whose
        ],
    )


def instance_event(whose: Any, *, before: str, after: str, reason: str) -> Event:
    """
    A move of a tenant's machine as its tenant hears of it; `whose` has instance_id, tenant_id and project_id.
    """
    told = {"state": after, "before": before, "reason": reason}
    return Event(f"instance.{after}", "instance", whose.instance_id, whose.tenant_id, whose.project_id, told)


def _words(result: Result, state: str) -> str:
    if isinstance(result.outcome, Fail):
        return result.outcome.message
    return (result.outcome.reason if isinstance(result.outcome, Advance) else "") or NODE_STATES.by_name[state].says


def _withdraw(session: Session, results: Sequence[Result]) -> None:
    """
    Nodes that go back before they were anybody's: never billed; one that failed is held out of placement until a person looks.
    """
    ids = [one.claim.row["allocation_id"] for one in results if one.claim.row["allocation_id"] is not None]
    if not ids:
        return
    accepted = func.coalesce(AllocationRow.release_accepted_at, CpClock())
    clusters = session.execute(
        update(AllocationRow)
        .where(AllocationRow.id.in_(ids))
        .values(state="releasing", release_accepted_at=accepted)
        .returning(AllocationRow.cluster_id)
    ).scalars()
    wake(session, "clusters", list(clusters))
    failed = [one for one in results if isinstance(one.outcome, Fail)]
    if failed:
        lost = [one.claim.row["allocation_id"] for one in failed]
        session.execute(update(AllocationRow).where(AllocationRow.id.in_(lost)).values(end_reason=DEPLOY_FAILED))
        session.execute(
            insert(HoldRow),
            [
                {"id": new_id("hld"), "node_id": one.claim.id, "reason": f"{one.outcome.code}: see history", "created_by": "system"}
                for one in failed
                if isinstance(one.outcome, Fail)
            ],
        )
