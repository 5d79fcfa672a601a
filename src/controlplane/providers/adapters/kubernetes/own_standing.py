"""
A whole Kubernetes that somebody set up by kubeadm or k3s, as it could be taken over, and what stands in the way. Pure.

Source: kubernetes.io, Node `status.nodeInfo` (systemUUID is the firmware's), "Well-Known Labels"; "kubeadm: implementation details",
ConfigMap kubeadm-config in kube-system; k3s versions end in `+k3s<n>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.providers.adapters.kubernetes.own_marks import LEAVING, labels_of, name_of, notes_of
from controlplane.providers.adoption import Remark, Standing, StandingHost, StandingSet
from controlplane.providers.kube.reading import ready_condition
from controlplane.providers.kube.work.names import CLUSTER, LEADS, OWNER

Json = dict[str, Any]
PRODUCT = "own_kubernetes"
QUORUMS = (1, 3, 5)
LEAD_SET, WORKER_SET = "control-planes", "workers"
K3S = re.compile(r"\+k3s\d+$")
PLAIN = re.compile(r"v?(\d+\.\d+\.\d+)")
OTHERS = {
    "cluster.x-k8s.io/cluster-name": "Cluster API",
    "machine.openshift.io/machine": "OpenShift",
    "machine.cluster.x-k8s.io/machine": "Cluster API",
    "cluster.x-k8s.io/machine": "Cluster API",
}
"""Annotations and labels by which others make and replace nodes by themselves."""
MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Scene:
    """
    What was read of the Kubernetes in one go.
    """

    uid: str
    """Of its namespace kube-system, which goes with the cluster."""
    version: str
    """What its API server says that it is, as `v1.36.2+k3s1`."""
    kubeadm: str | None
    """Its own ClusterConfiguration by kubeadm, as text; None for none."""
    nodes: Sequence[Json]
    """All of them."""
    gpus: dict[str, int | None]
    """By node: GPUs that pods are given; None where that is not told."""
    mark: Json | None
    """The object that says whose it is; None for nobody's."""


def read_standing(scene: Scene, deployment: str, ours: str = "") -> Standing:
    """
    The cluster as it could be taken over. `ours` is the cluster of ours that it is being taken over as: that one's marks are no obstacle.
    """
    distribution = distribution_of(scene)
    hosts = tuple(_host(one, scene) for one in sorted(scene.nodes, key=name_of))
    sets = tuple(StandingSet(name, ()) for name in sorted({one.node_set for one in hosts}))
    found = [*_of_marks(scene, deployment, ours), *_of_cluster(scene, distribution, hosts), *_of_nodes(scene, deployment, ours)]
    return Standing(
        ref=_name(scene, distribution),
        uid=scene.uid,
        product=PRODUCT,
        version=plain(scene.version),
        sets=sets,
        hosts=hosts,
        obstacles=tuple(found),
        notices=tuple(_notices(scene, distribution)),
        distribution=distribution,
    )


def distribution_of(scene: Scene) -> str:
    """
    Who set it up: k3s says so in its version, kubeadm leaves its configuration; empty for others.
    """
    if K3S.search(scene.version):
        return "k3s"
    return "kubeadm" if scene.kubeadm is not None else ""


def plain(version: object) -> str:
    """
    `1.36.2` for `v1.36.2+k3s1`; empty for what is none.
    """
    found = PLAIN.match(str(version))
    return found[1] if found else ""


def leads(node: Json) -> bool:
    """
    Whether it is a control plane.
    """
    return LEADS in labels_of(node)


def _host(node: Json, scene: Scene) -> StandingHost:
    name, info = name_of(node), node.get("status", {}).get("nodeInfo") or {}
    addresses = node.get("status", {}).get("addresses") or []
    internal = next((str(one.get("address", "")) for one in addresses if one.get("type") == "InternalIP"), "")
    return StandingHost(
        ref=name,
        node_set=LEAD_SET if leads(node) else _set_of(scene.gpus.get(name), scene),
        ready=_is_ready(node),
        leads=leads(node),
        uuid=str(info.get("systemUUID", "")).lower(),
        address=internal,
        gpus=None if leads(node) else scene.gpus.get(name),
    )


def _set_of(gpus: int | None, scene: Scene) -> str:
    """
    Workers are one set where all have as many GPUs, else one by number.
    """
    numbers = {scene.gpus.get(name_of(one)) for one in scene.nodes if not leads(one)}
    return WORKER_SET if len(numbers) == 1 else f"{WORKER_SET}-{gpus or 0}"


def _is_ready(node: Json) -> bool:
    return (ready_condition(node) or {}).get("status") == "True"


def _name(scene: Scene, distribution: str) -> str:
    found = re.search(r"^clusterName: *([A-Za-z0-9._-]{1,100}) *$", scene.kubeadm or "", re.MULTILINE)
    return found[1] if found else distribution or "kubernetes"


def _of_marks(scene: Scene, deployment: str, ours: str) -> list[Remark]:
    labels = labels_of(scene.mark or {})
    if scene.mark is None:
        return []
    if labels.get(OWNER) != deployment:
        return [Remark("other_installation", f"It belongs to another installation of the control plane, {labels.get(OWNER, '')}.")]
    if labels.get(CLUSTER) != ours:
        return [Remark("marked_already", f"It carries the marks of {labels.get(CLUSTER, '')}.")]
    return []


def _of_cluster(scene: Scene, distribution: str, hosts: Sequence[StandingHost]) -> list[Remark]:
    wrong = []
    if not distribution:
        words = f"Kubernetes {scene.version} was set up neither by kubeadm nor by k3s, as far as it shows."
        wrong.append(Remark("other_distribution", words))
    count = sum(one.leads for one in hosts)
    if count not in QUORUMS:
        words = f"It shows {count} control planes; one, three or five are taken over, each with the label {LEADS}."
        wrong.append(Remark("no_quorum", words))
    if count == len(hosts):
        wrong.append(Remark("no_workers", "It has no workers, so there is nothing to hold for it."))
    versions = sorted({plain((one.get("status", {}).get("nodeInfo") or {}).get("kubeletVersion", "")) for one in scene.nodes})
    if versions and set(versions) != {plain(scene.version)}:
        words = f"Its API server is {plain(scene.version)} and its kubelets are {', '.join(versions)}: finish its upgrade first."
        wrong.append(Remark("mixed_versions", words))
    told = re.search(r"^kubernetesVersion: *(\S+) *$", scene.kubeadm or "", re.MULTILINE)
    if told and plain(told[1]) != plain(scene.version):
        words = f"kubeadm's configuration says {told[1]} and the API server {scene.version}: finish its upgrade first."
        wrong.append(Remark("upgrade_pending", words))
    return wrong


def _of_nodes(scene: Scene, deployment: str, ours: str) -> list[Remark]:
    wrong = []
    unready = [name_of(one) for one in scene.nodes if not _is_ready(one) or one["metadata"].get("deletionTimestamp")]
    if unready:
        wrong.append(Remark("not_settled", f"{few(unready)}: not ready, or being removed."))
    cordoned = [name_of(one) for one in scene.nodes if one.get("spec", {}).get("unschedulable") and LEAVING not in notes_of(one)]
    if cordoned:
        wrong.append(
            Remark("cordoned", f"{few(cordoned)}: cordoned by somebody, so nothing new would come there. Uncordon them first.")
        )
    unknown = [name_of(one) for one in scene.nodes if not (one.get("status", {}).get("nodeInfo") or {}).get("systemUUID")]
    if unknown:
        wrong.append(Remark("node_unrecognised", f"{few(unknown)}: without a system UUID no machine is known by its node."))
    untold = [name_of(one) for one in scene.nodes if not leads(one) and scene.gpus.get(name_of(one)) is None]
    if untold:
        wrong.append(Remark("gpus_untold", f"{few(untold)}: nobody tells how many GPUs pods are given there."))
    marked = [
        name_of(one)
        for one in scene.nodes
        if CLUSTER in labels_of(one) and (labels_of(one)[CLUSTER] != ours or labels_of(one).get(OWNER) != deployment)
    ]
    if marked:
        wrong.append(Remark("node_marked", f"{few(marked)}: with the marks of another cluster."))
    makers = {maker for one in scene.nodes for key, maker in OTHERS.items() if key in {*labels_of(one), *notes_of(one)}}
    if makers:
        words = f"{' and '.join(sorted(makers))} makes its nodes and replaces them by itself: take it over from there."
        wrong.append(Remark("made_by_others", words))
    return wrong


def _notices(scene: Scene, distribution: str) -> list[Remark]:
    told = [
        Remark(
            "control_planes_stay",
            "Its control planes are not upgraded or replaced through us: that needs its authority's key and a program of ours on them. "
            "Workers are added, replaced and removed.",
        ),
        Remark(
            "kubeconfigs_stay", "Whoever has its administrator's kubeconfig keeps it, and who may log in to its hosts may go on."
        ),
        Remark(
            "networks_stay",
            "Its hosts stay in the networks that they are in: nothing of ours is between its tenant and other machines there.",
        ),
    ]
    held = sum(scene.gpus.get(name_of(one)) or 0 for one in scene.nodes if leads(one))
    if held:
        words = f"Work that is handed in through us does not come to control planes, which show {held} GPUs."
        told.append(Remark("gpus_of_control_planes", words))
    if distribution == "k3s":
        words = "A worker that joins keeps the settings of its own image: flags that other agents were started with are not copied."
        told.append(Remark("agents_flags", words))
    return told


def few(names: Iterable[str]) -> str:
    """
    The names, or the first of them and how many more there are.
    """
    found = sorted(names)
    shown = ", ".join(found[:MOST_NAMED])
    return shown if len(found) <= MOST_NAMED else f"{shown} and {len(found) - MOST_NAMED} more"
