"""
The life of a Kubernetes of one's own on hosts that really boot, by each distribution: it grows, a worker leaves, it ends; it is upgraded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import hosts_kit, stand_ins_kit
from tests.e2e.rack import Metal, done, key_pair
from tests.e2e.test_broken_boots import deployed
from tests.e2e.test_kubernetes_orders import Kubectl
from tests.e2e.test_own_kubernetes_hosts import free, names, objects, order, owner, running
from tests.factories.processes import until
from tests.hosts_kit import Lab
from tests.kubernetes_kit import UNTIDY, KubernetesKit
from tests.slurm_kit import SLOW
from tests.stand_ins.machine import PUT
from tests.stand_ins_kit import VERSION

__all__ = ["objects"]
pytestmark = [UNTIDY, *SLOW[1:], pytest.mark.timeout(1800)]
PATIENCE_S = 600.0
PLACES = ("block", "leaf", "rack")
NEXT = "1.37.0"
INSTALL = f'mkdir -p {PUT}\nfor one in $PROGRAMS; do echo "$VERSION" > "{PUT}/$one"; done'
"""How programs of stand-ins become others."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts whose image has the stand-ins."""
    with stand_ins_kit.image(), hosts_kit.running_lab(3) as made:
        yield made


def resize(metal: Metal, path: str, workers: int) -> None:
    """The tenant wants so many workers."""
    change = {"node_sets": [{"name": "workers", "count": workers}]}
    done(metal.tenant.patch(path, json=change, headers={"If-Match": "*"}))


def occupy(kube: Kubectl, folder: Path, workers: list[str]) -> None:
    """On each of these a pod of the owner's runs."""
    file = folder / "pods.json"
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"work-{one}", "labels": {"app": "work"}},
            "spec": {"nodeName": one, "containers": [{"name": "main", "image": "debian"}]},
        }
        for one in workers
    ]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    kube.says("create", "--validate=false", "-f", str(file))


def node(kube: Kubectl, name: str) -> dict[str, Any]:
    """As the API shows it."""
    found: dict[str, Any] = json.loads(kube.says("get", "node", name, "-o", "json"))
    return found


def nodes(kube: Kubectl) -> set[str]:
    """Names of all Nodes."""
    return set(kube.says("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split())


@pytest.mark.parametrize("distribution", ["kubeadm", "k3s"])
def test_a_kubernetes_lives_on_hosts_that_boot(metal: Metal, objects: KubernetesKit, tmp_path: Path, distribution: str) -> None:
    """
    It grows by a worker, whose place our program on the control plane writes on its Node; a worker leaves once its pods are evicted, its
    Node is gone and its machine wiped; then all of it is deleted and wiped.
    """
    hosts = free(metal, 3, PATIENCE_S)
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1, distribution)
    running(metal, path, PATIENCE_S)
    kube, _ = owner(metal, path, tmp_path)
    own = names(metal, path)
    (lead,), (first,) = own["cp"], own["workers"]
    resize(metal, path, 2)
    running(metal, path, PATIENCE_S)
    workers = names(metal, path)["workers"]
    assert (len(workers), first in workers, nodes(kube)) == (2, True, {lead, *workers})
    for one in workers:
        until(lambda one=one: "controlplane.internal/rack" in node(kube, one)["metadata"]["labels"], f"{one} has its place")  # type: ignore[misc]
        labels = node(kube, one)["metadata"]["labels"]
        assert [labels[f"controlplane.internal/{part}"] for part in PLACES] == ["b1", "leaf1", "r1"]
    occupy(kube, tmp_path, workers)
    resize(metal, path, 1)
    running(metal, path, PATIENCE_S)
    (stays,) = names(metal, path)["workers"]
    assert nodes(kube) == {lead, stays}
    assert kube.says("get", "pods", "-l", "app=work", "-o", "name").split() == [f"pod/work-{stays}"]
    asked = [where for method, where in objects.asked() if method == "POST" and "/eviction" in where]
    (left,) = set(workers) - {stays}
    assert any(f"work-{left}" in one for one in asked)
    (free_,) = (
        one for one in hosts if metal.until(f"/v1/admin/nodes/{one}", "available", "active")["status"]["state"] == "available"
    )
    assert all(one["verified"] for one in done(metal.operator.get(f"/v1/admin/nodes/{free_}/wipes"))["items"])
    done(metal.tenant.delete(path, headers={"If-Match": "*"}))
    metal.until(path, "deleted", client=metal.tenant, within_s=PATIENCE_S)
    for one in hosts:
        seen = metal.until(f"/v1/admin/nodes/{one}", "available", "quarantined", within_s=PATIENCE_S)
        assert seen["status"]["state"] == "available", seen
        assert all(each["verified"] for each in done(metal.operator.get(f"/v1/admin/nodes/{one}/wipes"))["items"])


def kubelets(kube: Kubectl) -> dict[str, str]:
    """The version of each Node's kubelet."""
    shown = kube.says("get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.name}={.status.nodeInfo.kubeletVersion} {end}")
    return dict(one.split("=", 1) for one in shown.split())


@pytest.mark.parametrize(("distribution", "suffix"), [("kubeadm", ""), ("k3s", "+k3s1")])
def test_it_is_brought_to_the_next_version_in_place(
    metal: Metal, objects: KubernetesKit, tmp_path: Path, distribution: str, suffix: str
) -> None:
    """
    The API server, then the control plane's kubelet, then the worker's, each emptied of its pods first, and no machine is booted for it; a
    worker that comes later from the old image has the new version before it joins. Stand-ins for kubelets end where one is newer than its
    API server, and kubeadm's where the order is another.
    """
    how = {"versions": [NEXT], "install": INSTALL}
    hosts = free(metal, 3, PATIENCE_S, upgrades={distribution: how})
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1, distribution)
    running(metal, path, PATIENCE_S)
    kube, _ = owner(metal, path, tmp_path)
    own = names(metal, path)
    (lead,), (worker,) = own["cp"], own["workers"]
    assert kubelets(kube) == {lead: f"v{VERSION}{suffix}", worker: f"v{VERSION}{suffix}"}
    occupy(kube, tmp_path, [worker])
    done(metal.tenant.post(f"{path}/actions/upgrade", json={"version": NEXT}, headers={"If-Match": "*"}))
    running(metal, path, PATIENCE_S)
    assert kubelets(kube) == {lead: f"v{NEXT}{suffix}", worker: f"v{NEXT}{suffix}"}
    assert json.loads(kube.says("get", "--raw", "/version"))["gitVersion"] == f"v{NEXT}{suffix}"
    assert (names(metal, path), sum(len(deployed(metal, one)) for one in hosts)) == (own, 2)
    asked = [where for method, where in objects.asked() if method == "POST" and "/eviction" in where]
    assert any(f"work-{worker}" in one for one in asked)
    assert "unschedulable" not in node(kube, worker)["spec"]
    resize(metal, path, 2)
    running(metal, path, PATIENCE_S)
    (came,) = set(names(metal, path)["workers"]) - {worker}
    assert kubelets(kube)[came] == f"v{NEXT}{suffix}"
