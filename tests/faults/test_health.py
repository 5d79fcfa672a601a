"""
Looks that fail while all is well, and machines that fail while others are looked at: nothing is taken away for not being seen.
"""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from controlplane.clusters import reaping
from controlplane.kit.db import make_engine
from controlplane.kit.orphans import GAP_S
from controlplane.providers.adapters.simulated import judge
from controlplane.providers.clusters import ClusterSpec
from controlplane.providers.errors import Unknown
from tests.faults.region import NODES, Grounds
from workers.sweeps import Suspects, reap

TAKES_AWAY = ("delete_cluster", "release", "wipe", "cancel", "drain")


def taken(grounds: Grounds) -> int:
    """
    How many calls took something away.
    """
    return sum(len(grounds.changes(one)) for one in TAKES_AWAY)


def look(grounds: Grounds, suspects: Suspects, after_s: float = GAP_S) -> int:
    """
    How many clusters the next look of the reaper removed.
    """
    grounds.silence(after_s)
    return reap(grounds.world.engine, grounds.world.tools, suspects)


@pytest.mark.parametrize("fault", ["timeout_before_effect", "flapping_404", "auth_401_mid_operation", "busy_429_without"])
def test_what_cannot_be_seen_is_not_lost(grounds: Grounds, fault: str) -> None:
    """BR-005: five minutes without a look: the cluster is degraded at most, nothing is deleted, the meter runs on, and it recovers."""
    cluster_id = grounds.order()
    grounds.world.settle()
    job_id = grounds.submit(cluster_id)
    grounds.work(5)
    before, wiped = taken(grounds), grounds.states("nodes")
    grounds.sim.play(fault, "observe*", count=None)
    if fault != "flapping_404":  # a scheduler that says so twice is believed; see the tests of jobs
        grounds.sim.play(fault, "find_job", count=None)
    for _ in range(10):
        grounds.work(30, at_least_s=10)
        assert grounds.state("clusters", cluster_id) in {"running", "degraded"}
    assert taken(grounds) == before
    assert grounds.states("nodes") == wiped
    assert {until for _, until in grounds.metered(cluster_id)} == {None}
    grounds.heal()
    grounds.work(300, until=lambda: grounds.state("clusters", cluster_id) == "running", at_least_s=5)
    assert grounds.state("clusters", cluster_id) == "running"
    grounds.work(600, until=lambda: grounds.state("jobs", job_id) == "succeeded", at_least_s=5)
    assert grounds.state("jobs", job_id) == "succeeded"
    grounds.run_out()


def test_a_machine_that_died_is_shown_and_kept(grounds: Grounds) -> None:
    """BR-005: a member that is dead for a while makes its cluster degraded, not smaller; it is back by itself."""
    cluster_id = grounds.order()
    grounds.world.settle()
    grounds.work(60)
    grounds.sim.kill_node(grounds.ledger().tenancies[0].ref, for_s=300)
    grounds.work(120, until=lambda: grounds.state("clusters", cluster_id) == "degraded", at_least_s=5)
    assert grounds.state("clusters", cluster_id) == "degraded"
    before = taken(grounds)
    grounds.work(600, until=lambda: grounds.state("clusters", cluster_id) == "running", at_least_s=5)
    assert grounds.state("clusters", cluster_id) == "running"
    assert taken(grounds) == before
    assert {until for _, until in grounds.metered(cluster_id)} == {None}
    grounds.run_out()


def test_tenants_keep_running_while_nobody_works(grounds: Grounds) -> None:
    """BR-095: workers are off for hours and start again many times in between: no second is lost or doubled, and no node is touched."""
    cluster_id = grounds.order(count=3)
    grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == "running")
    for minutes in (1, 7, 45, 240):
        grounds.silence(minutes * 60)
        with grounds.killing("apply.before_commit", times=2):
            grounds.work(90, at_least_s=10)
        grounds.restart()
    assert taken(grounds) == NODES, "the first wipes"
    grounds.delete(cluster_id)
    grounds.silence(3600)
    grounds.run_out()
    assert len(judge.billable_intervals(grounds.ledger())) == 3


def test_a_database_that_knows_too_little_removes_nothing(grounds: Grounds) -> None:
    """BR-049: the database is away, or was emptied by mistake: what stands at the provider is left standing."""
    cluster_id = grounds.order()
    grounds.world.settle()
    before = taken(grounds)
    grounds.silence(1000)
    suspects: Suspects = {}
    away = make_engine("postgresql://nobody:nothing@127.0.0.1:1/none", pool_size=1)
    with pytest.raises(OperationalError):
        reap(away, grounds.world.tools, suspects)
    away.dispose()
    assert look(grounds, suspects) == 0
    grounds.world.database.reset()
    assert [look(grounds, suspects), look(grounds, suspects)] == [0, 0]
    assert taken(grounds) == before
    assert cluster_id in judge.live_objects(grounds.ledger()).clusters


def test_only_what_we_saw_gone_is_reaped(grounds: Grounds) -> None:
    """BR-049: of clusters that run, that nobody knows and that came back after their end, the last alone is removed, and not at once."""
    back, running = grounds.order("back", 1), grounds.order("running", 1)
    grounds.world.settle()
    provider = grounds.world.do(reaping.watched_providers)[0]
    clusters = grounds.world.tools.clusters(provider)
    clusters.apply_cluster(ClusterSpec("clu_stranger", "ten_x", "prj_x", "", ()))
    grounds.sim.play("late_success", "apply_cluster", params={"seconds": 3600.0})
    with pytest.raises(Unknown):
        clusters.apply_cluster(ClusterSpec(back, grounds.world.keys.tenant_id, grounds.world.keys.project_id, "", ()))
    grounds.delete(back)
    grounds.world.settle()
    grounds.silence(3700)
    suspects: Suspects = {}
    assert look(grounds, suspects) == 0
    grounds.sim.play("partial_list", "list_clusters", params={"share": 0.9})
    assert look(grounds, suspects) == 0
    assert look(grounds, suspects, after_s=GAP_S - 1) == 1
    assert judge.live_objects(grounds.ledger()).clusters == {running, "clu_stranger"}
    told = grounds.world.rows(
        "SELECT type, resource_id, data->>'why' FROM events WHERE type IN ('cluster.reaped', 'cluster.orphan')"
    )
    assert sorted(told) == [("cluster.orphan", "clu_stranger", "unknown_cluster"), ("cluster.reaped", back, None)]


def test_many_clusters_that_come_back_wait_for_a_person(grounds: Grounds) -> None:
    """BR-049: four at once are somebody's error and no leftover: none is removed, and operators read why."""
    gone = [grounds.order(f"gone{number}", 1) for number in range(4)]
    grounds.world.settle()
    clusters = grounds.world.tools.clusters(grounds.world.do(reaping.watched_providers)[0])
    for one in gone:
        grounds.sim.play("late_success", "apply_cluster", params={"seconds": 3600.0})
        with pytest.raises(Unknown):
            clusters.apply_cluster(ClusterSpec(one, grounds.world.keys.tenant_id, grounds.world.keys.project_id, "", ()))
        grounds.delete(one)
    grounds.world.settle()
    grounds.silence(3700)
    suspects: Suspects = {}
    assert [look(grounds, suspects) for _ in range(3)] == [0, 0, 0]
    assert judge.live_objects(grounds.ledger()).clusters == set(gone)
    told = grounds.world.rows("SELECT resource_id, data->>'why' FROM events WHERE type = 'cluster.orphan'")
    assert sorted(told) == sorted((one, "too_many") for one in gone)
