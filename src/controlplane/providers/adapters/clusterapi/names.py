"""
Our objects' names, labels and paths in one management cluster: functions of our ids and the installation's name.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

from controlplane.providers.errors import Refused
from controlplane.providers.kube.memory import DOMAIN

CLUSTER = f"{DOMAIN}/cluster"
"""Label of everything that belongs to a cluster of ours."""
OWNER = f"{DOMAIN}/deployment"
"""Label: which installation of ours."""
PIN = f"{DOMAIN}/pin"
"""Label of a host: the node set whose machines may take it. Its value is the variable that a ClusterClass makes a hostSelector of."""
TENANT = f"{DOMAIN}/tenant"
"""Annotation of a Cluster: whose it is."""
PROJECT = f"{DOMAIN}/project"
"""Annotation of a Cluster: what it is accounted to."""
MEMBERS = f"{DOMAIN}/members"
"""Annotation of a Cluster: how many workers are wanted."""
VERIFIED = f"{DOMAIN}/verified-at"
"""Annotation of a Cluster: when it was first seen complete."""
ALLOCATION = f"{DOMAIN}/allocation"
"""Annotation of a host: the allocation it is in its cluster for."""
GPUS = f"{DOMAIN}/gpus"
"""Annotation of a host: GPUs its Node must show."""
UP_SINCE = f"{DOMAIN}/up-since"
"""Annotation of a host: when its Node was first seen ready under that allocation."""
ADOPTED = f"{DOMAIN}/adopted"
"""Annotation of a Cluster that was taken over: the names of its machine deployments that came with it, comma-separated."""
NAMED = f"{DOMAIN}/cluster-name"
"""Annotation of a host in a cluster that was taken over: what Cluster API calls that."""
DRAIN = f"{DOMAIN}/drain"
"""Annotation of a Node that we cordoned: why."""
OF_CLUSTER = "cluster.x-k8s.io/cluster-name"
"""Cluster API's own label of what belongs to a Cluster; Metal3's of a host that one of its Machines has."""
OF_SET = "topology.cluster.x-k8s.io/deployment-name"
"""Cluster API's own label: the topology's name of a Machine's deployment."""
LEADS = "cluster.x-k8s.io/control-plane"
"""Cluster API's own label of a control plane's Machine."""
GOES_FIRST = "cluster.x-k8s.io/delete-machine"
"""Annotation of a Machine that Cluster API takes before others when there are fewer."""
HOSTS = "metal3.io/v1alpha1"
CAPI = "cluster.x-k8s.io"
SPOKEN = ("v1beta2", "v1beta1")
"""Versions of Cluster API that we speak, the one we like best first."""
LONGEST = 63

_ID = re.compile(r"[a-z0-9]([a-z0-9_-]{0,44}[a-z0-9])?")
_REF = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Names:
    """
    The names of one installation in one namespace.
    """

    def __init__(self, deployment: str, namespace: str) -> None:
        self.deployment = word(deployment, "the installation's name")
        self.namespace = namespace

    def cluster(self, cluster_id: str) -> str:
        """
        The Cluster's name. Raises Refused for what no Cluster can be called.
        """
        name = f"{self.deployment}-{word(cluster_id, 'cluster id')}".replace("_", "-")
        if len(name) > LONGEST:
            raise Refused(f"{name} is too long for a Cluster", code="provider_bad_name")
        return name

    def pin(self, cluster_id: str, node_set: str) -> str:
        """
        The value of the label that a node set's hosts carry.
        """
        name = f"{self.cluster(cluster_id)}.{node_set}"
        return name if len(name) <= LONGEST else f"x{sha256(name.encode()).hexdigest()[:40]}"

    def labels(self, cluster_id: str) -> dict[str, str]:
        """
        What everything of the cluster is marked with.
        """
        return {CLUSTER: cluster_id, OWNER: self.deployment}

    def selector(self, cluster_id: str = "") -> str:
        """
        Finds all that carries our marks, of one cluster or of all.
        """
        return f"{OWNER}={self.deployment},{CLUSTER}" + (f"={word(cluster_id, 'cluster id')}" if cluster_id else "")

    def marks(self, thing: dict[str, Any], cluster_id: str) -> bool:
        """
        Whether the object is the cluster's by its labels.
        """
        labels = thing.get("metadata", {}).get("labels") or {}
        return labels.get(CLUSTER) == cluster_id and labels.get(OWNER) == self.deployment

    def host_path(self, ref: str = "") -> str:
        """
        Where the host is, or all hosts are. Raises Refused for what cannot be a host's name.
        """
        if ref and not _REF.fullmatch(ref):
            raise Refused(f"not the name of a host: {ref[:80]!r}", code="provider_bad_name")
        return "/".join(filter(None, (f"/apis/{HOSTS}/namespaces/{self.namespace}/baremetalhosts", ref)))

    def capi_path(self, version: str, kind: str, name: str = "", *, namespace: str = "") -> str:
        """
        Where objects of Cluster API are.
        """
        return "/".join(filter(None, (f"/apis/{CAPI}/{version}/namespaces/{namespace or self.namespace}", kind, name)))

    def secret_path(self, name: str) -> str:
        """
        Where Cluster API keeps the administrator's kubeconfig of the Cluster of that name.
        """
        return f"/api/v1/namespaces/{self.namespace}/secrets/{name}-kubeconfig"


def word(value: str, what: str) -> str:
    """
    The value, when it can be part of a name and of a path. Raises Refused: such a name cannot exist at the peer.
    """
    if not _ID.fullmatch(value):
        raise Refused(f"{what}: not a plain name: {value[:80]!r}", code="provider_bad_name")
    return value


def plain(ref: str) -> str:
    """
    The name of somebody else's object. Raises Refused for what cannot be one, and so would be another path.
    """
    if not _REF.fullmatch(ref):
        raise Refused(f"not a name: {ref[:80]!r}", code="provider_bad_name")
    return ref


def notes_of(thing: dict[str, Any]) -> dict[str, str]:
    """
    The object's annotations; none are an empty mapping.
    """
    kept: dict[str, str] = thing.get("metadata", {}).get("annotations") or {}
    return kept


def labels_of(thing: dict[str, Any]) -> dict[str, str]:
    """
    The object's labels; none are an empty mapping.
    """
    kept: dict[str, str] = thing.get("metadata", {}).get("labels") or {}
    return kept
