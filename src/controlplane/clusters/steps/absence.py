"""
Believing that a provider has nothing left of a cluster.
"""

from collections.abc import Callable
from contextlib import suppress

from controlplane.clusters.states import ClusterSnapshot
from controlplane.kit.outcome import Outcome, Wait
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0
READ_LAG_S = 2.0  # unless the provider's settings know better (`read_lag_s`)


def remove(
    cluster: ClusterSnapshot, tools: Toolbox, words: str, gone: Outcome, end: Callable[[str], None] | None = None
) -> Outcome:
    """
    `gone` once the provider was asked to remove the cluster, or for what `end` does with its id, and then, twice with a gap, was seen
    without it; one look that does not find it proves nothing.
    """
    assert cluster.provider is not None
    clusters = tools.clusters(cluster.provider)
    if cluster.step not in {"asked", "doubt"}:
        with suppress(NotFound):  # what counts is that it is not seen below
            (end or clusters.delete_cluster)(cluster.id)
        return Wait(words, 0.0, step="asked")
    try:
        clusters.observe_cluster(cluster.id)
    except NotFound:
        if cluster.step == "doubt":
            return gone
        lag_s = cluster.provider.config.get("read_lag_s", READ_LAG_S)
        return Wait(words, float(lag_s), step="doubt")
    return Wait(words, POLL_S, step="")
