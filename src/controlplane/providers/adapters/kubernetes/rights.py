"""
What our credential must be allowed to do on a Kubernetes that many share.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from controlplane.providers.kube.rights import Need

LOOK, MAKE = ("get", "list", "watch"), ("create", "patch")
KUEUE = "kueue.x-k8s.io"
NEEDS = (
    Need("", "namespaces", ("get", "list", "delete", *MAKE)),
    Need("", "nodes", ("get", "list", "patch")),
    Need("", "pods", LOOK),
    Need("", "pods/log", LOOK),
    Need("", "pods/eviction", ("create",)),
    Need("", "events", LOOK),
    Need("", "configmaps", LOOK),
    Need("", "resourcequotas", (*LOOK, *MAKE)),
    Need("", "services", ("get", "delete", *MAKE)),
    Need("", "secrets", ("list", "delete", *MAKE)),
    Need("", "serviceaccounts", MAKE),
    Need("", "serviceaccounts/token", ("create",)),
    Need("batch", "jobs", (*LOOK, *MAKE)),
    Need("apps", "deployments", ("get", "list", "delete", *MAKE)),
    Need("autoscaling", "horizontalpodautoscalers", ("get", "delete", *MAKE)),
    Need("networking.k8s.io", "networkpolicies", MAKE),
    Need("rbac.authorization.k8s.io", "roles", MAKE),
    Need("rbac.authorization.k8s.io", "rolebindings", MAKE),
    Need("coordination.k8s.io", "leases", ("get",), "kube-node-lease"),
    Need(KUEUE, "localqueues", LOOK),
    Need(KUEUE, "workloads", LOOK),
)
"""Always; what the tenants' role holds is among it, because a server lets nobody give away more than they have."""
QUEUE_NEEDS = (
    Need(KUEUE, "clusterqueues", ("get", "delete", *MAKE)),
    Need(KUEUE, "resourceflavors", ("get", "delete", *MAKE)),
    Need(KUEUE, "topologies", ("get", "delete", *MAKE)),
    Need(KUEUE, "localqueues", MAKE),
    Need(KUEUE, "workloadpriorityclasses", MAKE),
    Need(KUEUE, "workloads", ("patch",)),
)
"""With Kueue."""
VOLUME_NEEDS = (Need("", "persistentvolumeclaims", ("get", "create")),)
"""Where volumes are offered; they go with their namespace."""
CLAIM_NEEDS = (
    Need("resource.k8s.io", "resourceslices", ("list",)),
    Need("resource.k8s.io", "resourceclaimtemplates", ("get", "list", "delete", *MAKE)),
)
"""Where GPUs are claimed."""
GROUP_NEEDS: Mapping[str, tuple[Need, ...]] = {
    "leaderworkerset.x-k8s.io": (Need("leaderworkerset.x-k8s.io", "leaderworkersets", ("get", "list", "delete", *MAKE)),),
    "kubeflow.org": (Need("kubeflow.org", "mpijobs", (*LOOK, *MAKE)),),
    "keda.sh": (Need("keda.sh", "scaledobjects", ("get", "delete", *MAKE)),),
}
"""Where the server has the API group: replicas over several nodes, and scaling by queries."""


def needs_for(*, queues: bool, groups: Collection[str], volumes: bool = False, claims: bool = False) -> tuple[Need, ...]:
    """
    All that is needed with the API groups that the server has.
    """
    needs = (*NEEDS, *(QUEUE_NEEDS if queues else ()), *(VOLUME_NEEDS if volumes else ()), *(CLAIM_NEEDS if claims else ()))
    return needs + tuple(one for group, some in GROUP_NEEDS.items() if group in groups for one in some)
