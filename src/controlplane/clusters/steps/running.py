"""
Watching a cluster that is in use.
"""

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps.verifying import acceptance
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox

SECOND_LOOK_S = 5.0


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
    bad = [one for one in checks if one["result"] == "failed"]
    if bad:
        words = "; ".join(f"{one['name']}: {one['detail']}" for one in bad)
        return _troubled(cluster, "members_unhealthy", words, "", tuple(checks))
    facts = ClusterFacts(checks=tuple(checks), issues=())
    if cluster.state == "degraded":
        return Advance("running", f"All {len(members)} nodes answer.", facts=facts)
    return Wait(f"All {len(members)} nodes answer.", cluster.observe_interval_s, step="", facts=facts)


def _troubled(
    cluster: ClusterSnapshot, code: str, words: str, detail: str, checks: tuple[dict[str, str], ...] | None = None
) -> Outcome:
    facts = ClusterFacts(checks=checks, issues=({"code": code, "message": words},))
    if cluster.state == "degraded":
        return Wait(words, cluster.observe_interval_s, facts=facts, detail=detail)
    if cluster.step != "doubt":
        return Wait(words, min(SECOND_LOOK_S, cluster.observe_interval_s), step="doubt", detail=detail)
    return Advance("degraded", words, facts=facts)
