"""
Nodes whose GPUs are partitioned by MIG: offered as they are, counted as whole as they were sold, and asked for by the profile's resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import NoCapacity, Refused
from controlplane.providers.gpus import Slices
from controlplane.providers.services import ServiceSpec, ServiceView
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit

pytestmark = UNTIDY
NAMESPACE = "contract-clu-1"
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"), Member("gpu-00001", 8, "alc_2")))
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\necho done\n", 1, 0, 1, 600, mig=Slices("1g.10gb", 2))
SERVICE = ServiceSpec("svc_1", "clu_1", "ten_one", 1, 1, "a/b:1", 8000, 2, mig=Slices("1g.10gb", 3))
PARTS = {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "14", "nvidia.com/mig-1g.10gb.me": "1", "nvidia.com/mig-3g.40gb": "2"}


def partition(kit: KubernetesKit, ref: str, parts: dict[str, str | None]) -> None:
    """The node's device plugin tells these resources from now on; the label that counts its GPUs stays at 8."""
    kit.ask("PATCH", f"/api/v1/nodes/{ref}/status", {"status": {"allocatable": parts, "capacity": parts}})


@pytest.fixture
def peer() -> Iterator[KubernetesHarness]:
    """Two nodes as one cluster: all GPUs of the first are whole, four of the second's eight are partitioned."""
    with kubernetes_kit(nodes=2) as kit:
        partition(kit, "gpu-00001", PARTS)
        made = KubernetesHarness(kit)
        made.apply(SPEC)
        yield made
        made.adapter.close()


def quota(peer: KubernetesHarness) -> dict[str, Any]:
    """What the namespace may ask for."""
    hard: dict[str, Any] = peer.kit.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/cluster")["spec"]["hard"]
    return hard


def test_what_nodes_are_partitioned_into_is_offered(peer: KubernetesHarness) -> None:
    """Each profile as its maker writes it, with the most that one node has; where none is, nothing is."""
    offered = peer.adapter.capabilities()
    assert offered.mig == {"1g.10gb": 14, "1g.10gb+me": 1, "3g.40gb": 2}
    assert "mig" in offered.job_features
    partition(peer.kit, "gpu-00001", {"nvidia.com/gpu": "8", **{name: None for name in PARTS if "mig" in name}})
    offered = peer.adapter.capabilities()
    assert (offered.mig, "mig" in offered.job_features) == ({}, False)


def test_a_partitioned_node_is_as_whole_as_it_was_sold(peer: KubernetesHarness) -> None:
    """Its inventory, its check and the cluster's handover count eight GPUs; room for whole ones is only what is whole."""
    assert [one.gpus for one in peer.view(SPEC).members] == [8, 8]
    assert (
        peer.until(lambda: peer.view(SPEC), lambda view: view.verified_at is not None, what="handover").checks[0].result == "passed"
    )
    for gpus, nodes, room in ((4, 2, True), (8, 1, True), (8, 2, False)):
        job = replace(JOB, token=f"job_{gpus}{nodes}-1", gpus_per_node=gpus, nodes=nodes, mig=None)
        if room:
            peer.submit(job)
        else:
            with pytest.raises(NoCapacity):
                peer.adapter.submit(job)
    machine = next(one for one in peer.adapter.list_machines().machines if one.ref == "gpu-00001")
    assert machine.inventory is not None
    assert machine.inventory.gpus == 8


def test_without_its_label_a_partitioned_node_is_not_guessed_at(peer: KubernetesHarness) -> None:
    """Two slices of 3g leave a seventh of a GPU over, so slices do not tell how many GPUs they are of: the count is not measured."""
    peer.kit.ask("PATCH", "/api/v1/nodes/gpu-00001", {"metadata": {"labels": {"nvidia.com/gpu.count": None}}})
    assert [one.gpus for one in peer.view(SPEC).members] == [8, None]
    assert peer.view(SPEC).checks[0].result == "not_measured"


def test_a_job_gets_slices_by_its_profile(peer: KubernetesHarness) -> None:
    """On the node that has them, by the resource of the device plugin, within a quota of what the nodes have."""
    peer.submit(JOB)
    assert peer.ended(JOB).phase == "succeeded"
    (pod,) = peer.kit.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert pod["spec"]["nodeName"] == "gpu-00001"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "2"}
    assert quota(peer)["requests.nvidia.com/mig-1g.10gb"] == "14"
    (queue,) = peer.kit.ask("GET", "/apis/kueue.x-k8s.io/v1beta2/clusterqueues")["items"]
    (flavor,) = queue["spec"]["resourceGroups"][0]["flavors"]
    assert {"name": "nvidia.com/mig-1g.10gb", "nominalQuota": "14"} in flavor["resources"]


def test_slices_that_no_node_has_are_refused_before_anything_is_sent(peer: KubernetesHarness) -> None:
    """Another profile, more than a node has; and more nodes than have them."""
    for wanted in (Slices("2g.20gb", 1), Slices("1g.10gb", 15)):
        with pytest.raises(Refused) as caught:
            peer.adapter.submit(replace(JOB, mig=wanted))
        assert caught.value.code == "job_mig_unknown"
    with pytest.raises(NoCapacity):
        peer.adapter.submit(replace(JOB, nodes=2))
    assert peer.kit.ask("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")["items"] == []


def test_a_node_that_was_partitioned_anew_is_known_before_a_job_is_sent(peer: KubernetesHarness) -> None:
    """Quota and queue of a day ago would keep its pods from being made."""
    partition(peer.kit, "gpu-00000", {"nvidia.com/gpu": "7", "nvidia.com/mig-2g.20gb": "3"})
    job = replace(JOB, token="job_2-1", mig=Slices("2g.20gb", 3))
    peer.submit(job)
    assert peer.ended(job).phase == "succeeded"
    assert quota(peer)["requests.nvidia.com/mig-2g.20gb"] == "3"
    assert quota(peer)["requests.nvidia.com/gpu"] == "16"


def holding(peer: KubernetesHarness, *wanted: tuple[str, int, int]) -> ServiceView:
    """The service once its replicas that are ready are these: profile, slices, version."""
    return peer.until(
        lambda: peer.adapter.observe_service("clu_1", "svc_1"),
        lambda view: [(one.profile, one.gpus, one.version) for one in view.replicas if one.phase == "ready"] == list(wanted),
        what="replicas with their slices",
    )


def test_replicas_get_slices_by_their_profile_and_are_counted_by_it(peer: KubernetesHarness) -> None:
    """As jobs do, within the same quota; a version with another profile finds a node that was partitioned for it since."""
    peer.adapter.apply_service(SERVICE)
    view = holding(peer, ("1g.10gb", 3, 1), ("1g.10gb", 3, 1))
    assert {one.refs for one in view.replicas} == {("gpu-00001",)}
    pods = peer.kit.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert [one["spec"]["containers"][0]["resources"]["limits"] for one in pods] == [{"nvidia.com/mig-1g.10gb": "3"}] * 2
    partition(peer.kit, "gpu-00000", {"nvidia.com/gpu": "7", "nvidia.com/mig-2g.20gb": "3"})
    peer.adapter.apply_service(replace(SERVICE, version=2, turn=2, mig=Slices("2g.20gb", 1)))
    holding(peer, ("2g.20gb", 1, 2), ("2g.20gb", 1, 2))
    assert quota(peer)["requests.nvidia.com/mig-2g.20gb"] == "3"


def test_a_replica_that_no_node_has_slices_for_is_refused_and_leaves_nothing(peer: KubernetesHarness) -> None:
    """Another profile, more than a node has, and more nodes than have them."""
    for wanted in (replace(SERVICE, mig=Slices("2g.20gb", 1)), replace(SERVICE, mig=Slices("1g.10gb", 15))):
        with pytest.raises(NoCapacity) as caught:
            peer.adapter.apply_service(wanted)
        assert caught.value.code == "service_never_fits"
    assert peer.kit.ask("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"] == []
