"""
Acceptance checks of the product: every node answers, the GPU count is right; what cannot be measured is shown as such.
"""

from dataclasses import replace
from datetime import datetime

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.providers.clusters import ClusterView, MemberView
from controlplane.providers.toolbox import Toolbox

POLL_S = 1.0


def verify(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    The cluster runs once every member is up with all its GPUs; from then on it is billed.
    """
    assert cluster.provider is not None
    view = tools.clusters(cluster.provider).observe_cluster(cluster.id)
    members = staying(cluster)
    checks = acceptance(members, view)
    failed = [one for one in checks if one["result"] == "failed"]
    if failed:
        return Wait(
            "; ".join(f"{one['name']}: {one['detail']}" for one in failed), POLL_S, facts=ClusterFacts(checks=tuple(checks))
        )
    facts = offered(ClusterFacts(usable_at=usable_since(members, view), checks=tuple(checks)), cluster, view)
    return Advance("running", f"All {len(members)} nodes answer.", facts=facts)


def acceptance(members: list[MemberSnapshot], view: ClusterView) -> list[dict[str, str]]:
    """
    The checks as {name, result, detail}; no node is named.
    """
    seen = {one.ref: one for one in view.members}
    up = [one for one in members if one.ref in seen and seen[one.ref].state == "up"]
    counted = [seen[one.ref].gpus for one in up]
    wanted_gpus, told = sum(one.gpus for one in members), [gpus for gpus in counted if gpus is not None]
    checks = [_check("nodes_answer", len(up) == len(members), f"{len(up)} of {len(members)}")]
    if len(told) < len(counted):
        checks.append({"name": "gpu_count", "result": "not_measured", "detail": "the provider does not tell"})
    else:
        checks.append(_check("gpu_count", sum(told) == wanted_gpus, f"{sum(told)} of {wanted_gpus}"))
    own = {"nodes_answer", "gpu_count"}
    checks += [{"name": one.name, "result": one.result, "detail": ""} for one in view.checks if one.name not in own]
    if not any(one["name"].startswith("fabric") for one in checks):
        checks.append({"name": "fabric_bandwidth", "result": "not_measured", "detail": ""})
    return checks


def offered(facts: ClusterFacts, cluster: ClusterSnapshot, view: ClusterView) -> ClusterFacts:
    """
    The facts with what jobs may ask for, where the cluster's own API tells and it is not what is known.
    """
    known = cluster.offers
    same = view.volumes is None or (view.volumes, dict(view.mig)) == (known.volumes, dict(known.mig))
    if view.job_features is None or (same and view.job_features == known.features):
        return facts
    return replace(facts, job_features=view.job_features, volumes=view.volumes or (), mig=dict(view.mig))


def usable_since(members: list[MemberSnapshot], view: ClusterView) -> dict[str, datetime | None]:
    """
    Per allocation that is not billed yet, the provider's evidence of when it became usable: it was up and the cluster verified.
    """
    seen = {one.ref: one for one in view.members}
    return {one.allocation_id: _later(view.verified_at, seen.get(one.ref)) for one in members if not one.billed}


def _later(verified_at: datetime | None, member: MemberView | None) -> datetime | None:
    up_since = member.up_since if member is not None else None
    if verified_at is None or up_since is None:
        return verified_at
    return max(verified_at, up_since)


def _check(name: str, good: bool, detail: str) -> dict[str, str]:  # noqa: FBT001 - a verdict, not a flag
    return {"name": name, "result": "passed" if good else "failed", "detail": detail}
