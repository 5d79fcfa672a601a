"""
Upgrading a Kubernetes that its provider makes and keeps: the provider is told the version and does the rest, control planes first, then
workers as disruption budgets allow. What it shows decides how far it is.
"""

from dataclasses import replace

from controlplane.clusters.refusals import REFUSED
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, Roll
from controlplane.clusters.steps.verifying import acceptance
from controlplane.clusters.steps.wanted import staying, wanted
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.providers.clusters import Clusters, ClusterView
from controlplane.providers.errors import Permanent
from controlplane.providers.toolbox import Toolbox

POLL_S = 5.0


def roll(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster is in use again once the provider shows every machine at the version, and every member in use.
    """
    plan = cluster.roll
    assert plan is not None
    assert plan.install is not None
    assert cluster.provider is not None
    version = plan.install["version"]
    clusters = tools.clusters(cluster.provider)
    if cluster.step == "":
        kept = {"install": dict(plan.install), "ahead": {"all": version}}
        return Wait(f"The provider is told Kubernetes {version}.", 0.0, step="told", facts=ClusterFacts(versions=kept))
    if cluster.step not in {"applied", REFUSED}:
        try:
            clusters.apply_cluster(replace(wanted(cluster), version=version))
        except Permanent as error:
            words = f"The provider turned Kubernetes {version} down. What of it is there is looked up."
            return Wait(words, 0.0, step=REFUSED, detail=error.detail)
        return Wait("Control planes are upgraded, then workers.", POLL_S, step="applied")
    view = clusters.observe_cluster(cluster.id)
    if cluster.step == REFUSED:
        return _judge(cluster, clusters, view, version)
    members = staying(cluster)
    seen = {one.ref: one for one in view.members}
    done = [one.allocation_id for one in members if one.ref in seen and seen[one.ref].version == version]
    out = [one.allocation_id for one in members if one.ref not in seen or seen[one.ref].state != "up"]
    failed = [one for one in acceptance(members, view) if one["result"] == "failed"]
    if view.version == version and len(done) == len(members) and not failed:
        now: dict[str, object] = {"version": version, "ahead": {}}
        facts = ClusterFacts(versions=now, checks=tuple(acceptance(members, view)), roll=_so_far(plan, done, ()))
        return Advance("running", f"All {len(members)} workers have Kubernetes {version}.", facts=facts)
    words = f"{len(done)} of {len(members)} workers have Kubernetes {version}."
    detail = "; ".join(one.reason for one in view.members if one.reason)[:2000]
    return Wait(words, POLL_S, detail=detail, facts=ClusterFacts(roll=_so_far(plan, done, out)))


def _judge(cluster: ClusterSnapshot, clusters: Clusters, view: ClusterView, version: str) -> Outcome:
    """
    With every machine at the version that it had, or where the provider takes that version as its word, the cluster is as it was and its
    upgrade has failed; where it has begun it all the same, it goes on. In between nothing is known.
    """
    detail = cluster.refusal.detail if cluster.refusal else ""
    begun = view.version == version or any(one.version == version for one in view.members)
    if view.version == cluster.version or (not begun and _stays(cluster, clusters)):
        words = f"The provider does not bring the cluster to Kubernetes {version}; it has {cluster.version} as before. "
        words += "Whoever runs the provider can read why."
        facts = ClusterFacts(versions={"ahead": {}}, issues=())
        return Fail("upgrade_refused", words, detail=detail, facts=facts, to="running")
    if begun:
        return Wait("The provider has begun the upgrade that it turned down; it goes on.", 0.0, step="applied", detail=detail)
    return Wait("It is not known yet whether the provider has begun the upgrade that it turned down.", POLL_S, detail=detail)


def _stays(cluster: ClusterSnapshot, clusters: Clusters) -> bool:
    """
    Whether the provider was told the version that the cluster has, which it does not take once it has begun with a later one.
    """
    try:
        clusters.apply_cluster(wanted(cluster))
    except Permanent:
        return False
    return True


def _so_far(plan: Roll, done: list[str], out: list[str] | tuple[str, ...]) -> dict[str, object]:
    return {"done": done, "batch": list(out), "head_done": plan.head_done or bool(done)}
