"""
What a node has, as Ironic's inspection found it, and where it stands, as its operator has written on it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controlplane.providers.adapters.ironic.client import node_path
from controlplane.providers.adapters.ironic.config import InventoryConfig, PositionConfig, pointed
from controlplane.providers.adapters.ironic.life import is_held, refuse_foreign
from controlplane.providers.adapters.ironic.marks import Task
from controlplane.providers.adapters.ironic.nodes import Node, Nodes
from controlplane.providers.adapters.ironic.states import INSPECTING
from controlplane.providers.errors import NotFound, Refused, Unsupported
from controlplane.providers.machines import Inventory, Position

INVENTORY_SINCE = 81
FIRMWARE_SINCE = 86
MIB_IN_GIB = 1024
log = logging.getLogger(__name__)


class Inspections:
    """
    Inspections of the nodes of one Ironic.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def inspect(self, ref: str, token: str) -> None:
        """
        Ironic has begun to inspect, or has done so under this token before. Refused while a tenancy stands.
        """
        node = self._nodes.get(ref)
        refuse_foreign(node)
        node = self.settle(node)
        if is_held(node.marks):
            raise Refused(f"{node.ref} is held: Ironic inspects free nodes only", code="machine_held")
        if node.marks.inspected_token == token:
            return
        running = node.marks.task
        if running is not None and (running.kind, running.token) == ("inspect", token) and node.state in INSPECTING:
            return
        node = self._nodes.to_manageable(node)
        task = Task("inspect", token, since=node.inspected)
        node = self._nodes.remember(node, replace(node.marks, task=task))
        self._nodes.provision(node, "inspect")

    def settle(self, node: Node) -> Node:
        """
        The node after its inspection, if that has ended, with what was found written down.
        """
        task = node.marks.task
        if task is None or task.kind != "inspect" or node.state not in {"manageable", "available"} or node.inspected == task.since:
            return node
        found = self._read(node)
        return self._nodes.remember(node, replace(node.marks, task=None, inspected_token=task.token, inventory=found))

    def list_positions(self) -> tuple[Position, ...]:
        """
        The place of every node that has one written on it, by name. Raises Unsupported when the config does not say where to look.
        """
        config = self._nodes.config
        if config.positions is None:
            raise Unsupported("this provider's config has no positions", code="positions_unknown")
        found = [_position(node, config.positions, config.site) for node in self._nodes.list_all()]
        return tuple(sorted((one for one in found if one is not None), key=lambda one: one.ref))

    def _read(self, node: Node) -> Inventory:
        rest = self._nodes.rest
        told: Mapping[str, Any] = {}
        if rest.minor() >= INVENTORY_SINCE:
            try:
                told = rest.get(node_path(node.uuid, "inventory"))
            except NotFound:
                log.debug("inspection of a node left no inventory", extra={"node": node.uuid})
        firmware: dict[str, str] = {}
        if rest.minor() >= FIRMWARE_SINCE:
            listed = rest.get(node_path(node.uuid, "firmware")).get("firmware")
            firmware = _firmware(listed if isinstance(listed, list) else [])
        return fold_inventory(node.document, told, firmware, self._nodes.config.inventory)


def fold_inventory(
    document: Mapping[str, Any], told: Mapping[str, Any], firmware: dict[str, str], config: InventoryConfig
) -> Inventory:
    """
    The node's inventory; what the inspection names itself goes before what rules have written into `properties`.
    """
    found = _map(told.get("inventory"))
    # The agent's list is plugin data; inspection by Redfish puts its own into the inventory.
    listed = _map(told.get("plugin_data")).get("pci_devices") or found.get("pci_devices")
    model, gpus = _pci_gpus(listed, config.gpu_devices)
    properties = _map(document.get("properties"))
    memory_mib = _whole(_map(found.get("memory")).get("physical_mb")) or _whole(properties.get("memory_mb"))
    cpus = _whole(_map(found.get("cpu")).get("count")) or _whole(properties.get("cpus"))
    serial = _map(found.get("system_vendor")).get("serial_number") or pointed(document, config.serial) or ""
    return Inventory(
        gpu_model=model or str(pointed(document, config.gpu_model) or ""),
        gpus=gpus if gpus is not None else _whole(pointed(document, config.gpus)),
        memory_gib=round(memory_mib / MIB_IN_GIB),
        cpus=cpus,
        serial=str(serial),
        firmware=firmware,
        uuid=str(pointed(document, config.uuid) or "").lower(),
    )


def _pci_gpus(devices: Any, models: Mapping[str, str]) -> tuple[str, int | None]:
    """
    Model and number of the known GPUs among the PCI devices that the inspection lists; None where it lists none.
    """
    if not isinstance(devices, list) or not models:
        return "", None
    ids = [
        ":".join(str(_map(one).get(name, "")).lower().removeprefix("0x") for name in ("vendor_id", "product_id")) for one in devices
    ]
    known = {name.lower(): model for name, model in models.items()}
    counted = Counter(known[one] for one in ids if one in known)
    return (counted.most_common(1)[0][0] if counted else ""), sum(counted.values())


def _firmware(listed: list[Any]) -> dict[str, str]:
    named = [_map(one) for one in listed]
    return {
        str(one["component"]): str(one["current_version"]).strip()
        for one in named
        if one.get("component") and one.get("current_version")
    }


def _position(node: Node, config: PositionConfig, site: str) -> Position | None:
    said = {name: pointed(node.document, where) for name, where in config.model_dump().items()}
    gpus = _whole(said["gpus"])
    needed = ("region", "block", "leaf", "rack", "instance_type")
    if gpus == 0 or not all(said[name] for name in needed):
        log.warning("a node has no whole position", extra={"node": node.ref})
        return None
    region, block, leaf, rack, instance_type = (str(said[name]) for name in needed)
    domain = str(said["nvlink_domain"]) if said["nvlink_domain"] else None
    return Position(node.ref, site, region, block, leaf, rack, domain, instance_type, gpus)


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    """
    The number, as Ironic's properties hold it (a number or its text); 0 for none.
    """
    text = str(value).strip()
    return int(text) if text.isdecimal() else 0
