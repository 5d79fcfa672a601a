"""
Taking a cluster down.
"""

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.kit.outcome import Gone, Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0


def delete(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The provider was seen without the cluster, so its nodes may go to be wiped.
    """
    facts = ClusterFacts(release=tuple(one.allocation_id for one in cluster.members))
    if cluster.provider is None:
        return Gone(facts=facts)
    clusters = tools.clusters(cluster.provider)
    if cluster.step != "asked":
        clusters.delete_cluster(cluster.id)
        return Wait("Being taken down.", 0.0, step="asked")
    try:
        clusters.observe_cluster(cluster.id)
    except NotFound:
        return Gone(facts=facts)
    return Wait("The provider still shows it.", POLL_S, step="")
