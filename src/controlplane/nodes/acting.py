"""
What tenants may do with the bare machines they hold, and how it begins; the lifecycle engine carries it out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.kit.clock import CpClock
from controlplane.kit.events import Move, record
from controlplane.kit.operations import NewOperation, Progress, advance, find_active, start_operation
from controlplane.nodes.driving import BOOTS, begin_task, instance_event
from controlplane.nodes.errors import NotOffered, WrongState
from controlplane.nodes.models import AllocationRow, NodeRow, ProviderRow
from controlplane.nodes.states import ACTING, NODE_STATES

NOT_OURS = "Its provider offers no actions on single machines."
INSTALL_NEEDS_OTHER = "Machines of this provider start from their own disks only, so no image can be installed."
RESCUE_NEEDS_OTHER = "Machines of this provider start from their own disks only, so no rescue system can be started."


@dataclass(frozen=True, slots=True)
class Act:
    """
    A verb of the tenant on a machine it holds.
    """

    to: str
    """The state that carries it out."""
    since: frozenset[str]
    """States it may begin in."""
    step: str = ""
    """Part of the state it begins at; empty for the first."""


ACTS: Mapping[str, Act] = {
    "reboot": Act("restarting", frozenset({"active"})),
    "power-cycle": Act("restarting", frozenset({"active"}), "cut"),
    "stop": Act("stopping", frozenset({"active", "rescued"})),
    "start": Act("starting", frozenset({"stopped"})),
    "reinstall": Act("reinstalling", frozenset({"active", "stopped", "rescued"})),
    "rescue": Act("rescuing", frozenset({"active", "stopped"})),
    "unrescue": Act("starting", frozenset({"rescued"})),
}
"""By the verb's name in paths."""


@dataclass(frozen=True, slots=True)
class InstanceState:
    """
    A tenant's machine as far as its tenant may know it.
    """

    state: str
    """Of the node."""
    reason: str
    """In words."""
    since: datetime
    """When it came to the state."""
    refusals: Mapping[str, str]
    """Every verb with the reason why it is not allowed now; empty where it is."""


HELD = (
    select(
        NodeRow.id,
        NodeRow.state,
        NodeRow.reason,
        NodeRow.state_since,
        NodeRow.access,
        ProviderRow.config,
        AllocationRow.id.label("allocation_id"),
        AllocationRow.instance_id,
        AllocationRow.tenant_id,
        AllocationRow.project_id,
        AllocationRow.state.label("held"),
        AllocationRow.leaving,
    )
    .join(AllocationRow, AllocationRow.id == NodeRow.allocation_id)
    .join(ProviderRow, ProviderRow.id == NodeRow.provider_id)
)


def instance_state(session: Session, allocation_id: str) -> InstanceState | None:
    """
    The machine of the allocation; None when nobody's any more.
    """
    row = session.execute(HELD.where(AllocationRow.id == allocation_id)).one_or_none()
    if row is None:
        return None
    refusals = {verb: _refusal(row, verb) for verb in ACTS}
    return InstanceState(row.state, row.reason, row.state_since, refusals)


def act_on_instance(
    session: Session, allocation_id: str, verb: str, *, by: str, image_id: str | None = None
) -> tuple[str, str] | None:
    """
    The tenant's verb is under way: the ids of its operation and of the node to look at are returned; None when nobody's any more. With an
    image, that is what is on the machine's disk from now on.

    Raises OperationActive, and NotOffered or WrongState with the verbs that are allowed.
    """
    row = session.execute(HELD.where(AllocationRow.id == allocation_id).with_for_update(of=NodeRow)).one_or_none()
    if row is None:
        return None
    if not row.access:
        raise NotOffered(NOT_OURS, allowed=[])
    if find_active(session, row.instance_id) is None:
        _check(row, verb)
    if image_id is not None:
        _exchange_image(session, row, image_id)
    name = f"instance.{verb.replace('-', '_')}"
    new = NewOperation(name, "instance", row.instance_id, by, row.tenant_id, row.project_id)
    operation_id = start_operation(session, new)
    act = ACTS[verb]
    target = NODE_STATES.by_name[act.to]
    now = session.execute(select(CpClock())).scalar_one()
    values = {
        "state": target.name,
        "step": act.step,
        "reason": target.says,
        "detail": "",
        "state_since": now,
        "deadline_at": now + func.make_interval(0, 0, 0, 0, 0, 0, target.longest_stay_s),
        "due_at": now,
        "attempts": 0,
        "attention": "",
        "acting_for": row.instance_id,
        "version": NodeRow.version + 1,
        "updated_at": now,
    }
    session.execute(update(NodeRow).where(NodeRow.id == row.id).values(values))
    record(
        session,
        [instance_event(row, before=row.state, after=target.name, reason=target.says)],
        [Move("node", row.id, row.state, target.name, f"{verb} asked for by its tenant", row.tenant_id)],
    )
    advance(session, [Progress(row.instance_id, target.name, target.says)])
    if target.name in BOOTS:
        begin_task(session, target.name, [row.id])
    elif target.name == "starting":
        _boot_as_deployed(session, row)
    return operation_id, row.id


def _exchange_image(session: Session, row: Any, image_id: str) -> None:
    if row.config.get("boot", "network") == "disk":
        raise NotOffered(INSTALL_NEEDS_OTHER, allowed=[one for one in ACTS if not _refusal(row, one)])
    session.execute(update(AllocationRow).where(AllocationRow.id == row.allocation_id).values(image_id=image_id))


def _check(row: Any, verb: str) -> None:
    refusal = _refusal(row, verb)
    if not refusal:
        return
    allowed = [one for one in ACTS if not _refusal(row, one)]
    raise (NotOffered if refusal == RESCUE_NEEDS_OTHER else WrongState)(refusal, state=row.state, allowed=allowed)


def _refusal(row: Any, verb: str) -> str:
    if not row.access:
        return NOT_OURS
    if row.held != "active" or row.leaving:
        return "It is not deployed, or on its way out of its cluster."
    if row.state in ACTING:
        return f"It is {row.state}; wait for the action that is under way."
    if row.state not in ACTS[verb].since:
        return f"An instance that is {row.state} cannot be asked to {verb.replace('-', ' ')}."
    if verb == "rescue" and row.config.get("boot", "network") == "disk":
        return RESCUE_NEEDS_OTHER
    return ""


def _boot_as_deployed(session: Session, row: Any) -> None:
    """
    The boot that deployed the machine speaks for it again: what it installed knows no other token.
    """
    boot_id = boots.reopen(session, row.id, row.allocation_id)
    if boot_id is not None:
        session.execute(update(NodeRow).where(NodeRow.id == row.id).values(boot_id=boot_id))
