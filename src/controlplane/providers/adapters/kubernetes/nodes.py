"""
Nodes of a Kubernetes as machines. They belong to the operator and stay on; a tenancy is a mark and walls around it, and after it the
tenant's pods are evicted and the node is proved to have nothing of them left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.marks import Mark
from controlplane.providers.adapters.kubernetes.standing import is_system
from controlplane.providers.errors import Busy, Refused
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.memory import MACHINE, read, rewriting
from controlplane.providers.kube.reading import instant, ready_condition
from controlplane.providers.kube.work.names import CLUSTER, OWNER, Names, grouped, node_path, word
from controlplane.providers.kube.work.pool import Pool, ended, evict
from controlplane.providers.kube.work.quantities import amount
from controlplane.providers.machines import Check, Deployment, Inventory, MachineList, MachineView, Phase, WipeReport

Json = dict[str, Any]
LEASES = "coordination.k8s.io/v1"
LEASES_IN = "kube-node-lease"
"""Where kubelets leave their signs of life."""
SERVERS = "node-role.kubernetes.io/control-plane"
"""Label of nodes that are no machines to be sold."""
GIB = 1024**3
PRESSURES = frozenset({"MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})
HELD = frozenset({"deployed", "releasing"})
TAKEN_KEPT_S = 10.0
"""How long it is remembered which namespaces were taken over."""
PROVED = (
    Check("tenant_pods", "passed", "no pod of a tenant is on the node"),
    Check("gpus_unused", "passed", "no pod asks for its GPUs"),
    Check("node_answers", "passed", "its kubelet has reported since the last of them was gone"),
    Check("gpu_memory", "not_measured", "Kubernetes does not read the memory of GPUs"),
    Check("image_cache", "not_measured", "images that were pulled stay until the kubelet removes them"),
    Check("disk_blocks", "not_measured", "Kubernetes cannot overwrite free blocks"),
    Check("firmware_baseline", "not_measured", "Kubernetes cannot read firmware"),
    Check("bmc_baseline", "not_measured", "Kubernetes cannot read the BMC"),
)
"""What a finished wipe has shown; it finishes only when the first three hold."""


class Nodes:
    """
    The Machines port.
    """

    def __init__(self, kube: Kube, names: Names, config: KubernetesConfig, pool: Pool, now: Callable[[], datetime]) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._pool = pool
        self._now = now
        self._taken: tuple[float, frozenset[str]] = (-TAKEN_KEPT_S, frozenset())
        """Namespaces that were taken over, as they were then."""
        self._models = {label: model for model, label in config.gpu_models.items()}

    def list_views(self) -> MachineList:
        """
        See `Machines.list_machines`. Two lists, however many nodes there are.
        """
        nodes = self._kube.list_all("/api/v1/nodes", labels=self._config.node_selector or f"!{SERVERS}")
        left: dict[str, int] = {}
        for pod in self._kube.list_all("/api/v1/pods", labels=self._names.selector()):
            ref = pod.get("spec", {}).get("nodeName", "")
            left[ref] = left.get(ref, 0) + 1
        return MachineList(tuple(self._view(one, left.get(one["metadata"]["name"], 0)) for one in nodes), complete=True)

    def observe(self, ref: str) -> MachineView:
        """
        See `Machines.observe`. The look that first finds a node ready, or a wipe proved, writes down when.
        """
        node = self._node(ref)
        mark = self._mark(node)
        pods = self._pods(ref)
        if mark is not None and mark.phase == "deployed" and not mark.ready and not _unready(node):
            node = self._write(node, mark, replace(mark, ready=self._stamp()))
        elif mark is not None and mark.wipe and not mark.wiped:
            node = self._prove(node, mark, pods)
        return self._view(node, len(self._tenants(pods)), self._obstacle(node, pods) if mark and mark.wipe else "")

    def inspect(self, ref: str) -> None:
        """
        See `Machines.inspect`: what the kubelet registered is the inventory, and it is always there.
        """
        self._node(ref)

    def qualify(self, ref: str, token: str) -> None:
        """
        See `Machines.qualify`: what the kubelet reports is judged when it is looked at.
        """
        node, mark = self._marked(ref)
        self._write(node, mark, replace(mark, qualified=word(token, "token")))

    def deploy(self, deployment: Deployment) -> None:
        """
        See `Machines.deploy`.
        """
        token = word(deployment.token, "token")
        node, mark = self._marked(deployment.ref)
        if mark.alloc == token and mark.phase == "deployed":
            return
        if mark.alloc == token and mark.phase:
            raise Refused(f"the tenancy {token} of {deployment.ref} is over", code="provider_tenancy_over")
        if mark.phase in HELD:
            raise Refused(f"{deployment.ref} is held by {mark.alloc}", code="provider_held_by_other")
        if mark.wipe and not mark.wiped:
            raise Busy(f"{deployment.ref} is being wiped", retry_in_s=5.0)
        fresh = Mark(
            alloc=token,
            phase="deployed",
            cluster=deployment.cluster_id,
            network=deployment.network,
            ready="" if _unready(node) else self._stamp(),
            qualified=mark.qualified,
        )
        self._write(node, mark, fresh)

    def release(self, ref: str, token: str) -> None:
        """
        See `Machines.release`. Busy until the tenant's pods have left the node.
        """
        node, mark = self._marked(ref)
        if mark.alloc != token and mark.phase in HELD:
            raise Refused(f"{ref} is held by {mark.alloc}", code="provider_held_by_other")
        if mark.alloc == token and mark.phase == "released":
            return
        mark, before = replace(mark, alloc=word(token, "token"), phase="releasing"), mark
        node = self._write(node, before, mark)
        self._empty(node)
        cluster_id = (node["metadata"].get("labels") or {}).get(CLUSTER, "")
        self._pool.leave(cluster_id, node)
        self._write(self._node(ref), mark, replace(mark, phase="released", network=""))

    def wipe(self, ref: str, token: str) -> None:
        """
        See `Machines.wipe`: what a tenant left is evicted, and nothing new starts until `observe` has proved that nothing is left.
        """
        node, mark = self._marked(ref)
        if mark.phase in HELD:
            raise Refused(f"{ref} is held by {mark.alloc}", code="provider_held_by_other")
        if mark.wipe == token and mark.wiped:
            return
        if mark.wipe != token:
            node = self._write(node, mark, replace(mark, wipe=word(token, "token"), clear="", beat="", wiped=""))
        self._pool.bar(node)
        evict(self._kube, self._tenants(self._pods(ref)))

    def _prove(self, node: Json, mark: Mark, pods: list[Json]) -> Json:
        """
        The node as it is now; with the proof, once nothing was left, the kubelet gave a sign of life after that, and time has passed.
        """
        if self._obstacle(node, pods):
            return self._write(node, mark, replace(mark, clear="", beat="")) if mark.clear else node
        beat = self._beat(node["metadata"]["name"])
        since = instant(mark.clear)
        if since is None or not mark.beat:
            return self._write(node, mark, replace(mark, clear=self._stamp(), beat=beat)) if beat else node
        settled = self._peer_now() - since >= timedelta(seconds=self._config.settle_s)
        if beat in {"", mark.beat} or not settled:
            return node
        self._pool.unbar(node)
        return self._write(self._node(node["metadata"]["name"]), mark, replace(mark, wiped=self._stamp()))

    def _obstacle(self, node: Json, pods: list[Json]) -> str:
        """
        What keeps a wipe from being proved, in words; empty for nothing.
        """
        tenants = self._tenants(pods)
        if tenants:
            return f"{len(tenants)} pods of tenants are on it: {_named(tenants)}"
        if self._pool.is_held(node):
            return "it still carries the marks of a cluster"
        users = [one for one in pods if not ended(one) and self._pool.asks_gpus(one)]
        if users:
            return f"pods of others use its GPUs: {_named(users)}"
        ready = ready_condition(node) or {}
        return "" if ready.get("status") == "True" else f"its kubelet does not answer: {ready.get('reason', 'NotReady')}"

    def _empty(self, node: Json) -> None:
        """
        No pod of a tenant is on the node. Raises Busy while some are ending.
        """
        ref = node["metadata"]["name"]
        left = self._tenants(self._pods(ref))
        if not left:
            return
        self._pool.bar(node)
        evict(self._kube, left)
        raise Busy(f"{len(left)} pods on {ref} are ending", retry_in_s=2.0)

    def _pods(self, ref: str) -> list[Json]:
        return self._kube.list_all("/api/v1/pods", fields=f"spec.nodeName={ref}")

    def _tenants(self, pods: Sequence[Json]) -> list[Json]:
        """
        Those with our marks, ended ones too: their logs and volumes are on the node until they are removed. And those of namespaces that
        were taken over: not all of their pods are made by us.
        """
        others = [one for one in pods if not self._is_marked(one) and not is_system(one["metadata"]["namespace"])]
        taken = self._adopted() if others else frozenset()
        return [one for one in pods if self._is_marked(one) or one["metadata"]["namespace"] in taken]

    def _is_marked(self, pod: Json) -> bool:
        return (pod["metadata"].get("labels") or {}).get(OWNER) == self._names.deployment

    def _adopted(self) -> frozenset[str]:
        if time.monotonic() - self._taken[0] > TAKEN_KEPT_S:
            found = self._kube.list_all("/api/v1/namespaces", labels=self._names.adopted())
            self._taken = (time.monotonic(), frozenset(str(one["metadata"]["name"]) for one in found))
        return self._taken[1]

    def _beat(self, ref: str) -> str:
        lease = self._kube.find(grouped(LEASES, "leases", ref, namespace=LEASES_IN))
        return str(((lease or {}).get("spec") or {}).get("renewTime") or "")

    def _view(self, node: Json, left: int, obstacle: str = "") -> MachineView:
        mark = self._mark(node)
        ref = node["metadata"]["name"]
        if mark is None:
            return MachineView(ref, "unknown", "unknown", inventory=self._inventory(node), failure="foreign mark")
        phase = _phase(mark)
        wiped_at = instant(mark.wiped)
        failure = {"deploying": _unready(node), "wiping": obstacle}.get(phase, "")
        return MachineView(
            ref=ref,
            power="unknown",
            phase=phase,
            token=mark.alloc or None,
            ready_at=instant(mark.ready) if phase == "deployed" else None,
            network=mark.network or None,
            inventory=self._inventory(node),
            wipe=WipeReport(mark.wipe, wiped_at, PROVED) if wiped_at is not None and phase != "deployed" else None,
            checks=self._checks(node, left if mark.phase not in HELD else 0) if mark.qualified else (),
            qualified_token=mark.qualified or None,
            failure=failure,
        )

    def _inventory(self, node: Json) -> Inventory:
        status = node.get("status", {})
        capacity, info = status.get("capacity") or {}, status.get("nodeInfo") or {}
        label = (node["metadata"].get("labels") or {}).get(self._config.gpu_model_label, "")
        versions = {"kubelet": "kubeletVersion", "kernel": "kernelVersion", "container_runtime": "containerRuntimeVersion"}
        return Inventory(
            gpu_model=self._models.get(label, ""),
            gpus=self._pool.gpus(node),
            memory_gib=int(amount(str(capacity.get("memory", "0"))) / GIB),
            cpus=int(amount(str(capacity.get("cpu", "0")))),
            firmware={name: str(info[key]) for name, key in versions.items() if info.get(key)},
        )

    def _checks(self, node: Json, left: int) -> tuple[Check, ...]:
        ready = ready_condition(node) or {}
        there, capacity = self._pool.gpus(node) or 0, self._pool.all_gpus(node)
        pressed = sorted(one["type"] for one in _conditions(node) if one["type"] in PRESSURES and one.get("status") == "True")
        return (
            Check("node_answers", "passed" if ready.get("status") == "True" else "failed", str(ready.get("reason", "NotReady"))),
            Check("gpu_count", "passed" if there and str(there) == capacity else "failed", f"{there} of {capacity} usable"),
            Check("no_pressure", "failed" if pressed else "passed", ", ".join(pressed)),
            Check("residue", "failed" if left else "passed", f"{left} pods of tenants"),
            Check("gpu_burn_in", "not_measured", "Kubernetes runs no burn-in"),
            Check("fabric_bandwidth", "not_measured", "Kubernetes does not measure the fabric"),
        )

    def _node(self, ref: str) -> Json:
        return self._kube.get(node_path(ref))

    def _marked(self, ref: str) -> tuple[Json, Mark]:
        node = self._node(ref)
        mark = self._mark(node)
        if mark is None:
            raise Refused(f"{ref} carries somebody else's mark in {MACHINE}", code="provider_held_by_other")
        return node, mark

    def _mark(self, node: Json) -> Mark | None:
        return read(Mark, node, self._names.deployment)

    def _write(self, node: Json, old: Mark, new: Mark) -> Json:
        return node if new == old else self._pool.change(node, rewriting(old, new, self._names.deployment))

    def _peer_now(self) -> datetime:
        return self._kube.seen_at or self._now()

    def _stamp(self) -> str:
        return self._peer_now().isoformat()


def _phase(mark: Mark) -> Phase:
    if mark.phase == "deployed":
        # once ready it has been deployed, whatever befell it since; the member's own state tells that
        return "deployed" if mark.ready else "deploying"
    if mark.phase == "releasing":
        return "releasing"
    if mark.wipe:
        return "wiped" if mark.wiped else "wiping"
    return "released" if mark.phase == "released" else "idle"


def _unready(node: Json) -> str:
    """
    Why no pod could start on the node; empty when one could.
    """
    ready = ready_condition(node) or {}
    if ready.get("status") != "True":
        return f"not ready: {ready.get('reason', 'NotReady')}: {ready.get('message', '')}".rstrip(": ")
    return "not ready: it is cordoned" if node.get("spec", {}).get("unschedulable") else ""


def _conditions(node: Json) -> list[Mapping[str, Any]]:
    return list(node.get("status", {}).get("conditions") or [])


def _named(pods: list[Json]) -> str:
    return ", ".join(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in pods[:3])
