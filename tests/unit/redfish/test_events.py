"""
Logs of several clocks as one listing that leaves nothing out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.providers.adapters.redfish.events import moment, read_log
from controlplane.providers.errors import Unknown
from controlplane.providers.hardware import LogEntry
from tests.unit.redfish.controllers import BMC, BOARD, CHASSIS, HOST, V1, Controller, Resources, hgx, link, log

SEL = "Systems/System_0/SEL"
BOARD_LOG = "Systems/HGX_Baseboard_0/EventLog"


def _ids(tree: Resources, after: str = "") -> list[str]:
    return [entry.id for entry in read_log(Controller(tree), HOST, after).entries]


def _at(minute: int, day: int = 28) -> str:
    return f"2026-11-{day}T10:{minute:02}:00Z"


def test_all_logs_are_one_listing_oldest_first() -> None:
    """Host and board by time, each entry under the name of its log."""
    logs = read_log(Controller(hgx()), HOST, "")
    assert logs.complete
    assert logs.entries == (
        LogEntry(f"{SEL}/1", datetime(2026, 11, 28, 10, tzinfo=UTC), "ok", "started"),
        LogEntry(f"{BOARD_LOG}/7", datetime(2026, 11, 28, 10, 30, tzinfo=UTC), "warning", "GPU hot"),
        LogEntry(f"{SEL}/2", datetime(2026, 11, 28, 11, tzinfo=UTC), "critical", "PSU lost"),
    )


def test_entries_after_one_of_the_same_log_follow_it() -> None:
    """And what other logs noted later."""
    assert _ids(hgx(), f"{SEL}/1") == [f"{BOARD_LOG}/7", f"{SEL}/2"]
    assert _ids(hgx(), f"{SEL}/2") == []


def test_an_entry_that_is_gone_brings_back_all() -> None:
    """A log was cleared: what is left is told."""
    assert len(_ids(hgx(), f"{SEL}/99")) == 3


def test_what_other_logs_noted_shortly_before_is_told_again() -> None:
    """Their clocks may be late: an entry that came after the last look can be older than the last one seen."""
    tree = hgx()
    log(tree, BOARD, "EventLog", [("7", _at(0), "OK", "a"), ("8", _at(50), "OK", "b")])
    log(tree, HOST, "SEL", [("1", _at(55), "OK", "c")])
    assert _ids(tree, f"{SEL}/1") == [f"{BOARD_LOG}/8"]


def test_a_log_without_a_clock_is_always_told() -> None:
    """At 1970 its new entries cannot be told from old ones by time: the newest hundred come each time."""
    tree = hgx()
    log(tree, BOARD, "EventLog", [(str(number), "1970-01-01T00:00:09+00:00", "OK", "x") for number in range(1, 131)])
    found = _ids(tree, f"{SEL}/2")
    assert found == [f"{BOARD_LOG}/{number}" for number in range(31, 131)]
    assert _ids(tree, f"{BOARD_LOG}/130") == [f"{SEL}/1", f"{SEL}/2"]
    assert read_log(Controller(tree), HOST, f"{SEL}/2").entries[0].at is None


def test_a_clock_that_fell_back_keeps_the_order_of_its_log() -> None:
    """A restart to 1970 does not bring new entries before old ones."""
    tree = hgx()
    log(tree, HOST, "SEL", [("1", _at(0), "OK", "a"), ("2", "1970-01-01T00:00:05Z", "OK", "b"), ("3", None, "OK", "c")])
    assert _ids(tree, f"{SEL}/1") == [f"{SEL}/2", f"{SEL}/3", f"{BOARD_LOG}/7"]
    assert _ids(tree, f"{BOARD_LOG}/7") == [f"{SEL}/2", f"{SEL}/3"]


def test_an_entry_of_the_future_hides_nothing() -> None:
    """The controller's own time tells that its clock was wrong."""
    tree = hgx()
    log(tree, HOST, "SEL", [("1", "2036-01-01T00:00:00Z", "OK", "wrong clock")])
    assert _ids(tree, f"{SEL}/1") == [f"{BOARD_LOG}/7"]


def test_a_log_of_the_newest_first_is_turned_round() -> None:
    """By its numbers, or by its times where its ids are none."""
    tree = hgx()
    log(tree, HOST, "SEL", [("10", _at(1), "OK", "b"), ("9", _at(1), "OK", "a")])
    log(tree, BOARD, "EventLog", [("y", _at(3), "OK", "d"), ("x", _at(2), "OK", "c")])
    assert _ids(tree) == [f"{SEL}/9", f"{SEL}/10", f"{BOARD_LOG}/x", f"{BOARD_LOG}/y"]


def _pages(tree: Resources, numbers: list[int]) -> str:
    path = log(tree, HOST, "SEL", [])
    for at, number in enumerate(numbers):
        page = path if at == 0 else f"{path}?$skip={at * 2}"
        entries = [
            {"@odata.id": f"{path}/{own}", "Id": str(own), "Created": _at(own % 60)}
            for own in sorted((number, number + 1), reverse=numbers[0] > numbers[-1])
        ]
        following = {"Members@odata.nextLink": f"{path}?$skip={(at + 1) * 2}"} if at + 1 < len(numbers) else {}
        tree[page] = {"Members": entries, "Members@odata.count": 2 * len(numbers), **following}
    return path


def test_pages_are_read_until_the_entry_is_found() -> None:
    """Of a log that starts with its newest: the older pages are not asked for."""
    tree = hgx()
    path = _pages(tree, list(range(99, 0, -2)))
    controller = Controller(tree)
    found = read_log(controller, HOST, f"{SEL}/96")
    assert [entry.id for entry in found.entries if entry.id.startswith(SEL)] == [f"{SEL}/{number}" for number in range(97, 101)]
    assert sum(asked.startswith(path) for asked in controller.asked) == 3


def test_pages_have_an_end() -> None:
    """Twenty of a log that starts with its newest; an entry that is further back leaves the listing incomplete."""
    tree = hgx()
    path = _pages(tree, list(range(99, 0, -2)))
    controller = Controller(tree)
    found = read_log(controller, HOST, "")
    assert sum(asked.startswith(path) for asked in controller.asked) == 20
    assert found.complete
    assert not read_log(controller, HOST, f"{SEL}/3").complete


def test_all_pages_of_a_log_that_ends_with_its_newest_are_read() -> None:
    """There is no other way to the newest."""
    tree = hgx()
    _pages(tree, list(range(1, 100, 2)))
    assert [one for one in _ids(tree) if one.startswith(SEL)] == [f"{SEL}/{number}" for number in range(1, 101)]


def test_a_page_that_does_not_answer_is_not_complete() -> None:
    """What was read is told."""
    controller = Controller(hgx())
    controller.faults[f"{HOST}/LogServices/SEL/Entries"] = Unknown("timeout")
    logs = read_log(controller, HOST, "")
    assert ([entry.id for entry in logs.entries], logs.complete) == ([f"{BOARD_LOG}/7"], False)


def test_managers_and_chassis_have_logs_too_and_one_log_is_read_once() -> None:
    """Some controllers link the manager's log from the system; dumps and audits are no events."""
    tree = hgx()
    log(tree, BMC, "Sel", [("1", _at(1), "OK", "a")])
    log(tree, BMC, "Dump", [("1", _at(1), "OK", "dump")])
    log(tree, BMC, "AuditLog", [("1", _at(1), "OK", "login")])
    log(tree, CHASSIS, "XID", [("1", _at(2), "Critical", "XID 79")])
    tree[f"{HOST}/LogServices"]["Members"].append(link(f"{BMC}/LogServices/Sel"))
    found = _ids(tree)
    assert found.count("Managers/BMC_0/Sel/1") == 1
    assert "Chassis/Main/XID/1" in found
    assert not [one for one in found if "Dump" in one or "Audit" in one]


def test_entries_that_are_only_linked_are_read() -> None:
    """One call each."""
    tree = hgx()
    path = log(tree, HOST, "SEL", [("1", _at(1), "OK", "a")])
    tree[f"{path}/1"] = tree[path]["Members"][0]
    tree[path]["Members"] = [link(f"{path}/1")]
    assert f"{SEL}/1" in _ids(tree)


@pytest.mark.parametrize(
    ("entry", "severity", "message", "code"),
    [
        ({"Severity": "OK", "Message": " a \n b ", "MessageId": "X.1.0.Y"}, "ok", "a b", "X.1.0.Y"),
        ({"Severity": None, "Message": "a"}, "unknown", "a", ""),
        ({"Severity": ["Critical"], "Name": "Entry"}, "unknown", "Entry", ""),
        ({"CPER": {"Oem": {"Nvidia": {"Severity": "Fatal", "NvIpSignature": "PCIe"}}}}, "critical", "PCIe", ""),
        ({"CPER": {"Oem": {"Nvidia": {"Severity": "Odd"}}}, "Name": "Fault"}, "unknown", "Fault", ""),
        ({"Severity": "Critical", "Message": "m", "OemLogEntryCode": "PLAT0264"}, "critical", "m", "PLAT0264"),
    ],
)
def test_severity_message_and_code(entry: dict[str, Any], severity: str, message: str, code: str) -> None:
    """Folded from what the vendor fills."""
    tree = hgx()
    path = log(tree, HOST, "SEL", [])
    tree[path] = {"Members": [{"Id": "5", **entry}]}
    found = next(one for one in read_log(Controller(tree), HOST, "").entries if one.id == f"{SEL}/5")
    assert (found.severity, found.message, found.code) == (severity, message, code)


@pytest.mark.parametrize(
    ("said", "offset", "at"),
    [
        ("2026-11-28T10:00:00Z", None, datetime(2026, 11, 28, 10, tzinfo=UTC)),
        ("2026-11-28T10:00:00-05:00", None, datetime(2026, 11, 28, 15, tzinfo=UTC)),
        ("2026-11-28T10:00:00+0530", None, datetime(2026, 11, 28, 4, 30, tzinfo=UTC)),
        ("2026-11-28 10:00:00 +02", None, datetime(2026, 11, 28, 8, tzinfo=UTC)),
        ("2026-11-28T10:00:00.1234567z", None, datetime(2026, 11, 28, 10, 0, 0, 123456, tzinfo=UTC)),
        ("2026-11-28T10:00", None, datetime(2026, 11, 28, 10, tzinfo=UTC)),
        ("2026-11-28T10:00:00", "-05:00", datetime(2026, 11, 28, 15, tzinfo=UTC)),
        ("2026-11-28T10:00:00", "nonsense", datetime(2026, 11, 28, 10, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", None, None),
        ("0000-00-00T00:00:00Z", None, None),
        ("0001-01-01T00:00:00+14:00", None, None),
        ("2026-02-30T10:00:00Z", None, None),
        ("2026-11-28T10:00:00+99:99", None, None),
        ("yesterday", None, None),
        (1_700_000_000, None, None),
        (None, None, None),
    ],
)
def test_times_of_every_zone_are_utc(said: object, offset: object, at: datetime | None) -> None:
    """What is no time is none, and a clock before 2000 was never set."""
    assert moment(said, offset) == at


def test_times_without_a_zone_are_those_of_their_log() -> None:
    """The log service tells its offset."""
    tree = hgx()
    log(tree, HOST, "SEL", [("1", "2026-11-28T10:00:00", "OK", "a")], DateTimeLocalOffset="+01:00")
    found = next(one for one in read_log(Controller(tree), HOST, "").entries if one.id == f"{SEL}/1")
    assert found.at == datetime(2026, 11, 28, 9, tzinfo=UTC)
    assert V1 not in found.id
