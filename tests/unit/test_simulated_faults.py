"""
Every fault of the simulated provider: what the caller sees, and what really happened.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.providers.adapters.simulated.control import canary_of
from controlplane.providers.adapters.simulated.faults import LEAK_CANARIES, PRESETS
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.errors import (
    AuthFailed,
    Busy,
    NoCapacity,
    NotFound,
    NotSent,
    ProviderError,
    Refused,
    Transient,
    Unknown,
)
from controlplane.providers.machines import Deployment
from tests.factories.faulty import OTHER, REF, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A demo fleet of its own."""
    return World(tmp_path / "world.sqlite")


BEFORE = {
    "refuse_before_effect": NotSent,
    "refused_final": Refused,
    "no_capacity": NoCapacity,
    "5xx_before_effect": Unknown,
    "timeout_before_effect": Unknown,
    "flapping_404": NotFound,
    "auth_401_mid_operation": AuthFailed,
    "busy_429_with_retry_after": Busy,
    "busy_429_without": Busy,
    "ok_with_error_inside": Unknown,
}
AFTER = ("effect_then_5xx", "effect_then_timeout", "effect_then_reset", "truncated_json", "invalid_json", "wrong_type", "huge_body")
ELSEWHERE = {name for name, preset in PRESETS.items() if name not in BEFORE and name not in AFTER}


@pytest.mark.parametrize(("fault", "error"), BEFORE.items())
def test_a_fault_before_the_effect_leaves_nothing(world: World, fault: str, error: type[ProviderError]) -> None:
    """The error is the port's, the world is untouched, the ledger has the call without effect, and the next call works."""
    world.control.play(fault, "deploy")
    with pytest.raises(ProviderError) as caught:
        world.sim.deploy(world.deployment())
    assert type(caught.value) is error
    assert world.sim.observe(REF).phase == "idle"
    (call,) = world.control.calls(operation="deploy")
    assert (call.fault, call.effect) == (fault, False)
    world.sim.deploy(world.deployment())
    assert world.sim.observe(REF).phase == "deployed"


@pytest.mark.parametrize("fault", AFTER)
def test_a_fault_after_the_effect_leaves_it_done(world: World, fault: str) -> None:
    """The caller knows nothing, the deployment is there, and a repeat under the token finds it."""
    world.control.play(fault, "deploy")
    with pytest.raises(Unknown):
        world.sim.deploy(world.deployment())
    assert world.sim.observe(REF).token == "alc_1"
    (call,) = world.control.calls(operation="deploy")
    assert (call.fault, call.effect) == (fault, True)
    world.sim.deploy(world.deployment())
    assert len(world.control.ledger().tenancies) == 1


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
def test_the_detail_of_a_fault_holds_the_leak_canaries(world: World, fault: str) -> None:
    """What must never reach a tenant is in every detail, so that a leak can be found by its text; the code has none of it."""
    world.control.play(fault, "submit")
    world.cluster()
    with pytest.raises(ProviderError) as caught:
        world.sim.submit(world.job())
    assert all(canary in caught.value.detail for canary in LEAK_CANARIES)
    assert not any(canary in caught.value.code for canary in LEAK_CANARIES)


def test_retry_after_is_told_when_it_was_given(world: World) -> None:
    """With the header the peer's number, without it the port's default."""
    world.control.play("busy_429_with_retry_after", "observe", params={"retry_in_s": 42.0})
    with pytest.raises(Busy) as told:
        world.sim.observe(REF)
    world.control.play("busy_429_without", "observe")
    with pytest.raises(Busy) as untold:
        world.sim.observe(REF)
    assert (told.value.retry_in_s, untold.value.retry_in_s) == (42.0, 5.0)


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER])
def test_reads_meet_the_same_errors(world: World, fault: str) -> None:
    """A look that fails raises the port's error and the next one sees."""
    world.control.play(fault, "list_machines")
    with pytest.raises(BEFORE.get(fault, Unknown)):
        world.sim.list_machines()
    assert world.sim.list_machines().complete


def test_late_success_comes_after_we_gave_up(world: World) -> None:
    """Nothing at first; by its time the deployment is there, once, though it was sent again under the same token."""
    world.control.play("late_success", "deploy", params={"seconds": 30.0})
    with pytest.raises(Unknown):
        world.sim.deploy(world.deployment())
    assert world.sim.observe(REF).phase == "idle"
    world.later(31)
    view = world.sim.observe(REF)
    assert (view.phase, view.token) == ("deployed", "alc_1")
    assert view.ready_at == world.moment - timedelta(seconds=1)
    assert world.control.calls(operation="deploy")[-1].fault == "late_success"


def test_a_late_deployment_after_its_release_is_turned_away(world: World) -> None:
    """The release of a token that never arrived is remembered."""
    world.control.play("late_success", "deploy", params={"seconds": 30.0})
    with pytest.raises(Unknown):
        world.sim.deploy(world.deployment())
    world.sim.release(REF, "alc_1", accepted_at=world.moment)
    world.later(31)
    assert world.sim.observe(REF).phase == "released"
    assert world.control.ledger().tenancies == ()
    assert world.control.calls(operation="deploy")[-1].answer == "Refused: tenancy_over"


def test_a_late_apply_brings_a_deleted_cluster_back(world: World) -> None:
    """As at a real peer: clusters carry no token, so a stale apply leaves an orphan for the reaper to find."""
    world.cluster()
    world.control.play("late_success", "apply_cluster", params={"seconds": 30.0})
    with pytest.raises(Unknown):
        world.sim.apply_cluster(ClusterSpec("clu_1", "ten_1", "prj_1", "u1", (Member(REF, 8, "alc_1"),)))
    world.sim.delete_cluster("clu_1")
    assert world.sim.list_clusters().cluster_ids == ()
    world.later(31)
    assert world.sim.list_clusters().cluster_ids == ("clu_1",)


def test_delay_moves_the_work_not_the_answer(world: World) -> None:
    """The call succeeds at once; the work begins later in virtual time; a repeat does not begin it twice."""
    world.control.play("delay", "deploy", params={"seconds": 600.0})
    world.sim.deploy(world.deployment())
    world.sim.deploy(world.deployment())
    world.later(599)
    assert world.sim.observe(REF).phase == "idle"
    world.later(1)
    assert world.sim.observe(REF).phase == "deployed"
    assert len(world.control.ledger().tenancies) == 1


@pytest.mark.parametrize("operation", ["deploy", "submit", "apply_cluster"])
def test_a_request_that_arrives_twice_has_one_effect(world: World, operation: str) -> None:
    """Tokens and names absorb the second delivery; the ledger counts it."""
    rule = world.control.play("duplicate_effect", operation)
    world.cluster()
    world.sim.submit(world.job())
    ledger = world.control.ledger()
    assert world.control.played(rule) == 1
    assert (len(ledger.tenancies), len(ledger.clusters), len(ledger.memberships), len(ledger.jobs)) == (2, 1, 2, 1)
    assert ledger.jobs[0].submissions == (2 if operation == "submit" else 1)


def test_stale_reads_show_the_past_in_lists_and_looks(world: World) -> None:
    """For 90 s what was made is not seen, and what was ended still is."""
    world.control.play("stale_read", "*", count=None, params={"seconds": 90.0})
    world.cluster()
    world.sim.submit(world.job("true"))
    assert world.sim.observe(REF).phase == "idle"
    assert next(one for one in world.sim.list_machines().machines if one.ref == REF).token is None
    assert world.sim.list_clusters().cluster_ids == ()
    with pytest.raises(NotFound):
        world.sim.observe_cluster("clu_1")
    with pytest.raises(NotFound):
        world.sim.find_job("clu_1", "job_1-1")
    world.later(90)
    assert world.sim.observe(REF).token == "alc_1"
    assert world.sim.observe_cluster("clu_1").cluster_id == "clu_1"
    assert world.sim.find_job("clu_1", "job_1-1").token == "job_1-1"
    world.sim.release(REF, "alc_1", accepted_at=world.moment)
    assert world.sim.observe(REF).phase == "deployed"


def test_partial_lists_say_so_and_jobs_are_not_listed_in_part(world: World) -> None:
    """Machines and clusters come short and marked; a short list of jobs is an error."""
    world.cluster()
    world.control.play("partial_list", "*", count=3, params={"share": 0.3})
    listed = world.sim.list_machines()
    assert not listed.complete
    assert 0 < len(listed.machines) < 82
    assert not world.sim.list_clusters().complete
    with pytest.raises(Transient):
        world.sim.list_jobs("clu_1")
    assert world.sim.list_machines().complete


@pytest.mark.parametrize("kind", ["inspect", "qualify"])
def test_a_survey_that_hangs_is_begun_again_by_a_repeat(world: World, kind: str) -> None:
    """No result until it is repeated under its token, or the fault is healed."""
    world.control.play(f"{kind}_never_finishes")
    start: Callable[[str, str], None] = getattr(world.sim, kind)
    start(REF, "t1")
    world.later(1e6)
    view = world.sim.observe(REF)
    assert view.inventory is None
    assert view.qualified_token is None
    start(REF, "t1")
    view = world.sim.observe(REF)
    assert (view.inventory is not None) or view.qualified_token == "t1"


def test_a_failed_qualification_names_the_check(world: World) -> None:
    """Burn-in fails on a bad GPU; the count fails on a missing one; a dead machine does not answer."""
    world.control.play("qualify_fails")
    world.sim.qualify(REF, "q1")
    world.control.set_gpus(OTHER, 7)
    world.control.kill_node(OTHER)
    world.sim.qualify(OTHER, "q1")
    failed = [{one.name for one in world.sim.observe(ref).checks if one.result == "failed"} for ref in (REF, OTHER)]
    assert failed == [{"gpu_burn_in"}, {"answers", "gpu_count"}]


def test_a_deployment_may_fail_or_hang(world: World) -> None:
    """Failed with a text for operators, or deploying for ever; both can be released; nobody ever reached the machine."""
    world.control.play("deploy_fails", target=REF)
    world.control.play("deploy_never_finishes", target=OTHER)
    for ref in (REF, OTHER):
        world.sim.deploy(world.deployment("alc_1", ref))
    world.later(1e6)
    assert [world.sim.observe(ref).phase for ref in (REF, OTHER)] == ["failed", "deploying"]
    assert world.sim.observe(REF).failure
    for ref in (REF, OTHER):
        world.sim.release(ref, "alc_1", accepted_at=world.moment)
        assert world.sim.observe(ref).phase == "released"
        assert world.control.contents(ref) == ()


@pytest.mark.parametrize("mend", ["repeat", "heal"])
def test_a_power_off_that_never_happens_keeps_the_machine_releasing(world: World, mend: str) -> None:
    """Power is read back as on; the machine is neither wiped nor given on; a repeat or a healing mends it."""
    world.sim.deploy(world.deployment())
    world.control.play("power_off_never", "release")
    world.sim.release(REF, "alc_1", accepted_at=world.moment)
    world.later(1e6)
    view = world.sim.observe(REF)
    assert (view.phase, view.power, view.network) == ("releasing", "on", None)
    with pytest.raises(Busy):
        world.sim.wipe(REF, "w1")
    with pytest.raises(Busy):
        world.sim.deploy(world.deployment("alc_9"))
    if mend == "repeat":
        world.sim.release(REF, "alc_1", accepted_at=world.moment)
    else:
        world.control.heal()
    assert (world.sim.observe(REF).phase, world.sim.observe(REF).power) == ("released", "off")


def test_a_wipe_that_fails_says_so_and_clears_nothing(world: World) -> None:
    """Phase failed, no report, the data is still there; a wipe under another token mends it."""
    world.freed()
    world.control.play("wipe_fails")
    world.sim.wipe(REF, "w1")
    view = world.sim.observe(REF)
    assert (view.phase, view.wipe) == ("failed", None)
    assert view.failure
    assert ("disk", canary_of("ten_1", REF)) in world.control.contents(REF)
    world.sim.wipe(REF, "w2")
    assert world.sim.observe(REF).phase == "wiped"
    assert world.control.contents(REF) == ()


def test_a_wipe_whose_check_fails_names_the_place(world: World) -> None:
    """The report is there, one check failed, and exactly that place still holds the canary."""
    world.freed()
    world.control.play("wipe_check_fails", params={"place": "bmc"})
    world.sim.wipe(REF, "w1")
    view = world.sim.observe(REF)
    assert view.phase == "failed"
    assert view.wipe is not None
    assert [one.name for one in view.wipe.checks if one.result == "failed"] == ["bmc_baseline"]
    assert world.control.contents(REF) == (("bmc", canary_of("ten_1", REF)),)


@pytest.mark.parametrize("token", ["w1", "w2"])
def test_a_wipe_that_hangs_is_replaced_by_a_repeat_or_by_another(world: World, token: str) -> None:
    """Wiping for ever, until it is asked for again."""
    world.freed()
    world.control.play("wipe_never_finishes")
    world.sim.wipe(REF, "w1")
    world.later(1e6)
    assert world.sim.observe(REF).phase == "wiping"
    world.sim.wipe(REF, token)
    view = world.sim.observe(REF)
    assert view.wipe is not None
    assert (view.phase, view.wipe.token) == ("wiped", token)


def test_an_empty_wipe_report_proves_nothing(world: World) -> None:
    """Wiped by its own word, with no check, and everything still there."""
    world.freed()
    world.control.play("wipe_empty_report")
    world.sim.wipe(REF, "w1")
    view = world.sim.observe(REF)
    assert view.wipe is not None
    assert (view.phase, view.wipe.checks) == ("wiped", ())
    assert len(world.control.contents(REF)) == 5


def test_a_wipe_that_lies_is_found_out_by_the_qualification(world: World) -> None:
    """All checks of the report passed, the data is there, and the qualification reads it back."""
    world.freed()
    world.control.play("wipe_lies")
    world.sim.wipe(REF, "w1")
    view = world.sim.observe(REF)
    assert view.wipe is not None
    assert {one.result for one in view.wipe.checks} == {"passed"}
    assert len(world.control.contents(REF)) == 5
    world.sim.qualify(REF, "q1")
    assert [one.name for one in world.sim.observe(REF).checks if one.result == "failed"] == ["residue"]


def test_a_gpu_reset_that_is_in_use_works_after_n_times(world: World) -> None:
    """Three times busy without effect, then the wipe begins."""
    world.freed()
    world.control.play("gpu_reset_in_use", "wipe", count=3)
    for _ in range(3):
        with pytest.raises(Busy, match="in use"):
            world.sim.wipe(REF, "w1")
    world.sim.wipe(REF, "w1")
    assert world.sim.observe(REF).phase == "wiped"


def test_a_node_that_dies_comes_back_by_itself(world: World) -> None:
    """Down for its time, then up; the instants of the meter do not move."""
    world.control.play("node_dies", "deploy", OTHER, params={"after_s": 10.0, "for_s": 100.0})
    world.cluster()
    before = world.sim.observe_cluster("clu_1")
    world.later(10)
    assert [one.state for one in world.sim.observe_cluster("clu_1").members] == ["up", "down"]
    world.later(100)
    after = world.sim.observe_cluster("clu_1")
    assert [one.state for one in after.members] == ["up", "up"]
    assert after == before


def test_a_member_that_never_joins_is_up_once_healed(world: World) -> None:
    """Joining for ever; the cluster is not verified until then."""
    world.control.play("join_never")
    world.cluster()
    world.later(1000)
    view = world.sim.observe_cluster("clu_1")
    assert {one.state for one in view.members} == {"joining"}
    assert view.verified_at is None
    world.control.heal()
    assert world.sim.observe_cluster("clu_1").verified_at == world.moment


JOB_FAULTS = {
    "job_node_fault": ("node_fault", 5),
    "job_out_of_memory": ("out_of_memory", 5),
    "job_time_limit": ("time_limit", 600),
    "job_preempted": ("preempted", 5),
    "job_fabric_fault": ("fabric_fault", 5),
}


@pytest.mark.parametrize(("fault", "outcome"), JOB_FAULTS.items())
def test_a_job_fails_in_the_way_it_was_told(world: World, fault: str, outcome: tuple[str, int]) -> None:
    """Its failure class, when it ended, and the machines free again afterwards."""
    failure, after_s = outcome
    world.cluster()
    world.control.play(fault)
    world.sim.submit(world.job())
    started = world.moment
    world.later(1000)
    view = world.sim.find_job("clu_1", "job_1-1")
    assert (view.phase, view.failure, view.requeues) == ("failed", failure, 0)
    assert view.ended_at == started + timedelta(seconds=after_s)
    world.sim.submit(world.job("true", "job_2-1"))
    assert world.sim.find_job("clu_1", "job_2-1").phase == "succeeded"


def test_a_requeued_job_runs_again_under_its_id(world: World) -> None:
    """After the node fault it waits for the machine, runs to its end, and counts the requeue; the output tells of both."""
    world.cluster()
    world.control.play("job_requeue", params={"after_s": 5.0, "for_s": 100.0})
    external_id = world.sim.submit(world.job("echo run $SLURM_RESTART_COUNT; sleep 60"))
    world.later(50)
    waiting = world.sim.find_job("clu_1", "job_1-1")
    assert (waiting.phase, waiting.requeues, waiting.nodes) == ("pending", 1, ())
    world.later(1000)
    view = world.sim.find_job("clu_1", "job_1-1")
    assert (view.phase, view.requeues, view.external_id) == ("succeeded", 1, external_id)
    text = world.sim.read_output("clu_1", "job_1-1", offset=0, limit=10_000).data.decode()
    assert [line for line in text.splitlines() if line.startswith("run")] == ["run 0", "run 1"]
    assert "NODE FAILURE" in text


def test_every_preset_is_tried_in_this_file(world: World) -> None:
    """A preset without a test here would be a promise without proof."""
    tried = Path(__file__).read_text(encoding="utf-8")
    for name in ELSEWHERE:
        assert tried.count(f'"{name}"') or name in {"inspect_never_finishes", "qualify_never_finishes"}, name
    assert world.sim.capabilities().products == ("slurm", "baremetal", "kubernetes")


def test_rules_count_skip_and_choose_their_calls(world: World) -> None:
    """`after` lets calls by, `count` ends the rule, target and tenant narrow it."""
    world.control.play("refused_final", "deploy", "ams1-*", tenant="ten_1", after=1, count=2)
    answers = []
    for number, (ref, tenant) in enumerate([(REF, "ten_1"), (OTHER, "ten_2"), (OTHER, "ten_1"), ("hel1-b1-l1-r1-n01", "ten_1")]):
        try:
            world.sim.deploy(Deployment(ref, f"alc_{number}", tenant, "clu_1", "net"))
            answers.append("ok")
        except Refused as wrong:
            answers.append(wrong.code)
    assert answers == ["ok", "ok", "provider_refused", "ok"]


def test_chances_fall_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """Two worlds with one rule meet the same faults; another seed meets others; the share is about the probability."""

    def drawn(name: str, seed: int) -> list[bool]:
        world = World(tmp_path / name)
        world.control.play("timeout_before_effect", "observe", count=None, probability=0.3, seed=seed)
        fell = []
        for _ in range(200):
            try:
                world.sim.observe(REF)
                fell.append(False)
            except Unknown:
                fell.append(True)
        return fell

    first, same, other = drawn("a", 7), drawn("b", 7), drawn("c", 8)
    assert first == same
    assert first != other
    assert 30 <= sum(first) <= 90


@pytest.mark.parametrize(
    "rule",
    [
        {"fault": "no_such_fault"},
        {"fault": "wipe_lies", "operation": "deploy"},
        {"fault": "delay", "params": {"minutes": 1}},
        {"fault": "delay", "probability": 1.5},
        {"fault": "delay", "count": 0},
    ],
)
def test_a_rule_that_could_never_be_played_is_refused(world: World, rule: dict[str, object]) -> None:
    """A mistyped rule must not pass silently as a healthy run."""
    with pytest.raises(ValueError, match=r"."):
        world.control.play(**rule)  # type: ignore[arg-type]
