"""
Changes that a provider turns down for good, through the API on the simulator, whose ledger is the judge: the cluster is what it was
before, and where the provider has done some of it already, what is true there wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import ROOT, Database
from tests.crash.main_job import Story
from tests.factories.world import make_world
from tests.schedules.invariants import broken_promises

FLEET = ROOT / "tests" / "schedules" / "fleet.yaml"
MEMBERS = "SELECT id, node_id, instance_id, leaving, charged FROM allocations WHERE state = 'active' ORDER BY id"
METERS = "SELECT allocation_id, upper_inf(during) AS runs FROM meter_intervals ORDER BY allocation_id"
USED = "SELECT used FROM quotas WHERE resource = 'gpus' AND scope_id = :p AND gpu_model = '' AND site = ''"
NEWS = "SELECT type FROM events WHERE resource_id = :c AND type LIKE 'cluster.%' ORDER BY id"


class Cloud(Story):
    """
    Six nodes, and a cluster on some of them.
    """

    def __init__(self, world: Any, count: int = 2) -> None:
        super().__init__(world)
        self.sim = SimControl(world.region.world, now=world.clock)
        body = self.order("slurm", "train")
        body["spec"]["node_sets"][0]["count"] = count
        self.id = self.ask("POST", "/clusters", body)["id"]
        world.settle()

    @property
    def seen(self) -> dict[str, Any]:
        """The cluster as its owner sees it."""
        found: dict[str, Any] = self.send("GET", f"/clusters/{self.id}").json()
        return found

    def begin(self, change: str, count: int = 0, leaving: tuple[str, ...] = ()) -> str:
        """The id of the operation that was begun."""
        self.world.clock.advance(60)
        self._number += 1
        path, method, body = f"/clusters/{self.id}", "PATCH", None
        if change == "replace":
            method, path = "POST", f"{path}/instances/{self.world.rows(MEMBERS)[0].instance_id}/actions/replace"
        else:
            to = count or {"grow": 3, "shrink": 1}[change]
            body = {"node_sets": [{"name": "workers", "count": to}], "leaving": list(leaving)}
        operation: str = self.ask(method, path, body, **{"If-Match": "*"})["operation"]
        return operation

    def operation(self, operation_id: str) -> dict[str, Any]:
        """As its owner sees it."""
        answer = self._loop.run(self._client.get(f"/v1/operations/{operation_id}"))
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def used(self) -> int:
        """GPUs that count against the project's quota."""
        return int(self.world.rows(USED, p=self.world.keys.project_id)[0].used)

    def news(self) -> list[str]:
        """What was told of the cluster."""
        return [row.type for row in self.world.rows(NEWS, c=self.id)]

    def until_changed(self) -> None:
        """It is not being changed any more."""
        self.until(lambda: not self.world.rows("SELECT 1 FROM clusters WHERE state = 'updating'"))

    def until(self, over: Callable[[], bool], looks: int = 200) -> None:
        """It has come to that."""
        for _ in range(looks):
            if over():
                return
            if not self.world.tick():
                self._wait()
        raise AssertionError(self.world.rows("SELECT state, step, reason, detail FROM clusters"))

    def wind_up(self) -> list[str]:
        """Broken promises, once all has settled and after everything was deleted."""
        self.world.settle()
        found = broken_promises(self.world)
        self.sim.heal()
        self.world.tools = self.world.toolbox()
        self.change(f"/clusters/{self.id}", "DELETE", None)
        self.world.settle()
        left = self.world.rows("SELECT ref, state, reason FROM nodes WHERE state NOT IN ('available', 'quarantined')")
        return (
            found + broken_promises(self.world) + [f"{row}" for row in left] + ([] if self.used() == 0 else [f"{self.used()} used"])
        )


@pytest.fixture
def cloud(database: Database, tmp_path: Path) -> Iterator[Cloud]:
    """A cluster of two that runs."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    world.settle()
    made = Cloud(world)
    yield made
    made.sim.close()
    made.close()
    world.clock.stop()


def test_a_change_that_is_refused_for_good_leaves_all_as_it_was(cloud: Cloud) -> None:
    """Members, meters, charges and order are the same; the newcomer is wiped and free; one event, and a failed operation that tells."""
    before, meters = cloud.world.rows(MEMBERS), cloud.world.rows(METERS)
    cloud.sim.play("refused_final", "apply_cluster", count=None)
    for change in ("grow", "shrink", "replace"):
        news, operation = cloud.news(), cloud.begin(change)
        cloud.until_changed()
        counted = 24 if change == "grow" else 16  # a newcomer counts until it is clean, unless another stays in its place
        assert (cloud.world.rows(MEMBERS), cloud.used()) == (before, counted)
        cloud.world.settle()
        seen, ended = cloud.seen, cloud.operation(operation)
        assert (seen["status"]["state"], seen["status"]["issues"], seen["operation"]) == ("running", [], None)
        assert [(one["count"], one["ready"]) for one in seen["spec"]["node_sets"]] == [(2, 2)]
        assert (ended["state"], ended["error"]["code"]) == ("failed", "provider_refused")
        assert "The cluster is as it was before" in ended["error"]["message"]
        assert cloud.news()[len(news) :] == ["cluster.updating", "cluster.running"]
        assert (cloud.world.rows(MEMBERS), cloud.world.rows(METERS), cloud.used()) == (before, meters, 16)
        states = {row.state: row.n for row in cloud.world.rows("SELECT state, count(*) AS n FROM nodes GROUP BY 1")}
        assert states == {"active": 2, "available": 4}
    assert cloud.wind_up() == []


def test_operators_read_why_and_it_can_be_asked_for_again(cloud: Cloud) -> None:
    """The provider's own words are the operators'; once it takes the change it is made."""
    cloud.sim.play("refused_final", "apply_cluster", count=1)
    cloud.begin("replace")
    cloud.until_changed()
    (row,) = cloud.world.rows("SELECT reason, detail FROM clusters")
    assert "400" in row.detail
    assert "400" not in row.reason
    cloud.world.settle()
    old = cloud.world.rows(MEMBERS)[0].node_id
    operation = cloud.begin("replace")
    cloud.world.settle()
    assert cloud.operation(operation)["state"] == "succeeded"
    assert old not in {row.node_id for row in cloud.world.rows(MEMBERS)}
    assert cloud.wind_up() == []


def test_what_was_done_before_it_was_refused_is_true(cloud: Cloud) -> None:
    """The answer was lost and its repetition is refused: a look shows that the change is there, so it is made and billed."""
    for change, left in (("replace", 2), ("shrink", 1)):
        cloud.sim.heal()
        cloud.sim.play("effect_then_timeout", "apply_cluster", count=1)
        cloud.sim.play("refused_final", "apply_cluster", count=None)
        operation = cloud.begin(change)
        cloud.until_changed()
        assert cloud.operation(operation)["state"] == "succeeded"
        assert len(cloud.world.rows(MEMBERS)) == left
    assert cloud.wind_up() == []


def test_who_has_left_already_is_out_and_the_others_stay(database: Database, tmp_path: Path) -> None:
    """Of two that were to leave one is out at once and the other runs a job when the provider refuses: only that one is let in again."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    world.settle()
    cloud = Cloud(world, 3)
    spec = {"cluster_id": cloud.id, "nodes": 2, "gpus_per_node": 8, "script": "#!/bin/bash\nsrun sleep 300\n", "time_limit_s": 3600}
    job = cloud.ask("POST", "/jobs", {"name": "gang", "spec": spec})["id"]
    cloud.until(lambda: world.rows("SELECT state FROM jobs") == [("running",)])
    cloud.sim.play("refused_final", "apply_cluster", count=1, after=1)
    at_work = cloud.send("GET", f"/jobs/{job}").json()["status"]["instances"]
    (idle,) = {row.instance_id for row in world.rows(MEMBERS)} - set(at_work)
    operation = cloud.begin("shrink", 1, (at_work[0], idle))
    cloud.until_changed()
    assert cloud.operation(operation)["error"]["code"] == "provider_refused"
    assert [(row.leaving, row.charged) for row in world.rows(MEMBERS)] == [(False, True)] * 2
    assert [(one["count"], one["ready"]) for one in cloud.seen["spec"]["node_sets"]] == [(2, 2)]
    assert sorted(row.runs for row in world.rows(METERS)) == [False, True, True]
    world.settle()
    assert world.rows("SELECT state FROM jobs WHERE id = :j", j=job) == [("succeeded",)]
    assert (cloud.seen["status"]["state"], cloud.used()) == ("running", 16)
    assert cloud.wind_up() == []
    cloud.sim.close()
    cloud.close()
    world.clock.stop()


@pytest.mark.parametrize(("change", "well"), [("grow", 1), ("replace", 0)])
def test_newcomers_of_a_change_that_is_given_up_go_back(cloud: Cloud, change: str, well: int) -> None:
    """Too many nodes cannot be deployed: those that could be are not kept beside the order, unbilled; the quota is exact."""
    before, meters = cloud.world.rows(MEMBERS), cloud.world.rows(METERS)
    cloud.sim.play("refused_final", "deploy", count=3, after=well)
    operation = cloud.begin(change, 6 if change == "grow" else 0)
    cloud.world.settle()
    assert cloud.operation(operation)["error"]["code"] == "deploy_failed"
    assert (cloud.world.rows(MEMBERS), cloud.world.rows(METERS)) == (before, meters)
    assert cloud.seen["spec"]["node_sets"][0]["count"] == 2
    assert (cloud.seen["status"]["state"], cloud.used()) == ("running", 16)
    assert cloud.wind_up() == []


def test_a_growth_without_nodes_was_no_trouble_of_the_cluster(cloud: Cloud) -> None:
    """Refused for lack of nodes: never shown as degraded."""
    news = cloud.news()
    operation = cloud.begin("grow", 9)
    cloud.world.settle()
    assert cloud.operation(operation)["error"]["code"] in {"insufficient_capacity", "never_fits"}
    assert cloud.news()[len(news) :] == ["cluster.updating", "cluster.running"]
    assert (cloud.seen["status"]["issues"], cloud.used()) == ([], 16)
