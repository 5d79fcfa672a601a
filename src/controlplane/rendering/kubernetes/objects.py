"""
Parts that several manifests share. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]
OWNER = {"app.kubernetes.io/managed-by": "controlplane"}
EVERYWHERE = [{"operator": "Exists"}]
"""Tolerations of what must run on every node."""


def thing(api: str, kind: str, name: str, namespace: str = "", *, labels: Mapping[str, str] | None = None, **rest: Any) -> Object:
    """
    An object of this name, with our mark.
    """
    metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": {**OWNER, **(labels or {})}}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **rest}


def namespace(name: str, *, privileged: bool = False) -> Object:
    """
    A namespace whose pods may do what nodes' daemons need, or as little as most.
    """
    level = "privileged" if privileged else "restricted"
    return thing("v1", "Namespace", name, labels={"pod-security.kubernetes.io/enforce": level})


def rights(name: str, where: str, rules: Sequence[Object]) -> list[Object]:
    """
    A service account that may do this in all namespaces.
    """
    subject = {"kind": "ServiceAccount", "name": name, "namespace": where}
    return [
        thing("v1", "ServiceAccount", name, where),
        thing("rbac.authorization.k8s.io/v1", "ClusterRole", name, rules=list(rules)),
        bound(name, name, subject),
    ]


def bound(name: str, role: str, subject: Object) -> Object:
    """
    A cluster role is the subject's.
    """
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return thing("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name, roleRef=reference, subjects=[subject])


def daemon(name: str, where: str, pod: Object, labels: Mapping[str, str] | None = None) -> Object:
    """
    A DaemonSet, renewed a tenth of the nodes at a time.
    """
    spec = {
        "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        "template": {"metadata": {"labels": {"app.kubernetes.io/name": name, **(labels or {})}}, "spec": pod},
    }
    return thing("apps/v1", "DaemonSet", name, where, spec=spec)


def host_path(name: str, path: str, kind: str = "DirectoryOrCreate") -> Object:
    """
    A volume that is a place of the node.
    """
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def mount(name: str, path: str, *, read_only: bool = False) -> Object:
    """
    Where a container sees a volume.
    """
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}
