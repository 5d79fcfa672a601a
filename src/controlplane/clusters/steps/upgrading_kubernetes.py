"""
Bringing a Kubernetes of one's own to another version, in place: the API servers one after another, then the kubelets of control planes one
after another, then those of workers a few at a time, each emptied first. What hosts are told is kept with the cluster, and what its API
shows decides how it goes on, so that a crash at any point repeats a look and nothing else.

Source: kubernetes.io, "Version Skew Policy": no kubelet is newer than any API server that it may talk to.
"""

from collections.abc import Mapping, Sequence

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, Roll
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.providers.clusters import ClusterView, MemberView
from controlplane.providers.errors import Transient
from controlplane.providers.toolbox import Toolbox
from controlplane.rendering.kubernetes.laws import same, serves

POLL_S = 5.0
SERVING, DRAINING, BRINGING, UNDRAINING = "serving", "draining", "bringing", "undraining"
SET_BACK = -1.0
"""Instead of a moment: the time of this part counts from the next look."""
IN_PLACE_LIMIT_S = 3600.0
"""How long a host may take to fetch, install and come back; then a person is asked, and the host goes on trying."""
EMPTY = frozenset({"drained", "down", "absent"})
"""States of a host on which no pods run that could be lost."""
HERE = frozenset({"up", "drained", "draining"})


def roll(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    One part of an upgrade has been done. Pods that disruption budgets hold are never cut off: they, and a host that does not come back with
    its version, stop the upgrade until a person lets it go on.
    """
    plan = cluster.roll
    assert plan is not None
    assert plan.install is not None
    if plan.began_s < 0:
        return Wait("The upgrade goes on.", 0.0, facts=ClusterFacts(roll={"began_s": cluster.state_for_s}))
    batch = [one for one in staying(cluster) if one.allocation_id in plan.batch]
    if cluster.step in {SERVING, BRINGING}:
        return _follow(cluster, plan, batch, tools)
    late = [one for one in _leads(cluster) if not one.current]
    if late:
        words = "Control planes do not hold their files yet."
        return _patience(cluster, plan, words, "upgrade_control_plane_failed", IN_PLACE_LIMIT_S, late)
    view = _look(cluster, tools)
    if cluster.step == DRAINING:
        return _drain(cluster, plan, batch, view)
    return _undrain(cluster, plan, batch, view) if cluster.step == UNDRAINING else _choose(cluster, plan, view)


def _choose(cluster: ClusterSnapshot, plan: Roll, view: ClusterView) -> Outcome:
    """
    Who is next: an API server, a control plane, or workers; or it is over.
    """
    assert plan.install is not None
    target, seen = plan.install["version"], _seen(view)
    if plan.cancelled:
        return _stop(plan)
    odd = [name for name, one in seen.items() if one.version and not serves(target, one.version)]
    if odd:
        words = f"{', '.join(sorted(odd))}: an API server of {target} does not take the kubelets there; the upgrade has stopped."
        return Fail("upgrade_version_skew", words, facts=_reset())
    return _control_planes(cluster, plan, seen) or _workers(cluster, plan, view)


def _control_planes(cluster: ClusterSnapshot, plan: Roll, seen: Mapping[str, MemberView]) -> Outcome | None:
    """
    Which control plane is next, once all are ready; None when all have the version.
    """
    assert plan.install is not None
    target, leads = plan.install["version"], _leads(cluster)
    waiting = [one for one in leads if cluster.distribution != "k3s" and not same(_api(seen, one), target)]
    behind = [one for one in leads if not _has(seen, one, target)]
    away = [one for one in leads if _state(seen, one) != "up"]
    if away and (waiting or behind):
        words = f"{len(away)} of {len(leads)} control planes are not ready; none is taken out before they are."
        return _patience(cluster, plan, words, "upgrade_control_plane_not_ready", plan.return_limit_s, away)
    if waiting:
        words = f"API server {len(leads) - len(waiting) + 1} of {len(leads)} is brought to Kubernetes {target}."
        return Wait(words, POLL_S, step=SERVING, facts=_tell(cluster, plan, waiting[:1], "api"))
    if behind:
        words = f"Control plane {len(leads) - len(behind) + 1} of {len(leads)} is emptied before it gets Kubernetes {target}."
        return _empty(cluster, behind[:1], words)
    if plan.head_done:
        return None
    facts = ClusterFacts(roll={"head_done": True})
    return Wait(f"All {len(leads)} control planes have Kubernetes {target}.", 0.0, step="", facts=facts)


def _workers(cluster: ClusterSnapshot, plan: Roll, view: ClusterView) -> Outcome:
    assert plan.install is not None
    target, seen = plan.install["version"], _seen(view)
    workers = [one for one in staying(cluster) if one.role == "worker"]
    older = [one for one in workers if not _has(seen, one, target)]
    left = [one for one in older if one.node_set_id in plan.sets]
    if not left:
        return _end(plan, len(workers), len(older))
    left.sort(key=lambda one: (_state(seen, one) == "up", one.allocation_id))
    out = sum(1 for one in workers if one not in left and _state(seen, one) != "up")
    chosen = left[: max(0, plan.at_once - out)]
    if not chosen:
        return Wait(f"{out} workers are out of use already; no more are taken out.", POLL_S)
    done = len(workers) - len(older)
    return _empty(cluster, chosen, f"{done} of {len(workers)} workers have Kubernetes {target}; {len(chosen)} are emptied.")


def _empty(cluster: ClusterSnapshot, chosen: Sequence[MemberSnapshot], words: str) -> Outcome:
    ids = [one.allocation_id for one in chosen]
    facts = ClusterFacts(renew="members", drain=tuple(ids), roll={"batch": ids, "started": [], "began_s": cluster.state_for_s})
    return Wait(words, 0.0, step=DRAINING, facts=facts)


def _drain(cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot], view: ClusterView) -> Outcome:
    if plan.cancelled:
        return _stop(plan)
    seen = _seen(view)
    busy = [one for one in batch if _state(seen, one) not in EMPTY]
    if busy:
        words = f"Waits for pods on {len(busy)} of {len(batch)} hosts to leave, as disruption budgets allow."
        return _patience(cluster, plan, words, "upgrade_pods_stay", plan.drain_limit_s, busy)
    assert plan.install is not None
    words = f"{len(batch)} hosts are brought to Kubernetes {plan.install['version']}."
    return Wait(words, POLL_S, step=BRINGING, facts=_tell(cluster, plan, batch, "all"))


def _tell(cluster: ClusterSnapshot, plan: Roll, batch: Sequence[MemberSnapshot], part: str) -> ClusterFacts:
    """
    The hosts of the batch are told the version; those that were drained stay so.
    """
    ids = [one.allocation_id for one in batch]
    return ClusterFacts(
        renew="members",
        drain=tuple(ids) if part == "all" else (),
        roll={"batch": ids, "began_s": cluster.state_for_s},
        versions={"install": dict(plan.install or {}), "ahead": {**cluster.ahead, **dict.fromkeys(ids, part)}},
    )


def _follow(cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot], tools: Toolbox) -> Outcome:
    """
    The hosts have said that they are done, and the API shows it. While the only API server is away nothing is known.
    """
    assert plan.install is not None
    target, serving = plan.install["version"], cluster.step == SERVING
    words = f"{len(batch)} {'API servers' if serving else 'hosts'} are brought to Kubernetes {target}."
    code = "upgrade_control_plane_failed" if any(one.role != "worker" for one in batch) else "upgrade_worker_failed"
    late = [one for one in batch if not one.current]
    if late:
        return _patience(cluster, plan, words, code, IN_PLACE_LIMIT_S, late)
    try:
        seen = _seen(_look(cluster, tools))
    except Transient as error:
        return _patience(cluster, plan, f"{words} The API does not answer: {error.detail}", code, IN_PLACE_LIMIT_S, batch)
    odd = [one for one in batch if not (same(_api(seen, one), target) if serving else _has(seen, one, target))]
    odd += [one for one in batch if one not in odd and _state(seen, one) not in HERE]
    if odd:
        return _patience(cluster, plan, words, code, plan.return_limit_s, odd)
    if serving:
        return Wait(
            f"{words[:-1]}, and say so.", 0.0, step="", facts=ClusterFacts(roll={"batch": [], "began_s": cluster.state_for_s})
        )
    facts = ClusterFacts(renew="members", roll={"began_s": cluster.state_for_s})
    return Wait(f"{len(batch)} hosts have Kubernetes {target} and may take pods.", 0.0, step=UNDRAINING, facts=facts)


def _undrain(cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot], view: ClusterView) -> Outcome:
    seen = _seen(view)
    away = [one for one in batch if _state(seen, one) != "up"]
    if away:
        words = f"{len(away)} hosts are not in use again yet."
        return _patience(cluster, plan, words, "upgrade_worker_not_back", plan.return_limit_s, away)
    done = [*plan.done, *(one.allocation_id for one in batch if one.role == "worker")]
    facts = ClusterFacts(roll={"done": done, "batch": [], "began_s": cluster.state_for_s})
    return Wait(f"{len(batch)} hosts are upgraded and in use.", 0.0, step="", facts=facts)


def _patience(
    cluster: ClusterSnapshot, plan: Roll, words: str, code: str, limit_s: float, late: Sequence[MemberSnapshot]
) -> Outcome:
    trouble = "; ".join(f"{one.instance_id}: {one.trouble}" for one in late if one.trouble)[:2000]
    if cluster.state_for_s - plan.began_s < limit_s:
        return Wait(words, POLL_S, detail=trouble)
    names = ", ".join(one.instance_id for one in late)
    return Fail(code, f"{words} {names}: it takes too long; the upgrade has stopped.", facts=_reset(), detail=trouble)


def _reset() -> ClusterFacts:
    return ClusterFacts(roll={"began_s": SET_BACK})


def _stop(plan: Roll) -> Outcome:
    facts = ClusterFacts(renew="members", roll={"batch": []}, stopped=True)
    return Advance("running", f"{len(plan.done)} workers are upgraded. The upgrade was stopped as asked for.", facts=facts)


def _end(plan: Roll, workers: int, older: int) -> Outcome:
    """
    With all hosts at the version it is the cluster's; with others there it stays written down who is ahead.
    """
    assert plan.install is not None
    target = plan.install["version"]
    if older:
        words = f"{len(plan.done)} workers are upgraded; {older} others do not have Kubernetes {target} yet."
        return Advance("running", words, facts=ClusterFacts())
    kept = {"version": target, "install": dict(plan.install), "ahead": {}}
    facts = ClusterFacts(renew="members", versions=kept)
    return Advance("running", f"All control planes and {workers} workers have Kubernetes {target}.", facts=facts)


def _leads(cluster: ClusterSnapshot) -> list[MemberSnapshot]:
    return sorted((one for one in staying(cluster) if one.role == "control_plane"), key=lambda one: one.ref)


def _look(cluster: ClusterSnapshot, tools: Toolbox) -> ClusterView:
    assert cluster.provider is not None
    return tools.clusters(cluster.provider).observe_cluster(cluster.id)


def _seen(view: ClusterView) -> Mapping[str, MemberView]:
    return {one.ref: one for one in view.members}


def _state(seen: Mapping[str, MemberView], one: MemberSnapshot) -> str:
    return seen[one.ref].state if one.ref in seen else "absent"


def _api(seen: Mapping[str, MemberView], one: MemberSnapshot) -> str:
    return seen[one.ref].api_version if one.ref in seen else ""


def _has(seen: Mapping[str, MemberView], one: MemberSnapshot, version: str) -> bool:
    return one.ref in seen and same(seen[one.ref].version, version)
