"""
The GPUs and CPUs of a machine, wherever its controller lists them.

Source: DMTF `Processor`, `Memory`, `PCIeDevice` and `EnvironmentMetrics`; recordings of NVIDIA, Dell and Lenovo controllers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.redfish.reading import Machine, Part, Tree
from controlplane.providers.adapters.redfish.values import (
    Json,
    absent,
    health_of,
    identity,
    items,
    natural,
    number,
    path_in,
    record,
    text,
    whole,
    worst,
)
from controlplane.providers.hardware import Gpu, Health

_GPU_TYPES = frozenset({"gpu", "accelerator"})
_OTHER_TYPES = frozenset({"cpu", "fpga", "dsp", "core", "thread", "oem", "partition"})
_GPU_NAME = re.compile(r"gpu|video", re.IGNORECASE)
_CPU_NAME = re.compile(r"cpu", re.IGNORECASE)
_GPU_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel", "0x1da3": "habana"}
_GPU_CLASSES = frozenset({"displaycontroller", "processingaccelerators"})
_MIB_PER_GIB = 1024
_CPUS_AT_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class Card:
    """
    One GPU, in all the places where the controller shows it.
    """

    views: tuple[Part, ...]
    """Its resources, the vendor's own first."""

    @property
    def slot(self) -> str:
        """
        The controller's id of it.
        """
        return self.views[0].name

    @property
    def health(self) -> Health:
        """
        The worst that any view says.
        """
        return worst(health_of(view.body) for view in self.views)


@dataclass(frozen=True, slots=True)
class Memories:
    """
    The memory modules of one GPU.
    """

    parts: tuple[Part, ...]
    """Those that could be read."""
    complete: bool
    """Whether these are all that it has."""


def list_cards(tree: Tree, machine: Machine) -> tuple[Card, ...]:
    """
    The GPUs in slot order, each once. A processor that does not tell what it is, by type or name, is noted as unread.

    Two resources are one GPU when they have one UUID; without UUIDs, when they have one serial number and stand in different
    collections: boards with several GPUs give all of them the serial number of the board.
    """
    cards: list[Card] = []
    for system in machine.systems:
        if "Processors" not in system.body:
            tree.note(f"{system.path}#Processors", "is not offered")
        found = [part for part in _processors(tree, system) if _is_gpu(tree, part) and not absent(part.body)]
        _join(cards, found)
    if not cards:
        _join(cards, _pcie_gpus(tree, machine))
    return tuple(sorted(cards, key=lambda card: (natural(card.slot), card.views[0].path)))


def read_gpu(tree: Tree, card: Card) -> Gpu:
    """
    What the card's views say together: the first that knows, and the worst health.
    """
    return Gpu(
        slot=card.slot,
        model=_first(card, "Model") or _model_of_device(tree, card),
        serial=_first(card, "SerialNumber"),
        memory_gib=_memory_gib(tree, card),
        firmware=_first(card, "FirmwareVersion"),
        health=card.health,
        power_limit_w=_power_limit_w(tree, card),
    )


def list_cpus(tree: Tree, machine: Machine) -> tuple[Part, ...]:
    """
    The processors of the host that run its operating system, empty sockets left out.
    """
    return tuple(part for part in _processors(tree, machine.host) if _is_cpu(part) and not absent(part.body))


def count_logical_cpus(tree: Tree, machine: Machine) -> int:
    """
    Logical processors: as summed up by the controller or, from complete answers only, by us; 0 when unknown.
    """
    summary = record(machine.host.body.get("ProcessorSummary"))
    counted = whole(summary.get("LogicalProcessorCount"))
    if not counted:
        threads = [whole(cpu.body.get("TotalThreads")) for cpu in list_cpus(tree, machine)]
        sockets = whole(summary.get("Count"))
        known = all(threads) and not (sockets and sockets > len(threads))
        counted = sum(one or 0 for one in threads) if known and not tree.is_partial(machine.host, "Processors") else 0
    return counted if counted <= _CPUS_AT_MOST else 0


def memories_of(tree: Tree, card: Card) -> Memories:
    """
    The memory modules on the GPU itself; those that cannot be read are noted.
    """
    found = {part.path: part for view in card.views for part in tree.parts(view, "Links", "Memory")}
    listed = [record(view.body.get("Links")).get("Memory", []) for view in card.views]
    complete = all(isinstance(links, list) and all(path_in(link) in found for link in links) for links in listed)
    return Memories(tuple(found.values()), complete)


def _processors(tree: Tree, system: Part) -> tuple[Part, ...]:
    return tree.members(system, "Processors")


def _is_gpu(tree: Tree, part: Part) -> bool:
    kind = text(part.body.get("ProcessorType")).lower()
    if kind in _GPU_TYPES:
        return True
    if kind in _OTHER_TYPES or _CPU_NAME.search(part.name):
        return False
    if _GPU_NAME.search(part.name):
        return True
    tree.note(part.path, "does not tell what kind of processor it is")
    return False


def _is_cpu(part: Part) -> bool:
    kind = text(part.body.get("ProcessorType")).lower()
    return kind == "cpu" or (not kind and bool(_CPU_NAME.search(part.name)))


def _join(cards: list[Card], found: list[Part]) -> None:
    known = len(cards)
    for part in found:
        for at, card in enumerate(cards):
            if any(_same(view, part, siblings=at >= known) for view in card.views):
                cards[at] = card if any(view.path == part.path for view in card.views) else Card((*card.views, part))
                break
        else:
            cards.append(Card((part,)))


def _same(one: Part, other: Part, *, siblings: bool) -> bool:
    if one.path == other.path:
        return True
    uuids = {identity(one.body.get("UUID")), identity(other.body.get("UUID"))}
    if "" not in uuids:
        return len(uuids) == 1
    serial = identity(one.body.get("SerialNumber"))
    return not siblings and bool(serial) and serial == identity(other.body.get("SerialNumber"))


def _pcie_gpus(tree: Tree, machine: Machine) -> list[Part]:
    devices: dict[str, Part] = {}
    for owner in (*machine.systems, *machine.chassis):
        offered = owner.body.get("PCIeDevices")
        listed = tree.parts(owner, "PCIeDevices") if isinstance(offered, list) else tree.members(owner, "PCIeDevices")
        devices |= {part.path: part for part in listed if not absent(part.body)}
    return [part for part in devices.values() if _may_be_gpu(part.body) and _has_gpu_function(tree, part)]


def _may_be_gpu(device: Json) -> bool:
    said = " ".join(text(device.get(key)) for key in ("Manufacturer", "Model", "Name")).lower()
    return not text(device.get("Manufacturer")) or any(vendor in said for vendor in (*_GPU_VENDORS.values(), "advanced micro"))


def _has_gpu_function(tree: Tree, device: Part) -> bool:
    offered = device.body.get("PCIeFunctions")
    functions = tree.members(device, "PCIeFunctions") if isinstance(offered, dict) else tree.parts(device, "Links", "PCIeFunctions")
    return any(
        text(function.body.get("DeviceClass")).lower() in _GPU_CLASSES
        and text(function.body.get("VendorId")).lower() in _GPU_VENDORS
        for function in functions
    )


def _first(card: Card, key: str) -> str:
    return next((found for view in card.views if (found := text(view.body.get(key)))), "")


def _model_of_device(tree: Tree, card: Card) -> str:
    for view in card.views:
        for device in tree.parts(view, "Links", "PCIeDevice"):
            maker = text(device.body.get("Manufacturer")).lower().partition(" ")[0]
            name = text(device.body.get("Name"))
            if model := text(device.body.get("Model")) or (name if maker and maker in name.lower() else ""):
                return model
    return ""


def _memory_gib(tree: Tree, card: Card) -> int:
    for view in card.views:
        if total := whole(record(view.body.get("MemorySummary")).get("TotalMemorySizeMiB")):
            return round(total / _MIB_PER_GIB)
    for view in card.views:
        integrated = [record(one) for one in items(view.body.get("ProcessorMemory"))]
        if total := _sum_mib([one for one in integrated if "cache" not in text(one.get("MemoryType")).lower()]):
            return round(total / _MIB_PER_GIB)
    memories = memories_of(tree, card)
    return round(_sum_mib([part.body for part in memories.parts]) / _MIB_PER_GIB) if memories.complete else 0


def _sum_mib(memories: list[Any]) -> int:
    sizes = [whole(one.get("CapacityMiB")) for one in memories]
    return sum(size or 0 for size in sizes) if all(sizes) else 0


def _power_limit_w(tree: Tree, card: Card) -> float | None:
    for view in card.views:
        metrics = tree.linked(view, "EnvironmentMetrics", optional=True)
        limit = record(record(metrics.body if metrics else None).get("PowerLimitWatts"))
        if (found := number(limit.get("SetPoint"))) is not None:
            return found
    return None
