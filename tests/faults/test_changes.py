"""
Changes of what is in use: by several callers at once, on nodes that work, at the limit of a quota.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.clusters import scaling
from controlplane.clusters import service as clusters
from controlplane.clusters.states import CLUSTER_STATES
from controlplane.kit.errors import DomainError, QuotaExceeded
from controlplane.providers.adapters.simulated import judge
from tests.faults.region import Grounds

CALLERS, VERBS = 4, 6


def call_at_random(grounds: Grounds, cluster_id: str, seed: int) -> list[str]:
    """
    One caller's verbs on the cluster and what came of each; a refusal is an answer, anything else a fault.
    """
    tenant, project = grounds.world.people[0]
    dice, answers = random.Random(seed), []
    for _ in range(VERBS):
        verb = dice.choice(("grow", "shrink", "label", "cancel", "delete"))
        count = dice.randint(1, 3)

        def work(session: object, verb: str = verb, count: int = count) -> None:
            if verb == "delete":
                clusters.delete_cluster(session, tenant, project, cluster_id, lambda _: None)  # type: ignore[arg-type]
            elif verb == "cancel":
                clusters.cancel_order(session, tenant, cluster_id)  # type: ignore[arg-type]
            else:
                given = {"labels": {"seed": str(seed)}} if verb == "label" else {"counts": {"workers": count}}
                scaling.change_cluster(session, tenant, project, cluster_id, lambda _: None, **given)  # type: ignore[arg-type]

        try:
            grounds.world.do(work)
            answers.append(verb)
        except DomainError as refusal:
            answers.append(refusal.code)
    return answers


@pytest.mark.parametrize("seed", range(8))
def test_any_verbs_from_any_callers_leave_a_legal_life(grounds: Grounds, seed: int) -> None:
    """BR-026: four callers at once, workers in between: every move is in the table, and after a delete nothing but its end comes."""
    cluster_id = grounds.order()
    grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == ("running" if seed % 2 else "provisioning"))
    with ThreadPoolExecutor(CALLERS) as pool:
        asked = [pool.submit(call_at_random, grounds, cluster_id, seed * CALLERS + number) for number in range(CALLERS)]
        while not all(one.done() for one in asked):
            grounds.world.tick()
    assert sum(len(one.result()) for one in asked) == CALLERS * VERBS
    grounds.world.settle()
    grounds.run_out()
    moves = grounds.world.rows("SELECT before, after FROM state_history WHERE resource_id = :c ORDER BY id", c=cluster_id)
    stands = ""
    for move in moves:
        assert move.before == stands, f"{move} does not follow {stands}"
        if stands:
            CLUSTER_STATES.check_move(move.before, move.after)
        stands = move.after
    assert [move.after for move in moves].index("deleting") == len(moves) - 2
    assert stands == "deleted"
    assert grounds.world.rows("SELECT 1 FROM operations WHERE state IN ('pending', 'running', 'needs_attention')") == []


def test_a_node_is_taken_only_when_its_job_is_done(grounds: Grounds) -> None:
    """BR-071: a shrink waits for the job on the node that leaves; the job ends well, and only then is the node taken."""
    cluster_id = grounds.order()
    grounds.world.settle()
    job_id = grounds.submit(cluster_id, nodes=2)
    grounds.work(60, until=lambda: grounds.state("jobs", job_id) == "running")
    grounds.resize(cluster_id, 1)
    while grounds.state("jobs", job_id) != "succeeded":
        grounds.work(5, at_least_s=5)
        running = [one for one in grounds.ledger().jobs if one.ended_at is None]
        if running:
            assert [one for one in grounds.ledger().tenancies if one.release_requested_at is not None] == []
            assert "drained" in grounds.world.rows("SELECT reason || ' drained' AS r FROM clusters")[0].r
    grounds.work(300, until=lambda: grounds.state("clusters", cluster_id) == "running")
    (job,) = grounds.world.rows("SELECT state, requeues, attempt FROM jobs")
    assert (job.state, job.requeues, job.attempt) == ("succeeded", 0, 1)
    assert len([one for one in grounds.ledger().tenancies if one.release_requested_at is None]) == 1
    grounds.run_out()


def test_a_full_quota_holds_on_every_path(grounds: Grounds) -> None:
    """BR-059: ordering, waiting, growing, and a lower limit set under what is held: none of them gets past the project's limit."""
    cluster_id = grounds.order(count=1)
    grounds.world.settle()
    grounds.limit_gpus(16)
    for attempt in (
        lambda: grounds.order("more", 2),
        lambda: grounds.order("later", 2, wait=True),
        lambda: grounds.resize(cluster_id, 3),
    ):
        with pytest.raises(QuotaExceeded):
            attempt()
        assert grounds.used() == 8
    grounds.resize(cluster_id, 2)
    grounds.work(60)
    grounds.limit_gpus(8)
    with pytest.raises(QuotaExceeded):
        grounds.order("more", 1)
    grounds.resize(cluster_id, 1)
    grounds.world.settle()
    with pytest.raises(QuotaExceeded):
        grounds.resize(cluster_id, 2)
    assert grounds.used() == 8
    assert judge.peak_gpus(grounds.ledger())[grounds.world.keys.tenant_id] == 16
    grounds.run_out()


def test_a_replacement_is_charged_once(grounds: Grounds) -> None:
    """BR-056: at the limit, a node that fails is replaced without a second charge, and never more is held than the limit."""
    first = grounds.order(count=1)
    grounds.world.settle()
    grounds.delete(first)
    grounds.world.settle()
    grounds.limit_gpus(24)
    grounds.sim.play("deploy_fails", "deploy", count=2)
    cluster_id = grounds.order(count=3)
    while grounds.state("clusters", cluster_id) != "running":
        assert grounds.used() <= 24
        grounds.work(0.2)
    assert grounds.used() == 24
    with pytest.raises(QuotaExceeded):
        grounds.order("more", 1)
    grounds.world.settle()
    assert grounds.used() == 24
    grounds.run_out()
