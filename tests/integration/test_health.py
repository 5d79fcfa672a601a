"""
What follows from nodes' health: sick nodes are replaced, wiped, put aside and asked to be repaired; a slip changes nothing, and when
many fall ill at once a person is asked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.clusters import replacing, scaling
from controlplane.clusters import service as clusters
from controlplane.kit.errors import NotFound, OperationActive
from controlplane.nodes import service as nodes
from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import ROOT, Database
from tests.factories.world import World, make_world
from workers.sweeps import mend


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A demo region on virtual time."""
    made = make_world(database, tmp_path)
    yield made
    made.clock.stop()


def running(world: World, count: int = 4, name: str = "train") -> str:
    """The id of a cluster that runs."""
    world.settle()
    sets = (clusters.SetOrder("workers", world.keys.instance_type, count),)
    order = clusters.Order(name, "slurm", world.keys.site, sets)
    view, _ = world.do(lambda session: clusters.order_cluster(session, world.tenant, world.keys.project_id, order))
    world.settle()
    return str(view.row.id)


def members(world: World) -> list[str]:
    """Nodes that the tenant holds, by id."""
    return [row.node_id for row in world.rows("SELECT node_id FROM allocations WHERE state = 'active' ORDER BY id")]


def say(world: World, *node_ids: str, health: str = "drain", source: str = "agent", check: str = "xid_74") -> None:
    """One source says the same of these nodes."""
    world.do(lambda s: nodes.report(s, [nodes.Report(one, source, check, health, "words") for one in node_ids]))


def mended(world: World, wait_s: float = 61.0) -> int:
    """What was begun by itself after so long."""
    world.clock.advance(wait_s)
    begun = mend(world.engine)
    world.settle()
    return begun


@pytest.mark.parametrize("health", ["drain", "quarantine"])
def test_a_sick_node_is_replaced_near_the_others(world: World, health: str) -> None:
    """Replaced from the same leaf, wiped, quarantined with a ticket; billed without a gap or a second twice, charged once."""
    cluster_id = running(world)
    sick = members(world)[0]
    say(world, sick, health=health)
    assert mended(world) == 1
    assert world.rows("SELECT state, reason FROM clusters") == [("running", "All 4 nodes answer.")]
    assert sick not in members(world)
    assert len(members(world)) == 4
    assert world.rows("SELECT DISTINCT leaf FROM nodes WHERE state = 'active'").__len__() == 1
    assert world.rows("SELECT state, health FROM nodes WHERE id = :id", id=sick) == [("quarantined", health)]
    assert world.rows("SELECT node_id, closed_at FROM repair_tickets") == [(sick, None)]
    assert world.rows("SELECT DISTINCT used FROM quotas WHERE resource = 'gpus' AND used <> 0") == [(32,)]
    assert world.rows("SELECT type, state FROM operations WHERE type = 'cluster.replace'") == [("cluster.replace", "succeeded")]
    (ended,) = world.rows("SELECT upper(during) AS at FROM meter_intervals WHERE NOT upper_inf(during)")
    (begun,) = world.rows("SELECT max(lower(during)) AS at FROM meter_intervals WHERE upper_inf(during)")
    assert begun.at <= ended.at
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    world.settle()
    assert world.rows("SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')") == []


def test_a_slip_changes_nothing(world: World) -> None:
    """A report that is taken back within a minute, and one of a lesser class, replace nothing."""
    running(world)
    first, second = members(world)[:2]
    say(world, first)
    say(world, second, health="block_allocation")
    world.clock.advance(30)
    assert mend(world.engine) == 0
    say(world, first, health="ok")
    assert mended(world) == 0
    assert {first, second} <= set(members(world))


def test_the_worst_word_counts_until_its_own_source_takes_it_back(world: World) -> None:
    """Another source's all-clear does not clear what one source says."""
    running(world)
    node = members(world)[0]
    say(world, node, source="bmc", check="ecc")
    say(world, node, source="person", check="ecc", health="ok")
    assert world.rows("SELECT health FROM nodes WHERE id = :id", id=node) == [("drain",)]
    say(world, node, source="bmc", check="ecc", health="info")
    assert world.rows("SELECT health FROM nodes WHERE id = :id", id=node) == [("info",)]


def test_many_at_once_ask_a_person(world: World) -> None:
    """A third of a block within a minute freezes it; lifted, what is still sick is replaced."""
    running(world)
    (block,) = world.rows("SELECT DISTINCT site, block FROM nodes WHERE state = 'active'")
    ids = [
        row.id for row in world.rows("SELECT id FROM nodes WHERE site = :s AND block = :b ORDER BY id", s=block.site, b=block.block)
    ]
    held = members(world)
    others = [one for one in ids if one not in held]
    for one in others[: len(ids) // 3 + 1]:
        say(world, one)
    say(world, held[0])
    (frozen,) = world.rows("SELECT id, site, block, made_by FROM automation_freezes")
    assert (frozen.site, frozen.block, frozen.made_by) == (block.site, block.block, "system")
    assert mended(world) == 0
    assert held[0] in members(world)
    for one in others[: len(ids) // 3 + 1]:
        say(world, one, health="ok")
    world.do(lambda s: nodes.lift_freeze(s, frozen.id, by="me"))
    assert mended(world, 1.0) == 1
    assert held[0] not in members(world)


def test_a_few_at_once_are_no_mass_failure(world: World) -> None:
    """Two nodes of a block are two nodes."""
    running(world)
    say(world, *members(world)[:2])
    assert world.rows("SELECT 1 FROM automation_freezes") == []
    assert mended(world) == 1
    assert len(members(world)) == 4


def test_an_idle_sick_node_is_put_aside_and_comes_back_requalified(world: World) -> None:
    """Quarantined with a ticket; requalified it is judged anew, is available, and its ticket is closed."""
    world.settle()
    (idle,) = world.rows("SELECT id, version FROM nodes WHERE state = 'available' ORDER BY id LIMIT 1")
    say(world, idle.id)
    assert mended(world) == 1
    assert world.rows("SELECT state FROM nodes WHERE id = :id", id=idle.id) == [("quarantined",)]
    assert world.rows("SELECT node_id FROM repair_tickets WHERE closed_at IS NULL") == [(idle.id,)]
    world.do(lambda s: nodes.act(s, idle.id, "requalify", reason="repaired", by="me", check=lambda _: None))
    world.settle()
    assert world.rows("SELECT state, health FROM nodes WHERE id = :id", id=idle.id) == [("available", "info")]
    assert world.rows("SELECT 1 FROM repair_tickets WHERE closed_at IS NULL") == []


def test_without_a_spare_the_sick_node_stays(world: World) -> None:
    """Nothing is taken from a tenant for whom there is nothing better; it is replaced when a node is free."""
    running(world)
    held = members(world)
    free = world.rows("SELECT id FROM nodes WHERE state = 'available'")
    for row in free:
        world.do(lambda s, one=row.id: nodes.place_hold(s, one, reason="kept", by="me", until=None))
    say(world, held[0])
    assert mended(world) == 0
    assert set(members(world)) == set(held)
    world.do(lambda s: s.connection().exec_driver_sql("UPDATE node_holds SET lifted_at = cp_clock()"))
    assert mended(world) == 1
    assert held[0] not in members(world)


def test_a_member_that_stays_down_is_replaced(world: World) -> None:
    """The scheduler's own view is a report: down for five minutes while the cluster is degraded, and for a moment nothing."""
    running(world)
    sick = members(world)[0]
    (row,) = world.rows("SELECT ref FROM nodes WHERE id = :id", id=sick)
    sim = SimControl(world.region.world, now=world.clock)
    sim.kill_node(row.ref)
    for _ in range(60):
        world.clock.advance(10)
        world.tick()
    assert world.rows("SELECT health FROM nodes WHERE id = :id", id=sick) == [("drain",)]
    assert world.rows("SELECT state FROM clusters") == [("degraded",)]
    assert mended(world) == 1
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert sick not in members(world)


def test_an_owner_replaces_a_node(world: World) -> None:
    """By the instance's name; one that is not the cluster's is unknown, and one change at a time."""
    cluster_id = running(world)
    (old,) = world.rows("SELECT instance_id, node_id FROM allocations WHERE state = 'active' ORDER BY id LIMIT 1")

    def replace(instance: str) -> Any:
        return world.do(
            lambda s: replacing.replace_instance(s, world.tenant, world.keys.project_id, cluster_id, instance, lambda _: None)
        )

    with pytest.raises(NotFound):
        replace("ins_00000000000000000000000000")
    replace(old.instance_id)
    with pytest.raises(OperationActive):
        replace(old.instance_id)
    world.settle()
    assert old.node_id not in members(world)
    assert len(members(world)) == 4
    assert world.rows("SELECT state FROM nodes WHERE id = :id", id=old.node_id) == [("available",)]


def test_a_replacement_that_is_given_up_changes_nothing(world: World) -> None:
    """The node stays, is charged as before, and can be replaced later."""
    cluster_id = running(world)
    (old,) = world.rows("SELECT instance_id, node_id FROM allocations WHERE state = 'active' ORDER BY id LIMIT 1")
    world.do(lambda s: s.connection().exec_driver_sql("UPDATE providers SET state = 'disabled'"))
    world.do(
        lambda s: replacing.replace_instance(s, world.tenant, world.keys.project_id, cluster_id, old.instance_id, lambda _: None)
    )
    for _ in range(5):
        world.tick()
    assert world.rows("SELECT state FROM clusters") == [("updating",)]
    world.clock.advance(5 * 3600)
    world.settle()
    world.do(lambda s: _abandon(s, cluster_id))
    world.do(lambda s: s.connection().exec_driver_sql("UPDATE providers SET state = 'active'"))
    world.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert old.node_id in members(world)
    assert world.rows("SELECT count, unplaced FROM node_sets") == [(4, 0)]
    assert world.rows("SELECT DISTINCT used FROM quotas WHERE resource = 'gpus' AND used <> 0") == [(32,)]
    assert world.rows("SELECT count(*) FROM allocations WHERE leaving OR NOT charged") == [(0,)]
    world.do(
        lambda s: scaling.change_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None, counts={"workers": 3})
    )
    world.settle()
    assert world.rows("SELECT DISTINCT used FROM quotas WHERE resource = 'gpus' AND used <> 0") == [(24,)]


def _abandon(session: Any, cluster_id: str) -> None:
    from controlplane.activity import resolving

    resolving.resolve(session, "cluster", cluster_id, "abandon")


def test_a_cluster_that_cannot_be_helped_holds_up_no_other(database: Database, tmp_path: Path) -> None:
    """Looked at one at a time: the one whose sick nodes are more than are free is passed over, and the next look is the other's."""
    world = make_world(database, tmp_path, fleet=str(ROOT / "tests" / "schedules" / "fleet.yaml"))
    running(world, 3)
    running(world, 1, "infer")
    say(world, *members(world))
    for row in world.rows("SELECT id FROM automation_freezes WHERE lifted_at IS NULL"):
        world.do(lambda s, one=row.id: nodes.lift_freeze(s, one, by="test"))
    world.clock.advance(61)
    begun = []
    for _ in range(2):
        begun.append(world.do(lambda s: replacing.replace_sick(s, 1)))
        world.clock.advance(1)
    assert begun == [0, 1]
    assert world.rows("SELECT name, state FROM clusters WHERE state = 'updating'") == [("infer", "updating")]
    world.clock.stop()
