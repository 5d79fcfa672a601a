"""
The ways into a machine's controller: the host's own, locked while a tenant holds it, and sessions left open, ended by a restart.
"""

from typing import cast

from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.nodes.states import NodeFacts
from controlplane.nodes.steps.metal.sequence import POLL_S, Act, Machine, flag, seconds
from controlplane.providers.errors import NotFound, Permanent, Transient, Unknown, Unsupported
from controlplane.providers.hardware import SupportsAccounts, SupportsReset

UNLOCK_PATIENCE_S = 600.0
"""How long a release waits for a controller that does not show itself unlocked: the machine is dark and off every network by then."""
SETTLE_S = 30.0
"""How long a restarting controller is left alone first, unless the provider's settings know better (`restart_settle_s`)."""
LIMIT_S = 900.0
"""How long it may take to answer again, unless they do (`restart_limit_s`)."""
TOUCHED = frozenset({"locking", "locked", "unsure"})


def intend(machine: Machine) -> NodeFacts:
    """
    That the way is going to be locked is on record, so that a release after a crash opens it again.
    """
    del machine
    return NodeFacts(door="locking")


def lock(machine: Machine) -> Outcome | NodeFacts:
    """
    The host has no way to its controller, read back. Where there is no such switch operators are shown that, or, where the provider's
    settings say `require_lock`, the machine is not given out.
    """
    required = flag(machine, "require_lock", default=False)
    try:
        _turn(machine, locked=True)
    except Unsupported as error:
        facts = NodeFacts(door="not_supported")
        if required:
            return Fail(
                "controller_not_locked", "The machine cannot be closed off from its controller.", facts=facts, detail=error.detail
            )
        return facts
    return NodeFacts(door="locked")


def unlock(machine: Machine) -> Outcome | NodeFacts | None:
    """
    The way that we had locked is open, read back; one that we never touched stays as it is. A controller that does not show it for long,
    or refuses, holds nothing up.
    """
    node = machine.node
    if node.door not in TOUCHED:
        return None
    try:
        _turn(machine, locked=False)
    except Unsupported:
        return NodeFacts(door="not_supported")
    except Permanent:
        return NodeFacts(door="unsure")
    except Transient:
        if node.state_for_s < UNLOCK_PATIENCE_S:
            raise
        return NodeFacts(door="unsure")
    return NodeFacts(door="unlocked")


def _turn(machine: Machine, *, locked: bool) -> None:
    if not hasattr(machine.hardware, "lock"):
        raise Unsupported("this kind of controller knows no lock")
    cast("SupportsAccounts", machine.hardware).lock(machine.controller, locked=locked)


def restart(machine: Machine) -> Outcome | None:
    """
    The controller has been told to restart and is left alone for a moment. One that cannot, or that said nothing to it, is only looked at.
    """
    if not flag(machine, "restart_controllers", default=True) or not hasattr(machine.hardware, "reset_controller"):
        return None
    try:
        cast("SupportsReset", machine.hardware).reset_controller(machine.controller)
    except Unsupported:
        return None
    except Unknown as error:
        # It may restart: it is waited for as if it did, and its wipe does not claim that it did.
        return Wait(
            "Its controller may be restarting.", seconds(machine, "restart_settle_s", SETTLE_S), "answering", detail=error.detail
        )
    settle_s = seconds(machine, "restart_settle_s", SETTLE_S)
    return Wait("Its controller restarts.", settle_s, step="answering", facts=NodeFacts(restarted=True))


def answering(machine: Machine) -> Outcome | None:
    """
    The controller answers, and the machine is still dark. One that stays silent too long has failed.
    """
    limit_s = seconds(machine, "restart_limit_s", LIMIT_S)
    since_s = machine.node.restarted_for_s
    try:
        power = machine.hardware.observe(machine.controller).power
    except (Transient, NotFound) as error:
        if since_s is None or since_s < limit_s:
            raise
        return Fail("controller_silent", "Its controller did not come back after its restart.", detail=error.detail)
    if power == "off":
        return None
    machine.hardware.power(machine.controller, on=False, force=True)
    return Wait("Waits until the power is off.", POLL_S)


CLOSING = (Act("closing", intend), Act("lock", lock))
OPENING = (Act("unlock", unlock),)
