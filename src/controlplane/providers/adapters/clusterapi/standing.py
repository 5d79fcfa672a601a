"""
Clusters that somebody else made in the management cluster, and what stands in the way of taking them over. Pure.

Source: cluster.x-k8s.io Cluster `spec.topology`, Machine; metal3.io/v1alpha1 BareMetalHost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.clusterapi import folding
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.names import (
    CLUSTER,
    LEADS,
    OF_CLUSTER,
    OF_SET,
    OWNER,
    labels_of,
)
from controlplane.providers.adoption import Remark, Standing, StandingHost, StandingSet

Json = dict[str, Any]
PRODUCT = "managed_kubernetes"
SET_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
CONTROLLERS = re.compile(r"capi-|controlplane|manager$|kube-controller-manager")
"""Field managers that write Clusters without being their owners."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Shelf:
    """
    What is in the management cluster's namespace, read in one go.
    """

    machines: Sequence[Json]
    """Every Machine."""
    hosts: Sequence[Json]
    """Every BareMetalHost, those that are not sold, too."""
    sold: frozenset[str]
    """Names of those that are."""
    deployment: str
    """The installation's name."""
    wrong_class: tuple[str, ...] = ()
    """What the operator's ClusterClass lacks of what our Clusters need."""
    marks_matter: bool = False
    """Whether that class's patches read Clusters' labels or annotations."""


@dataclass(frozen=True, slots=True)
class Worker:
    """
    A Machine of a Cluster with the host it has.
    """

    machine: Json
    """The Machine."""
    host: Json | None
    """Its BareMetalHost; None while it has none."""

    @property
    def name(self) -> str:
        """
        The Machine's name.
        """
        return str(self.machine["metadata"]["name"])

    @property
    def node_set(self) -> str:
        """
        The topology's name of its machine deployment; empty for one that is in none.
        """
        return labels_of(self.machine).get(OF_SET, "")

    @property
    def ref(self) -> str:
        """
        The host's name; empty for none.
        """
        return "" if self.host is None else str(self.host["metadata"]["name"])

    @property
    def joined(self) -> bool:
        """
        Whether it has a Node.
        """
        return bool((self.machine.get("status", {}).get("nodeRef") or {}).get("name"))


def read_standing(cluster: Json, shelf: Shelf, config: ClusterApiConfig, ours: str = "") -> Standing:
    """
    The Cluster as it could be taken over. `ours` is the cluster of ours that it is being taken over as: that one's marks are no obstacle.
    """
    name = str(cluster["metadata"]["name"])
    topology = cluster.get("spec", {}).get("topology") or {}
    deployments = {str(one["name"]): one for one in (topology.get("workers") or {}).get("machineDeployments") or []}
    workers = workers_of(name, shelf)
    sets = tuple(StandingSet(one, _types(deployments[one], config)) for one in sorted(deployments))
    hosts = tuple(StandingHost(one.ref, one.node_set, one.joined) for one in sorted(workers, key=lambda one: one.ref) if one.ref)
    version = str(topology.get("version") or "").removeprefix("v")
    found = [
        *_of_cluster(cluster, topology, config, shelf, ours),
        *_of_sets(deployments, workers, config, version),
        *_of_hosts(workers, shelf, ours),
    ]
    notices = _notices(cluster, deployments, config, version)
    return Standing(name, str(cluster["metadata"].get("uid", "")), PRODUCT, version, sets, hosts, tuple(found), tuple(notices))


def workers_of(name: str, shelf: Shelf) -> list[Worker]:
    """
    The Cluster's Machines but those of its control plane, each with its host.
    """
    by_consumer = {folding.consumer(one): one for one in shelf.hosts if folding.consumer(one)}
    return [
        Worker(one, by_consumer.get(f"Metal3Machine/{folding.infrastructure(one)}"))
        for one in shelf.machines
        if labels_of(one).get(OF_CLUSTER) == name and LEADS not in labels_of(one)
    ]


def _types(deployment: Json, config: ClusterApiConfig) -> tuple[str, ...]:
    return tuple(sorted(kind for kind, known in config.machine_classes.items() if known == deployment.get("class")))


def _of_cluster(cluster: Json, topology: Json, config: ClusterApiConfig, shelf: Shelf, ours: str) -> list[Remark]:
    labels = labels_of(cluster)
    wrong = []
    if OWNER in labels and labels[OWNER] != shelf.deployment:
        wrong.append(Remark("other_installation", f"It belongs to another installation of the control plane, {labels[OWNER]}."))
    elif labels.get(CLUSTER, ours) != ours:
        wrong.append(Remark("marked_already", f"It carries the marks of {labels[CLUSTER]}."))
    if cluster["metadata"].get("deletionTimestamp"):
        wrong.append(Remark("being_removed", "It is being removed."))
    if cluster.get("spec", {}).get("paused"):
        wrong.append(Remark("paused", "It is paused: nobody looks after it."))
    if not topology:
        wrong.append(Remark("no_topology", "It was not made of a ClusterClass, and only such Clusters are changed whole."))
        return wrong
    reference = topology.get("classRef") or {}
    here = cluster["metadata"].get("namespace", config.namespace)
    told = str(reference.get("name") or topology.get("class") or "")
    where = str(reference.get("namespace") or topology.get("classNamespace") or here)
    if (told, where) != (config.cluster_class, config.classes_in):
        words = f"Its ClusterClass is {where}/{told}; this provider's is {config.classes_in}/{config.cluster_class}."
        wrong.append(Remark("other_class", words))
    wrong += [Remark("class_lacks", f"{one}.") for one in shelf.wrong_class]
    if shelf.marks_matter:
        words = "Patches of its ClusterClass read labels or annotations of Clusters, so marking it could replace its Machines."
        wrong.append(Remark("class_reads_marks", words))
    if (topology.get("workers") or {}).get("machinePools"):
        wrong.append(Remark("machine_pools", "It has machine pools, whose machines are not told one by one."))
    return wrong


def _of_sets(deployments: Mapping[str, Json], workers: Sequence[Worker], config: ClusterApiConfig, version: str) -> list[Remark]:
    wrong = []
    for name, one in sorted(deployments.items()):
        mine = [each for each in workers if each.node_set == name]
        if not SET_NAME.fullmatch(name):
            wrong.append(Remark("bad_set_name", f"{name} cannot be a node set's name: use lower-case letters, digits and dashes."))
        if not _types(one, config):
            words = f"{name} is of the class {one.get('class')}, which is none of this provider's instance types."
            wrong.append(Remark("unknown_machine_class", words))
        if not isinstance(one.get("replicas"), int):
            words = f"{name} says no number of replicas: somebody else scales it."
            wrong.append(Remark("scaled_by_others", words))
        elif len(mine) != one["replicas"]:
            wrong.append(Remark("not_settled", f"{name} has {len(mine)} Machines and wants {one['replicas']}."))
    odd = [each.name for each in workers if each.node_set not in deployments]
    if odd:
        wrong.append(Remark("outside_of_topology", f"{_few(odd)}: not of the topology's machine deployments."))
    moving = [
        each.name
        for each in workers
        if each.machine["metadata"].get("deletionTimestamp")
        or not each.ref
        or not each.joined
        or str(each.machine.get("spec", {}).get("version") or "").removeprefix("v") != version
    ]
    if moving:
        words = f"{_few(moving)}: coming, going, or not at the Cluster's version."
        wrong.append(Remark("not_settled", words))
    if not workers:
        wrong.append(Remark("no_workers", "It has no workers, so there is nothing to hold for it."))
    return wrong


def _of_hosts(workers: Sequence[Worker], shelf: Shelf, ours: str) -> list[Remark]:
    wrong = []
    for one in workers:
        if one.host is None:
            continue
        labels, spec = labels_of(one.host), one.host.get("spec", {})
        if one.ref not in shelf.sold:
            words = f"{one.ref} is not among the hosts that this provider sells (host_selector)."
            wrong.append(Remark("host_not_sold", words))
        if CLUSTER in labels and (labels[CLUSTER] != ours or labels.get(OWNER) != shelf.deployment):
            wrong.append(Remark("host_marked", f"{one.ref} carries the marks of {labels[CLUSTER]}."))
        if folding.never_cleans(one.host):
            words = f"{one.ref} is not cleaned after use: set its automatedCleaningMode to metadata first."
            wrong.append(Remark("host_never_cleaned", words))
        if spec.get("externallyProvisioned"):
            words = f"{one.ref} was installed by somebody else than Metal3, which then never takes it back."
            wrong.append(Remark("host_installed_by_others", words))
    return wrong


def _notices(cluster: Json, deployments: Mapping[str, Json], config: ClusterApiConfig, version: str) -> list[Remark]:
    told = []
    if deployments:
        words = (
            f"Workers of {_few(sorted(deployments))} are not pinned to their hosts, for that would replace each of them. Until the first "
            "upgrade, which replaces them anyway, a Machine that Cluster API makes anew there may take any free host that it fits; "
            "hosts that are added go to a machine deployment of their own."
        )
        told.append(Remark("pinned_by_upgrade", words))
    others = sorted(
        {
            str(one.get("manager", ""))
            for one in cluster["metadata"].get("managedFields") or []
            if "f:spec" in (one.get("fieldsV1") or {}) and not CONTROLLERS.search(str(one.get("manager", "")))
        }
    )
    if others:
        words = f"{_few(others)} wrote its spec. Whatever applies it again and again takes back what is changed through us: end that first."
        told.append(Remark("written_by_others", words))
    if version and version not in config.versions:
        told.append(
            Remark("version_not_offered", f"Kubernetes {version} is not among the versions offered; it can be upgraded to those.")
        )
    words = "Whoever has its administrator's kubeconfig keeps it: Cluster API goes by its own."
    told.append(Remark("kubeconfigs_stay", words))
    return told


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED} more"
