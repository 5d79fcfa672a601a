"""
Restarting the controller itself.
"""

from __future__ import annotations

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import Busy, Refused, Unknown, Unsupported
from controlplane.providers.hardware import Controller, SupportsReset
from tests.simulators.redfish.server import FakeBmc, no
from tests.simulators.redfish.tree import MANAGER, MANAGER_RESET, RESET

LINE = f"POST {MANAGER_RESET}"


def test_it_restarts_gently_and_our_calls_find_their_way_back(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The session is over, the next call logs in anew; the machine itself is not touched."""
    assert isinstance(adapter, SupportsReset)
    adapter.observe(at)
    adapter.reset_controller(at)
    adapter.observe(at)
    assert bmc.sent(LINE) == [{"ResetType": "GracefulRestart"}]
    assert (bmc.restarts, bmc.opened) == (1, 2)
    assert bmc.lines(f"POST {RESET}") == []


@pytest.mark.parametrize(("known", "way"), [(["ForceRestart"], "ForceRestart"), (None, "GracefulRestart")])
def test_the_way_is_one_that_it_knows(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, known: list[str] | None, way: str
) -> None:
    """Where it does not tell, the gentle one."""
    action = bmc.tree[MANAGER]["Actions"]["#Manager.Reset"]
    del action["ResetType@Redfish.AllowableValues"]
    if known is not None:
        action["ResetType@Redfish.AllowableValues"] = known
    adapter.reset_controller(at)
    assert bmc.sent(LINE) == [{"ResetType": way}]


def test_while_it_is_away_nothing_is_known(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Silence is unknown, until it answers again."""
    bmc.silent_after_restart = 4
    adapter.reset_controller(at)
    for _ in range(2):
        with pytest.raises(Unknown):
            adapter.observe(at)
    adapter.observe(at)


def test_one_that_goes_down_before_it_answers_is_unknown(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """It took effect, and nobody claims that it did."""
    bmc.fail(LINE, "effect_reset")
    with pytest.raises(Unknown):
        adapter.reset_controller(at)
    assert bmc.restarts == 1


def test_what_is_not_offered_or_not_allowed_is_said(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """No action, no way that we would take, not now, never."""
    for answer, expected in ((no(409, "Base.1.8.ResourceInUse"), Busy), (no(400, "Base.1.8.ActionNotSupported"), Refused)):
        bmc.fail(LINE, "say", payload=answer)
        with pytest.raises(expected):
            adapter.reset_controller(at)
    bmc.tree[MANAGER]["Actions"]["#Manager.Reset"]["ResetType@Redfish.AllowableValues"] = ["PowerCycle"]
    with pytest.raises(Unsupported):
        adapter.reset_controller(at)
    del bmc.tree[MANAGER]["Actions"]
    with pytest.raises(Unsupported):
        adapter.reset_controller(at)
    assert bmc.restarts == 0
