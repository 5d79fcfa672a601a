"""
What a tenant does with a bare machine it holds. The machine stays on its tenant's network all the while, and its disks are left alone.
"""

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import NodeSnapshot
from controlplane.nodes.steps.metal.deploying import ACTS as DEPLOY
from controlplane.nodes.steps.metal.power import boot_acts, cut, dark, eject, go_to, light, present_boot, starts_from_image
from controlplane.nodes.steps.metal.sequence import POLL_S, Act, Machine, begin, run
from controlplane.providers.errors import Permanent
from controlplane.providers.toolbox import Toolbox

GRACEFUL_OFF_S = 300.0
"""How long an operating system may take to shut down before power is cut, unless the provider's settings know better
(`graceful_off_s`)."""


def restart(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine was off and was seen with power again. At the act `cut` the operating system is not asked first.
    """
    return run(RESTART, node, tools)


def stop(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine was seen without power: its operating system shut down, or power was cut when it had not in time.
    """
    return run(STOP, node, tools)


def start(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine was seen with power, started as its tenant had installed it; a rescue system that ran is gone.
    """
    return run(START, node, tools)


def reinstall(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine was started from a fresh seed of its tenant's and reported every stage good; else it is off and the reason is told.
    """
    return _or_off(run(DEPLOY, node, tools), node, tools)


def rescue(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The machine has reported from a rescue system that its tenant's keys open; else it is off and the reason is told.
    """
    return _or_off(run(RESCUE, node, tools), node, tools)


def _or_off(outcome: Outcome, node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    A machine that did not come up is switched off before that is said: nobody can log in to it, and it would try on and on.
    """
    if not isinstance(outcome, Fail):
        return outcome
    machine = begin(node, tools)
    cut(machine)
    waiting = dark(machine)
    return outcome if waiting is None else waiting


def _ask(machine: Machine) -> Outcome | None:
    if machine.hardware.observe(machine.controller).power == "off":
        return Wait("It is off.", 0.0, step="dark")
    try:
        machine.hardware.power(machine.controller, on=False)
    except Permanent as error:
        return Wait("Its controller cannot ask the operating system; power is cut.", 0.0, step="cut", detail=error.detail)
    return None


def _off(machine: Machine) -> Outcome | None:
    if machine.hardware.observe(machine.controller).power == "off":
        return Wait("Its operating system has shut down.", 0.0, step="dark")
    if machine.node.state_for_s > float(machine.node.provider.config.get("graceful_off_s", GRACEFUL_OFF_S)):
        return None
    return Wait("Waits until its operating system has shut down.", POLL_S)


def _stopped(machine: Machine) -> Outcome:
    eject(machine)
    return Advance("stopped", "Switched off.")


def _drive(machine: Machine) -> Outcome | None:
    """
    A machine without a disk starts from its seed each time; of any other the virtual drive is empty.
    """
    if not _is_diskless(machine):
        return eject(machine)
    machine.hardware.insert_media(machine.controller, machine.tools.seed_url(present_boot(machine).id))
    return None


def _source(machine: Machine) -> Outcome | None:
    """
    A machine without a disk starts from where it was deployed from, any other by what the provider's settings say (`restart_from`), from
    the image that was installed on it, or by its own boot order.
    """
    config = machine.node.provider.config
    source = config.get("boot", "network") if _is_diskless(machine) else config.get("restart_from")
    if source is None and starts_from_image(machine):
        source = "disk"
    if source is not None:
        machine.hardware.boot_from(machine.controller, source)
    return None


def _lit(machine: Machine) -> Outcome:
    power = machine.hardware.observe(machine.controller).power
    if power == "on":
        return Advance("active", "Switched on.")
    return Wait("Waits until the power is on.", POLL_S, step="light" if power == "off" else None)


def _rescued(machine: Machine) -> Outcome:
    eject(machine)
    return Advance("rescued", "The rescue system runs.")


def _is_diskless(machine: Machine) -> bool:
    return machine.node.provider.config.get("diskless") is True


LIGHT = (Act("drive", _drive), Act("source", _source), Act("light", light), Act("lit", _lit))
GO_DARK = (Act("ask", _ask), Act("off", _off), Act("cut", cut), Act("dark", dark))
RESTART = (*GO_DARK, *LIGHT)
STOP = (*GO_DARK, Act("eject", _stopped))
START = (Act("cut", cut), Act("dark", dark), *LIGHT)
RESCUE = (*boot_acts("rescue_failed", go_to("eject")), Act("eject", _rescued))
