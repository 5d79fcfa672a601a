"""
Jobs and services in Kubernetes clusters that their provider keeps: the suites of both ports, what owners do to them, and what changes of
the cluster do.
"""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import ValidationError

from controlplane.local.addresses import free_port
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.tenants import AT_ONCE
from controlplane.providers.circuits import Circuit
from controlplane.providers.clusters import ClusterSpec, JobSpec, JobView
from controlplane.providers.errors import Busy, NoCapacity, NotFound, Refused, Unknown, UnknownBeyond
from controlplane.providers.kube.access import Access
from controlplane.providers.kube.client import Kube
from controlplane.providers.toolbox import Guarded
from controlplane.providers.volumes import Mount
from tests.capi_kit import CONFIG, NAMESPACE, a_node
from tests.contract import test_jobs_contract as jobs
from tests.contract import test_services_contract as services
from tests.contract.managed_work import ManagedHarness, managed_harness
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubeconfig

pytestmark = UNTIDY
SLOW = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1"),
]
FOLLOWER = 2
"""Watches of one cluster: over Jobs and over pods."""
NOT_HERE = {
    "test_the_time_limit_holds": "the emulator knows no activeDeadlineSeconds",
    "test_every_task_prints_where_it_ran": "no container has an srun",
}
"""Laws of the suites that are left out, and why."""
SAME = frozenset(
    {
        *("test_a_failing_script_is_a_user_error_with_its_exit_code", "test_the_job_sees_its_environment"),
        *("test_a_waiting_job_can_be_cancelled", "test_cancelling_an_ended_job_leaves_its_end_as_it_was"),
        *("test_telling_twice_changes_nothing", "test_a_new_version_replaces_the_old_one", "test_it_grows_shrinks_and_rests"),
        *("test_an_older_turn_that_comes_late_changes_nothing", "test_a_metrics_bounds_hold", "test_replicas_without_room_wait"),
    }
)
"""Laws that only the code shared with other adapters could break: they are tried with the slow ones."""
LAWS = {
    f"{kind}: {name}": law
    for kind, suite in (("jobs", jobs), ("services", services))
    for name, law in vars(suite).items()
    if name.startswith("test_") and name not in NOT_HERE
}


@pytest.fixture
def managed() -> Iterator[ManagedHarness]:
    """No cluster yet."""
    with managed_harness() as made:
        yield made


@pytest.mark.parametrize("law", [pytest.param(one, marks=SLOW if one.split(": ")[1] in SAME else ()) for one in LAWS])
def test_the_suites_of_jobs_and_services_hold(law: str, managed: ManagedHarness) -> None:
    """As on a shared one."""
    check: Callable[[Any], None] = LAWS[law]
    check(managed)


def running(managed: ManagedHarness, job: JobSpec) -> JobView:
    """The job was handed over and runs."""
    managed.submit(job)
    return managed.until(lambda: managed.seen(job), lambda view: view.phase == "running", what="running")


def space(managed: ManagedHarness, spec: ClusterSpec) -> str:
    """Where the namespace of the cluster's work is, in the cluster."""
    (found,) = managed.theirs(spec).ask("GET", "/api/v1/namespaces?labelSelector=controlplane.internal/cluster")["items"]
    return f"/api/v1/namespaces/{found['metadata']['name']}"


def asked(kit: KubernetesKit, *, since: int = 0) -> list[str]:
    """What we asked the server, method and path."""
    return [f"{method} {path}" for method, path in kit.asked()[since:]]


def watches() -> set[threading.Thread]:
    """Those who follow a cluster, of any adapter here."""
    return {one for one in threading.enumerate() if one.name.startswith("watch-")}


def away(kit: KubernetesKit, **how: Any) -> None:
    """The server fails so, whatever is asked of it."""
    kit.handle.post("/_emu/faults", [{"path": "/api", "times": 100_000, **how}])


def test_what_an_owner_takes_away_is_told_or_made_again(managed: ManagedHarness) -> None:
    """A removed job is not found; budget and meeting place come back with the next one; a namespace that goes is waited for."""
    spec = managed.cluster(1)
    job = managed.job(spec, "sleep 600", gpus_per_node=1)
    running(managed, job)
    theirs, home = managed.theirs(spec), space(managed, spec)
    name = home.rsplit("/", 1)[1]
    theirs.ask("DELETE", f"/apis/batch/v1/namespaces/{name}/jobs/{job.token.replace('_', '-')}?propagationPolicy=Background")
    with pytest.raises(NotFound):
        managed.seen(job)
    budget = f"/apis/policy/v1/namespaces/{name}/poddisruptionbudgets/jobs"
    for path in (f"{home}/services/jobs", budget):
        theirs.ask("DELETE", path)
    again = managed.job(spec, "true")
    managed.another_process().submit(again)
    assert theirs.ask("GET", f"{home}/services/jobs")["spec"]["clusterIP"] == "None"
    assert theirs.ask("GET", budget)["spec"]["minAvailable"] > 1
    assert managed.ended(again).phase == "succeeded"
    theirs.ask("POST", f"{home}/configmaps", {"metadata": {"name": "held", "finalizers": ["example.org/slow"]}}, "application/json")
    theirs.ask("DELETE", home)
    with pytest.raises(Busy, match="removed by somebody"):
        managed.adapter.submit(managed.job(spec, "true"))


def test_only_members_count(managed: ManagedHarness) -> None:
    """A node that the owner let in by itself makes no larger job possible, and our queue does not count it; nor control planes."""
    spec = managed.cluster(1)
    theirs = managed.theirs(spec)
    made = a_node("visitor", "v1.34.2", 8)
    theirs.ask("POST", "/api/v1/nodes", made, "application/json")
    theirs.ask("PATCH", "/api/v1/nodes/visitor/status", {"status": made["status"]})
    with pytest.raises(NoCapacity):
        managed.adapter.submit(managed.job(spec, "true", nodes=2))
    managed.submit(managed.job(spec, "true"))
    managed.view(spec)
    (found,) = theirs.ask("GET", "/apis/kueue.x-k8s.io/v1beta2/clusterqueues")["items"]
    (flavor,) = found["spec"]["resourceGroups"][0]["flavors"]
    assert {one["name"]: one["nominalQuota"] for one in flavor["resources"]}["nvidia.com/gpu"] == "8"


def test_without_kueue_gangs_are_turned_away_and_each_cluster_tells_its_own() -> None:
    """What jobs may ask for is told by looks at the cluster; jobs of one node run."""
    with managed_harness(kueue=False) as managed:
        spec = managed.cluster(2)
        assert "gangs" not in (managed.view(spec).job_features or ("gangs",))
        assert managed.adapter.capabilities().managed_work == ("jobs", "services")
        with pytest.raises(Refused, match="install Kueue"):
            managed.adapter.submit(managed.job(spec, "true"))
        alone = managed.job(spec, "true", nodes=1)
        managed.submit(alone)
        assert managed.ended(alone).phase == "succeeded"


def test_an_operators_volume_is_each_clusters_own(managed: ManagedHarness) -> None:
    """Where `work` names one, a job mounts a claim of it in its cluster, and capabilities name it."""
    spec = managed.cluster(1)
    able = managed.another_process(work={"volumes": {"datasets": {"storage_class": "nfs", "size_gib": 10}}})
    assert (able.capabilities().volumes, "mounts" in able.capabilities().job_features) == (("datasets",), True)
    able.submit(managed.job(spec, "true", mounts=(Mount("datasets", "/data", read_only=True),)))
    (claim,) = managed.theirs(spec).ask("GET", "/api/v1/persistentvolumeclaims")["items"]
    assert claim["spec"]["storageClassName"] == "nfs"


def test_a_cluster_that_is_away_costs_no_other_anything(managed: ManagedHarness) -> None:
    """Nothing is lost by it, what may have been done is told as unknown, it is soon left alone, and the provider's circuit stays closed."""
    broken, well = managed.cluster(1), managed.cluster(1, managed.tenants[1])
    job = managed.job(broken, "sleep 600", gpus_per_node=1)
    running(managed, job)
    told = services.told(managed, services.service(managed, broken, gpus_per_node=0))
    guarded = Guarded(managed.adapter, Circuit())
    theirs = managed.theirs(broken)
    away(theirs, cutAfter=True, method="POST")
    late = managed.job(broken, "true", gpus_per_node=1)
    with pytest.raises(UnknownBeyond):
        guarded.submit(late)
    away(theirs, cut=True)
    for _ in range(3):
        with pytest.raises(Busy):
            guarded.find_job(job.cluster_id, job.token)
        with pytest.raises(Busy):
            guarded.observe_service(told.cluster_id, told.service_id)
    before = len(theirs.asked())
    with pytest.raises(Busy, match="lately"):
        guarded.find_job(job.cluster_id, job.token)
    assert len(theirs.asked()) == before, "it is not asked for a while"
    other = managed.job(well, "true")
    guarded.submit(other)
    assert managed.ended(other).phase == "succeeded"
    theirs.handle.post("/_emu/faults", [])
    assert managed.until(lambda: managed.seen(job), bool, what="there again").phase == "running"
    first = managed.seen(late).external_id
    assert guarded.submit(late) == first, "it was there already"


def test_a_cluster_that_hangs_holds_few_calls(managed: ManagedHarness) -> None:
    """So many wait for it and no more: the next is told to come back, and another cluster is asked meanwhile."""
    slow, well = managed.cluster(1), managed.cluster(1, managed.tenants[1])
    job = managed.job(slow, "sleep 600", gpus_per_node=1)
    running(managed, job)
    away(managed.theirs(slow), delay=2.5)
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        asked_at_once = [pool.submit(managed.seen, job) for _ in range(AT_ONCE + 1)]
        managed.adapter.submit(managed.job(well, "true"))
        errors = [one.exception() for one in asked_at_once]
    (told,) = filter(None, errors)
    assert isinstance(told, Busy)
    assert "too many calls" in told.detail


def test_a_cluster_without_a_way_in_is_not_a_cluster_that_is_gone(managed: ManagedHarness) -> None:
    """While Cluster API keeps no kubeconfig of it nothing is known of its jobs; once there is no Cluster they went with it."""
    spec = managed.cluster(1)
    job = managed.job(spec, "sleep 600", gpus_per_node=1)
    running(managed, job)
    told = services.told(managed, services.service(managed, spec, gpus_per_node=0))
    later = managed.another_process()
    name = f"contract-{spec.cluster_id.replace('_', '-')}"
    managed.kit.controllers.paused = {"clusters"}
    managed.kit.kit.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}-kubeconfig")
    for look in (
        lambda: later.find_job(spec.cluster_id, job.token),
        lambda: later.cancel(spec.cluster_id, job.token),
        lambda: later.observe_service(spec.cluster_id, told.service_id),
        lambda: later.delete_service(spec.cluster_id, told.service_id),
        lambda: later.submit(job),
    ):
        with pytest.raises(Busy):
            look()
    managed.kit.controllers.paused = set()
    managed.gone(spec.cluster_id)
    for one in (managed.adapter, later):
        with pytest.raises(NotFound):
            one.find_job(spec.cluster_id, job.token)
        with pytest.raises(NotFound):
            one.observe_service(spec.cluster_id, told.service_id)
        one.cancel(spec.cluster_id, job.token)
        one.delete_service(spec.cluster_id, told.service_id)
        assert one.list_jobs(spec.cluster_id) == one.list_services(spec.cluster_id) == ()


def test_a_cluster_that_moved_is_found_again(managed: ManagedHarness) -> None:
    """Cluster API's word on where it is, and as whom we come in, is read anew as soon as what was known leads nowhere."""
    spec = managed.cluster(1)
    job = managed.job(spec, "sleep 600", gpus_per_node=1)
    running(managed, job)
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/contract-{spec.cluster_id.replace('_', '-')}-kubeconfig"
    good = managed.kit.kit.ask("GET", secret)["data"]
    nowhere = base64.b64encode(kubeconfig(f"http://127.0.0.1:{free_port()}", {}).encode()).decode()
    managed.kit.kit.ask("PATCH", secret, {"data": {"value": nowhere}})
    later = managed.another_process()
    with pytest.raises(Busy):
        later.find_job(spec.cluster_id, job.token)
    managed.kit.kit.ask("PATCH", secret, {"data": good})
    assert later.find_job(spec.cluster_id, job.token).phase == "running"


def test_one_follows_a_cluster_that_has_work_and_none_once_it_is_gone(managed: ManagedHarness) -> None:
    """However many jobs run, glances ask nothing; another cluster has a follower of its own; both end with their clusters."""
    before = watches()
    spec, idle = managed.cluster(1), managed.cluster(1, managed.tenants[1])
    jobs = [managed.job(spec, "sleep 600", gpus_per_node=1) for _ in range(4)]
    for job in jobs:
        running(managed, job)
    glance = managed.adapter.glance
    managed.until(lambda: [glance(spec.cluster_id, one.token) for one in jobs], all, what="all are told by watches")
    assert len(watches() - before) == FOLLOWER
    theirs, lists = managed.theirs(spec), len(managed.theirs(spec).asked())
    lately = len(managed.kit.kit.asked())
    for _ in range(50):
        for job in jobs:
            view = glance(spec.cluster_id, job.token)
            assert view is not None
            assert view.nodes == (spec.members[0].ref,)
    assert [one for one in asked(theirs, since=lists) if not one.startswith("GET /api/v1/nodes")] == []
    assert [one for one in asked(managed.kit.kit, since=lately) if "secrets" in one or "machines" in one] == []
    assert managed.adapter.take_news() <= {one.token for one in jobs}
    other = managed.job(idle, "sleep 600", gpus_per_node=1)
    running(managed, other)
    managed.until(lambda: glance(idle.cluster_id, other.token), bool, what="told by watches")
    assert len(watches() - before) == 2 * FOLLOWER
    for one in (spec, idle):
        managed.gone(one.cluster_id)
        assert managed.adapter.glance(one.cluster_id, jobs[0].token) is None
    assert watches() - before == set()


def test_what_work_cannot_have_here_is_refused_when_it_is_registered() -> None:
    """Settings that mean nothing in a cluster of its tenant's own, and the one that stands elsewhere."""
    good = ClusterApiConfig.model_validate({**CONFIG, "gpu_resource": "amd.com/gpu", "work": {"image": "example.org/base:1"}})
    assert (good.works.gpu_resource, good.works.image, good.works.whole) == ("amd.com/gpu", "example.org/base:1", True)
    for wrong in (
        {"egress": ["10.0.0.0/8"]},
        {"metrics_url": "http://m.example.org"},
        {"gpus_by": "dra"},
        {"gpu_resource": "a.b/gpu"},
    ):
        with pytest.raises(ValidationError, match=r"not for clusters of tenants. own|stands beside work"):
            ClusterApiConfig.model_validate({**CONFIG, "work": wrong})


def test_an_owner_makes_us_hold_no_more_than_so_much(managed: ManagedHarness) -> None:
    """A list without end is left in the midst of it, and says nothing of the cluster."""
    spec = managed.cluster(1)
    theirs = managed.theirs(spec)
    kube = Kube(Access(theirs.handle.url), timeout_s=5.0, max_body_bytes=1024 * 1024, page_size=2, most=3)
    assert kube.list_all("/api/v1/nodes")
    for number in range(4):
        theirs.ask("POST", "/api/v1/namespaces", {"metadata": {"name": f"n-{number}"}}, "application/json")
    with pytest.raises(Unknown, match="more than 3"):
        kube.list_all("/api/v1/namespaces")
    kube.close()
