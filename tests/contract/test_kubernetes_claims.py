"""
GPUs that are claimed by what they are like: counted from what the server's driver publishes, claimed by jobs and services, and refused
where no GPU of the cluster is like that. The emulator keeps claims and allocates nothing; that is the real scheduler's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import NotFound, Permanent, Refused
from controlplane.providers.gpus import GpuKind
from controlplane.providers.kube.work.devices import by_node
from controlplane.providers.services import ServiceSpec
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit

pytestmark = UNTIDY
CLASS = "gpu.nvidia.com"
NAMESPACE = "contract-clu-1"
TEMPLATES = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaimtemplates"
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 4, "alc_1"), Member("gpu-00001", 4, "alc_2")))
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 5\n", 1, 4, 1, 600, gpu_model="H100")
SERVICE = ServiceSpec("svc_1", "clu_1", "ten_one", 1, 1, "a/b:1", 8000, 1, gpus_per_node=2, gpu=GpuKind(min_memory_gib=70))
CONFIG = {
    "gpus_by": "dra",
    "gpu_models": {"H100": "NVIDIA H100 80GB HBM3", "B200": "NVIDIA B200"},
    "nvlink_attribute": "example.org/nvlink",
}


def device(name: str, *, kind: str = "gpu", memory: str = "81559Mi", **more: Any) -> dict[str, Any]:
    """
    As the driver publishes one.
    """
    told = {"type": {"string": kind}, "productName": {"string": "NVIDIA H100 80GB HBM3"}, "example.org/nvlink": {"bool": True}}
    return {"name": name, "attributes": told, "capacity": {"memory": {"value": memory}}, **more}


def published(ref: str, devices: list[dict[str, Any]], *, generation: int = 1, driver: str = CLASS) -> dict[str, Any]:
    """
    A node's slice.
    """
    pool = {"name": ref, "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{ref}-{driver}-{generation}"},
        "spec": {"driver": driver, "nodeName": ref, "pool": pool, "devices": devices},
    }


def publish(kit: KubernetesKit) -> None:
    """
    Two nodes of four good GPUs each; one has a fifth that its driver keeps back.
    """
    bad = device("gpu-9", taints=[{"key": "x", "effect": "NoSchedule"}])
    for ref, more in (("gpu-00000", []), ("gpu-00001", [bad])):
        one = published(ref, [*(device(f"gpu-{number}") for number in range(4)), *more])
        kit.ask("POST", "/apis/resource.k8s.io/v1/resourceslices", one, "application/json")


@pytest.fixture
def peer() -> Iterator[KubernetesHarness]:
    """
    Two nodes whose driver publishes four GPUs, whatever a device plugin left in their status, as one cluster.
    """
    with kubernetes_kit(nodes=2) as kit:
        publish(kit)
        made = KubernetesHarness(kit)
        made.adapter.close()
        made.adapter = kit.adapter(**CONFIG)
        made.apply(SPEC)
        yield made
        made.adapter.close()


def names(peer: KubernetesHarness) -> list[str]:
    """
    What claims in the cluster are made from.
    """
    return [one["metadata"]["name"] for one in peer.kit.ask("GET", TEMPLATES)["items"]]


def test_gpus_are_counted_from_what_the_driver_publishes(peer: KubernetesHarness) -> None:
    """Four a node, not the eight of its status, without the one kept back; quota and features follow."""
    view = peer.adapter.observe_cluster("clu_1")
    assert [one.gpus for one in view.members] == [4, 4]
    assert view.checks[0].result == "passed"
    assert {one.ref: one.inventory.gpus for one in peer.adapter.list_machines().machines} == {"gpu-00000": 4, "gpu-00001": 4}
    said = peer.adapter.capabilities()
    assert {"gpu_attributes", "gpu_nvlink"} <= set(said.job_features)
    assert "gangs" not in said.job_features  # Kueue is there, and nobody said that it counts claims
    quota = peer.kit.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/cluster")
    assert quota["spec"]["hard"][f"{CLASS}.deviceclass.resource.k8s.io/devices"] == "8"


def test_a_job_claims_what_it_asks_for(peer: KubernetesHarness) -> None:
    """By model, memory and NVLink; what claims are made from belongs to the Job, and pods ask for no counted GPU."""
    job = replace(JOB, gpu=GpuKind("H100", 70, nvlink=True))
    peer.submit(job)
    peer.submit(job)
    found = peer.kit.ask("GET", f"{TEMPLATES}/job-1-1")
    made = peer.kit.ask("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/job-1-1")
    assert found["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    request = found["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert (request["deviceClassName"], request["count"], len(request["selectors"])) == (CLASS, 4, 3)
    pod = made["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "job-1-1"}]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": "gpus"}]}
    assert peer.ended(job).phase == "succeeded"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (GpuKind(min_memory_gib=80), "job_gpu_unknown"),
        (GpuKind("B200"), "job_gpu_unknown"),
        (GpuKind("A100"), "job_gpu_model_unknown"),
    ],
)
def test_a_gpu_that_no_node_has_is_refused_and_leaves_nothing(peer: KubernetesHarness, kind: GpuKind, code: str) -> None:
    """A little under 80 GiB is no 80; a model that is known and not there, and one that is not known."""
    with pytest.raises(Permanent) as caught:
        peer.adapter.submit(replace(JOB, gpu=kind))
    assert caught.value.code == code
    with pytest.raises(NotFound):
        peer.adapter.find_job("clu_1", JOB.token)
    assert names(peer) == []


def test_a_plain_count_is_a_claim_too_and_a_gang_needs_a_queue_that_counts_them(peer: KubernetesHarness) -> None:
    """One driver gives out all GPUs of a server. Without a queue that knows of claims, half a gang could start."""
    peer.submit(JOB)
    assert names(peer) == ["job-1-1"]
    with pytest.raises(Refused) as caught:
        peer.adapter.submit(replace(JOB, token="job_2-1", nodes=2))
    assert caught.value.code == "job_gang_unsupported"


def test_a_service_claims_and_is_metered_by_its_claim(peer: KubernetesHarness) -> None:
    """Its replica holds two GPUs by its claim; a new version has claims of its own; nothing is left behind."""
    peer.adapter.apply_service(SERVICE)
    peer.until(
        lambda: peer.adapter.observe_service("clu_1", "svc_1").replicas,
        lambda found: [one.gpus for one in found] == [2],
        what="a replica with two GPUs",
    )
    assert names(peer) == ["svc-1-v1"]
    peer.adapter.apply_service(replace(SERVICE, version=2, turn=2, gpus_per_node=1))
    peer.adapter.apply_service(replace(SERVICE, version=5, turn=3, gpus_per_node=1))
    assert names(peer) == ["svc-1-v5"]
    peer.adapter.delete_service("clu_1", "svc_1")

    def gone() -> bool:
        try:
            peer.adapter.observe_service("clu_1", "svc_1")
        except NotFound:
            return True
        return False

    peer.until(gone, bool, what="gone")
    assert names(peer) == []


def test_a_server_without_claims_sells_nothing_by_them() -> None:
    """Its notes say why, so that the operator is not left to guess."""
    with kubernetes_kit(nodes=1) as kit:
        kit.ask("GET", "/apis")
        plain = kit.adapter()
        assert "gpu_attributes" not in plain.capabilities().job_features
        with pytest.raises(Permanent) as caught:
            plain.submit(replace(JOB, gpu=GpuKind("H100")))
        assert caught.value.code == "job_feature_unsupported"
        plain.close()


def test_only_whole_gpus_of_the_newest_generation_count() -> None:
    """Slices of a MIG, of another driver and of a generation that is being replaced do not; the older form is read as well."""
    old = {"name": "gpu-1", "basic": {key: device("x")[key] for key in ("attributes", "capacity")}}
    slices = [
        published("a", [device("gpu-0"), device("mig-0", kind="mig")], generation=2),
        published("a", [device("gpu-0"), device("gpu-1")], generation=1),
        published("a", [device("eth-0")], driver="nics.example.org"),
        published("b", [old]),
    ]
    found = by_node(slices, CLASS)
    assert {ref: [one["name"] for one in some] for ref, some in found.items()} == {"a": ["gpu-0"], "b": ["gpu-1"]}
    assert found["b"][0]["capacity"]["memory"]["value"] == "81559Mi"
    assert by_node(reversed(slices), CLASS) == {ref: found[ref] for ref in ("b", "a")}
