"""
Clearing up after an order that failed.
"""

from math import inf

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps.absence import remove
from controlplane.kit.outcome import Outcome, Wait
from controlplane.providers.toolbox import Toolbox


def clear(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    Nothing of the failed order is left at the provider, and its nodes are on their way back.
    """
    facts = ClusterFacts(release=tuple(one.allocation_id for one in cluster.members), release_reason="order_failed")
    words = "It could not be made; delete it when you have read why."
    if cluster.provider is None:
        return Wait(words, inf, facts=facts)
    return remove(cluster, tools, words, Wait(words, inf, facts=facts))
