"""
Growing and shrinking.
"""

from controlplane.clusters.refusals import REFUSED, UNDOING, UNDONE
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps.undoing import APPLIED, turned_down, undo
from controlplane.clusters.steps.verifying import acceptance, usable_since
from controlplane.clusters.steps.wanted import staying, wanted
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.clusters import Clusters
from controlplane.providers.errors import Busy, Permanent
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0
DRAIN_POLL_S = 5.0


def change(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    New members are in and billed, members that leave are drained, out and no longer billed; running jobs are not cut off. What the provider
    turns down is undone.
    """
    if cluster.step in {REFUSED, UNDOING, UNDONE}:
        return undo(cluster, tools)
    assert cluster.provider is not None
    if cluster.lacking > 0 or any(one.state == "held" for one in cluster.members):
        return Wait("Nodes are being chosen.", 0.0, step="placing")
    clusters = tools.clusters(cluster.provider)
    if cluster.step != APPLIED:
        try:
            clusters.apply_cluster(wanted(cluster))
        except Busy as error:
            return Wait("Waits for running jobs on the nodes that leave.", max(error.retry_in_s, DRAIN_POLL_S), detail=error.detail)
        except Permanent as error:
            return turned_down(error)
        return Wait("The change is being made.", 0.0, step=APPLIED)
    return _follow(cluster, clusters)


def _follow(cluster: ClusterSnapshot, clusters: Clusters) -> Outcome:
    """
    The provider was told; what it shows decides. That it does not let us look says nothing about the change.
    """
    members = staying(cluster)
    try:
        view = clusters.observe_cluster(cluster.id)
    except Permanent as error:
        return Wait("The provider does not show what came of the change; it is looked at again.", DRAIN_POLL_S, detail=error.detail)
    present = {one.ref for one in view.members if one.state != "absent"}
    still_there = [one for one in cluster.members if one.allocation_id in cluster.leaving and one.ref in present]
    if still_there:
        return Wait(f"{len(still_there)} nodes are being drained.", DRAIN_POLL_S, step="")
    failed = [one for one in acceptance(members, view) if one["result"] == "failed"]
    if failed:
        return Wait("; ".join(f"{one['name']}: {one['detail']}" for one in failed), POLL_S)
    facts = ClusterFacts(
        usable_at=usable_since(members, view),
        checks=tuple(acceptance(members, view)),
        release=tuple(cluster.leaving),
    )
    return Advance("running", f"All {len(members)} nodes answer.", facts=facts)
