"""
Switching a machine off and believing it, and starting it from a seed of ours.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.nodes.states import Boot
from controlplane.nodes.steps.metal.sequence import POLL_S, Act, Machine
from controlplane.providers.errors import ProviderError

FIRST_CALL_S = 600.0
"""How long a machine may take from power-on to its first call, unless the provider's settings know better (`first_call_s`)."""
CUT_AGAIN_S = 60.0
"""A machine that is still on when its state has lasted so long is cut again: a controller may say yes and do nothing."""
CUT_POLL_S = 15.0
"""Between such cuts; controllers were seen to show the old power for 11 s."""
CUTS = {"dark": "cut", "dark-again": "cut-again", "still": "down"}
"""The act that cuts the power before each look at it."""
CALLED = frozenset({"fetched", "reporting"})
"""States of a boot whose machine has called and has not said all yet."""
REPORT_POLL_S = 15.0
"""Each report wakes the node; this is for reports that never come."""


def cut(machine: Machine) -> Outcome | None:
    """
    Power has been cut, without asking the operating system.
    """
    machine.hardware.power(machine.controller, on=False, force=True)
    return None


def dark(machine: Machine) -> Outcome | None:
    """
    The machine was seen without power; a controller that says nothing of it is asked again, and after a while told again.
    """
    if machine.hardware.observe(machine.controller).power == "off":
        return None
    if machine.node.state_for_s > CUT_AGAIN_S:
        return Wait("Waits until the power is off; it is cut again.", CUT_POLL_S, step=CUTS.get(machine.node.step))
    return Wait("Waits until the power is off.", POLL_S)


def seed(machine: Machine) -> Outcome | None:
    """
    The seed of the present boot is in the virtual drive.
    """
    boot = present_boot(machine)
    machine.hardware.insert_media(machine.controller, machine.tools.seed_url(boot.id))
    return None


def aim(machine: Machine) -> Outcome | None:
    """
    The next boot starts from what the provider's settings say (`boot`: network, media or disk), or from the disk where an image was
    installed.
    """
    wanted = machine.node.provider.config.get("boot", "network")
    machine.hardware.boot_from(machine.controller, "disk" if starts_from_image(machine) else wanted)
    return None


def light(machine: Machine) -> Outcome | None:
    """
    Power has been switched on.
    """
    machine.hardware.power(machine.controller, on=True)
    return None


def eject(machine: Machine) -> Outcome | None:
    """
    Nothing of ours is in the virtual drive any more.
    """
    machine.hardware.eject_media(machine.controller)
    return None


def present_boot(machine: Machine) -> Boot:
    """
    The boot that was begun with the present state.
    """
    boot = machine.node.boot
    assert boot is not None
    return boot


def starts_from_image(machine: Machine) -> bool:
    """
    Whether what the machine is to run is the image on its disk.
    """
    boot = machine.node.boot
    return boot is not None and boot.purpose == "deploy" and boot.image is not None


def report(*, code: str, again: bool, ready: Callable[[Machine, Boot], Outcome]) -> Callable[[Machine], Outcome]:
    """
    An act that waits for the machine's own report and then asks `ready`; `code` names the failure.

    A machine that never calls is cut off and started once more, for an override that was ignored looks like that; then it has failed. One
    that has called and is off by now is switched on as it is: its disk has what it has done, and its agent goes on with it.
    """

    def do(machine: Machine) -> Outcome:
        boot = present_boot(machine)
        if boot.state == "ready":
            return ready(machine, boot)
        if boot.state in {"failed", "ended"}:
            return Fail(code, "The machine reported that it did not come up as it should.", detail=boot.failure)
        patience_s = float(machine.node.provider.config.get("first_call_s", FIRST_CALL_S))
        rounds = 1 if again else 2
        if boot.state == "made" and boot.age_s > patience_s * rounds:
            if again:
                return Wait("The machine has not called; it is started once more.", 0.0, step="cut-again")
            how = "from its image" if starts_from_image(machine) else "twice"
            return Fail(f"{code}_silent", f"The machine was started {how} and never called.")
        if boot.purpose == "deploy" and boot.state in CALLED and _is_off(machine):
            return Wait(
                "It lost its power while it came up, and is switched on again.", 0.0, step="light" if again else "light-again"
            )
        return Wait("Waits for the machine's own report.", REPORT_POLL_S)

    return do


def _is_off(machine: Machine) -> bool:
    """
    Its controller says so; one that does not answer says nothing.
    """
    with suppress(ProviderError):
        return machine.hardware.observe(machine.controller).power == "off"
    return False


def boot_acts(
    code: str,
    ready: Callable[[Machine, Boot], Outcome],
    *,
    before: tuple[Act, ...] = (),
    opening: tuple[Act, ...] = (),
    closing: tuple[Act, ...] = (),
) -> tuple[Act, ...]:
    """
    From whatever the machine does now to its report; with a second round for a machine that never called.

    `before` comes once, when the machine is dark; `closing` right before each start, and `opening` before the seed of the second round.
    """
    first = (
        Act("cut", cut),
        Act("dark", dark),
        *before,
        Act("seed", seed),
        Act("aim", aim),
        *closing,
        Act("light", light),
        Act("report", report(code=code, again=True, ready=ready)),
    )
    second = (
        Act("cut-again", cut),
        Act("dark-again", dark),
        *(Act(f"{one.name}-again", one.do) for one in opening),
        Act("seed-again", seed),
        Act("aim-again", aim),
        *(Act(f"{one.name}-again", one.do) for one in closing),
        Act("light-again", light),
        Act("report-again", report(code=code, again=False, ready=ready)),
    )
    return first + second


def go_to(name: str) -> Callable[[Machine, Boot], Outcome]:
    """
    Once the report is good, the act of this name follows.
    """

    def ready(machine: Machine, boot: Boot) -> Outcome:
        del machine, boot
        return Wait("The machine has reported.", 0.0, step=name)

    return ready


def as_checks(found: Any) -> tuple[dict[str, str], ...]:
    """
    Checks of a report, as the rows keep them.
    """
    return tuple({"name": str(one["name"]), "result": str(one["result"]), "detail": str(one.get("detail", ""))} for one in found)
