"""
Cleanings as real hardware goes through them: slowly, in the agent's hands, and into maintenance when a step fails.
"""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.providers.adapters.ironic.adapter import IronicAdapter
from controlplane.providers.errors import Busy
from tests.unit.ironic.peer import OneNode, peer

WIPE = {"wipe": {"kind": "manual", "steps": [{"interface": "deploy", "step": "erase_devices"}]}}
MOVES = {"manage": "manageable", "clean": "clean wait", "provide": "clean wait"}
FAILED = {
    "provision_state": "clean failed",
    "maintenance": True,
    "fault": "clean failure",
    "last_error": "Node failed step {'interface': 'deploy', 'step': 'erase_devices'}: sda",
    "maintenance_reason": "sda",
}


def _wiping(**more: Any) -> tuple[OneNode, IronicAdapter]:
    ironic = OneNode(MOVES, **more)
    adapter = peer(ironic.answer, config=WIPE)
    adapter.wipe("n1", "wip_1")
    return ironic, adapter


def test_a_node_that_ironic_put_aside_for_a_failed_step_is_taken_up_by_the_next_wipe() -> None:
    """Out of maintenance, managed, cleaned."""
    ironic, adapter = _wiping(**FAILED)
    assert ironic.sent == ["DELETE maintenance", "PUT states/provision manage", "PUT states/provision clean"]
    assert adapter.observe("n1").phase == "wiping"


def test_a_node_that_a_person_put_aside_stays_there() -> None:
    """Maintenance without Ironic's own fault is a person's."""
    ironic = OneNode(MOVES, maintenance=True, maintenance_reason="riser", provision_state="manageable")
    with pytest.raises(Busy, match="riser"):
        peer(ironic.answer, config=WIPE).wipe("n1", "wip_1")
    assert ironic.sent == []


def test_a_cleaning_on_an_ironic_without_records_counts_when_it_was_seen() -> None:
    """Seen at it, back by itself, no error in its history: passed, by Ironic's clock, and said so."""
    ironic, adapter = _wiping()
    assert adapter.observe("n1").phase == "wiping"
    ironic.node |= {"provision_state": "manageable", "provision_updated_at": "2026-01-31T12:34:56+00:00"}
    view = adapter.observe("n1")
    assert view.phase == "wiped"
    assert view.wipe is not None
    (passed,) = [one for one in view.wipe.checks if one.result == "passed"]
    assert passed.name == "disk_wiped"
    assert "we saw it clean" in passed.detail
    assert view.wipe.finished_at.isoformat() == "2026-01-31T12:34:56+00:00"


def test_a_cleaning_that_nobody_saw_and_nothing_records_has_not_passed() -> None:
    """The node only came back."""
    ironic, adapter = _wiping()
    ironic.node |= {"provision_state": "manageable", "provision_updated_at": "2026-01-31T12:34:56+00:00"}
    view = adapter.observe("n1")
    assert view.wipe is not None
    assert {one.result for one in view.wipe.checks} == {"not_measured"}


def test_a_step_that_fails_on_the_agent_is_named_and_what_comes_after_it_is_not_measured() -> None:
    """Failed, with Ironic's words."""
    ironic, adapter = _wiping()
    ironic.node |= FAILED
    view = adapter.observe("n1")
    assert (view.phase, "sda" in view.failure) == ("failed", True)
    assert view.wipe is not None
    assert [(one.name, one.result) for one in view.wipe.checks][0] == ("disk_wiped", "failed")  # noqa: RUF015


def test_a_wipe_repeated_while_it_runs_or_after_it_failed_begins_no_other() -> None:
    """The repeat finds the first one, in either state."""
    ironic, adapter = _wiping()
    begun = list(ironic.sent)
    adapter.wipe("n1", "wip_1")
    ironic.node |= FAILED
    adapter.wipe("n1", "wip_1")
    assert ironic.sent == begun


def test_a_wipe_that_was_written_down_and_not_begun_is_begun_by_the_repeat() -> None:
    """The state has not changed since: there was no cleaning, and no report is made of it."""
    ironic, adapter = _wiping()
    ironic.node |= {"provision_state": "manageable", "provision_updated_at": "2026-01-31T11:00:01+00:00"}
    assert (adapter.observe("n1").phase, adapter.observe("n1").wipe) == ("idle", None)
    adapter.wipe("n1", "wip_1")
    assert ironic.sent[-1] == "PUT states/provision clean"
    assert len(ironic.sent) == 3
