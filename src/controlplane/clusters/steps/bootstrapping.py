"""
Turning deployed nodes into the product.
"""

from controlplane.clusters.states import ClusterSnapshot
from controlplane.clusters.steps.wanted import wanted
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0
TOLD = "applied"
AGAIN_S = 30.0
"""How long a provider that was told the cluster is only looked at, until it is told again: a cluster of many nodes is long in coming."""


def bootstrap(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The provider was told the whole cluster and shows all its members. While some are missing it is told again from time to time, and at
    once where it does not show the cluster at all.
    """
    assert cluster.provider is not None
    clusters, spec = tools.clusters(cluster.provider), wanted(cluster)
    turn = f"{TOLD}/{int(cluster.state_for_s // AGAIN_S)}"
    if not cluster.step.startswith(TOLD):
        clusters.apply_cluster(spec)
        return Wait("The cluster is being set up.", 0.0, step=turn)
    try:
        view = clusters.observe_cluster(cluster.id)
    except NotFound as error:
        return Wait("The cluster is being set up.", POLL_S, step="", detail=error.detail)
    seen = {one.ref for one in view.members if one.state != "absent"}
    missing = [one for one in spec.members if one.ref not in seen]
    if missing:
        said = [f"{one.ref}: {one.reason}" for one in view.members if one.state == "absent" and one.reason]
        said += [f"{one.name}: {one.detail}" for one in view.checks if one.result == "failed"]
        words = f"{len(missing)} of {len(spec.members)} nodes have not joined yet."
        return Wait(words, POLL_S, step=None if cluster.step == turn else "", detail="; ".join(said)[:2000])
    return Advance("verifying", f"All {len(spec.members)} nodes have joined.")
