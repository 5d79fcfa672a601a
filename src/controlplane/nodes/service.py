"""
What operators do with providers and nodes, and what other rooms may ask of the fleet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import NotFound
from controlplane.kit.events import Event, HistoryRow, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import wake
from controlplane.kit.operations import NewOperation, Progress, advance, start_operation
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.nodes import repository
from controlplane.nodes.acting import ACTS, NOT_OURS, InstanceState, act_on_instance, instance_state
from controlplane.nodes.adopting import AT_REST, Housed, adopt, find_housed, find_refs, hand_back, part, settle
from controlplane.nodes.allocating import (
    Hold,
    accept_release,
    end_allocations,
    failed_deployments,
    give_back,
    hold,
    keep,
    mark_leaving,
    recharge,
    transfer_charge,
)
from controlplane.nodes.appointing import appoint, direct, dismiss, note_features
from controlplane.nodes.driving import FREE_AGAIN, apply, begin_task
from controlplane.nodes.errors import WrongState
from controlplane.nodes.lending import Candidate, Lent, Place, candidates, lend, lent_to, recall, take_back
from controlplane.nodes.models import AllocationRow, HoldRow, NodeRow, WipeRow
from controlplane.nodes.registering import (
    NewNode,
    NewProvider,
    ProviderChange,
    change_provider,
    delete_provider,
    enroll,
    enroll_from,
    find_provider,
    get_provider,
    list_providers,
    register_provider,
    seal_secrets,
    set_provider_state,
)
from controlplane.nodes.reporting import (
    SETTLED_S,
    Report,
    begin_anew,
    close_tickets,
    freeze,
    lift_freeze,
    list_freezes,
    list_tickets,
    mark_delivered,
    put_sick_aside,
    report,
    reports_of,
    take_undelivered,
)
from controlplane.nodes.repository import (
    allocations_of,
    installs_images,
    read_fleet,
    read_lost,
    read_pools,
    read_providers,
    read_seats,
)
from controlplane.nodes.rotating import make_due
from controlplane.nodes.states import NODE_STATES, ProviderRef

__all__ = [
    "ACTIONS",
    "ACTS",
    "AT_REST",
    "NOT_OURS",
    "SETTLED_S",
    "Candidate",
    "Hold",
    "Housed",
    "InstanceState",
    "Lent",
    "NewNode",
    "NewProvider",
    "NodeView",
    "Place",
    "ProviderChange",
    "ProviderRef",
    "Report",
    "accept_release",
    "act_on_instance",
    "adopt",
    "allocations_of",
    "apply",
    "appoint",
    "availability",
    "begin_task",
    "candidates",
    "change_provider",
    "delete_provider",
    "direct",
    "dismiss",
    "enroll",
    "enroll_from",
    "failed_deployments",
    "find_housed",
    "find_provider",
    "find_refs",
    "freeze",
    "get_node",
    "get_provider",
    "give_back",
    "hand_back",
    "hold",
    "installs_images",
    "instance_state",
    "keep",
    "lend",
    "lent_to",
    "lift_freeze",
    "list_freezes",
    "list_providers",
    "list_tickets",
    "mark_delivered",
    "mark_leaving",
    "note_features",
    "part",
    "put_sick_aside",
    "read_fleet",
    "read_lost",
    "read_pools",
    "read_providers",
    "read_seats",
    "recall",
    "recharge",
    "register_provider",
    "report",
    "reports_of",
    "seal_secrets",
    "set_provider_state",
    "settle",
    "take_back",
    "take_undelivered",
    "transfer_charge",
]

LEVELS = ((0, "none"), (4, "low"), (16, "medium"))


@dataclass(frozen=True, slots=True)
class Action:
    """
    A verb of the operator on a node.
    """

    to: str
    """Where it leads."""
    says: str
    """What is true after it."""


ACTIONS: Mapping[str, Action] = {
    "requalify": Action("inspecting", "The node is inspected, checked and wiped again, and then available."),
    "update-firmware": Action(
        "updating", "The wanted firmware is installed and read back; then the node is inspected, checked and wiped, and available."
    ),
    "quarantine": Action("quarantined", "The node is out of use until somebody decides."),
    "maintain": Action("maintenance", "The node is taken out on purpose."),
    "repair": Action("repairing", "The node is with whoever repairs it."),
    "retire": Action("retired", "The node has left the fleet."),
}


RELEASING = (
    "It is being taken from its tenant: networks are detached and power is cut first. Wait until it is wiped or quarantined."
)
"""Why no verb is allowed meanwhile: setting the node aside would end the tenancy before the machine has let go of it."""


ADOPTING = "Its cluster is being taken over, or let go. Wait until that has come to its end, or cancel it."
"""Why no verb is allowed meanwhile: the cluster decides what becomes of it."""


NOT_BY_US = "Its provider owns the machine's life: firmware is updated there."
"""Why the firmware of such a node is not updated by us."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """
    A node with what stands beside it.
    """

    row: NodeRow
    """The node."""
    tenancy: AllocationRow | None
    """Who holds it."""
    holds: tuple[HoldRow, ...]
    """What keeps it out of placement."""
    overstays: bool
    """Whether it is longer in its state than it should be."""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """
    Which nodes are asked for; None: any.
    """

    state: str | None = None
    """State."""
    site: str | None = None
    """Site."""
    instance_type: str | None = None
    """Type."""
    provider_id: str | None = None
    """Provider."""
    attention: bool | None = None
    """Whether a person is needed."""
    tenant_id: str | None = None
    """Who holds it."""


def list_nodes(session: Session, which: NodeFilter, ask: PageAsk) -> Page[NodeView]:
    """
    A page of nodes with their tenancies and holds; three queries however many.
    """
    query = select(NodeRow)
    for column, value in (
        (NodeRow.state, which.state),
        (NodeRow.site, which.site),
        (NodeRow.instance_type, which.instance_type),
        (NodeRow.provider_id, which.provider_id),
    ):
        if value is not None:
            query = query.where(column == value)
    if which.attention is not None:
        late = and_(NodeRow.deadline_at.is_not(None), NodeRow.deadline_at < CpClock())
        needed = or_(NodeRow.attention != "", late)
        query = query.where(needed if which.attention else ~needed)
    if which.tenant_id is not None:
        held = select(AllocationRow.node_id).where(AllocationRow.tenant_id == which.tenant_id, AllocationRow.state != "ended")
        query = query.where(NodeRow.id.in_(held))
    page = fetch_page(session, query, NodeRow.id, ask)
    views = {one.row.id: one for one in _views(session, page.items)}
    return page.map(lambda row: views[row.id])


def get_node(session: Session, node_id: str) -> NodeView:
    """
    The node. Raises NotFound.
    """
    row = session.get(NodeRow, node_id)
    if row is None:
        raise NotFound
    return _views(session, [row])[0]


def find_nodes(session: Session, named: Sequence[tuple[str | None, str | None, str | None]]) -> list[str | None]:
    """
    The id of each named node, (id, None, None) or (None, provider id, name there); None for an unknown one.
    """
    ids = {one for one, _, _ in named if one is not None}
    refs = {(provider, ref) for _, provider, ref in named if provider is not None and ref is not None}
    query = select(NodeRow.id, NodeRow.provider_id, NodeRow.ref)
    query = query.where(or_(NodeRow.id.in_(ids), tuple_(NodeRow.provider_id, NodeRow.ref).in_(refs)))
    found = session.execute(query).all()
    known, by_ref = {row.id for row in found}, {(row.provider_id, row.ref): row.id for row in found}
    return [
        (one if one in known else None) if one is not None else by_ref.get((provider or "", ref or ""))
        for one, provider, ref in named
    ]


def history_of(session: Session, resource_id: str, ask: PageAsk) -> Page[HistoryRow]:
    """
    A page of the resource's moves, oldest first.
    """
    return fetch_page(session, select(HistoryRow).where(HistoryRow.resource_id == resource_id), HistoryRow.id, ask)


def wipes_of(session: Session, node_id: str, ask: PageAsk) -> Page[WipeRow]:
    """
    A page of the node's wipes, oldest first.
    """
    get_node(session, node_id)
    return fetch_page(session, select(WipeRow).where(WipeRow.node_id == node_id), WipeRow.id, ask)


def _views(session: Session, rows: Sequence[NodeRow]) -> list[NodeView]:
    ids = [row.id for row in rows]
    tenancies = session.execute(
        select(AllocationRow).where(AllocationRow.node_id.in_(ids), AllocationRow.state != "ended")
    ).scalars()
    held_by = {one.node_id: one for one in tenancies}
    holds: dict[str, list[HoldRow]] = {}
    for one in open_holds(session, ids):
        holds.setdefault(one.node_id, []).append(one)
    now = session.execute(select(CpClock())).scalar_one()
    return [
        NodeView(
            row, held_by.get(row.id), tuple(holds.get(row.id, ())), overstays=row.deadline_at is not None and row.deadline_at < now
        )
        for row in rows
    ]


def open_holds(session: Session, node_ids: Sequence[str]) -> Sequence[HoldRow]:
    """
    The holds that are in force on these nodes.
    """
    in_force = or_(HoldRow.until.is_(None), HoldRow.until > CpClock())
    query = select(HoldRow).where(HoldRow.node_id.in_(node_ids), HoldRow.lifted_at.is_(None), in_force).order_by(HoldRow.id)
    return session.execute(query).scalars().all()


def place_hold(session: Session, node_id: str, *, reason: str, by: str, until: datetime | None) -> HoldRow:
    """
    The node is kept out of placement; its state and its tenant are not touched.
    """
    get_node(session, node_id)
    row = HoldRow(id=new_id("hld"), node_id=node_id, reason=reason, created_by=by, until=until, lifted_at=None)
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def lift_hold(session: Session, node_id: str, hold_id: str) -> HoldRow:
    """
    The hold is over. Raises NotFound; lifting twice changes nothing.
    """
    row = session.get(HoldRow, hold_id)
    if row is None or row.node_id != node_id:
        raise NotFound
    if row.lifted_at is None:
        row.lifted_at = session.execute(select(CpClock())).scalar_one()
        session.flush()
    return row


def allowed_actions(row: NodeRow) -> dict[str, str]:
    """
    Every verb with the reason why it is not allowed now; an empty reason where it is.
    """
    if row.state in {"releasing", "adopting"}:
        return dict.fromkeys(ACTIONS, RELEASING if row.state == "releasing" else ADOPTING)
    moves = NODE_STATES.by_name[row.state].moves
    allowed = {
        name: "" if action.to in moves else f"A node in state {row.state} cannot go there." for name, action in ACTIONS.items()
    }
    return allowed if row.access else {**allowed, "update-firmware": NOT_BY_US}


def act(session: Session, node_id: str, verb: str, *, reason: str, by: str, check: Callable[[int], None]) -> tuple[NodeView, str]:
    """
    The operator's verb is under way or done; the node and its operation's id are returned. Raises NotFound, WrongState and what
    `check` raises of the node's version.
    """
    row = session.execute(select(NodeRow).where(NodeRow.id == node_id).with_for_update()).scalar_one_or_none()
    if row is None:
        raise NotFound
    check(row.version)
    refusal = allowed_actions(row)[verb]
    if refusal:
        allowed = [name for name, why in allowed_actions(row).items() if not why]
        raise WrongState(refusal, state=row.state, allowed=allowed)
    operation_id = start_operation(session, NewOperation(f"node.{verb.replace('-', '_')}", "node", node_id, by))
    before, target = row.state, NODE_STATES.by_name[ACTIONS[verb].to]
    now = session.execute(select(CpClock())).scalar_one()
    stay = func.make_interval(0, 0, 0, 0, 0, 0, target.longest_stay_s)
    moving = target.nature == "moving"
    session.execute(
        update(NodeRow)
        .where(NodeRow.id == node_id)
        .values(
            state=target.name,
            step="",
            reason=reason or target.says,
            state_since=now,
            deadline_at=now + stay if moving else None,
            due_at=now if moving else None,
            attempts=0,
            attention="",
            task_id=new_id("tsk"),
            updating={},
            version=NodeRow.version + 1,
            updated_at=now,
        )
    )
    record(
        session,
        [Event(f"node.{target.name}", "node", node_id, data={"state": target.name, "before": before, "reason": reason})],
        [Move("node", node_id, before, target.name, reason)],
    )
    _follow(session, row, verb, target.name)
    if not moving:
        _end_operation(session, node_id, target.name, reason)
    session.refresh(row)
    return _views(session, [row])[0], operation_id


def _follow(session: Session, row: NodeRow, verb: str, state: str) -> None:
    """
    What stands beside the node has followed the operator's verb: its boot, reports, ticket and allocation.
    """
    if row.boot_id is not None:
        boots.end(session, [row.boot_id])
    if verb == "requalify":
        begin_anew(session, [row.id])
        make_due(session, [row.id])
    if verb == "retire":
        close_tickets(session, [row.id])
    if state in FREE_AGAIN and row.allocation_id is not None:
        end_allocations(session, {row.allocation_id: row.id})


def _end_operation(session: Session, node_id: str, state: str, reason: str) -> None:
    advance(session, [Progress(node_id, state, reason, "succeeded")])


@dataclass(frozen=True, slots=True)
class Availability:
    """
    How much of one type is free in one site.
    """

    site: str
    """Where."""
    instance_type: str
    """What."""
    level: str
    """none, low, medium or high."""
    free: int
    """Nodes; shown to operators only."""
    total: int
    """Nodes; shown to operators only."""
    as_of: datetime
    """When the provider that has been silent longest last answered."""
    age_s: float
    """How long ago that was."""


def availability(session: Session, site: str | None, instance_type: str | None) -> list[Availability]:
    """
    Free capacity per site and type, as of this transaction.
    """
    now = session.execute(select(CpClock())).scalar_one()
    return [
        Availability(
            site=row.site,
            instance_type=row.instance_type,
            level=level_of(row.free),
            free=row.free,
            total=row.total,
            as_of=row.as_of,
            age_s=max(0.0, (now - row.as_of).total_seconds()),
        )
        for row in repository.count_free(session, site, instance_type)
    ]


def are_free(session: Session, site: str, instance_type: str, wanted: int) -> bool:
    """
    Whether the site has so many free nodes of the type now.
    """
    return repository.are_free(session, site, instance_type, wanted)


def level_of(free: int) -> str:
    """
    none, low, medium or high.
    """
    return next((name for most, name in LEVELS if free <= most), "high")


def wake_node(session: Session, node_id: str) -> None:
    """
    The node is looked at soon.
    """
    wake(session, "nodes", [node_id])
