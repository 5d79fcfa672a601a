"""
Namespaces that exist already: seen, taken over as they are, and let go again.

What is written is marks, on the Namespace and on its nodes, each for the version that was read; a pod policy; and what every cluster of
ours has besides: quota, network policies, rights, a queue. No pod is touched. At no moment is there a pod that could not start again: nodes
are labelled before pods are sent to that label, and barred for others only when the server was seen to send pods through the bar; letting
go goes the same way back. The Namespace is marked first and unmarked last: by its mark, whatever was left half done is found again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controlplane.providers.adapters.kubernetes import neighbours
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.directory import Directory
from controlplane.providers.adapters.kubernetes.leaving import Leaving
from controlplane.providers.adapters.kubernetes.marks import Mark
from controlplane.providers.adapters.kubernetes.nodes import SERVERS
from controlplane.providers.adapters.kubernetes.policies import is_adopted
from controlplane.providers.adapters.kubernetes.shared import NOT_ENDED, Shared
from controlplane.providers.adapters.kubernetes.standing import Shelf, Space, candidates, read_standing
from controlplane.providers.adapters.kubernetes.words import few, placed
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.kube.changing import change
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.memory import MACHINE, read
from controlplane.providers.kube.work.names import (
    ADOPTED,
    CLUSTER,
    MEMBERS,
    OWNER,
    PROJECT,
    TENANT,
    VERIFIED,
    Names,
    grouped,
    node_path,
    word,
)
from controlplane.providers.kube.work.walls import NETWORK, RBAC

Json = dict[str, Any]
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PATHS: Mapping[str, str] = {
    "networkpolicies": grouped(NETWORK, "networkpolicies"),
    "resourcequotas": "/api/v1/resourcequotas",
    "services": "/api/v1/services",
    "serviceaccounts": "/api/v1/serviceaccounts",
    "roles": grouped(RBAC, "roles"),
    "rolebindings": grouped(RBAC, "rolebindings"),
    "clusterrolebindings": grouped(RBAC, "clusterrolebindings"),
    "daemonsets": grouped("apps/v1", "daemonsets"),
    "limitranges": "/api/v1/limitranges",
}


class Taking:
    """
    The SupportsAdoption port.
    """

    def __init__(self, kube: Kube, names: Names, config: KubernetesConfig, shared: Shared, directory: Directory) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._shared = shared
        self._directory = directory
        self._policies = shared.policies
        self._leaving = Leaving(kube, names, shared)

    def list_standing(self) -> tuple[Standing, ...]:
        """
        See `SupportsAdoption.list_standing`. One list of each kind, however many namespaces there are.
        """
        spaces = self._kube.list_all("/api/v1/namespaces")
        shelf = self._nodes_and_pods()
        found = candidates(spaces, shelf, self._names)
        if not found:
            return ()
        shelf = self._filled(shelf)
        return tuple(read_standing(Space(self._names, self._config, shelf, one)) for one in found)

    def adopt(self, adoption: Adoption) -> None:
        """
        See `SupportsAdoption.adopt_cluster`. Everything is looked at before anything is written; pods and nodes, and the Namespace, once
        more after it. Busy while the server does not send pods to the nodes yet.
        """
        spec, path = adoption.spec, _path(adoption.ref)
        space = self._kube.find(path)
        if space is None or space["metadata"].get("uid") != adoption.uid:
            raise Refused(f"the namespace {adoption.ref} is gone, or another has its name", code="provider_cluster_changed")
        shelf = self._filled(self._nodes_and_pods())
        self._check(read_standing(Space(self._names, self._config, shelf, space, spec.cluster_id)), spec)
        nodes = {one["metadata"]["name"]: one for one in shelf.nodes}
        self._check_gpus(spec, nodes)
        self._mark(path, space, spec)
        self._names.keep(spec.cluster_id, adoption.ref)
        named = {one.ref: self._shared.pool.name(spec.cluster_id, one, nodes[one.ref], kept=adoption.ref) for one in spec.members}
        self._policies.put(spec.cluster_id, adoption.ref)
        self._policies.prove(spec.cluster_id, adoption.ref, there=True)
        for one in spec.members:
            self._shared.pool.join(spec.cluster_id, one, named[one.ref], kept=adoption.ref)
            self._hold(spec.cluster_id, one.ref, one.token)
        self._shared.apply(spec)
        self._check_after(path, adoption)

    def let_go(self, cluster_id: str) -> None:
        """
        See `SupportsAdoption.let_go`. Busy while pods of ours still end there, or the server still sends pods to the nodes.
        """
        space, nodes = self._directory.find(cluster_id), self._shared.pool.marked(cluster_id)
        if space is not None and not is_adopted(space):
            return
        name = self._where(cluster_id, nodes)
        there = self._kube.find(_path(name)) if name else None
        if there is not None:
            self._leaving.clear(cluster_id, name)
        nodes = [self._shared.pool.open(cluster_id, one) for one in nodes]
        self._policies.remove(cluster_id)
        if there is not None and not there["metadata"].get("deletionTimestamp"):
            self._policies.prove(cluster_id, name, there=False)
        self._shared.remove_queue(cluster_id)
        for node in nodes:
            self._unhold(cluster_id, node)
            self._shared.pool.leave(cluster_id, self._kube.get(node_path(node["metadata"]["name"])))
        if space is not None:
            self._unmark(space, cluster_id)
        self._directory.forget(cluster_id)

    def _where(self, cluster_id: str, nodes: Sequence[Json]) -> str:
        """
        The namespace that the cluster is in, or was: as it is known, as its nodes say, or as a quota says that a call wrote which came
        too late; empty for none.
        """
        told = [str((one["metadata"].get("annotations") or {}).get(ADOPTED, "")) for one in nodes]
        known = self._names.kept(cluster_id) or next(filter(None, told), "")
        if known:
            return known
        left = self._kube.list_all(PATHS["resourcequotas"], labels=self._names.selector(cluster_id))
        return str(left[0]["metadata"]["namespace"]) if left else ""

    def _nodes_and_pods(self) -> Shelf:
        nodes = self._kube.list_all("/api/v1/nodes", labels=self._config.node_selector or f"!{SERVERS}")
        pods = self._kube.list_all("/api/v1/pods", fields=NOT_ENDED)
        return Shelf(nodes, pods, steers=bool(self._policies.api()))

    def _filled(self, shelf: Shelf) -> Shelf:
        parts: dict[str, Sequence[Json]] = {kind: self._kube.list_all(path) for kind, path in PATHS.items()}
        kueue = self._shared.kueue()
        if kueue is not None:
            parts["localqueues"] = self._kube.list_all(grouped(kueue.api, "localqueues"))
        version = str(self._kube.get("/version").get("gitVersion") or "").removeprefix("v")
        return replace(shelf, parts=parts, version=version.partition("+")[0])

    def _check(self, standing: Standing, spec: ClusterSpec) -> None:
        if standing.obstacles:
            words = "; ".join(one.message for one in standing.obstacles)
            raise Refused(words[:1000], code=f"provider_{standing.obstacles[0].code}")
        there = {(one.ref, one.node_set) for one in standing.hosts}
        wanted = {(one.ref, one.node_set) for one in spec.members}
        if there != wanted:
            odd = sorted({ref for ref, _ in there ^ wanted})
            raise Refused(f"its nodes have changed: {few(odd)}", code="provider_cluster_changed")

    def _check_gpus(self, spec: ClusterSpec, nodes: Mapping[str, Json]) -> None:
        shown = {one.ref: self._shared.pool.gpus(nodes[one.ref]) for one in spec.members}
        odd = [f"{one.ref} has {shown[one.ref]} of {one.gpus}" for one in spec.members if shown[one.ref] != one.gpus]
        if odd:
            raise Refused(f"nodes have other GPUs than they are sold with: {few(odd)}", code="provider_gpus_differ")

    def _check_after(self, path: str, adoption: Adoption) -> None:
        """
        Nobody came to its nodes, and none of its pods to others', between the look and the bar; and it is ours still.
        """
        spec, refs = adoption.spec, {one.ref for one in adoption.spec.members}
        pods = self._kube.list_all("/api/v1/pods", fields=NOT_ENDED)
        mine = [one for one in pods if one["metadata"]["namespace"] == adoption.ref]
        astray = [placed(one) for one in mine if one.get("spec", {}).get("nodeName", "") not in {"", *refs}]
        guests = [
            placed(one)
            for one in pods
            if one["metadata"]["namespace"] != adoption.ref
            and one.get("spec", {}).get("nodeName") in refs
            and not neighbours.is_fixed(one)
        ]
        if astray or guests:
            words = f"pods came meanwhile: {few([*astray, *guests])}"
            raise Refused(words, code="provider_cluster_changed")
        after = self._kube.find(path)
        if after is None or not self._names.marks(after, spec.cluster_id):
            self.let_go(spec.cluster_id)
            raise Busy(f"the namespace {adoption.ref} was let go meanwhile", retry_in_s=2.0)

    def _mark(self, path: str, space: Json, spec: ClusterSpec) -> None:
        labels = self._names.labels(spec.cluster_id) | {ADOPTED: "true"}
        notes = {TENANT: spec.tenant_id, PROJECT: spec.project_id, MEMBERS: str(len(spec.members))}

        def marked(seen: Json) -> Json | None:
            there, kept = seen["metadata"].get("labels") or {}, seen["metadata"].get("annotations") or {}
            if CLUSTER in there and not self._names.marks(seen, spec.cluster_id):
                raise Refused(f"the namespace belongs to {there[CLUSTER]}", code="provider_cluster_held")
            if seen["metadata"].get("uid") != space["metadata"].get("uid") or seen["metadata"].get("deletionTimestamp"):
                raise Refused("the namespace is gone", code="provider_cluster_changed")
            if labels.items() <= there.items() and notes.items() <= kept.items():
                return None
            return {"metadata": {"labels": labels, "annotations": notes}}

        change(self._kube, path, space, marked)

    def _unmark(self, space: Json, cluster_id: str) -> None:
        def cleared(seen: Json) -> Json | None:
            if not self._names.marks(seen, cluster_id):
                return None
            notes = dict.fromkeys((TENANT, PROJECT, MEMBERS, VERIFIED))
            return {"metadata": {"labels": dict.fromkeys((CLUSTER, OWNER, ADOPTED)), "annotations": notes}}

        try:
            change(self._kube, _path(space["metadata"]["name"]), space, cleared)
        except NotFound:
            return  # its owner has removed it

    def _hold(self, cluster_id: str, ref: str, token: str) -> None:
        """
        The node remembers the tenancy as if it had been deployed for it.
        """
        at = self._shared.peer_now().isoformat()

        def held(seen: Json) -> Json | None:
            old = read(Mark, seen, self._names.deployment)
            if old is None:
                raise Refused(f"{ref} carries somebody else's mark in {MACHINE}", code="provider_held_by_other")
            ready = old.ready if old.alloc == token else ""
            mark = Mark(
                alloc=word(token, "token"), phase="deployed", cluster=cluster_id, ready=ready or at, qualified=old.qualified
            )
            return None if mark == old else {"metadata": {"annotations": {MACHINE: mark.text(self._names.deployment)}}}

        self._shared.pool.change(self._kube.get(node_path(ref)), held)

    def _unhold(self, cluster_id: str, node: Json) -> None:
        def cleared(seen: Json) -> Json | None:
            old = read(Mark, seen, self._names.deployment)
            if old is None or old.cluster != cluster_id:
                return None
            kept = Mark(qualified=old.qualified)
            return {"metadata": {"annotations": {MACHINE: None if kept == Mark() else kept.text(self._names.deployment)}}}

        self._shared.pool.change(node, cleared)


def _path(ref: str) -> str:
    """
    Where the namespace is. Raises Refused for what cannot be a namespace's name.
    """
    if not NAMESPACE.fullmatch(ref):
        raise Refused(f"not the name of a namespace: {ref[:80]!r}", code="provider_bad_name")
    return f"/api/v1/namespaces/{ref}"
