"""
A management cluster for tests: the Kubernetes kit's emulator with Cluster API's and Metal3's kinds, played controllers, and free hosts.
"""

from __future__ import annotations

import asyncio
import base64
import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from controlplane.providers.adapters.clusterapi.adapter import ClusterApiAdapter, build
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.errors import Busy
from controlplane.providers.registry import AdapterInput
from tests.capi_controllers import Controllers, NodeStore
from tests.kubernetes_kit import KubernetesKit, emulator_module, kubeconfig, kubernetes_kit

NAMESPACE, CLASSES = "site-a", "classes"
PIN_VARIABLE = "hostPin"
KINDS = {"gpu-8": "h100"}
CONFIG: dict[str, Any] = {
    "namespace": NAMESPACE,
    "host_selector": "sold=yes",
    "cluster_class": "gpu-metal",
    "class_namespace": CLASSES,
    "machine_classes": KINDS,
    "versions": ["1.34.2", "1.35.1"],
    "control_planes": 1,
    "gpu_count_label": "example.org/gpus",
    "gpu_model_label": "example.org/gpu",
    "gpu_models": {"H100-SXM5-80GB": "h100"},
}
STUBS = (
    "cluster.x-k8s.io/{api} clusters Cluster n|clusterclasses ClusterClass n|machinedeployments MachineDeployment n|"
    "machinesets MachineSet n|machines Machine n;"
    "infrastructure.cluster.x-k8s.io/v1beta2 metal3machines Metal3Machine n;metal3.io/v1alpha1 baremetalhosts BareMetalHost n"
)


NODE_OF = "test.internal/cluster"
"""Label of a Node for the Cluster whose it is, where one server holds the Nodes of many."""
PATIENCE_S = 20.0
"""How long `until` looks."""
LOST = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "its node is not there"}


class OwnNodes(NodeStore):
    """
    Nodes in the management cluster's own server, which stands for every tenant's.
    """

    def __init__(self, kit: KubernetesKit, gpus: int) -> None:
        self._emulator = kit.emulator
        self._gpus = gpus

    def make(self, name: str, version: str, *, leads: bool, cluster: str) -> None:
        """A kubelet has registered."""
        if ("", name) not in self._emulator.data[("", "nodes")]:
            node = a_node(name, version, 0 if leads else self._gpus)
            node["metadata"]["labels"][NODE_OF] = cluster
            self._emulator.make("nodes", node)

    def drop(self, name: str) -> None:
        """The Node is gone."""
        found = self._emulator.data[("", "nodes")].get(("", name))
        if found is not None:
            self._emulator.commit("DELETED", self._emulator.find("nodes"), {**found, "metadata": dict(found["metadata"])}, found)

    def empty(self, name: str) -> str:
        """No work is tried here."""
        del name
        return ""


class FarNodes(NodeStore):
    """
    Nodes in a server of the tenant's own.
    """

    def __init__(self, kit: KubernetesKit, gpus: int) -> None:
        self._kit = kit
        self._gpus = gpus

    def make(self, name: str, version: str, *, leads: bool, cluster: str) -> None:
        """A kubelet has registered."""
        node = a_node(name, version, 0 if leads else self._gpus)
        if leads:
            node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
            node["spec"] = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
        if name not in self.names():
            self._kit.ask("POST", "/api/v1/nodes", node, "application/json")
            self._kit.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": node["status"]})

    def drop(self, name: str) -> None:
        """The Node is gone, and its pods with it, as the garbage collector of pods tells."""
        if name in self.names():
            self._kit.ask("DELETE", f"/api/v1/nodes/{name}")
            for pod in self._pods(name):
                self._kit.ask("PATCH", f"{_at(pod)}/status", {"status": {"phase": "Failed", "conditions": [LOST]}})

    def empty(self, name: str) -> str:
        """Cordoned, and its pods evicted, as Cluster API drains."""
        if name not in self.names():
            return ""
        self._kit.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
        held = []
        for pod in self._pods(name):
            wish = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
            try:
                self._kit.ask("POST", f"{_at(pod)}/eviction", wish, "application/json")
            except urllib.error.HTTPError as error:
                held.append(f"{pod['metadata']['name']}: {error.code}")
        return ", ".join(held) or ("pods are leaving" if self._pods(name) else "")

    def _pods(self, name: str) -> list[dict[str, Any]]:
        found = self._kit.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={name}")["items"]
        return [one for one in found if one["status"].get("phase") not in {"Succeeded", "Failed"}]

    def names(self) -> set[str]:
        """All that are there."""
        return {one["metadata"]["name"] for one in self._kit.ask("GET", "/api/v1/nodes")["items"]}


class NodesApart(NodeStore):
    """
    Nodes in a server of each cluster's own, by the names of Machines; in `rest` those of clusters that have none.
    """

    def __init__(self, kits: Mapping[str, KubernetesKit], gpus: int, rest: NodeStore) -> None:
        self._kits = kits
        self._gpus = gpus
        self._rest = rest

    def make(self, name: str, version: str, *, leads: bool, cluster: str) -> None:
        """A kubelet has registered."""
        self._of(name).make(name, version, leads=leads, cluster=cluster)

    def drop(self, name: str) -> None:
        """The Node is gone."""
        self._of(name).drop(name)

    def empty(self, name: str) -> str:
        """See `FarNodes.empty`."""
        return self._of(name).empty(name)

    def _of(self, machine: str) -> NodeStore:
        found = next((kit for cluster, kit in self._kits.items() if machine.startswith(f"{cluster}-")), None)
        return self._rest if found is None else FarNodes(found, self._gpus)


def _at(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def a_node(name: str, version: str, gpus: int) -> dict[str, Any]:
    """A Node as its kubelet registers it."""
    made: dict[str, Any] = emulator_module().fake_node(0, gpus)
    made["metadata"] = {"name": name, "labels": {"kubernetes.io/hostname": name}}
    made["status"]["nodeInfo"]["kubeletVersion"] = version
    return made


def a_host(name: str, **labels: str) -> dict[str, Any]:
    """A host that Metal3 has registered, inspected and cleaned."""
    return {
        "metadata": {"name": name, "labels": {"sold": "yes", "example.org/gpus": "8", "example.org/gpu": "h100", **labels}},
        "spec": {
            "online": False,
            "automatedCleaningMode": "metadata",
            "bmc": {"address": "redfish://bmc", "credentialsName": name},
        },
        "status": {
            "operationalStatus": "OK",
            "errorMessage": "",
            "poweredOn": False,
            "provisioning": {"state": "available", "ID": name},
            "hardware": {
                "ramMebibytes": 2 * 1024 * 1024,
                "cpu": {"count": 224},
                "systemVendor": {"serialNumber": f"SN-{name}"},
                "firmware": {"bios": {"version": "1.2"}},
            },
        },
    }


def a_class() -> dict[str, Any]:
    """The operator's ClusterClass, as far as we look at it."""
    return {
        "metadata": {"name": "gpu-metal"},
        "spec": {
            "workers": {"machineDeployments": [{"class": "h100"}]},
            "variables": [{"name": PIN_VARIABLE, "required": False, "schema": {"openAPIV3Schema": {"type": "string"}}}],
        },
    }


class CapiKit:
    """
    A running management cluster.
    """

    def __init__(self, kit: KubernetesKit, tenant: KubernetesKit | None, hosts: int, server: Callable[[], str] | None) -> None:
        self.kit = kit
        self.tenant = tenant or kit
        self.emulator = kit.emulator
        self._server = server
        self.apart: dict[str, KubernetesKit] = {}
        """Servers of clusters' own, by the names of their Clusters."""
        nodes = NodesApart(self.apart, 8, OwnNodes(kit, 8) if tenant is None else FarNodes(tenant, 8))
        self.controllers = Controllers(self.emulator, nodes, NAMESPACE, self._kubeconfig, PIN_VARIABLE)
        for name in (NAMESPACE, CLASSES):
            kit.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}}, "application/json")
        kit.ask("POST", f"{self.capi(CLASSES)}/clusterclasses", a_class(), "application/json")
        for number in range(hosts):
            self.add_host(a_host(f"metal-{number:02d}"))
        ends = self.emulator.c_pdb

        def c_pdb() -> None:
            self.controllers.step()
            ends()

        self.emulator.c_pdb = c_pdb

    def settle(self) -> None:
        """The controllers have done all that they can do now."""

        async def once() -> int:
            before = self.emulator.rv
            self.controllers.step()
            return int(self.emulator.rv - before)

        loop = self.emulator.task.get_loop()
        while asyncio.run_coroutine_threadsafe(once(), loop).result(timeout=10):
            pass

    def _kubeconfig(self, cluster: str) -> bytes:
        text = self.apart.get(cluster, self.tenant).kubeconfig if self._server is None else self._server()
        return base64.b64encode(text.encode())

    def add_host(self, host: dict[str, Any]) -> None:
        """One more host."""
        path = self.hosts()
        self.kit.ask("POST", path, host, "application/json")
        self.kit.ask("PATCH", f"{path}/{host['metadata']['name']}/status", {"status": host["status"]})

    def hosts(self, ref: str = "") -> str:
        """Where hosts are, or one is."""
        return "/".join(filter(None, (f"/apis/metal3.io/v1alpha1/namespaces/{NAMESPACE}/baremetalhosts", ref)))

    def host(self, ref: str) -> dict[str, Any]:
        """The host now."""
        found: dict[str, Any] = self.kit.ask("GET", self.hosts(ref))
        return found

    def capi(self, namespace: str = NAMESPACE) -> str:
        """Where Cluster API's objects are."""
        served = next(one for one in self.kit.ask("GET", "/apis")["groups"] if one["name"] == "cluster.x-k8s.io")
        return f"/apis/{served['preferredVersion']['groupVersion']}/namespaces/{namespace}"

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All of one of Cluster API's kinds."""
        found: list[dict[str, Any]] = self.kit.ask("GET", f"{self.capi()}/{kind}")["items"]
        return found

    def node_of(self, ref: str) -> str:
        """The name of the host's Node."""
        name = self.host(ref)["spec"]["consumerRef"]["name"]
        machine = next(one for one in self.objects("machines") if one["spec"]["infrastructureRef"]["name"] == name)
        return str(machine["status"]["nodeRef"]["name"])

    def stand(self, name: str, replicas: int, **topology: Any) -> dict[str, Any]:
        """A Cluster that its owner made with kubectl, all of whose Machines run; `topology` is more of it, or other."""
        old = self.capi().split("/")[3] == "v1beta1"
        reference = (
            {"class": "gpu-metal", "classNamespace": CLASSES} if old else {"classRef": {"name": "gpu-metal", "namespace": CLASSES}}
        )
        made = {
            "metadata": {"name": name, "labels": {"team": "research"}},
            "spec": {
                "topology": {
                    **reference,
                    "version": "v1.34.2",
                    "controlPlane": {"replicas": 1},
                    "workers": {"machineDeployments": [{"class": "h100", "name": "workers", "replicas": replicas}]},
                    **topology,
                }
            },
        }
        self.kit.ask("POST", f"{self.capi()}/clusters?fieldManager=kubectl-client-side-apply", made, "application/json")
        self.settle()
        found: dict[str, Any] = self.kit.ask("GET", f"{self.capi()}/clusters/{name}")
        return found

    def state(self) -> dict[str, Any]:
        """Clusters, Machines and hosts as they are, without what every write changes."""
        things = [*self.objects("clusters"), *self.objects("machines"), *self.kit.ask("GET", self.hosts())["items"]]
        fleeting = ("resourceVersion", "managedFields", "generation")
        return {
            f"{one['metadata']['name']} {one['metadata']['uid']}": {
                **one,
                "metadata": {key: value for key, value in one["metadata"].items() if key not in fleeting and value != {}},
            }
            for one in things
        }

    def remains(self) -> list[str]:
        """What is left of clusters, anybody's: objects, and what is written on hosts."""
        kinds = ("clusters", "machinedeployments", "machines")
        left = [f"{kind}/{one['metadata']['name']}" for kind in kinds for one in self.objects(kind)]
        infra = f"/apis/infrastructure.cluster.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/metal3machines"
        left += [f"metal3machines/{one['metadata']['name']}" for one in self.kit.ask("GET", infra)["items"]]
        left += [one["metadata"]["name"] for one in self.kit.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]]
        for host in self.kit.ask("GET", self.hosts())["items"]:
            kept = {**host["metadata"].get("labels", {}), **host["metadata"].get("annotations", {})}
            ours = [key for key in kept if key.startswith("controlplane.internal/") and key != "controlplane.internal/machine"]
            left += [f"{host['metadata']['name']}: {key}" for key in ours]
            left += [f"{host['metadata']['name']}: consumed"] if host["spec"].get("consumerRef") else []
        return left

    def adapter(self, now: Callable[[], datetime] = lambda: datetime.now(UTC), **config: Any) -> ClusterApiAdapter:
        """Built as in production, with a kubeconfig."""
        secrets = {"kubeconfig": self.kit.kubeconfig}
        return build(AdapterInput("prv_contract", {**CONFIG, **config}, secrets, "contract", now))


def until(kit: CapiKit, act: Callable[[], Any], what: str) -> Any:
    """
    What the act gave once it gave anything; requests for patience are granted.
    """
    ends, last = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < ends:
        kit.settle()
        try:
            last = act()
        except Busy as error:
            last = error
            continue
        if last:
            return last
    raise AssertionError(f"{what}: {last!r}")


def spec(*refs: str, version: str = "", cluster: str = "clu_1") -> ClusterSpec:
    """
    A cluster of these hosts.
    """
    members = tuple(Member(ref, 8, f"alc_{ref[-2:]}", "workers", "gpu-8") for ref in refs)
    return ClusterSpec(cluster, "ten_one", "prj_one", "", members, version)


@contextmanager
def capi_kit(
    *,
    hosts: int = 6,
    api: str = "v1beta2",
    token: str | None = None,
    tenant: KubernetesKit | None = None,
    server: Callable[[], str] | None = None,
) -> Iterator[CapiKit]:
    """
    A management cluster of its own. `tenant` is the server of every tenant's cluster, none: this one; `server` makes the kubeconfig that
    Cluster API keeps of it, none: the tenant kit's.
    """
    emulator_module().STUBS["managing"] = STUBS.format(api=api)
    # as the published CustomResourceDefinition says of both lists: maps by name
    emulator_module().MERGE_KEYS.update(machineDeployments="name", overrides="name")
    with kubernetes_kit(nodes=0, kueue=False, token=token, more=("managing",)) as kit:
        yield CapiKit(kit, tenant, hosts, server)


__all__ = ["CONFIG", "NAMESPACE", "CapiKit", "a_host", "capi_kit", "kubeconfig", "spec", "until"]
