"""
What a machine has, as its controller shows it out of band.

Source: DMTF `ComputerSystem`, `Storage`, `SimpleStorage`, `EthernetInterface`, `NetworkAdapter`, `SoftwareInventory`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Literal

from controlplane.providers.adapters.redfish.processors import count_logical_cpus, list_cards, read_gpu
from controlplane.providers.adapters.redfish.reading import ROOT, Machine, Part, Read, Tree, managers, open_machine
from controlplane.providers.adapters.redfish.values import (
    Json,
    absent,
    health_of,
    identity,
    items,
    mac_address,
    natural,
    number,
    path_in,
    record,
    text,
    whole,
    worst,
)
from controlplane.providers.hardware import Drive, Gpu, HardwareInventory, Health, Nic

Link = Literal["up", "down", "unknown"]
_LINKS: dict[str, Link] = {"linkup": "up", "up": "up", "linkdown": "down", "nolink": "down", "down": "down"}
_STORAGE_FUNCTIONS = frozenset({"fibrechannel", "fibrechanneloverethernet", "iscsi", "disabled"})
_DELL_FIRMWARE = re.compile(r"(Current|Installed|Previous|Available|Rollback)-[^_]*__(.+)")
_NOT_IN_FORCE = frozenset({"Previous", "Available", "Rollback"})
_MIB_PER_GIB = 1024
_GIB_AT_MOST = 1 << 24
_MBPS_PER_GBPS = 1000


def take_inventory(read: Read, system_path: str) -> HardwareInventory:
    """
    What the machine has, the boards of its accelerators included. What did not answer is named, and then nothing missing is proven.

    Raises what reading the system itself raises, and AuthFailed.
    """
    tree = Tree(read)
    machine = open_machine(tree, system_path)
    gpus = tuple(read_gpu(tree, card) for card in list_cards(tree, machine))
    cpus, memory_gib = count_logical_cpus(tree, machine), _memory_gib(tree, machine)
    nics, drives = _nics(tree, machine), _drives(tree, machine)
    firmware = _firmware(tree, machine, gpus)
    identities = _identities(tree, machine)
    unread = tuple(f"{what}: {why}" for what, why in tree.unread.items())
    return HardwareInventory(
        uuid=identity(machine.host.body.get("UUID")),
        vendor=identities["Manufacturer"],
        model=identities["Model"],
        serial=identities["SerialNumber"],
        cpus=cpus,
        memory_gib=memory_gib,
        gpus=gpus,
        nics=nics,
        drives=drives,
        firmware=firmware,
        complete=not unread,
        unread=unread,
    )


def list_drives(tree: Tree, machine: Machine) -> tuple[tuple[Part, Part], ...]:
    """
    The storage and the drive of each drive that is there, from the Storage resources; a drive under two of them once.
    """
    found: dict[str, tuple[Part, Part]] = {}
    for storage in tree.members(machine.host, "Storage"):
        listed = storage.body.get("Drives")
        if "Drives" not in storage.body:
            tree.note(f"{storage.path}#Drives", "is not offered")
        drives = tree.members(storage, "Drives") if isinstance(listed, dict) else tree.parts(storage, "Drives")
        for drive in drives:
            if not absent(drive.body):
                found.setdefault(_drive_key(drive), (storage, drive))
    return tuple(found.values())


def list_simple_drives(tree: Tree, machine: Machine) -> list[Drive]:
    """
    The drives of the SimpleStorage resources, which know no serial numbers: for a machine that shows no others.
    """
    found: dict[str, Drive] = {}
    for storage in tree.members(machine.host, "SimpleStorage"):
        for at, one in enumerate(items(storage.body.get("Devices"))):
            device = record(one)
            name = text(device.get("Name")) or f"device {at}"
            if absent(device) or re.search(r"backplane|enclosure", name, re.IGNORECASE):
                continue
            name = f"{storage.name}/{name}" if name in found else name
            size = whole(device.get("CapacityBytes")) or 0
            found[name] = Drive(name=name, model=text(device.get("Model")), size_bytes=size, health=health_of(device))
    return list(found.values())


def list_dimms(tree: Tree, machine: Machine) -> tuple[Part, ...]:
    """
    The memory modules of the host; empty sockets and the memory of GPUs are none.
    """
    return tuple(part for part in tree.members(machine.host, "Memory", levels=2) if not absent(part.body) and not _on_gpu(part))


def drive_health(drive: Json) -> Health:
    """
    What the drive's status says, or a warning when it is predicted to fail.
    """
    return worst([health_of(drive), "warning" if drive.get("FailurePredicted") is True else "ok"])


def _identities(tree: Tree, machine: Machine) -> dict[str, str]:
    root = tree.get(ROOT)
    own = (*tree.parts(machine.host, "Links", "Chassis"), *(part for part in machine.chassis if _holds(part, machine.host)))
    found = {}
    for key, of_root in (("Manufacturer", "Vendor"), ("Model", "Product"), ("SerialNumber", "")):
        said = [text(machine.host.body.get(key)), *(text(part.body.get(key)) for part in own)]
        if root is not None and of_root:
            said.append(text(root.body.get(of_root)))
        found[key] = next(filter(None, said), "")
    return found


def _holds(chassis: Part, system: Part) -> bool:
    return system.path in [path_in(link) for link in items(record(chassis.body.get("Links")).get("ComputerSystems"))]


def _memory_gib(tree: Tree, machine: Machine) -> int:
    summed = number(record(machine.host.body.get("MemorySummary")).get("TotalSystemMemoryGiB"))
    if summed is not None and 0 < summed <= _GIB_AT_MOST:
        return round(summed)
    sizes = [whole(dimm.body.get("CapacityMiB")) for dimm in list_dimms(tree, machine)]
    if tree.is_partial(machine.host, "Memory") or not all(sizes):
        return 0
    return round(sum(size or 0 for size in sizes) / _MIB_PER_GIB)


def _on_gpu(memory: Part) -> bool:
    owners = [path_in(link) for link in items(record(memory.body.get("Links")).get("Processors"))]
    return text(memory.body.get("MemoryDeviceType")).upper().startswith("HBM") or any(
        "GPU" in owner.rsplit("/", 1)[-1] for owner in owners
    )


def _nics(tree: Tree, machine: Machine) -> tuple[Nic, ...]:
    found: dict[str, Nic] = {}
    for system in (machine.host, *machine.boards):
        for port in tree.members(system, "EthernetInterfaces"):
            if not _is_virtual(port.body):
                _add_nic(found, port, port.body)
    for adapter in _adapters(tree, machine):
        _add_adapter(tree, found, adapter)
    return tuple(sorted(found.values(), key=lambda nic: (natural(nic.name), nic.mac)))


def _is_virtual(interface: Json) -> bool:
    # The host's end of the cable inside the box that leads to its own controller is no network port of the machine.
    return "HostInterface" in record(interface.get("Links")) or text(interface.get("EthernetInterfaceType")).lower() == "virtual"


def _adapters(tree: Tree, machine: Machine) -> tuple[Part, ...]:
    found: dict[str, Part] = {}
    for interface in tree.members(machine.host, "NetworkInterfaces"):
        found |= {part.path: part for part in tree.parts(interface, "Links", "NetworkAdapter")}
    for chassis in machine.chassis:
        found |= {part.path: part for part in tree.members(chassis, "NetworkAdapters")}
    return tuple(found.values())


def _add_adapter(tree: Tree, found: dict[str, Nic], adapter: Part) -> None:
    ports = (*tree.members(adapter, "Ports"), *tree.members(adapter, "NetworkPorts"))
    used: set[str] = set()
    for function in tree.members(adapter, "NetworkDeviceFunctions"):
        ethernet = record(function.body.get("Ethernet"))
        mac = _mac(ethernet)
        if not mac and text(function.body.get("NetDevFuncType")).lower() in _STORAGE_FUNCTIONS:
            continue
        port = next((one for one in ports if mac and mac in _addresses(one.body)), None) or _assigned(tree, function)
        used |= {port.path} if port else set()
        _add_nic(found, function, ethernet, port.body if port else {})
    for port in ports:
        macs = _addresses(port.body)
        if port.path not in used and not any(nic.mac in macs for nic in found.values() if nic.mac):
            _add_nic(found, port, {"MACAddress": next(iter(macs), "")}, port.body)


def _assigned(tree: Tree, function: Part) -> Part | None:
    for keys in (("Links", "PhysicalNetworkPortAssignment"), ("Links", "PhysicalPortAssignment"), ("PhysicalPortAssignment",)):
        value: object = function.body
        for key in keys:
            value = record(value).get(key)
        if value is not None and (port := tree.get(value, of=f"{function.path}#{keys[-1]}", optional=True)):
            return port
    return None


def _addresses(port: Json) -> list[str]:
    listed = [*items(port.get("AssociatedNetworkAddresses")), *items(record(port.get("Ethernet")).get("AssociatedMACAddresses"))]
    return [mac for one in listed if (mac := mac_address(one))]


def _mac(interface: Json) -> str:
    return mac_address(interface.get("MACAddress")) or mac_address(interface.get("PermanentMACAddress"))


def _add_nic(found: dict[str, Nic], part: Part, interface: Json, port: Json | None = None) -> None:
    mac = _mac(interface)
    said = [interface, port or {}]
    links = [_LINKS.get(text(one.get("LinkStatus")).lower(), "unknown") for one in said]
    link: Link = next((one for one in links if one != "unknown"), "unknown")
    speeds = [number(one.get("CurrentSpeedGbps")) for one in said]
    speeds += [_gbps(one.get(key)) for one in said for key in ("SpeedMbps", "CurrentLinkSpeedMbps")]
    speed = next((one for one in speeds if one), None)
    nic = Nic(name=part.name, mac=mac, link=link, speed_gbps=speed if speed and speed > 0 else None)
    known = found.get(mac or part.path)
    if known is not None:
        link = known.link if known.link != "unknown" else nic.link
        nic = replace(known, link=link, speed_gbps=known.speed_gbps or nic.speed_gbps)
    found[mac or part.path] = nic


def _gbps(mbps: object) -> float | None:
    found = number(mbps)
    return found / _MBPS_PER_GBPS if found else None


def _drives(tree: Tree, machine: Machine) -> tuple[Drive, ...]:
    parts = list_drives(tree, machine)
    twice = {name for name, times in Counter(drive.name for _, drive in parts).items() if times > 1}
    drives = [
        Drive(
            name=f"{storage.name}/{drive.name}" if drive.name in twice else drive.name,
            model=text(drive.body.get("Model")) or text(drive.body.get("PartNumber")),
            serial=text(drive.body.get("SerialNumber")),
            size_bytes=whole(drive.body.get("CapacityBytes")) or 0,
            health=drive_health(drive.body),
        )
        for storage, drive in parts
    ]
    return tuple(sorted(drives or list_simple_drives(tree, machine), key=lambda drive: natural(drive.name)))


def _drive_key(drive: Part) -> str:
    serial = identity(drive.body.get("SerialNumber"))
    return f"{text(drive.body.get('Model'))}/{serial}" if serial else drive.path


def _firmware(tree: Tree, machine: Machine, gpus: tuple[Gpu, ...]) -> dict[str, str]:
    # Dell puts the version into the id, and lists what was in force before and what could be next beside what is.
    found = {gpu.slot: gpu.firmware for gpu in gpus if gpu.firmware}
    root = tree.get(ROOT)
    service = tree.linked(root, "UpdateService") if root else None
    for part in tree.members(service, "FirmwareInventory") if service else ():
        name = part.name
        if dell := _DELL_FIRMWARE.fullmatch(name):
            name = dell[2]
            if dell[1] in _NOT_IN_FORCE or (dell[1] == "Current" and name in found):
                continue
        found[name] = text(part.body.get("Version"))
    own = managers(tree, machine)
    for name, version in (
        ("BIOS", machine.host.body.get("BiosVersion")),
        ("BMC", own[0].body.get("FirmwareVersion") if own else None),
    ):
        if text(version):
            found.setdefault(name, text(version))
    return dict(sorted(((name, version) for name, version in found.items() if version), key=lambda entry: natural(entry[0])))
