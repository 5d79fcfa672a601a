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
EVERYTHING = (Need("*", "*", ("*",)),)
"""In a Kubernetes that is taken over whole: who gives its tenant all rights must have them."""
ADOPTION_NEEDS = (
    Need("", "pods", ("create",)),
    Need("", "services", ("list",)),
    Need("", "serviceaccounts", ("list", "delete")),
    Need("", "limitranges", ("list",)),
    Need("", "resourcequotas", ("delete",)),
    Need("apps", "daemonsets", ("list",)),
    Need("batch", "jobs", ("delete",)),
    Need("autoscaling", "horizontalpodautoscalers", ("list",)),
    Need("networking.k8s.io", "networkpolicies", ("list", "delete")),
    Need("rbac.authorization.k8s.io", "roles", ("list", "delete")),
    Need("rbac.authorization.k8s.io", "rolebindings", ("list", "delete")),
    Need("rbac.authorization.k8s.io", "clusterrolebindings", ("list",)),
)
"""Where namespaces that exist are taken over, and let go. Pods are made only to see what the server would make of them (`dryRun`)."""
ADOPTION_POLICY_NEEDS = (
    Need("admissionregistration.k8s.io", "mutatingadmissionpolicies", ("get", "delete", *MAKE)),
    Need("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", ("get", "delete", *MAKE)),
)
"""Where the server has them; where not, no namespace can be taken over."""
ADOPTION_GROUP_NEEDS: Mapping[str, tuple[Need, ...]] = {
    KUEUE: (Need(KUEUE, "localqueues", ("delete",)),),
    "kubeflow.org": (Need("kubeflow.org", "mpijobs", ("delete",)),),
    "keda.sh": (Need("keda.sh", "scaledobjects", ("list",)),),
}


def adoption_needs(groups: Collection[str], *, policies: str, volumes: bool) -> tuple[Need, ...]:
    """
    What is needed for namespaces that exist, besides what is needed anyway; `policies` is the version of pod policies that is served.
    """
    needs = (*ADOPTION_NEEDS, *(ADOPTION_POLICY_NEEDS if policies else ()))
    needs += (Need("", "persistentvolumeclaims", ("list", "patch")),) if volumes else ()
    return needs + tuple(one for group, some in ADOPTION_GROUP_NEEDS.items() if group in groups for one in some)


def needs_for(*, queues: bool, groups: Collection[str], volumes: bool = False, claims: bool = False) -> tuple[Need, ...]:
    """
    All that is needed with the API groups that the server has.
    """
    needs = (*NEEDS, *(QUEUE_NEEDS if queues else ()), *(VOLUME_NEEDS if volumes else ()), *(CLAIM_NEEDS if claims else ()))
    return needs + tuple(one for group, some in GROUP_NEEDS.items() if group in groups for one in some)
