"""
Bare-metal clusters: the nodes are the product, so there is no peer to tell; what a node says of itself is known when it is deployed.
"""

from datetime import datetime
from math import inf

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Gone, Outcome, Wait
from controlplane.providers.toolbox import Toolbox

SICK = frozenset({"drain", "quarantine"})


def bootstrap(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Nothing is set up on nodes that their tenant sets up.
    """
    del tools
    return Advance("verifying", f"All {len(staying(cluster))} nodes are deployed.")


def verify(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster runs and is billed: each of its nodes has reported itself ready.
    """
    del tools
    members = staying(cluster)
    facts = ClusterFacts(usable_at=_unbilled(members), checks=_acceptance(members))
    return Advance("running", f"All {len(members)} nodes are ready.", facts=facts)


def watch(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster is shown as degraded while a node of it is known to be sick; nothing is taken away.
    """
    del tools
    members = staying(cluster)
    sick = [one for one in members if one.node_health in SICK]
    checks = _acceptance(members)
    if sick:
        words = f"{len(sick)} of {len(members)} nodes are not healthy."
        facts = ClusterFacts(checks=checks, issues=({"code": "members_unhealthy", "message": words},))
        if cluster.state == "degraded":
            return Wait(words, cluster.observe_interval_s, facts=facts)
        return Advance("degraded", words, facts=facts)
    words = f"All {len(members)} nodes are ready."
    facts = ClusterFacts(checks=checks, issues=())
    if cluster.state == "degraded":
        return Advance("running", words, facts=facts)
    return Wait(words, cluster.observe_interval_s, facts=facts)


def change(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    New nodes are deployed and billed, those that leave are no longer billed and go to be wiped.
    """
    del tools
    if cluster.lacking > 0 or any(one.state == "held" for one in cluster.members):
        return Wait("Nodes are being chosen.", 0.0, step="placing")
    members = staying(cluster)
    facts = ClusterFacts(usable_at=_unbilled(members), checks=_acceptance(members), release=tuple(cluster.leaving))
    return Advance("running", f"All {len(members)} nodes are ready.", facts=facts)


def clear(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The nodes of the failed order are on their way back.
    """
    del tools
    facts = ClusterFacts(release=tuple(one.allocation_id for one in cluster.members), release_reason="order_failed")
    return Wait("It could not be made; delete it when you have read why.", inf, facts=facts)


def delete(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster is gone and its nodes are on their way to be wiped: their meters ended when its deletion was accepted.
    """
    del tools
    return Gone(facts=ClusterFacts(release=tuple(one.allocation_id for one in cluster.members)))


def _unbilled(members: list[MemberSnapshot]) -> dict[str, datetime | None]:
    return {one.allocation_id: None for one in members if not one.billed}


def _acceptance(members: list[MemberSnapshot]) -> tuple[dict[str, str], ...]:
    ready = [one for one in members if one.node_health not in SICK]
    result = "passed" if len(ready) == len(members) else "failed"
    return (
        {"name": "nodes_answer", "result": result, "detail": f"{len(ready)} of {len(members)}"},
        {"name": "fabric_bandwidth", "result": "not_measured", "detail": ""},
    )
