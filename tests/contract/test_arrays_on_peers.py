"""
Arrays, ordered through the API, on a real Slurm and on the kit of Kubernetes: each task is a job there, and the bound is ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.contract.harness import Harness
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.contract.peers import BOTH, peer_of, play, settled
from tests.factories.jobs import Customer, JobApi, JobWorld, job_api, job_world

# under Slurm sleeps are real, in the kit they are a twentieth
SCRIPT = """#!/bin/bash
echo "task $ARRAY_INDEX of $ARRAY_ID"
sleep $PAUSE
if [ "$ARRAY_INDEX" = 1 ]; then exit 3; fi
"""
OVER = {"succeeded", "failed", "cancelled"}
AT_THE_PEER = {"pending", "running", "completing", "unknown"}


@dataclass
class Setting:
    """
    A tenant with a cluster of two nodes at the peer.
    """

    world: JobWorld
    """Rows and steps."""
    harness: Harness
    """The peer."""
    one: Customer
    """The tenant."""
    api: JobApi
    """The tenant's key is `one`."""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """What was answered; it was no error."""
        answer = self.api.call("one", method, f"/v1/projects/{self.one.project}{path}", body)
        assert answer.is_success, answer.text
        return answer.json()

    def submit(self, pause: str, gpus: int = 1, **array: Any) -> dict[str, Any]:
        """An array is ordered, with so many GPUs for each task."""
        spec = {
            "cluster_id": self.one.cluster,
            "gpus_per_node": gpus,
            "script": SCRIPT.replace("$PAUSE", pause),
            "time_limit_s": 300,
            "restart": {"max_restarts": 2},
        }
        made: dict[str, Any] = self.call("POST", "/job-arrays", {"name": "sweep", "array": array, "spec": spec})
        return made

    def status(self, array: dict[str, Any]) -> Any:
        """Where it stands."""
        return self.call("GET", f"/job-arrays/{array['id']}")["status"]

    def tasks(self, array: dict[str, Any]) -> list[Any]:
        """Its jobs, in order."""
        return list(self.call("GET", f"/jobs?array_id={array['id']}")["items"])

    def there(self) -> int:
        """How many attempts have not ended at the peer."""
        return sum(one.phase in AT_THE_PEER for one in self.harness.adapter.list_jobs(self.one.cluster))


@pytest.fixture(params=BOTH)
def setting(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Setting]:
    """A tenant at each of the peers."""
    with peer_of(request.param, tmp_path) as (kind, harness), job_world(database, tmp_path, nodes=1) as world:
        one = settled(world, kind, harness, harness.cluster(2))
        api = job_api(database.engine)
        api.keys.known["one"] = one.principal()
        yield Setting(world, harness, one, api)
        world.tools.adapter(world.provider).close()


def test_an_array_runs_within_its_bound_and_a_task_fails_alone(setting: Setting) -> None:
    """Each task knows array and index, no more than two are at the peer, and the one that ends with 3 is not started again."""
    made = setting.submit("20" if isinstance(setting.harness, KubernetesHarness) else "1", first=0, last=3, max_parallel=2)
    most = []

    def is_over() -> bool:
        most.append(setting.there())
        return setting.status(made)["state"] in OVER

    play(setting.world, setting.harness, is_over)
    assert max(most) <= 2
    assert setting.status(made)["tasks"] == {"succeeded": 3, "failed": 1}
    tasks = setting.tasks(made)
    assert [setting.world.output(one["id"]) for one in tasks] == [f"task {index} of {made['id']}\n" for index in range(4)]
    failed = [(one["array"]["index"], one["status"]["failure_class"], one["status"]["exit_code"]) for one in tasks]
    assert failed[1] == (1, "user_error", 3)
    assert {setting.world.job(one["id"]).attempt for one in tasks} == {1}


def test_an_array_is_cancelled_at_the_peer(setting: Setting) -> None:
    """What runs there is ended, and what waited with us never comes there."""
    made = setting.submit("600", first=4, last=7, max_parallel=2)
    play(setting.world, setting.harness, lambda: setting.status(made)["tasks"].get("running", 0) == 2)
    setting.call("POST", f"/job-arrays/{made['id']}/actions/cancel")
    play(setting.world, setting.harness, lambda: setting.status(made)["state"] in OVER)
    assert setting.status(made)["tasks"] == {"cancelled": 4}
    assert (setting.there(), len(setting.harness.adapter.list_jobs(setting.one.cluster))) == (0, 2)


def test_a_task_that_loses_its_node_starts_again_and_no_other_does(setting: Setting) -> None:
    """By its failure class, under its own index; on a real Slurm, whose own requeue takes minutes, only with the slow ones."""
    if not isinstance(setting.harness, KubernetesHarness) and os.environ.get("CONTROLPLANE_SLOW") != "1":
        pytest.skip("slow: runs with CONTROLPLANE_SLOW=1")
    made = setting.submit("20", 8, first=2, last=3, max_parallel=2)
    play(setting.world, setting.harness, lambda: setting.status(made)["tasks"].get("running", 0) == 2)
    first, second = (setting.world.job(one["id"]) for one in setting.tasks(made))
    (lost,) = (ref for ref, instance in setting.one.instances.items() if first.placement == [instance])
    assert second.placement != first.placement, "each has a node of its own"
    setting.harness.node_dies(lost)
    play(setting.world, setting.harness, lambda: setting.status(made)["state"] in OVER, within_s=200)
    setting.harness.node_returns(lost)
    assert setting.status(made)["tasks"] == {"succeeded": 2}
    tries = [(one.attempt + one.requeues, one.array_index) for one in (setting.world.job(one.id) for one in (first, second))]
    assert tries[0] > (1, 2), "by us, or by the peer itself"
    assert tries[1] == (1, 3)
    assert setting.world.output(first.id).splitlines()[-1] == f"task 2 of {made['id']}"
