"""
Facts of parts in every kind of trouble; what is not said is unknown and what is not read is named.
"""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.providers.adapters.redfish.health import read_health
from controlplane.providers.errors import NotFound, Unknown
from controlplane.providers.hardware import Fact
from tests.unit.redfish.controllers import BOARD, CHASSIS, HOST, OK, V1, Controller, Resources, collection, hgx, link, resource

GPU = f"{BOARD}/Processors/GPU_SXM_1"
DRAM = f"{BOARD}/Memory/GPU_SXM_1_DRAM_0"
SUPPLY = f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU1"


def _facts(tree: Resources, *, expand: str = "ignored") -> dict[str, Fact]:
    return {fact.name: fact for fact in read_health(Controller(tree, expand=expand), HOST)}


@pytest.mark.parametrize("expand", ["ignored", "yes", "refused"])
def test_a_healthy_machine_has_only_good_facts(expand: str) -> None:
    """Each of its parts by name; what has neither a reading in our units nor a complaint is not told."""
    facts = _facts(hgx(), expand=expand)
    assert {fact.health for fact in facts.values()} == {"ok"}
    of_gpus = (
        "gpu_health",
        "gpu_memory",
        "gpu_row_remap",
        "gpu_memory_ecc",
        "gpu_spare_rows",
        "gpu_cache_ecc",
        "gpu_sram_threshold",
        "nvlink",
    )
    assert set(facts) == {f"{kind}:GPU_SXM_{number}" for kind in of_gpus for number in (1, 2)} | {
        "system:System_0",
        "system:HGX_Baseboard_0",
        "cpu:CPU_0",
        "memory:D1",
        "memory:D2",
        "memory_ecc:D1",
        "drive:1/0",
        "switch:NVSwitch_0",
        "temperature:Inlet",
        "fan:Fan_1",
        "power:Board_Power",
        "voltage:12V",
        "fan_redundancy:Main/0",
        "power_redundancy:Main/Supplies",
        "power_supply:PSU1",
        "power_supply:PSU2",
        "power_input:PSU1",
        "power_input:PSU2",
    }
    assert facts["temperature:Inlet"] == Fact("temperature:Inlet", "ok", "", 21.5, "C")
    assert facts["nvlink:GPU_SXM_1"].value == 3
    assert list(facts) == sorted(facts, key=lambda name: (name.split(":")[0], name))


@pytest.mark.parametrize(
    ("status", "health", "message"),
    [
        (OK, "ok", ""),
        ({"State": "Enabled", "Health": "Warning"}, "warning", ""),
        ({"State": "Enabled", "Health": "CRITICAL "}, "critical", ""),
        ({**OK, "HealthRollup": "Critical"}, "critical", ""),
        ({**OK, "HealthRollup": None}, "unknown", ""),
        ({**OK, "Conditions": [{"Severity": "Critical", "Message": "Fell off the bus"}]}, "critical", "Fell off the bus"),
        ({**OK, "Conditions": [{"MessageId": "X.1.0.Odd"}]}, "unknown", "X.1.0.Odd"),
        ({**OK, "Conditions": None}, "unknown", ""),
        ({"State": "Enabled", "Health": None}, "unknown", ""),
        ({"State": "Enabled", "Health": True}, "unknown", ""),
        ({"State": "Enabled", "Health": "Good"}, "unknown", ""),
        ({"State": "Enabled"}, "unknown", ""),
        ({"Health": "OK"}, "unknown", ""),
        ({"State": "Disabled", "Health": "OK"}, "unknown", "state Disabled"),
        ({"State": "UnavailableOffline", "Health": "OK"}, "warning", "state UnavailableOffline"),
        ({"State": "StandbySpare", "Health": "OK"}, "ok", "state StandbySpare"),
        (None, "unknown", ""),
        ("OK", "unknown", ""),
        ([], "unknown", ""),
    ],
)
def test_a_status_is_ok_only_when_it_says_so(status: Any, health: str, message: str) -> None:
    """The worst of health, roll-up, conditions and state."""
    tree = hgx()
    tree[GPU]["Status"] = status
    fact = _facts(tree)["gpu_health:GPU_SXM_1"]
    assert (fact.health, fact.message) == (health, message)


@pytest.mark.parametrize(
    ("path", "change", "name", "health"),
    [
        (
            DRAM,
            {"Oem": {"Nvidia": {"RowRemappingFailed": True, "RowRemappingPending": False}}},
            "gpu_row_remap:GPU_SXM_1",
            "critical",
        ),
        (
            DRAM,
            {"Oem": {"Nvidia": {"RowRemappingFailed": False, "RowRemappingPending": True}}},
            "gpu_row_remap:GPU_SXM_1",
            "warning",
        ),
        (DRAM, {"Oem": {"Nvidia": {"RowRemappingFailed": False}}}, "gpu_row_remap:GPU_SXM_1", "unknown"),
        (
            DRAM,
            {"Oem": {"Nvidia": {"RowRemappingFailed": "no", "RowRemappingPending": False}}},
            "gpu_row_remap:GPU_SXM_1",
            "unknown",
        ),
        (DRAM, {"Status": {"State": "Enabled", "Health": "Critical"}}, "gpu_memory:GPU_SXM_1", "critical"),
        (f"{DRAM}/MemoryMetrics", {"LifeTime": {"UncorrectableECCErrorCount": 2}}, "gpu_memory_ecc:GPU_SXM_1", "warning"),
        (f"{DRAM}/MemoryMetrics", {"LifeTime": {"UncorrectableECCErrorCount": None}}, "gpu_memory_ecc:GPU_SXM_1", "unknown"),
        (f"{DRAM}/MemoryMetrics", {"CurrentPeriod": {"UncorrectableECCErrorCount": 1}}, "gpu_memory_ecc:GPU_SXM_1", "critical"),
        (
            f"{DRAM}/MemoryMetrics",
            {"Oem": {"Nvidia": {"RowRemapping": {"NoAvailabilityBankCount": 1}}}},
            "gpu_spare_rows:GPU_SXM_1",
            "warning",
        ),
        (
            f"{GPU}/ProcessorMetrics",
            {"Oem": {"Nvidia": {"SRAMECCErrorThresholdExceeded": True}}},
            "gpu_sram_threshold:GPU_SXM_1",
            "critical",
        ),
        (
            f"{GPU}/ProcessorMetrics",
            {"CacheMetricsTotal": {"LifeTime": {"UncorrectableECCErrorCount": 1}}},
            "gpu_cache_ecc:GPU_SXM_1",
            "warning",
        ),
        (f"{GPU}/Ports/NVLink_2", {"LinkStatus": "LinkDown"}, "nvlink:GPU_SXM_1", "critical"),
        (f"{GPU}/Ports/NVLink_2", {"LinkStatus": "Training"}, "nvlink:GPU_SXM_1", "warning"),
        (f"{GPU}/Ports/NVLink_2", {"LinkStatus": None}, "nvlink:GPU_SXM_1", "unknown"),
        (f"{GPU}/Ports/NVLink_2", {"PortProtocol": None, "LinkStatus": "LinkDown"}, "nvlink:GPU_SXM_1", "critical"),
        (f"{GPU}/Ports/PCIe_0", {"LinkStatus": "LinkDown"}, "nvlink:GPU_SXM_1", "ok"),
        (f"{HOST}/Memory/D1/MemoryMetrics", {"LifeTime": {"UncorrectableECCErrorCount": 1}}, "memory_ecc:D1", "warning"),
        (
            f"{HOST}/Memory/D1/MemoryMetrics",
            {"HealthData": {"AlarmTrips": {"UncorrectableECCError": True, "Temperature": False}}},
            "memory_alarm:D1",
            "critical",
        ),
        (f"{HOST}/Memory/D1/MemoryMetrics", {"HealthData": {"AlarmTrips": {"Temperature": True}}}, "memory_alarm:D1", "warning"),
        (f"{HOST}/Memory/D1/MemoryMetrics", {"HealthData": {"AlarmTrips": {"Temperature": "no"}}}, "memory_alarm:D1", "unknown"),
        (f"{HOST}/Storage/1/Drives/0", {"FailurePredicted": True}, "drive:1/0", "warning"),
        (f"{CHASSIS}/Sensors/Inlet", {"Reading": None}, "temperature:Inlet", "unknown"),
        (f"{CHASSIS}/Sensors/CPU_Usage", {"Status": {"State": "Enabled", "Health": "Critical"}}, "sensor:CPU_Usage", "critical"),
        (SUPPLY, {"LineInputStatus": "LossOfInput"}, "power_input:PSU1", "critical"),
        (SUPPLY, {"LineInputStatus": 5}, "power_input:PSU1", "unknown"),
        (f"{V1}/Fabrics/NVLink/Switches/NVSwitch_0", {"Status": {**OK, "Health": "Critical"}}, "switch:NVSwitch_0", "critical"),
    ],
)
def test_trouble_of_a_part_is_a_fact_of_its_own(path: str, change: dict[str, Any], name: str, health: str) -> None:
    """And of no other part: every other fact stays ok."""
    tree = hgx()
    tree[path] |= change
    facts = _facts(tree)
    assert facts[name].health == health
    assert {fact.health for fact in facts.values() if fact.name != name} == {"ok"}


def test_a_link_that_is_down_is_named() -> None:
    """With how many are up."""
    tree = hgx()
    tree[f"{GPU}/Ports/NVLink_2"]["LinkStatus"] = "LinkDown"
    fact = _facts(tree)["nvlink:GPU_SXM_1"]
    assert (fact.message, fact.value) == ("2 of 3 links are up; NVLink_2 is down", 2)


def test_links_of_a_machine_that_is_off_are_unknown() -> None:
    """Nothing holds them up."""
    tree = hgx()
    tree[HOST]["PowerState"] = "Off"
    tree[f"{GPU}/Ports/NVLink_2"]["LinkStatus"] = "LinkDown"
    assert _facts(tree)["nvlink:GPU_SXM_1"].health == "unknown"


def test_links_that_could_not_all_be_read_are_not_ok() -> None:
    """One that did not answer may be down; one that is down stays critical."""
    controller = Controller(hgx())
    controller.faults[f"{GPU}/Ports/NVLink_0"] = Unknown("timeout")
    facts = {fact.name: fact for fact in read_health(controller, HOST)}
    assert facts["nvlink:GPU_SXM_1"] == Fact("nvlink:GPU_SXM_1", "unknown", "not all ports could be read")
    assert facts["unread:Systems/HGX_Baseboard_0/Processors/GPU_SXM_1/Ports/NVLink_0"].health == "unknown"
    controller.resources[f"{GPU}/Ports/NVLink_1"]["LinkStatus"] = "NoLink"
    assert {fact.name: fact.health for fact in read_health(controller, HOST)}["nvlink:GPU_SXM_1"] == "critical"


@pytest.mark.parametrize(
    ("errors", "health"), [({"RuntimeError": True, "TrainingError": False}, "warning"), ({"RuntimeError": False}, "unknown")]
)
def test_errors_of_links_are_told_where_they_come_with_the_ports(errors: dict[str, bool], health: str) -> None:
    """Expanded two levels deep; without expansion they are not asked for."""
    tree = hgx()
    for number in range(3):
        said = errors if number == 1 else {"RuntimeError": False, "TrainingError": False}
        metrics = resource(tree, f"{GPU}/Ports/NVLink_{number}/Metrics", Oem={"Nvidia": {"NVLinkErrors": said}})
        tree[f"{GPU}/Ports/NVLink_{number}"]["Metrics"] = link(metrics)
    assert _facts(tree, expand="yes")["nvlink_errors:GPU_SXM_1"].health == health
    assert "nvlink_errors:GPU_SXM_1" not in _facts(tree)
    if health == "unknown":
        tree[f"{GPU}/Ports/NVLink_1/Metrics"]["Oem"]["Nvidia"]["NVLinkErrors"]["TrainingError"] = False
        assert _facts(tree, expand="yes")["nvlink_errors:GPU_SXM_1"].health == "ok"
        tree[f"{GPU}/Ports"]["Members"].pop(0)
        assert _facts(tree, expand="yes")["nvlink_errors:GPU_SXM_1"].health == "unknown"


@pytest.mark.parametrize("told", [{}, {"RowRemappingFailed": None, "RowRemappingPending": False}])
def test_of_two_memories_both_must_tell(told: dict[str, Any]) -> None:
    """What one module says is not known of the GPU; one that does not answer makes all of it unknown."""
    tree = hgx()
    second = resource(tree, f"{DRAM}_2", Status=OK, Oem={"Nvidia": told})
    tree[GPU]["Links"]["Memory"].append(link(second))
    facts = _facts(tree)
    named = {"gpu_row_remap:GPU_SXM_1", "gpu_memory_ecc:GPU_SXM_1", "gpu_spare_rows:GPU_SXM_1"}
    assert {name for name, fact in facts.items() if fact.health != "ok"} == named
    del tree[second]
    unknown = {name for name, fact in _facts(tree).items() if fact.health != "ok"}
    assert unknown == named | {"gpu_memory:GPU_SXM_1", "unread:Systems/HGX_Baseboard_0/Memory/GPU_SXM_1_DRAM_0_2"}


def test_two_sensors_of_one_name_tell_the_worse() -> None:
    """Some controllers show the same fan under every chassis."""
    tree = hgx()
    other = resource(tree, f"{V1}/Chassis/Other", Sensors=link(f"{V1}/Chassis/Other/Sensors"))
    fan = resource(tree, f"{other}/Sensors/Fan_1", Reading=0, ReadingUnits="RPM", Status={**OK, "Health": "Critical"})
    collection(tree, f"{other}/Sensors", fan)
    collection(tree, f"{V1}/Chassis", other, CHASSIS)
    assert (_facts(tree)["fan:Fan_1"].health, _facts(tree)["fan:Fan_1"].value) == ("critical", 0)


def test_the_older_thermal_and_power_are_read_where_there_is_nothing_newer() -> None:
    """Temperatures, voltages, fans, supplies and redundancy; empty bays are not told."""
    tree = hgx()
    for key in ("Sensors", "ThermalSubsystem", "PowerSubsystem"):
        del tree[CHASSIS][key]
    absent = {"State": "Absent", "Health": None}
    temperatures = [
        {"Name": "Inlet", "ReadingCelsius": 22, "Status": OK},
        {"Name": "CPU 2", "ReadingCelsius": None, "Status": absent},
    ]
    fans = [{"FanName": "Fan 1", "Reading": 40, "ReadingUnits": "Percent", "Status": {**OK, "Health": "Warning"}}]
    fans.append({"Name": "Fan 2", "Reading": 9000, "ReadingUnits": "RPM", "Status": OK})
    thermal = resource(
        tree, f"{CHASSIS}/Thermal", Temperatures=temperatures, Fans=fans, Redundancy=[{"Name": "Fans", "Status": OK}]
    )
    supplies = [{"Name": "PSU1", "PowerInputWatts": 200, "Status": OK}, {"Name": "PSU2", "Status": absent}, None]
    voltages = [{"Name": "12V", "ReadingVolts": 12, "Status": {"State": "Enabled"}}]
    groups = [{"Name": "PSUs", "Status": {**OK, "Health": "Critical"}}]
    power = resource(tree, f"{CHASSIS}/Power", PowerSupplies=supplies, Voltages=voltages, Redundancy=groups)
    tree[CHASSIS] |= {"Thermal": link(thermal), "Power": link(power)}
    kinds = ("temperature", "fan", "power", "voltage", "sensor")
    found = {name: (fact.health, fact.value, fact.unit) for name, fact in _facts(tree).items() if name.startswith(kinds)}
    assert found == {
        "temperature:Inlet": ("ok", 22, "C"),
        "sensor:Fan 1": ("warning", None, ""),
        "fan:Fan 2": ("ok", 9000, "RPM"),
        "fan_redundancy:Main/Fans": ("ok", None, ""),
        "power_supply:PSU1": ("ok", 200, "W"),
        "power_supply:2": ("unknown", None, ""),
        "power_redundancy:Main/PSUs": ("critical", None, ""),
        "voltage:12V": ("unknown", 12, "V"),
    }


def test_newer_and_older_are_never_both_told() -> None:
    """Also not when the newer does not answer: names stay the same from look to look."""
    tree = hgx()
    thermal = resource(tree, f"{CHASSIS}/Thermal", Temperatures=[{"Name": "Old", "ReadingCelsius": 22, "Status": OK}])
    tree[CHASSIS]["Thermal"] = link(thermal)
    controller = Controller(tree)
    assert "temperature:Old" not in {fact.name for fact in read_health(controller, HOST)}
    controller.faults[f"{CHASSIS}/Sensors"] = Unknown("timeout")
    found = {fact.name: fact.health for fact in read_health(controller, HOST)}
    assert "temperature:Old" not in found
    assert found["unread:Chassis/Main/Sensors"] == "unknown"


def test_without_the_system_there_is_no_health() -> None:
    """Its own error is raised; one that is no path is not found."""
    with pytest.raises(NotFound):
        read_health(Controller(hgx()), f"{V1}/Systems/Other")
    with pytest.raises(NotFound, match="no path"):
        read_health(Controller(hgx()), "System_0")
