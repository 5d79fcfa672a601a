"""
Who may use the controller, and whether the host itself may.

Source: DMTF AccountService, ManagerAccount and HostInterface schemas; vendors' switches as named in `quirks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.boot import fill
from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.links import inside, link, manager, managers, members, path_of, service, text
from controlplane.providers.adapters.redfish.quirks import Facts, Switch
from controlplane.providers.errors import AuthFailed, NotFound, Refused, Unknown, Unsupported

SHORTEST_PASSWORD = 8


def names(bmc: Bmc) -> tuple[str, ...]:
    """
    Names of the accounts that can log in, sorted.
    """
    found = {text(one.body, "UserName") for one in _accounts(bmc) if inside(one.body, "Enabled") is not False}
    return tuple(sorted(found - {""}))


def set_password(bmc: Bmc, password: str) -> None:
    """
    Our account has the password, and the client uses it. Raises Refused for one that the controller does not take.

    What the controller answers is not the proof: a login is. A repeat after a lost answer finds that it was set already.
    """
    if len(password) < SHORTEST_PASSWORD:
        raise Refused(f"a password has at least {SHORTEST_PASSWORD} characters", code="provider_password_too_short")
    if not bmc.username:
        raise Unsupported("we use no account on this controller", code="provider_no_account")
    bmc.hide(password)
    try:
        ours = next((one for one in _accounts(bmc) if text(one.body, "UserName") == bmc.username), None)
    except AuthFailed:
        if bmc.lets_in(password):
            return
        raise
    if ours is None:
        raise NotFound(f"the controller lists no account {bmc.username!r}")
    try:
        reply = bmc.patch(path_of(ours), {"Password": password}, etag=ours.etag)
    except Unknown:
        if bmc.lets_in(password):
            return
        raise
    problem = reply.problem()
    if problem is not None and not isinstance(problem, Unknown):
        raise problem
    if not bmc.lets_in(password):
        raise problem or Refused("the controller said yes to a password and does not let it in", code="provider_password_not_taken")


def lock(bmc: Bmc, system: Reply, facts: Facts, *, locked: bool) -> None:
    """
    All switches stand so, read back. Raises Unsupported where there are none.
    """
    switches = list(_switches(bmc, system, facts))
    if not switches:
        raise Unsupported("the controller has no switch that keeps its host away", code="provider_no_lock")
    for path, wanted in [(path, switch.locked if locked else switch.unlocked) for path, switch in switches]:
        now = bmc.get(path)
        if _holds(now.body, wanted):
            continue
        bmc.patch(path, wanted, etag=now.etag).checked()
        if not _holds(bmc.get(path).body, wanted):
            raise Unknown(f"{path} was accepted and does not show it")


def _accounts(bmc: Bmc) -> Iterator[Reply]:
    answer = bmc.look(service(bmc, "AccountService"))
    missing = isinstance(answer.problem(), NotFound)  # sushy-tools has no such service at all
    path = "" if missing else link(answer.checked().body, "Accounts")
    if not path:
        raise Unsupported("the controller shows no accounts", code="provider_no_accounts")
    for member in members(bmc, path):
        yield bmc.get(member)


def _switches(bmc: Bmc, system: Reply, facts: Facts) -> Iterator[tuple[str, Switch]]:
    """
    The vendor's own switches, which are more than the standard's; else every host interface of the machine's managers.
    """
    if facts.lock:
        of = manager(bmc, system)
        yield from ((fill(switch.path, of), switch) for switch in facts.lock)
        return
    for path in managers(bmc, system):
        collection = link(bmc.get(path).body, "HostInterfaces")
        for member in members(bmc, collection) if collection else ():
            yield member, Switch(member, {"InterfaceEnabled": False}, {"InterfaceEnabled": True})


def _holds(body: Any, wanted: Mapping[str, Any]) -> bool:
    return all(
        _holds(inside(body, name), value) if isinstance(value, Mapping) else inside(body, name) == value
        for name, value in wanted.items()
    )
