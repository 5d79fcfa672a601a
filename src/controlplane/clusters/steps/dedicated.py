"""
A Slurm of its owner's own: hosts fetch their files by themselves, so a change is told by files, and seen by what hosts and Slurm report.
"""

from dataclasses import replace

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
from controlplane.clusters.steps import running, verifying
from controlplane.clusters.steps.verifying import acceptance, usable_since
from controlplane.clusters.steps.wanted import staying
from controlplane.health.classes import SICK
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.clusters import ClusterView
from controlplane.providers.toolbox import Toolbox

POLL_S = 2.0
DRAIN_POLL_S = 5.0
EMPTY = frozenset({"drained", "down", "absent"})
"""States of a worker on which nothing runs that could be lost."""
TOLD, RENEWED = "told", "renewed"


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
    Workers that leave are drained first, then no file names them any more, and only then their machines are given back; new ones are in
    use and billed.
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
        return _changed(cluster, view, leaving)
    states = {one.ref: one.state for one in view.members}
    busy = [one for one in leaving if states.get(one.ref, "absent") not in EMPTY]
    if busy:
        return Wait(f"Waits for running jobs on {len(busy)} of {len(leaving)} nodes that leave.", DRAIN_POLL_S)
    return _renew()


def _renew() -> Wait:
    return Wait("The head is told its workers.", 0.0, step=RENEWED, facts=ClusterFacts(renew="final"))


def _changed(cluster: ClusterSnapshot, view: ClusterView, leaving: list[MemberSnapshot]) -> Outcome:
    workers = workers_of(cluster)
    states = {one.ref: one.state for one in view.members}
    left = [one for one in leaving if one.ref in states]
    if left:
        return Wait(f"{len(left)} of {len(leaving)} nodes are still known to the head.", POLL_S)
    coming = [one for one in workers if not one.billed and states.get(one.ref) != "up"]
    if coming:
        return Wait(f"{len(coming)} new nodes have not joined yet.", POLL_S)
    facts = ClusterFacts(
        usable_at=usable_since(workers, view),
        checks=tuple(acceptance(workers, view)),
        release=tuple(one.allocation_id for one in leaving),
    )
    return Advance("running", f"All {len(workers)} workers are in use.", facts=facts)


def hosts_behind(cluster: ClusterSnapshot) -> Wait | None:
    """
    None when every host that stays holds its files as they are now. A worker that is known to be sick, or that its tenant has switched off,
    is not waited for: it asks for its files when it is back.
    """
    hosts = [
        one for one in staying(cluster) if one.role != "worker" or (one.node_health not in SICK and one.node_state == "active")
    ]
    late = [one for one in hosts if not one.current]
    if not late:
        return None
    trouble = "; ".join(f"{one.node_id}: {one.trouble}" for one in late if one.trouble)
    return Wait(f"{len(late)} of {len(hosts)} hosts do not hold their files yet.", POLL_S, detail=trouble[:2000])


def look(cluster: ClusterSnapshot, tools: Toolbox) -> ClusterView:
    """
    The cluster as its own scheduler shows it.
    """
    assert cluster.provider is not None
    return tools.clusters(cluster.provider).observe_cluster(cluster.id)


def workers_of(cluster: ClusterSnapshot) -> list[MemberSnapshot]:
    """
    Its workers that stay.
    """
    return [one for one in staying(cluster) if one.role == "worker"]


def _of_workers(cluster: ClusterSnapshot) -> ClusterSnapshot:
    """
    The cluster as its scheduler knows it.
    """
    return replace(cluster, members=tuple(one for one in cluster.members if one.role == "worker"))
