"""
A tenant's own Kubernetes on hosts that really boot: ordered over REST; hosts fetch our files and run our scripts with stand-ins for the
programs that the image would bring, which look at what they are given, make certificates by our authorities, and register Nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import hosts_kit, stand_ins_kit
from tests.e2e.rack import Metal, done, enroll, key_pair
from tests.e2e.test_kubernetes_orders import Kubectl
from tests.hosts_kit import Lab
from tests.kubernetes_kit import UNTIDY, KubernetesKit
from tests.stand_ins_kit import VERSION

pytestmark = [UNTIDY]
OFFER = {"versions": {"kubeadm": VERSION, "k3s": VERSION}, "shapes": {"hgx-h100-8": {"gpus": 8, "gpu_model": "H100-SXM5-80GB"}}}
PLAIN = {"instance_type": "hgx-h100-8"}
GPUS = "custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.nvidia\\.com/gpu"
READY = '{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}'


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts whose image has the stand-ins."""
    with stand_ins_kit.image(), hosts_kit.running_lab(2) as running:
        yield running


@pytest.fixture
def objects(lab: Lab) -> Iterator[KubernetesKit]:
    """What keeps the objects of the cluster."""
    with stand_ins_kit.objects(lab.gateway) as kit:
        yield kit


def free(metal: Metal, count: int, within_s: float = 240.0, **more: Any) -> list[str]:
    """So many hosts, checked and wiped, on which both distributions are sold, with more in the offer; their nodes' ids."""
    nodes = enroll(metal, count, kubernetes={**OFFER, **more})
    for one in nodes:
        seen = metal.until(f"/v1/admin/nodes/{one}", "available", "quarantined", within_s=within_s)
        assert seen["status"]["state"] == "available", seen
    return nodes


def order(metal: Metal, public: str, workers: int, distribution: str = "kubeadm", leads: int = 1) -> str:
    """The path of a Kubernetes of the tenant's own that was just ordered."""
    sets = [{"name": "cp", "role": "control_plane", "count": leads, **PLAIN}, {"name": "workers", "count": workers, **PLAIN}]
    login, kubernetes = {"ssh_keys": [public]}, {"distribution": distribution}
    spec = {"kind": "kubernetes", "site": "lab", "node_sets": sets, "wait": True, "login": login, "kubernetes": kubernetes}
    made = done(metal.tenant.post(f"/v1/projects/{metal.project}/clusters", json={"name": "own", "spec": spec}))
    return f"/v1/projects/{metal.project}/clusters/{made['id']}"


def running(metal: Metal, path: str, within_s: float = 240.0) -> dict[str, Any]:
    """The cluster, once it runs."""
    seen = metal.until(path, "running", "failed", client=metal.tenant, within_s=within_s)
    assert seen["status"]["state"] == "running", seen
    return seen


def names(metal: Metal, path: str) -> dict[str, list[str]]:
    """Hosts of the cluster by node set, as they call themselves."""
    sets = {one["id"]: one["name"] for one in done(metal.tenant.get(path))["spec"]["node_sets"]}
    found: dict[str, list[str]] = {name: [] for name in sets.values()}
    for one in done(metal.tenant.get(f"{path}/instances"))["items"]:
        if one["state"] == "active":
            found[sets[one["node_set"]]].append(one["id"].replace("_", "-"))
    return found


def owner(metal: Metal, path: str, folder: Path) -> tuple[Kubectl, Kubectl]:
    """The real kubectl with a kubeconfig that was asked for over REST, and with a stranger's token in place of its certificate."""
    told = done(metal.tenant.post(f"{path}/kubeconfigs", json={"lifetime_s": 3600}))["kubeconfig"]
    whole = yaml.safe_load(told)
    whole["users"][0]["user"] = {"token": "a-strangers"}
    (folder / "anybody").mkdir()
    return Kubectl(folder, told), Kubectl(folder / "anybody", yaml.safe_dump(whole))


def test_hosts_that_boot_become_a_kubernetes_that_its_owner_enters(metal: Metal, objects: KubernetesKit, tmp_path: Path) -> None:
    """
    A control plane and a worker make a cluster of themselves; it runs as its own API shows both ready, the worker with its GPUs; its owner
    comes in by a certificate and may do everything, and a stranger is not let in.
    """
    free(metal, 2)
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1)
    made = running(metal, path)
    checks = {one["name"]: one["result"] for one in made["status"]["conditions"]}
    assert (checks["nodes_answer"], checks["gpu_count"]) == ("passed", "passed")
    own = names(metal, path)
    (lead,), (worker,) = own["cp"], own["workers"]
    kube, anybody = owner(metal, path, tmp_path)
    assert sorted(kube.says("get", "nodes", "-o", f"jsonpath={READY}").split()) == sorted([f"{lead}=True", f"{worker}=True"])
    assert kube.says("get", "node", worker, "--no-headers", "-o", GPUS).split() == [worker, "8"]
    assert "secret/bootstrap-token-" in kube.says("get", "secrets", "-n", "kube-system", "-o", "name")
    kube.says("annotate", "node", worker, "example.org/owner=mine")
    assert "nauthorized" in anybody("get", "--raw", "/api/v1/nodes").stderr
    assert {f"pod/nvidia-device-plugin-{worker}", f"pod/dcgm-exporter-{worker}"} == set(
        kube.says("get", "pods", "-n", "controlplane-gpus", "-o", "name").split()
    )
    signed = objects.ask("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests")["items"]
    assert [one["spec"]["groups"][0] for one in signed] == ["system:bootstrappers"]
