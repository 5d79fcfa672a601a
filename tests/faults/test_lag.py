"""
Reads that lag, answers that are lost, workers that die around a call: one object for one order, and each has an owner.
"""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import text

from controlplane.providers.adapters.simulated import judge
from tests.faults.region import NODES, Grounds, tokens

LOST = (
    "effect_then_5xx",
    "effect_then_timeout",
    "effect_then_reset",
    "late_success",
    "duplicate_effect",
    "wrong_type",
    "huge_body",
)
LAGS = text("UPDATE providers SET config = config || '{\"read_lag_s\": 100}', version = version + 1")
ASKED = ("deploy", "apply_cluster", "release", "wipe", "delete_cluster")


@pytest.mark.parametrize("fault", LOST)
def test_an_answer_that_is_lost_doubles_nothing(grounds: Grounds, fault: str) -> None:
    """BR-002, BR-053: whichever call's answer is lost or late, one object comes of it, owned by a row; in the end none is left."""
    for operation in ASKED:
        grounds.sim.play(fault, operation, count=2)
    cluster_id = grounds.order(count=3)
    grounds.work(1200, until=lambda: grounds.state("clusters", cluster_id) == "running", at_least_s=2)
    assert grounds.state("clusters", cluster_id) == "running"
    made = tokens(grounds.ledger(), [cluster_id])
    held = grounds.world.rows("SELECT id FROM allocations WHERE state = 'active'")
    assert sorted(made) == sorted(row.id for row in held)
    grounds.delete(cluster_id)
    grounds.work(1200, at_least_s=2)
    grounds.run_out()
    assert judge.double_objects(grounds.ledger()) == []


@pytest.mark.parametrize("point", ["claim.after_commit", "call.before", "call.after", "apply.before_commit", "apply.after_commit"])
def test_a_create_whose_worker_dies_goes_on_by_itself(grounds: Grounds, point: str) -> None:
    """BR-008, BR-050: killed at any point, the order is running soon after without anybody's help, made once."""
    grounds.order("first", 1)
    grounds.world.settle()
    cluster_id = grounds.order("second", 1)
    with grounds.killing(point, skip=1) as died:
        took_s = grounds.work(600, until=lambda: grounds.state("clusters", cluster_id) == "running")
    assert died == [point]
    assert took_s <= 120
    assert len(tokens(grounds.ledger(), [cluster_id])) == 1
    grounds.run_out()


def test_reads_that_lag_make_nothing_twice(grounds: Grounds) -> None:
    """BR-007, BR-020, BR-052: reads show the past, and each worker dies right after an effect: every object is made once and owned."""
    grounds.world.do(lambda session: session.execute(LAGS))
    grounds.sim.play("stale_read", "observe*", count=None, params={"seconds": 90.0})
    grounds.sim.play("stale_read", "list_*", count=None, params={"seconds": 90.0})
    ids = [grounds.order(f"c{number}", 1) for number in range(NODES)]
    # Rows that lost their worker twice are claimed alone, so clusters do not come along in step.
    for goal, skip in (({"bootstrapping", "verifying", "running"}, 1), ({"running"}, 0)):
        with grounds.killing("call.after", times=4, skip=skip) as died:
            grounds.work(2400, until=lambda goal=goal: set(grounds.states("clusters")) <= goal, at_least_s=20)  # type: ignore[misc]
        assert set(grounds.states("clusters")) <= goal
        assert len(died) == 4
    ledger = grounds.ledger()
    assert len(ledger.tenancies) == len(ledger.clusters) == NODES
    sent = Counter((one.target, one.token) for one in grounds.changes("deploy"))
    assert len(sent) == len({ref for ref, _ in sent}) == NODES
    owned = {row.id: row.cluster_id for row in grounds.world.rows("SELECT id, cluster_id FROM allocations WHERE state = 'active'")}
    assert {one.token: one.cluster_id for one in ledger.tenancies} == owned
    assert set(owned.values()) == set(ids)
    for one in ids:
        grounds.delete(one)
    grounds.work(1200, until=lambda: grounds.states("nodes") == ["available"] * NODES, at_least_s=20)
    grounds.heal()
    grounds.run_out()
    assert judge.live_objects(grounds.ledger()).deployments == frozenset()


def test_an_order_that_failed_is_not_forgotten_behind_old_reads(grounds: Grounds) -> None:
    """BR-007: the order fails while reads still show the time before it was made: what it left is removed all the same."""
    grounds.world.do(lambda session: session.execute(LAGS))
    cluster_id = grounds.order()
    grounds.work(60, until=lambda: cluster_id in judge.live_objects(grounds.ledger()).clusters)
    grounds.sim.play("stale_read", "observe*", count=None, params={"seconds": 90.0})
    grounds.delete(cluster_id)
    while grounds.state("clusters", cluster_id) != "deleted":
        grounds.work(5, at_least_s=5)
    assert cluster_id not in judge.live_objects(grounds.ledger()).clusters
    grounds.heal()
    grounds.run_out()


def test_what_kills_its_workers_is_put_before_a_person(grounds: Grounds) -> None:
    """BR-091: a row whose step never returns is tried a few times, counted at each claim, and then waits for a person."""
    cluster_id = grounds.order(count=1)
    grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == "bootstrapping")
    with grounds.killing("call.before", times=1000) as died:
        grounds.work(1200, at_least_s=20)
        assert len(died) <= 6
        assert grounds.attention()[cluster_id] == "attempts"
        calm = len(died)
        grounds.work(600, at_least_s=20)
        assert len(died) == calm
    grounds.resume_all()
    grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == "running")
    assert grounds.state("clusters", cluster_id) == "running"
    grounds.run_out()
