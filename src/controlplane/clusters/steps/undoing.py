"""
A change that the provider turned down for good: the cluster is as it was before, except for what the provider has done already. What is
there is never guessed; a look decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.clusters.refusals import CHANGE_REFUSED, REFUSED, UNDOING, UNDONE
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
from controlplane.clusters.steps.verifying import acceptance
from controlplane.clusters.steps.wanted import wanted
from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.providers.clusters import ClusterView
from controlplane.providers.errors import Permanent
from controlplane.providers.toolbox import Toolbox

POLL_S = 5.0
APPLIED = "applied"
GOING = frozenset({"draining", "drained"})
TURNED_DOWN = "The provider turned the change down."
TAKEN_BACK = "The change that the provider turned down is taken back."


def turned_down(error: Permanent) -> Wait:
    """
    Nothing more is asked for; what came of it is looked up next. The refusal is kept until then.
    """
    issue = {"code": error.code, "message": TURNED_DOWN}
    words = f"{TURNED_DOWN} What of it is there is looked up."
    return Wait(words, 0.0, step=REFUSED, facts=ClusterFacts(issues=(issue,)), detail=error.detail)


def undo(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    One part of taking the change back. It ends as a failed change of a cluster that is as it was: who was to leave stays, who was to come
    is given back. Where the provider has begun to do it after all, the change goes on; who has left is out.
    """
    assert cluster.provider is not None
    clusters = tools.clusters(cluster.provider)
    detail = cluster.refusal.detail if cluster.refusal else ""
    refused = False
    if cluster.step == UNDOING:
        try:
            clusters.apply_cluster(wanted(as_it_was(cluster)))
        except Permanent:
            refused = True  # it may have nothing of the change, and refuse whatever it is told; a look shows that
        else:
            return Wait(TAKEN_BACK, 0.0, step=UNDONE, detail=detail)
    try:
        view = clusters.observe_cluster(cluster.id)
    except Permanent as error:
        words = "The provider does not show what came of a change that it turned down."
        return Wait(words, POLL_S, detail=detail or error.detail)
    seen = {one.ref: one.state for one in view.members if one.state != "absent"}
    if cluster.step == REFUSED:
        return _judge(cluster, seen, detail)
    left = [one for one in coming(cluster) if one.ref in seen]
    going = [one for one in leaving(cluster) if seen.get(one.ref) in GOING] if refused else []
    if left or going:
        words = f"{len(left)} nodes that were to join are taken out again, {len(going)} that were to leave are let in again."
        return Wait(words, POLL_S, step=UNDOING, detail=detail)
    return _given_up(cluster, view)


def coming(cluster: ClusterSnapshot) -> list[MemberSnapshot]:
    """
    Members that the change brought: they have never been in use.
    """
    return [one for one in cluster.members if one.state in {"held", "active"} and not one.billed]


def leaving(cluster: ClusterSnapshot) -> list[MemberSnapshot]:
    """
    Members in use that the change takes out.
    """
    return [one for one in cluster.members if one.state == "active" and one.billed and one.allocation_id in cluster.leaving]


def as_it_was(cluster: ClusterSnapshot) -> ClusterSnapshot:
    """
    The cluster with those that are to leave and without those that came.
    """
    new = {one.allocation_id for one in coming(cluster)}
    members = tuple(one for one in cluster.members if one.allocation_id not in new)
    return replace(cluster, members=members, leaving=frozenset())


def _judge(cluster: ClusterSnapshot, seen: Mapping[str, str], detail: str) -> Wait:
    """
    Forward where the provider has let somebody new in, or everybody out; else back, without those that it has let out.
    """
    old = leaving(cluster)
    gone = [one for one in old if one.ref not in seen]
    if any(one.ref in seen for one in coming(cluster)) or (gone and len(gone) == len(old)):
        return Wait("The provider has begun the change that it turned down; it goes on.", 0.0, step=APPLIED, detail=detail)
    return Wait(TAKEN_BACK, 0.0, step=UNDOING, detail=detail, facts=ClusterFacts(release=_ids(gone)))


def _given_up(cluster: ClusterSnapshot, view: ClusterView) -> Fail:
    refusal = cluster.refusal
    members = [one for one in as_it_was(cluster).members if one.state == "active"]
    checks = acceptance(members, view)
    well = all(one["result"] != "failed" for one in checks)
    facts = ClusterFacts(
        checks=tuple(checks),
        issues=() if well else None,
        release=_ids(coming(cluster)),
        release_reason=CHANGE_REFUSED,
        undone=True,
    )
    words = f"{TURNED_DOWN} The cluster is as it was before; whoever runs the provider can read why it refused."
    return Fail(
        refusal.code if refusal else "provider_refused",
        words,
        facts=facts,
        detail=refusal.detail if refusal else "",
        to="running" if well else "",
    )


def _ids(members: Sequence[MemberSnapshot]) -> tuple[str, ...]:
    return tuple(one.allocation_id for one in members)
