"""
Clusters that exist already: seen, taken over as they are, and let go again.

What is written is marks, on the Cluster and on its hosts, by merge patches that name the version that was read. The topology is not
touched, so no Machine is replaced. The Cluster is marked first and unmarked last: by its mark, whatever was left half done is found again.
"""

from __future__ import annotations

from typing import Any

from controlplane.providers.adapters.clusterapi import classes
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.directory import Directory
from controlplane.providers.adapters.clusterapi.hosts import Hosts
from controlplane.providers.adapters.clusterapi.names import (
    ADOPTED,
    CLUSTER,
    MEMBERS,
    OWNER,
    PROJECT,
    TENANT,
    VERIFIED,
    Names,
    labels_of,
    notes_of,
    plain,
)
from controlplane.providers.adapters.clusterapi.standing import Shelf, read_standing, workers_of
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.kube.changing import change
from controlplane.providers.kube.client import Kube

Json = dict[str, Any]


class Taking:
    """
    The SupportsAdoption port.
    """

    def __init__(self, kube: Kube, names: Names, config: ClusterApiConfig, hosts: Hosts, directory: Directory) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._hosts = hosts
        self._directory = directory

    def list_standing(self) -> tuple[Standing, ...]:
        """
        See `SupportsAdoption.list_standing`.
        """
        clusters = self._list("clusters")
        others = [one for one in clusters if labels_of(one).get(OWNER) != self._names.deployment or CLUSTER not in labels_of(one)]
        if not others:
            return ()
        shelf = self._shelf()
        return tuple(
            read_standing(one, shelf, self._config) for one in sorted(others, key=lambda one: str(one["metadata"]["name"]))
        )

    def adopt(self, adoption: Adoption) -> None:
        """
        See `SupportsAdoption.adopt_cluster`. Everything is looked at before anything is written, and the Cluster once more after it.
        """
        spec, path = adoption.spec, self._directory.path(plain(adoption.ref))
        cluster = self._kube.find(path)
        if cluster is None or cluster["metadata"].get("uid") != adoption.uid:
            raise Refused(f"the Cluster {adoption.ref} is gone, or another has its name", code="provider_cluster_changed")
        shelf = self._shelf()
        self._check(read_standing(cluster, shelf, self._config, spec.cluster_id), spec)
        hosts = {one.ref: one.host for one in workers_of(adoption.ref, shelf) if one.host is not None}
        self._mark(path, cluster, spec)
        for one in spec.members:
            self._hosts.take(spec.cluster_id, one, hosts[one.ref], adoption.ref)
        after = self._kube.find(path)
        if after is None or not self._names.marks(after, spec.cluster_id):
            for host in self._hosts.marked(spec.cluster_id):
                self._hosts.untake(spec.cluster_id, host)
            raise Busy(f"the Cluster {adoption.ref} was let go meanwhile", retry_in_s=2.0)
        self._directory.find(spec.cluster_id)

    def let_go(self, cluster_id: str) -> None:
        """
        See `SupportsAdoption.let_go`.
        """
        cluster = self._directory.find(cluster_id)
        if cluster is not None and ADOPTED not in notes_of(cluster):
            return
        for host in self._hosts.marked(cluster_id):
            self._hosts.untake(cluster_id, host)
        if cluster is not None:
            self._unmark(cluster, cluster_id)
        self._directory.forget(cluster_id)

    def _check(self, standing: Standing, spec: ClusterSpec) -> None:
        if standing.obstacles:
            words = "; ".join(one.message for one in standing.obstacles)
            raise Refused(words[:1000], code=f"provider_{standing.obstacles[0].code}")
        there = {(one.ref, one.node_set) for one in standing.hosts}
        wanted = {(one.ref, one.node_set) for one in spec.members}
        if there != wanted:
            odd = sorted({ref for ref, _ in there ^ wanted})
            raise Refused(f"its workers have changed: {', '.join(odd)}", code="provider_cluster_changed")
        types = {one.name: one.instance_types for one in standing.sets}
        if any(one.instance_type not in types[one.node_set] for one in spec.members):
            raise Refused("its machine classes have changed", code="provider_cluster_changed")
        if spec.version != standing.version:
            raise Refused(f"it has Kubernetes {standing.version} by now", code="provider_cluster_changed")

    def _mark(self, path: str, cluster: Json, spec: ClusterSpec) -> None:
        sets = ",".join(sorted(one["name"] for one in cluster["spec"]["topology"]["workers"]["machineDeployments"]))
        labels = self._names.labels(spec.cluster_id)
        notes = {TENANT: spec.tenant_id, PROJECT: spec.project_id, MEMBERS: str(len(spec.members)), ADOPTED: sets}

        def marked(seen: Json) -> Json | None:
            if CLUSTER in labels_of(seen) and not self._names.marks(seen, spec.cluster_id):
                raise Refused(f"the Cluster belongs to {labels_of(seen)[CLUSTER]}", code="provider_cluster_held")
            if seen["metadata"].get("uid") != cluster["metadata"].get("uid") or seen["metadata"].get("deletionTimestamp"):
                raise Refused("the Cluster is gone", code="provider_cluster_changed")
            if labels.items() <= labels_of(seen).items() and notes.items() <= notes_of(seen).items():
                return None
            return {"metadata": {"labels": labels, "annotations": notes}}

        change(self._kube, path, cluster, marked)

    def _unmark(self, cluster: Json, cluster_id: str) -> None:
        def cleared(seen: Json) -> Json | None:
            if not self._names.marks(seen, cluster_id):
                return None
            notes = dict.fromkeys((TENANT, PROJECT, MEMBERS, VERIFIED, ADOPTED))
            return {"metadata": {"labels": dict.fromkeys((CLUSTER, OWNER)), "annotations": notes}}

        try:
            change(self._kube, self._directory.path(cluster["metadata"]["name"]), cluster, cleared)
        except NotFound:
            return  # its owner has removed it

    def _shelf(self) -> Shelf:
        hosts = self._kube.list_all(self._names.host_path())
        sold = hosts if not self._config.host_selector else self._hosts.list_all()
        known = classes.find(self._kube, self._config, self._directory.api())
        return Shelf(
            machines=self._list("machines"),
            hosts=hosts,
            sold=frozenset(str(one["metadata"]["name"]) for one in sold),
            deployment=self._names.deployment,
            wrong_class=classes.judged(known, self._config),
            marks_matter=classes.reads_marks(known),
        )

    def _list(self, kind: str) -> list[Json]:
        return self._kube.list_all(self._names.capi_path(self._directory.api(), kind))
