"""
Jobs and services in a Kubernetes of one's own: the suites of both ports, and what its owner, who may do anything there, does to them.
"""

from __future__ import annotations

import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import Busy, NotFound, Refused, Transient, Unsupported
from tests.contract import test_jobs_contract as jobs
from tests.contract import test_services_contract as services
from tests.contract.own_kubernetes import OwnHarness, own_adapter, own_harness
from tests.kubernetes_kit import UNTIDY, KubernetesKit

pytestmark = UNTIDY
NOT_HERE = {
    "test_deleting_the_cluster_ends_its_jobs": "it ends with its machines",
    "test_deleting_the_cluster_takes_its_services": "it ends with its machines",
    "test_a_listing_holds_all_attempts_of_its_cluster_only": "there is one cluster",
    "test_another_cluster_sees_neither_the_job_nor_its_output": "there is one cluster",
    "test_another_cluster_sees_nothing_of_it": "there is one cluster",
    "test_it_runs_jobs_and_reads_their_output": "the adapter is the same",
    "test_it_keeps_services_up": "the adapter is the same",
    "test_the_time_limit_holds": "the emulator knows no activeDeadlineSeconds",
    "test_every_task_prints_where_it_ran": "no container has an srun",
    "test_a_drained_member_gets_no_job": "its control planes drain, told by files",
}
"""Laws of the suites that are left out, and why."""
LAWS = {
    f"{kind}: {name}": law
    for kind, suite in (("jobs", jobs), ("services", services))
    for name, law in vars(suite).items()
    if name.startswith("test_") and name not in NOT_HERE
}


@pytest.fixture
def own() -> Iterator[OwnHarness]:
    """No cluster yet."""
    with own_harness() as made:
        yield made


@pytest.mark.parametrize("law", LAWS)
def test_the_suites_of_jobs_and_services_hold(law: str, own: OwnHarness) -> None:
    """As on a shared one."""
    check: Callable[[Any], None] = LAWS[law]
    check(own)


QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"


def space(own: OwnHarness) -> str:
    """Where the namespace of the only cluster is."""
    (found,) = own.kit.ask("GET", "/api/v1/namespaces?labelSelector=controlplane.internal/cluster")["items"]
    return f"/api/v1/namespaces/{found['metadata']['name']}"


def another_process(own: OwnHarness, spec: ClusterSpec) -> KubernetesAdapter:
    """One that remembers nothing."""
    return own_adapter(own.kit, spec.cluster_id, spec.tenant_id)


def quota(kit: KubernetesKit) -> dict[str, str]:
    """What our queue counts."""
    (found,) = kit.ask("GET", QUEUES)["items"]
    (flavor,) = found["spec"]["resourceGroups"][0]["flavors"]
    return {one["name"]: one["nominalQuota"] for one in flavor["resources"]}


def test_a_pod_goes_anywhere_but_to_control_planes_and_no_wall_is_made(own: OwnHarness) -> None:
    """There is one tenant: no policy, no quota, no role, no mark on a node; with GPUs it names the class that gives them."""
    spec = own.cluster(2)
    job = own.job(spec, "true")
    own.submit(job)
    assert set(own.ended(job).nodes) == {one.ref for one in spec.members}
    (pod, _) = own.kit.ask("GET", f"{space(own)}/pods")["items"]
    assert pod["spec"].get("nodeSelector", {}) == {}
    assert not any(one["key"].startswith("controlplane") for one in pod["spec"].get("tolerations") or [])
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    walls = (
        "/api/v1/resourcequotas",
        "/apis/networking.k8s.io/v1/networkpolicies",
        "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    )
    marked = "?labelSelector=controlplane.internal/cluster"
    assert [one for kind in (*walls, "/api/v1/nodes") for one in own.kit.ask("GET", kind + marked)["items"]] == []


def test_without_kueue_gangs_are_turned_away_with_a_hint() -> None:
    """Jobs of one node run; what jobs may ask for is told by looks at the cluster and by its capabilities alike."""
    with own_harness(kueue=False) as own:
        spec = own.cluster(2)
        with pytest.raises(Refused, match="install Kueue"):
            own.adapter.submit(own.job(spec, "true"))
        with pytest.raises(Unsupported):
            own.adapter.submit(own.job(spec, "true", nodes=1, priority="high"))
        alone = own.job(spec, "true", nodes=1)
        own.submit(alone)
        assert own.ended(alone).phase == "succeeded"
        able = own.adapter.capabilities()
        assert (able.products, able.max_nodes_per_job, "gangs" in able.job_features) == ((), 1, False)
        assert own.view(spec).job_features == able.job_features


def test_what_its_owner_takes_away_is_made_again_for_the_next_job(own: OwnHarness) -> None:
    """A namespace that goes is waited for; a removed job is not found, and never guessed at; a stray budget or meeting place comes back."""
    spec = own.cluster(2)
    job = own.job(spec, "sleep 600")
    own.submit(job)
    own.until(lambda: own.seen(job), lambda view: view.phase == "running", what="running")
    assert "gangs" in (own.view(spec).job_features or ())
    home = space(own)
    name = home.rsplit("/", 1)[1]
    made = f"/apis/batch/v1/namespaces/{name}/jobs/{job.token.replace('_', '-')}"
    own.kit.ask("DELETE", f"{made}?propagationPolicy=Background")
    with pytest.raises(NotFound):
        own.seen(job)
    budget = f"/apis/policy/v1/namespaces/{name}/poddisruptionbudgets/jobs"
    for path in (f"{home}/services/jobs", budget):
        own.kit.ask("DELETE", path)
    later = another_process(own, spec)
    again = own.job(spec, "true")
    later.submit(again)
    later.close()
    assert own.kit.ask("GET", f"{home}/services/jobs")["spec"]["clusterIP"] == "None"
    assert own.kit.ask("GET", budget)["status"]["disruptionsAllowed"] == 0
    assert own.ended(again).phase == "succeeded"
    held = {"metadata": {"name": "held", "finalizers": ["example.org/slow"]}}
    own.kit.ask("POST", f"{home}/configmaps", held, kind="application/json")
    own.kit.ask("DELETE", home)
    with pytest.raises(Busy, match="removed by somebody"):
        own.adapter.submit(own.job(spec, "true"))
    own.kit.ask("PATCH", f"{home}/configmaps/held", {"metadata": {"finalizers": None}})
    last = own.job(spec, "true")
    own.submit(last)
    assert own.ended(last).phase == "succeeded"


def test_no_eviction_ends_a_running_job(own: OwnHarness) -> None:
    """A worker that leaves is emptied by evictions, which wait for jobs to end as drains of a Slurm do."""
    spec = own.cluster(1)
    job = own.job(spec, "sleep 600")
    own.submit(job)
    own.until(lambda: own.seen(job), lambda view: view.phase == "running", what="running")
    (pod,) = own.kit.ask("GET", f"{space(own)}/pods")["items"]
    name = pod["metadata"]["name"]
    wish = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    with pytest.raises(urllib.error.HTTPError, match="429"):
        own.kit.ask("POST", f"{space(own)}/pods/{name}/eviction", wish, kind="application/json")
    assert own.seen(job).phase == "running"


def test_our_queue_counts_the_nodes_that_are_there(own: OwnHarness) -> None:
    """As they were for the first job, then as each look finds them; a node out of service is not counted; no look makes a queue."""
    spec = own.cluster(2)
    own.view(spec)
    assert own.kit.ask("GET", QUEUES)["items"] == []
    job = own.job(spec, "true")
    own.submit(job)
    assert quota(own.kit)["nvidia.com/gpu"] == "16"
    own.admin_drain(spec.members[0].ref, "a fan")
    own.view(spec)
    assert quota(own.kit)["nvidia.com/gpu"] == "8"
    own.admin_undrain(spec.members[0].ref)
    other = another_process(own, spec)
    other.observe_cluster(spec.cluster_id)
    assert quota(own.kit)["nvidia.com/gpu"] == "16"
    before = len(own.kit.asked())
    other.observe_cluster(spec.cluster_id)
    other.close()
    assert len(own.kit.asked()) == before + 1


def test_an_api_that_is_away_tells_nothing(own: OwnHarness) -> None:
    """A job is neither lost nor ended by it, and neither is a service."""
    spec = own.cluster(1)
    job = own.job(spec, "sleep 600")
    own.submit(job)
    told = services.told(own, services.service(own, spec, gpus_per_node=0))
    own.kit.handle.post("/_emu/faults", [{"path": "/", "times": 1000, "cut": True}])
    for look in (lambda: own.seen(job), lambda: services.seen(own, told), lambda: own.view(spec), lambda: own.adapter.submit(job)):
        with pytest.raises(Transient):
            look()
