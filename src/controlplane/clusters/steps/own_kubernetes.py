"""
A Kubernetes of its owner's own: hosts fetch their files by themselves, so a change is told by files, and seen by what its own API shows.
"""

from dataclasses import replace

from controlplane.clusters.states import ClusterSnapshot
from controlplane.clusters.steps import changing, running, verifying
from controlplane.clusters.steps.changing import POLL_S, Product, hosts_behind, look, workers_of
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Outcome, Wait
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
    Workers that leave are emptied as far as disruption budgets allow before the API forgets them.
    """
    return changing.change(cluster, tools, KUBERNETES)


def _counted(cluster: ClusterSnapshot) -> ClusterSnapshot:
    """
    The cluster as its API counts it: pods never get a control plane's GPUs.
    """
    return replace(cluster, members=tuple(replace(one, gpus=0) if one.role == "control_plane" else one for one in cluster.members))


KUBERNETES = Product(leader="control plane", work="pods", known=_counted)
