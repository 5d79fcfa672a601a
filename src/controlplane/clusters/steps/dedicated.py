"""
A Slurm of its owner's own: hosts fetch their files by themselves, so a change is told by files, and seen by what hosts and Slurm report.
"""

from dataclasses import replace

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps import changing, running, verifying
from controlplane.clusters.steps.changing import POLL_S, Product, hosts_behind, look, workers_of
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.toolbox import Toolbox


def bootstrap(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Every host holds the files of all members, and Slurm shows all workers.
    """
    behind = hosts_behind(cluster)
    if behind is not None:
        return behind
    there = {one.ref for one in look(cluster, tools).members}
    missing = [one for one in workers_of(cluster) if one.ref not in there]
    if missing:
        return Wait(f"{len(missing)} of {len(workers_of(cluster))} workers are not known to the head yet.", POLL_S)
    return Advance("verifying", f"The head and all {len(workers_of(cluster))} workers are set up.")


def verify(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster runs once every worker is up with all its GPUs; from then on it and its head are billed.
    """
    outcome = verifying.verify(_of_workers(cluster), tools)
    if not isinstance(outcome, Advance) or not isinstance(outcome.facts, ClusterFacts):
        return outcome
    others = {one.allocation_id: None for one in staying(cluster) if one.role != "worker" and not one.billed}
    return replace(outcome, facts=replace(outcome.facts, usable_at={**outcome.facts.usable_at, **others}))


def watch(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    As for clusters of other kinds: degraded while workers did not answer twice in a row.
    """
    return running.watch(_of_workers(cluster), tools)


def change(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Jobs end on workers that leave before the head forgets them.
    """
    return changing.change(cluster, tools, SLURM)


def _of_workers(cluster: ClusterSnapshot) -> ClusterSnapshot:
    """
    The cluster as its scheduler knows it.
    """
    return replace(cluster, members=tuple(one for one in cluster.members if one.role == "worker"))


SLURM = Product(leader="head", work="running jobs", known=_of_workers)
