"""
Watching a cluster that is in use.
"""

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
from controlplane.clusters.steps.verifying import acceptance, offered
from controlplane.clusters.steps.wanted import staying
from controlplane.health.classes import SICK
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.clusters import ClusterView
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox

SECOND_LOOK_S = 5.0
DOWN_FOR_S = 300.0
"""How long a cluster is degraded before its members that are down count as sick."""
DEAD = frozenset({"down", "absent"})


def watch(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster is shown as degraded when members did not answer twice in a row and as running when all do; nothing is taken away.
    """
    assert cluster.provider is not None
    members = staying(cluster)
    try:
        view = tools.clusters(cluster.provider).observe_cluster(cluster.id)
    except NotFound as error:
        return _troubled(
            cluster, "missing_at_provider", "The provider does not show the cluster; an operator looks into it.", error.detail
        )
    checks = acceptance(members, view)
    health = _health(cluster, members, view)
    bad = [one for one in checks if one["result"] == "failed"]
    if bad:
        words = "; ".join(f"{one['name']}: {one['detail']}" for one in bad)
        return _troubled(cluster, "members_unhealthy", words, "", tuple(checks), health)
    facts = offered(ClusterFacts(checks=tuple(checks), issues=(), health=health), cluster, view)
    if cluster.state == "degraded":
        return Advance("running", f"All {len(members)} nodes answer.", facts=facts)
    return Wait(f"All {len(members)} nodes answer.", cluster.observe_interval_s, step="", facts=facts)


def _health(cluster: ClusterSnapshot, members: list[MemberSnapshot], view: ClusterView) -> tuple[tuple[str, str, str], ...]:
    """
    What the scheduler's view says of members' health: one that was seen down all the while the cluster is degraded is to be replaced, one
    that is up again is well by this source. A drain, anybody's, is no illness.
    """
    seen = {one.ref: one for one in view.members}
    said = []
    for one in members:
        state = seen[one.ref].state if one.ref in seen else "absent"
        if state in DEAD and cluster.state == "degraded" and cluster.state_for_s >= DOWN_FOR_S and one.node_health not in SICK:
            said.append((one.node_id, "drain", "The scheduler sees it down."))
        elif state == "up" and one.node_health != "ok":
            said.append((one.node_id, "ok", ""))
    return tuple(said)


def _troubled(
    cluster: ClusterSnapshot,
    code: str,
    words: str,
    detail: str,
    checks: tuple[dict[str, str], ...] | None = None,
    health: tuple[tuple[str, str, str], ...] = (),
) -> Outcome:
    facts = ClusterFacts(checks=checks, issues=({"code": code, "message": words},), health=health)
    if cluster.state == "degraded":
        return Wait(words, cluster.observe_interval_s, facts=facts, detail=detail)
    if cluster.step != "doubt":
        return Wait(
            words, min(SECOND_LOOK_S, cluster.observe_interval_s), step="doubt", facts=ClusterFacts(health=health), detail=detail
        )
    return Advance("degraded", words, facts=facts)
