"""
Our objects' names, labels and paths at one Kubernetes: functions of our ids and the installation's name.
"""

from __future__ import annotations

import re
from typing import Any

from controlplane.providers.errors import Refused
from controlplane.providers.kube.memory import DOMAIN

CLUSTER = f"{DOMAIN}/cluster"
"""Label of everything that belongs to a cluster of ours, and the taint that keeps others off its nodes."""
OWNER = f"{DOMAIN}/deployment"
"""Label: which installation of ours."""
TOKEN = f"{DOMAIN}/token"
"""Label of a job and its pods: the attempt."""
TENANT = f"{DOMAIN}/tenant"
"""Annotation of a namespace: whose it is."""
PROJECT = f"{DOMAIN}/project"
"""Annotation of a namespace: what it is accounted to."""
MEMBERS = f"{DOMAIN}/members"
"""Annotation of a namespace: how many nodes are wanted."""
ADOPTED = f"{DOMAIN}/adopted"
"""Label of a namespace that was there before us and was taken over, and annotation of its nodes: the namespace."""
VERIFIED = f"{DOMAIN}/verified-at"
"""Annotation of a namespace: when it was first seen complete."""
LEAVING = f"{DOMAIN}/leaving"
"""Taint of a node that is to leave its cluster: no new pod starts on it."""
DRAIN = f"{DOMAIN}/drain"
"""Annotation of a node that we cordoned: why."""
GPUS = f"{DOMAIN}/gpus"
"""Annotation of a node: GPUs it must show."""
ALLOCATION = f"{DOMAIN}/allocation"
"""Annotation of a node: the allocation it is in the cluster for."""
UP_SINCE = f"{DOMAIN}/up-since"
"""Annotation of a node: when it was first seen up under that allocation."""
CANCELLED = f"{DOMAIN}/cancelled-at"
"""Annotation of a job: when it was asked to end."""
SERVICE = f"{DOMAIN}/service"
"""Label of everything that belongs to a service."""
VERSION = f"{DOMAIN}/version"
"""Label of a service's pods, and annotation of the service: which version."""
TURN = f"{DOMAIN}/turn"
"""Annotation of a service: the change of ours that was told last."""
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
HOSTNAME = "kubernetes.io/hostname"
LEADS = "node-role.kubernetes.io/control-plane"
"""Label of control planes."""

_ID = re.compile(r"[a-z0-9]([a-z0-9_-]{0,44}[a-z0-9])?")
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
LONGEST_NAMESPACE = 63


class Names:
    """
    The names of one installation.
    """

    def __init__(self, deployment: str) -> None:
        self.deployment = word(deployment, "the installation's name")
        self._kept: dict[str, str] = {}

    def namespace(self, cluster_id: str) -> str:
        """
        The cluster's namespace: one that was taken over, as far as `keep` was told, keeps its name.
        """
        return self._kept.get(cluster_id) or self.outside(cluster_id)

    def keep(self, cluster_id: str, namespace: str) -> None:
        """
        The cluster's namespace has a name of its own.
        """
        self._kept[cluster_id] = namespace

    def kept(self, cluster_id: str) -> str:
        """
        The name that the cluster's namespace brought with it; empty for none that is known.
        """
        return self._kept.get(cluster_id, "")

    def forget(self, cluster_id: str) -> None:
        """
        No name of its own is known any more.
        """
        self._kept.pop(cluster_id, None)

    def outside(self, cluster_id: str) -> str:
        """
        What the cluster's objects are called that lie in no namespace: queue, flavor, topology, pod policy.
        """
        name = f"{self.deployment}-{word(cluster_id, 'cluster id').replace('_', '-')}"
        if len(name) > LONGEST_NAMESPACE:
            raise Refused(f"{name} is too long for a namespace", code="provider_bad_name")
        return name

    def labels(self, cluster_id: str) -> dict[str, str]:
        """
        What everything of the cluster is marked with.
        """
        return {CLUSTER: cluster_id, OWNER: self.deployment}

    def adopted(self) -> str:
        """
        Finds the namespaces that were taken over.
        """
        return f"{OWNER}={self.deployment},{CLUSTER},{ADOPTED}"

    def selector(self, cluster_id: str = "") -> str:
        """
        Finds all that carries our marks, of one cluster or of all.
        """
        return f"{OWNER}={self.deployment},{CLUSTER}" + (f"={word(cluster_id, 'cluster id')}" if cluster_id else "")

    def group(self, tenant_id: str) -> str:
        """
        The group of users that the tenant's people are put into.
        """
        return f"{self.deployment}:tenant:{word(tenant_id, 'tenant id')}"

    def marks(self, thing: dict[str, Any], cluster_id: str) -> bool:
        """
        Whether the object is the cluster's by its labels.
        """
        labels = thing.get("metadata", {}).get("labels") or {}
        return labels.get(CLUSTER) == cluster_id and labels.get(OWNER) == self.deployment


def word(value: str, what: str) -> str:
    """
    The value, when it can be part of a name and of a path. Raises Refused: such a name cannot exist at the peer.
    """
    if not _ID.fullmatch(value):
        raise Refused(f"{what}: not a plain name: {value[:80]!r}", code="provider_bad_name")
    return value


def job_name(token: str) -> str:
    """
    The attempt's Job, Secret and the first part of its pods' names.
    """
    return word(token, "token").replace("_", "-")


def service_name(service_id: str) -> str:
    """
    The service's Deployment and Service, and the first part of its pods' names.
    """
    return word(service_id, "service id").replace("_", "-")


def node_path(ref: str) -> str:
    """
    Where the node is. Raises Refused for what cannot be a node's name.
    """
    if not _NODE.fullmatch(ref):
        raise Refused(f"not the name of a node: {ref[:80]!r}", code="provider_bad_name")
    return f"/api/v1/nodes/{ref}"


def core(namespace: str, kind: str, name: str = "") -> str:
    """
    The path of a namespaced object, or of their list, in the core group.
    """
    return "/".join(filter(None, ("/api/v1/namespaces", namespace, kind, name)))


def grouped(group: str, kind: str, name: str = "", *, namespace: str = "") -> str:
    """
    The path of an object, or of their list, in a group and version such as `batch/v1`.
    """
    where = f"/apis/{group}/namespaces/{namespace}" if namespace else f"/apis/{group}"
    return "/".join(filter(None, (where, kind, name)))
