"""
Power: what is asked of the controller, and what is not.
"""

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import Busy, NotFound, Permanent, Unknown, Unsupported
from controlplane.providers.hardware import Controller
from tests.simulators.redfish import ways
from tests.simulators.redfish.server import FakeBmc, no
from tests.simulators.redfish.tree import BASEBOARD, MANAGER, RESET, SYSTEM, UUID, V1, ref

ALLOWABLE = "ResetType@Redfish.AllowableValues"
POST_RESET = f"POST {RESET}"


def allow(bmc: FakeBmc, *ways_allowed: str) -> None:
    """The system allows these resets only."""
    bmc.system["Actions"]["#ComputerSystem.Reset"][ALLOWABLE] = list(ways_allowed)


def test_on_and_off_are_asked_once_and_read_back(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """A repeat finds it done and sends nothing."""
    adapter.power(at, on=True)
    adapter.power(at, on=True)
    assert adapter.observe(at).power == "on"
    adapter.power(at, on=False)
    adapter.power(at, on=False, force=True)
    assert adapter.observe(at).power == "off"
    assert bmc.sent(POST_RESET) == [{"ResetType": "On"}, {"ResetType": "GracefulShutdown"}]


def test_force_cuts_the_power(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """With `force` the operating system is not asked."""
    bmc.system["PowerState"] = "On"
    adapter.power(at, on=False, force=True)
    assert bmc.sent(POST_RESET) == [{"ResetType": "ForceOff"}]


def test_only_allowed_ways_are_used(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """ForceOn stands in for On; where nothing fits the machine is told nothing."""
    allow(bmc, "ForceOn", "ForceOff")
    adapter.power(at, on=True)
    with pytest.raises(Unsupported, match="GracefulShutdown"):
        adapter.power(at, on=False)
    assert bmc.sent(POST_RESET) == [{"ResetType": "ForceOn"}]


def test_ways_are_found_in_action_info(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Allowed values may stand in a resource of their own."""
    info = f"{SYSTEM}/ResetActionInfo"
    allow(bmc, "ForceOn")
    reset = bmc.system["Actions"]["#ComputerSystem.Reset"]
    bmc.rules.append(lambda method, path, content: (204, None, {}) if f"{method} {path}" == POST_RESET and content else None)
    del reset[ALLOWABLE]
    reset["@Redfish.ActionInfo"] = info
    bmc.tree[info] = {"Parameters": [{"Name": "ResetType", "AllowableValues": ["ForceOn"]}]}
    adapter.power(at, on=True)
    assert bmc.sent(POST_RESET) == [{"ResetType": "ForceOn"}]


@pytest.mark.parametrize(("said", "on"), [("PoweringOn", True), ("PoweringOff", False)])
def test_a_change_under_way_is_left_alone(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, said: str, *, on: bool) -> None:
    """While it goes where it should, nothing is sent; the other way round it is asked for patience. Its power is unknown."""
    bmc.system["PowerState"] = said
    adapter.power(at, on=on)
    with pytest.raises(Busy):
        adapter.power(at, on=not on)
    assert adapter.observe(at).power == "unknown"
    assert bmc.sent(POST_RESET) == []


def test_a_stale_answer_is_not_believed_twice(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The old state shows until the controller catches up; a repeat meanwhile asks again and harms nothing."""
    bmc.stale_reads = 2
    adapter.power(at, on=True)
    assert adapter.observe(at).power == "off"
    adapter.power(at, on=True)
    bmc._shown_power.clear()
    assert adapter.observe(at).power == "on"
    assert bmc.sent(POST_RESET) == [{"ResetType": "On"}] * 2


def test_on_soon_after_off_is_busy(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """iDRAC10 answers 409 for a minute; its row of the table says when to come back."""
    ways.as_dell(bmc, model="17G Monolithic", version="1.20.25.00")
    bmc.refuses_on = 1
    with pytest.raises(Busy) as caught:
        adapter.power(at, on=True)
    assert caught.value.retry_in_s == 15.0
    adapter.power(at, on=True)
    assert adapter.observe(at).power == "on"


def test_a_refusal_of_what_is_so_already_is_success(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The machine went on between our look and our request."""

    def refuses(method: str, path: str, _: dict[str, object]) -> tuple[int, object, dict[str, str]] | None:
        if f"{method} {path}" != POST_RESET:
            return None
        bmc.system["PowerState"] = "On"
        return no(400, "iLO.2.14.InvalidOperationForSystemState", "already on")

    bmc.rules.append(refuses)
    adapter.power(at, on=True)


def test_the_machine_is_the_system_that_can_be_switched(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """An HGX baseboard stands first among the systems and is not taken for the machine."""
    adapter.power(at, on=True)
    assert bmc.lines("POST") == [POST_RESET]
    assert f"GET {BASEBOARD}" in bmc.lines()


@pytest.mark.parametrize(
    "other",
    [
        {"Id": "Board_0"},
        {"Actions": {"#ComputerSystem.Reset": {"target": f"{BASEBOARD}/Reset"}}},
        {"Id": "Bluefield", "SystemType": "DPU", "Actions": {"#ComputerSystem.Reset": {"target": f"{BASEBOARD}/Reset"}}},
    ],
    ids=["no reset", "an HGX board that resets", "a DPU"],
)
def test_what_is_not_the_machine_is_told_by_each_sign(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, other: dict[str, object]
) -> None:
    """One of them is enough."""
    bmc.tree[BASEBOARD] |= other
    adapter.power(at, on=True)
    assert bmc.lines("POST") == [POST_RESET]


@pytest.mark.parametrize("named", ["1", UUID, UUID.lower()])
def test_a_named_system_is_found_by_id_or_uuid(bmc: FakeBmc, adapter: RedfishAdapter, named: str) -> None:
    """Whatever case the UUID is written in."""
    adapter.power(Controller("nod_1", bmc.url, system=named), on=True)
    assert bmc.system["PowerState"] == "On"


def test_a_named_system_may_be_redirected(bmc: FakeBmc, adapter: RedfishAdapter) -> None:
    """sushy-tools redirects a system's name to its UUID."""
    bmc.rules.append(ways.redirect(f"{V1}/Systems/gpu-node", SYSTEM))
    adapter.power(Controller("nod_1", bmc.url, system="gpu-node"), on=True)
    assert bmc.system["PowerState"] == "On"


def test_a_system_that_is_not_there_is_not_found(bmc: FakeBmc, adapter: RedfishAdapter) -> None:
    """Nothing else is taken in its place."""
    with pytest.raises(NotFound):
        adapter.observe(Controller("nod_1", bmc.url, system="7"))


def test_several_machines_need_a_name(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Nobody guesses which of them is meant."""
    twin = f"{V1}/Systems/2"
    bmc.tree[twin] = bmc.system | {"@odata.id": twin, "Id": "2"}
    bmc.tree[f"{V1}/Systems"]["Members"].append(ref(twin))
    with pytest.raises(Permanent, match="1, 2") as caught:
        adapter.power(at, on=True)
    assert caught.value.code == "provider_system_ambiguous"


def test_a_machine_that_was_renumbered_is_found_again(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """What was learned of the tree is forgotten when it no longer holds."""
    adapter.observe(at)
    moved = f"{V1}/Systems/Self"
    bmc.tree[moved] = bmc.tree.pop(SYSTEM) | {"@odata.id": moved, "PowerState": "On"}
    bmc.tree[f"{V1}/Systems"]["Members"] = [ref(moved)]
    assert adapter.observe(at).power == "on"


def test_a_part_that_is_missing_does_not_make_the_machine_missing(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """NotFound is said of the whole machine only."""
    del bmc.tree[MANAGER]
    with pytest.raises(Unknown, match="part of the machine"):
        adapter.observe(at)


def test_an_observation_tells_health_and_nothing_that_was_not_read(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The roll-up, null as unknown; no override, no media, nothing pending."""
    view = adapter.observe(at)
    assert (view.power, view.health, view.boot_source, view.boot_once, view.media, view.pending) == (
        "off",
        "warning",
        None,
        None,
        None,
        (),
    )
    for status, health in (
        ({"Health": "OK", "HealthRollup": None}, "unknown"),
        ({"Health": "Critical"}, "critical"),
        (None, "unknown"),
    ):
        bmc.system["Status"] = status
        assert adapter.observe(at).health == health
