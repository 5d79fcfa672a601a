"""
Namespaces that somebody else made in a Kubernetes that many share, and what stands in the way of taking them over. Pure.

A namespace can be a cluster of ours when what runs there goes on behind walls: its pods come to its nodes again after a restart, its
traffic is stated by policies of its own already, and its pods live with our level of Pod Security already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from controlplane.providers.adapters.kubernetes import neighbours, privileges
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.marks import Mark
from controlplane.providers.adapters.kubernetes.words import few, named, placed
from controlplane.providers.adoption import Remark, Standing, StandingHost, StandingSet
from controlplane.providers.kube.memory import read
from controlplane.providers.kube.reading import ready_condition
from controlplane.providers.kube.work.names import CLUSTER, OWNER, Names
from controlplane.providers.kube.work.pool import ended
from controlplane.providers.kube.work.walls import HEADLESS, LIMIT, PEOPLE, POLICIES, QUEUE_HERE

Json = dict[str, Any]
PRODUCT = "kubernetes"
SYSTEM = "kube-"
"""What the server's own namespaces begin with."""
UNDELETABLE = frozenset({"default"})
LEVELS = ("privileged", "baseline", "restricted")
ENFORCES, ENFORCED_AS = "pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/enforce-version"
PLACING = "scheduler.alpha.kubernetes.io/"
"""Annotations of a namespace by which plugins of the server place its pods, or turn away tolerations."""
RESERVED: Mapping[str, frozenset[str]] = {
    "networkpolicies": frozenset(POLICIES),
    "resourcequotas": frozenset({LIMIT}),
    "services": frozenset({HEADLESS}),
    "serviceaccounts": frozenset({PEOPLE}),
    "roles": frozenset({PEOPLE}),
    "rolebindings": frozenset({PEOPLE}),
    "localqueues": frozenset({QUEUE_HERE}),
}
"""What our objects in a namespace are called."""
OUTWARD = frozenset({"LoadBalancer", "NodePort"})


@dataclass(frozen=True)
class Shelf:
    """
    What is in the Kubernetes, read in one go.
    """

    nodes: Sequence[Json]
    """Every node that is sold."""
    pods: Sequence[Json]
    """Every pod that is not over."""
    steers: bool
    """Whether the server has policies that change pods on the way in."""
    version: str = ""
    """Of Kubernetes."""
    parts: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    """Plural to every object of that kind, in all namespaces: those of `RESERVED`, daemonsets, limitranges, clusterrolebindings."""

    @cached_property
    def by_namespace(self) -> Mapping[str, list[Json]]:
        """
        The pods of each namespace.
        """
        found: dict[str, list[Json]] = {}
        for one in self.pods:
            if not ended(one):
                found.setdefault(one["metadata"]["namespace"], []).append(one)
        return found

    @cached_property
    def by_node(self) -> Mapping[str, list[Json]]:
        """
        The pods on each node.
        """
        found: dict[str, list[Json]] = {}
        for one in self.pods:
            if not ended(one):
                found.setdefault(one.get("spec", {}).get("nodeName") or "", []).append(one)
        return found


@dataclass(frozen=True, slots=True)
class Space:
    """
    One namespace with what is in it.
    """

    names: Names
    """Of the installation."""
    config: KubernetesConfig
    """Of the provider."""
    shelf: Shelf
    """All that was read."""
    thing: Json
    """The Namespace."""
    ours: str = ""
    """The cluster that it is being taken over as: that one's marks are no obstacle."""

    @property
    def name(self) -> str:
        """
        The namespace's.
        """
        return str(self.thing["metadata"]["name"])

    @property
    def pods(self) -> list[Json]:
        """
        Its pods that are not over.
        """
        return self.shelf.by_namespace.get(self.name, [])

    @property
    def refs(self) -> list[str]:
        """
        Nodes that its pods are on.
        """
        return sorted({str(one["spec"]["nodeName"]) for one in self.pods if one.get("spec", {}).get("nodeName")})

    def part(self, kind: str) -> list[Json]:
        """
        Its objects of the kind that are not ours.
        """
        found = [one for one in self.shelf.parts.get(kind, ()) if one["metadata"].get("namespace") == self.name]
        return [one for one in found if not (self.ours and self.names.marks(one, self.ours))]


def candidates(spaces: Iterable[Json], shelf: Shelf, names: Names) -> list[Json]:
    """
    The namespaces that are not ours, nor the server's own, and that have a pod on a node that is sold, by name.
    """
    sold = {one["metadata"]["name"] for one in shelf.nodes}
    used = {
        one["metadata"]["namespace"]
        for one in shelf.pods
        if one.get("spec", {}).get("nodeName") in sold and not neighbours.is_fixed(one)
    }
    found = [one for one in spaces if one["metadata"]["name"] in used and not _is_ours(one, names)]
    return sorted((one for one in found if not is_system(one["metadata"]["name"])), key=lambda one: str(one["metadata"]["name"]))


def read_standing(space: Space) -> Standing:
    """
    The namespace as it could be taken over.
    """
    nodes = {one["metadata"]["name"]: one for one in space.shelf.nodes}
    sets = _sets(space, nodes)
    hosts = tuple(StandingHost(ref, sets.get(ref, "workers"), ref in nodes and _is_ready(nodes[ref])) for ref in space.refs)
    wrong = [
        *_of_space(space),
        *_of_pods(space),
        *_of_traffic(space),
        *_of_parts(space),
        *privileges.obstacles(space.name, space.shelf.parts),
        *_of_hosts(space, nodes),
    ]
    told = tuple(StandingSet(name, ()) for name in sorted(set(sets.values())))
    uid = str(space.thing["metadata"].get("uid", ""))
    return Standing(space.name, uid, PRODUCT, space.shelf.version, told, hosts, tuple(wrong), tuple(_notices(space)))


def _sets(space: Space, nodes: Mapping[str, Json]) -> dict[str, str]:
    """
    Host to its set: those with the same GPUs are alike.
    """

    def kind(ref: str) -> tuple[str, str]:
        node = nodes.get(ref, {})
        label = ((node.get("metadata") or {}).get("labels") or {}).get(space.config.gpu_model_label, "")
        capacity = ((node.get("status") or {}).get("capacity") or {}).get(space.config.gpu_resource, "0")
        return str(label), str(capacity)

    kinds = sorted({kind(ref) for ref in space.refs})
    called = {one: "workers" if len(kinds) == 1 else f"workers-{number}" for number, one in enumerate(kinds, 1)}
    return {ref: called[kind(ref)] for ref in space.refs}


def _of_space(space: Space) -> list[Remark]:
    meta = space.thing["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    wrong = []
    if OWNER in labels and labels[OWNER] != space.names.deployment:
        wrong.append(Remark("other_installation", f"It belongs to another installation of the control plane, {labels[OWNER]}."))
    elif labels.get(CLUSTER, space.ours) != space.ours:
        wrong.append(Remark("marked_already", f"It carries the marks of {labels[CLUSTER]}."))
    if meta.get("deletionTimestamp"):
        wrong.append(Remark("being_removed", "It is being removed."))
    if not space.shelf.steers:
        words = (
            "The server has no MutatingAdmissionPolicy (admissionregistration.k8s.io v1, or v1beta1 switched on), so pods that start "
            "again could not come back to nodes that are its tenant's alone."
        )
        wrong.append(Remark("no_pod_policies", words))
    level, pinned = labels.get(ENFORCES, "privileged"), labels.get(ENFORCED_AS, "latest")
    if level not in LEVELS or LEVELS.index(level) < LEVELS.index(space.config.pod_security) or pinned != "latest":
        words = f"It enforces {level} ({pinned}) of Pod Security. Enforce {space.config.pod_security} of the latest version first."
        wrong.append(Remark("pod_security_too_weak", words))
    placing = sorted(key for key in notes if key.startswith(PLACING))
    if placing:
        wrong.append(Remark("placed_by_annotation", f"{few(placing)}: annotations by which its pods are placed. Take them off."))
    return wrong


def _of_pods(space: Space) -> list[Remark]:
    wrong = []
    waiting = [one for one in space.pods if not one.get("spec", {}).get("nodeName")]
    if waiting:
        wrong.append(Remark("not_settled", f"{few(map(named, waiting))}: without a node yet."))
    if not space.refs:
        wrong.append(Remark("no_workers", "None of its pods is on a node, so there is nothing to hold for it."))
    free = [one for one in space.pods if neighbours.leaves_its_node(one)]
    if free:
        words = f"{few(map(named, free))}: on the host's network, files or processes, which no wall holds."
        wrong.append(Remark("pods_outside_walls", words))
    claiming = [one for one in space.pods if one.get("spec", {}).get("resourceClaims")]
    if claiming:
        words = f"{few(map(named, claiming))}: with claimed devices, which cannot be counted against what its nodes have."
        wrong.append(Remark("devices_claimed", words))
    daemons = space.part("daemonsets")
    if daemons:
        words = f"{few(map(named, daemons))}: a DaemonSet runs on every node, and knows no tenant's nodes. Move or remove it."
        wrong.append(Remark("daemon_sets", words))
    return wrong


def _of_traffic(space: Space) -> list[Remark]:
    policies = space.part("networkpolicies")
    bare = [one for one in space.pods if neighbours.unstated(one, policies)]
    if not bare:
        return []
    words = (
        f"{few(map(named, bare))}: no network policy of the namespace states its traffic in both directions, and ours would cut it. "
        "Write policies of the types Ingress and Egress that select every pod and allow what it needs."
    )
    return [Remark("traffic_not_stated", words)]


def _of_parts(space: Space) -> list[Remark]:
    wrong = []
    outward = [
        one for one in space.part("services") if one.get("spec", {}).get("type") in OUTWARD or one["spec"].get("externalIPs")
    ]
    if outward:
        words = f"{few(map(named, outward))}: reached from outside through every node. Make it a ClusterIP behind an ingress."
        wrong.append(Remark("services_outside", words))
    for kind, code in (("resourcequotas", "quota_of_its_own"), ("limitranges", "limits_of_its_own")):
        found = [one for one in space.part(kind) if one["metadata"]["name"] not in RESERVED.get(kind, ())]
        if found:
            words = f"{few(map(named, found))}: what is ordered through us would be held to it as well. Remove it."
            wrong.append(Remark(code, words))
    taken = [
        f"{kind}/{one['metadata']['name']}"
        for kind, reserved in RESERVED.items()
        for one in space.part(kind)
        if one["metadata"]["name"] in reserved
    ]
    if taken:
        wrong.append(Remark("names_taken", f"{few(taken)}: called as objects of ours will be. Rename them."))
    return wrong


def _of_hosts(space: Space, nodes: Mapping[str, Json]) -> list[Remark]:
    wrong = []
    for ref in space.refs:
        node = nodes.get(ref)
        if node is None:
            wrong.append(Remark("host_not_sold", f"{ref} is not among the nodes that this provider sells (node_selector)."))
            continue
        labels = node["metadata"].get("labels") or {}
        mark = read(Mark, node, space.names.deployment)
        if CLUSTER in labels and (labels[CLUSTER] != space.ours or labels.get(OWNER) != space.names.deployment):
            wrong.append(Remark("host_marked", f"{ref} carries the marks of {labels[CLUSTER]}."))
        elif mark is None or (mark.phase in {"deployed", "releasing"} and mark.cluster != space.ours):
            wrong.append(Remark("host_marked", f"{ref} carries the mark of another tenancy."))
        if not _is_ready(node):
            wrong.append(Remark("not_settled", f"{ref} is not ready."))
        elif node.get("spec", {}).get("unschedulable"):
            wrong.append(Remark("host_cordoned", f"{ref} is cordoned: uncordon it, or move its pods."))
        others = [one for one in space.shelf.by_node.get(ref, []) if one["metadata"]["namespace"] != space.name]
        guests = [one for one in others if not neighbours.is_fixed(one) or neighbours.asks(one, space.config)]
        if guests:
            words = f"{few(map(placed, guests))} on {ref}: of others. Move them to other nodes."
            wrong.append(Remark("host_shared", words))
    return wrong


def _notices(space: Space) -> list[Remark]:
    told = [
        Remark(
            "pods_are_steered",
            "From then on each pod that starts there is given its nodes' selector and toleration by the server. Pods keep them: after it "
            "was let go, start its workloads anew before kubelets are, for a kubelet looks at the selector once more.",
        ),
        Remark(
            "deleted_whole", "Once it was changed through us, deleting the cluster deletes the namespace with all that is in it."
        ),
    ]
    policies = space.part("networkpolicies")
    if policies:
        words = f"{few(map(named, policies))} stay, and may allow more than ours do. Its pods may also reach each other and name servers."
        told.append(Remark("policies_stay", words))
    people = privileges.insiders(space.part("rolebindings"))
    if people:
        words = f"{few(people)} keep their rights in it, and may change what is there, our policies among it."
        told.append(Remark("people_stay", words))
    if space.part("localqueues"):
        words = f"{few(map(named, space.part('localqueues')))}: jobs of its queues wait there as before, and ours in a queue of their own."
        told.append(Remark("queues_stay", words))
    held = space.thing["metadata"].get("finalizers")
    if held:
        told.append(Remark("finalizers", f"{few(held)} must let it go before it is gone when it is deleted."))
    return told


def _is_ready(node: Json) -> bool:
    return (ready_condition(node) or {}).get("status") == "True"


def _is_ours(thing: Json, names: Names) -> bool:
    labels = thing["metadata"].get("labels") or {}
    return labels.get(OWNER) == names.deployment and CLUSTER in labels


def is_system(name: str) -> bool:
    """
    Whether the namespace is one that every server has.
    """
    return name.startswith(SYSTEM) or name in UNDELETABLE
