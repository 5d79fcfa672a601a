"""
What each step of a node says: goes on, waits, fails, and believes nothing that was not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes.schemas import check_config
from controlplane.nodes.states import Boot, NodeFacts, ProviderCheck, Tenancy
from controlplane.nodes.steps.comparing import find_differences
from controlplane.nodes.steps.provider import check
from controlplane.providers.adapters.simulated.faults import LEAK_CANARIES
from controlplane.providers.machines import Inventory
from tests.factories.nodes import NOW, REFS, StepGround, step_ground

HELD = Tenancy("alc_1", "ten_1", "prj_1", "clu_1", "net_1", 10001, "held", None)
LEAVING = Tenancy("alc_1", "ten_1", "prj_1", "clu_1", "net_1", 10001, "releasing", NOW)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[StepGround]:
    """
    A machine on a provider where everything happens at once.
    """
    with step_ground(tmp_path) as one:
        yield one


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[StepGround]:
    """
    A machine on a provider that takes its time.
    """
    with step_ground(tmp_path, profile="realistic") as one:
        yield one


def test_an_enrolled_node_is_looked_for_first(ground: StepGround) -> None:
    """A node goes on to inspection when the provider knows it; what it does not know is not guessed at."""
    assert ground.run("enrolled") == Advance("inspecting")
    outcome, broken = ground.tools.run(lambda node, tools: ground.run("enrolled", ref="nobody"), None, attempt=1)
    assert isinstance(outcome, Wait)
    assert not broken


def test_inspection_asks_once_and_compares(ground: StepGround) -> None:
    """Asked first, read then; the inventory is kept with what differs."""
    assert ground.run("inspecting") == Wait("Its inventory is being read.", 0.0, step="asked")
    outcome = ground.run("inspecting", step="asked")
    assert isinstance(outcome, Advance)
    assert outcome.to == "qualifying"
    assert isinstance(outcome.facts, NodeFacts)
    assert outcome.facts.inventory is not None
    assert outcome.facts.inventory["gpus"] == 8


def test_missing_gpus_keep_a_node_out(ground: StepGround) -> None:
    """A machine with fewer GPUs than sold is not qualified, and the finding is kept."""
    ground.sim.set_gpus(REFS[0], 7)
    ground.run("inspecting")
    outcome = ground.run("inspecting", step="asked")
    assert isinstance(outcome, Fail)
    assert outcome.code == "inventory_mismatch"
    assert outcome.facts.inventory["findings"][0]["check"] == "gpu_count"


def test_what_a_peer_cannot_tell_is_neither_well_nor_ill(ground: StepGround) -> None:
    """An unknown model and memory are told and keep nobody out; a little less memory is what firmware takes."""
    expected = ground.snapshot("inspecting").expected
    untold = find_differences(expected, Inventory("", 8, 0, 0))
    assert [(one["check"], one["severity"]) for one in untold] == [("gpu_model", "info"), ("memory", "info")]
    assert find_differences(expected, Inventory("H100-SXM5-80GB", 8, 2000, 0)) == []
    assert [one["check"] for one in find_differences(expected, Inventory("A100", 8, 1000, 0))] == ["gpu_model", "memory"]


def test_qualification_waits_for_its_own_token(slow: StepGround) -> None:
    """The checks of another try are not taken for this one's."""
    assert slow.run("qualifying") == Wait("Acceptance checks run.", 0.0, step="asked")
    assert isinstance(slow.run("qualifying", step="asked"), Wait)
    slow.later(6 * 3600)
    assert isinstance(slow.run("qualifying", step="asked"), Advance)
    assert isinstance(slow.run("qualifying", step="asked", task_id="tsk_2"), Wait)


def test_a_failed_check_keeps_a_node_out(ground: StepGround) -> None:
    """One failed acceptance check is enough."""
    ground.sim.play("qualify_fails", "qualify")
    ground.run("qualifying")
    outcome = ground.run("qualifying", step="asked")
    assert isinstance(outcome, Fail)
    assert outcome.code == "qualification_failed"


def test_deployment_is_seen_before_it_is_believed(slow: StepGround) -> None:
    """Asked, waited for, and active only when the provider shows it deployed under the allocation's token."""
    assert slow.run("deploying", tenancy=HELD) == Wait("Being deployed.", 0.0, step="asked")
    assert slow.run("deploying", tenancy=HELD, step="asked") == Wait("Being deployed.", 0.5)
    slow.later(3600)
    assert slow.run("deploying", tenancy=HELD, step="asked") == Advance("active", "Deployed.")


def test_a_second_ask_finds_the_first(ground: StepGround) -> None:
    """After a crash between asking and noting it, nothing is deployed twice."""
    for _ in range(2):
        assert ground.run("deploying", tenancy=HELD) == Wait("Being deployed.", 0.0, step="asked")
    assert isinstance(ground.run("deploying", tenancy=HELD, step="asked"), Advance)
    assert [one.token for one in ground.sim.ledger().tenancies] == [HELD.allocation_id]


@given(passed_s=st.floats(0, 1e6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_deployment_is_looked_at_ever_more_rarely(slow: StepGround, passed_s: float) -> None:
    """A late look adds a hundredth of the deployment's own time or half a second, and a provider is asked each 5 s at least."""
    slow.run("deploying", tenancy=HELD)
    outcome = slow.run("deploying", tenancy=HELD, step="asked", state_for_s=passed_s)
    assert isinstance(outcome, Wait)
    assert 0.5 <= outcome.retry_in_s <= min(5.0, max(0.5, passed_s / 100))


def test_a_withdrawn_order_is_not_deployed(ground: StepGround) -> None:
    """A node whose allocation was given back meanwhile goes back without a call."""
    assert ground.run("deploying", tenancy=HELD, cancel=True) == Advance("releasing", "The order was withdrawn.")
    assert ground.sim.calls(operation="deploy") == ()


def test_a_failed_deployment_speaks_to_operators_only(ground: StepGround) -> None:
    """The tenant reads that it failed; the provider's words, which name its parts, stay in the detail."""
    ground.sim.play("deploy_fails", "deploy")
    ground.run("deploying", tenancy=HELD)
    outcome = ground.run("deploying", tenancy=HELD, step="asked")
    assert isinstance(outcome, Fail)
    assert outcome.code == "deploy_failed"
    assert not [one for one in LEAK_CANARIES if one in outcome.message]


def test_a_machine_that_is_to_report_is_waited_for(ground: StepGround) -> None:
    """What the provider shows as deployed is its tenant's at the machine's own good word, not when it reports trouble or never calls."""

    def told(state: str, age_s: float = 60.0, of: str = HELD.allocation_id) -> Outcome:
        boot = Boot("bot_1", state, age_s, purpose="deploy", allocation_id=of, failure="script_failed: line 3")
        return ground.run("deploying", tenancy=HELD, step="asked", boot=boot)

    ground.run("deploying", tenancy=HELD)
    for quiet in (told("made"), told("fetched"), told("reporting", 5000.0)):
        assert quiet == Wait("Deployed; waits for the machine's own report.", 15.0)
    for over in (told("failed"), told("ended")):
        assert isinstance(over, Fail)
        assert (over.code, over.detail) == ("deploy_failed", "script_failed: line 3")
    silent = told("fetched", 3601.0)
    assert isinstance(silent, Fail)
    assert silent.code == "deploy_failed_silent"
    assert told("ready") == Advance("active", "Deployed.")
    assert told("ended", of="alc_0") == Advance("active", "Deployed.")


def test_release_is_done_when_power_is_off(ground: StepGround) -> None:
    """A node goes on to be wiped only once it was seen detached and powered off."""
    ground.run("deploying", tenancy=HELD)
    rule = ground.sim.play("power_off_never", "release")
    assert ground.run("releasing", tenancy=LEAVING) == Wait("Being taken back.", 0.0, step="asked")
    assert isinstance(ground.run("releasing", tenancy=LEAVING, step="asked"), Wait)
    assert ground.sim.played(rule) == 1
    ground.sim.heal()
    ground.run("releasing", tenancy=LEAVING)
    assert ground.run("releasing", tenancy=LEAVING, step="asked") == Advance("cleaning", "Taken back.")


@pytest.mark.parametrize(
    ("fault", "code"),
    [("wipe_fails", "wipe_failed"), ("wipe_check_fails", "wipe_failed"), ("wipe_empty_report", "wipe_not_performed")],
)
def test_no_wipe_no_tenant(ground: StepGround, fault: str, code: str) -> None:
    """A wipe that failed, failed in part or reports nothing does not make a node available."""
    ground.sim.play(fault, "wipe")
    ground.run("cleaning", task_id="wip_1")
    outcome = ground.run("cleaning", step="asked", task_id="wip_1")
    assert isinstance(outcome, Fail)
    assert (outcome.code, outcome.facts.wipe_id, outcome.facts.wipe_verified) == (code, "wip_1", False)


def test_only_this_wipe_counts(ground: StepGround) -> None:
    """A verified wipe, and checks that were run after it, make the node available; the report of an older one does not."""
    assert ground.run("cleaning", task_id="wip_1") == Wait("Being wiped.", 0.0, step="asked")
    assert ground.run("cleaning", step="asked", task_id="wip_1") == Wait("Wiped; being checked.", 0.0, step="checking")
    done = ground.run("cleaning", step="checking", task_id="wip_1")
    assert isinstance(done, Advance)
    assert (done.to, done.facts.wipe_verified) == ("available", True)
    assert ground.run("cleaning", task_id="wip_2") == Wait("Being wiped.", 0.0, step="asked")


def test_a_wipe_that_only_says_so_is_not_believed(ground: StepGround) -> None:
    """A report that claims success over a machine that still holds a tenant's data keeps the node out."""
    ground.run("deploying", tenancy=HELD)
    ground.run("releasing", tenancy=LEAVING)
    ground.sim.play("wipe_lies", "wipe")
    for step in ("", "asked"):
        assert isinstance(ground.run("cleaning", step=step, task_id="wip_1"), Wait)
    outcome = ground.run("cleaning", step="checking", task_id="wip_1")
    assert isinstance(outcome, Fail)
    assert (outcome.code, outcome.facts.wipe_verified) == ("wipe_not_believed", False)


def test_a_provider_says_what_it_can_do(ground: StepGround) -> None:
    """What it answers fits a JSON column, and a partial list is not taken for a whole one."""
    ground.sim.play("partial_list", "list_machines")
    seen = check(ground.provider, ground.tools)
    assert seen.capabilities is not None
    assert isinstance(seen.capabilities["products"], list)
    assert (seen.problem, seen.complete) == ("", False)


def test_a_provider_that_fails_is_a_problem_not_an_error(ground: StepGround) -> None:
    """An error of the peer, and settings that its adapter refuses, come back as the problem."""
    ground.sim.play("auth_401_mid_operation", "capabilities")
    assert check(ground.provider, ground.tools).problem.startswith("provider_auth_failed")
    bad = ground.snapshot("enrolled").provider
    refused = check(type(bad)("prv_2", "simulated", {"nonsense": 1}, None, 1), ground.tools)
    assert isinstance(refused, ProviderCheck)
    assert (refused.capabilities, refused.problem.split(":")[0]) == (None, "adapter_config")


def test_settings_that_no_json_column_holds_are_refused() -> None:
    """Infinite and huge numbers, control characters and endless nesting are refused; ordinary settings pass."""
    fine = {"url": "https://slurm", "deep": [{"a": 1.5}], "on": True, "none": None}
    assert check_config(fine) == fine  # type: ignore[arg-type]
    nested: dict[str, object] = {}
    for _ in range(20):
        nested = {"a": nested}
    for bad in ({"a": float("inf")}, {"a": float("nan")}, {"a": 2**64}, {"a": "\0"}, {"\0": 1}, nested):
        with pytest.raises(ValueError, match=r"\w"):
            check_config(bad)  # type: ignore[arg-type]


def test_the_clock_of_the_ground_moves(slow: StepGround) -> None:
    """What is asked for takes its time at this provider: nothing is done at the same instant."""
    slow.run("cleaning", task_id="wip_1")
    assert isinstance(slow.run("cleaning", step="asked", task_id="wip_1"), Wait)
    slow.later(timedelta(hours=6).total_seconds())
    assert slow.run("cleaning", step="asked", task_id="wip_1") == Wait("Wiped; being checked.", 0.0, step="checking")
