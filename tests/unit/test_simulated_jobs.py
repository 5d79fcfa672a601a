"""
The simulated Slurm: what scripts print and how they end, and how the queue decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.simulated.adapter import build
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.script import Gang, Played, play
from controlplane.providers.clusters import ClusterSpec, JobSpec, JobView, Member
from controlplane.providers.errors import NoCapacity
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
GANG = Gang("17", (("n1", (0, 1)), ("n2", (4, 5))), 2, "clu_1", {"NAME": "Ada", "EMPTY": ""})


def run(script: str) -> Played:
    """The script on two machines with two tasks each."""
    return play(f"#!/bin/bash\n{script}\n", GANG)


def printed(script: str) -> list[str]:
    """What it prints."""
    return [one.line for one in run(script).printed]


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("echo hello world", ["hello world"]),
        ("echo \"$NAME\" ${NAME}s '$NAME' \\$NAME [$EMPTY] [$NOTHING]", ["Ada Adas $NAME $NAME [] []"]),
        ("X=5\necho $X; export Y=6 && echo $X$Y", ["5", "56"]),
        ("# echo no\n#SBATCH -N 4\necho yes", ["yes"]),
        ("echo one \\\n two", ["one two"]),
        ("nvidia-smi\npython train.py", []),
        ("hostname", ["n1"]),
        ("srun hostname", ["n1", "n1", "n2", "n2"]),
        ("srun -N 2 --mpi=none printenv SLURM_PROCID", ["0", "1", "2", "3"]),
        ("srun echo $SLURM_PROCID", ["0"] * 4),
        ("srun bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS'", ["0/4", "1/4", "2/4", "3/4"]),
        ('srun bash -c "echo \\$SLURM_NODEID $SLURM_NODEID"', ["0 0", "0 0", "1 0", "1 0"]),
        ("echo $SLURM_JOB_NODELIST $SLURM_NNODES $CUDA_VISIBLE_DEVICES", ["n1,n2 2 0,1"]),
        (
            "srun ./train",
            [
                f"SLURMD_NODENAME=n{1 + rank // 2} SLURM_PROCID={rank} CUDA_VISIBLE_DEVICES={('0,1', '4,5')[rank // 2]}"
                for rank in range(4)
            ],
        ),
    ],
)
def test_what_a_script_prints(script: str, lines: list[str]) -> None:
    """The small grammar, line by line."""
    assert printed(script) == lines


@pytest.mark.parametrize(
    ("script", "seconds", "exit_code", "signal"),
    [
        ("sleep 3\nsleep 0.5", 3.5, 0, 0),
        ("exit 7\necho never", 0, 7, 0),
        ("false", 0, 1, 0),
        ("false\ntrue", 0, 0, 0),
        ("srun sleep 10", 10, 0, 0),
        ("srun bash -c 'sleep $SLURM_PROCID; exit $SLURM_PROCID'", 3, 3, 0),
        ("kill -9 $$", 0, 0, 9),
        ("sleep nonsense\nexit nonsense", 0, 0, 0),
        ("sleep -5\nsleep nan\nsleep inf", 366 * 86400, 0, 0),
        ("echo 'no end", 0, 0, 0),
    ],
)
def test_how_a_script_ends(script: str, seconds: float, exit_code: int, signal: int) -> None:
    """Time, exit code and signal."""
    played = run(script)
    assert (played.duration_us / 1e6, played.exit_code, played.signal) == (seconds, exit_code, signal)


@given(st.text(max_size=200))
@settings(max_examples=300)
def test_no_script_breaks_the_shell(text: str) -> None:
    """Whatever stands in it, it ends and prints in order."""
    played = run(text)
    assert played.duration_us >= 0
    assert [one.at_us for one in played.printed] == sorted(one.at_us for one in played.printed)


class Queue:
    """A cluster of four machines on a clock that the test moves."""

    def __init__(self, path: Path, **config: object) -> None:
        self.moment = START
        self.sim = build(AdapterInput("prv_1", {"path": str(path), **config}, {}, "test", lambda: self.moment))
        self.control = SimControl(path, now=lambda: self.moment)
        self.refs = [one.ref for one in self.sim.list_machines().machines[:4]]
        members = tuple(Member(ref, 8, f"alc_{ref}") for ref in self.refs)
        for one in members:
            self.sim.deploy(Deployment(one.ref, one.token, "ten_1", "clu_1", "net"))
        self.sim.apply_cluster(ClusterSpec("clu_1", "ten_1", "prj_1", "u1", members))
        self._numbers = count(1)

    def submit(self, script: str, nodes: int = 4, gpus: int = 8, limit_s: int = 3600) -> str:
        """The token of a new job."""
        token = f"job_{next(self._numbers)}-1"
        self.sim.submit(JobSpec(token, "clu_1", "ten_1", "u1", f"#!/bin/sh\n{script}\n", nodes, gpus, 1, limit_s))
        return token

    def seen(self, token: str) -> JobView:
        """The job now."""
        return self.sim.find_job("clu_1", token)

    def later(self, seconds: float) -> None:
        """Time has passed."""
        self.moment += timedelta(seconds=seconds)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of its own."""
    made = Queue(tmp_path / "world.sqlite")
    yield made
    made.sim.close()


def test_the_queue_is_first_in_first_out_with_reasons(queue: Queue) -> None:
    """The head waits for resources and says when; behind it all wait their turn, even what would fit."""
    first = queue.submit("sleep 100", nodes=3)
    head, small = queue.submit("sleep 10", nodes=2), queue.submit("sleep 10", nodes=1)
    assert [queue.seen(one).reason for one in (first, head, small)] == ["None", "Resources", "Priority"]
    assert queue.seen(head).expected_start_at == START + timedelta(seconds=3600)
    queue.later(99)
    assert queue.seen(small).phase == "pending"
    queue.later(1)
    assert queue.seen(head).started_at == queue.seen(small).started_at == START + timedelta(seconds=100)


def test_what_happened_between_two_looks_is_replayed_exactly(queue: Queue) -> None:
    """Ten jobs in a row, looked at once at the end: each began when the one before ended."""
    tokens = [queue.submit(f"sleep {number}") for number in range(1, 11)]
    queue.later(1000)
    views = [queue.seen(token) for token in tokens]
    starts = [START + timedelta(seconds=sum(range(number))) for number in range(1, 11)]
    assert [view.started_at for view in views] == starts
    assert {view.phase for view in views} == {"succeeded"}


def test_jobs_share_machines_by_gpu(queue: Queue) -> None:
    """Four jobs of two GPUs fit beside each other on one set of machines, on different GPUs."""
    tokens = [queue.submit("srun hostname; echo $CUDA_VISIBLE_DEVICES; sleep 50", nodes=4, gpus=2) for _ in range(5)]
    assert [queue.seen(token).phase for token in tokens] == ["running"] * 4 + ["pending"]
    given_gpus = {
        queue.sim.read_output("clu_1", token, offset=0, limit=1000).data.decode().splitlines()[-1] for token in tokens[:4]
    }
    assert given_gpus == {"0,1", "2,3", "4,5", "6,7"}
    assert {one.jobs for one in queue.sim.observe_cluster("clu_1").members} == {4}


def test_machines_are_free_only_after_the_epilog(tmp_path: Path) -> None:
    """Where ending takes time a job is completing for a while, and the next starts when that is over and not before."""
    queue = Queue(tmp_path / "world.sqlite", profile="realistic")
    queue.later(7200)
    first, second = queue.submit("sleep 100"), queue.submit("true")
    queue.later(100)
    while queue.seen(first).phase == "running":
        queue.later(0.05)
    ended = queue.seen(first)
    assert (ended.phase, queue.seen(second).phase) == ("completing", "pending")
    assert {one.jobs for one in queue.sim.observe_cluster("clu_1").members} == {1}
    while queue.seen(first).phase == "completing":
        queue.later(0.05)
    after = queue.seen(second)
    assert ended.ended_at is not None
    assert after.started_at is not None
    assert timedelta(seconds=1) < after.started_at - ended.ended_at < timedelta(seconds=16)


def test_output_grows_with_time(queue: Queue) -> None:
    """Only what was printed by now can be read; the end is told once the job is over."""
    token = queue.submit("echo one\nsleep 10\necho two")
    chunk = queue.sim.read_output("clu_1", token, offset=0, limit=100)
    assert (chunk.data, chunk.end) == (b"one\n", False)
    queue.later(10)
    chunk = queue.sim.read_output("clu_1", token, offset=4, limit=100)
    assert (chunk.data, chunk.end) == (b"two\n", True)


def test_a_time_limit_cuts_the_output_and_says_so(queue: Queue) -> None:
    """What came after the limit was never printed."""
    token = queue.submit("echo one\nsleep 100\necho two", limit_s=60)
    queue.later(200)
    text = queue.sim.read_output("clu_1", token, offset=0, limit=1000).data.decode()
    assert text.startswith("one\n")
    assert "two" not in text
    assert "DUE TO TIME LIMIT" in text
    assert queue.seen(token).ended_at == START + timedelta(seconds=60)


@pytest.mark.parametrize("requeue", [True, False])
def test_a_dead_machine_takes_its_job_along(tmp_path: Path, *, requeue: bool) -> None:
    """By the peer's setting it is queued again, or fails; other jobs run on."""
    queue = Queue(tmp_path / "world.sqlite", requeue=requeue)
    hit, spared = queue.submit("sleep 100", nodes=2), queue.submit("sleep 100", nodes=2)
    queue.later(10)
    queue.control.kill_node(queue.refs[0], for_s=50)
    queue.later(1)
    view = queue.seen(hit)
    assert (view.phase, view.requeues) == (("pending", 1) if requeue else ("failed", 0))
    assert view.failure == (None if requeue else "node_fault")
    queue.later(1000)
    assert queue.seen(spared).ended_at == START + timedelta(seconds=100)
    if requeue:
        assert queue.seen(hit).started_at == START + timedelta(seconds=60)
        assert queue.seen(hit).phase == "succeeded"


def test_a_job_waits_while_too_few_machines_take_jobs(queue: Queue) -> None:
    """A drain by an administrator holds the gang back, with its reason; it starts when the drain is lifted."""
    queue.control.admin_drain(queue.refs[1], "cable")
    token = queue.submit("true")
    assert (queue.seen(token).phase, queue.seen(token).reason) == ("pending", "ReqNodeNotAvail")
    queue.later(30)
    queue.control.admin_undrain(queue.refs[1])
    assert queue.seen(token).started_at == START + timedelta(seconds=30)


def test_a_release_under_a_running_job_is_a_node_fault(queue: Queue) -> None:
    """The machine goes from under it; nothing runs on a machine that is not the tenant's any more."""
    token = queue.submit("sleep 100", nodes=4)
    queue.later(10)
    queue.sim.release(queue.refs[3], f"alc_{queue.refs[3]}", accepted_at=queue.moment)
    queue.later(50)
    assert queue.seen(token).phase == "pending"
    assert queue.seen(token).requeues == 1
    states = {one.ref: one.state for one in queue.sim.observe_cluster("clu_1").members}
    assert states[queue.refs[3]] == "down"


@given(
    jobs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(0, 40), st.integers(0, 30)), min_size=1, max_size=8),
    deaths=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100), st.integers(1, 50)), max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_no_gpu_is_ever_given_to_two_jobs(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[tuple[int, int, int, int]], deaths: list[tuple[int, int, int]]
) -> None:
    """Whatever is submitted and whatever dies: gangs are whole, GPUs are given once, and every job ends."""
    queue = Queue(tmp_path_factory.mktemp("queue") / "world.sqlite")
    for which, after_s, for_s in deaths:
        queue.control.kill_node(queue.refs[which], after_s=after_s, for_s=for_s)
    shapes = {}
    for nodes, gpus, sleep_s, gap_s in jobs:
        shapes[queue.submit(f"sleep {sleep_s}", nodes=nodes, gpus=gpus)] = (nodes, gpus)
        queue.later(gap_s)
        held = dict.fromkeys(queue.refs, 0)
        for view in queue.sim.list_jobs("clu_1"):
            if view.phase == "running":
                assert len(view.nodes) == shapes[view.token][0]
                for ref in view.nodes:
                    held[ref] += shapes[view.token][1]
        assert max(held.values()) <= 8
    queue.later(10_000)
    assert {view.phase for view in queue.sim.list_jobs("clu_1")} == {"succeeded"}
    queue.sim.close()
    queue.control.close()


def test_nobody_joins_a_kubernetes_before_it_is_founded_and_no_work_comes_to_who_leads(tmp_path: Path) -> None:
    """The first members wait for the founder, later ones do not; a control plane gives no GPUs; a job of all nodes is turned away."""
    now = [START]
    sim = build(AdapterInput("prv_1", {"path": str(tmp_path / "w"), "profile": "realistic"}, {}, "test", lambda: now[0]))
    refs = [one.ref for one in sim.list_machines().machines][:4]
    for number, ref in enumerate(refs):
        sim.deploy(Deployment(ref, f"a{number}", "ten_1", "clu_1", "net"))
    now[0] += timedelta(days=1)
    members = tuple(Member(ref, 8 if number else 0, f"a{number}", leads=not number) for number, ref in enumerate(refs))
    spec = ClusterSpec("clu_1", "ten_1", "prj_1", "", members[:3])
    sim.apply_cluster(spec)
    begun = now[0]
    now[0] += timedelta(days=1)
    seen = {one.ref: one for one in sim.observe_cluster("clu_1").members}
    assert [seen[ref].gpus for ref in refs[:3]] == [0, 8, 8]
    sim.apply_cluster(ClusterSpec("clu_1", "ten_1", "prj_1", "", members))
    again = now[0]
    now[0] += timedelta(days=1)
    took = {
        one.ref: one.up_since - (again if one.ref == refs[3] else begun)
        for one in sim.observe_cluster("clu_1").members
        if one.up_since
    }
    assert all(took[ref] > timedelta(seconds=45) for ref in refs[:3])
    assert took[refs[3]] < min(took[ref] for ref in refs[:3])
    job = JobSpec("job_1-1", "clu_1", "ten_1", "", "#!/bin/sh\n", 4, 0, 1, 60, cluster_kind="kubernetes")
    with pytest.raises(NoCapacity):
        sim.submit(job)
    sim.submit(replace(job, nodes=3))
    now[0] += timedelta(hours=1)
    assert set(sim.find_job("clu_1", "job_1-1").nodes) == set(refs[1:])
    sim.close()
