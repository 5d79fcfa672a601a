"""
What our credential must be allowed to do in a management cluster.
"""

from __future__ import annotations

from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.kube.rights import Need


def needs_for(config: ClusterApiConfig) -> tuple[Need, ...]:
    """
    All of it, in the namespace of the hosts.
    """
    here = config.namespace
    return (
        Need("cluster.x-k8s.io", "clusters", ("get", "list", "create", "patch", "delete"), here),
        Need("cluster.x-k8s.io", "machines", ("get", "list", "patch"), here),
        Need("metal3.io", "baremetalhosts", ("get", "list", "patch"), here),
        Need("", "secrets", ("get",), here),
    )


def class_needs(config: ClusterApiConfig) -> tuple[Need, ...]:
    """
    What is needed where the ClusterClass is.
    """
    return (Need("cluster.x-k8s.io", "clusterclasses", ("get",), config.classes_in),)
