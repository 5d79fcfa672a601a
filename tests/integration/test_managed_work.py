"""
Jobs and services in Kubernetes clusters that their provider keeps, through the API in this process: a Cluster API whose controllers are
played, and an API server with played kubelets for each cluster.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import text

from tests.integration.test_managed_kubernetes import ORDER, Scene, scene
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit
from tests.service_proxy import MetricsSource, ServiceProxy, keep_figures

__all__ = ["scene"]
pytestmark = [UNTIDY]
SLEEPS = "#!/bin/bash\nsleep 100000\n"
HELLO = '#!/bin/bash\necho "rank $NODE_RANK of $NNODES with $GPUS_PER_NODE GPUs"\n'
SERVICE: dict[str, Any] = {
    "name": "echo",
    "spec": {
        "template": {"image": "example.org/echo:1", "port": 8000, "gpus_per_node": 1},
        "replicas": 2,
    },
}
REFUSED = 409
LOOKS = 1000


class Owner:
    """Who orders clusters and works in them by HTTP, and may do anything at their APIs."""

    def __init__(self, scene: Scene, stack: ExitStack) -> None:
        self.scene = scene
        self._stack = stack

    def cluster(
        self, name: str, count: int, *, kueue: bool = True, first: Callable[[KubernetesKit], None] = lambda _kit: None
    ) -> tuple[str, KubernetesKit]:
        """A cluster in use, and its API server, to which something was done before anybody looked at it."""
        order = copy.deepcopy(ORDER)
        order["name"] = name
        order["spec"]["node_sets"][0]["count"] = count
        self.scene._number += 1
        made = self.scene.ask("POST", "/clusters", order)["id"]
        kit = self._stack.enter_context(kubernetes_kit(nodes=0, kueue=kueue))
        self.scene.kit.apart[f"cp-{made.replace('_', '-')}"] = kit
        first(kit)
        self.scene.until(made, "running")
        return made, kit

    def job(self, cluster_id: str, script: str, **wanted: Any) -> dict[str, Any]:
        """The body of a job on one node."""
        shape = {"script": script, "nodes": 1, "gpus_per_node": 8, "time_limit_s": 100_000, "cluster_id": cluster_id}
        return {"name": "work", "spec": {**shape, **wanted}}

    def work(self, kind: str, body: dict[str, Any]) -> str:
        """The id of a new job or service."""
        self.scene._number += 1
        return str(self.scene.ask("POST", f"/{kind}", body)["id"])

    def until(self, place: str, *states: str) -> Any:
        """The row once it is there: workers, controllers and time go on meanwhile."""
        table, _, row_id = place.partition("/")
        for _ in range(LOOKS):
            (row,) = self.scene.world.rows(f"SELECT * FROM {table} WHERE id = :id", id=row_id)
            if row.state in states:
                return row
            done = self.scene.world.tick()
            self.scene.kit.settle()
            if not done:
                self.scene._wait()
        raise AssertionError(f"{place} stays {row.state}: {row.reason} {row.detail}")

    def change(self, path: str, method: str, body: dict[str, Any] | None) -> None:
        """A minute later what stands there was changed."""
        self.scene.world.clock.advance(60)
        self.scene._number += 1
        self.scene.ask(method, path, body, **{"If-Match": "*"})


@pytest.fixture
def owner(scene: Scene) -> Iterator[Owner]:
    """Three free hosts."""
    with ExitStack() as stack:
        yield Owner(scene, stack)


def removed(kit: KubernetesKit, kind: str) -> None:
    """All of the kind, as kubectl does it."""
    for one in kit.ask("GET", kind)["items"]:
        where = kind.replace("v1/", f"v1/namespaces/{one['metadata']['namespace']}/")
        kit.ask("DELETE", f"{where}/{one['metadata']['name']}?propagationPolicy=Background")


def printed(owner: Owner, job_id: str) -> str:
    """What the job printed."""
    rows = owner.scene.world.rows("SELECT data FROM job_logs WHERE job_id = :id ORDER BY 1", id=job_id)
    return b"".join(bytes(one.data) for one in rows).decode()


def test_an_owner_works_in_a_cluster_that_its_provider_keeps(owner: Owner) -> None:
    """A gang and what it printed, a service, what somebody removes, what is counted, and the end of it all."""
    before = set(threading.enumerate())
    cluster, theirs = owner.cluster("research", 2)
    ran = owner.until(f"jobs/{owner.work('jobs', owner.job(cluster, HELLO, nodes=2))}", "succeeded", "failed")
    assert ran.state == "succeeded", ran.reason
    assert sorted(printed(owner, ran.id).splitlines()) == ["rank 0 of 2 with 8 GPUs", "rank 1 of 2 with 8 GPUs"]
    instances = {one["id"] for one in owner.scene.send("GET", f"/clusters/{cluster}/instances").json()["items"]}
    assert set(ran.placement) == instances, "nodes are told by the names that their tenant knows"
    service = owner.work("services", {**SERVICE, "spec": {**SERVICE["spec"], "cluster_id": cluster}})
    owner.until(f"services/{service}", "running")
    lost = owner.work("jobs", owner.job(cluster, SLEEPS, gpus_per_node=1))
    owner.until(f"jobs/{lost}", "running")
    removed(theirs, "/apis/batch/v1/jobs")
    row = owner.until(f"jobs/{lost}", "failed", "cancelled")
    assert (row.state, row.failure_class, row.issues[0]["code"]) == ("failed", "unknown", "removed_in_cluster")
    removed(theirs, "/apis/apps/v1/deployments")
    owner.until(f"services/{service}", "rolling_out")
    owner.until(f"services/{service}", "running")
    counts_gpu_time_once(owner)
    last = owner.work("jobs", owner.job(cluster, SLEEPS, gpus_per_node=1))
    owner.until(f"jobs/{last}", "running")
    owner.change(f"/clusters/{cluster}", "DELETE", None)
    away = [{"path": one, "times": 100_000, "cut": True} for one in ("/apis", "/api/v1/namespaces")]
    theirs.handle.post("/_emu/faults", away)
    assert owner.until(f"jobs/{last}", "cancelled", "failed").state == "cancelled"
    owner.until(f"services/{service}", "deleted")
    owner.until(f"clusters/{cluster}", "deleted")
    assert owner.scene.kit.remains() == []
    assert [one.name for one in set(threading.enumerate()) - before if one.name.startswith("watch-")] == []


def counts_gpu_time_once(owner: Owner) -> None:
    """GPU time of work is shown beside what is billed, which is the nodes' and nothing else."""
    work = owner.scene.world.rows("SELECT kind, sum(gpus) AS gpus FROM work_intervals GROUP BY kind ORDER BY kind")
    assert [(one.kind, one.gpus > 0) for one in work] == [("job", True), ("service", True)]
    billed = owner.scene.world.rows("SELECT count(*) AS n, sum(gpus) AS gpus FROM meter_intervals")[0]
    assert (billed.n, billed.gpus) == (2, 16)


def test_what_runs_is_each_clusters_own_to_tell(owner: Owner) -> None:
    """Of two clusters of one provider the one with Kueue takes gangs and priorities, the other turns them away with words."""
    with_queues, _ = owner.cluster("research", 2)
    without, _ = owner.cluster("plain", 1, kueue=False)
    told = owner.scene.world.rows("SELECT id, kubernetes->'job_features' AS told FROM clusters")
    assert {one.id: "gangs" in one.told for one in told} == {with_queues: True, without: False}
    refused = owner.scene.send("POST", "/jobs", owner.job(without, HELLO, priority="high"))
    assert (refused.status_code, refused.json()["code"]) == (REFUSED, "job_feature_unsupported"), refused.text
    for wanted, limit in (({"nodes": 3}, 2), ({"gpus_per_node": 9}, 8), ({"gpu": {"model": "B200-SXM-180GB"}}, "H100-SXM5-80GB")):
        refused = owner.scene.send("POST", "/jobs", owner.job(with_queues, HELLO, **wanted))
        assert (refused.status_code, refused.json().get("limit")) == (REFUSED, limit), refused.text
    for cluster in (with_queues, without):
        ran = owner.until(f"jobs/{owner.work('jobs', owner.job(cluster, HELLO))}", "succeeded", "failed")
        assert ran.state == "succeeded", ran.reason
    scene = owner.scene
    with scene.world.database.owner.begin() as connection:
        connection.execute(
            text("UPDATE providers SET capabilities = capabilities || jsonb_build_object('managed_work', '[]'::jsonb)")
        )
    for kind, body in (
        ("jobs", owner.job(without, HELLO)),
        ("services", {**SERVICE, "spec": {**SERVICE["spec"], "cluster_id": without}}),
    ):
        refused = scene.send("POST", f"/{kind}", body)
        assert (refused.status_code, refused.json()["code"]) == (REFUSED, f"cluster_runs_no_{kind}"), refused.text
        assert "kubectl" in refused.json()["hint"]


def partition(kit: KubernetesKit) -> None:
    """The GPUs of a worker are slices from now on."""
    workers = kit.ask("GET", "/api/v1/nodes?labelSelector=!node-role.kubernetes.io/control-plane")["items"]
    path = f"/api/v1/nodes/{workers[0]['metadata']['name']}"
    kit.ask("PATCH", path, {"metadata": {"labels": {"nvidia.com/gpu.count": "8"}}})
    parts = {"nvidia.com/gpu": "0", "nvidia.com/mig-3g.40gb": "16"}
    kit.ask("PATCH", f"{path}/status", {"status": {"allocatable": parts, "capacity": parts}})


def refuses(owner: Owner, kind: str, body: dict[str, Any], feature: str) -> None:
    """The order is turned away for the lack of it."""
    refused = owner.scene.send("POST", f"/{kind}", body)
    assert (refused.status_code, refused.json()["feature"]) == (REFUSED, feature), refused.text


def stops_what_does_nothing(owner: Owner, shows: str, plain: str, source: MetricsSource) -> tuple[list[str], str]:
    """A job goes on while its GPU works or is not measured, and once it was measured and did nothing ends so: issues and reason."""
    wish = {"gpus_per_node": 1, "idle_stop_min": 5}
    refuses(owner, "jobs", owner.job(plain, SLEEPS, **wish), "idle_stop")
    job = owner.work("jobs", owner.job(shows, SLEEPS, **wish))
    owner.until(f"jobs/{job}", "running")
    for peaks in (["97"], []):
        source.peaks = peaks
        owner.scene.world.clock.advance(400)
        owner.scene.look(5)
        assert owner.until(f"jobs/{job}", "running", "cancelled").state == "running"
    source.peaks = ["0"]
    owner.scene.world.clock.advance(60)
    row = owner.until(f"jobs/{job}", "cancelled", "failed")
    return [one["code"] for one in row.issues], row.reason


def counts_slices_by_their_share(owner: Owner, shows: str, plain: str) -> list[tuple[Any, ...]]:
    """The next look at the partitioned one tells; members stay whole; how a job and a service on its slices are metered is returned."""
    scene = owner.scene
    with scene.world.database.owner.begin() as connection:
        connection.execute(text("UPDATE gpu_models SET mig_profiles = '{1g.10gb,3g.40gb,7g.80gb}'"))
    scene.world.clock.advance(60)
    scene.look()
    told = scene.world.rows("SELECT id, kubernetes->'mig' AS mig, state FROM clusters")
    assert {one.id: (one.mig, one.state) for one in told} == {shows: ({"3g.40gb": 16}, "running"), plain: ({}, "running")}
    mig = {"profile": "3g.40gb", "per_node": 2}
    served = {"template": {"image": "example.org/echo:1", "port": 8000, "gpus_per_node": 0, "mig": mig}, "replicas": 1}
    refuses(owner, "jobs", owner.job(plain, HELLO, gpus_per_node=0, mig=mig), "mig")
    refuses(owner, "services", {"name": "echo", "spec": {**served, "cluster_id": plain}}, "mig")
    owner.until(f"jobs/{owner.work('jobs', owner.job(shows, HELLO, gpus_per_node=0, mig=mig))}", "succeeded")
    service = owner.work("services", {"name": "echo", "spec": {**served, "cluster_id": shows}})
    owner.until(f"services/{service}", "running")
    scene.look(5)
    kept = scene.world.rows("SELECT kind, gpus, profile, slices, of_slices FROM work_intervals WHERE profile <> '' ORDER BY kind")
    return [tuple(one) for one in kept]


def test_what_a_cluster_shows_is_offered_there_alone(owner: Owner) -> None:
    """Figures of its GPUs and slices of them: the one that has them takes orders for them, its neighbour turns them away."""
    source = MetricsSource(counts=["10"], peaks=["97"])

    def keep(kit: KubernetesKit) -> None:
        ServiceProxy(kit).behind["prometheus"] = source
        keep_figures(kit)

    shows, theirs = owner.cluster("research", 1, first=keep)
    plain, _ = owner.cluster("plain", 1)
    issues, words = stops_what_does_nothing(owner, shows, plain, source)
    assert (issues, words) == (["idle_stopped"], "Stopped: none of its GPUs did anything for 5 minutes.")
    partition(theirs)
    kept = counts_slices_by_their_share(owner, shows, plain)
    assert kept == [("job", 2, "3g.40gb", 3, 7), ("service", 2, "3g.40gb", 3, 7)]


def held(owner: Owner, cluster: str, job: str, state: str) -> None:
    """The change waits, and the job runs."""
    owner.scene.look(30)
    (row,) = owner.scene.world.rows("SELECT state, reason FROM clusters WHERE id = :id", id=cluster)
    assert row.state == state, row.reason
    (row,) = owner.scene.world.rows("SELECT state, requeues, attempt, reason FROM jobs WHERE id = :id", id=job)
    assert (row.state, row.requeues, row.attempt) == ("running", 0, 1), row.reason


def test_a_shrink_waits_for_jobs_and_an_operators_limit_ends_them_as_a_lost_machine_does(owner: Owner) -> None:
    """A worker that leaves is not emptied of a job; where the limit takes the worker, the job failed by its machine."""
    cluster, _ = owner.cluster("research", 2)
    job = owner.work("jobs", owner.job(cluster, SLEEPS, nodes=2, restart={"max_restarts": 0}))
    owner.until(f"jobs/{job}", "running")
    owner.change(f"/clusters/{cluster}", "PATCH", {"node_sets": [{"name": "workers", "count": 1}]})
    held(owner, cluster, job, "updating")
    owner.scene.kit.controllers.impatient = {one["metadata"]["name"] for one in owner.scene.kit.objects("machines")}
    row = owner.until(f"jobs/{job}", "failed", "succeeded", "cancelled")
    assert (row.state, row.failure_class) == ("failed", "node_fault"), row.reason
    owner.until(f"clusters/{cluster}", "running")
    assert len(owner.scene.members()) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1")
@pytest.mark.parametrize("change", ["replace", "upgrade"])
def test_other_changes_of_the_cluster_wait_for_jobs(change: str, owner: Owner) -> None:
    """A replacement and an upgrade stand still while a job runs, and are made once it is over; the next job runs on what there is then."""
    cluster, _ = owner.cluster("research", 2)
    job = owner.work("jobs", owner.job(cluster, SLEEPS, nodes=2))
    owner.until(f"jobs/{job}", "running")
    before = owner.scene.members()
    if change == "replace":
        one = owner.scene.send("GET", f"/clusters/{cluster}/instances").json()["items"][0]
        owner.change(f"/clusters/{cluster}/instances/{one['id']}/actions/replace", "POST", None)
        held(owner, cluster, job, "updating")
    else:
        owner.change(f"/clusters/{cluster}/actions/upgrade", "POST", {"version": "1.35.1"})
        held(owner, cluster, job, "upgrading")
    owner.change(f"/jobs/{job}/actions/cancel", "POST", None)
    owner.until(f"jobs/{job}", "cancelled")
    owner.until(f"clusters/{cluster}", "running")
    assert len(owner.scene.members()) == len(before)
    assert (owner.scene.members() == before) is (change == "upgrade")
    after = owner.until(f"jobs/{owner.work('jobs', owner.job(cluster, HELLO, nodes=2))}", "succeeded", "failed")
    assert after.state == "succeeded", after.reason
    instances = {one["id"] for one in owner.scene.send("GET", f"/clusters/{cluster}/instances").json()["items"]}
    assert set(after.placement) <= instances
