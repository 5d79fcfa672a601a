"""
What jobs may ask for besides nodes and a script, on every adapter: it is done, or it is refused as the peer's capabilities say.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from controlplane.providers.clusters import JobSpec, OutputChunk
from controlplane.providers.errors import NotFound, Permanent
from controlplane.providers.gpus import GpuKind
from controlplane.providers.launching import Launch
from controlplane.providers.volumes import Mount
from tests.contract.harness import Harness

pytestmark = pytest.mark.needs("clusters", "jobs")
FEATURES: dict[str, dict[str, Any]] = {
    "image": {"image": "registry.example/team/train:1"},
    "launch_mpi": {"script": "", "launch": Launch("mpi", ("echo", "process"))},
    "launch_torchrun": {"script": "", "launch": Launch("torchrun", ("train.py",), launcher=("echo",))},
    "secret_files": {"secret_files": {"token": "quiet"}},
    "secret_env": {"secret_env": {"TOKEN": "quiet"}},
    "priority": {"priority": "low"},
    "gpu_attributes": {"gpus_per_node": 1, "gpu": GpuKind(min_memory_gib=40)},
    "gpu_nvlink": {"gpus_per_node": 1, "gpu": GpuKind(nvlink=True)},
    "mounts": {"mounts": (Mount("data", "/data"),)},
}


@pytest.mark.parametrize("feature", FEATURES)
def test_what_a_peer_does_not_offer_is_refused_and_leaves_nothing(harness: Harness, feature: str) -> None:
    """Its capabilities are its word: what is offered is taken, all else is final and leaves no job."""
    spec = harness.cluster(1)
    job = _with(harness.job(spec, "true"), **FEATURES[feature])
    if feature in harness.adapter.capabilities().job_features:
        harness.submit(job)
        harness.ended(job)
        return
    with pytest.raises(Permanent):
        harness.adapter.submit(job)
    with pytest.raises(NotFound):
        harness.seen(job)


def test_a_job_of_a_higher_class_starts_first(harness: Harness) -> None:
    """Three wait behind one that has the only node: high, then normal, then low, whatever order they came in."""
    spec = harness.cluster(1)
    first = harness.job(spec, "sleep 12")
    harness.submit(first)
    harness.until(lambda: harness.seen(first), lambda view: view.phase == "running", what="running")
    waiting = {name: _with(harness.job(spec, "sleep 3"), priority=name) for name in ("low", "normal", "high")}
    for job in waiting.values():
        harness.submit(job)
    order: list[str] = []

    def all_begun() -> bool:
        begun = {view.token for view in harness.adapter.list_jobs(spec.cluster_id) if view.phase != "pending"}
        order.extend(name for name, job in waiting.items() if job.token in begun and name not in order)
        return len(order) == len(waiting)

    harness.until(all_begun, bool, what="all begun")
    # some peers tell seconds only, and of some we see several starts at once
    started = {name: str(harness.ended(job).started_at) for name, job in waiting.items()}
    assert sorted(waiting, key=lambda name: (started[name], order.index(name))) == ["high", "normal", "low"]


def test_torchrun_is_told_the_same_on_every_node(harness: Harness) -> None:
    """One launcher on each node: all nodes, its own rank, processes per node, and one address and port for all."""
    spec = harness.cluster(2)
    launch = Launch("torchrun", ("train.py", "--name", "two words; $HOME"), launcher=("echo", "told"), setup="export A=b")
    job = _with(harness.job(spec, "", tasks_per_node=8), script="", launch=launch)
    harness.submit(job)
    assert harness.ended(job).phase == "succeeded"
    lines = sorted(line.split() for line in _whole(harness, job).splitlines() if line.startswith("told"))
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        told = dict(one.removeprefix("--").split("=", 1) for one in line[1:6])
        assert (told["nnodes"], told["nproc-per-node"], told["node-rank"]) == ("2", "8", str(rank))
        assert told["master-addr"] != ""
        assert 1024 <= int(told["master-port"]) < 65_536
        assert line[6:] == ["train.py", "--name", "two", "words;", "$HOME"]
    assert lines[0][4:6] == lines[1][4:6]


def test_mpi_starts_every_process_with_its_rank(harness: Harness) -> None:
    """Two nodes of three processes are six ranks, none twice."""
    if "launch_mpi" not in harness.adapter.capabilities().job_features:
        pytest.skip("launch_mpi is not offered")
    spec = harness.cluster(2)
    launch = Launch("mpi", ("printenv", "RANK"))
    job = _with(harness.job(spec, "", tasks_per_node=3, gpus_per_node=0), script="", launch=launch)
    harness.submit(job)
    assert harness.ended(job).phase == "succeeded"
    assert sorted(_whole(harness, job).split()) == list("012345")


def test_secrets_reach_the_job(harness: Harness) -> None:
    """As variables, which win over plain ones of the same name."""
    spec = harness.cluster(1)
    job = harness.job(spec, 'echo "<$TOKEN>"', env={"TOKEN": "plain"}, secret_env={"TOKEN": "it is = quiet"})
    harness.submit(job)
    harness.ended(job)
    assert "<it is = quiet>" in _whole(harness, job)
    assert "quiet" not in repr(job)


def _with(job: JobSpec, **wanted: Any) -> JobSpec:
    return JobSpec(**{**{name: getattr(job, name) for name in JobSpec.__dataclass_fields__}, **wanted})


def _whole(harness: Harness, job: JobSpec) -> str:
    """All that the job printed."""
    read: list[bytes] = []
    over = False
    while not over:
        chunk: OutputChunk = harness.until(
            partial(harness.adapter.read_output, job.cluster_id, job.token, offset=sum(map(len, read)), limit=100_000),
            lambda seen: seen.data or seen.end,
            what="output",
        )
        read.append(chunk.data)
        over = chunk.end
    return b"".join(read).decode()
