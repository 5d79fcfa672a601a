"""
Passwords and accounts of a machine's controller: a password of its own, changed so that no crash locks us out, and no account more than
inspection found.

The new password is stored before the controller is told (`prepared`), told and then proved by a login (`told`), and only then the
current one (`rotated`). Between the first and the last, either of the two may be the one that lets us in: whoever takes the node up next
finishes this first, whatever the node is about to do.
"""

import secrets
from itertools import pairwise
from typing import Any, cast

from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.nodes.states import NodeFacts, NodeSnapshot
from controlplane.nodes.steps.metal.sequence import Machine, begin, flag
from controlplane.providers.errors import AuthFailed, NotFound, Permanent, ProviderError, Unsupported
from controlplane.providers.hardware import SupportsAccounts
from controlplane.providers.toolbox import Toolbox

MOST_REFUSALS = 3
"""Rounds in which neither password let us in, each at most one try of both, before a person decides."""
PAUSE_S = 900.0
"""
Between two such rounds: longer than controllers count wrong passwords together, or keep an account locked.

Source: DMTF AccountService schema, AccountLockoutCounterResetAfter and AccountLockoutDuration; vendors' defaults are 30 to 600 s.
"""
LETTERS = "abcdefghijkmnpqrstuvwxyz"
CAPITALS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
DIGITS = "23456789"
MARKS = "-_."
LENGTH = 16
"""IPMI 1.5 knows no longer ones (IPMI 2.0 specification, "Set User Password"), and no controller asks for more."""
CHANGED = "Its controller has a new password."


def new_password() -> str:
    """
    A random password of about 90 bits that controllers take: every kind of character, a letter first, none twice in a row.
    """
    alphabet = LETTERS + CAPITALS + DIGITS + MARKS
    while True:
        made = secrets.choice(LETTERS + CAPITALS) + "".join(secrets.choice(alphabet) for _ in range(LENGTH - 1))
        kinds = all(any(one in kind for one in made) for kind in (LETTERS, CAPITALS, DIGITS, MARKS))
        if kinds and all(one != following for one, following in pairwise(made)):
            return made


def rotate(machine: Machine) -> Outcome | None:
    """
    A new password is stored for the controller, where one is due and can be; what is stored is told next. None where nothing is due.
    """
    node = machine.node
    if node.rotation.state != "due":
        return None
    if not flag(machine, "rotate_passwords", default=True):
        return _ends("off")
    if node.rotation.shared:
        return _ends("shared")
    if not hasattr(machine.hardware, "set_password"):
        return _ends("not_supported")
    sealed = machine.tools.seal_password(node.id, new_password())
    return Wait("Its controller gets a new password.", 0.0, facts=NodeFacts(rotation="prepared", sealed_next=sealed))


def renew(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The next part of a rotation that an operator asked for, or that was left half done, has been done.
    """
    if is_unsettled(node):
        return settle(node, tools)
    return rotate(begin(node, tools)) or Wait("", 0.0)


def is_unsettled(node: NodeSnapshot) -> bool:
    """
    Whether either of two passwords may be the one that lets us in.
    """
    return node.access is not None and node.access.sealed_next is not None


def settle(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The controller was told the next password, or has let us in with it. Where it lets us in with neither it is left alone for a while,
    and after a few rounds a person has to act: more wrong passwords would lock the account.
    """
    machine, fresh = begin(node, tools), _with_next(node, tools)
    try:
        if node.rotation.state == "told":
            machine.hardware.observe(fresh.controller)
            return Wait(CHANGED, 0.0, facts=NodeFacts(rotation="rotated"))
        return _tell(machine, fresh.controller.password)
    except AuthFailed as error:
        return _shut_out(node, error)


def _with_next(node: NodeSnapshot, tools: Toolbox) -> Machine:
    """
    The machine as it is reached with the next password.
    """
    machine, access = begin(node, tools), node.access
    assert access is not None
    fresh = tools.controller(node.id, url=access.url, system=access.system, username=access.username, sealed=access.sealed_next)
    return Machine(node, fresh, machine.hardware, tools)


def _tell(machine: Machine, password: str) -> Outcome:
    """
    The controller took the password; or it did not, and the present one was seen to let us in still: only then the next is forgotten.
    """
    try:
        cast("SupportsAccounts", machine.hardware).set_password(machine.controller, password)
    except (Permanent, NotFound) as error:
        machine.hardware.observe(machine.controller)
        return _ends("not_supported" if isinstance(error, Unsupported) else "refused", error.detail)
    return Wait("Its controller took a new password.", 0.0, facts=NodeFacts(rotation="told"))


def _shut_out(node: NodeSnapshot, error: ProviderError) -> Outcome:
    facts = NodeFacts(rotation="prepared", refused=True)
    if node.rotation.refusals + 1 >= MOST_REFUSALS:
        words = "Its controller lets us in with neither the old password nor the new one."
        return Fail("controller_refuses", words, detail=error.detail, facts=facts)
    return Wait("Its controller refuses our passwords; it is left alone for a while.", PAUSE_S, detail=error.detail, facts=facts)


def _ends(rotation: str, detail: str = "") -> Outcome:
    return Wait("The password of its controller stays.", 0.0, facts=NodeFacts(rotation=rotation), detail=detail)


def read_accounts(machine: Machine) -> list[str] | None:
    """
    Names of the accounts that can log in; None where the controller does not tell.
    """
    if not hasattr(machine.hardware, "list_accounts"):
        return None
    try:
        return sorted(cast("SupportsAccounts", machine.hardware).list_accounts(machine.controller))
    except Unsupported:
        return None


def check_accounts(machine: Machine) -> Outcome | None:
    """
    No account can log in that inspection had not found; else the wipe has failed, for whoever made it may have changed more.
    """
    baseline = machine.node.inventory.get("hardware", {}).get("accounts")
    if baseline is None:
        return None
    now = read_accounts(machine)
    more = sorted(set(now or ()) - set(baseline))
    if now is not None and not more:
        return None
    detail = f"not there at inspection: {', '.join(more)}"[:500] if more else "the controller no longer tells its accounts"
    return wipe_failed(machine, {"name": "baseline_accounts", "result": "failed", "detail": detail})


def wipe_failed(machine: Machine, check: dict[str, str]) -> Outcome:
    """
    The machine is put aside for this check, which stands in the record of its wipe.
    """
    node = machine.node
    reported = node.boot.checks if node.boot is not None else ()
    finished_at = node.boot.ready_at if node.boot is not None else None
    facts = NodeFacts(wipe_id=node.task_id, wipe_finished_at=finished_at, checks=(*reported, check))
    return Fail("wipe_failed", f"Not wiped, or not the same: {check['name']}.", facts=facts, detail=check["detail"])


def controller_checks(node: NodeSnapshot) -> tuple[dict[str, str], ...]:
    """
    What a wipe did with the controller, as checks of its record. A controller that could not do a thing has it as not measured.
    """
    restarted = node.restarted_for_s is not None and node.restarted_for_s <= node.state_for_s
    known = node.inventory.get("hardware", {}).get("accounts") is not None
    return (
        _check("controller_restarted", "passed" if restarted else "not_measured"),
        _check("controller_password", _ROTATED.get(node.rotation.state, "not_measured"), node.rotation.state),
        _check("baseline_accounts", "passed" if known else "not_measured"),
    )


_ROTATED = {"rotated": "passed", "refused": "failed"}


def _check(name: str, result: str, detail: Any = "") -> dict[str, str]:
    return {"name": name, "result": result, "detail": "" if result == "passed" else str(detail)}
