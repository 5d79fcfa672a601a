"""
Installing the workers of a Slurm of one's own anew, a few at a time: drained, installed, seen back, undrained, then the next. Where the
release changes, the head has it before them and logins after them (`releasing`). What is begun and what is done is kept with the
cluster, so that a crash at any point repeats a look and nothing else.
"""

from collections.abc import Mapping

from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, Roll
from controlplane.clusters.steps import releasing
from controlplane.clusters.steps.wanted import staying
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.providers.clusters import ClusterView
from controlplane.providers.toolbox import Toolbox

POLL_S = 2.0
DRAIN_POLL_S = 5.0
DRAINING, INSTALLING, RETURNING, UNDRAINING = "draining", "installing", "returning", "undraining"
WORKERS = frozenset({DRAINING, INSTALLING, RETURNING, UNDRAINING})
EMPTY = frozenset({"drained", "down", "absent"})
"""States of a worker on which nothing runs that could be lost."""
AWAY = frozenset({"down", "absent"})
AT_REST = frozenset({"active", "stopped", "rescued"})
"""States of a machine in which an installation may begin."""


def roll(cluster: ClusterSnapshot, tools: Toolbox) -> Outcome:
    """
    One part of an upgrade has been done. Jobs on a worker are waited for as long as its owner said; a worker that cannot be installed or
    does not come back stops the upgrade until a person lets it go on.
    """
    plan = cluster.roll
    assert plan is not None
    if plan.began_s < 0:
        return Wait("The upgrade goes on.", 0.0, facts=ClusterFacts(roll={"began_s": cluster.state_for_s}))
    return _part(cluster, plan, tools) if cluster.step in WORKERS else _beside(cluster, plan, tools)


def _beside(cluster: ClusterSnapshot, plan: Roll, tools: Toolbox) -> Outcome:
    """
    What is not about workers that are out now: the head, logins, and which workers are next.
    """
    if cluster.step == releasing.HEAD:
        behind = any(one.role == "head" and not one.current for one in staying(cluster))
        return releasing.await_head(cluster, plan, None if behind else _view(cluster, tools))
    if cluster.step == releasing.EVERYBODY:
        return releasing.await_everybody(cluster, plan)
    if plan.install and not plan.head_done and not plan.cancelled:
        return releasing.tell_head(cluster, plan)
    return _choose(cluster, plan, tools)


def _part(cluster: ClusterSnapshot, plan: Roll, tools: Toolbox) -> Outcome:
    batch = [one for one in staying(cluster) if one.allocation_id in plan.batch]
    if cluster.step == INSTALLING:
        return _install(cluster, plan, batch)
    heads = [one for one in staying(cluster) if one.role == "head" and not one.current]
    if heads:
        return Wait("The head does not hold its files yet.", POLL_S, detail="; ".join(one.trouble for one in heads)[:2000])
    part = {DRAINING: _drain, RETURNING: _return, UNDRAINING: _undrain}[cluster.step]
    return part(cluster, plan, batch, _view(cluster, tools))


def _choose(cluster: ClusterSnapshot, plan: Roll, tools: Toolbox) -> Outcome:
    """
    The next workers are told to take no new jobs: those that are out of use already, then those on which nothing runs.
    """
    workers = [one for one in staying(cluster) if one.role == "worker"]
    left = [one for one in workers if one.node_set_id in plan.sets and one.allocation_id not in plan.done]
    if plan.cancelled or (not left and not plan.install):
        return _end(plan, len(left))
    view = _view(cluster, tools)
    if not left:
        return releasing.tell_everybody(cluster, plan, view)
    states = _states(view)
    left.sort(key=lambda one: (states.get(one.ref) == "up", one.allocation_id))
    out = sum(1 for one in workers if one not in left and states.get(one.ref) != "up")
    chosen = [one.allocation_id for one in left[: max(0, plan.at_once - out)]]
    if not chosen:
        return Wait(f"{out} workers are out of use already; no more are taken out.", DRAIN_POLL_S)
    facts = ClusterFacts(
        renew="members", drain=tuple(chosen), roll={"batch": chosen, "started": [], "began_s": cluster.state_for_s}
    )
    return Wait(f"{_so_far(plan, len(left))} {len(chosen)} are drained.", 0.0, step=DRAINING, facts=facts)


def _drain(cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot], view: ClusterView) -> Outcome:
    if plan.cancelled:
        return _end(plan, len(batch))
    states = _states(view)
    busy = [one for one in batch if states.get(one.ref, "absent") not in EMPTY]
    if busy and cluster.state_for_s - plan.began_s < plan.drain_limit_s:
        return Wait(f"Waits for running jobs on {len(busy)} of {len(batch)} workers.", DRAIN_POLL_S)
    return Wait(f"{len(batch)} workers are installed anew.", 0.0, step=INSTALLING)


def _install(cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot]) -> Outcome:
    begun = [one for one in batch if one.allocation_id in plan.started]
    failed = [one for one in begun if one.node_state in AT_REST - {"active"}]
    if failed:
        left = [one for one in plan.started if one not in {bad.allocation_id for bad in failed}]
        names = ", ".join(one.instance_id for one in failed)
        words = f"{names} could not be installed; the upgrade has stopped."
        return Fail("upgrade_worker_failed", words, facts=ClusterFacts(roll={"started": left, "began_s": releasing.SET_BACK}))
    fresh = [one.allocation_id for one in batch if one.allocation_id not in plan.started and one.node_state in AT_REST]
    if fresh:
        return Wait(f"{len(batch)} workers are installed anew.", POLL_S, facts=ClusterFacts(reinstall=tuple(fresh)))
    pending = [one for one in batch if one.node_state != "active" or not one.current]
    if pending:
        return Wait(f"{len(pending)} of {len(batch)} workers are being installed.", POLL_S)
    facts = ClusterFacts(roll={"began_s": cluster.state_for_s})
    return Wait(f"{len(batch)} workers are installed.", 0.0, step=RETURNING, facts=facts)


def _return(cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot], view: ClusterView) -> Outcome:
    if any(one.allocation_id not in plan.started for one in batch):
        return Wait("Workers that came back with another release are installed once more.", 0.0, step=INSTALLING)
    states = _states(view)
    away = [one for one in batch if states.get(one.ref, "absent") in AWAY]
    if away:
        return _patience(cluster, plan, away)
    odd = releasing.odd_workers(cluster, plan, batch, view)
    if odd:
        return releasing.await_release(cluster, plan, odd)
    facts = ClusterFacts(renew="members", roll={"began_s": cluster.state_for_s})
    return Wait(f"{len(batch)} workers are back and may take jobs.", 0.0, step=UNDRAINING, facts=facts)


def _undrain(cluster: ClusterSnapshot, plan: Roll, batch: list[MemberSnapshot], view: ClusterView) -> Outcome:
    states = _states(view)
    away = [one for one in batch if states.get(one.ref, "absent") != "up"]
    if away:
        return _patience(cluster, plan, away)
    done = [*plan.done, *(one.allocation_id for one in batch)]
    facts = ClusterFacts(roll={"done": done, "batch": [], "started": []})
    return Wait(f"{len(done)} workers are upgraded and in use.", 0.0, step="", facts=facts)


def _patience(cluster: ClusterSnapshot, plan: Roll, away: list[MemberSnapshot]) -> Outcome:
    if cluster.state_for_s - plan.began_s < plan.return_limit_s:
        return Wait(f"{len(away)} workers are not in use again yet.", POLL_S)
    names = ", ".join(one.instance_id for one in away)
    words = f"{names} did not come into use again; the upgrade has stopped."
    return Fail("upgrade_worker_not_back", words, facts=ClusterFacts(roll={"began_s": releasing.SET_BACK}))


def _end(plan: Roll, left: int) -> Outcome:
    if not plan.cancelled:
        return Advance("running", f"All {len(plan.done)} workers are upgraded.", facts=ClusterFacts())
    facts = ClusterFacts(renew="members", roll={"batch": [], "started": []}, stopped=True)
    return Advance("running", f"{_so_far(plan, left)} The upgrade was stopped as asked for.", facts=facts)


def _so_far(plan: Roll, left: int) -> str:
    return f"{len(plan.done)} workers are upgraded." if left else f"All {len(plan.done)} workers are upgraded."


def _view(cluster: ClusterSnapshot, tools: Toolbox) -> ClusterView:
    assert cluster.provider is not None
    return tools.clusters(cluster.provider).observe_cluster(cluster.id)


def _states(view: ClusterView) -> Mapping[str, str]:
    return {one.ref: one.state for one in view.members}
