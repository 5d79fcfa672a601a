"""
Whether a ClusterClass has what our Clusters need of it.
"""

from __future__ import annotations

import json
from typing import Any

from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.names import CAPI
from controlplane.providers.kube.client import Kube

Json = dict[str, Any]
METADATA = "builtin.cluster.metadata"


def faults(kube: Kube, config: ClusterApiConfig, api: str) -> tuple[str, ...]:
    """
    What is missing, in words; empty for nothing.
    """
    return judged(find(kube, config, api), config)


def find(kube: Kube, config: ClusterApiConfig, api: str) -> Json | None:
    """
    The ClusterClass; None where there is none.
    """
    return kube.find(f"/apis/{CAPI}/{api}/namespaces/{config.classes_in}/clusterclasses/{config.cluster_class}")


def judged(found: Json | None, config: ClusterApiConfig) -> tuple[str, ...]:
    """
    What the operator's ClusterClass lacks, which may be all.
    """
    if found is None:
        return (f"there is no ClusterClass {config.classes_in}/{config.cluster_class}",)
    return lacking(found, config)


def reads_marks(found: Json | None) -> bool:
    """
    Whether its patches read labels or annotations of Clusters: then a mark may change a template, and replace Machines.

    Source: cluster-api, `ClusterBuiltins.metadata` of runtime hooks v1alpha1.
    """
    return METADATA in json.dumps((found or {}).get("spec", {}).get("patches") or [])


def lacking(found: Json, config: ClusterApiConfig) -> tuple[str, ...]:
    """
    What this ClusterClass lacks, in words; empty for nothing. Variables are those it declares and those that extensions brought in.
    """
    spec, status = found.get("spec") or {}, found.get("status") or {}
    classes = {str(one.get("class")) for one in (spec.get("workers") or {}).get("machineDeployments") or []}
    variables = {str(one.get("name")) for some in (spec, status) for one in some.get("variables") or []}
    wanted = {config.pin_variable, *config.variables}
    told = [
        f"the ClusterClass has no machine deployment class {one}" for one in sorted(set(config.machine_classes.values()) - classes)
    ]
    told += [f"the ClusterClass has no variable {one}" for one in sorted(wanted - variables)]
    return tuple(told)
