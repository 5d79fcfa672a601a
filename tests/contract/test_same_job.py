"""
One job, submitted unchanged to a real Slurm and to the kit of Kubernetes: the same is taken, and the same is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.conftest import Database
from tests.contract.harness import Harness
from tests.contract.peers import BOTH, peer_of, play, settled
from tests.factories.jobs import job_world

SAME: dict[str, Any] = {
    "nodes": 2,
    "gpus_per_node": 8,
    "time_limit_s": 300,
    "env": {"GREETING": "hello, two words"},
    "priority": "high",
    "launch": {"kind": "torchrun", "command": ["train.py", "$HOME; done"], "launcher": ["echo"], "setup": 'echo "$GREETING"'},
}


@pytest.fixture(params=BOTH)
def peer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Harness]]:
    """
    The kind of cluster, and who runs it.
    """
    with peer_of(request.param, tmp_path) as made:
        yield made


def test_the_same_job_runs_on_slurm_and_on_kubernetes(database: Database, tmp_path: Path, peer: tuple[str, Harness]) -> None:
    """A gang launched by torchrun: the same body, the same states and instances, the same words on both of its nodes."""
    kind, harness = peer
    with job_world(database, tmp_path, nodes=1) as world:
        one = settled(world, kind, harness, harness.cluster(2))
        # both catalogs name the model; the peers need not tell it apart
        with world.database.owner.begin() as connection:
            connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
            connection.execute(text("UPDATE node_sets SET gpu_model = '' WHERE cluster_id = :id"), {"id": one.cluster})
        job_id = world.order(None, customer=one, **SAME)
        play(world, harness, lambda: world.job(job_id).state in {"succeeded", "failed", "cancelled"})
        job = world.job(job_id)
        assert (job.state, job.exit_code, job.attempt) == ("succeeded", 0, 1), job.reason
        assert sorted(job.placement) == sorted(one.instances.values())
        lines = world.output(job_id).splitlines()
        world.tools.adapter(world.provider).close()
    assert [line for line in lines if line == "hello, two words"] == ["hello, two words"] * 2
    told = sorted(re.sub(r"--master-(addr|port)=\S+ ", "", line) for line in lines if line.startswith("--nnodes"))
    assert told == [f"--nnodes=2 --nproc-per-node=8 --node-rank={rank} train.py $HOME; done" for rank in (0, 1)]
    assert [state for state in world.history(job_id) if state in {"queued", "admitted", "completing", "succeeded"}] == [
        *("queued", "admitted", "completing", "succeeded")
    ]
