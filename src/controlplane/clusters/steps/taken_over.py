"""
A Kubernetes that stood before it was ours: nobody of ours is on its control planes, so its own API is told of every change, and its new
workers are let in by a token that ends.
"""

from contextlib import suppress
from dataclasses import replace

from controlplane.clusters.refusals import REFUSED, UNDOING, UNDONE
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps import bare, own_kubernetes
from controlplane.clusters.steps.adopting import let_go
from controlplane.clusters.steps.changing import DRAIN_POLL_S, POLL_S, look, workers_of
from controlplane.clusters.steps.undoing import APPLIED, as_it_was, turned_down, undo
from controlplane.clusters.steps.verifying import acceptance, usable_since
from controlplane.clusters.steps.wanted import staying, wanted
from controlplane.health.classes import SICK
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import Busy, NotFound, NotSent, Permanent, Unknown
from controlplane.providers.toolbox import Toolbox
from controlplane.rendering.kubernetes.joining import Entry

DOOR_LASTS_S = 5 * 3600
"""A change may take four hours; whoever boots late in it has an hour more."""
PLACING = "placing"


def watch(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    As for clusters of other kinds. After a change that failed nobody is let in any more, and who was to leave, and stays, is let in again.
    Control planes that are sick are told in words.
    """
    assert cluster.provider is not None
    outcome = own_kubernetes.listen(cluster, tools)
    if cluster.state == "degraded":
        with suppress(NotFound, NotSent, Unknown):  # told by the outcome already
            _let_in_again(cluster, tools)
    leads = [one for one in staying(cluster) if one.role == "control_plane"]
    sick = [one for one in leads if one.node_health in SICK]
    if not sick or not isinstance(outcome, (Advance, Wait)):
        return outcome
    words = f"{len(sick)} of {len(leads)} control planes are not healthy, and are not replaced through us: mend them from outside."
    facts = outcome.facts if isinstance(outcome.facts, ClusterFacts) else ClusterFacts()
    issues = (*(facts.issues or ()), {"code": "control_planes_stay", "message": words})
    return replace(outcome, facts=replace(facts, issues=issues))


def _let_in_again(cluster: ClusterSnapshot, tools: Toolbox) -> None:
    """
    Nobody new is let in, and pods are let in again wherever they are kept out of a worker that stays.
    """
    assert cluster.provider is not None
    tools.joining(cluster.provider).close_door(cluster.id)
    states = {one.ref: one.state for one in look(cluster, tools).members}
    barred = tuple(one.ref for one in staying(cluster) if states.get(one.ref) in {"draining", "drained"})
    if barred:
        tools.clusters(cluster.provider).undrain(cluster.id, barred)


def change(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The door is open before new machines are chosen, and closed when all have joined. Workers that leave are emptied as far as disruption
    budgets allow, then the API forgets them, and only then their machines are given back. What the API turns down is undone.
    """
    assert cluster.provider is not None
    if cluster.step in {REFUSED, UNDOING, UNDONE}:
        if cluster.step == UNDOING:
            with suppress(Permanent):  # whether anything of it stays barred a look shows
                _let_in_again(as_it_was(cluster), tools)
        return undo(cluster, tools)
    if cluster.lacking > 0 or any(one.state == "held" for one in cluster.members):
        return _open(cluster, tools)
    clusters = tools.clusters(cluster.provider)
    if cluster.step != APPLIED:
        try:
            clusters.apply_cluster(wanted(cluster))
        except Busy as error:
            return Wait("Waits for pods on the nodes that leave.", max(error.retry_in_s, DRAIN_POLL_S), detail=error.detail)
        except Permanent as error:
            return turned_down(error)
        return Wait("The change is being made.", 0.0, step=APPLIED)
    return _follow(cluster, tools)


def _follow(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    assert cluster.provider is not None
    view = look(cluster, tools)
    states = {one.ref: one.state for one in view.members}
    leaving = [one for one in cluster.members if one.state == "active" and one.allocation_id in cluster.leaving]
    left = [one for one in leaving if one.ref in states]
    if left:
        return Wait(f"{len(left)} of {len(leaving)} nodes are still known to its API.", POLL_S, step="")
    hosts = staying(cluster)
    coming = [one for one in hosts if not one.billed and states.get(one.ref) != "up"]
    if coming:
        return Wait(f"{len(coming)} new nodes have not joined yet.", POLL_S, step="")
    tools.joining(cluster.provider).close_door(cluster.id)
    facts = ClusterFacts(
        usable_at=usable_since(hosts, view),
        checks=tuple(acceptance(hosts, view)),
        release=tuple(one.allocation_id for one in leaving),
    )
    return Advance("running", f"All {len(workers_of(cluster))} workers are in use.", facts=facts)


def _open(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    assert cluster.provider is not None
    try:
        door = tools.joining(cluster.provider).open_door(cluster.id, lasts_s=DOOR_LASTS_S)
    except Permanent as error:
        return turned_down(error)
    entry = Entry("k3s" if door.distribution == "k3s" else "kubeadm", door.version, door.server, door.token, door.authority)
    facts = ClusterFacts(entry=entry, versions={"version": door.version})
    return Wait("Nodes are being chosen.", 0.0, step=PLACING, facts=facts)


def delete(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    It ends with its machines, which are wiped; while it has not run with us, or is to go back, it is let go as it is.
    """
    return let_go(cluster, tools) if cluster.takes is not None else bare.delete(cluster, tools)
