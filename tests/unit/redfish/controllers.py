"""
Controllers for tests: trees of resources that are read as a client would, recorded from real machines or made up.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tarfile
from typing import Any

from controlplane.providers.errors import NotFound, ProviderError, Refused
from tests.kits import KITS, unusable

Resources = dict[str, Any]
V1 = "/redfish/v1"
TREES = KITS / "redfish" / "trees"
OK = {"State": "Enabled", "Health": "OK"}
HOST = f"{V1}/Systems/System_0"
BOARD = f"{V1}/Systems/HGX_Baseboard_0"
CHASSIS = f"{V1}/Chassis/Main"
BMC = f"{V1}/Managers/BMC_0"


class Controller:
    """
    Serves resources by path; `expand` says what becomes of `$expand`: `yes`, `ignored`, or `refused`.
    """

    def __init__(self, resources: Resources, *, expand: str = "ignored") -> None:
        self.resources = resources
        self.expand = expand
        self.faults: dict[str, ProviderError] = {}
        self.asked: list[str] = []

    def __call__(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        plain, _, query = path.partition("?")
        if plain in self.faults:
            raise self.faults[plain]
        if path in self.resources or "$expand" not in query:
            return self._resource(path)
        if self.expand == "refused":
            raise Refused("query parameters are not supported")
        levels = int(found[1]) if (found := re.search(r"levels=(\d)", query)) else 1
        return self._expanded(self._resource(plain), levels) if self.expand == "yes" else self._resource(plain)

    def _resource(self, path: str) -> dict[str, Any]:
        if path not in self.resources:
            raise NotFound(path)
        found: dict[str, Any] = self.resources[path]
        return found

    def _expanded(self, body: dict[str, Any], levels: int) -> dict[str, Any]:
        if levels == 0:
            return body
        inside = {key: self._in_place(value, levels) for key, value in body.items() if key not in {"Links", "Actions"}}
        return {**body, **inside}

    def _in_place(self, value: Any, levels: int) -> Any:
        if isinstance(value, list):
            return [self._in_place(one, levels) for one in value]
        path = value.get("@odata.id") if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(path, str) or path not in self.resources:
            return value
        return self._expanded(self._resource(path), levels - 1)


@functools.cache
def _archive(name: str) -> dict[str, bytes]:
    path = TREES / f"{name}.tar.gz"
    if not path.exists():
        unusable("recorded controller", f"{path.name} is not there")
    with tarfile.open(path) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]


@functools.cache
def _parsed(name: str) -> Resources:
    suffix = "/index.json"
    found = {}
    for member, content in _archive(name).items():
        path = "/" + member.removeprefix("./").removesuffix(suffix)
        if member.endswith(suffix) and not re.search(r"/(JsonSchemas|Schemas|Registries|schema|metadata)\b", path):
            found[path] = json.loads(content)
    return found


def recorded(name: str, *, expand: str = "ignored") -> Controller:
    """
    The recorded machine; the test is skipped where the recording is absent.
    """
    return Controller(dict(_parsed(name)), expand=expand)


def recorded_answer(name: str, path: str) -> dict[str, Any]:
    """
    The recorded answer to a path with a query, kept under the hash of both.
    """
    key = f"hashedresponses/{hashlib.md5(path.encode(), usedforsecurity=False).hexdigest()}.json"
    found: dict[str, Any] = json.loads(next(content for member, content in _archive(name).items() if member.endswith(key)))
    return found


def collection(resources: Resources, path: str, *members: str) -> None:
    """
    The collection is there, with links to the members.
    """
    links = [{"@odata.id": member} for member in members]
    resources[path] = {"@odata.id": path, "@odata.type": "#C.C", "Members": links, "Members@odata.count": len(links)}


def resource(resources: Resources, path: str, **body: Any) -> str:
    """
    The resource is there; its path.
    """
    resources[path] = {"@odata.id": path, "@odata.type": "#R.v1.R", "Id": path.rsplit("/", 1)[-1], **body}
    return path


def link(path: str) -> dict[str, str]:
    """
    A link.
    """
    return {"@odata.id": path}


def hgx() -> Resources:
    """
    A healthy server with two GPUs on an HGX board, of 3 NVLink ports each, written by hand.
    """
    tree: Resources = {}
    expand = {"ExpandAll": True, "Levels": True, "Links": True, "MaxLevels": 6, "NoLinks": True}
    rooms = {key: link(f"{V1}/{key}") for key in ("Systems", "Chassis", "Managers", "UpdateService", "Fabrics")}
    resource(tree, V1, Vendor="Vendor", Product="Product", ProtocolFeaturesSupported={"ExpandQuery": expand}, **rooms)
    collection(tree, f"{V1}/Systems", HOST, BOARD)
    _host(tree)
    resource(
        tree,
        BOARD,
        Manufacturer="NVIDIA",
        Status=OK,
        Processors=link(f"{BOARD}/Processors"),
        LogServices=link(f"{BOARD}/LogServices"),
        Links={"ManagedBy": [link(BMC)]},
    )
    collection(tree, f"{BOARD}/Processors", *(_gpu(tree, number) for number in (1, 2)))
    _chassis(tree)
    _firmware(tree)
    switch = resource(tree, f"{V1}/Fabrics/NVLink/Switches/NVSwitch_0", Status=OK)
    collection(tree, f"{V1}/Fabrics", resource(tree, f"{V1}/Fabrics/NVLink", Switches=link(f"{V1}/Fabrics/NVLink/Switches")))
    collection(tree, f"{V1}/Fabrics/NVLink/Switches", switch)
    collection(tree, f"{V1}/Managers", resource(tree, BMC, FirmwareVersion="24.05", DateTime="2026-11-28T12:00:00Z"))
    log(tree, HOST, "SEL", [("1", "2026-11-28T10:00:00Z", "OK", "started"), ("2", "2026-11-28T11:00:00Z", "Critical", "PSU lost")])
    log(tree, BOARD, "EventLog", [("7", "2026-11-28T10:30:00Z", "Warning", "GPU hot")])
    return tree


def _host(tree: Resources) -> None:
    resource(
        tree,
        HOST,
        Manufacturer="Maker ",
        Model="Server 9",
        SerialNumber="S1 ",
        UUID="0B6C1A6E-0000-4000-8000-00000000ABCD",
        BiosVersion="1.0",
        PowerState="On",
        Status={**OK, "HealthRollup": "OK"},
        Actions={"#ComputerSystem.Reset": {"target": f"{HOST}/Actions/ComputerSystem.Reset"}},
        MemorySummary={"TotalSystemMemoryGiB": 64},
        Links={"Chassis": [link(CHASSIS)], "ManagedBy": [link(BMC)]},
        **{key: link(f"{HOST}/{key}") for key in ("Processors", "Memory", "Storage", "EthernetInterfaces", "LogServices")},
    )
    cpu = resource(tree, f"{HOST}/Processors/CPU_0", ProcessorType="CPU", TotalThreads=128, Status=OK)
    collection(tree, f"{HOST}/Processors", cpu)
    metrics = resource(tree, f"{HOST}/Memory/D1/MemoryMetrics", LifeTime=_ecc())
    dimms = [
        resource(tree, f"{HOST}/Memory/D1", CapacityMiB=32768, Status=OK, Metrics=link(metrics)),
        resource(tree, f"{HOST}/Memory/D2", CapacityMiB=32768, Status=OK),
        resource(tree, f"{HOST}/Memory/D3", CapacityMiB=None, Status={"State": "Absent", "Health": None}),
    ]
    collection(tree, f"{HOST}/Memory", *dimms)
    disk = f"{HOST}/Storage/1/Drives/0"
    resource(tree, disk, Model="Disk ", SerialNumber="D-1", CapacityBytes=10**12, Status=OK, FailurePredicted=False)
    collection(tree, f"{HOST}/Storage", resource(tree, f"{HOST}/Storage/1", Drives=[link(disk)]))
    nic = f"{HOST}/EthernetInterfaces/eth0"
    resource(tree, nic, MACAddress="AA-BB-CC-00-00-01", LinkStatus="LinkUp", SpeedMbps=25000, Status=OK)
    collection(tree, f"{HOST}/EthernetInterfaces", nic)


def _ecc() -> dict[str, int]:
    return {"CorrectableECCErrorCount": 0, "UncorrectableECCErrorCount": 0}


def _gpu(tree: Resources, number: int) -> str:
    path, memory = f"{BOARD}/Processors/GPU_SXM_{number}", f"{BOARD}/Memory/GPU_SXM_{number}_DRAM_0"
    resource(tree, f"{path}/EnvironmentMetrics", PowerLimitWatts={"SetPoint": 700, "AllowableMax": 700})
    vendor = {"Nvidia": {"SRAMECCErrorThresholdExceeded": False}}
    resource(tree, f"{path}/ProcessorMetrics", CacheMetricsTotal={"LifeTime": _ecc()}, Oem=vendor)
    rows = {"Nvidia": {"RowRemapping": {"NoAvailabilityBankCount": 0}}}
    resource(tree, f"{memory}/MemoryMetrics", LifeTime=_ecc(), Oem=rows)
    remapped = {"Nvidia": {"RowRemappingFailed": False, "RowRemappingPending": False}}
    resource(tree, memory, CapacityMiB=81920, Status=OK, Metrics=link(f"{memory}/MemoryMetrics"), Oem=remapped)
    ports = [
        resource(tree, f"{path}/Ports/NVLink_{port}", PortProtocol="NVLink", LinkStatus="LinkUp", Status=OK) for port in range(3)
    ]
    collection(tree, f"{path}/Ports", *ports, resource(tree, f"{path}/Ports/PCIe_0", PortProtocol="PCIe", Status=OK))
    return resource(
        tree,
        path,
        ProcessorType="GPU",
        Model="H100 80GB HBM3 ",
        SerialNumber=f"165000000000{number}",
        UUID=f"0000000{number}-AAAA-4000-8000-000000000000",
        FirmwareVersion="96.00.99  ",
        MemorySummary={"TotalMemorySizeMiB": 81920},
        Status={**OK, "HealthRollup": "OK", "Conditions": []},
        Links={"Memory": [link(memory)]},
        EnvironmentMetrics=link(f"{path}/EnvironmentMetrics"),
        Metrics=link(f"{path}/ProcessorMetrics"),
        Ports=link(f"{path}/Ports"),
    )


def _chassis(tree: Resources) -> None:
    collection(tree, f"{V1}/Chassis", CHASSIS)
    keys = ("Sensors", "ThermalSubsystem", "PowerSubsystem")
    resource(tree, CHASSIS, Status=OK, **{key: link(f"{CHASSIS}/{key}") for key in keys})
    sensors = {
        "Inlet": ("Cel", 21.5),
        "Fan_1": ("RPM", 9000),
        "Board_Power": ("W", 3100),
        "12V": ("V", 12.1),
        "CPU_Usage": ("%", 3),
    }
    paths = [
        resource(tree, f"{CHASSIS}/Sensors/{name}", Name=name, Reading=value, ReadingUnits=unit, Status=OK)
        for name, (unit, value) in sensors.items()
    ]
    collection(tree, f"{CHASSIS}/Sensors", *paths)
    resource(tree, f"{CHASSIS}/ThermalSubsystem", Status=OK, FanRedundancy=[{"Status": OK}])
    supplies = [
        resource(tree, f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU{number}", Status=OK, LineInputStatus="Normal")
        for number in (1, 2)
    ]
    collection(tree, f"{CHASSIS}/PowerSubsystem/PowerSupplies", *supplies)
    groups = [{"Name": "Supplies", "RedundancyType": "NPlusM", "Status": OK}]
    resource(
        tree,
        f"{CHASSIS}/PowerSubsystem",
        PowerSupplies=link(f"{CHASSIS}/PowerSubsystem/PowerSupplies"),
        PowerSupplyRedundancy=groups,
    )


def _firmware(tree: Resources) -> None:
    inventory = f"{V1}/UpdateService/FirmwareInventory"
    resource(tree, f"{V1}/UpdateService", FirmwareInventory=link(inventory))
    items = {"HGX_FW_GPU_SXM_1": "96.00.99  ", "HGX_FW_FPGA_0": "1.61", "NONE": "N/A"}
    collection(tree, inventory, *(resource(tree, f"{inventory}/{name}", Version=version) for name, version in items.items()))


def log(tree: Resources, owner: str, name: str, entries: list[tuple[Any, ...]], **service: Any) -> str:
    """
    The owner has the log, and nothing else in its log services but those added before; the path of its entries.
    """
    services = f"{owner}/LogServices"
    path = resource(tree, f"{services}/{name}", Entries=link(f"{services}/{name}/Entries"), **service)
    before = [one["@odata.id"] for one in tree.get(services, {}).get("Members", [])]
    collection(tree, services, *before, path)
    tree[owner]["LogServices"] = link(services)
    found = f"{path}/Entries"
    members = [
        {"@odata.id": f"{found}/{own}", "@odata.type": "#L.L", "Id": own, "Created": at, "Severity": severity, "Message": message}
        for own, at, severity, message in entries
    ]
    tree[found] = {"@odata.id": found, "Members": members, "Members@odata.count": len(members)}
    return found
