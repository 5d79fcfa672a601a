"""
A job's life from queued to its end, over a real database and the simulated provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, text

from controlplane.clusters import service as clusters
from controlplane.clusters.states import Home
from controlplane.jobs.errors import ClusterNotUsable, ClusterRunsNoJobs, GangTooLarge
from controlplane.jobs.states import ABSENCE_GAP_S
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.errors import NotFound
from controlplane.kit.lifecycle import Claim
from controlplane.kit.outcome import Advance
from tests.conftest import Database
from tests.factories.jobs import TEMPO, JobWorld, job_world

LONG = "#!/bin/bash\necho begun\nsleep 100\necho done\n"
LIFE = ["queued", "admitted", "starting", "running", "completing", "succeeded"]


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[JobWorld]:
    """
    A tenant with a running cluster of four nodes.
    """
    with job_world(database, tmp_path) as one:
        yield one


def test_a_gang_job_runs_on_all_its_nodes_and_its_output_is_kept(world: JobWorld) -> None:
    """Four nodes of eight GPUs: 32 tasks print, the job succeeds, and its nodes have the tenant's names."""
    job_id = world.order(nodes=4, gpus_per_node=8)
    job = world.until_state(job_id, "succeeded")
    lines = world.output(job_id).splitlines()
    assert len(lines) == 32
    assert "rank 0 gpus 0,1,2,3,4,5,6,7" in lines
    assert sorted(job.placement) == sorted(world.customer.instances.values())
    assert (job.exit_code, job.failure_class, job.external_id != "") == (0, None, True)
    assert job.started_at is not None
    assert job.ended_at is not None


def test_output_is_there_while_the_job_runs(world: JobWorld) -> None:
    """The first line is stored long before the job ends; every state is in the history and in the events."""
    job_id = world.order(LONG)
    world.until(lambda: world.output(job_id) == "begun\n", within_s=10)
    assert world.job(job_id).state == "running"
    world.until_state(job_id, "succeeded")
    assert world.output(job_id) == "begun\ndone\n"
    assert world.history(job_id) == LIFE
    assert world.events(job_id) == [f"job.{state}" for state in LIFE]


def test_what_waits_in_the_scheduler_says_why(world: JobWorld) -> None:
    """A gang that does not fit now waits with the scheduler's reason and its estimate, then runs."""
    first = world.order(LONG, nodes=4, gpus_per_node=8, time_limit_s=600)
    world.until_state(first, "running")
    second = world.order(nodes=2, gpus_per_node=8)
    waiting = world.until_state(second, "starting")
    world.settle()
    waiting = world.job(second)
    assert waiting.reason == "Waits for free nodes (Resources)."
    assert waiting.expected_start_at is not None
    done = world.until_state(second, "succeeded")
    assert done.expected_start_at is None


@pytest.mark.parametrize(
    "fault",
    [
        "effect_then_timeout",
        "effect_then_5xx",
        "effect_then_reset",
        "truncated_json",
        "timeout_before_effect",
        "late_success",
        "duplicate_effect",
        "ok_with_error_inside",
        "busy_429_with_retry_after",
        "auth_401_mid_operation",
        "delay",
        "no_capacity",
    ],
)
def test_no_fault_of_a_submit_makes_a_second_job(world: JobWorld, fault: str) -> None:
    """BR-067: whatever a submit's answer is lost in, the attempt exists once and runs to its end."""
    world.sim.play(fault, "submit", count=2)
    job_id = world.order(LONG, nodes=2)
    world.until_state(job_id, "succeeded")
    assert world.submissions() == [(f"{job_id}-1", 1)]


def test_a_script_that_fails_is_not_run_again(world: JobWorld) -> None:
    """A user error ends the job with its exit code and class."""
    job_id = world.order("#!/bin/bash\necho no\nexit 3\n")
    job = world.until_state(job_id, "failed")
    assert (job.exit_code, job.failure_class, job.attempt) == (3, "user_error", 1)
    assert job.reason == "The script ended with exit code 3."
    assert world.output(job_id) == "no\n"


@pytest.mark.parametrize(("fault", "failure_class"), [("job_out_of_memory", "out_of_memory"), ("job_time_limit", "time_limit")])
def test_its_own_faults_do_not_start_it_again(world: JobWorld, fault: str, failure_class: str) -> None:
    """Memory and time limits are the job's own affair."""
    world.sim.play(fault, "submit")
    job = world.until_state(world.order(LONG, time_limit_s=60), "failed")
    assert (job.failure_class, job.attempt) == (failure_class, 1)


@pytest.mark.parametrize("fault", ["job_node_fault", "job_fabric_fault", "job_preempted"])
def test_faults_that_are_not_its_own_start_it_again(world: JobWorld, fault: str) -> None:
    """The next attempt begins after a pause, under its own token, with an event; the output of both attempts stays."""
    world.sim.play(fault, "submit", count=1)
    job_id = world.order(LONG, nodes=2)
    job = world.until_state(job_id, "queued")
    assert (job.attempt, job.requeues, job.verdict, job.failure_class, job.log_bytes) == (2, 1, "", None, 0)
    assert job.due_at is not None
    assert job.due_at > job.state_since
    job = world.until_state(job_id, "succeeded")
    assert world.submissions() == [(f"{job_id}-1", 1), (f"{job_id}-2", 1)]
    assert world.output(job_id, attempt=1).startswith("begun\n")
    assert world.output(job_id, attempt=2) == "begun\ndone\n"
    assert world.events(job_id).count("job.restarted") == 1


def test_restarts_have_an_end(world: JobWorld) -> None:
    """After the last restart the job fails with its class."""
    world.sim.play("job_fabric_fault", "submit", count=9)
    job = world.until_state(world.order(LONG, restart={"max_restarts": 2}), "failed")
    assert (job.attempt, job.failure_class) == (3, "fabric_fault")
    assert job.reason == "The fabric failed under it. All 2 restarts are used up."


def test_a_restart_by_the_scheduler_is_seen_and_counted(world: JobWorld) -> None:
    """The scheduler queues it again under the same id: one attempt, one requeue, an event."""
    world.sim.play("job_requeue", "submit", count=1)
    job_id = world.order("#!/bin/bash\necho begun\nsleep 20\n")
    job = world.until_state(job_id, "succeeded")
    assert (job.attempt, job.requeues, job.attempt_requeues) == (1, 1, 1)
    assert world.events(job_id).count("job.requeued") == 1
    assert world.output(job_id).count("begun") == 2


@pytest.mark.parametrize("state", ["queued", "admitted", "starting", "running"])
def test_cancel_is_honoured_in_every_state(world: JobWorld, state: str) -> None:
    """The job ends as cancelled, and nothing of it is left at the provider."""
    if state == "queued":
        world.set_cluster_state("provisioning")
    if state == "admitted":
        world.sim.play("no_capacity", "submit", count=50)
    if state == "starting":
        world.until_state(world.order(LONG, nodes=4, gpus_per_node=8, name="other"), "running")
    job_id = world.order(LONG, nodes=4, gpus_per_node=8)
    world.until_state(job_id, state, within_s=4)
    world.settle()
    assert world.job(job_id).state == state
    world.cancel(job_id)
    job = world.until_state(job_id, "cancelled", within_s=30)
    assert job.failure_class is None
    phases = {one.token: one.phase for one in world.tools.jobs(world.provider).list_jobs(world.customer.cluster)}
    assert phases.get(f"{job_id}-1", "cancelled") == "cancelled"
    assert "job.cancel_requested" in world.events(job_id)


@pytest.mark.parametrize("fault", ["late_success", "effect_then_timeout", "timeout_before_effect"])
def test_cancel_after_an_unknown_submit_leaves_nothing_behind(world: JobWorld, fault: str) -> None:
    """Whether or not the submit took effect, and however late, the job is cancelled everywhere."""
    world.sim.play(fault, "submit", count=1)
    job_id = world.order("#!/bin/bash\nsleep 5000\n")
    world.settle()
    world.cancel(job_id)
    world.until_state(job_id, "cancelled")
    world.clock.advance(600)
    jobs = world.tools.jobs(world.provider).list_jobs(world.customer.cluster)
    assert {one.phase for one in jobs} <= {"cancelled"}


def test_one_wrong_miss_loses_nothing(world: JobWorld) -> None:
    """The scheduler denies the job once: it is looked for again and goes on."""
    job_id = world.order(LONG)
    world.until_state(job_id, "running")
    world.sim.play("flapping_404", "find_job", count=1)
    world.until_state(job_id, "succeeded")
    assert world.history(job_id)[3:6] == ["running", "unknown", "running"]
    assert world.submissions() == [(f"{job_id}-1", 1)]


def test_a_job_that_is_gone_is_lost_after_two_misses_and_not_run_again(world: JobWorld) -> None:
    """Nobody can say how it ended, so it is not guessed: class unknown, no restart."""
    job_id = world.order(LONG)
    world.until_state(job_id, "running")
    world.sim.play("flapping_404", "find_job", count=99)
    unknown = world.until_state(job_id, "unknown", within_s=60)
    job = world.until_state(job_id, "failed", within_s=200)
    assert (job.failure_class, job.attempt) == ("unknown", 1)
    assert (job.state_since - unknown.state_since).total_seconds() >= ABSENCE_GAP_S


def test_a_silent_provider_changes_nothing(world: JobWorld) -> None:
    """A scheduler that does not answer is waited for, and the job is found as it was."""
    job_id = world.order(LONG)
    world.until_state(job_id, "running")
    world.sim.play("effect_then_timeout", "find_job", count=3)
    world.clock.advance(5)
    world.settle()
    job = world.job(job_id)
    assert (job.state, job.reason) == ("running", "The provider does not answer as it should; it is tried again.")
    world.until_state(job_id, "succeeded")


def test_a_job_waits_for_its_cluster(world: JobWorld) -> None:
    """It may be submitted before its cluster runs, says what it waits for, and runs when it can."""
    world.set_cluster_state("provisioning")
    job_id = world.order()
    world.settle()
    assert world.job(job_id).reason == "Waits for its cluster, which is provisioning."
    world.set_cluster_state("running")
    world.until_state(job_id, "succeeded")


@pytest.mark.parametrize("state", ["failed", "deleting", "deleted"])
def test_a_job_fails_with_a_cluster_that_never_comes(world: JobWorld, state: str) -> None:
    """The job fails with a clear code, and nothing is sent."""
    world.set_cluster_state("provisioning")
    job_id = world.order()
    world.set_cluster_state(state)
    job = world.until_state(job_id, "failed")
    assert job.issues == [{"code": "cluster_gone", "message": f"Its cluster is {state}."}]
    assert world.submissions() == []


def test_a_gang_that_never_fits_fails_when_its_cluster_is_there(world: JobWorld) -> None:
    """A cluster that shrank after the order is told when the job's turn comes."""
    world.set_cluster_state("provisioning")
    job_id = world.order(nodes=4)
    _order_nodes(world, 3)
    world.set_cluster_state("running")
    job = world.until_state(job_id, "failed")
    assert job.issues[0]["code"] == "job_larger_than_cluster"


@pytest.mark.parametrize("state", ["pending", "provisioning", "running", "degraded", "updating"])
def test_a_gang_larger_than_what_is_ordered_is_refused_in_any_state(world: JobWorld, state: str) -> None:
    """The order tells how many nodes there will be; members that are still to come count."""
    growing = world.add_customer(world.spare_refs[:1], count=3)
    world.set_cluster_state(state, growing)
    world.order(customer=growing, nodes=3)
    with pytest.raises(GangTooLarge) as refused:
        world.order(customer=growing, nodes=4)
    assert (refused.value.fields["limit"], refused.value.fields["requested"]) == (3, 4)


def test_a_cluster_of_mixed_models_asks_for_none(world: JobWorld) -> None:
    """Naming the first node set's model would keep jobs from the other nodes."""
    cluster_id = world.customer.cluster
    assert _home(world, cluster_id).gpu_model == "H100-SXM5-80GB"
    with world.database.owner.begin() as connection:
        connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        connection.execute(text(MORE_NODES), {"id": cluster_id})
    home = _home(world, cluster_id)
    assert (home.gpu_model, home.nodes, home.gpus_per_node) == ("", 6, 8)


MORE_NODES = (
    "INSERT INTO node_sets (id, cluster_id, tenant_id, name, instance_type, count, gpus, gpu_model, unplaced)"
    " SELECT id || '2', cluster_id, tenant_id, 'more', instance_type, 2, 4, 'H200-SXM-141GB', 0 FROM node_sets WHERE cluster_id = :id"
)


def _home(world: JobWorld, cluster_id: str) -> Home:
    return in_transaction(world.database.engine, EVERYTHING, lambda session: clusters.homes(session, [cluster_id])[cluster_id])


def _order_nodes(world: JobWorld, count: int) -> None:
    with world.database.owner.begin() as connection:
        connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        given = {"count": count, "id": world.customer.cluster}
        connection.execute(text("UPDATE node_sets SET count = :count WHERE cluster_id = :id"), given)


def test_a_deleted_cluster_ends_its_jobs(world: JobWorld) -> None:
    """Its scheduler cancels what runs; the job is cancelled, not started again."""
    job_id = world.order(LONG)
    world.until_state(job_id, "running")
    world.tools.clusters(world.provider).delete_cluster(world.customer.cluster)
    world.set_cluster_state("deleting")
    job = world.until_state(job_id, "cancelled")
    assert job.attempt == 1


def test_an_order_names_a_cluster_of_its_own_project(world: JobWorld) -> None:
    """Another tenant's cluster is answered like none."""
    other = world.add_customer(world.spare_refs[:1])
    mine, world.customers[0].cluster = world.customers[0].cluster, other.cluster
    with pytest.raises(NotFound) as foreign:
        world.order()
    world.customers[0].cluster = "clu_none"
    with pytest.raises(NotFound) as unknown:
        world.order()
    world.customers[0].cluster, world.customers[0].project = mine, other.project
    with pytest.raises(NotFound) as elsewhere:
        world.order()
    assert str(foreign.value) == str(unknown.value) == str(elsewhere.value)


def test_orders_that_cannot_be_are_refused(world: JobWorld) -> None:
    """Bare metal, clusters that are going, and gangs larger than their cluster, each with what would help."""
    metal = world.add_customer(world.spare_refs[:1], kind="baremetal")
    with pytest.raises(ClusterRunsNoJobs) as refused:
        world.order(customer=metal)
    assert "kind slurm" in refused.value.fields["hint"]
    going = world.add_customer(world.spare_refs[1:2], state="deleting")
    with pytest.raises(ClusterNotUsable):
        world.order(customer=going)
    with pytest.raises(GangTooLarge) as nodes:
        world.order(nodes=5)
    assert (nodes.value.fields["limit"], nodes.value.fields["requested"]) == (4, 5)
    with pytest.raises(GangTooLarge) as gpus:
        world.order(gpus_per_node=9)
    assert (gpus.value.fields["resource"], gpus.value.fields["limit"]) == ("gpus_per_node", 8)


ON_THE_WAY = ("admitted", "starting", "running", "completing", "unknown")


def _bring(world: JobWorld, state: str) -> str:
    """
    A job that is due in the state.
    """
    job_id = world.order(LONG, nodes=2)
    if state == "unknown":
        world.until_state(job_id, "running")
        world.sim.play("flapping_404", "find_job", count=1)
    for _ in range(200):
        if world.job(job_id).state == state:
            return job_id
        if not world.driver.decide(10) and not world.once():
            world.clock.advance(2)
    raise AssertionError(state)


@pytest.mark.parametrize("state", ON_THE_WAY)
def test_a_crash_between_step_and_apply_loses_nothing(world: JobWorld, state: str) -> None:
    """The outcome is dropped with its worker; after the lease another goes on, and one job was made."""
    job_id = _bring(world, state)
    world.clock.advance(16)
    world.step(world.take())
    assert world.driver.claim(10) == []
    world.pass_lease()
    job = world.until_state(job_id, "succeeded")
    assert world.submissions() == [(f"{job_id}-1", 1)]
    assert world.output(job_id) == "begun\ndone\n"
    assert job.attempts == 0


@pytest.mark.parametrize("state", ON_THE_WAY)
def test_a_stale_claim_changes_nothing(world: JobWorld, state: str) -> None:
    """A worker that comes back after its lease writes nothing over what its successor wrote."""
    job_id = _bring(world, state)
    world.clock.advance(16)
    late = world.step(world.take())
    world.pass_lease()
    fresh = world.step(world.take())
    assert world.driver.apply([fresh]) == 1
    before = world.job(job_id)
    assert world.driver.apply([late]) == 0
    after = world.job(job_id)
    assert (after.state, after.log_bytes, after.version) == (before.state, before.log_bytes, before.version)
    world.until_state(job_id, "succeeded")
    assert world.output(job_id) == "begun\ndone\n"


def test_a_crash_after_the_submit_then_cancel_leaves_nothing_behind(world: JobWorld) -> None:
    """The submit took effect and its worker died; a cancel that comes before the takeover still reaches the job."""
    job_id = world.order("#!/bin/bash\nsleep 5000\n")
    assert world.driver.decide(10) == 1
    world.step(world.take())
    world.cancel(job_id)
    world.pass_lease()
    world.until_state(job_id, "cancelled")
    assert [one.phase for one in world.tools.jobs(world.provider).list_jobs(world.customer.cluster)] == ["cancelled"]


@pytest.mark.parametrize("state", ON_THE_WAY)
def test_a_cancel_during_a_step_is_not_lost(world: JobWorld, state: str) -> None:
    """A wish that comes while a step is under way is honoured right after it."""
    job_id = _bring(world, state)
    world.clock.advance(16)
    result = world.step(world.take())
    world.cancel(job_id)
    world.driver.apply([result])
    job = world.until_state(job_id, "cancelled", "succeeded", within_s=10)
    assert job.state == ("succeeded" if state == "completing" else "cancelled")


def test_a_cancel_while_a_restart_is_decided_ends_the_job(world: JobWorld) -> None:
    """A job that was to start again later is cancelled at once, without its pause and without another attempt."""
    world.sim.play("job_fabric_fault", "submit", count=9)
    job_id = _bring(world, "completing")
    while True:
        result = world.step(world.take())
        if isinstance(result.outcome, Advance):
            break
        world.driver.apply([result])
    assert result.outcome.to == "queued"
    world.cancel(job_id)
    world.driver.apply([result])
    world.settle()
    assert world.job(job_id).state == "cancelled"
    assert world.submissions() == [(f"{job_id}-1", 1)]


def test_a_hundred_jobs_are_read_and_written_in_a_few_statements(world: JobWorld) -> None:
    """Claims, snapshots and results go in bulk: the number of statements does not grow with the jobs."""
    for _ in range(3):
        world.order(LONG)
    assert world.driver.decide(100) == 3
    few = _statements(world, lambda: world.driver.claim(100))
    world.pass_lease()
    for _ in range(30):
        world.order(LONG)
    assert world.driver.decide(100) == 30
    claims: list[Claim] = []
    many = _statements(world, lambda: claims.extend(world.driver.claim(100)))
    assert many == few
    results = [world.step(claim) for claim in claims]
    assert len(results) == 33
    assert _statements(world, lambda: world.driver.apply(results)) < 20


def _statements(world: JobWorld, work: Callable[[], object]) -> int:
    seen: list[str] = []

    def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    event.listen(world.database.engine, "before_cursor_execute", count)
    try:
        work()
    finally:
        event.remove(world.database.engine, "before_cursor_execute", count)
    return len(seen)


def test_the_longest_stay_of_a_queued_job_ends_it(world: JobWorld) -> None:
    """A job whose cluster never comes to run is failed by its deadline, not left waiting."""
    world.set_cluster_state("provisioning")
    job_id = world.order()
    world.clock.advance(30 * 86_400 + 1)
    job = world.until_state(job_id, "failed")
    assert job.issues[0]["code"] == "queued_too_long"


def test_an_overdue_job_is_still_watched(world: JobWorld) -> None:
    """Past its longest stay a running job is shown to operators and goes on being looked at, so its end is seen."""
    job_id = world.order(LONG)
    world.until_state(job_id, "running")
    with world.database.owner.begin() as connection:
        connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        connection.execute(text("UPDATE jobs SET deadline_at = cp_clock()"))
    world.clock.advance(5)
    world.settle()
    job = world.job(job_id)
    assert (job.state, job.attention) == ("running", "deadline")
    assert job.due_at is not None
    world.until_state(job_id, "succeeded")
    assert TEMPO.slow_retry_s <= 60
