"""
Deletes that nobody confirms, that find nothing, that come first or too late: what may cost money goes, and nobody is charged for it.
"""

from __future__ import annotations

import pytest

from controlplane.kit.errors import NoCapacity
from controlplane.providers.adapters.simulated import judge
from tests.faults.region import NODES, Grounds

MINUTES = 60.0


def test_a_delete_without_an_answer_is_no_delete(grounds: Grounds) -> None:
    """BR-001: while the provider is unreachable nothing is deleted, offered or billed; soon after, everything is gone."""
    cluster_id = grounds.order()
    grounds.world.settle()
    grounds.work(600)
    grounds.sim.play("timeout_before_effect", "*", count=None)
    accepted_at = grounds.delete(cluster_id)
    grounds.work(10 * MINUTES, at_least_s=10)
    assert grounds.state("clusters", cluster_id) == "deleting"
    assert grounds.states("nodes") == ["active"] * 2 + ["available"] * (NODES - 2)
    assert {until for _, until in grounds.metered(cluster_id)} == {accepted_at}
    with pytest.raises(NoCapacity):
        grounds.order("next", NODES)
    grounds.heal()
    assert grounds.work(120, until=lambda: grounds.state("clusters", cluster_id) == "deleted") <= 120
    grounds.run_out()
    live = judge.live_objects(grounds.ledger())
    assert (live.deployments, live.clusters) == (frozenset(), frozenset())


def test_a_delete_that_stays_unconfirmed_is_shown_and_tried_for_ever(grounds: Grounds) -> None:
    """BR-001, BR-028: after its bound operators see the debt, the tenant pays nothing, and it goes on by itself once it can."""
    cluster_id = grounds.order()
    grounds.world.settle()
    grounds.work(60)
    grounds.sim.play("5xx_before_effect", "delete_cluster", count=None)
    accepted_at = grounds.delete(cluster_id)
    grounds.overstay()
    assert grounds.attention()[cluster_id] == "unconfirmed_delete"
    (operation,) = grounds.world.rows("SELECT state, deadline_at FROM operations WHERE type = 'cluster.delete'")
    assert operation.state == "needs_attention"
    before = len(grounds.changes("delete_cluster"))
    grounds.restart()
    grounds.work(5 * MINUTES)
    assert len(grounds.changes("delete_cluster")) > before
    assert {until for _, until in grounds.metered(cluster_id)} == {accepted_at}
    grounds.heal()
    grounds.work(5 * MINUTES, until=lambda: grounds.state("clusters", cluster_id) == "deleted")
    assert grounds.world.rows("SELECT state FROM operations WHERE type = 'cluster.delete'") == [("succeeded",)]
    assert cluster_id not in grounds.attention()
    grounds.run_out()


def test_a_machine_that_never_powers_off_is_shown_and_given_to_nobody(grounds: Grounds) -> None:
    """BR-028, BR-035: a release without an end asks for a person; the machine is not offered, and resume works once it is off."""
    cluster_id = grounds.order(count=1)
    grounds.world.settle()
    grounds.work(60)
    grounds.sim.play("power_off_never", "release", count=None)
    accepted_at = grounds.delete(cluster_id)
    grounds.overstay()
    (node,) = grounds.world.rows("SELECT id, state, attention FROM nodes WHERE state <> 'available'")
    assert (node.state, node.attention) == ("releasing", "deadline")
    assert grounds.attention()[node.id] == "deadline"
    assert [one.powered_off_at for one in grounds.ledger().tenancies] == [None]
    assert {until for _, until in grounds.metered(cluster_id)} == {accepted_at}
    with pytest.raises(NoCapacity):
        grounds.order("next", NODES, who=1)
    grounds.heal()
    grounds.resume_all()
    grounds.run_out()
    assert grounds.states("nodes") == ["available"] * NODES


@pytest.mark.parametrize("fault", ["", "effect_then_timeout", "late_success"])
def test_a_tenancy_ends_with_the_network_first_and_the_wipe_last(slow: Grounds, fault: str) -> None:
    """BR-034, BR-035: network, then power, then wipe, then free: in this order in the provider's ledger, whatever goes wrong."""
    if fault:
        slow.sim.play(fault, "release", count=2)
    cluster_id = slow.order(count=3)
    slow.work(10_000, until=lambda: slow.state("clusters", cluster_id) == "running", at_least_s=60)
    slow.delete(cluster_id)
    while not all(one == "available" for one in slow.states("nodes")):
        slow.work(60, at_least_s=60)
        off = {one.ref for one in slow.ledger().tenancies if one.powered_off_at is not None}
        held = {one.ref for one in slow.ledger().tenancies}
        free = {row.ref for row in slow.world.rows("SELECT ref FROM nodes WHERE state = 'available'")}
        assert held & free <= off
    ledger = slow.ledger()
    for one in ledger.tenancies:
        (wipe,) = [wipe for wipe in ledger.wipes if wipe.ref == one.ref and wipe.order > one.order]
        assert one.detached_at is not None
        assert one.powered_off_at is not None
        assert one.detached_at <= one.powered_off_at <= wipe.requested_at
    slow.run_out()


@pytest.mark.parametrize("already", ["removed by hand", "404 to every delete"])
def test_deleting_what_is_gone_succeeds(grounds: Grounds, already: str) -> None:
    """BR-010: somebody else removed it, or the provider says that it is not there: the delete has succeeded soon after."""
    cluster_id = grounds.order()
    grounds.world.settle()
    grounds.sim.remove_cluster(cluster_id)
    if already != "removed by hand":
        grounds.sim.play("flapping_404", "delete_cluster", count=None)
    grounds.delete(cluster_id)
    assert grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == "deleted") <= 30
    grounds.run_out()


def test_one_wrong_not_found_is_no_proof(grounds: Grounds) -> None:
    """BR-010: a look that misses the cluster once does not set its nodes free while it still stands."""
    cluster_id = grounds.order()
    grounds.world.settle()
    grounds.work(60)
    grounds.sim.play("delay", "delete_cluster", params={"seconds": 20.0})
    grounds.sim.play("flapping_404", "observe_cluster")
    grounds.delete(cluster_id)
    while grounds.state("clusters", cluster_id) != "deleted":
        standing = cluster_id in judge.live_objects(grounds.ledger()).clusters
        assert not (standing and "releasing" in grounds.states("nodes"))
        grounds.work(0.5)
    grounds.run_out()


def test_what_can_never_be_placed_says_so_and_can_be_deleted(grounds: Grounds) -> None:
    """BR-011: one node set of a type that nobody has: refused at once, or said within a minute, and gone within another."""
    with pytest.raises(NoCapacity) as refused:
        grounds.order("odd", 1, kind="gb200-nvl72-4")
    assert refused.value.fields["instance_type"] == "gb200-nvl72-4"
    cluster_id = grounds.order("odd", 1, kind="gb200-nvl72-4", wait=True)
    grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == "failed")
    (row,) = grounds.world.rows("SELECT state, issues FROM clusters")
    assert (row.state, row.issues[0]["code"]) == ("failed", "never_fits")
    assert "gb200-nvl72-4" in row.issues[0]["message"]
    assert grounds.used() == 0
    grounds.delete(cluster_id)
    grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == "deleted")
    assert grounds.state("clusters", cluster_id) == "deleted"
    grounds.run_out()


def test_cleaning_up_a_failed_part_is_not_forgotten(grounds: Grounds) -> None:
    """BR-004: nodes that failed stay owed to the provider while the order goes on elsewhere: neither billed nor offered, then gone."""
    grounds.sim.play("deploy_fails", "deploy", count=2)
    grounds.sim.play("5xx_before_effect", "release", count=10)
    cluster_id = grounds.order(count=4)
    grounds.work(120, until=lambda: grounds.state("clusters", cluster_id) == "running")
    owed = grounds.world.rows("SELECT id, state FROM nodes WHERE state = 'releasing'")
    assert len(owed) == 2
    assert len(grounds.metered(cluster_id)) == 4
    with pytest.raises(NoCapacity):
        grounds.order("next", 1, who=1)
    grounds.heal()
    grounds.world.settle()
    assert len(judge.live_objects(grounds.ledger()).deployments) == 4
    grounds.run_out()
    assert grounds.states("nodes") == ["available"] * NODES


def test_undoing_a_growth_touches_nothing_that_was_there(grounds: Grounds) -> None:
    """BR-013: a worker dies in a growth that then cannot be had: only what this growth brought is taken down."""
    cluster_id = grounds.order()
    grounds.world.settle()
    mine = {one.token for one in grounds.ledger().tenancies}
    grounds.sim.play("refused_final", "deploy", count=None)
    with grounds.killing("call.after", times=2):
        grounds.resize(cluster_id, 4)
        grounds.work(5 * MINUTES, at_least_s=10)
    assert {one.token for one in grounds.changes("release")} & mine == set()
    assert grounds.changes("delete_cluster") == []
    assert {one.token for one in grounds.ledger().tenancies if one.release_requested_at is None} == mine
    assert {until for _, until in grounds.metered(cluster_id)} == {None}
    grounds.heal()
    grounds.work(5 * 3600, at_least_s=300)
    assert grounds.state("clusters", cluster_id) == "running"
    assert grounds.used() == 16
    grounds.run_out()


@pytest.mark.parametrize("when", ["before anything was sent", "while it is made", "while it fails"])
def test_a_delete_never_waits_for_a_create(grounds: Grounds, when: str) -> None:
    """BR-014: a delete of what is still being made is done in its own right; without a worker where nothing was sent yet."""
    if when == "while it fails":
        grounds.sim.play("timeout_before_effect", "apply_cluster", count=None)
    cluster_id = grounds.order()
    if when != "before anything was sent":
        grounds.work(3, until=lambda: grounds.state("clusters", cluster_id) in {"provisioning", "bootstrapping"})
    before = len(grounds.sim.calls())
    grounds.delete(cluster_id)
    if when == "before anything was sent":
        assert grounds.state("clusters", cluster_id) == "deleted"
        assert len(grounds.sim.calls()) == before
    assert grounds.work(60, until=lambda: grounds.state("clusters", cluster_id) == "deleted") <= 60
    grounds.run_out()
