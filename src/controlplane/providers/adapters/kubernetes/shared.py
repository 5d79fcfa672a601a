"""
Clusters of ours on a Kubernetes that many share: told whole, read back, and removed without a trace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.clusters import ClusterList, ClusterSpec, ClusterView, Member, MemberView
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.kube.client import Conflict, Kube
from controlplane.providers.kube.reading import instant
from controlplane.providers.kube.work.names import CLUSTER, MEMBERS, TENANT, VERIFIED, Names, core
from controlplane.providers.kube.work.pool import ENDED, Pool, jobs_by_node, wanted_gpus
from controlplane.providers.kube.work.queues import Queues
from controlplane.providers.kube.work.slicing import totals
from controlplane.providers.kube.work.walls import Part, Queueing, limit, namespace, outside, queue, walls
from controlplane.providers.machines import Check

Json = dict[str, Any]
NOT_ENDED = ",".join(f"status.phase!={one}" for one in sorted(ENDED))
"""Selects pods."""
NODES_KEPT_S = 10.0
"""How long a cluster's nodes are remembered by those who need no more than a hint of them."""


class Shared:
    """
    The Clusters port.
    """

    def __init__(self, kube: Kube, names: Names, config: KubernetesConfig, now: Callable[[], datetime]) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._now = now
        self.pool = Pool(kube, names, config)
        self._lock = threading.Lock()
        self._queues = Queues(kube, config)
        self._nodes: dict[str, tuple[float, list[Json]]] = {}
        self._slices: dict[str, dict[str, int]] = {}
        """What quota and queue of a cluster were told last by this process."""

    def kueue(self) -> Queueing | None:
        """
        See `Ground.kueue`.
        """
        return self._queues.there()

    def settings(self, gpu_model: str = "") -> KubernetesConfig:
        """
        See `Ground.settings`. Whatever the GPUs are called, it is what the operator said.
        """
        del gpu_model
        return self._config

    def check(self, cluster_id: str, tenant_id: str) -> None:
        """
        See `Ground.check`.
        """
        notes = self.space(cluster_id)["metadata"].get("annotations") or {}
        if notes.get(TENANT) != tenant_id:
            raise Refused(f"{tenant_id} is not the tenant of {cluster_id}", code="provider_wrong_user")

    def mpi(self) -> bool:
        """
        See `Ground.mpi`.
        """
        return self._queues.launches()

    def space(self, cluster_id: str) -> Json:
        """
        The cluster's namespace. Raises NotFound when there is none that is ours.
        """
        found = self._kube.get(f"/api/v1/namespaces/{self._names.namespace(cluster_id)}")
        if not self._names.marks(found, cluster_id):
            raise NotFound(f"the namespace {found['metadata']['name']} is not ours")
        return found

    def nodes_now(self, cluster_id: str) -> list[Json]:
        """
        The cluster's nodes as the server tells them.
        """
        found = self.pool.marked(cluster_id)
        now = time.monotonic()
        with self._lock:
            self._nodes = {name: kept for name, kept in self._nodes.items() if now - kept[0] < NODES_KEPT_S} | {
                cluster_id: (now, found)
            }
        return found

    def nodes_lately(self, cluster_id: str) -> list[Json]:
        """
        The cluster's nodes as they were a few seconds ago; none when that is not known, or when they were changed through here since.
        """
        with self._lock:
            at, found = self._nodes.get(cluster_id, (-NODES_KEPT_S, []))
        return found if time.monotonic() - at < NODES_KEPT_S else []

    def apply(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`. Nodes are looked at before anything is made, so that a cluster that cannot be leaves nothing.
        """
        with self._lock:
            self._nodes.pop(spec.cluster_id, None)
        self._refuse_foreign_space(spec)
        there = {one["metadata"]["name"]: one for one in self.pool.marked(spec.cluster_id)}
        wanted = {one.ref: there.get(one.ref) or self.pool.read_free(spec.cluster_id, one.ref) for one in spec.members}
        kueue = self.kueue()
        slices = totals(wanted.values(), self._config)
        room = limit(self._names, spec, self._config, slices)
        self._put([namespace(self._names, spec, self._config), room, *walls(self._names, spec, self._config)])
        for one in spec.members:
            self.pool.join(spec.cluster_id, one, wanted[one.ref])
        if kueue is not None:
            self._put(queue(self._names, spec.cluster_id, self._config, kueue, self.pool.room(wanted.values())))
        self._slices[spec.cluster_id] = slices
        self._let_go(spec.cluster_id, [node for ref, node in there.items() if ref not in wanted])

    def admit_slices(self, cluster_id: str, nodes: list[Json]) -> None:
        """
        Quota and queue of the cluster know of the slices that its nodes have now; nothing is asked where they knew already.
        """
        slices = totals(nodes, self._config)
        if self._slices.get(cluster_id) == slices:
            return
        members = tuple(Member(one["metadata"]["name"], wanted_gpus(one) or 0, "") for one in nodes)
        spec = ClusterSpec(cluster_id, "", "", "", members)
        kueue = self.kueue()
        queues = () if kueue is None else queue(self._names, cluster_id, self._config, kueue, self.pool.room(nodes))
        self._put([limit(self._names, spec, self._config, slices), *queues])
        self._slices[cluster_id] = slices

    def observe(self, cluster_id: str) -> ClusterView:
        """
        See `Clusters.observe_cluster`. The first look that finds the cluster complete writes down when.
        """
        space = self._space_or_none(cluster_id)
        nodes = self.pool.marked(cluster_id)
        if space is None:
            return self._remains(cluster_id, nodes)
        jobs = jobs_by_node(self._pods(cluster_id))
        views = [self._seen(node, jobs.get(node["metadata"]["name"], 0)) for node in nodes]
        checks = [_gpu_check(nodes, views)]
        if space["metadata"].get("deletionTimestamp"):
            checks.append(_stuck(space))
            return ClusterView(cluster_id, tuple(views), checks=tuple(checks))
        notes = space["metadata"].get("annotations") or {}
        verified = instant(notes.get(VERIFIED))
        complete = notes.get(MEMBERS) == str(len(views)) and all(one.state == "up" for one in views)
        if verified is None and complete and views and checks[0].result == "passed":
            verified = self._verify(space, views)
        return ClusterView(cluster_id, tuple(views), verified_at=verified, checks=tuple(checks))

    def delete(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`. Nodes keep their marks until the last of the tenant's pods has left them.
        """
        space = self._space_or_none(cluster_id)
        nodes = self.pool.marked(cluster_id)
        if space is not None and not space["metadata"].get("deletionTimestamp"):
            self._kube.delete(f"/api/v1/namespaces/{space['metadata']['name']}", uid=space["metadata"]["uid"])
        self._let_go(cluster_id, nodes)
        kueue = self.kueue()
        for path in outside(self._names, cluster_id, kueue) if kueue else ():
            found = self._kube.find(path)
            if found is not None and self._names.marks(found, cluster_id):
                self._kube.delete(path, uid=found["metadata"]["uid"])

    def list_ids(self) -> ClusterList:
        """
        See `Clusters.list_clusters`.
        """
        spaces = self._kube.list_all("/api/v1/namespaces", labels=self._names.selector())
        found = {one["metadata"]["labels"][CLUSTER] for one in [*spaces, *self.pool.marked()]}
        return ClusterList(tuple(sorted(found)), complete=True)

    def _refuse_foreign_space(self, spec: ClusterSpec) -> None:
        found = self._kube.find(f"/api/v1/namespaces/{self._names.namespace(spec.cluster_id)}")
        if found is None:
            return
        tenant = (found["metadata"].get("annotations") or {}).get(TENANT)
        if not self._names.marks(found, spec.cluster_id) or tenant not in {None, spec.tenant_id}:
            raise Refused(f"the namespace {found['metadata']['name']} is somebody else's", code="provider_namespace_held")
        if found["metadata"].get("deletionTimestamp"):
            raise Busy(f"the namespace is still being removed: {_stuck(found).detail}", code="provider_namespace_terminating")

    def _space_or_none(self, cluster_id: str) -> Json | None:
        try:
            return self.space(cluster_id)
        except NotFound:
            return None

    def _pods(self, cluster_id: str) -> list[Json]:
        """
        The cluster's pods that are not over: those that are stay for a day, and may be more than one call has time for.
        """
        return self._kube.list_all(core(self._names.namespace(cluster_id), "pods"), fields=NOT_ENDED)

    def _put(self, parts: Iterable[Part]) -> None:
        for one in parts:
            self._kube.apply(one.path, one.body)

    def _let_go(self, cluster_id: str, nodes: list[Json]) -> None:
        """
        Nodes without pods of the cluster are free. Raises Busy while others have some; nothing new starts on those.
        """
        if not nodes:
            return
        for node in nodes:
            self.pool.bar(node)
        held = jobs_by_node(self._pods(cluster_id))
        for node in nodes:
            if node["metadata"]["name"] not in held:
                self.pool.leave(cluster_id, node)
        left = sorted(set(held) & {one["metadata"]["name"] for one in nodes})
        if left:
            raise Busy(f"pods still run on {', '.join(left[:5])}", retry_in_s=2.0, code="provider_members_in_use")

    def _seen(self, node: Json, jobs: int) -> MemberView:
        view = self.pool.view(node, jobs)
        if view.state == "up" and view.up_since is None:
            return replace(view, up_since=self.pool.keep_up_since(node, self._peer_now()))
        return view

    def _verify(self, space: Json, views: list[MemberView]) -> datetime | None:
        """
        When the cluster was first seen complete, once every member says since when it is up; None when somebody was faster.
        """
        if any(one.up_since is None for one in views):
            return None
        at = self._peer_now()
        kept = {"resourceVersion": space["metadata"]["resourceVersion"], "annotations": {VERIFIED: at.isoformat()}}
        try:
            self._kube.patch(f"/api/v1/namespaces/{space['metadata']['name']}", {"metadata": kept})
        except Conflict:
            return None
        return at

    def _peer_now(self) -> datetime:
        return self._kube.seen_at or self._now()

    def _remains(self, cluster_id: str, nodes: list[Json]) -> ClusterView:
        """
        What is left of a cluster without a namespace. Raises NotFound for nothing.
        """
        kueue = self.kueue()
        left = [path for path in (outside(self._names, cluster_id, kueue) if kueue else ()) if self._kube.find(path) is not None]
        if not nodes and not left:
            raise NotFound(f"nothing of {cluster_id} is here")
        words = [f"{path.rsplit('/', 2)[1]} is still there" for path in left]
        words += [f"{len(nodes)} nodes still carry its marks"] if nodes else []
        return ClusterView(
            cluster_id, tuple(self.pool.view(one, 0) for one in nodes), checks=(Check("removed", "failed", "; ".join(words)),)
        )


def _gpu_check(nodes: list[Json], views: list[MemberView]) -> Check:
    """
    Whether every node gives pods as many GPUs as it was sold with: fewer is a failed handover, not a smaller node.
    """
    pairs = [(view.ref, view.gpus, wanted_gpus(node)) for node, view in zip(nodes, views, strict=True)]
    if any(seen is None or wanted is None for _, seen, wanted in pairs):
        return Check("gpu_count", "not_measured", "a node does not tell its GPUs yet")
    wrong = [f"{ref} has {seen} of {wanted}" for ref, seen, wanted in pairs if seen != wanted]
    return Check("gpu_count", "failed" if wrong else "passed", "; ".join(wrong[:10]))


def _stuck(space: Json) -> Check:
    """
    What keeps a namespace from going, in the server's words.
    """
    conditions = space.get("status", {}).get("conditions") or []
    said = [str(one.get("message", "")) for one in conditions if one.get("status") == "True"]
    since = space["metadata"].get("deletionTimestamp", "")
    return Check(
        "removed", "failed", f"terminating since {since}: " + ("; ".join(filter(None, said)) or "its objects are being removed")
    )
