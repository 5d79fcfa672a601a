"""
Taking a cluster down.
"""

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps.absence import remove
from controlplane.clusters.steps.adopting import let_go
from controlplane.clusters.steps.verifying import usable_since
from controlplane.kit.outcome import Gone, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox

WORDS = "Being taken down; billing has ended."


def delete(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The provider was seen without the cluster, so its nodes may go to be wiped.
    """
    if cluster.takes is not None:
        return let_go(cluster, tools)
    facts = ClusterFacts(release=tuple(one.allocation_id for one in cluster.members))
    if cluster.provider is None:
        return Gone(facts=facts)
    if cluster.step == "" and not all(one.billed for one in cluster.members):
        return Wait(WORDS, 0.0, step="read", facts=_last_evidence(cluster, tools))
    return remove(cluster, tools, WORDS, Gone(facts=facts))


def _last_evidence(cluster: ClusterSnapshot, tools: Toolbox) -> ClusterFacts:
    """
    A cluster that became usable before its deletion was accepted, unseen by us, is billed for that time all the same.
    """
    assert cluster.provider is not None
    try:
        view = tools.clusters(cluster.provider).observe_cluster(cluster.id)
    except NotFound:
        return ClusterFacts()
    if view.verified_at is None:
        return ClusterFacts()
    deployed = [one for one in cluster.members if one.state == "active"]
    present = {one.ref for one in view.members if one.up_since is not None}
    return ClusterFacts(usable_at=usable_since([one for one in deployed if one.ref in present], view))
