"""
Marks on a Kubernetes that stood before it was ours: an object that says whose it is, and labels on its nodes.

The object is written first and removed last: by it, whatever was left half done is found again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import NotFound, Refused
from controlplane.providers.kube.changing import change
from controlplane.providers.kube.client import Exists, Kube
from controlplane.providers.kube.work.names import ALLOCATION, CLUSTER, OWNER, Names, core, node_path

Json = dict[str, Any]
SYSTEM = "kube-system"
MARK = core(SYSTEM, "configmaps", "controlplane-cluster")
"""Where the object stands: one name for all installations, so two of them cannot both have the cluster."""
LEAVING = "controlplane.internal/leaving"
"""Annotation of nodes that we have cordoned, as in clusters that we have set up."""
ASKED = "asked"


@dataclass(frozen=True, slots=True)
class Whose:
    """
    What the object says.
    """

    cluster_id: str
    """As which cluster of ours it was taken over."""
    tenant_id: str
    """Whose."""


class OwnMarks:
    """
    The marks of one Kubernetes.
    """

    def __init__(self, kube: Kube, names: Names) -> None:
        self._kube = kube
        self._names = names

    def find(self) -> Json | None:
        """
        The object as it is; None where nobody has taken the cluster.
        """
        return self._kube.find(MARK)

    def whose(self) -> Whose | None:
        """
        As what of ours it was taken over; None for nothing of ours.
        """
        found = self.find()
        labels = labels_of(found or {})
        if found is None or labels.get(OWNER) != self._names.deployment or CLUSTER not in labels:
            return None
        return Whose(labels[CLUSTER], str((found.get("data") or {}).get("tenant", "")))

    def check(self, cluster_id: str) -> Whose:
        """
        What the object says. Raises NotFound where it does not speak of the cluster.
        """
        found = self.whose()
        if found is None or found.cluster_id != cluster_id:
            raise NotFound(f"{cluster_id} is not the cluster that this Kubernetes is")
        return found

    def take(self, spec: ClusterSpec) -> None:
        """
        The object says that the cluster is this one. Raises Refused where it is another's.
        """
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": MARK.rsplit("/", 1)[1], "namespace": SYSTEM, "labels": self._names.labels(spec.cluster_id)},
            "data": {"tenant": spec.tenant_id, "project": spec.project_id},
        }
        try:
            self._kube.create(core(SYSTEM, "configmaps"), body)
        except Exists:
            if not self._names.marks(self.find() or {}, spec.cluster_id):
                raise Refused("somebody else has taken it over meanwhile", code="provider_marked_already") from None

    def give_up(self, cluster_id: str) -> None:
        """
        Nobody says any more that it is this cluster.
        """
        found = self.find()
        if found is not None and self._names.marks(found, cluster_id):
            self._kube.delete(MARK, uid=str(found["metadata"]["uid"]))

    def nodes(self, cluster_id: str) -> list[Json]:
        """
        The nodes with the cluster's marks.
        """
        return self._kube.list_all("/api/v1/nodes", labels=self._names.selector(cluster_id))

    def mark(self, cluster_id: str, node: Json, token: str) -> None:
        """
        The node is the cluster's for this allocation, and a cordon of ours is lifted.
        """

        def marked(seen: Json) -> Json | None:
            if self._names.marks(seen, cluster_id) and notes_of(seen).get(ALLOCATION) == token and LEAVING not in notes_of(seen):
                return None
            patch: Json = {"metadata": {"labels": self._names.labels(cluster_id), "annotations": {ALLOCATION: token}}}
            return _let_in(seen, patch)

        change(self._kube, node_path(name_of(node)), node, marked)

    def unmark(self, cluster_id: str, node: Json) -> None:
        """
        The node has no mark of the cluster, and a cordon of ours is lifted.
        """

        def bare(seen: Json) -> Json | None:
            if not self._names.marks(seen, cluster_id):
                return None
            return _let_in(seen, {"metadata": {"labels": {CLUSTER: None, OWNER: None}, "annotations": {ALLOCATION: None}}})

        change(self._kube, node_path(name_of(node)), node, bare)

    def bar(self, node: Json) -> None:
        """
        No new pod comes to the node, and it says that we wanted that.
        """

        def barred(seen: Json) -> Json | None:
            if LEAVING in notes_of(seen) and seen.get("spec", {}).get("unschedulable"):
                return None
            return {"metadata": {"annotations": {LEAVING: ASKED}}, "spec": {"unschedulable": True}}

        change(self._kube, node_path(name_of(node)), node, barred)


def _let_in(seen: Json, patch: Json) -> Json:
    """
    The patch, and no cordon of ours; somebody else's stays.
    """
    if LEAVING not in notes_of(seen):
        return patch
    notes = {**patch["metadata"]["annotations"], LEAVING: None}
    return {"metadata": {**patch["metadata"], "annotations": notes}, "spec": {"unschedulable": None}}


def name_of(thing: Json) -> str:
    """
    The object's name.
    """
    return str(thing["metadata"]["name"])


def labels_of(thing: Json) -> Mapping[str, str]:
    """
    The object's labels.
    """
    found: Mapping[str, str] = thing.get("metadata", {}).get("labels") or {}
    return found


def notes_of(thing: Json) -> Mapping[str, str]:
    """
    The object's annotations.
    """
    found: Mapping[str, str] = thing.get("metadata", {}).get("annotations") or {}
    return found
