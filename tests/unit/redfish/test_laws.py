"""
Whatever one value of a tree is replaced by: only our own errors are raised, nothing that was not ok becomes ok, no GPU vanishes unnoticed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.redfish.events import read_log
from controlplane.providers.adapters.redfish.health import read_health
from controlplane.providers.adapters.redfish.inventory import take_inventory
from controlplane.providers.adapters.redfish.reading import find_system
from controlplane.providers.errors import ProviderError
from controlplane.providers.hardware import Drive, Gpu, HardwareInventory
from tests.unit.redfish.controllers import BOARD, CHASSIS, HOST, V1, Controller, Resources, hgx, link, recorded, resource

Place = tuple[str | int, ...]
DROP = object()
ODD: list[Any] = [
    DROP,
    None,
    "",
    "odd",
    "NA",
    0,
    -1,
    7,
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    True,
    False,
    [],
    [None],
    [[]],
    {},
    {"a": None},
]
ODD += [{"@odata.id": 5}, {"@odata.id": "http://192.0.2.1/"}, "\x00\ud800", {"Status": "OK"}]
CRITICAL = {"State": "Enabled", "Health": "Critical"}
GPU = f"{BOARD}/Processors/GPU_SXM_2"
DRAM = f"{BOARD}/Memory/GPU_SXM_2_DRAM_0"


def sick() -> Resources:
    """The made-up server with something wrong in every kind of part."""
    tree = hgx()
    parts = [HOST, BOARD, GPU, DRAM, f"{HOST}/Processors/CPU_0", f"{HOST}/Memory/D1", f"{HOST}/Storage/1/Drives/0"]
    parts += [f"{CHASSIS}/Sensors/{name}" for name in ("Inlet", "Fan_1", "CPU_Usage")]
    parts += [f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU2", f"{V1}/Fabrics/NVLink/Switches/NVSwitch_0"]
    for path in parts:
        tree[path]["Status"] = copy.deepcopy(CRITICAL)
    tree[GPU]["Status"]["Conditions"] = [{"Severity": "Critical", "Message": "Fell off the bus"}]
    tree[DRAM]["Oem"]["Nvidia"]["RowRemappingFailed"] = True
    counts = {"UncorrectableECCErrorCount": 3}
    for path in (f"{DRAM}/MemoryMetrics", f"{HOST}/Memory/D1/MemoryMetrics"):
        tree[path]["LifeTime"] = dict(counts)
    tree[f"{GPU}/ProcessorMetrics"] |= {
        "CacheMetricsTotal": {"LifeTime": counts},
        "Oem": {"Nvidia": {"SRAMECCErrorThresholdExceeded": True}},
    }
    tree[f"{GPU}/Ports/NVLink_1"]["LinkStatus"] = "LinkDown"
    tree[f"{CHASSIS}/PowerSubsystem/PowerSupplies/PSU2"]["LineInputStatus"] = "LossOfInput"
    tree[f"{CHASSIS}/PowerSubsystem"]["PowerSupplyRedundancy"][0]["Status"] = dict(CRITICAL)
    for number in range(3):
        errors = {"RuntimeError": number == 2, "TrainingError": False}
        metrics = resource(tree, f"{GPU}/Ports/NVLink_{number}/Metrics", Oem={"Nvidia": {"NVLinkErrors": errors}})
        tree[f"{GPU}/Ports/NVLink_{number}"]["Metrics"] = link(metrics)
    tree[f"{BOARD}/Processors/GPU_SXM_1"]["Status"] = {"State": "Disabled", "Health": None}
    return tree


TREES = {"healthy": hgx(), "sick": sick()}
PLACES: dict[str, list[Place]] = {}


def _places(value: Any, here: Place = ()) -> list[Place]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here] * bool(here) + [place for key, one in inner for place in _places(one, (*here, key))]


for _name, _tree in TREES.items():
    PLACES[_name] = [place for place in _places(_tree) if len(place) > 1]


def _mutated(tree: Resources, place: Place, odd: Any) -> Resources:
    changed = {**tree, str(place[0]): copy.deepcopy(tree[str(place[0])])}
    *way, last = place
    value: Any = changed
    for key in way:
        value = value[key]
    if odd is DROP:
        del value[last]
    else:
        value[last] = odd
    return changed


def _is_reading(tree: Resources, place: Place, odd: Any) -> bool:
    """Whether what is put there is not odd at all: no errors instead of three, an alarm that is off, is what a well machine says."""
    value: Any = tree
    for key in place:
        value = value[key]
    return (type(value) is int and type(odd) is int and odd == 0) or (value is True and odd is False)


def _healths(read: Controller, system: str) -> dict[str, str]:
    """Every health that is told, by what it is of."""
    found: dict[str, str] = {}
    with contextlib.suppress(ProviderError):
        found |= {fact.name: fact.health for fact in read_health(read, system)}
    with contextlib.suppress(ProviderError):
        inventory = take_inventory(read, system)
        found |= {f"inventory of {name}": part.health for name, part in _parts(inventory).items()}
    with contextlib.suppress(ProviderError):
        found |= {entry.id: entry.severity for entry in read_log(read, system, "").entries}
    return found


def _parts(inventory: HardwareInventory) -> dict[str, Gpu | Drive]:
    return {**{gpu.slot: gpu for gpu in inventory.gpus}, **{drive.name: drive for drive in inventory.drives}}


@functools.cache
def _truth(name: str, expand: str, system: str) -> tuple[set[str], HardwareInventory, list[str]]:
    """What is not ok in the unchanged tree, its inventory, and the resources that were asked for."""
    before = Controller(TREES[name], expand=expand) if name in TREES else recorded(name, expand=expand)
    bad = {what for what, health in _healths(before, system).items() if health != "ok"}
    return bad, take_inventory(before, system), sorted({path for path in before.asked if path in before.resources})


def _check(name: str, after: Controller, system: str, *, silent: bool) -> None:
    # A drive list that is not there, or empty, is an answer; a shorter list of GPUs never is.
    bad, had, _ = _truth(name, after.expand, system)
    assert {what for what, health in _healths(after, system).items() if health == "ok"} & bad == set()
    with contextlib.suppress(ProviderError):
        find_system(after, "")
    with contextlib.suppress(ProviderError):
        has = take_inventory(after, system)
        fewer = len(has.gpus) < len(had.gpus) or (not silent and len(has.drives) < len(had.drives))
        assert not (fewer and has.complete)
        assert len(has.gpus) <= len(had.gpus)


@settings(max_examples=250, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(TREES)), odd=st.sampled_from(ODD), expand=st.sampled_from(["ignored", "yes"]))
def test_an_odd_value_never_makes_things_better(data: st.DataObject, name: str, odd: Any, expand: str) -> None:
    """Dropped, null or of another type, anywhere in a healthy and a sick tree."""
    place = data.draw(st.sampled_from(PLACES[name]))
    assume(not _is_reading(TREES[name], place, odd))
    after = Controller(_mutated(TREES[name], place, odd), expand=expand)
    _check(name, after, HOST, silent=odd is DROP or odd == [])


@pytest.mark.parametrize(
    "name", ["gh200/System_0", "dell_poweredge_r750/System.Embedded.1", "lenovo_thinksystem_sr670/1", "lambda_gb300/System_0"]
)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_an_odd_value_in_a_recording_never_makes_things_better(name: str, data: st.DataObject) -> None:
    """The same in what real controllers said."""
    archive, _, own = name.partition("/")
    system = f"{V1}/Systems/{own}"
    resources = recorded(archive).resources
    path = data.draw(st.sampled_from(_truth(archive, "ignored", system)[2]))
    place = data.draw(st.sampled_from(_places(resources[path], (path,))[1:]))
    odd = data.draw(st.sampled_from(ODD))
    assume(not _is_reading(resources, place, odd))
    _check(archive, Controller(_mutated(resources, place, odd)), system, silent=odd is DROP or odd == [])
