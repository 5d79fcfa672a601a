"""
Switching power: only ways that the system allows, and nothing where it is so already. And restarting the controller itself.

Source: DMTF ComputerSystem and Manager schemas, their Reset actions.
"""

from __future__ import annotations

from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.client import Bmc
from controlplane.providers.adapters.redfish.links import RESET, action, allowed, manager, path_of, text
from controlplane.providers.adapters.redfish.quirks import Facts
from controlplane.providers.errors import Busy, Refused, Unsupported
from controlplane.providers.machines import Power

CHANGING_S = 5.0
ON = ("On", "ForceOn")
OFF = ("GracefulShutdown",)
CUT = ("ForceOff",)
MANAGER_RESET = "#Manager.Reset"
RESTART = ("GracefulRestart", "ForceRestart")


def power_of(system: Reply) -> Power:
    """
    What the system says of its power; `unknown` while it changes.
    """
    said = text(system.body, "PowerState")
    if said == "On":
        return "on"
    return "off" if said == "Off" else "unknown"


def switch(bmc: Bmc, system: Reply, facts: Facts, *, on: bool, force: bool) -> None:
    """
    The system was told to switch, or is or will be so by itself.

    Raises Busy while it changes the other way, Unsupported without such a way.
    """
    wanted: Power = "on" if on else "off"
    said = text(system.body, "PowerState")
    cut = force and not on
    if power_of(system) == wanted or (said == ("PoweringOn" if on else "PoweringOff") and not cut):
        return
    if said in {"PoweringOn", "PoweringOff"} and not cut:
        raise Busy(f"the machine is {said}", retry_in_s=CHANGING_S)
    target = action(system.body, RESET)
    if not target:
        raise Unsupported("the system cannot be switched")
    way = _way(bmc, system, RESET, ON if on else CUT if cut else OFF)
    reply = bmc.send(target, {"ResetType": way})
    problem = reply.problem()
    if isinstance(problem, Refused | Busy | Unsupported) and power_of(bmc.get(path_of(system))) == wanted:
        return  # it was on its way already, and says so by refusing
    if isinstance(problem, Busy) and on and facts.off_s:
        raise Busy(problem.detail, retry_in_s=facts.off_s)
    reply.checked()


def restart_manager(bmc: Bmc, system: Reply) -> None:
    """
    The machine's manager was told to restart. Raises Unsupported without the action, Unknown when it went down without an answer.
    """
    of = manager(bmc, system)
    target = action(of.body, MANAGER_RESET)
    if not target:
        raise Unsupported("the manager cannot be restarted", code="provider_no_manager_reset")
    bmc.post(target, {"ResetType": _way(bmc, of, MANAGER_RESET, RESTART)})


def _way(bmc: Bmc, of: Reply, name: str, ways: tuple[str, ...]) -> str:
    known = allowed(bmc, of.body, name, "ResetType")
    for way in ways:
        if known is None or way in known:
            return way
    raise Unsupported(f"it allows none of {', '.join(ways)}: only {', '.join(known or ())}", code="provider_no_such_reset")
