"""
What differs between what was bought and what was found: each difference once, and what nobody saw is neither there nor missing.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.catalog.states import Parts
from controlplane.nodes.finding import Known, Seen, find_mismatches
from controlplane.nodes.states import Expected
from controlplane.nodes.steps.comparing import find_differences
from controlplane.providers.hardware import Drive, Gpu, HardwareInventory, Nic
from controlplane.providers.machines import Inventory
from tests.factories.metal import INVENTORY

THEN = datetime(2026, 3, 1, tzinfo=UTC)
LATER = THEN + timedelta(hours=1)
PLACE = {"site": "ams1", "block": "b1", "leaf": "l1", "rack": "r1", "nvlink_domain": None, "instance_type": "hgx-h100-8", "gpus": 8}
OWNED = Known("nod_1", "prv", "gpu-1", "S1", None, PLACE, THEN)
BARE = replace(OWNED, controller=("https://10.0.0.1", ""))
SEEN = Seen("dsc_1", "prv", "gpu-1", "S1", None, PLACE)
DOOR = replace(SEEN, ref="https://10.0.0.1", controller=("https://10.0.0.1/", ""), place={})
GIB = 1024**3
FULL = Parts(
    80, 2, 400, 2, 900, {"BMC": ("1.0", "1.1")}, asked=frozenset({"gpu_memory_gib", "nics", "nic_gbit_s", "drives", "drive_gib"})
)
WELL = replace(
    INVENTORY,
    gpus=tuple(replace(one, memory_gib=80) for one in INVENTORY.gpus),
    nics=(Nic("p1", "02:00:00:00:00:01", "up", 400.0), Nic("p2", "02:00:00:00:00:02", "up", 400.0)),
)
EXPECTED = Expected("H100-SXM5-80GB", 8, 2048, FULL, "s1")


@pytest.mark.parametrize(
    ("known", "seen", "listed", "codes"),
    [
        (OWNED, [SEEN], {"prv": LATER}, []),
        (BARE, [DOOR], {}, []),
        (OWNED, [], {}, ["not_looked_for"]),
        (OWNED, [], {"prv": THEN - timedelta(hours=1)}, ["not_looked_for"]),
        (OWNED, [], {"other": LATER}, ["not_looked_for"]),
        (OWNED, [], {"prv": LATER}, ["not_seen"]),
        (BARE, [], {"prv": LATER}, ["not_looked_for"]),
        (OWNED, [replace(SEEN, serial="S2")], {}, ["other_serial"]),
        (OWNED, [replace(SEEN, serial="")], {}, []),
        (OWNED, [replace(SEEN, ref="gpu-9")], {}, ["other_name"]),
        (OWNED, [replace(SEEN, place={"rack": "r2"})], {}, ["other_place"]),
        (OWNED, [replace(SEEN, place={"gpus": 4})], {}, ["other_type"]),
        (BARE, [replace(DOOR, controller=("https://10.0.0.2", ""))], {}, ["other_controller"]),
        (BARE, [DOOR, replace(DOOR, id="dsc_2", ref="x", controller=("https://10.0.0.2", ""))], {}, ["seen_twice", "seen_twice"]),
        (OWNED, [SEEN, replace(SEEN, id="dsc_2", ref="gpu-2", serial="S2")], {}, ["not_enrolled"]),
    ],
)
def test_each_mismatch_has_its_code(known: Known, seen: list[Seen], listed: dict[str, datetime], codes: list[str]) -> None:
    """One machine expected against what was found: exactly these codes, and the order of what was found does not matter."""
    found = find_mismatches([known], seen, listed)
    assert sorted(one.code for one in found) == codes
    assert find_mismatches([known], seen[::-1], listed) == found
    assert all(one.severity in {"warning", "info"} and one.message for one in found)


def differences(seen: Inventory | HardwareInventory, expected: Expected = EXPECTED) -> set[tuple[str, str]]:
    """(check, severity) of every difference."""
    return {(one["check"], one["severity"]) for one in find_differences(expected, seen)}


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (WELL, set()),
        (replace(WELL, gpus=WELL.gpus[:7]), {("gpu_count", "blocking")}),
        (replace(WELL, gpus=(*WELL.gpus[:7], Gpu("G7", "NVIDIA A100-SXM4-80GB", memory_gib=80))), {("gpu_model", "blocking")}),
        (replace(WELL, gpus=tuple(replace(one, memory_gib=64) for one in WELL.gpus)), {("gpu_memory", "blocking")}),
        (replace(WELL, gpus=tuple(replace(one, memory_gib=0) for one in WELL.gpus)), {("gpu_memory", "info")}),
        (replace(WELL, memory_gib=1024), {("memory", "warning")}),
        (replace(WELL, memory_gib=0), {("memory", "info")}),
        (replace(WELL, serial="S2"), {("serial", "blocking")}),
        (replace(WELL, serial=""), {("serial", "info")}),
        (replace(WELL, nics=WELL.nics[:1]), {("nic_count", "blocking")}),
        (replace(WELL, nics=(WELL.nics[0], replace(WELL.nics[1], speed_gbps=100.0))), {("nic_count", "blocking")}),
        (replace(WELL, nics=(WELL.nics[0], replace(WELL.nics[1], speed_gbps=None))), {("nic_count", "info")}),
        (replace(WELL, nics=WELL.nics[:1], complete=False), {("nic_count", "info")}),
        (replace(WELL, drives=WELL.drives[:1]), {("drive_count", "blocking")}),
        (replace(WELL, drives=(Drive("a", size_bytes=900 * GIB), Drive("b", size_bytes=1))), {("drive_count", "blocking")}),
        (replace(WELL, drives=(Drive("a", size_bytes=900 * GIB), Drive("b"))), {("drive_count", "info")}),
        (replace(WELL, firmware={"BMC": "1.1"}), set()),
        (replace(WELL, firmware={"BMC": "0.9"}), {("firmware:BMC", "blocking")}),
        (replace(WELL, firmware={}), {("firmware:BMC", "info")}),
    ],
)
def test_each_part_is_compared(seen: HardwareInventory, found: set[tuple[str, str]]) -> None:
    """A machine that is right in all but one thing has exactly that finding; what is not told is never right and never wrong."""
    assert differences(seen) == found


def test_figures_nobody_asked_for_keep_nobody_out() -> None:
    """What only follows from the catalog makes warnings."""
    expected = replace(EXPECTED, parts=replace(FULL, asked=frozenset()))
    poor = replace(WELL, nics=(), drives=(), gpus=tuple(replace(one, memory_gib=40) for one in WELL.gpus))
    assert differences(poor, expected) == {("nic_count", "warning"), ("drive_count", "warning"), ("gpu_memory", "warning")}


def test_a_provider_that_tells_little_is_not_believed_more() -> None:
    """Parts that an owner of machines does not tell are named as unknown."""
    seen = Inventory("H100-SXM5-80GB", 8, 2048, 224, "S1", {"BMC": "1.0"})
    assert differences(seen) == {("gpu_memory", "info"), ("nic_count", "info"), ("drive_count", "info")}
