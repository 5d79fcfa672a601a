"""
A Kubernetes of one's own as the adapter sees it: who is let in, what its nodes are, and kubeconfigs that the real kubectl comes in with.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter, build
from controlplane.providers.errors import NotFound, NotSent, ProviderError, Refused, Unsupported
from controlplane.providers.registry import AdapterInput
from controlplane.rendering.kubernetes.inplace import MARK as API_MARK
from controlplane.rendering.kubernetes.keys import ClusterKeys, new_keys
from controlplane.rendering.kubernetes.members import MARK
from controlplane.rendering.kubernetes.settings import adapter_config
from tests.contract.test_kubernetes_claims import publish
from tests.factories.kubernetes_plans import NOW, keys, plain
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubectl, kubernetes_kit
from tests.tls_door import Door, tls_door

pytestmark = UNTIDY
CLUSTER, TENANT = "clu_own", "ten_one"


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """An API with three nodes."""
    with kubernetes_kit(nodes=3, kueue=False) as made:
        yield made


@pytest.fixture
def door(kit: KubernetesKit, tmp_path: Path) -> Iterator[Door]:
    """It has the cluster's name and lets in whom the cluster's authority signed for."""
    cluster = keys().cluster
    port = int(kit.handle.url.rsplit(":", 1)[1])
    with tls_door(port, tmp_path, (cluster.certificate, cluster.key), plain().api_name) as made:
        yield made


def adapter(door: Door, held: ClusterKeys | None = None, name: str = "") -> KubernetesAdapter:
    """Built as for an order, with all the keys of a cluster."""
    config = {**adapter_config(plain(), CLUSTER, TENANT), "url": door.url}
    if name:
        config["dedicated"] = {**config["dedicated"], "server_name": name}
    secrets = (held or keys()).secrets()
    return build(AdapterInput("prv_own", config, secrets, "contract", lambda: datetime.now(UTC)))


def change(kit: KubernetesKit, name: str, body: dict[str, Any], part: str = "") -> None:
    """The node is changed by somebody with all rights."""
    kit.ask("PATCH", f"/api/v1/nodes/{name}{part}", body)


def states(own: KubernetesAdapter) -> dict[str, tuple[str, int | None]]:
    """What each node is seen as."""
    return {one.ref: (one.state, one.gpus) for one in own.observe_cluster(CLUSTER).members}


def test_nodes_are_what_the_api_says_and_what_our_program_wrote(kit: KubernetesKit, door: Door) -> None:
    """An owner's cordon says nothing, ours is told as far as it is, a control plane has no GPUs to give; one list of nodes is asked for."""
    first, second, third = (f"gpu-{number:05d}" for number in range(3))
    own = adapter(door)
    assert states(own) == dict.fromkeys((first, second, third), ("up", 8))
    change(kit, first, {"spec": {"unschedulable": True}})
    change(kit, second, {"metadata": {"annotations": {MARK: "asked"}}, "spec": {"unschedulable": True}})
    change(kit, third, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})
    before = len(kit.asked())
    assert states(own) == {first: ("up", 8), second: ("draining", 8), third: ("up", 0)}
    assert [path.split("?")[0] for _, path in kit.asked()[before:]] == ["/api/v1/nodes"]
    change(kit, second, {"metadata": {"annotations": {MARK: "drained"}}})
    assert states(own)[second] == ("drained", 8)
    kit.ask("DELETE", f"/api/v1/nodes/{first}")
    assert first not in states(own)
    with pytest.raises(NotFound):
        own.observe_cluster("clu_other")
    with pytest.raises(Unsupported):
        own.delete_cluster(CLUSTER)
    own.close()


def test_gpus_that_a_driver_publishes_count_where_no_plugin_counts(kit: KubernetesKit, door: Door) -> None:
    """With the DRA driver no node shows `nvidia.com/gpu`: a worker has what the driver lets pods have, and without a driver none."""
    publish(kit)
    for name in ("gpu-00000", "gpu-00001", "gpu-00002"):
        change(kit, name, {"status": {"allocatable": {"nvidia.com/gpu": None}}}, "/status")
    own = adapter(door)
    assert states(own) == {"gpu-00000": ("up", 4), "gpu-00001": ("up", 4), "gpu-00002": ("up", 0)}
    own.close()


def test_versions_are_what_hosts_and_the_api_say(kit: KubernetesKit, door: Door) -> None:
    """A kubelet's stands on its Node, an API server's where its host has noted it, on control planes only; then the API is asked, too."""
    first, second, _ = (f"gpu-{number:05d}" for number in range(3))
    own = adapter(door)
    change(kit, first, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}})
    before = own.observe_cluster(CLUSTER)
    assert (before.version, {one.api_version for one in before.members}) == ("", {""})
    assert all(one.version and not one.version.startswith("v") for one in before.members)
    for name in (first, second):
        change(kit, name, {"metadata": {"annotations": {API_MARK: "1.37.0"}}})
    seen = own.observe_cluster(CLUSTER)
    assert {one.ref: one.api_version for one in seen.members} == {first: "1.37.0", second: "", "gpu-00002": ""}
    assert f"v{seen.version}" == kit.ask("GET", "/version")["gitVersion"]
    own.close()


def test_only_the_clusters_own_authority_opens_it(door: Door) -> None:
    """Keys of another cluster, or a server with another name, end before anything is asked."""
    other = adapter(door, replace(keys(), cluster=new_keys(NOW).cluster))
    elsewhere = adapter(door, name="api.clu-other.internal")
    for one in (other, elsewhere):
        with pytest.raises(ProviderError):
            one.observe_cluster(CLUSTER)
        one.close()


def test_an_api_server_that_is_lost_is_not_the_whole_way_in(door: Door) -> None:
    """One call fails where a control plane is without power; the next asks another one, and so do kubeconfigs from then on."""
    told = adapter_config(plain(), CLUSTER, TENANT)
    config = {**told, "url": "https://127.0.0.1:9", "dedicated": {**told["dedicated"], "others": [door.url]}}
    own = build(AdapterInput("prv_own", config, keys().secrets(), "contract", lambda: datetime.now(UTC)))
    with pytest.raises(NotSent):
        own.observe_cluster(CLUSTER)
    assert len(states(own)) == len(states(own)) == 3
    assert door.url in own.issue_kubeconfig(CLUSTER, TENANT, lifetime_s=900).text
    own.close()


def test_a_kubeconfig_brings_the_real_kubectl_in(kit: KubernetesKit, door: Door, tmp_path: Path) -> None:
    """For its tenant and its time only; nobody is asked for it."""
    own = adapter(door)
    before = len(kit.asked())
    made = own.issue_kubeconfig(CLUSTER, TENANT, lifetime_s=900)
    for cluster_id, tenant_id, seconds in ((CLUSTER, "ten_two", 900), (CLUSTER, TENANT, 86_400)):
        with pytest.raises(Refused):
            own.issue_kubeconfig(cluster_id, tenant_id, lifetime_s=seconds)
    assert kit.asked()[before:] == []
    file = tmp_path / "kubeconfig"
    file.write_text(made.text, encoding="utf-8")
    done = subprocess.run(
        [kubectl(), f"--kubeconfig={file}", "get", "nodes", "-o", "name"],
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [f"node/gpu-{number:05d}" for number in range(3)], done.stderr
    own.close()
