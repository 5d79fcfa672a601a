"""
Inventories, health and logs of recorded machines say what was read in the recordings by hand.
"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.providers.adapters.redfish.events import read_log
from controlplane.providers.adapters.redfish.health import read_health
from controlplane.providers.adapters.redfish.inventory import take_inventory
from controlplane.providers.adapters.redfish.reading import find_system
from controlplane.providers.hardware import Drive, Gpu, HardwareInventory, Nic
from tests.unit.redfish.controllers import V1, recorded, recorded_answer

SYSTEMS = {
    "gh200": "System_0",
    "dell_poweredge_r750": "System.Embedded.1",
    "lenovo_thinksystem_sr670": "1",
    "nvidia_dpu": "Bluefield",
    "lambda_h100": "1",
    "lambda_gb300": "System_0",
}
EROT = "01.03.0136.0000_n01"
GH200 = HardwareInventory(
    uuid="1e90aa6e-6d05-9589-2253-ce7672d02d26",
    vendor="NVIDIA",
    model="P3809",
    serial="1580624650610",
    cpus=144,
    memory_gib=960,
    gpus=(
        Gpu("GPU_0", "NVIDIA GH200 96GB HBM3", "1640124000234", 96, "96.00.A6.00.01", "ok", 900.0),
        Gpu("GPU_1", "NVIDIA GH200 96GB HBM3", "1640124000373", 96, "96.00.A6.00.01", "ok", 900.0),
    ),
    firmware={
        "BMC": "GH200-24.05-2",
        "FW_BMC_0": "GH200-24.05-2",
        "FW_CPLD_0": "0.00",
        "FW_ERoT_BMC_0": EROT,
        "GPU_0": "96.00.A6.00.01",
        "GPU_1": "96.00.A6.00.01",
        "HGX_FW_BMC_0": "GH200-24.05-2",
        "HGX_FW_CPLD_0": "0.17",
        "HGX_FW_CPU_0": "01.02.04",
        "HGX_FW_CPU_1": "01.02.04",
        "HGX_FW_ERoT_BMC_0": EROT,
        "HGX_FW_ERoT_CPU_0": EROT,
        "HGX_FW_ERoT_CPU_1": EROT,
        "HGX_FW_ERoT_FPGA_0": EROT,
        "HGX_FW_ERoT_GPU_0": EROT,
        "HGX_FW_ERoT_GPU_1": EROT,
        "HGX_FW_FPGA_0": "0.3C",
        "HGX_FW_GPU_0": "96.00.A6.00.01",
        "HGX_FW_GPU_1": "96.00.A6.00.01",
        "HGX_InfoROM_GPU_0": "G530.0225.00.02",
        "HGX_InfoROM_GPU_1": "G530.0225.00.02",
        "UEFI": "buildbrain-gcid-35803827",
    },
)
KIOXIA = "Dell Ent NVMe CM6 RI 1.92TB"
DELL = HardwareInventory(
    uuid="4c4c4544-0035-3410-8050-c6c04f314733",
    vendor="Dell Inc.",
    model="PowerEdge R750",
    serial="CNIVC0014M0388",
    cpus=72,
    memory_gib=512,
    gpus=(Gpu("Video.Slot.2-1", "NVIDIA H100 PCIe", "1654422007043", 0, "", "ok", None),),
    nics=(
        # The port list of this adapter names its second port only, and what the first function is assigned to does not tell its link.
        Nic("InfiniBand.Slot.7-1", "b8:3f:d2:a4:1b:d2"),
        Nic("InfiniBand.Slot.7-2", "b8:3f:d2:a4:1b:d3", "up"),
        Nic("NIC.Embedded.1-1-1", "70:b5:e8:f0:52:dc", "down"),
        Nic("NIC.Embedded.2-1-1", "70:b5:e8:f0:52:dd", "down"),
        Nic("NIC.Integrated.1-1-1", "e4:3d:1a:13:27:f0", "down"),
        Nic("NIC.Integrated.1-2-1", "e4:3d:1a:13:27:f1", "down"),
        Nic("NIC.Slot.5-1", "b8:3f:d2:90:97:c4"),
    ),
    drives=(
        Drive("Disk.Bay.0:Enclosure.Internal.0-1", KIOXIA, "61X0A002TCD8", 1920383410176, "ok"),
        Drive("Disk.Bay.1:Enclosure.Internal.0-1", KIOXIA, "61M0A08ZTCD8", 1920383410176, "ok"),
        Drive("Disk.Bay.2:Enclosure.Internal.0-1", KIOXIA, "61P0A06CTCD8", 1920383410176, "ok"),
    ),
    firmware={
        "BIOS": "1.8.2",
        "BIOS.Setup.1-1": "1.8.2",
        "BMC": "6.00.30.00",
        "CPLD.Embedded.1": "1.0.5",
        "Diagnostics.Embedded.1:LC.Embedded.1": "4301A56",
        "Disk.Bay.0:Enclosure.Internal.0-1": "2.1.3",
        "Disk.Bay.1:Enclosure.Internal.0-1": "2.1.3",
        "Disk.Bay.2:Enclosure.Internal.0-1": "2.1.3",
        "DriverPack.Embedded.1:LC.Embedded.1": "21.03.10",
        "InfiniBand.Slot.7-1": "20.31.10.14",
        "InfiniBand.Slot.7-2": "20.31.10.14",
        "NIC.Embedded.1-1-1": "21.80.9",
        "NIC.Embedded.2-1-1": "21.80.9",
        "NIC.Integrated.1-1-1": "21.80.16.95",
        "NIC.Integrated.1-2-1": "21.80.16.95",
        "NIC.Slot.5-1": "24.40.10.00",
        "PSU.Slot.1": "00.2A.2B",
        "PSU.Slot.2": "00.2A.2B",
        "RAID.Backplane.Firmware.1": "3.48",
        "ServiceModule.Embedded.1": "4.0.1",
        "TPM.Integrated.1-1": "7.2.2.0",
        "USC.Embedded.1:LC.Embedded.1": "6.00.30.00",
        "iDRAC.Embedded.1-1": "6.00.30.00",
    },
)
LENOVO = HardwareInventory(
    uuid="bc20d65a-1a53-11ec-8c43-7e8ae1d5a277",
    vendor="Lenovo",
    model="ThinkSystem SR670 V2",
    serial="J101RZ43",
    cpus=72,
    memory_gib=512,
    gpus=(
        Gpu("GPU1", "NVIDIA Quadro RTX A6000", "1322221026831", 0, "94.02.5C.00.02", "unknown", None),
        Gpu("GPU2", "NVIDIA Quadro RTX A6000", "1322221028609", 0, "94.02.5C.00.02", "unknown", None),
    ),
    # Its only interface is the host's end of the cable to its own controller.
    nics=(),
    drives=(
        Drive("Drive.Bay_0", "SSDPF2KE016T9L", "PHAB1234034Z1P9SGN", 1600000000000, "ok"),
        Drive("Drive.Bay_1", "SSDPF2KE016T9L", "PHAB123401GY1P9SGN", 1600000000000, "ok"),
    ),
    firmware={
        "BIOS": "U8E112A",
        "BMC": "TGBT20E 1.40 2021-05-17",
        "BMC-Backup": "20E-1.40",
        "BMC-Primary": "20E-1.40",
        "Disk1": "2CV1L028",
        "Disk2": "2CV1L028",
        "GPU1": "94.02.5C.00.02",
        "GPU2": "94.02.5C.00.02",
        "LXPM": "08G-3.07",
        "LXPMLinuxDriver": "08B-3.07",
        "LXPMWindowsDriver": "08B-3.07",
        "PSU1": "7.52",
        "PSU2": "7.52",
        "PSU3": "7.52",
        "PSU4": "7.52",
        "UEFI": "12A-1.02",
    },
)
DPU = HardwareInventory(
    uuid="90633594-1a24-ee11-8000-a088c2088072",
    vendor="Nvidia",
    model="Nvidia-BMCMezz",
    serial="MT2328XZ185R",
    cpus=0,
    memory_gib=0,
    nics=(Nic("eth0f0", "02:55:1a:2f:e9:73", "down", 100.0), Nic("eth1f0", "02:05:ad:f2:c0:63", "down", 100.0)),
    firmware={
        "BMC": "BF-23.10-4",
        "BMC_Firmware": "BF-24.07-14",
        "Bluefield_FW_ERoT": "00.02.0182.0000_n02",
        "DPU_ATF": "v2.2(release):4.5.0-36-g3ab007f",
        "DPU_BOARD": "MT_0000000884",
        "DPU_BSP": "4.5.0.12984",
        "DPU_NIC": "32.38.1002",
        "DPU_NODE": "a088:c203:0008:8082",
        "DPU_OFED": "MLNX_OFED_LINUX-23.10-1.1.1",
        "DPU_OS": "DOCA_2.5.0_BSP_4.5.0_Ubuntu_22.04-1.20231120.prod",
        "DPU_SYS_IMAGE": "b83f:d203:0090:95d4",
        "DPU_UEFI": "4.5.0-40-gcbe848b",
        "golden_image_arm": "no valid golden_image_arm!!!!",
        "golden_image_nic": "no valid golden_image_nic!!!!",
    },
)
COMPLETE = {"gh200": GH200, "dell_poweredge_r750": DELL, "lenovo_thinksystem_sr670": LENOVO, "nvidia_dpu": DPU}


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_system_that_can_be_switched_on_is_found(name: str) -> None:
    """Never the board of the GPUs."""
    assert find_system(recorded(name), "") == f"{V1}/Systems/{SYSTEMS[name]}"


@pytest.mark.parametrize("expand", ["ignored", "yes", "refused"])
@pytest.mark.parametrize("name", COMPLETE)
def test_inventories_of_whole_recordings(name: str, expand: str) -> None:
    """The same, complete, however the service takes `$expand`."""
    assert take_inventory(recorded(name, expand=expand), f"{V1}/Systems/{SYSTEMS[name]}") == COMPLETE[name]


def test_part_of_a_b200_server() -> None:
    """Seven of nine processors were not recorded: the two GPUs that were are told, and that there are more."""
    found = take_inventory(recorded("lambda_h100"), f"{V1}/Systems/1")
    assert found.gpus == (
        Gpu("GPU_SXM_1", "B200 180GB HBM3e", "", 179, "", "ok", None),
        Gpu("GPU_SXM_2", "B200 180GB HBM3e", "", 179, "", "ok", None),
    )
    assert (found.vendor, found.model, found.serial, found.cpus, found.memory_gib) == (
        "Supermicro",
        "SYS-A21GE-NBRT-01-LL014",
        "S123456",
        224,
        3072,
    )
    assert not found.complete
    assert "Systems/HGX_Baseboard_0/Processors: lists 3 of 9 members" in found.unread
    assert "Systems/1/Storage: provider_not_found" in found.unread


def test_part_of_a_gb300_tray() -> None:
    """Host and board list the same four GPUs: each once; one processor is listed and was not recorded, so CPUs are unknown."""
    found = take_inventory(recorded("lambda_gb300"), f"{V1}/Systems/System_0")
    serials = ("123456", "234567", "345678", "456789")
    healths = ("ok", "ok", "ok", "warning")
    assert [(gpu.slot, gpu.model, gpu.serial, gpu.memory_gib, gpu.health) for gpu in found.gpus] == [
        (f"GPU_{at}", "NVIDIA GB300", serials[at], 279, healths[at]) for at in range(4)
    ]
    assert found.cpus == 0
    assert "Systems/HGX_Baseboard_0/Processors/CPU_1: provider_not_found" in found.unread


@pytest.mark.parametrize("expand", ["ignored", "yes", "refused"])
def test_health_of_a_gh200_tray(expand: str) -> None:
    """Links, memory and sensors of both systems; the one sensor without a reading is unknown though the controller calls it OK."""
    facts = {fact.name: fact for fact in read_health(recorded("gh200", expand=expand), f"{V1}/Systems/System_0")}
    assert [name for name, fact in facts.items() if fact.health != "ok"] == ["temperature:TEMP_SSD_02"]
    assert facts["temperature:TEMP_SSD_02"].health == "unknown"
    assert {name for name in facts if name.split(":")[0].startswith(("gpu", "nvlink", "system"))} == {
        f"{kind}:GPU_{number}"
        for kind in ("gpu_health", "gpu_memory", "gpu_memory_ecc", "gpu_row_remap", "gpu_cache_ecc", "nvlink")
        for number in (0, 1)
    } | {"system:System_0", "system:HGX_Baseboard_0"} | (
        {"nvlink_errors:GPU_0", "nvlink_errors:GPU_1"} if expand == "yes" else set()
    )
    assert facts["nvlink:GPU_1"].value == 18
    assert (facts["fan:FAN_1_F"].value, facts["fan:FAN_1_F"].unit) == (26568.0, "RPM")
    assert (facts["power:HGX_GPU_0_Power_0"].value, facts["power:HGX_GPU_0_Power_0"].unit) == (84.766, "W")
    assert (facts["temperature:TEMP_PDB"].value, facts["temperature:TEMP_PDB"].unit) == (30.312, "C")
    assert (facts["voltage:HGX_GPU_0_Voltage_0"].value, facts["voltage:HGX_GPU_0_Voltage_0"].unit) == (0.67, "V")


def test_health_of_a_dell_server() -> None:
    """Drives, DIMMs with their alarms, fans, supplies and the inlet, all fine."""
    facts = {fact.name: fact for fact in read_health(recorded("dell_poweredge_r750"), f"{V1}/Systems/System.Embedded.1")}
    assert {fact.health for fact in facts.values()} == {"ok"}
    named = {"gpu_health:Video.Slot.2-1", "power_supply:PSU.Slot.1", "power_supply:PSU.Slot.2", "memory_alarm:DIMM.Socket.A1"}
    assert named | {"drive:CPU.1/Disk.Bay.0:Enclosure.Internal.0-1", "cpu:CPU.Socket.2", "memory:DIMM.Socket.B8"} <= set(facts)
    assert facts["temperature:SystemBoardInletTemp"].value == 25.0
    assert facts["fan:Fan.Embedded.5A"].value == 18720


def test_health_of_a_lenovo_server() -> None:
    """GPUs without a status are unknown, empty DIMM sockets are not told, and only sensors with a reading are."""
    facts = {fact.name: fact for fact in read_health(recorded("lenovo_thinksystem_sr670"), f"{V1}/Systems/1")}
    assert {name for name, fact in facts.items() if fact.health != "ok"} == {"gpu_health:GPU1", "gpu_health:GPU2"}
    assert sum(name.startswith("memory:") for name in facts) == 16
    assert facts["power_redundancy:1/PSU Redundancy"].health == "ok"
    assert (facts["power_supply:PSU1"].value, facts["power_supply:PSU1"].unit) == (116.0, "W")
    assert facts["voltage:3L0"].message == "CMOS Battery"
    assert not [name for name in facts if name.startswith("sensor:")]


def test_health_of_a_dpu() -> None:
    """Two ports without a module read no temperature: unknown."""
    facts = {fact.name: fact for fact in read_health(recorded("nvidia_dpu"), f"{V1}/Systems/Bluefield")}
    assert {name for name, fact in facts.items() if fact.health != "ok"} == {"temperature:p0_temp", "temperature:p1_temp"}
    assert facts["temperature:bluefield_temp"].value == 57.0


def test_health_of_a_gb300_tray() -> None:
    """Recorded answers to `$expand`: a GPU and a link in test, a link with an error, another GPU with corrected errors."""
    controller = recorded("lambda_gb300", expand="yes")
    for number in range(4):
        path = f"{V1}/Systems/HGX_Baseboard_0/Processors/GPU_{number}/Ports?$expand=.($levels=2)"
        controller.resources[path] = recorded_answer("lambda_gb300", path)
    facts = {fact.name: fact for fact in read_health(controller, f"{V1}/Systems/System_0")}
    assert [facts[f"gpu_health:GPU_{number}"].health for number in range(4)] == ["ok", "ok", "ok", "warning"]
    assert [facts[f"nvlink:GPU_{number}"].value for number in range(4)] == [18, 18, 18, 18]
    assert facts["nvlink:GPU_0"].health == "ok"
    assert (facts["nvlink_errors:GPU_0"].health, facts["nvlink_errors:GPU_0"].message) == ("warning", "NVLink_3 RuntimeError")
    assert facts["nvlink_errors:GPU_1"].health == "ok"
    assert facts["nvlink:GPU_2"].health == "unknown"
    assert "NVLink_5 state InTest" in facts["nvlink:GPU_2"].message
    assert (facts["gpu_memory_ecc:GPU_1"].health, facts["gpu_memory_ecc:GPU_1"].value) == ("ok", 100)
    assert facts["unread:Chassis"].health == "unknown"


def test_logs_of_a_gh200_tray() -> None:
    """Two systems, a clock that stands at 1970, and fault records that only have a CPER."""
    logs = read_log(recorded("gh200"), f"{V1}/Systems/System_0", "")
    assert logs.complete
    ids = [entry.id for entry in logs.entries]
    assert [name for name in ids if "/HGX_Baseboard_0/EventLog/" in name] == [
        f"Systems/HGX_Baseboard_0/EventLog/{number}" for number in range(22078, 22083)
    ]
    assert len(ids) == len(set(ids)) == 20
    first = next(entry for entry in logs.entries if entry.id == "Systems/HGX_Baseboard_0/EventLog/22078")
    assert (first.at, first.severity, first.code) == (None, "ok", "Update.1.0.UpdateSuccessful")
    fault = next(entry for entry in logs.entries if entry.id == "Systems/HGX_Baseboard_0/FaultLog/2")
    assert (fault.at, fault.severity) == (datetime(2024, 7, 18, 21, 49, 31, tzinfo=UTC), "ok")
    assert fault.message == "NVIDIA CPER Error Section PCIe"
    assert logs.entries[-1].message.startswith("TEMP_SSD_02 sensor crossed a warning low threshold going high.")


def test_logs_of_a_dell_server() -> None:
    """Newest first and five hours west of UTC in the recording; our own logins are no events."""
    logs = read_log(recorded("dell_poweredge_r750"), f"{V1}/Systems/System.Embedded.1", "")
    assert [entry.id for entry in logs.entries] == [
        *(f"Managers/iDRAC.Embedded.1/Sel/{number}" for number in range(1020, 1025)),
        "Managers/iDRAC.Embedded.1/Lclog/83432",
    ]
    assert logs.entries[0].at == datetime(2024, 6, 11, 5, 12, 59, tzinfo=UTC)
    assert (logs.entries[-1].severity, logs.entries[-1].code) == ("critical", "IDRAC.2.7.SWC9005")
    assert logs.complete


def test_logs_of_a_lenovo_server() -> None:
    """30 entries of the platform and 33 of its maintenance; the audit of 405 logins is left out."""
    logs = read_log(recorded("lenovo_thinksystem_sr670"), f"{V1}/Systems/1", "")
    kinds = [entry.id.split("/")[2] for entry in logs.entries]
    assert (kinds.count("PlatformLog"), kinds.count("MaintenanceLog"), len(kinds)) == (30, 33, 63)
    assert [
        entry.id for entry in read_log(recorded("lenovo_thinksystem_sr670"), f"{V1}/Systems/1", logs.entries[-1].id).entries
    ] == []
