"""
What a cluster of ours is made of at the peer, as pure functions from its facts: namespace, quota, walls, rights, queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.providers.clusters import ClusterSpec, Priority
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.names import (
    CLUSTER,
    MEMBERS,
    OWNER,
    PROJECT,
    TENANT,
    TOKEN,
    Names,
    core,
    grouped,
)

Json = dict[str, Any]
RBAC, NETWORK = "rbac.authorization.k8s.io/v1", "networking.k8s.io/v1"
HEADLESS = "jobs"
"""The Service through which the pods of a gang find each other by name."""
QUEUE_HERE = "cluster"
"""The LocalQueue of a cluster's namespace."""
POLICIES = ("deny-all", "own-pods", "outside")
"""The network policies of a cluster's namespace."""
LIMIT = "cluster"
"""Its quota."""
EVERY_NODE = {"kubernetes.io/os": "linux"}
"""A label of every node of ours: a flavor with a topology must name one."""
RANKS: dict[Priority, int] = {"low": -1000, "normal": 0, "high": 1000}
"""A job of no class has 0 at Kueue, so the usual ones name none."""
PEOPLE = "tenant"
"""The role of a tenant's people, its binding, and the account whose tokens their kubeconfigs hold."""
PODS_PER_NODE = 110
"""What a kubelet takes unless told otherwise."""
MORE_THAN_THERE_ARE = 1_000_000
"""Pods: while so many are not available, none may be evicted."""
READABLE = (
    ("", ["pods", "pods/log", "events", "configmaps", "resourcequotas"]),
    ("batch", ["jobs"]),
    ("kueue.x-k8s.io", ["localqueues", "workloads"]),
)
"""What a tenant's people may look at. They change nothing here: what they run, they order from us, so it cannot leave its nodes."""


@dataclass(frozen=True, slots=True)
class Queueing:
    """
    The part of Kueue that is there.
    """

    api: str
    """Group and version, for example `kueue.x-k8s.io/v1beta2`."""
    topology: bool
    """Whether it knows Topology."""


@dataclass(frozen=True, slots=True)
class Part:
    """
    One object and where it is.
    """

    path: str
    """At the API server."""
    body: Json
    """Our fields, whole."""


def namespace(names: Names, spec: ClusterSpec, config: WorkConfig) -> Part:
    """
    The namespace with its level of Pod Security and, for servers with that plugin, the nodes its pods are held to.
    """
    name = names.namespace(spec.cluster_id)
    level = config.pod_security
    security = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    body = _object("v1", "Namespace", name, names.labels(spec.cluster_id) | security)
    body["metadata"]["annotations"] = {
        TENANT: spec.tenant_id,
        PROJECT: spec.project_id,
        MEMBERS: str(len(spec.members)),
        "scheduler.alpha.kubernetes.io/node-selector": f"{CLUSTER}={spec.cluster_id}",
    }
    return Part(f"/api/v1/namespaces/{name}", body)


def own_space(names: Names, cluster_id: str, tenant_id: str, config: WorkConfig) -> tuple[Part, ...]:
    """
    What work of ours stands in where its tenant has the whole Kubernetes: a namespace whose pods find each other, and a budget that lets
    no eviction end a job. There are no walls: nobody else is there.

    Source: kubernetes.io, "Specifying a Disruption Budget": for pods of Jobs it takes a number of pods that must be available.
    """
    part = _maker(names, cluster_id)
    name = names.namespace(cluster_id)
    security = {f"pod-security.kubernetes.io/{mode}": config.pod_security for mode in ("enforce", "warn")}
    space = _object("v1", "Namespace", name, names.labels(cluster_id) | security)
    space["metadata"]["annotations"] = {TENANT: tenant_id}
    jobs = {"matchLabels": {CLUSTER: cluster_id}, "matchExpressions": [{"key": TOKEN, "operator": "Exists"}]}
    kept = {"minAvailable": MORE_THAN_THERE_ARE, "selector": jobs}
    return (
        Part(f"/api/v1/namespaces/{name}", space),
        part("v1", "Service", "services", HEADLESS, spec=_meeting(cluster_id)),
        part("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", HEADLESS, spec=kept),
    )


def limit(names: Names, spec: ClusterSpec, config: WorkConfig, slices: Mapping[str, int]) -> Part:
    """
    The namespace's quota: what the cluster's nodes have, whole GPUs and slices of the resources named.
    """
    part = _maker(names, spec.cluster_id)
    hard = {
        f"requests.{config.gpu_resource}": str(sum(one.gpus for one in spec.members)),
        "pods": str(PODS_PER_NODE * len(spec.members)),
        "services.loadbalancers": "0",
        "services.nodeports": "0",
        **{f"requests.{name}": str(amount) for name, amount in slices.items()},
    }
    if config.gpus_by == "dra":
        hard[f"{config.dra_class}.deviceclass.resource.k8s.io/devices"] = str(sum(one.gpus for one in spec.members))
    return part("v1", "ResourceQuota", "resourcequotas", LIMIT, spec={"hard": hard})


def walls(names: Names, spec: ClusterSpec, config: WorkConfig) -> tuple[Part, ...]:
    """
    Network policies and rights inside the namespace.

    There is no LimitRange: a `max` of GPUs in one becomes the request of every pod that names none.
    """
    part = _maker(names, spec.cluster_id)
    reads = [{"apiGroups": [group], "resources": kinds, "verbs": ["get", "list", "watch"]} for group, kinds in READABLE]
    closed, own, beyond = POLICIES
    return (
        part("v1", "Service", "services", HEADLESS, spec=_meeting(spec.cluster_id)),
        part(NETWORK, "NetworkPolicy", "networkpolicies", closed, spec={"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        part(NETWORK, "NetworkPolicy", "networkpolicies", own, spec=_own_pods()),
        part(NETWORK, "NetworkPolicy", "networkpolicies", beyond, spec=_outside(config.egress)),
        part(RBAC, "Role", "roles", PEOPLE, rules=reads),
        *people(names, spec.cluster_id, spec.tenant_id),
    )


def people(names: Names, cluster_id: str, tenant_id: str) -> tuple[Part, ...]:
    """
    Whoever has the tenant's role: a group that the operator's own sign-on may know, and the account of kubeconfigs, which no pod runs as.
    """
    part = _maker(names, cluster_id)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": PEOPLE}
    group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": names.group(tenant_id)}
    account = {"kind": "ServiceAccount", "name": PEOPLE, "namespace": names.namespace(cluster_id)}
    return (
        part("v1", "ServiceAccount", "serviceaccounts", PEOPLE, automountServiceAccountToken=False),
        part(RBAC, "RoleBinding", "rolebindings", PEOPLE, roleRef=role, subjects=[group, account]),
    )


def queue(names: Names, cluster_id: str, config: WorkConfig, kueue: Queueing, sums: dict[str, str]) -> tuple[Part, ...]:
    """
    A queue of the cluster's own, whose quota is what its nodes have: a gang starts whole or waits.
    """
    ns, name, labels = names.namespace(cluster_id), names.outside(cluster_id), names.labels(cluster_id)
    parts = []
    flavor: Json = {}
    if not config.whole:
        flavor = {"nodeLabels": {CLUSTER: cluster_id}, "tolerations": [toleration(cluster_id)]}
    if config.topology_labels and kueue.topology:
        if config.whole:
            flavor["nodeLabels"] = EVERY_NODE
        levels = [{"nodeLabel": one} for one in config.topology_labels]
        body = _object(kueue.api, "Topology", name, labels) | {"spec": {"levels": levels}}
        parts.append(Part(grouped(kueue.api, "topologies", name), body))
        flavor["topologyName"] = name
    parts.append(
        Part(grouped(kueue.api, "resourceflavors", name), _object(kueue.api, "ResourceFlavor", name, labels) | {"spec": flavor})
    )
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in sorted(sums.items())]
    covered = {"coveredResources": sorted(sums), "flavors": [{"name": name, "resources": quotas}]}
    who = {"matchLabels": {"kubernetes.io/metadata.name": ns}}
    body = _object(kueue.api, "ClusterQueue", name, labels) | {"spec": {"namespaceSelector": who, "resourceGroups": [covered]}}
    parts.append(Part(grouped(kueue.api, "clusterqueues", name), body))
    body = _object(kueue.api, "LocalQueue", QUEUE_HERE, labels, ns) | {"spec": {"clusterQueue": name}}
    parts.append(Part(grouped(kueue.api, "localqueues", QUEUE_HERE, namespace=ns), body))
    return tuple(parts)


def rank(names: Names, priority: Priority, kueue: Queueing) -> Part:
    """
    The class by which Kueue orders jobs that wait. It is one object for the whole installation, and says nothing of any cluster.
    """
    name = f"{names.deployment}-{priority}"
    body = _object(kueue.api, "WorkloadPriorityClass", name, {OWNER: names.deployment})
    told = {"value": RANKS[priority], "description": f"Jobs of the priority {priority}."}
    return Part(grouped(kueue.api, "workloadpriorityclasses", name), body | told)


def outside(names: Names, cluster_id: str, kueue: Queueing) -> tuple[str, ...]:
    """
    Paths of what a cluster has outside its namespace, in the order it may be removed.
    """
    kinds = ["clusterqueues", "resourceflavors", *(["topologies"] if kueue.topology else [])]
    return tuple(grouped(kueue.api, kind, names.outside(cluster_id)) for kind in kinds)


def toleration(cluster_id: str) -> dict[str, str]:
    """
    Lets a pod onto the cluster's nodes, and onto no other's.
    """
    return {"key": CLUSTER, "operator": "Equal", "value": cluster_id, "effect": "NoSchedule"}


def _maker(names: Names, cluster_id: str) -> Callable[..., Part]:
    ns, labels = names.namespace(cluster_id), names.labels(cluster_id)

    def part(api: str, kind: str, plural: str, name: str, **fields: Any) -> Part:
        path = core(ns, plural, name) if api == "v1" else grouped(api, plural, name, namespace=ns)
        return Part(path, _object(api, kind, name, labels, ns) | fields)

    return part


def _meeting(cluster_id: str) -> Json:
    return {"clusterIP": "None", "selector": {CLUSTER: cluster_id}, "publishNotReadyAddresses": True}


def _own_pods() -> Json:
    peers: Iterable[Json] = [{"podSelector": {}}]
    return {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": list(peers)}],
        "egress": [{"to": list(peers)}],
    }


def _outside(egress: Iterable[str]) -> Json:
    """
    Names are looked up at the cluster's own servers, which stand in kube-system; what the operator allows is allowed.
    """
    servers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    ports = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    rules: list[Json] = [{"to": [servers], "ports": ports}]
    blocks = [{"ipBlock": {"cidr": one}} for one in egress]
    return {"podSelector": {}, "policyTypes": ["Egress"], "egress": rules + ([{"to": blocks}] if blocks else [])}


def _object(api: str, kind: str, name: str, labels: dict[str, str], ns: str = "") -> Json:
    metadata: Json = {"name": name, "labels": dict(labels)} | ({"namespace": ns} if ns else {})
    return {"apiVersion": api, "kind": kind, "metadata": metadata}
