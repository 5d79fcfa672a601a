"""
Our part of a Cluster that was taken over, as a pure function of what it is and of what is wanted.

Its machine deployments take hosts as their owner wrote it, mostly any that are free. To pin them changes their template, and Cluster API
replaces every Machine whose template changes. So nothing that is there is pinned before its version changes, when each Machine is replaced
anyway; until then new hosts go to a machine deployment of their own, which is pinned from its first day.

Source: cluster-api, topology reconciler (`reconcileReferencedTemplate`: a template whose spec changes is rotated; a machine deployment
that waits for an upgrade is not touched before it); Cluster, `spec.topology.workers.machineDeployments` is a map by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.names import (
    ADOPTED,
    CAPI,
    LONGEST,
    MEMBERS,
    OF_SET,
    PROJECT,
    TENANT,
    Names,
    labels_of,
    notes_of,
)
from controlplane.providers.adapters.clusterapi.objects import Workers, deployment_of
from controlplane.providers.clusters import ClusterSpec

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """
    How the node sets of a Cluster that was taken over are spread over machine deployments.
    """

    names: Names
    """Of the installation."""
    config: ClusterApiConfig
    """Of the provider."""
    cluster: Json
    """As it was read."""
    spec: ClusterSpec
    """What is wanted of it."""
    api: str
    """The version of Cluster API that is spoken."""
    version: str
    """Of Kubernetes, wanted."""
    sets: Mapping[str, str]
    """Machine deployment to its node set, of those that came with the Cluster and of those that we added."""
    pinned: frozenset[str]
    """Machine deployments whose Machines take our hosts only, or will: those that are so, and all once the version changes."""

    def home(self, node_set: str) -> str:
        """
        The machine deployment that new hosts of the node set go to.
        """
        return node_set if node_set in self.pinned or node_set not in self.sets else added(node_set)

    def body(self, staying: Sequence[tuple[str, Json | None]], going: Sequence[Json]) -> Json:
        """
        All fields of the Cluster that are ours. `staying` are node set and Machine of each host that stays. A Machine that goes is counted
        until every host of its node set has one: then there is one too many, and it is the one that is marked.
        """
        counts: Counter[str] = Counter()
        for node_set, machine in staying:
            deployment = "" if machine is None else labels_of(machine).get(OF_SET, "")
            counts[deployment if deployment in self.sets else self.home(node_set)] += 1
        hostless = {node_set for node_set, machine in staying if machine is None}
        for machine in going:
            deployment = labels_of(machine).get(OF_SET, "")
            if self.sets.get(deployment) in hostless and not machine["metadata"].get("deletionTimestamp"):
                counts[deployment] += 1
        made = [self._deployment(name, counts[name]) for name in sorted({*self.sets, *counts})]
        return {
            "apiVersion": f"{CAPI}/{self.api}",
            "kind": "Cluster",
            "metadata": {
                "name": self.cluster["metadata"]["name"],
                "namespace": self.names.namespace,
                "labels": self.names.labels(self.spec.cluster_id),
                "annotations": {
                    TENANT: self.spec.tenant_id,
                    PROJECT: self.spec.project_id,
                    MEMBERS: str(len(self.spec.members)),
                    ADOPTED: notes_of(self.cluster)[ADOPTED],
                },
            },
            "spec": {"topology": {"version": f"v{self.version}", "workers": {"machineDeployments": made}}},
        }

    def _deployment(self, name: str, replicas: int) -> Json:
        """
        One that came with the Cluster keeps its class; of its other fields none is ours but how it is rolled.
        """
        node_set = self.sets.get(name) or next(one.node_set for one in self.spec.members if self.home(one.node_set) == name)
        kind = next((one.instance_type for one in self.spec.members if one.node_set == node_set), "")
        pin = self.names.pin(self.spec.cluster_id, node_set) if name in self.pinned or name not in self.sets else ""
        made = deployment_of(self.config, Workers(name, kind, replicas), self.api, pin)
        there = _deployments(self.cluster).get(name)
        return made if there is None else made | {"class": there["class"]}


def layout(names: Names, config: ClusterApiConfig, cluster: Json, spec: ClusterSpec, *, api: str, version: str) -> Layout:
    """
    How it is spread now, and which of its machine deployments are pinned from now on.
    """
    there = _deployments(cluster)
    came = [one for one in notes_of(cluster)[ADOPTED].split(",") if one in there]
    sets = {one: one for one in came} | {added(one): one for one in came if added(one) in there}
    known = {one.node_set for one in spec.members}
    sets |= {one: one for one in known if one not in sets and one in there}
    renewed = str(cluster["spec"]["topology"].get("version", "")).removeprefix("v") != version
    pinned = {
        name for name, node_set in sets.items() if renewed or _pin(there[name], config) == names.pin(spec.cluster_id, node_set)
    }
    return Layout(names, config, cluster, spec, api, version, sets, frozenset(pinned))


def added(node_set: str) -> str:
    """
    The machine deployment that we add for new hosts of a node set that came with the Cluster.
    """
    return f"{node_set[: LONGEST - 7]}-{sha256(node_set.encode()).hexdigest()[:6]}"


def _deployments(cluster: Json) -> dict[str, Json]:
    workers = cluster["spec"]["topology"].get("workers") or {}
    return {str(one["name"]): one for one in workers.get("machineDeployments") or []}


def _pin(deployment: Json, config: ClusterApiConfig) -> str:
    overrides = (deployment.get("variables") or {}).get("overrides") or []
    return next((str(one.get("value", "")) for one in overrides if one.get("name") == config.pin_variable), "")
