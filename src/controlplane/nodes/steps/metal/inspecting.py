"""
What a bare machine has, read from its controller.
"""

from dataclasses import asdict, replace
from typing import Any

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.states import NodeFacts, NodeSnapshot, Update
from controlplane.nodes.steps.comparing import find_differences, summarize
from controlplane.nodes.steps.metal.accounts import read_accounts, rotate
from controlplane.nodes.steps.metal.sequence import Act, Machine, begin, flag, run
from controlplane.nodes.steps.metal.updating import can_update, let_finish
from controlplane.providers.hardware import HardwareInventory
from controlplane.providers.toolbox import Toolbox

RETRY_S = 10.0
PATIENCE_S = 120.0
"""How long parts that do not answer are asked again, unless the provider's settings know better (`inventory_patience_s`)."""


def meet(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The node goes on to inspection once its controller answers.
    """
    machine = begin(node, tools)
    machine.hardware.observe(machine.controller)
    return Advance("inspecting")


def inspect(node: NodeSnapshot, tools: Toolbox) -> Outcome:
    """
    The controller has a password of its own where one was due, and the inventory has been read out of band: differences from what was
    bought are findings. A part that does not answer for a while is one that this controller does not have: it is named as a finding, and
    is never compared. Where only firmware is not as wanted and the operator's policy says so (`update_firmware`), it is updated.
    """
    return run(ACTS, node, tools)


def _read(machine: Machine) -> Outcome | NodeFacts:
    node = machine.node
    seen = machine.hardware.take_inventory(machine.controller)
    patience_s = float(node.provider.config.get("inventory_patience_s", PATIENCE_S))
    if not seen.complete and node.state_for_s < patience_s:
        return Wait("Part of its inventory cannot be read yet.", RETRY_S, detail="; ".join(seen.unread)[:2000])
    models = node.provider.config.get("gpu_models", {})
    found = summarize(seen, models)
    findings = find_differences(node.expected, seen, models)
    findings += [{"check": "inventory", "severity": "info", "message": f"not read: {part}"} for part in seen.unread]
    facts = NodeFacts(inventory={**asdict(found), "findings": findings, "hardware": as_stored(seen)})
    blocking = [one["check"] for one in findings if one["severity"] == "blocking"]
    if not blocking:
        return facts
    if flag(machine, "update_firmware", default=False) and can_update(node, blocking):
        begun = replace(facts, update=Update(installed=node.update.installed))
        return Advance("updating", "Its firmware is not what is wanted.", facts=begun)
    return Fail("inventory_mismatch", "; ".join(one["message"] for one in findings), facts=facts)


def _list(machine: Machine) -> Outcome:
    """
    The accounts of the controller join the baseline.
    """
    inventory = machine.node.inventory
    hardware = {**inventory["hardware"], "accounts": read_accounts(machine)}
    return Advance("qualifying", facts=NodeFacts(inventory={**inventory, "hardware": hardware}))


def as_stored(seen: HardwareInventory) -> dict[str, Any]:
    """
    What later comparisons need, as plain values.
    """
    return {
        "uuid": seen.uuid,
        "vendor": seen.vendor,
        "model": seen.model,
        "gpus": [{"slot": one.slot, "model": one.model, "serial": one.serial} for one in seen.gpus],
        "nics": [{"name": one.name, "mac": one.mac} for one in seen.nics],
        "drives": [{"name": one.name, "serial": one.serial, "size_bytes": one.size_bytes} for one in seen.drives],
        "firmware": seen.firmware,
        "unread": sorted(part.partition(":")[0] for part in seen.unread),
    }


def _rotate(machine: Machine) -> Outcome | NodeFacts | None:
    """
    The controller has its password, and installs nothing while it is read and before anybody cuts power.
    """
    return let_finish(machine, machine.node.state_for_s) or rotate(machine)


ACTS = (Act("rotate", _rotate), Act("read", _read), Act("accounts", _list))
