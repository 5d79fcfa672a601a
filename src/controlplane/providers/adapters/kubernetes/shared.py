"""
Clusters of ours on a Kubernetes that many share: told whole, read back, and removed without a trace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.foreign import left_over
from controlplane.providers.adapters.kubernetes.policies import Policies, is_adopted
from controlplane.providers.clusters import ClusterList, ClusterSpec, ClusterView, Member, MemberView
from controlplane.providers.errors import Busy, NotFound, ProviderError, Refused
from controlplane.providers.kube.changing import change
from controlplane.providers.kube.client import Conflict, Kube
from controlplane.providers.kube.reading import instant
from controlplane.providers.kube.work.names import ADOPTED, CLUSTER, MEMBERS, PROJECT, TENANT, VERIFIED, Names, core
from controlplane.providers.kube.work.pool import ENDED, Pool, evict, jobs_by_node, wanted_gpus
from controlplane.providers.kube.work.queues import Queues
from controlplane.providers.kube.work.slicing import totals
from controlplane.providers.kube.work.walls import Part, Queueing, limit, namespace, outside, queue, walls
from controlplane.providers.machines import Check

log = logging.getLogger(__name__)
Json = dict[str, Any]
NOT_ENDED = ",".join(f"status.phase!={one}" for one in sorted(ENDED))
"""Selects pods."""
POLICY_KEPT_S = 60.0
"""How long a pod policy is believed to be there still."""
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
        self.policies = Policies(kube, names)
        self._lock = threading.Lock()
        self._queues = Queues(kube, config)
        self._nodes: dict[str, tuple[float, list[Json]]] = {}
        self._slices: dict[str, dict[str, int]] = {}
        """What quota and queue of a cluster were told last by this process."""
        self._told: dict[str, dict[str, str]] = {}
        """What the queue of a cluster was told last by this process that there is for it, where others' pods take some."""
        self._steered_at: dict[str, float] = {}
        """When this process last saw a cluster's pod policy."""

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
        marked = self.pool.marked(spec.cluster_id)
        space = self._kept_space(spec, marked)
        if space is None:
            self._refuse_foreign_space(spec)
        there = {one["metadata"]["name"]: one for one in marked}
        wanted = {one.ref: there.get(one.ref) or self.pool.read_free(spec.cluster_id, one.ref) for one in spec.members}
        kueue = self.kueue()
        slices = totals(wanted.values(), self._config)
        inside = [limit(self._names, spec, self._config, slices), *walls(self._names, spec, self._config)]
        if space is None:
            self._put([namespace(self._names, spec, self._config), *inside])
        else:
            self._remark(space, spec)
        for one in spec.members:
            self.pool.join(spec.cluster_id, one, wanted[one.ref], kept=self._names.kept(spec.cluster_id))
        if space is not None:
            self._enter(spec.cluster_id, space, inside)
        if kueue is not None:
            self._put(queue(self._names, spec.cluster_id, self._config, kueue, self._room(spec.cluster_id, wanted.values())))
        self._slices[spec.cluster_id] = slices
        self._let_go(spec.cluster_id, [node for ref, node in there.items() if ref not in wanted], move=space is not None)

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
        queues = () if kueue is None else queue(self._names, cluster_id, self._config, kueue, self._room(cluster_id, nodes))
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
        pods = self._pods(cluster_id)
        jobs = jobs_by_node(pods)
        views = [self._seen(node, jobs.get(node["metadata"]["name"], 0)) for node in nodes]
        checks = [_gpu_check(nodes, views)]
        if space["metadata"].get("deletionTimestamp"):
            checks.append(_stuck(space))
            return ClusterView(cluster_id, tuple(views), checks=tuple(checks))
        if is_adopted(space):
            self._tell_room(cluster_id, nodes, pods)
            checks.append(self._policy_check(cluster_id))
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
        if self._names.kept(cluster_id) or any(is_adopted(one) for one in [*nodes, *([] if space is None else [space])]):
            self.policies.remove(cluster_id)  # no pod comes into a namespace that is being removed
        self._let_go(cluster_id, nodes)
        self.remove_queue(cluster_id)

    def remove_queue(self, cluster_id: str) -> None:
        """
        Nothing of the cluster's queue is outside of its namespace.
        """
        kueue = self.kueue()
        for path in outside(self._names, cluster_id, kueue) if kueue else ():
            found = self._kube.find(path)
            if found is not None and self._names.marks(found, cluster_id):
                self._kube.delete(path, uid=found["metadata"]["uid"])

    def list_ids(self) -> ClusterList:
        """
        See `Clusters.list_clusters`. Quotas tell of clusters that were let go and into whose namespaces a late call wrote once more.
        """
        spaces = self._kube.list_all("/api/v1/namespaces", labels=self._names.selector())
        quotas = self._kube.list_all("/api/v1/resourcequotas", labels=self._names.selector())
        found = {one["metadata"]["labels"][CLUSTER] for one in [*spaces, *quotas, *self.pool.marked()]}
        return ClusterList(tuple(sorted(found)), complete=True)

    def _kept_space(self, spec: ClusterSpec, nodes: Iterable[Json]) -> Json | None:
        """
        The namespace that was there before us and was taken over; None for a cluster that was ordered. Raises Refused where it is gone: it
        is not made anew, for what it held is not ours to make.
        """
        told = [str((one["metadata"].get("annotations") or {}).get(ADOPTED, "")) for one in nodes]
        name = self._names.kept(spec.cluster_id) or next(filter(None, told), "")
        if not name:
            return None
        self._names.keep(spec.cluster_id, name)
        found = self._kube.find(f"/api/v1/namespaces/{name}")
        if found is None or not self._names.marks(found, spec.cluster_id):
            raise Refused(f"the namespace {name}, which was taken over, is gone", code="provider_namespace_gone")
        self._refuse_foreign_space(spec, found)
        return found

    def _enter(self, cluster_id: str, space: Json, inside: Iterable[Part]) -> None:
        """
        What is ours is in the namespace, the quota first: by it a call that came too late is found out. Raises Refused when it was let go
        meanwhile; then no policy sends its pods anywhere.
        """
        self._put(inside)
        self.policies.put(cluster_id, space["metadata"]["name"])
        after = self._kube.find(f"/api/v1/namespaces/{space['metadata']['name']}")
        if after is None or not self._names.marks(after, cluster_id):
            self.policies.remove(cluster_id)
            raise Refused(f"the namespace {space['metadata']['name']} was let go", code="provider_namespace_gone")

    def _remark(self, space: Json, spec: ClusterSpec) -> None:
        notes = {TENANT: spec.tenant_id, PROJECT: spec.project_id, MEMBERS: str(len(spec.members))}

        def marked(seen: Json) -> Json | None:
            if not self._names.marks(seen, spec.cluster_id):
                raise Refused(f"the namespace {seen['metadata']['name']} was let go", code="provider_namespace_gone")
            there = seen["metadata"].get("annotations") or {}
            return None if notes.items() <= there.items() else {"metadata": {"annotations": notes}}

        change(self._kube, f"/api/v1/namespaces/{space['metadata']['name']}", space, marked)

    def _room(self, cluster_id: str, nodes: Iterable[Json], pods: Iterable[Json] | None = None) -> dict[str, str]:
        """
        What the nodes have for jobs and services: where the namespace was there before us, what its other pods leave.
        """
        sums = self.pool.room(nodes)
        if not self._names.kept(cluster_id):
            return sums
        there = self._pods(cluster_id) if pods is None else pods
        return left_over(sums, (one for one in there if not self._names.marks(one, cluster_id)))

    def _policy_check(self, cluster_id: str) -> Check:
        """
        Whether pods of the namespace are sent to its nodes. That they are is believed for a while.
        """
        if time.monotonic() - self._steered_at.get(cluster_id, -POLICY_KEPT_S) < POLICY_KEPT_S:
            return Check("pod_policy", "passed")
        if not self.policies.is_there(cluster_id):
            words = "the pod policy is gone, so pods that start again find no node; any change of the cluster writes it anew"
            return Check("pod_policy", "failed", words)
        self._steered_at[cluster_id] = time.monotonic()
        return Check("pod_policy", "passed")

    def _tell_room(self, cluster_id: str, nodes: list[Json], pods: list[Json]) -> None:
        """
        The queue counts what is there now. What hinders that says nothing of the nodes, so nothing is raised.
        """
        try:
            kueue, sums = self.kueue(), self._room(cluster_id, nodes, pods)
            if kueue is not None and self._told.get(cluster_id) != sums:
                self._put(queue(self._names, cluster_id, self._config, kueue, sums))
                self._told[cluster_id] = sums
        except ProviderError as error:
            log.info("a queue was not told what is left", extra={"cluster_id": cluster_id, "code": error.code})

    def _refuse_foreign_space(self, spec: ClusterSpec, found: Json | None = None) -> None:
        found = found or self._kube.find(f"/api/v1/namespaces/{self._names.namespace(spec.cluster_id)}")
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

    def _let_go(self, cluster_id: str, nodes: list[Json], *, move: bool = False) -> None:
        """
        Nodes without pods of the cluster are free. Raises Busy while others have some; nothing new starts on those. `move`: pods that are
        not ours, which have no end of their own, are evicted from them.
        """
        if not nodes:
            return
        for node in nodes:
            self.pool.bar(node)
        pods = self._pods(cluster_id)
        held, refs = jobs_by_node(pods), {one["metadata"]["name"] for one in nodes}
        if move:
            strangers = (one for one in pods if not self._names.marks(one, cluster_id))
            evict(self._kube, [one for one in strangers if one.get("spec", {}).get("nodeName") in refs])
        for node in nodes:
            if node["metadata"]["name"] not in held:
                self.pool.leave(cluster_id, node)
        left = sorted(set(held) & refs)
        if left:
            raise Busy(f"pods still run on {', '.join(left[:5])}", retry_in_s=2.0, code="provider_members_in_use")

    def _seen(self, node: Json, jobs: int) -> MemberView:
        view = self.pool.view(node, jobs)
        if view.state == "up" and view.up_since is None:
            return replace(view, up_since=self.pool.keep_up_since(node, self.peer_now()))
        return view

    def _verify(self, space: Json, views: list[MemberView]) -> datetime | None:
        """
        When the cluster was first seen complete, once every member says since when it is up; None when somebody was faster.
        """
        if any(one.up_since is None for one in views):
            return None
        at = self.peer_now()
        kept = {"resourceVersion": space["metadata"]["resourceVersion"], "annotations": {VERIFIED: at.isoformat()}}
        try:
            self._kube.patch(f"/api/v1/namespaces/{space['metadata']['name']}", {"metadata": kept})
        except Conflict:
            return None
        return at

    def peer_now(self) -> datetime:
        """
        The server's time, as far as it told it.
        """
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
