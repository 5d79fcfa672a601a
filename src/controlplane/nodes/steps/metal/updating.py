"""
Bringing a machine's firmware to what the operator wants of its type, one component after the other.

A task that has ended, or vanished, proves nothing: only the version that the controller shows afterwards does. A controller that restarts
in the middle, forgets the task or loses our session is asked again until it answers; past the longest stay a person is asked for, and
power is never cut under a task that runs, not under one either whose beginning nobody lived to note, or that somebody else began.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import NodeFacts, NodeSnapshot, Update
from controlplane.nodes.steps.metal.accounts import is_unsettled, settle
from controlplane.nodes.steps.metal.power import cut, dark, light
from controlplane.nodes.steps.metal.sequence import Act, Machine, run, seconds
from controlplane.providers.errors import AuthFailed, ProviderError, Unsupported
from controlplane.providers.hardware import HardwareInventory, SupportsUpdates
from controlplane.providers.toolbox import Toolbox

CHECK = "firmware:"
"""How the findings of an inspection on firmware begin; the component follows."""
POLL_S = 5.0
READ_POLL_S = 15.0
"""Between looks at a version: each reads the whole inventory."""
PATIENCE_S = 120.0
"""How long parts of the inventory that do not answer are asked again before it is taken as it is."""
SETTLE_S = 300.0
"""How long a version may take to show after the task, before the machine is started for it."""
INSTALL_S = 1800.0
"""How long an image that is installed at the next start may take, unless the provider's settings know better (`firmware_install_s`)."""
MOST_TRIES = 2
"""How often an image is sent whose task left no trace."""


def update(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    Every component that the controller shows has a wanted version, and the node goes on to inspection; or it is put aside with the reason.
    """
    return settle(node, tools) if is_unsettled(node) else run(ACTS, node, tools)


def can_update(node: NodeSnapshot, blocking: Sequence[str]) -> bool:
    """
    Whether an update could make all these findings go away: there is an image for each, which was not installed before.
    """
    components = [one.removeprefix(CHECK) for one in blocking if one.startswith(CHECK)]
    images, done = node.expected.parts.images, node.update.installed
    return len(components) == len(blocking) and all(one in images and done.get(one) != images[one].version for one in components)


def let_finish(machine: Machine, waited_s: float) -> Wait | None:
    """
    A wait while the controller says that it installs an image, whoever sent it. A task that is under way for longer than an installation
    may take has been forgotten in that state, as some controllers do, and holds nobody up.
    """
    if waited_s > seconds(machine, "firmware_install_s", INSTALL_S) or not hasattr(machine.hardware, "find_update"):
        return None
    try:
        view = _door(machine).find_update(machine.controller)
    except AuthFailed:
        raise
    except ProviderError:
        if waited_s < PATIENCE_S:
            raise
        return None  # one that never tells of its tasks is updated and inspected without
    return None if view is None else Wait("Its controller still installs an image.", READ_POLL_S, detail=view.message)


def _cut(machine: Machine) -> Outcome | None:
    """
    Power has been cut, with nothing being installed.
    """
    return let_finish(machine, machine.node.state_for_s - machine.node.update.since_s) or cut(machine)


def _weigh(machine: Machine) -> Outcome:
    """
    The next component whose version is not wanted has been chosen; without one the node is inspected.
    """
    node = machine.node
    seen, images = machine.hardware.take_inventory(machine.controller), node.expected.parts.images
    unseen = sorted(set(images) - set(seen.firmware))
    if unseen and not seen.complete and node.state_for_s - node.update.since_s < PATIENCE_S:
        return Wait("Part of its firmware cannot be read yet.", POLL_S, detail="; ".join(seen.unread)[:2000])
    wrong = [one for one in sorted(images) if one in seen.firmware and not _is_wanted(node, one, seen)]
    if wrong:
        return Wait("Power is cut.", 0.0, step="cut", facts=_noted(machine, component=wrong[0], task="", tries=0, outcome=""))
    told = f" Not told by its controller, and left alone: {', '.join(unseen)}." if unseen else ""
    return Advance("inspecting", f"Its firmware is what is wanted.{told}")


def _send(machine: Machine) -> Outcome:
    """
    The controller has begun. One that shows the version already was told before, by whoever did not live to note it.
    """
    node = machine.node
    component = node.update.component
    image = node.expected.parts.images.get(component)
    seen = machine.hardware.take_inventory(machine.controller)
    if image is None or _is_wanted(node, component, seen):
        return _over(machine, seen)
    view = _door(machine).update_firmware(machine.controller, image.url, targets=image.targets)
    facts = _noted(machine, task=view.task, tries=node.update.tries + 1, outcome="" if view.task else "unknown")
    if view.state == "failed":
        return _failed(machine, view.message)
    return Wait(f"Its controller installs {component}.", POLL_S, step="follow" if view.task else "settle", facts=facts)


def _follow(machine: Machine) -> Outcome:
    """
    The task has ended or vanished; either way the version is read next. One that failed puts the machine aside.
    """
    update = machine.node.update
    view = _door(machine).observe_update(machine.controller, update.task)
    if view.state == "failed":
        return _failed(machine, view.message)
    if view.state == "running":
        so_far = "" if view.percent is None else f": {view.percent} %"
        return Wait(f"Its controller installs {update.component}{so_far}.", POLL_S, detail=view.message)
    words = f"Its controller has ended, or forgotten, the update of {update.component}."
    return Wait(words, 0.0, step="settle", facts=_noted(machine, outcome=view.state), detail=view.message)


def _settle(machine: Machine) -> Outcome | NodeFacts:
    """
    The version was seen; where it stays away, the machine is started for it.
    """
    return _read_back(machine, SETTLE_S) or _noted(machine)


def _shown(machine: Machine) -> Outcome:
    """
    The version was seen after a start. Where it stays away, an image whose task left no trace is sent once more, and else it has failed.
    """
    node = machine.node
    waiting = _read_back(machine, seconds(machine, "firmware_install_s", INSTALL_S))
    if waiting is not None:
        return waiting
    if node.update.outcome == "unknown" and node.update.tries < MOST_TRIES:
        return Wait("Its controller left no trace of the update; it is told once more.", 0.0, step="cut", facts=_noted(machine))
    words = f"{node.update.component} does not show the wanted version after its update."
    return Fail("firmware_not_installed", words, detail=f"wanted: {node.expected.parts.images[node.update.component].version}")


def _read_back(machine: Machine, patience_s: float) -> Outcome | None:
    """
    On to the next component where the version is the wanted one; a wait while it may still come; None when it has not come in time.
    """
    node = machine.node
    seen = machine.hardware.take_inventory(machine.controller)
    if node.update.component not in node.expected.parts.images or _is_wanted(node, node.update.component, seen):
        return _over(machine, seen)
    if node.state_for_s - node.update.since_s < patience_s:
        return Wait(f"Waits until {node.update.component} shows its new version.", READ_POLL_S)
    return None


def _over(machine: Machine, seen: HardwareInventory) -> Outcome:
    """
    This component is as wanted, or the operator no longer has an image for it.
    """
    component = machine.node.update.component
    installed = dict(machine.node.update.installed)
    if component in seen.firmware:
        installed[component] = seen.firmware[component]
    facts = _noted(machine, component="", task="", tries=0, outcome="", installed=installed)
    return Wait(f"{component} shows {seen.firmware.get(component, 'no version')}.", 0.0, step="weigh", facts=facts)


def _is_wanted(node: NodeSnapshot, component: str, seen: HardwareInventory) -> bool:
    wanted = node.expected.parts
    return seen.firmware.get(component) in wanted.firmware.get(component, (wanted.images[component].version,))


def _failed(machine: Machine, said: str) -> Outcome:
    return Fail("firmware_update_failed", f"Its controller could not install {machine.node.update.component}.", detail=said)


def _noted(machine: Machine, **changes: object) -> NodeFacts:
    """
    What is to be stored of the update; its present part begins now.
    """
    noted: Update = replace(machine.node.update, since_s=machine.node.state_for_s, **changes)  # type: ignore[arg-type]
    return NodeFacts(update=noted)


def _door(machine: Machine) -> SupportsUpdates:
    if not hasattr(machine.hardware, "update_firmware"):
        raise Unsupported("this kind of controller updates no firmware")
    return cast("SupportsUpdates", machine.hardware)


ACTS = (
    Act("weigh", _weigh),
    Act("cut", _cut),
    Act("dark", dark),
    Act("send", _send),
    Act("follow", _follow),
    Act("settle", _settle),
    Act("boot", light),
    Act("shown", _shown),
)
