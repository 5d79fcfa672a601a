"""
What jobs and services may ask of a Kubernetes of one's own beyond nodes, GPUs and a script: what the cluster shows at the time is offered,
what it does not show is refused, and nothing is concluded from what somebody was told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter
from controlplane.providers.clusters import ClusterSpec, ClusterView, JobSpec
from controlplane.providers.errors import NoCapacity, Permanent
from controlplane.providers.gpus import GpuKind, Slices
from controlplane.providers.launching import Launch
from controlplane.providers.volumes import Mount
from tests.contract import test_services_contract as services
from tests.contract.own_kubernetes import OwnHarness, own_adapter, own_harness
from tests.contract.test_kubernetes_claims import CLASS, device, published
from tests.contract.test_kubernetes_slices import partition
from tests.contract.test_own_kubernetes_work import quota, space
from tests.kubernetes_kit import UNTIDY
from tests.mpi_operator import MpiOperator

pytestmark = UNTIDY
JSON = "application/json"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
MAPPED = f"""
resources:
  deviceClassMappings:
  - name: nvidia.com/gpu
    deviceClassNames: [{CLASS}]
"""


@pytest.fixture
def own() -> Iterator[OwnHarness]:
    """No cluster yet."""
    with own_harness() as made:
        yield made


@contextmanager
def later(own: OwnHarness, spec: ClusterSpec) -> Iterator[KubernetesAdapter]:
    """A process that remembers nothing; what is remembered is believed for a minute."""
    made = own_adapter(own.kit, spec.cluster_id, spec.tenant_id)
    yield made
    made.close()


def look(own: OwnHarness, spec: ClusterSpec) -> ClusterView:
    """How the cluster stands for whoever looks first now."""
    with later(own, spec) as other:
        view = other.observe_cluster(spec.cluster_id)
        able = other.capabilities()
        assert (able.job_features, able.volumes, able.mig) == (view.job_features, view.volumes, view.mig)
        return view


def first(own: OwnHarness, spec: ClusterSpec) -> str:
    """Where the namespace is, once a job has made it."""
    job = own.job(spec, "true", nodes=1, gpus_per_node=0)
    own.submit(job)
    own.ended(job)
    return space(own)


def refused(submit: Callable[[], object], code: str) -> None:
    """With the code, for good."""
    with pytest.raises(Permanent) as caught:
        submit()
    assert caught.value.code == code


def test_slices_are_offered_as_workers_are_partitioned_and_run(own: OwnHarness) -> None:
    """A partitioned worker is as whole as it was; jobs and replicas get slices by the runtime of whole GPUs; our queue counts them."""
    spec = own.cluster(2)
    assert (look(own, spec).mig, "mig" in (look(own, spec).job_features or ())) == ({}, False)
    refused(
        lambda: own.adapter.submit(own.job(spec, "true", nodes=1, gpus_per_node=0, mig=Slices("1g.10gb", 2))), "job_mig_unknown"
    )
    parts: dict[str, str | None] = {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "14", "nvidia.com/mig-3g.40gb": "2"}
    partition(own.kit, spec.members[1].ref, parts)
    view = look(own, spec)
    assert (view.mig, "mig" in (view.job_features or ())) == ({"1g.10gb": 14, "3g.40gb": 2}, True)
    assert [one.gpus for one in view.members] == [8, 8, 0]
    job = own.job(spec, "true", nodes=1, gpus_per_node=0, mig=Slices("3g.40gb", 2))
    own.submit(job)
    assert own.ended(job).nodes == (spec.members[1].ref,)
    (pod,) = own.kit.ask("GET", f"{space(own)}/pods")["items"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "2"}
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert (quota(own.kit)["nvidia.com/mig-3g.40gb"], quota(own.kit)["nvidia.com/gpu"]) == ("2", "12")
    told = services.told(own, services.service(own, spec, gpus_per_node=0, mig=Slices("1g.10gb", 3)))
    own.until(
        lambda: services.seen(own, told).replicas,
        lambda found: [(one.profile, one.gpus, one.phase) for one in found] == [("1g.10gb", 3, "ready")] * 2,
        what="replicas with slices",
    )
    with pytest.raises(NoCapacity):
        own.adapter.submit(own.job(spec, "true", nodes=2, gpus_per_node=0, mig=Slices("1g.10gb", 2)))


def drive(own: OwnHarness, spec: ClusterSpec, **more: Any) -> None:
    """The owner's DRA driver gives out four GPUs of each worker; no device plugin does."""
    for one in spec.members:
        own.kit.ask("PATCH", f"/api/v1/nodes/{one.ref}/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
        gpus = [device(f"gpu-{number}", **more) for number in range(4)]
        own.kit.ask("POST", "/apis/resource.k8s.io/v1/resourceslices", published(one.ref, gpus), JSON)


def declare(own: OwnHarness) -> None:
    """The driver's class is there."""
    made = {"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{CLASS}'"}}]}}
    own.kit.ask("POST", "/apis/resource.k8s.io/v1/deviceclasses", made, JSON)


def template(own: OwnHarness, job: JobSpec) -> Any:
    """What the job's claims are made from."""
    name = space(own).rsplit("/", 1)[1]
    where = f"/apis/resource.k8s.io/v1/namespaces/{name}/resourceclaimtemplates/{job.token.replace('_', '-')}"
    return own.kit.ask("GET", where)["spec"]["spec"]["devices"]["requests"][0]["exactly"]


def test_gpus_are_claimed_where_the_owners_driver_gives_them_out(own: OwnHarness) -> None:
    """Class and devices both tell; whole workers count as the driver counts; the catalog's model is the one that the driver publishes."""
    spec = own.cluster(2)
    drive(own, spec)
    bare = look(own, spec)
    assert ("gpu_attributes" in (bare.job_features or ()), [one.gpus for one in bare.members]) == (False, [4, 4, 0])
    declare(own)
    view = look(own, spec)
    assert {"gpu_attributes"} == {"gpu_attributes", "gpu_nvlink", "gangs"} & set(view.job_features or ())
    assert [one.gpus for one in view.members] == [4, 4, 0]
    with later(own, spec) as other:
        own.adapter = other
        job = own.job(spec, "true", nodes=1, gpus_per_node=4, gpu_model="H100-SXM5-80GB", gpu=GpuKind("H100-SXM5-80GB", 70))
        own.submit(job)
        asked = template(own, job)
        assert (asked["deviceClassName"], asked["count"]) == (CLASS, 4)
        assert [one["cel"]["expression"] for one in asked["selectors"]] == [
            f'device.attributes["{CLASS}"].productName == "NVIDIA H100 80GB HBM3"',
            f'device.capacity["{CLASS}"].memory.compareTo(quantity("70Gi")) >= 0',
        ]
        assert own.ended(job).phase == "succeeded"
        wanted = own.job(spec, "true", nodes=1, gpus_per_node=1)
        refused(lambda: other.submit(replace(wanted, gpu=GpuKind("A100"))), "job_gpu_model_unknown")
        refused(lambda: other.submit(replace(wanted, gpu=GpuKind(min_memory_gib=80))), "job_gpu_unknown")
        refused(lambda: other.submit(replace(wanted, gpu=GpuKind(nvlink=True))), "job_feature_unsupported")
        refused(lambda: other.submit(replace(wanted, nodes=2)), "job_gang_unsupported")


def test_a_plugin_beside_the_driver_counts_alone(own: OwnHarness) -> None:
    """Else one card would be given out twice."""
    spec = own.cluster(2)
    drive(own, spec)
    declare(own)
    own.kit.ask("PATCH", f"/api/v1/nodes/{spec.members[0].ref}/status", {"status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    view = look(own, spec)
    assert "gpu_attributes" not in (view.job_features or ())
    assert [one.gpus for one in view.members] == [8, 4, 0]
    job = own.job(spec, "true", nodes=1, gpus_per_node=1, gpu=GpuKind(min_memory_gib=40))
    refused(lambda: own.adapter.submit(job), "job_feature_unsupported")


def test_gangs_of_claimed_gpus_run_where_kueue_says_that_it_counts_them(own: OwnHarness) -> None:
    """By its own settings; broken ones and those of other classes say nothing."""
    spec = own.cluster(2)
    drive(own, spec)
    declare(own)
    own.kit.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "kueue-system"}}, JSON)
    where = "/api/v1/namespaces/kueue-system/configmaps"
    key = "controller_manager_config.yaml"
    own.kit.ask("POST", where, {"metadata": {"name": "kueue-manager-config"}, "data": {key: ""}}, JSON)
    for text in ("a: [", "resources: {}", MAPPED.replace(CLASS, "other.example.org")):
        own.kit.ask("PATCH", f"{where}/kueue-manager-config", {"data": {key: text}})
        assert "gangs" not in (look(own, spec).job_features or ())
    own.kit.ask("PATCH", f"{where}/kueue-manager-config", {"data": {key: MAPPED}})
    assert "gangs" in (look(own, spec).job_features or ())
    with later(own, spec) as other:
        own.adapter = other
        job = own.job(spec, "true", nodes=2, gpus_per_node=4)
        own.submit(job)
        assert own.ended(job).phase == "succeeded"
    assert quota(own.kit)["nvidia.com/gpu"] == "8"


def claim(name: str, *modes: str) -> dict[str, Any]:
    """An owner's claim."""
    asked = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": asked}


def test_an_owners_claims_are_what_jobs_can_mount(own: OwnHarness) -> None:
    """Those that it offers by their name, as they are; we make none and take none away; one that is gone is refused."""
    spec = own.cluster(1)
    home = first(own, spec)
    job = own.job(spec, "true", nodes=1, mounts=(Mount("data", "/data"), Mount("models", "/models")))
    refused(lambda: own.adapter.submit(job), "job_volume_unknown")
    for one in (claim("volume-data", "ReadWriteMany"), claim("volume-models", "ReadOnlyMany"), claim("private", "ReadWriteMany")):
        own.kit.ask("POST", f"{home}/persistentvolumeclaims", one, JSON)
    view = look(own, spec)
    assert (view.volumes, "mounts" in (view.job_features or ())) == (("data", "models"), True)
    with later(own, spec) as other:
        own.adapter = other
        own.submit(job)
        assert own.ended(job).phase == "succeeded"
        pods = own.kit.ask("GET", f"{home}/pods")["items"]
        (pod,) = (one["spec"] for one in pods if one["metadata"]["labels"]["controlplane.internal/token"] == job.token)
        mounted = {one["mountPath"]: one.get("readOnly", False) for one in pod["containers"][0]["volumeMounts"]}
        assert (mounted["/data"], mounted["/models"]) == (False, True)
        own.kit.ask("DELETE", f"{home}/persistentvolumeclaims/volume-data")
        again = own.job(spec, "true", nodes=1, mounts=(Mount("data", "/data"),))
        refused(lambda: other.submit(again), "job_volume_unknown")
    left = [one["metadata"]["name"] for one in own.kit.ask("GET", f"{home}/persistentvolumeclaims")["items"]]
    assert sorted(left) == ["private", "volume-models"]
    assert look(own, spec).volumes == ("models",)


def place(own: OwnHarness, ref: str, **labels: str | None) -> None:
    """Where the worker hangs, as our own program writes it on nodes."""
    told = {f"controlplane.internal/{name.replace('_', '-')}": value for name, value in labels.items()}
    own.kit.ask("PATCH", f"/api/v1/nodes/{ref}", {"metadata": {"labels": told}})


def test_gangs_are_placed_by_what_is_known_of_every_worker(own: OwnHarness) -> None:
    """Half a map places nothing; once there is a whole one our queue goes by it, and keeps it while a new worker has no place yet."""
    spec = own.cluster(2)
    here, there = (one.ref for one in spec.members)
    place(own, here, block="b1", leaf="l1")
    place(own, there, block="b1")
    first(own, spec)
    (queue,) = own.kit.ask("GET", f"{KUEUE}/topologies")["items"]
    assert [one["nodeLabel"].rpartition("/")[2] for one in queue["spec"]["levels"]] == ["block", "hostname"]
    (flavor,) = own.kit.ask("GET", f"{KUEUE}/resourceflavors")["items"]
    assert flavor["spec"] == {"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": queue["metadata"]["name"]}
    place(own, there, block=None, leaf="l2")
    with later(own, spec) as other:
        own.adapter = other
        job = own.job(spec, "true", nodes=2)
        own.submit(job)
        found = own.kit.ask("GET", "/apis/batch/v1/jobs")["items"]
        (mine,) = (one for one in found if one["metadata"]["labels"]["controlplane.internal/token"] == job.token)
        wish = mine["spec"]["template"]["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"]
        assert wish == "controlplane.internal/block"
        assert own.ended(job).phase == "succeeded"
    assert own.kit.ask("GET", f"{KUEUE}/resourceflavors")["items"][0]["spec"] == flavor["spec"]


def test_a_place_that_becomes_known_is_used_from_the_next_look_on(own: OwnHarness) -> None:
    """Without one there is no topology, and looks ask for nothing more than they did."""
    spec = own.cluster(1)
    place(own, spec.members[0].ref, rack="r1")
    first(own, spec)
    assert own.kit.ask("GET", f"{KUEUE}/topologies")["items"] == []
    place(own, spec.members[0].ref, leaf="l1")
    own.view(spec)
    (made,) = own.kit.ask("GET", f"{KUEUE}/topologies")["items"]
    assert [one["nodeLabel"].rpartition("/")[2] for one in made["spec"]["levels"]] == ["leaf", "hostname"]
    before = len(own.kit.asked())
    own.view(spec)
    assert len(own.kit.asked()) == before + 1


RANKS = Launch("mpi", ("sh", "-c", 'echo "$RANK of $WORLD_SIZE"'))


def test_an_mpi_program_runs_where_the_owner_has_the_operator_and_kueue() -> None:
    """As on a shared one, without its walls; the owner who takes the kind away is told as one who took the job."""
    with own_harness(more=("mpi",)) as own:
        spec = own.cluster(2)
        MpiOperator(own.kit)
        assert "launch_mpi" in (look(own, spec).job_features or ())
        job = own.job(spec, "", nodes=2, tasks_per_node=2, image="a/mpi:1", launch=RANKS)
        job = replace(job, script="")
        own.submit(job)
        assert own.ended(job).phase == "succeeded"
        chunk = own.adapter.read_output(spec.cluster_id, job.token, offset=0, limit=1000)
        assert sorted(chunk.data.decode().split("\n")) == ["", *(f"{rank} of 4" for rank in range(4))]
    with own_harness(kueue=False, more=("mpi",)) as own:
        spec = own.cluster(2)
        assert "launch_mpi" not in (look(own, spec).job_features or ())
        refused(lambda: own.adapter.submit(replace(job, cluster_id=spec.cluster_id, nodes=1)), "job_feature_unsupported")
