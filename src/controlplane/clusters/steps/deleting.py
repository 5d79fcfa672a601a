"""
Taking a cluster down.
"""

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps.absence import remove
from controlplane.kit.outcome import Gone, Outcome
from controlplane.providers.toolbox import Toolbox


def delete(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The provider was seen without the cluster, so its nodes may go to be wiped.
    """
    facts = ClusterFacts(release=tuple(one.allocation_id for one in cluster.members))
    if cluster.provider is None:
        return Gone(facts=facts)
    return remove(cluster, tools, "Being taken down; billing has ended.", Gone(facts=facts))
