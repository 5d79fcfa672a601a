"""
A Cluster as Cluster API takes it, as a pure function of what is wanted, in both versions of its API.

Source: CustomResourceDefinition clusters.cluster.x-k8s.io, `spec.topology`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.names import CAPI, MEMBERS, PROJECT, TENANT, Names
from controlplane.providers.clusters import ClusterSpec

Json = dict[str, Any]
OLD = "v1beta1"


@dataclass(frozen=True, slots=True)
class Workers:
    """
    The workers of one node set.
    """

    name: str
    """The node set's, which is also the deployment's in the topology."""
    instance_type: str
    """What they are."""
    replicas: int
    """How many machines are asked for."""


def cluster_object(
    names: Names, spec: ClusterSpec, config: ClusterApiConfig, workers: Sequence[Workers], *, api: str, version: str
) -> Json:
    """
    All fields of the Cluster that are ours; the controllers own the others.
    """
    topology: Json = {"version": f"v{version}", **_class(config, api)}
    if config.control_planes:
        topology["controlPlane"] = {"replicas": config.control_planes}
    deployments = [
        deployment_of(config, one, api, names.pin(spec.cluster_id, one.name)) for one in sorted(workers, key=lambda one: one.name)
    ]
    if deployments:
        topology["workers"] = {"machineDeployments": deployments}
    if config.variables:
        topology["variables"] = [{"name": name, "value": value} for name, value in sorted(config.variables.items())]
    network = {
        kind: {"cidrBlocks": blocks} for kind, blocks in (("pods", config.pod_cidrs), ("services", config.service_cidrs)) if blocks
    }
    return {
        "apiVersion": f"{CAPI}/{api}",
        "kind": "Cluster",
        "metadata": {
            "name": names.cluster(spec.cluster_id),
            "namespace": names.namespace,
            "labels": names.labels(spec.cluster_id),
            "annotations": {TENANT: spec.tenant_id, PROJECT: spec.project_id, MEMBERS: str(len(spec.members))},
        },
        "spec": ({"clusterNetwork": network} if network else {}) | {"topology": topology},
    }


def _class(config: ClusterApiConfig, api: str) -> Json:
    if api == OLD:
        return {"class": config.cluster_class, "classNamespace": config.classes_in}
    return {"classRef": {"name": config.cluster_class, "namespace": config.classes_in}}


def deployment_of(config: ClusterApiConfig, workers: Workers, api: str, pin: str) -> Json:
    """
    One machine deployment of a topology; without a pin it takes hosts as it did.

    No machine is ever made beside the others in an upgrade: there is no host for it, for a set's hosts are as many as its machines.
    """
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": config.max_unavailable}}
    made: Json = {
        "class": config.machine_classes.get(workers.instance_type, ""),
        "name": workers.name,
        "replicas": workers.replicas,
    }
    if pin:
        made["variables"] = {"overrides": [{"name": config.pin_variable, "value": pin}]}
    if api == OLD:
        return made | {"strategy": rolling} | ({"nodeDrainTimeout": f"{config.drain_limit_s}s"} if config.drain_limit_s else {})
    deletion = {"deletion": {"nodeDrainTimeoutSeconds": config.drain_limit_s}} if config.drain_limit_s else {}
    return made | {"rollout": {"strategy": rolling}} | deletion
