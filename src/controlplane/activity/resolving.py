"""
What needs a person, and the three verbs with which an operator settles it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import RowMapping
from sqlalchemy.orm import Session

from controlplane.activity import repository
from controlplane.activity.errors import NotResolvable
from controlplane.activity.repository import Standing
from controlplane.clusters import service as clusters
from controlplane.clusters.states import CLUSTER_STATES
from controlplane.fabric_checks import service as fabric_checks
from controlplane.fabric_checks.states import FABRIC_CHECK_STATES
from controlplane.jobs import service as jobs
from controlplane.jobs.states import JOB_STATES
from controlplane.kit.access import Principal
from controlplane.kit.errors import NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.lifecycle import Claim, Result
from controlplane.kit.operations import ACTIVE, OperationRow, Progress, advance
from controlplane.kit.outcome import Fail
from controlplane.kit.paging import Page, PageAsk, decode_token, encode_token
from controlplane.kit.states import State, StateTable
from controlplane.nodes import service as nodes
from controlplane.nodes.states import NODE_STATES
from controlplane.services import service as services
from controlplane.services.states import SERVICE_STATES

Verb = Literal["resume", "retry", "abandon"]
KindName = Literal["node", "cluster", "job", "service", "fabric_check", "provider"]
SILENT_S = 180.0
"""A provider that has not answered for so long needs a person: three questions in a row."""
ABANDONED = "An operator gave it up."


@dataclass(frozen=True, slots=True)
class Driven:
    """
    A kind that can need a person.
    """

    table: StateTable
    """Its states."""
    apply: Callable[[Session, Sequence[Result]], None]
    """The room's own: what follows from a failure besides the move."""


KINDS: Mapping[str, Driven] = {
    "node": Driven(NODE_STATES, nodes.apply),
    "cluster": Driven(CLUSTER_STATES, clusters.apply),
    "job": Driven(JOB_STATES, jobs.apply),
    "service": Driven(SERVICE_STATES, services.apply),
    "fabric_check": Driven(FABRIC_CHECK_STATES, fabric_checks.apply),
}
PREFIXES = {"nod": "node", "clu": "cluster", "job": "job", "svc": "service", "fck": "fabric_check"}


def list_attention(session: Session, kind: KindName | None, ask: PageAsk) -> Page[Any]:
    """
    A page of everything that needs a person: what failed for good, stays too long, is deleted without a confirmation, or is silent.
    """
    after = None if ask.token is None else decode_token(ask.token)
    rows = repository.list_attention(session, kind, after, ask.limit + 1, silent_s=SILENT_S)
    kept = tuple(rows[: ask.limit])
    return Page(kept, encode_token(kept[-1].id) if len(rows) > ask.limit else None)


def resolve_operation(session: Session, principal: Principal, operation_id: str, verb: Verb) -> OperationRow:
    """
    The operation's resource was given the verb. Raises NotFound, NotResolvable.
    """
    row = repository.find_operation(session, principal, operation_id)
    if row is None:
        raise NotFound
    if row.state not in ACTIVE:
        raise NotResolvable(f"The operation has ended: it {row.state}.", state=row.state)
    kind, resource_id = row.resource_kind, row.resource_id
    if kind == "instance":
        kind, resource_id = "node", repository.find_acting(session, resource_id) or ""
    if kind not in KINDS:
        raise NotResolvable(f"Nothing drives this: {kind}.", state=row.state)
    resolve(session, kind, resource_id, verb)
    again = repository.find_operation(session, principal, operation_id)
    assert again is not None
    return again


def resolve_resource(session: Session, resource_id: str, verb: Verb) -> str:
    """
    The resource was given the verb; its kind is returned. Raises NotFound, NotResolvable.
    """
    kind = PREFIXES.get(resource_id.partition("_")[0])
    if kind is None:
        raise NotFound
    resolve(session, kind, resource_id, verb)
    return kind


def resolve(session: Session, kind: str, resource_id: str, verb: Verb) -> None:
    """
    `resume`: the state goes on with a new deadline; `retry`: it starts afresh; `abandon`: the resource has failed, with all that
    follows, and so has its operation. Raises NotFound, and NotResolvable where no person is needed or abandoning would forget a debt.
    """
    row = repository.lock_row(session, kind, resource_id)
    if row is None:
        raise NotFound
    if not row["attention"] and not row["overdue"]:
        raise NotResolvable("It does not wait for a person.", state=row["state"])
    if verb == "abandon":
        _abandon(session, kind, row)
    else:
        _go_on(session, kind, row, afresh=verb == "retry")


def _go_on(session: Session, kind: str, row: RowMapping, *, afresh: bool) -> None:
    state = KINDS[kind].table.by_name[row["state"]]
    reason = "An operator started it again." if afresh else "An operator let it go on."
    standing = Standing(
        state=state.name,
        step="" if afresh else row["step"],
        reason=reason,
        longest_stay_s=state.longest_stay_s,
        driven=_driven(kind, state),
    )
    repository.put(session, kind, row["id"], standing)
    if afresh and kind == "node":
        nodes.begin_task(session, state.name, [row["id"]])
    verb = "retried" if afresh else "resumed"
    record(session, [_event(kind, row, verb, {"state": state.name, "reason": reason})])
    advance(session, [Progress(told, state.name, reason) for told in _told(row)])


def _abandon(session: Session, kind: str, row: RowMapping) -> None:
    driven = KINDS[kind]
    target = driven.table.by_name[row["state"]].fails_to
    if target is None:
        raise NotResolvable(
            f"A {kind} in state {row['state']} cannot be given up: what it holds must be seen to be gone first.", state=row["state"]
        )
    driven.table.check_move(row["state"], target)
    state = driven.table.by_name[target]
    repository.put(session, kind, row["id"], Standing(target, "", ABANDONED, state.longest_stay_s, _driven(kind, state)))
    claim = Claim(
        id=row["id"],
        state=row["state"],
        step=row["step"],
        fence=row["fence"] + 1,
        attempts=0,
        wakes=row["wakes"],
        overdue=row["overdue"],
        attention=row["attention"],
        row=row,
    )
    driven.apply(session, [Result(claim, Fail("abandoned", ABANDONED))])
    record(
        session,
        [_event(kind, row, target, {"state": target, "before": row["state"], "reason": ABANDONED})],
        [Move(kind, row["id"], row["state"], target, ABANDONED, row.get("tenant_id"), row["fence"] + 1)],
    )
    advance(session, [Progress(told, target, ABANDONED, "failed", "abandoned") for told in _told(row)])


def _told(row: RowMapping) -> tuple[str, ...]:
    """
    The resources whose operations tell of the row: itself, and a node's instance while its tenant's action is under way.
    """
    other = row.get("acting_for")
    return (row["id"],) if other is None else (row["id"], other)


def _driven(kind: str, state: State) -> bool:
    """
    Whether the engine looks at rows in the state: moving ones, and clusters also while they are settled.
    """
    return state.nature == "moving" or (kind == "cluster" and state.nature == "settled")


def _event(kind: str, row: RowMapping, verb: str, data: dict[str, Any]) -> Event:
    return Event(f"{kind}.{verb}", kind, row["id"], row.get("tenant_id"), row.get("project_id"), data)
