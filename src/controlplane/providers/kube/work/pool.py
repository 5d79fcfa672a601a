"""
Nodes of a cluster of ours: marked by a label, kept from others by a taint, and never taken from whoever holds them.

A node's taints are one list that many write, so a node is changed by a merge patch that names the version it was read at: whoever comes
second reads again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from controlplane.providers.clusters import Member, MemberState, MemberView
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.gpus import GpuKind
from controlplane.providers.kube.changing import Edit, change
from controlplane.providers.kube.client import FIELD_MANAGER, Conflict, Kube
from controlplane.providers.kube.reading import instant, ready_condition
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.devices import Devices, fits, usable
from controlplane.providers.kube.work.names import (
    ADOPTED,
    ALLOCATION,
    CLUSTER,
    DRAIN,
    GPUS,
    LEAVING,
    OWNER,
    TOKEN,
    UP_SINCE,
    Names,
    core,
    node_path,
)
from controlplane.providers.kube.work.quantities import amount
from controlplane.providers.kube.work.slicing import is_partitioned, is_slice, totals, whole_gpus

Json = dict[str, Any]
"""How often a node is read anew when somebody else changes it at the same time."""
ENDED = frozenset({"Succeeded", "Failed"})
KEPT = (ALLOCATION, GPUS, UP_SINCE, ADOPTED)
_MAX_REASON = 200


class Pool:
    """
    The nodes of one Kubernetes.
    """

    def __init__(self, kube: Kube, names: Names, config: WorkConfig, devices: Devices | None = None) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self.devices = devices or Devices(kube, config)

    def gpus(self, node: Json) -> int | None:
        """
        GPUs that pods can have on the node, as wholes or in slices; None when it does not tell yet.
        """
        if is_partitioned(node, self._config) and ready_condition(node) is not None:
            return whole_gpus(node, self._config)
        if self._config.gpus_by != "dra" or ready_condition(node) is None:
            return gpus_of(node, self._config.gpu_resource)
        return sum(1 for one in self.devices.on(node["metadata"]["name"]) if usable(one))

    def all_gpus(self, node: Json) -> str:
        """
        GPUs that the node has, usable or not.
        """
        if self._config.gpus_by == "dra":
            return str(len(self.devices.on(node["metadata"]["name"])))
        if is_partitioned(node, self._config):
            return str(whole_gpus(node, self._config) or 0)
        return str((node.get("status", {}).get("capacity") or {}).get(self._config.gpu_resource, "0"))

    def gpus_like(self, node: Json, kind: GpuKind | None, gpu_model: str, settings: WorkConfig) -> int:
        """
        How many of the node's whole GPUs are such as are wanted, by the names that the settings have for models.
        """
        if settings.gpus_by != "dra":
            return gpus_of(node, settings.gpu_resource) or 0
        return sum(1 for one in self.devices.on(node["metadata"]["name"]) if fits(one, kind, gpu_model, settings))

    def room(self, nodes: Iterable[Json]) -> dict[str, str]:
        """
        What the nodes can give to pods together, for every resource that a job of ours or an operator's pod may ask for.
        """
        kept = list(nodes)
        sums = {name: Decimal(0) for name in ("cpu", "memory", "ephemeral-storage", self._config.gpu_resource)}
        sums |= {name: Decimal(0) for name in totals(kept, self._config)}
        for node in kept:
            told = dict(node.get("status", {}).get("allocatable") or {})
            if self._config.gpus_by == "dra":
                told[self._config.gpu_resource] = str(self.gpus(node) or 0)
            for name in sums:
                sums[name] += amount(str(told.get(name, "0")))
        return {name: str(int(total)) for name, total in sums.items()}

    def marked(self, cluster_id: str = "") -> list[Json]:
        """
        Every node that carries our marks, of one cluster or of all.
        """
        return self._kube.list_all("/api/v1/nodes", labels=self._names.selector(cluster_id))

    def read_free(self, cluster_id: str, ref: str) -> Json:
        """
        The node, which the cluster may have. Raises Refused for another's, or for none.
        """
        try:
            node = self._kube.get(node_path(ref))
        except NotFound as error:
            raise Refused(f"there is no node {ref}", code="provider_no_such_node") from error
        self._refuse_held(node, cluster_id)
        return node

    def join(self, cluster_id: str, member: Member, node: Json, *, kept: str = "") -> None:
        """
        The node is the cluster's, `kept` being its namespace where that was taken over. Raises Refused when it is another's, Busy while
        pods of others hold its GPUs.
        """
        if not self._names.marks(node, cluster_id):
            self._refuse_used(member.ref)
        self.change(node, lambda seen: self._joined(cluster_id, member, seen, kept))

    def name(self, cluster_id: str, member: Member, node: Json, *, kept: str) -> Json:
        """
        The node, which pods of the namespace `kept` are on already, carries the cluster's labels; others' pods may still start on it.
        Raises Refused when it is another's.
        """
        facts, labels = _facts(member, kept), self._names.labels(cluster_id)

        def named(seen: Json) -> Json | None:
            self._refuse_held(seen, cluster_id)
            there = _annotations(seen)
            if self._names.marks(seen, cluster_id) and facts.items() <= there.items():
                return None
            anew: dict[str, str | None] = {UP_SINCE: None} if there.get(ALLOCATION) != member.token else {}
            patch = _annotated(seen, {**facts, **anew})
            patch["metadata"]["labels"] = labels
            return patch

        return self.change(node, named)

    def open(self, cluster_id: str, node: Json) -> Json:
        """
        The node, still labelled as the cluster's, is barred for nobody by us.
        """

        def opened(seen: Json) -> Json | None:
            taints = seen.get("spec", {}).get("taints") or []
            foreign = _foreign_taints(seen)
            if not self._names.marks(seen, cluster_id) or (len(foreign) == len(taints) and not drained_by_us(seen)):
                return None
            patch = _annotated(seen, {DRAIN: None}) | {"spec": {"taints": foreign or None}}
            if drained_by_us(seen):
                patch["spec"]["unschedulable"] = None
            return patch

        return self.change(node, opened)

    def bar(self, node: Json) -> None:
        """
        No new pod starts on the node, which is to leave.
        """
        self.change(node, _barred)

    def unbar(self, node: Json) -> None:
        """
        Pods may start on the node again.
        """
        self.change(node, _unbarred)

    def is_held(self, node: Json) -> bool:
        """
        Whether the node carries the mark of a cluster, whoever's it is.
        """
        taints = node.get("spec", {}).get("taints") or []
        return CLUSTER in (node["metadata"].get("labels") or {}) or any(one.get("key") == CLUSTER for one in taints)

    def asks_gpus(self, pod: Json) -> bool:
        """
        Whether one of the pod's containers has GPUs of its own, or the pod claims devices, whatever they are.
        """
        if pod.get("spec", {}).get("resourceClaims"):
            return True
        containers = pod.get("spec", {}).get("containers") or []
        asked = [name for one in containers for name in ((one.get("resources") or {}).get("limits") or {})]
        return any(name == self._config.gpu_resource or is_slice(name, self._config) for name in asked)

    def leave(self, cluster_id: str, node: Json) -> None:
        """
        Nothing of ours is on the node; a cordon of an administrator is.
        """

        def cleared(seen: Json) -> Json | None:
            if not self._names.marks(seen, cluster_id):
                return None
            patch = _annotated(seen, dict.fromkeys((*KEPT, DRAIN)))
            patch["metadata"]["labels"] = {CLUSTER: None, OWNER: None}
            patch["spec"] = {"taints": _foreign_taints(seen) or None}
            if drained_by_us(seen):
                patch["spec"]["unschedulable"] = None
            return patch

        self.change(node, cleared)

    def drain(self, cluster_id: str, ref: str, reason: str) -> None:
        """
        The node is cordoned with our reason, unless it is cordoned already. Raises NotFound when it is not the cluster's.
        """

        def cordoned(seen: Json) -> Json | None:
            if seen.get("spec", {}).get("unschedulable"):
                return None
            return _annotated(seen, {DRAIN: reason[:_MAX_REASON]}) | {"spec": {"unschedulable": True}}

        self.change(self._member(cluster_id, ref), cordoned)

    def undrain(self, cluster_id: str, ref: str) -> None:
        """
        A cordon of ours is lifted; an administrator's stays. Raises NotFound when the node is not the cluster's.
        """

        def lifted(seen: Json) -> Json | None:
            if DRAIN not in _annotations(seen):
                return None
            spec = {"unschedulable": None} if drained_by_us(seen) else {}
            return _annotated(seen, {DRAIN: None}) | {"spec": spec}

        self.change(self._member(cluster_id, ref), lifted)

    def keep_up_since(self, node: Json, at: datetime) -> datetime | None:
        """
        The node says since when it is up; None when somebody changed it meanwhile: then a later look does it.
        """
        try:
            self._kube.patch(_path(node), _annotated(node, {UP_SINCE: at.isoformat()}))
        except Conflict:
            return None
        return at

    def view(self, node: Json, jobs: int) -> MemberView:
        """
        The node in the port's words.
        """
        state = state_of(node, jobs)
        kept = _annotations(node).get(UP_SINCE, "")
        return MemberView(
            ref=node["metadata"]["name"],
            state=state,
            gpus=self.gpus(node),
            jobs=jobs,
            reason=self._reason(node, state),
            drained_by_us=drained_by_us(node),
            up_since=instant(kept),
        )

    def _member(self, cluster_id: str, ref: str) -> Json:
        node = self._kube.get(node_path(ref))
        if not self._names.marks(node, cluster_id):
            raise NotFound(f"{ref} is not a member of {cluster_id}")
        return node

    def _joined(self, cluster_id: str, member: Member, seen: Json, came_as: str) -> Json | None:
        self._refuse_held(seen, cluster_id)
        taint = {"key": CLUSTER, "value": cluster_id, "effect": "NoSchedule"}
        facts = _facts(member, came_as)
        kept = _annotations(seen)
        taints = seen.get("spec", {}).get("taints") or []
        barred = any(one.get("key") == LEAVING for one in taints)
        if (
            self._names.marks(seen, cluster_id)
            and taint in taints
            and not barred
            and {key: kept.get(key) for key in facts} == facts
        ):
            return None
        anew: dict[str, str | None] = {UP_SINCE: None} if kept.get(ALLOCATION) != member.token else {}
        patch = _annotated(seen, {**facts, **anew})
        patch["metadata"]["labels"] = self._names.labels(cluster_id)
        return patch | {"spec": {"taints": [*_foreign_taints(seen), taint]}}

    def _refuse_held(self, node: Json, cluster_id: str) -> None:
        labels = node["metadata"].get("labels") or {}
        if self.is_held(node) and not self._names.marks(node, cluster_id):
            raise Refused(
                f"{node['metadata']['name']} belongs to {labels.get(CLUSTER, 'another cluster')}", code="provider_node_held"
            )

    def _refuse_used(self, ref: str) -> None:
        pods = self._kube.list_all("/api/v1/pods", fields=f"spec.nodeName={ref}")
        users = [one["metadata"]["name"] for one in pods if not ended(one) and self.asks_gpus(one)]
        if users:
            raise Busy(
                f"{ref} still runs pods of others with GPUs: {', '.join(users[:3])}", retry_in_s=30.0, code="provider_node_used"
            )

    def change(self, node: Json, edit: Edit) -> Json:
        """
        The node with the edit's patch on its latest version, or as it was where there was nothing to change.
        """
        return change(self._kube, _path(node), node, edit)

    def _reason(self, node: Json, state: MemberState) -> str:
        if state in {"down", "joining"}:
            ready = ready_condition(node) or {}
            return f"{ready.get('reason', 'NotReady')}: {ready.get('message', '')}".rstrip(": ")
        if not node.get("spec", {}).get("unschedulable"):
            return "leaves its cluster" if state != "up" else ""
        notes = _annotations(node)
        if drained_by_us(node):
            return str(notes[DRAIN])
        said = notes.get(self._config.cordon_reason, "") if self._config.cordon_reason else ""
        return said or f"cordoned by {' and '.join(_cordoners(node)) or 'somebody'}"


def state_of(node: Json, jobs: int) -> MemberState:
    """
    Where the node stands; dead goes before cordoned.
    """
    ready = ready_condition(node)
    if ready is None:
        return "joining"
    if ready.get("status") != "True":
        return "down"
    barred = any(one.get("key") == LEAVING for one in node.get("spec", {}).get("taints") or [])
    if node.get("spec", {}).get("unschedulable") or barred:
        return "draining" if jobs else "drained"
    return "up"


def gpus_of(node: Json, resource: str) -> int | None:
    """
    GPUs that pods can have; None when the node does not tell yet.
    """
    allocatable = node.get("status", {}).get("allocatable")
    if not isinstance(allocatable, Mapping) or ready_condition(node) is None:
        return None
    told = str(allocatable.get(resource, "0"))
    return int(told) if told.isdecimal() else None


def wanted_gpus(node: Json) -> int | None:
    """
    GPUs that the node was sold with.
    """
    kept = _annotations(node).get(GPUS, "")
    return int(kept) if kept.isdecimal() else None


def drained_by_us(node: Json) -> bool:
    """
    Whether the cordon is ours: our reason is on it, and the server says that we set it. Whoever uncordons and cordons again owns it.
    """
    cordoned = bool(node.get("spec", {}).get("unschedulable")) and DRAIN in _annotations(node)
    return cordoned and FIELD_MANAGER in _cordoners(node)


def ended(pod: Json) -> bool:
    """
    Whether none of the pod's processes runs any more.
    """
    return pod.get("status", {}).get("phase") in ENDED


def jobs_by_node(pods: Iterable[Json]) -> dict[str, int]:
    """
    How many jobs run on each node.
    """
    tokens: dict[str, set[str]] = {}
    for pod in pods:
        ref = pod.get("spec", {}).get("nodeName")
        if ref and not ended(pod):
            name = (pod["metadata"].get("labels") or {}).get(TOKEN) or pod["metadata"]["name"]
            tokens.setdefault(ref, set()).add(name)
    return {ref: len(names) for ref, names in tokens.items()}


def evict(kube: Kube, pods: Iterable[Json]) -> None:
    """
    The pods are asked to end, as their budgets allow. Raises Busy for one whose budget does not.
    """
    for pod in pods:
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            continue
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "deleteOptions": {"preconditions": {"uid": meta["uid"]}},
        }
        try:
            kube.create(core(meta["namespace"], "pods", f"{meta['name']}/eviction"), body)
        except NotFound:
            continue


def _facts(member: Member, kept: str) -> dict[str, str]:
    return {ALLOCATION: member.token, GPUS: str(member.gpus)} | ({ADOPTED: kept} if kept else {})


def _cordoners(node: Json) -> list[str]:
    fields = node["metadata"].get("managedFields") or []
    return [one.get("manager", "") for one in fields if "f:unschedulable" in ((one.get("fieldsV1") or {}).get("f:spec") or {})]


def _barred(seen: Json) -> Json | None:
    taints = seen.get("spec", {}).get("taints") or []
    if any(one.get("key") == LEAVING for one in taints):
        return None
    return _annotated(seen, {}) | {"spec": {"taints": [*_bare(taints), {"key": LEAVING, "effect": "NoSchedule"}]}}


def _unbarred(seen: Json) -> Json | None:
    taints = seen.get("spec", {}).get("taints") or []
    kept = [one for one in taints if one.get("key") != LEAVING]
    return None if len(kept) == len(taints) else _annotated(seen, {}) | {"spec": {"taints": _bare(kept) or None}}


def _foreign_taints(node: Json) -> list[Json]:
    return _bare(one for one in node.get("spec", {}).get("taints") or [] if one.get("key") not in {CLUSTER, LEAVING})


def _bare(taints: Iterable[Json]) -> list[Json]:
    return [dict(one) for one in taints]


def _annotated(node: Json, annotations: Mapping[str, str | None]) -> Json:
    """
    A patch of the annotations that holds only for this version of the node.
    """
    return {"metadata": {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": dict(annotations)}}


def _annotations(node: Json) -> Mapping[str, str]:
    kept: Mapping[str, str] = node["metadata"].get("annotations") or {}
    return kept


def _path(node: Json) -> str:
    return node_path(node["metadata"]["name"])
