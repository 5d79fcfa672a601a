"""
States, marks, evidence and inventories: what is made of what Ironic tells.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.ironic.config import InventoryConfig, StepConfig
from controlplane.providers.adapters.ironic.evidence import HistoryEntry, checks_of, outcome_of, things_not_measured
from controlplane.providers.adapters.ironic.inventory import fold_inventory
from controlplane.providers.adapters.ironic.marks import Marks, Task, Tenancy, UnreadableMarks, from_json, to_json
from controlplane.providers.adapters.ironic.naming import Names
from controlplane.providers.adapters.ironic.nodes import Node, read_node
from controlplane.providers.adapters.ironic.states import view_of
from controlplane.providers.errors import Refused
from controlplane.providers.machines import Check, Deployment, Inventory, WipeReport
from tests.unit.ironic.peer import node, peer

NAMES = Names("test")
HELD = Tenancy("alc_1", "held", "ten_1", "clu_1", "net-1", "default")
OURS = NAMES.instance_uuid("alc_1")
KNOWN = (
    *(
        "enroll",
        "verifying",
        "manageable",
        "available",
        "inspecting",
        "inspect wait",
        "inspect failed",
        "deploying",
        "wait call-back",
    ),
    *("deploy hold", "deploy failed", "active", "deleting", "error", "cleaning", "clean wait", "clean hold", "clean failed"),
    *("rescuing", "rescue wait", "rescue", "rescue failed", "unrescuing", "unrescue failed"),
    *("servicing", "service wait", "service hold", "service failed"),
)
word = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
check = st.builds(Check, word, st.sampled_from(["passed", "failed", "not_measured"]), word)
instants = st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
marks = st.builds(
    Marks,
    revision=st.integers(1, 10**6),
    tenancy=st.none() | st.builds(Tenancy, word, st.sampled_from(["held", "releasing", "released"]), word, word, word, word),
    ended=st.lists(word, max_size=4).map(tuple),
    wiped_since=st.booleans(),
    task=st.none() | st.builds(Task, st.sampled_from(["wipe", "qualify", "inspect"]), word, word, st.lists(word).map(tuple)),
    wipe=st.none() | st.builds(WipeReport, word, instants, st.lists(check, max_size=3).map(tuple)),
    qualified_token=st.none() | word,
    checks=st.lists(check, max_size=3).map(tuple),
    inspected_token=word,
    inventory=st.none()
    | st.builds(Inventory, word, st.integers(0, 16), st.integers(0), st.integers(0), word, st.just({"bmc": "1"})),
    powers=st.lists(word, max_size=4).map(tuple),
)


def _node(state: str, remembered: Marks | None = None, **more: Any) -> Node:
    extra = {} if remembered is None else {NAMES.key: to_json(replace(remembered, revision=1))}
    return read_node(node(provision_state=state, extra=extra, **more), NAMES)


@settings(deadline=None)
@given(marks)
def test_what_is_remembered_is_read_back(remembered: Marks) -> None:
    """Writing and reading is the identity."""
    assert from_json(to_json(remembered)) == remembered


json_values = st.recursive(st.none() | st.booleans() | st.integers() | word, lambda one: st.lists(one) | st.dictionaries(word, one))


@settings(deadline=None)
@given(json_values | st.dictionaries(st.just("revision-1"), json_values))
def test_what_somebody_else_wrote_is_never_taken_for_ours(value: Any) -> None:
    """It is unreadable, or it was nothing at all; no other error escapes."""
    try:
        read = from_json(value)
    except UnreadableMarks:
        return
    assert read.tenancy is None
    assert read.wipe is None


def test_a_node_with_somebody_elses_text_in_our_place_is_left_alone() -> None:
    """Unknown, without a token, and refused."""
    strange = node(extra={NAMES.key: {"owner": "bob"}})
    adapter = peer(lambda request: httpx.Response(200, json=strange))
    view = adapter.observe("n1")
    assert (view.phase, view.token) == ("unknown", None)
    with pytest.raises(Refused):
        adapter.deploy(Deployment("n1", "alc_1", "ten_1", "clu_1", network=""))


@settings(deadline=None)
@given(st.text(max_size=20).filter(lambda one: one not in KNOWN), st.sampled_from([None, HELD, replace(HELD, stage="released")]))
def test_a_state_that_is_not_known_is_unknown(state: str, tenancy: Tenancy | None) -> None:
    """Whatever Ironic will invent, it is nothing to act on."""
    instance = OURS if tenancy is HELD else None
    assert view_of(_node(state, Marks(tenancy=tenancy), instance_uuid=instance, power_state="power on")).phase == "unknown"


@pytest.mark.parametrize("state", KNOWN)
def test_only_a_node_that_serves_its_tenancy_is_deployed(state: str) -> None:
    """Of all states, a tenancy is deployed in those in which the machine is the tenant's."""
    view = view_of(_node(state, Marks(tenancy=HELD), instance_uuid=OURS, power_state="power on"))
    serving = state == "active" or state.startswith(("rescu", "unrescu", "servic"))
    assert (view.phase == "deployed") is serving
    assert view.token == "alc_1"


@pytest.mark.parametrize("state", KNOWN)
def test_a_free_node_is_never_taken_for_held_or_wiped(state: str) -> None:
    """Without marks of ours a node is idle, failed or unknown."""
    assert view_of(_node(state)).phase in {"idle", "failed", "unknown"}
    assert view_of(_node(state)).token is None


def test_power_is_what_was_read_and_not_what_was_asked() -> None:
    """A switch under way, or a controller that was never reached, changes nothing about it."""
    assert view_of(_node("active", power_state=None)).power == "unknown"
    assert view_of(_node("active", power_state="error")).power == "unknown"
    assert view_of(_node("active", power_state="power on", target_power_state="power off")).power == "on"


TASK = Task("wipe", "wip_1", "manual_cleaning", ("deploy.erase_devices", "bios.factory_reset"), since="2026-01-31T10:00:00+00:00")
STEPS = [
    StepConfig(interface="deploy", step="erase_devices"),
    StepConfig(interface="bios", step="factory_reset", proves="bios_baseline"),
]
START = "Starting manual cleaning with steps=[{'interface': 'deploy', 'step': 'erase_devices', 'args': {'a': None}}]"


def _entry(kind: str, words: str = "", severity: str = "INFO") -> HistoryEntry:
    return HistoryEntry("h", datetime(2026, 1, 31, 11, tzinfo=UTC), severity, kind, words)


def _results(task: Task, seen: Node, history: list[HistoryEntry] | None) -> dict[str, str]:
    checks = checks_of(outcome_of(task, seen, history), seen, STEPS)
    return {one.name: one.result for one in (*checks, *things_not_measured(checks))}


def test_a_recorded_cleaning_proves_the_steps_that_ironic_names() -> None:
    """Not those that were asked for: what ran is what counts."""
    history = [_entry("manual_cleaning_start", START), _entry("manual_cleaning_end", "completed")]
    found = _results(TASK, _node("manageable"), history)
    assert found["disk_wiped"] == "passed"
    assert "bios_baseline" not in {name for name, result in found.items() if result == "passed"}
    assert found["gpu_memory_scrubbed"] == "not_measured"


def test_without_a_record_only_what_we_saw_counts() -> None:
    """An older Ironic records errors only: a cleaning that we saw and that left none has passed, one that we did not see has not."""
    seen = _node("manageable")
    assert _results(replace(TASK, seen=True), seen, [])["disk_wiped"] == "passed"
    assert _results(TASK, seen, [])["disk_wiped"] == "not_measured"
    assert _results(replace(TASK, seen=True), seen, None)["disk_wiped"] == "not_measured"


@pytest.mark.parametrize(
    ("state", "last_error", "history"),
    [
        ("clean failed", "Node failed step {'interface': 'deploy', 'step': 'erase_devices'}: disk sda", []),
        ("manageable", None, [_entry("cleaning", "failed step {'step': 'erase_devices'}", "ERROR")]),
        ("manageable", None, [_entry("manual_cleaning_end", "aborted at step 'erase_devices'", "ERROR")]),
        ("manageable", "Timeout reached while cleaning the node", []),
    ],
)
def test_any_sign_of_failure_is_a_failure(state: str, last_error: str | None, history: list[HistoryEntry]) -> None:
    """In the state, the history or the last error; and then nothing has passed."""
    results = set(_results(replace(TASK, seen=True), _node(state, last_error=last_error), history).values())
    assert "failed" in results
    assert "passed" not in results


def test_trouble_that_is_not_the_cleanings_does_not_spoil_it() -> None:
    """A power check that failed meanwhile is another matter."""
    history = [
        _entry("monitoring", "power sync failed", "ERROR"),
        _entry("manual_cleaning_start", START),
        _entry("manual_cleaning_end"),
    ]
    assert _results(TASK, _node("manageable", last_error="power sync failed"), history)["disk_wiped"] == "passed"


def test_a_cleaning_that_was_written_down_and_not_begun_is_no_cleaning() -> None:
    """The node's state has not changed since, and its history has nothing."""
    untouched = _node("manageable", provision_updated_at=TASK.since)
    assert outcome_of(TASK, untouched, []).begun is False
    assert outcome_of(TASK, _node("manageable"), []).begun is True


@settings(deadline=None)
@given(st.text(max_size=80))
def test_steps_that_cannot_be_read_are_those_that_were_asked(words: str) -> None:
    """The record's text is Ironic's own; nothing in it can break the reading."""
    history = [_entry("manual_cleaning_start", words), _entry("manual_cleaning_end")]
    assert outcome_of(TASK, _node("manageable"), history).steps == TASK.steps


def test_an_automated_cleaning_of_no_steps_proves_nothing() -> None:
    """Ironic ended well and ran nothing."""
    task = replace(TASK, flow="automated_cleaning", steps=())
    history = [_entry("automated_cleaning_start", "with steps=[]"), _entry("automated_cleaning_end")]
    assert "passed" not in _results(task, _node("available"), history).values()


AGENT = {
    "inventory": {"memory": {"physical_mb": 2064384}, "cpu": {"count": 192}, "system_vendor": {"serial_number": "SN1"}},
    "plugin_data": {
        "pci_devices": [
            *({"vendor_id": "10de", "product_id": "2330", "class": "0302"} for _ in range(8)),
            {"vendor_id": "15b3", "product_id": "1021"},
        ]
    },
}


def test_gpus_are_counted_among_the_pci_devices_of_the_agent() -> None:
    """By the products that the operator names; the agent's own figures go before properties."""
    config = InventoryConfig(gpu_devices={"10DE:2330": "H100-SXM5-80GB"})
    found = fold_inventory({"properties": {"gpus": 4, "memory_mb": 1}}, AGENT, {"bmc": "1.2"}, config)
    assert found == Inventory("H100-SXM5-80GB", 8, 2016, 192, "SN1", {"bmc": "1.2"})


def test_gpus_are_counted_among_the_pci_devices_of_a_controller() -> None:
    """Inspection by Redfish lists them elsewhere, and with a prefix."""
    told = {"inventory": {"pci_devices": [{"vendor_id": "0x10DE", "product_id": "0x2330"}] * 4}, "plugin_data": {}}
    found = fold_inventory({}, told, {}, InventoryConfig(gpu_devices={"10de:2330": "H100-SXM5-80GB"}))
    assert (found.gpus, found.gpu_model) == (4, "H100-SXM5-80GB")


def test_missing_gpus_are_missing() -> None:
    """An agent that lists devices and no GPU has counted zero, whatever the properties say."""
    config = InventoryConfig(gpu_devices={"10de:9999": "X"})
    assert fold_inventory({"properties": {"gpus": 8}}, AGENT, {}, config).gpus == 0


@settings(deadline=None)
@given(json_values)
def test_no_inventory_is_too_strange_to_fold(told: Any) -> None:
    """What has no known form is empty or zero, and nothing raises."""
    config = InventoryConfig(gpu_devices={"10de:2330": "X"})
    document = {"properties": told}
    inside = {"inventory": told, "plugin_data": {"pci_devices": told}}
    found = fold_inventory(document, inside, {}, config)
    assert found.gpus >= 0
    assert found.cpus >= 0
