"""
Fabric checks: asked for, looked at and stopped; the only writer of their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from controlplane.fabric_checks import repository
from controlplane.fabric_checks.driving import apply
from controlplane.fabric_checks.errors import CheckEnding, NodesNotFree, SeveralProviders
from controlplane.fabric_checks.models import FabricCheckNodeRow, FabricCheckRow
from controlplane.fabric_checks.repository import CheckFilter, list_checks
from controlplane.fabric_checks.states import (
    FABRIC_CHECK_STATES,
    FEWEST_NODES,
    MOST_NODES,
    Member,
    Scope,
    Tool,
    plan,
)
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.operations import NewOperation, find_active, request_cancel, start_operation
from controlplane.nodes import service as nodes

__all__ = [
    "CheckFilter",
    "CheckView",
    "apply",
    "cancel",
    "cancel_refusal",
    "check_repaired",
    "get_check",
    "list_checks",
    "order_check",
    "views",
]

MOST_LOOKED_AT = 512
"""Nodes of one place that are looked at; of these the free ones are measured."""
LEAVES = 4
"""Checks that one sweep begins."""


@dataclass(frozen=True, slots=True)
class CheckView:
    """
    A check with its nodes and its operation.
    """

    row: FabricCheckRow
    """The check."""
    members: tuple[FabricCheckNodeRow, ...]
    """Its nodes."""
    operation_id: str | None
    """What is under way; None when it has ended."""


def order_check(session: Session, scope: Scope, tool: Tool, *, by: str) -> CheckView:
    """
    The check holds its nodes and is on its way.

    Raises Invalid for nodes and places that do not exist, NodesNotFree, SeveralProviders.
    """
    place = nodes.Place(tuple(filter(None, (scope.node_id, scope.peer_node_id))), scope.site, scope.block, scope.leaf)
    found = nodes.candidates(session, place, MOST_LOOKED_AT)
    _check_known(scope, found)
    free = [one for one in found if one.state == "available"][:MOST_NODES]
    check_id = new_id("fck")
    lent = nodes.lend(session, [one.id for one in free], check_id)
    held = [one for one in free if one.id in lent]
    _check_enough(scope, found, held)
    providers = sorted({one.provider_id for one in held})
    if len(providers) > 1:
        raise SeveralProviders("One check runs within one provider; name nodes of one of them.", provider_ids=providers)
    order = {scope.node_id: 0, scope.peer_node_id: 1} if scope.kind == "pair" else {}
    members = [Member(one.id, one.ref, one.leaf) for one in sorted(held, key=lambda one: order.get(one.id, 0))]
    rounds = plan(scope, tool, members)
    if not rounds:
        raise NodesNotFree("No two of the free nodes can be measured against each other.", states={})
    row = FabricCheckRow(
        id=check_id,
        scope=scope.kind,
        site=held[0].site,
        block=scope.block,
        leaf=scope.leaf,
        rail=rounds[0][0].rail,
        tool=tool,
        provider_id=providers[0],
        state=FABRIC_CHECK_STATES.initial,
        reason=FABRIC_CHECK_STATES.states[0].says,
        deadline_at=_deadline(),
        rounds=[[run.document() for run in some] for some in rounds],
        left_out=[{"node_id": one.id, "state": one.state} for one in found if one.id not in lent],
        created_by=by,
    )
    session.add(row)
    session.flush()
    session.add_all(FabricCheckNodeRow(check_id=check_id, node_id=one.id, ref=one.ref) for one in held)
    start_operation(session, NewOperation("fabric_check.create", "fabric_check", check_id, by), first=row.state, reason=row.reason)
    _tell(session, row, "", row.state, "Asked for.")
    session.flush()
    session.refresh(row)
    return views(session, [row])[0]


def _deadline() -> object:
    return CpClock() + func.make_interval(0, 0, 0, 0, 0, 0, FABRIC_CHECK_STATES.states[0].longest_stay_s)


def _check_known(scope: Scope, found: Sequence[nodes.Candidate]) -> None:
    """
    Returns when the place exists. Raises Invalid.
    """
    if scope.kind == "pair":
        missing = [one for one in (scope.node_id, scope.peer_node_id) if one not in {node.id for node in found}]
        if missing:
            words = f"There is no node {missing[0][:60]} in the fleet."
            raise Invalid(words, errors=[FieldError("body.scope", "unknown_node", words)])
    elif not found:
        words = f"No node stands on {(scope.leaf or scope.block)[:60]} in {scope.site[:60]}."
        raise Invalid(words, errors=[FieldError("body.scope", "unknown_place", words)])


def _check_enough(scope: Scope, found: Sequence[nodes.Candidate], held: Sequence[nodes.Candidate]) -> None:
    """
    Returns when there are two nodes to be measured, of a pair both. Raises NodesNotFree.
    """
    if len(held) >= FEWEST_NODES:
        return
    mine = {one.id for one in held}
    states = {one.id: "taken meanwhile" if one.state == "available" else one.state for one in found if one.id not in mine}
    words = "Both must be free." if scope.kind == "pair" else f"At least {FEWEST_NODES} must be free, and {len(held)} are."
    raise NodesNotFree(
        f"A check touches only nodes that are free and wiped. {words}", states=dict(list(states.items())[:MOST_NODES])
    )


def get_check(session: Session, check_id: str) -> CheckView:
    """
    The check. Raises NotFound.
    """
    row = session.get(FabricCheckRow, check_id)
    if row is None:
        raise NotFound
    return views(session, [row])[0]


def views(session: Session, rows: Sequence[FabricCheckRow]) -> list[CheckView]:
    """
    The checks with what stands beside them.
    """
    members = repository.members_of(session, [row.id for row in rows])
    return [CheckView(row, tuple(members.get(row.id, ())), find_active(session, row.id)) for row in rows]


def cancel_refusal(row: FabricCheckRow) -> str:
    """
    Why the check cannot be stopped now; empty when it can.
    """
    if FABRIC_CHECK_STATES.by_name[row.state].nature == "final":
        return f"The check has ended: it is {row.state}."
    return "It is giving its nodes back already." if row.state == "returning" else ""


def cancel(session: Session, check_id: str) -> CheckView:
    """
    The wish to stop is on record and honoured at the next step, also of a check that waits for a person; its nodes are free only once the
    provider was seen without it. Raises NotFound, CheckEnding.
    """
    row = repository.lock_check(session, check_id)
    if row is None:
        raise NotFound
    refusal = cancel_refusal(row)
    if refusal:
        raise CheckEnding(refusal, state=row.state)
    if row.cancel_requested_at is None:
        # The fence stays: what a step under way has measured still counts, and the wake makes another look follow it.
        session.execute(
            update(FabricCheckRow)
            .where(FabricCheckRow.id == check_id)
            .values(
                cancel_requested_at=CpClock(),
                due_at=CpClock(),
                wakes=FabricCheckRow.wakes + 1,
                attempts=0,
                version=FabricCheckRow.version + 1,
                updated_at=CpClock(),
            )
        )
        request_cancel(session, check_id)
        record(session, [Event("fabric_check.cancel_requested", "fabric_check", check_id, data={"state": row.state})])
        session.refresh(row)
    return views(session, [row])[0]


def check_repaired(session: Session) -> int:
    """
    Leaves to which a node came back from repair are being checked; how many checks began is returned. A few at a time.
    """
    begun = 0
    for place in repository.repaired_leaves(session, LEAVES):
        with session.begin_nested() as savepoint:
            try:
                order_check(session, Scope("leaf", site=place.site, leaf=place.leaf), "nccl-tests", by="system")
                begun += 1
            except (NodesNotFree, SeveralProviders):
                savepoint.rollback()
    return begun


def _tell(session: Session, row: FabricCheckRow, before: str, after: str, words: str) -> None:
    record(
        session,
        [Event(f"fabric_check.{after}", "fabric_check", row.id, data={"state": after, "before": before, "reason": words})],
        [Move("fabric_check", row.id, before, after, words)],
    )
