"""
What pods of others do on a node, and what their network policies say of them. Pure.

Source: networking.k8s.io/v1 NetworkPolicy: a pod that no policy selects for a direction is open in it, and what policies allow adds up;
the server writes `policyTypes` where a policy names none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.slicing import is_slice

Json = dict[str, Any]
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a pod that a kubelet runs of a file of its own."""
HOSTS = ("hostNetwork", "hostPID", "hostIPC")
DIRECTIONS = ("Ingress", "Egress")


def is_fixed(pod: Json) -> bool:
    """
    Whether the pod belongs to its node: a kubelet's own, or a DaemonSet's.
    """
    meta = pod["metadata"]
    owners = [one for one in meta.get("ownerReferences") or [] if one.get("controller")]
    return MIRROR in (meta.get("annotations") or {}) or any(one.get("kind") in {"DaemonSet", "Node"} for one in owners)


def leaves_its_node(pod: Json) -> bool:
    """
    Whether the pod has the host's network, files, ports or processes.
    """
    spec = pod.get("spec", {})
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    return (
        any(spec.get(one) for one in HOSTS)
        or any("hostPath" in one for one in spec.get("volumes") or [])
        or any((one.get("securityContext") or {}).get("privileged") for one in containers)
        or any(port.get("hostPort") for one in containers for port in one.get("ports") or [])
    )


def asks(pod: Json, config: WorkConfig) -> bool:
    """
    Whether the pod has GPUs, or claims devices, whatever they are.
    """
    spec = pod.get("spec", {})
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    asked = [name for one in containers for name in ((one.get("resources") or {}).get("limits") or {})]
    return bool(spec.get("resourceClaims")) or any(name == config.gpu_resource or is_slice(name, config) for name in asked)


def unstated(pod: Json, policies: Iterable[Json]) -> bool:
    """
    Whether one of the directions of the pod's traffic is stated by none of its namespace's policies, so that all of it passes now.
    """
    labels = pod["metadata"].get("labels") or {}
    stated = {
        direction
        for one in policies
        if selects(one.get("spec", {}).get("podSelector") or {}, labels)
        for direction in _directions(one.get("spec", {}))
    }
    return not stated >= set(DIRECTIONS)


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """
    Whether the label selector finds the labels; an empty one finds all. What it cannot be understood by finds nothing.
    """
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets(one, labels) for one in selector.get("matchExpressions") or [])


def _meets(wanted: Json, labels: Mapping[str, str]) -> bool:
    key, values = str(wanted.get("key")), wanted.get("values") or []
    match wanted.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False


def _directions(spec: Json) -> set[str]:
    told = spec.get("policyTypes")
    return set(told) if told else {"Ingress", *(["Egress"] if spec.get("egress") else [])}
