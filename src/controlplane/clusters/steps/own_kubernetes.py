"""
A Kubernetes of its owner's own: hosts fetch their files by themselves, so a change is told by files, and seen by what its own API shows.
"""

from dataclasses import replace

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
from controlplane.clusters.steps import running, verifying
from controlplane.clusters.steps.dedicated import (
    DRAIN_POLL_S,
    EMPTY,
    POLL_S,
    RENEWED,
    TOLD,
    hosts_behind,
    look,
    workers_of,
)
from controlplane.clusters.steps.verifying import acceptance, usable_since
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.clusters import ClusterView
from controlplane.providers.toolbox import Toolbox


def bootstrap(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Every host holds the files of all members, and the cluster's API shows a Node for each.
    """
    behind = hosts_behind(cluster)
    if behind is not None:
        return behind
    hosts = staying(cluster)
    there = {one.ref for one in look(cluster, tools).members}
    missing = [one for one in hosts if one.ref not in there]
    if missing:
        return Wait(f"{len(missing)} of {len(hosts)} hosts have not joined yet.", POLL_S)
    return Advance("verifying", f"The control plane and all {len(workers_of(cluster))} workers have joined.")


def verify(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster runs, and is billed, once its API calls every host ready and every worker gives pods all its GPUs.
    """
    return verifying.verify(_counted(cluster), tools)


def watch(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    As for clusters of other kinds: degraded while hosts were not ready twice in a row; while the API does not answer nothing is known.
    """
    return running.watch(_counted(cluster), tools)


def change(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Workers that leave are emptied first, as far as budgets allow, then the API forgets them, and only then their machines are given back;
    new ones are in use and billed.
    """
    if cluster.lacking > 0 or any(one.state == "held" for one in cluster.members):
        return Wait("Nodes are being chosen.", 0.0, step="placing")
    leaving = [one for one in cluster.members if one.state == "active" and one.allocation_id in cluster.leaving]
    if cluster.step not in {TOLD, RENEWED}:
        if leaving:
            return Wait("The nodes that leave are drained.", 0.0, step=TOLD, facts=ClusterFacts(renew="drain"))
        return _renew()
    return hosts_behind(cluster) or _follow(cluster, look(cluster, tools), leaving)


def _follow(cluster: ClusterSnapshot, view: ClusterView, leaving: list[MemberSnapshot]) -> Outcome:
    if cluster.step == RENEWED:
        return _changed(_counted(cluster), view, leaving)
    states = {one.ref: one.state for one in view.members}
    busy = [one for one in leaving if states.get(one.ref, "absent") not in EMPTY]
    if busy:
        return Wait(f"Waits for pods on {len(busy)} of {len(leaving)} nodes that leave.", DRAIN_POLL_S)
    return _renew()


def _renew() -> Wait:
    return Wait("The control plane is told its workers.", 0.0, step=RENEWED, facts=ClusterFacts(renew="final"))


def _changed(cluster: ClusterSnapshot, view: ClusterView, leaving: list[MemberSnapshot]) -> Outcome:
    hosts = staying(cluster)
    states = {one.ref: one.state for one in view.members}
    left = [one for one in leaving if one.ref in states]
    if left:
        return Wait(f"{len(left)} of {len(leaving)} nodes are still known to the control plane.", POLL_S)
    coming = [one for one in hosts if not one.billed and states.get(one.ref) != "up"]
    if coming:
        return Wait(f"{len(coming)} new nodes have not joined yet.", POLL_S)
    facts = ClusterFacts(
        usable_at=usable_since(hosts, view),
        checks=tuple(acceptance(hosts, view)),
        release=tuple(one.allocation_id for one in leaving),
    )
    return Advance("running", f"All {len(workers_of(cluster))} workers are in use.", facts=facts)


def _counted(cluster: ClusterSnapshot) -> ClusterSnapshot:
    """
    The cluster as its API counts it: pods never get a control plane's GPUs.
    """
    return replace(cluster, members=tuple(replace(one, gpus=0) if one.role == "control_plane" else one for one in cluster.members))
