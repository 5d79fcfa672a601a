"""
The life of a bare machine, one call at a time: what is asked in which order, what is believed, and what a crash between two calls
changes (nothing).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.kit.outcome import Advance, Fail, Wait
from controlplane.nodes.states import Boot
from tests.factories.metal import HELD, INVENTORY, NOW, WIRES, Bench, bare_node, drive

READY = Boot("bot_1", "ready", 90.0, NOW)
WIPED = (
    {"name": "disks_counted", "result": "passed"},
    {"name": "disk:nvme0n1", "result": "passed"},
    {"name": "disk:nvme1n1", "result": "passed"},
)
BASELINE = {
    "hardware": {
        "uuid": "0f0f",
        "vendor": "Acme",
        "model": "G8",
        "gpus": [{"slot": f"GPU{n}", "model": "NVIDIA H100 80GB HBM3", "serial": f"G{n}"} for n in range(8)],
        "nics": [{"name": "p1", "mac": "02:00:00:00:00:01"}],
        "drives": [{"name": "d0", "serial": "D0", "size_bytes": 10**12}, {"name": "d1", "serial": "D1", "size_bytes": 10**12}],
        "firmware": {"BMC": "1.0"},
    }
}
ATTACHED = {("leaf1", "swp1"): 10001, ("leaf2", "swp1"): 10001}


@pytest.mark.parametrize("twice", [False, True])
def test_a_machine_is_deployed_from_its_own_seed(twice: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Off, on its tenant's network, seeded, started; it is the tenant's when it has itself reported good."""
    bench = Bench()
    waiting, trail = drive(bare_node("deploying"), bench, each_twice=twice)
    assert isinstance(waiting, Wait)
    assert trail == ["", "dark", "attach", "joined", "seed", "aim", "closing", "lock", "light", "report"]
    assert bench.locked
    assert bench.media == "http://cp/v1/boot/bot_1.token/seed.iso"
    assert bench.ports == ATTACHED
    assert bench.unsafe == []
    done, _ = drive(bare_node("deploying", step="report", boot=READY), bench, each_twice=twice)
    assert done == Advance("active", "Deployed.")
    assert bench.media is None


def test_a_machine_that_reports_trouble_is_not_given_out() -> None:
    """A report that something failed ends the deployment, with the machine's words for operators."""
    failed = Boot("bot_1", "failed", 90.0, failure="script_failed: line 3")
    outcome, _ = drive(bare_node("deploying", step="report", boot=failed), Bench())
    assert outcome == Fail(
        "deploy_failed", "The machine reported that it did not come up as it should.", detail="script_failed: line 3"
    )


def test_a_machine_that_never_calls_is_started_once_more() -> None:
    """An ignored boot override looks like silence: one more start from nothing, then it has failed."""
    bench = Bench()
    silent = bare_node("deploying", step="report", boot=Boot("bot_1", "made", 601.0))
    waiting, trail = drive(silent, bench)
    assert isinstance(waiting, Wait)
    assert trail[-1] == "report-again"
    assert bench.acts == ["cut", "insert", "boot network", "lock", "on"]
    outcome, _ = drive(replace(silent, step="report-again", boot=Boot("bot_1", "made", 1201.0)), bench)
    assert isinstance(outcome, Fail)
    assert outcome.code == "deploy_failed_silent"


def test_a_slow_machine_that_has_called_is_not_cut_off() -> None:
    """Once it has fetched its seed only its state's deadline ends the waiting."""
    bench = Bench()
    outcome, _ = drive(bare_node("deploying", step="report", boot=Boot("bot_1", "fetched", 5000.0)), bench)
    assert isinstance(outcome, Wait)
    assert bench.acts == []


def test_nothing_goes_on_before_the_power_is_seen_off() -> None:
    """A controller that says yes and leaves the power on gets no seed."""
    bench = Bench(stuck_on=True)
    outcome, trail = drive(bare_node("deploying"), bench)
    assert isinstance(outcome, Wait)
    assert trail == ["", "dark"]
    assert bench.acts == ["cut"]


def test_a_cut_that_was_swallowed_is_made_again() -> None:
    """A machine that is on long after its cut is cut once more, from a look that a person let go on too."""
    bench = Bench()
    early, _ = drive(bare_node("releasing", step="dark", state_for_s=5.0), bench)
    assert isinstance(early, Wait)
    assert (early.step, bench.acts) == ("dark", [])
    for state, step, cut in (("releasing", "dark", "cut"), ("deploying", "dark-again", "cut-again"), ("cleaning", "still", "down")):
        bench = Bench()
        _, trail = drive(bare_node(state, step=step, state_for_s=61.0, boot=Boot("bot_1", "ready", 61.0, NOW)), bench)
        assert trail[1] == cut
        assert (bench.acts[0], bench.power_) in {("cut", "off"), ("cut", "on")}


def test_a_switch_that_forgets_is_told_again() -> None:
    """A port that was told and does not carry the network is told once more."""
    bench = Bench(forgetful=1)
    waiting, trail = drive(bare_node("deploying"), bench)
    assert isinstance(waiting, Wait)
    assert trail.count("attach") == 2
    assert bench.ports == ATTACHED


def test_a_withdrawn_order_goes_back_untouched() -> None:
    """Nothing is asked of the machine of an order that is no more."""
    bench = Bench()
    outcome, _ = drive(bare_node("deploying", cancel=True), bench)
    assert outcome == Advance("releasing", "The order was withdrawn.")
    assert bench.acts == []


@pytest.mark.parametrize("twice", [False, True])
def test_a_machine_is_taken_off_the_network_before_its_power_is_cut(twice: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Detached and seen detached, then cut and seen dark, then wiped."""
    bench = Bench(media="http://old", ports=dict(ATTACHED))
    outcome, trail = drive(bare_node("releasing"), bench, each_twice=twice)
    assert outcome == Advance("cleaning", "Taken back.")
    assert trail == ["", "apart", "cut", "dark", "unlock", "eject"]
    assert set(bench.ports.values()) == {None}
    assert bench.power_ == "off"
    assert bench.media is None


def test_a_port_that_stays_on_the_network_holds_the_release_up() -> None:
    """A machine whose port still carries the tenant's network is not cut, not wiped and not anybody's."""

    class Deaf(Bench):
        def detach(self, ref: object, *, only: int | None = None, turn: int = 0) -> None:
            del only, turn
            self.acts.append("detach")

    bench = Deaf(ports=dict(ATTACHED))
    with pytest.raises(AssertionError, match="no end"):
        drive(bare_node("releasing"), bench, most=20)
    assert "cut" not in bench.acts


def wiping(**changes: object) -> tuple[object, Bench]:
    """What becomes of a machine whose wipe boot has reported."""
    bench = changes.pop("bench", None) or Bench(power_="off")
    told = {"checks": changes.pop("checks", WIPED), "ready_for_s": changes.pop("ready_for_s", 60.0)}
    boot = Boot("bot_1", "ready", 90.0, NOW, **told)  # type: ignore[arg-type]
    node = bare_node("cleaning", step="report", boot=boot, inventory=changes.pop("inventory", BASELINE), task_id="wip_1", **changes)
    outcome, _ = drive(node, bench)  # type: ignore[arg-type]
    return outcome, bench  # type: ignore[return-value]


def test_a_wiped_machine_is_compared_with_its_baseline() -> None:
    """Available with a record of every disk and of the machine being the one that was inspected, and only then."""
    outcome, bench = wiping()
    assert isinstance(outcome, Advance)
    assert outcome.to == "available"
    assert outcome.facts.wipe_verified
    assert outcome.facts.wipe_id == "wip_1"
    assert {one["name"] for one in outcome.facts.checks} >= {"disks_counted", "disks_match", "baseline_firmware", "baseline_drives"}
    assert bench.power_ == "off"


def test_a_sick_machine_is_wiped_and_put_aside() -> None:
    """Its wipe is verified all the same; it waits for repair instead of being offered."""
    outcome, _ = wiping(health="drain")
    assert isinstance(outcome, Advance)
    assert outcome.to == "quarantined"
    assert outcome.facts.wipe_verified


def test_a_wipe_begins_off_the_network_and_dark() -> None:
    """The order of the promise: detached, dark, then our image."""
    bench = Bench(ports=dict(ATTACHED))
    waiting, trail = drive(bare_node("cleaning"), bench)
    assert isinstance(waiting, Wait)
    controller = ["restart", "answering", "rotate", "adjust"]
    assert trail == ["", "apart", "cut", "dark", *controller, "seed", "aim", "light", "report"]
    assert bench.acts.index("restart") > bench.acts.index("cut")
    assert bench.unsafe == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"checks": WIPED[:2]}, "wipe_failed"),
        ({"checks": ()}, "wipe_failed"),
        ({"checks": (*WIPED, {"name": "gpu_memory", "result": "failed"})}, "wipe_failed"),
        ({"inventory": {}}, "wipe_failed"),
        ({"bench": Bench(power_="off", inventory=replace(INVENTORY, firmware={"BMC": "6.66"}))}, "wipe_failed"),
        ({"bench": Bench(power_="off", inventory=replace(INVENTORY, gpus=INVENTORY.gpus[:7]))}, "wipe_failed"),
        (
            {
                "bench": Bench(power_="off", inventory=replace(INVENTORY, drives=())),
                "inventory": {"hardware": {**BASELINE["hardware"], "drives": []}},
                "checks": ({"name": "disks_counted", "result": "not_measured"},),
            },
            "wipe_not_performed",
        ),
    ],
)
def test_what_is_not_proved_wiped_is_put_aside(changes: dict[str, object], code: str) -> None:
    """A disk too few, nothing reported, other firmware, a missing GPU, no baseline: never available."""
    outcome, _ = wiping(**changes)
    assert isinstance(outcome, Fail)
    assert outcome.code == code


def test_an_inventory_read_in_part_proves_nothing() -> None:
    """Neither an inspection nor a comparison is decided at once on what a controller did not answer."""
    partial = Bench(power_="off", inventory=replace(INVENTORY, complete=False, unread=("Storage: provider_outcome_unknown",)))
    assert isinstance(drive(bare_node("inspecting"), partial)[0], Wait)
    outcome, _ = wiping(bench=partial)
    assert isinstance(outcome, Wait)


@pytest.mark.parametrize(
    ("then", "now", "ends"),
    [
        (("Systems/1",), ("Systems/1#Processors: is not offered", "Systems/1/Memory: no answer"), Advance),
        (("Systems",), ("Systems/1#Processors: is not offered",), Advance),
        (("others",), ("Systems/1#Processors: is not offered",), Advance),
        ((), ("Systems/1#Processors: is not offered",), Fail),
        (("Systems/1",), ("Systems/10: no answer",), Fail),
    ],
)
def test_a_comparison_has_an_end(then: tuple[str, ...], now: tuple[str, ...], ends: type) -> None:
    """What inspection had not seen is not waited for, nor what is a part of it; what it had seen is missed, but not for ever."""
    partial = Bench(power_="off", inventory=replace(INVENTORY, complete=False, unread=now))
    baseline = {"hardware": {**BASELINE["hardware"], "unread": list(then)}}
    early, _ = wiping(bench=partial, inventory=baseline)
    assert isinstance(early, Advance if ends is Advance else Wait)
    late, _ = wiping(bench=partial, inventory=baseline, ready_for_s=3600.0)
    assert isinstance(late, ends)
    if isinstance(late, Fail):
        assert late.code == "wipe_failed"
        assert "baseline_unread" in late.message


def test_a_part_that_never_answers_is_a_finding_and_is_never_compared() -> None:
    """A controller without a part is inspected without it, and its wipe does not wait for it either."""
    blind = replace(INVENTORY, complete=False, unread=("Storage: provider_outcome_unknown",), drives=())
    inspected, _ = drive(bare_node("inspecting", state_for_s=200.0), Bench(inventory=blind))
    assert isinstance(inspected, Advance)
    assert [one["check"] for one in inspected.facts.inventory["findings"]] == ["inventory"]
    baseline = {"hardware": inspected.facts.inventory["hardware"]}
    outcome, _ = wiping(bench=Bench(power_="off", inventory=blind), inventory=baseline)
    assert isinstance(outcome, Advance)
    results = {one["name"]: one["result"] for one in outcome.facts.checks}
    assert (results["baseline_drives"], results["baseline_firmware"]) == ("not_measured", "passed")


def test_inspection_names_models_as_the_catalog_does() -> None:
    """What the vendor prints is compared in the catalog's words; a controller that sees no GPU leaves their number open."""
    outcome, _ = drive(bare_node("inspecting"), Bench())
    assert isinstance(outcome, Advance)
    assert outcome.facts.inventory["gpu_model"] == "H100-SXM5-80GB"
    blind, _ = drive(bare_node("inspecting"), Bench(inventory=replace(INVENTORY, gpus=())))
    assert isinstance(blind, Advance)
    assert {one["severity"] for one in blind.facts.inventory["findings"]} == {"info"}
    short, _ = drive(bare_node("inspecting"), Bench(inventory=replace(INVENTORY, gpus=INVENTORY.gpus[:7])))
    assert isinstance(short, Fail)


@pytest.mark.parametrize(
    ("checks", "good"),
    [
        (({"name": "gpu_count", "result": "passed"}, {"name": "nccl", "result": "not_measured"}), True),
        (({"name": "gpu_count", "result": "failed"},), False),
        (({"name": "nccl", "result": "not_measured"},), False),
        ((), False),
    ],
)
def test_a_machine_qualifies_by_what_it_measured(checks: tuple[dict[str, str], ...], good: bool) -> None:  # noqa: FBT001
    """Something passed and nothing failed; what was not measured counts for nothing."""
    boot = Boot("bot_1", "ready", 90.0, NOW, checks=checks)
    outcome, _ = drive(bare_node("qualifying", step="report", boot=boot), Bench())
    assert isinstance(outcome, Advance if good else Fail)


def test_a_machine_without_known_wiring_skips_the_fabric() -> None:
    """Where no operator told us the wiring there is nothing to attach."""
    bench = Bench()
    drive(bare_node("deploying", wires=()), bench)
    assert not any(act.startswith("attach") for act in bench.acts)
    assert WIRES
    assert HELD.segment == 10001
