"""
What the lifecycle engine asks of this room: snapshots for steps, and what an outcome means beyond the move itself.
"""

from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, func, insert, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.kit.clock import CpClock
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import Claim, Result, wake
from controlplane.kit.outcome import Advance, Fail
from controlplane.nodes import repository
from controlplane.nodes.allocating import end_allocations
from controlplane.nodes.models import AllocationRow, HoldRow, NodeRow, WipeRow
from controlplane.nodes.states import NODE_STATES, NodeFacts, NodeSnapshot
from controlplane.qualification import service as qualification

TASK_PREFIX = {"inspecting": "tsk", "qualifying": "tsk", "cleaning": "wip"}
FREE_AGAIN = frozenset({"available", "quarantined", "maintenance"})
OPERATION_ENDS: Mapping[str, str] = {
    "available": "succeeded",
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
    for state in TASK_PREFIX:
        begin_task(session, state, [one.claim.id for one in entered.get(state, [])])
    _activate(session, entered.get("active", []))
    _withdraw(session, entered.get("releasing", []))
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
    The nodes have a fresh token for the state's work at the provider, and for a wipe its record; nothing for states without such work.
    """
    if not node_ids or state not in TASK_PREFIX:
        return
    tokens = [{"node": one, "token": new_id(TASK_PREFIX[state])} for one in node_ids]
    table = NodeRow.__table__
    begun = update(table).where(table.c.id == bindparam("node")).values(task_id=bindparam("token"))  # type: ignore[arg-type]
    session.connection().execute(begun, tokens)
    if state == "cleaning":
        session.execute(insert(WipeRow), [{"id": one["token"], "node_id": one["node"]} for one in tokens])


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
        session.execute(
            insert(HoldRow),
            [
                {"id": new_id("hld"), "node_id": one.claim.id, "reason": f"{one.outcome.code}: see history", "created_by": "system"}
                for one in failed
                if isinstance(one.outcome, Fail)
            ],
        )
