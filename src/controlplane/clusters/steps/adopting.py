"""
Taking over a cluster that its provider has already: it is ours by marks, and nothing on it begins anew. What cannot be taken over is let go
as it was; it is never taken down before it has run with us.
"""

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot
from controlplane.clusters.steps.absence import remove
from controlplane.clusters.steps.verifying import acceptance, usable_since
from controlplane.clusters.steps.wanted import staying, wanted
from controlplane.kit.outcome import Advance, Fail, Gone, Outcome, Wait
from controlplane.providers.adoption import Adoption
from controlplane.providers.errors import NotFound, Refused
from controlplane.providers.toolbox import Toolbox

POLL_S = 5.0
LETTING_GO = "It was not taken over; its provider is left as it was."


def adopt(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster runs with us once the provider has handed it over and every member answers; from then on it is billed, and not before.
    """
    assert cluster.provider is not None
    assert cluster.takes is not None
    if cluster.step != "told":
        asked = Adoption(cluster.takes.ref, cluster.takes.uid, wanted(cluster))
        try:
            tools.adoption(cluster.provider).adopt_cluster(asked)
        except Refused as error:
            words = "Its provider does not hand it over as it is; it was left alone."
            return Fail("adoption_refused", words, detail=f"{error.code}: {error.detail}"[:2000])
        return Wait("Taken over; its nodes are looked at.", 0.0, step="told")
    members = staying(cluster)
    try:
        view = tools.clusters(cluster.provider).observe_cluster(cluster.id)
    except NotFound as error:
        return Wait("The provider does not show it yet.", POLL_S, step="", detail=error.detail)
    checks = acceptance(members, view)
    failed = [one for one in checks if one["result"] == "failed"]
    if failed:
        words = "; ".join(f"{one['name']}: {one['detail']}" for one in failed)
        return Wait(words, POLL_S, step="", facts=ClusterFacts(checks=tuple(checks)))
    facts = ClusterFacts(usable_at=usable_since(members, view), checks=tuple(checks))
    return Advance("running", f"Taken over with {len(members)} nodes.", facts=facts)


def let_go(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The provider was seen without our marks, twice with a gap; the cluster goes on there, and its nodes are put aside as they are.
    """
    assert cluster.provider is not None
    facts = ClusterFacts(hand_back=tuple(one.allocation_id for one in cluster.members))
    return remove(cluster, tools, LETTING_GO, Gone(facts=facts), tools.adoption(cluster.provider).let_go)
