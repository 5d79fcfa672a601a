"""
What jobs and services may ask of Kubernetes clusters that their provider keeps, beyond nodes, GPUs and a script: each cluster offers what
it shows itself, whatever others of the same provider show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.clusters import ClusterSpec, ClusterView
from controlplane.providers.gpus import GpuKind, Slices
from controlplane.providers.volumes import Mount
from tests.capi_kit import a_node
from tests.contract import test_services_contract as services
from tests.contract.managed_work import ManagedHarness, managed_harness
from tests.contract.test_kubernetes_claims import CLASS, device, published
from tests.contract.test_kubernetes_mpi import LASTING
from tests.contract.test_kubernetes_slices import partition
from tests.contract.test_own_kubernetes_asks import KUEUE, MAPPED, RANKS, refused
from tests.kubernetes_kit import UNTIDY, KubernetesKit
from tests.mpi_operator import MpiOperator

pytestmark = UNTIDY
JSON = "application/json"
ASKED = frozenset({"gangs", "gpu_attributes", "gpu_nvlink", "idle_stop", "launch_mpi", "mig", "mounts"})


@pytest.fixture
def managed() -> Iterator[ManagedHarness]:
    """No cluster yet."""
    with managed_harness() as made:
        yield made


def look(managed: ManagedHarness, spec: ClusterSpec, **config: Any) -> ClusterView:
    """How the cluster stands for whoever looks first now, which is also who is asked from here on."""
    managed.adapter = managed.another_process(**config)
    view: ClusterView = managed.adapter.observe_cluster(spec.cluster_id)
    return view


def offered(view: ClusterView) -> set[str]:
    """What not every Kubernetes has."""
    return set(view.job_features or ()) & ASKED


def nodes_of(managed: ManagedHarness, spec: ClusterSpec) -> list[str]:
    """The members' Nodes, in the order of the members."""
    return [managed.kit.node_of(one.ref) for one in spec.members]


def let_in(kit: KubernetesKit) -> None:
    """The owner has let a node in by itself, whose GPUs a device plugin counts."""
    made = a_node("visitor", "v1.34.2", 8)
    kit.ask("POST", "/api/v1/nodes", made, JSON)
    kit.ask("PATCH", "/api/v1/nodes/visitor/status", {"status": made["status"]})


def drive(kit: KubernetesKit, node: str, *, generation: int = 1, **other: Any) -> None:
    """A DRA driver gives out four GPUs of the worker; no device plugin does."""
    kit.ask("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
    gpus = [device(f"gpu-{number}") for number in range(4)]
    for one in gpus:
        one["attributes"] |= other
    kit.ask("POST", "/apis/resource.k8s.io/v1/resourceslices", published(node, gpus, generation=generation), JSON)


def declare(kit: KubernetesKit) -> None:
    """The driver's class is there, and Kueue counts claims of it."""
    made = {"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{CLASS}'"}}]}}
    kit.ask("POST", "/apis/resource.k8s.io/v1/deviceclasses", made, JSON)
    kit.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "kueue-system"}}, JSON)
    told = {"metadata": {"name": "kueue-manager-config"}, "data": {"controller_manager_config.yaml": MAPPED}}
    kit.ask("POST", "/api/v1/namespaces/kueue-system/configmaps", told, JSON)


def test_slices_are_each_clusters_own(managed: ManagedHarness) -> None:
    """A partitioned worker is as whole as it was; jobs and replicas there have slices; the neighbour offers none."""
    spec, plain = managed.cluster(2), managed.cluster(1, managed.tenants[1])
    theirs, (_, parted) = managed.theirs(spec), nodes_of(managed, spec)
    theirs.ask("PATCH", f"/api/v1/nodes/{parted}", {"metadata": {"labels": {"nvidia.com/gpu.count": "8"}}})
    partition(theirs, parted, {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "14", "nvidia.com/mig-3g.40gb": "2"})
    view = look(managed, spec)
    assert (dict(view.mig), "mig" in offered(view), [one.gpus for one in view.members]) == (
        {"1g.10gb": 14, "3g.40gb": 2},
        True,
        [8, 8],
    )
    neighbour = managed.adapter.observe_cluster(plain.cluster_id)
    assert (dict(neighbour.mig), "mig" in offered(neighbour)) == ({}, False)
    job = managed.job(spec, "true", nodes=1, gpus_per_node=0, mig=Slices("3g.40gb", 2))
    managed.submit(job)
    assert managed.ended(job).nodes == (spec.members[1].ref,)
    (queue,) = theirs.ask("GET", f"{KUEUE}/clusterqueues")["items"]
    resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    assert {one["name"]: one["nominalQuota"] for one in resources}["nvidia.com/mig-3g.40gb"] == "2"
    told = services.told(managed, services.service(managed, spec, gpus_per_node=0, mig=Slices("1g.10gb", 3)))
    managed.until(
        lambda: services.seen(managed, told).replicas,
        lambda found: [(one.profile, one.gpus, one.phase) for one in found] == [("1g.10gb", 3, "ready")] * 2,
        what="replicas with slices",
    )
    job = managed.job(plain, "true", nodes=1, gpus_per_node=0, mig=Slices("3g.40gb", 1))
    refused(lambda: managed.adapter.submit(job), "job_mig_unknown")
    theirs.handle.post("/_emu/faults", [{"path": "/apis", "times": 100_000, "status": 500}])
    blind = look(managed, spec)
    assert (blind.job_features, [one.gpus for one in blind.members]) == (None, [8, 8])


def test_gpus_are_claimed_where_a_clusters_driver_gives_them_out(managed: ManagedHarness) -> None:
    """Members are as whole as the driver counts them, a node that the owner let in counts for nothing; models go by the driver's names."""
    spec, plain = managed.cluster(2), managed.cluster(1, managed.tenants[1])
    theirs = managed.theirs(spec)
    for node in nodes_of(managed, spec):
        drive(theirs, node)
    declare(theirs)
    let_in(theirs)
    work = {"work": {"gpu_models": {"H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3"}}}
    view = look(managed, spec, **work)
    assert (offered(view), [one.gpus for one in view.members]) == ({"gangs", "gpu_attributes"}, [4, 4])
    assert offered(managed.adapter.observe_cluster(plain.cluster_id)) == {"gangs"}
    managed.adapter = managed.another_process(**work)  # nobody has looked: who submits sees the same
    job = managed.job(spec, "true", nodes=2, gpus_per_node=4, gpu_model="H100-SXM5-80GB", gpu=GpuKind("H100-SXM5-80GB", 70))
    managed.submit(job)
    (template,) = theirs.ask("GET", "/apis/resource.k8s.io/v1/resourceclaimtemplates")["items"]
    asked = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert [one["cel"]["expression"] for one in asked["selectors"]] == [
        f'device.attributes["{CLASS}"].productName == "NVIDIA H100 80GB HBM3"',
        f'device.capacity["{CLASS}"].memory.compareTo(quantity("70Gi")) >= 0',
    ]
    assert managed.ended(job).phase == "succeeded"
    other = managed.job(plain, "true", nodes=1, gpus_per_node=1, gpu=GpuKind(min_memory_gib=40))
    refused(lambda: managed.adapter.submit(other), "job_feature_unsupported")
    drive(theirs, nodes_of(managed, spec)[0], generation=2, productName={"string": "NVIDIA H200"})
    managed.adapter = managed.another_process(**work)
    again = managed.job(spec, "true", nodes=1, gpus_per_node=4, gpu=GpuKind("H100-SXM5-80GB"))
    refused(lambda: managed.adapter.submit(again), "job_gpu_model_unknown")


def test_an_mpi_program_runs_and_is_watched_in_the_cluster_that_has_the_operator() -> None:
    """On members, with its own watch; without Kueue it is refused."""
    with managed_harness(more=("mpi",)) as managed:
        spec = managed.cluster(2)
        MpiOperator(managed.theirs(spec))
        assert "launch_mpi" in offered(look(managed, spec))
        job = managed.job(spec, "", nodes=2, tasks_per_node=2, image="a/mpi:1", launch=RANKS)
        managed.submit(job)
        view = managed.ended(job)
        assert (view.phase, set(view.nodes)) == ("succeeded", {one.ref for one in spec.members})
        chunk = managed.adapter.read_output(spec.cluster_id, job.token, offset=0, limit=1000)
        assert sorted(chunk.data.decode().split("\n")) == ["", *(f"{rank} of 4" for rank in range(4))]
        waits = replace(job, token=managed.new_id("job") + "-1", launch=LASTING)
        managed.submit(waits)
        managed.until(lambda: managed.seen(waits), lambda seen: seen.phase == "running", what="running")
        glance = managed.adapter.glance
        told = managed.until(lambda: glance(spec.cluster_id, waits.token), bool, what="told by a watch")
        assert set(told.nodes) == {one.ref for one in spec.members}
        where = [path for _, path in managed.theirs(spec).asked() if "/mpijobs" in path and "watch=true" in path]
        assert where, "the kind has a watch of its own"
        managed.adapter.cancel(spec.cluster_id, waits.token)
        assert managed.ended(waits).phase == "cancelled"
    with managed_harness(kueue=False, more=("mpi",)) as managed:
        spec = managed.cluster(1)
        assert "launch_mpi" not in offered(look(managed, spec))
        refused(lambda: managed.adapter.submit(replace(job, cluster_id=spec.cluster_id, nodes=1)), "job_feature_unsupported")


@pytest.mark.parametrize("levels", [(), ("example.org/hall", "example.org/rack")], ids=["ours", "the operator's"])
def test_gangs_are_placed_by_labels_that_every_member_has(levels: tuple[str, ...], managed: ManagedHarness) -> None:
    """By our names for places, or the operator's; what one member lacks is no level, and owners' own nodes do not matter."""
    wide, narrow = levels or ("controlplane.internal/block", "controlplane.internal/leaf")
    spec = managed.cluster(2)
    theirs, (here, there) = managed.theirs(spec), nodes_of(managed, spec)
    let_in(theirs)
    theirs.ask("PATCH", f"/api/v1/nodes/{here}", {"metadata": {"labels": {wide: "a", narrow: "b"}}})
    theirs.ask("PATCH", f"/api/v1/nodes/{there}", {"metadata": {"labels": {wide: "a"}}})
    managed.adapter = managed.another_process(**({"work": {"topology_labels": list(levels)}} if levels else {}))
    job = managed.job(spec, "true", nodes=2)
    managed.submit(job)
    (made,) = theirs.ask("GET", f"{KUEUE}/topologies")["items"]
    assert [one["nodeLabel"] for one in made["spec"]["levels"]] == [wide, "kubernetes.io/hostname"]
    (sent,) = theirs.ask("GET", "/apis/batch/v1/jobs")["items"]
    assert sent["spec"]["template"]["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] == wide
    assert managed.ended(job).phase == "succeeded"


def test_an_owners_claim_is_offered_beside_the_operators_volumes(managed: ManagedHarness) -> None:
    """In its cluster only; where both have a name it is the operator's."""
    spec, plain = managed.cluster(1), managed.cluster(1, managed.tenants[1])
    work = {"work": {"volumes": {"datasets": {"storage_class": "nfs", "size_gib": 10}}}}
    managed.adapter = managed.another_process(**work)
    managed.submit(managed.job(spec, "true"))
    theirs = managed.theirs(spec)
    (space,) = theirs.ask("GET", "/api/v1/namespaces?labelSelector=controlplane.internal/cluster")["items"]
    claim = {
        "metadata": {"name": "volume-models"},
        "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    theirs.ask("POST", f"/api/v1/namespaces/{space['metadata']['name']}/persistentvolumeclaims", claim, JSON)
    assert look(managed, spec, **work).volumes == ("models", "datasets")
    assert managed.adapter.observe_cluster(plain.cluster_id).volumes == ("datasets",)
    job = managed.job(spec, "true", mounts=(Mount("datasets", "/data"), Mount("models", "/models")))
    managed.submit(job)
    assert managed.ended(job).phase == "succeeded"
    found = theirs.ask("GET", "/api/v1/persistentvolumeclaims")["items"]
    assert {one["metadata"]["name"]: one["spec"].get("storageClassName") for one in found} == {
        "volume-datasets": "nfs",
        "volume-models": None,
    }
