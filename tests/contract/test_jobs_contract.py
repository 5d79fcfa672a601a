"""
What every adapter with SupportsJobs and SupportsOutput must do. Scripts are plain bash, so that a real peer runs them too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from controlplane.providers.clusters import OutputChunk, SupportsJobs, SupportsOutput
from controlplane.providers.errors import NoCapacity, NotFound, ProviderError, Refused
from tests.contract.harness import ENDED, Harness

pytestmark = pytest.mark.needs("clusters", "jobs")
WHERE = "srun bash -c 'echo task=$SLURM_PROCID node=$SLURMD_NODENAME gpus=$CUDA_VISIBLE_DEVICES'"


def test_it_runs_jobs_and_reads_their_output(harness: Harness) -> None:
    """The adapter has every method of both ports."""
    assert isinstance(harness.adapter, SupportsJobs)
    assert isinstance(harness.adapter, SupportsOutput)


def test_a_gang_job_runs_on_all_its_nodes_and_succeeds(harness: Harness) -> None:
    """Phase, exit code, nodes and instants are recorded."""
    spec = harness.cluster(3)
    job = harness.job(spec, WHERE)
    external_id = harness.submit(job)
    view = harness.ended(job)
    assert (view.phase, view.exit_code, view.failure) == ("succeeded", 0, None)
    assert view.external_id == external_id
    assert set(view.nodes) == {one.ref for one in spec.members}
    assert view.started_at is not None
    assert view.ended_at is not None
    assert view.started_at <= view.ended_at


def test_submitting_twice_is_one_job(harness: Harness) -> None:
    """The repeat finds the first attempt by its token, also after it ended."""
    spec = harness.cluster(1)
    job = harness.job(spec, "true")
    first = harness.submit(job)
    assert harness.submit(job) == first
    harness.ended(job)
    assert harness.submit(job) == first
    assert [one.token for one in harness.adapter.list_jobs(spec.cluster_id)] == [job.token]


def test_an_unknown_job_is_not_found_and_its_cancel_is_a_success(harness: Harness) -> None:
    """NotFound for the look; absence is what a cancel wants."""
    spec = harness.cluster(1)
    token = f"{harness.new_id('job')}-1"
    with pytest.raises(NotFound):
        harness.adapter.find_job(spec.cluster_id, token)
    harness.adapter.cancel(spec.cluster_id, token)


def test_a_listing_holds_all_attempts_of_its_cluster_only(harness: Harness) -> None:
    """Two clusters, two lists; each entry as `find_job` shows it."""
    one, other = harness.cluster(1), harness.cluster(1, harness.tenants[1])
    jobs = [harness.job(one, "true"), harness.job(one, "true"), harness.job(other, "true")]
    for job in jobs:
        harness.submit(job)
        harness.ended(job)
    listed = {view.token: view for view in harness.adapter.list_jobs(one.cluster_id)}
    assert set(listed) == {jobs[0].token, jobs[1].token}
    assert listed[jobs[0].token] == harness.seen(jobs[0])


def test_a_failing_script_is_a_user_error_with_its_exit_code(harness: Harness) -> None:
    """The exit code is the script's."""
    spec = harness.cluster(1)
    job = harness.job(spec, "exit 7")
    harness.submit(job)
    view = harness.ended(job)
    assert (view.phase, view.failure, view.exit_code) == ("failed", "user_error", 7)


def test_a_job_waits_for_its_whole_gang_and_says_why(harness: Harness) -> None:
    """Two jobs that each need all machines run one after the other."""
    spec = harness.cluster(2)
    first, second = harness.job(spec, "sleep 5"), harness.job(spec, "true")
    harness.submit(first)
    harness.until(lambda: harness.seen(first), lambda view: view.phase == "running", what="running")
    harness.submit(second)
    waiting = harness.until(lambda: harness.seen(second), lambda view: view.reason not in {"", "None"}, what="a reason")
    assert waiting.phase == "pending"
    assert waiting.nodes == ()
    ended = harness.ended(second)
    assert ended.phase == "succeeded"
    before = harness.ended(first)
    assert before.ended_at is not None
    assert ended.started_at is not None
    assert ended.started_at >= before.ended_at


def test_a_waiting_job_can_be_cancelled(harness: Harness) -> None:
    """It never ran; the cancel may be repeated."""
    spec = harness.cluster(1)
    first, second = harness.job(spec, "sleep 30"), harness.job(spec, "true")
    harness.submit(first)
    harness.until(lambda: harness.seen(first), lambda view: view.phase == "running", what="running")
    harness.submit(second)
    for _ in range(2):
        harness.adapter.cancel(spec.cluster_id, second.token)
    view = harness.ended(second)
    assert (view.phase, view.failure, view.nodes) == ("cancelled", None, ())
    harness.adapter.cancel(spec.cluster_id, first.token)
    harness.ended(first)


def test_a_running_job_can_be_cancelled(harness: Harness) -> None:
    """It ends long before its time, and its machines are free again."""
    spec = harness.cluster(1)
    job, after = harness.job(spec, "sleep 500"), harness.job(spec, "true")
    harness.submit(job)
    harness.until(lambda: harness.seen(job), lambda view: view.phase == "running", what="running")
    harness.adapter.cancel(spec.cluster_id, job.token)
    assert harness.ended(job).phase == "cancelled"
    harness.submit(after)
    assert harness.ended(after).phase == "succeeded"


def test_cancelling_an_ended_job_leaves_its_end_as_it_was(harness: Harness) -> None:
    """A late cancel is a success without effect."""
    spec = harness.cluster(1)
    job = harness.job(spec, "true")
    harness.submit(job)
    before = harness.ended(job)
    harness.adapter.cancel(spec.cluster_id, job.token)
    harness.pass_time()
    assert harness.seen(job) == before


def test_what_can_never_run_is_turned_away(harness: Harness) -> None:
    """More nodes, or more GPUs on a node, than the cluster has; nothing is left behind."""
    spec = harness.cluster(2)
    for wanted in ({"nodes": 3}, {"gpus_per_node": harness.gpus_per_node + 1}):
        job = harness.job(spec, "true", **wanted)
        with pytest.raises((NoCapacity, Refused)):
            harness.adapter.submit(job)
        with pytest.raises(NotFound):
            harness.seen(job)


@pytest.mark.needs("short_time_limits")
def test_the_time_limit_holds(harness: Harness) -> None:
    """A job that runs over is ended and says so."""
    spec = harness.cluster(1)
    job = harness.job(spec, "sleep 400", time_limit_s=60)
    harness.submit(job)
    view = harness.ended(job)
    assert (view.phase, view.failure) == ("failed", "time_limit")


def test_a_drained_member_gets_no_job(harness: Harness) -> None:
    """A job that fits on the other member runs there; the drained one stays empty."""
    spec = harness.cluster(2)
    drained, free = (one.ref for one in spec.members)
    harness.adapter.drain(spec.cluster_id, (drained,), reason="repair")
    job = harness.job(spec, "true", nodes=1)
    harness.submit(job)
    assert harness.ended(job).nodes == (free,)


def test_a_job_stays_away_from_excluded_members(harness: Harness) -> None:
    """`exclude` is honoured."""
    spec = harness.cluster(2)
    bad, good = (one.ref for one in spec.members)
    job = harness.job(spec, "true", nodes=1, exclude=(bad,))
    harness.submit(job)
    assert harness.ended(job).nodes == (good,)


@pytest.mark.needs("tenant_user_check")
def test_another_tenant_cannot_run_on_the_cluster(harness: Harness) -> None:
    """A submission as the other tenant's user is turned away and leaves nothing."""
    spec = harness.cluster(1)
    harness.cluster(1, harness.tenants[1])
    foreign = replace(harness.job(spec, "true"), tenant_id=harness.tenants[1], user=harness.user_of(harness.tenants[1]))
    with pytest.raises(ProviderError):
        harness.adapter.submit(foreign)
    assert harness.adapter.list_jobs(spec.cluster_id) == ()


def test_another_cluster_sees_neither_the_job_nor_its_output(harness: Harness) -> None:
    """By the other tenant's cluster the token is unknown, and a cancel through it does nothing."""
    spec, other = harness.cluster(1), harness.cluster(1, harness.tenants[1])
    job = harness.job(spec, "echo secret; sleep 5")
    harness.submit(job)
    harness.until(lambda: harness.seen(job), lambda view: view.phase == "running", what="running")
    with pytest.raises(NotFound):
        harness.adapter.find_job(other.cluster_id, job.token)
    with pytest.raises(NotFound):
        harness.adapter.read_output(other.cluster_id, job.token, offset=0, limit=100)
    assert harness.adapter.list_jobs(other.cluster_id) == ()
    harness.adapter.cancel(other.cluster_id, job.token)
    assert harness.ended(job).phase == "succeeded"


@pytest.mark.needs("node_death")
def test_a_dead_machine_ends_or_requeues_its_job(harness: Harness) -> None:
    """The job fails as a node fault, or the peer starts it again and counts that."""
    spec = harness.cluster(1)
    job = harness.job(spec, "sleep 30")
    harness.submit(job)
    harness.until(lambda: harness.seen(job), lambda view: view.phase == "running", what="running")
    harness.node_dies(spec.members[0].ref)
    lost = harness.until(lambda: harness.seen(job), lambda view: view.phase in ENDED or view.requeues, what="lost")
    assert lost.requeues >= 1 or lost.failure == "node_fault"
    harness.node_returns(spec.members[0].ref)
    harness.ended(job)


@pytest.mark.needs("node_death")
def test_a_job_that_must_not_run_twice_ends_with_its_machine(harness: Harness) -> None:
    """Without `requeue` the peer never starts it again."""
    spec = harness.cluster(1)
    job = harness.job(spec, "sleep 30", requeue=False)
    harness.submit(job)
    harness.until(lambda: harness.seen(job), lambda view: view.phase == "running", what="running")
    harness.node_dies(spec.members[0].ref)
    view = harness.ended(job)
    assert (view.phase, view.failure, view.requeues) == ("failed", "node_fault", 0)
    harness.node_returns(spec.members[0].ref)


def test_deleting_the_cluster_ends_its_jobs(harness: Harness) -> None:
    """Nothing runs on once the cluster is gone."""
    spec = harness.cluster(1)
    job = harness.job(spec, "sleep 500")
    harness.submit(job)
    harness.until(lambda: harness.seen(job), lambda view: view.phase == "running", what="running")
    harness.gone(spec.cluster_id)
    try:
        view = harness.ended(job)
    except NotFound:
        return
    assert view.phase == "cancelled"


@pytest.mark.needs("srun")
def test_every_task_prints_where_it_ran(harness: Harness) -> None:
    """One line per node and task, with the node's name and the GPUs it was given."""
    spec = harness.cluster(2)
    job = harness.job(spec, WHERE, tasks_per_node=2, gpus_per_node=2)
    harness.submit(job)
    harness.ended(job)
    text = _whole(harness, job.cluster_id, job.token, piece=100_000).decode()
    lines = [line for line in text.splitlines() if line.startswith("task=")]
    assert sorted(line.split()[0] for line in lines) == [f"task={rank}" for rank in range(4)]
    assert {line.split()[1] for line in lines} == {f"node={one.ref}" for one in spec.members}
    assert {line.split()[2] for line in lines} == {"gpus=0,1"}


def test_output_is_read_by_offset_to_its_end(harness: Harness) -> None:
    """Small pieces put together are the whole; only the last says that nothing follows."""
    spec = harness.cluster(1)
    job = harness.job(spec, "\n".join(f"echo line {number} of many" for number in range(20)))
    harness.submit(job)
    harness.ended(job)
    whole = _whole(harness, job.cluster_id, job.token, piece=100_000)
    assert whole.count(b"\n") == 20
    assert _whole(harness, job.cluster_id, job.token, piece=7) == whole
    first = harness.adapter.read_output(job.cluster_id, job.token, offset=0, limit=7)
    assert (first.offset, len(first.data), first.end) == (0, 7, False)
    past = harness.adapter.read_output(job.cluster_id, job.token, offset=len(whole), limit=7)
    assert (past.data, past.end) == (b"", True)


def test_the_job_sees_its_environment(harness: Harness) -> None:
    """Variables of the job reach its script, whatever characters they hold."""
    spec = harness.cluster(1)
    job = harness.job(spec, 'echo "greeting=$GREETING"', env={"GREETING": "hello, two words = fine"})
    harness.submit(job)
    harness.ended(job)
    assert b"greeting=hello, two words = fine\n" in _whole(harness, job.cluster_id, job.token, piece=100_000)


def test_there_is_no_output_before_there_is_a_job(harness: Harness) -> None:
    """NotFound for an unknown token."""
    spec = harness.cluster(1)
    with pytest.raises(NotFound):
        harness.adapter.read_output(spec.cluster_id, f"{harness.new_id('job')}-1", offset=0, limit=10)


def _whole(harness: Harness, cluster_id: str, token: str, *, piece: int) -> bytes:
    """All output, once the peer has all of it, read in pieces."""
    read: list[bytes] = []
    over = False
    while not over:
        offset = sum(map(len, read))
        chunk: OutputChunk = harness.until(
            partial(harness.adapter.read_output, cluster_id, token, offset=offset, limit=piece),
            lambda seen: seen.data or seen.end,
            what="output",
        )
        read.append(chunk.data)
        over = chunk.end
    return b"".join(read)
