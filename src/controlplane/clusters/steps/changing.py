"""
How a product that hosts make of themselves follows its order: hosts fetch their files, so a change is told by files, and seen by what hosts
and its own scheduler report.
"""

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
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


@dataclass(frozen=True, slots=True)
class Product:
    """
    What differs between such products.
    """

    leader: str
    """Which hosts know the members."""
    work: str
    """What a worker that leaves is emptied of."""
    known: Callable[[ClusterSnapshot], ClusterSnapshot]
    """The cluster as its own scheduler counts it."""


def change(cluster: ClusterSnapshot, tools: Toolbox, product: Product) -> Outcome:
    """
    Workers that leave are emptied first, then no file names them and the scheduler has forgotten them, and only then their machines are
    given back; new ones are in use and billed.
    """
    if cluster.lacking > 0 or any(one.state == "held" for one in cluster.members):
        return Wait("Nodes are being chosen.", 0.0, step="placing")
    leaving = [one for one in cluster.members if one.state == "active" and one.allocation_id in cluster.leaving]
    if cluster.step not in {TOLD, RENEWED}:
        if leaving:
            return Wait("The nodes that leave are drained.", 0.0, step=TOLD, facts=ClusterFacts(renew="drain"))
        return _renew(product)
    return hosts_behind(cluster) or _follow(cluster, look(cluster, tools), leaving, product)


def _follow(cluster: ClusterSnapshot, view: ClusterView, leaving: list[MemberSnapshot], product: Product) -> Outcome:
    if cluster.step == RENEWED:
        return _changed(cluster, view, leaving, product)
    states = {one.ref: one.state for one in view.members}
    busy = [one for one in leaving if states.get(one.ref, "absent") not in EMPTY]
    if busy:
        return Wait(f"Waits for {product.work} on {len(busy)} of {len(leaving)} nodes that leave.", DRAIN_POLL_S)
    return _renew(product)


def _renew(product: Product) -> Wait:
    return Wait(f"The {product.leader} is told its workers.", 0.0, step=RENEWED, facts=ClusterFacts(renew="final"))


def _changed(cluster: ClusterSnapshot, view: ClusterView, leaving: list[MemberSnapshot], product: Product) -> Outcome:
    hosts = staying(product.known(cluster))
    states = {one.ref: one.state for one in view.members}
    left = [one for one in leaving if one.ref in states]
    if left:
        return Wait(f"{len(left)} of {len(leaving)} nodes are still known to the {product.leader}.", POLL_S)
    coming = [one for one in hosts if not one.billed and states.get(one.ref) != "up"]
    if coming:
        return Wait(f"{len(coming)} new nodes have not joined yet.", POLL_S)
    facts = ClusterFacts(
        usable_at=usable_since(hosts, view),
        checks=tuple(acceptance(hosts, view)),
        release=tuple(one.allocation_id for one in leaving),
    )
    return Advance("running", f"All {len(workers_of(cluster))} workers are in use.", facts=facts)


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
