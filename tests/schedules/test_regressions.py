"""
What random schedules found, each as the shortest story that shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from controlplane.clusters import service as clusters
from controlplane.kit.outcome import Advance
from controlplane.nodes import service as nodes
from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import Database
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises
from tests.schedules.run import FLEET

REFUSED = text("UPDATE clusters SET state = 'failed', due_at = cp_clock() WHERE id = :id")


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """
    Six nodes on virtual time.
    """
    made = make_world(database, tmp_path, fleet=str(FLEET))
    made.settle()
    yield made
    made.clock.stop()


@pytest.fixture
def control(world: World) -> Iterator[SimControl]:
    """
    The hand that reaches into the simulator.
    """
    hand = SimControl(world.region.world)
    yield hand
    hand.close()


def order(world: World, count: int = 1, name: str = "c") -> str:
    """
    A cluster just ordered; it waits for room.
    """
    sets = (clusters.SetOrder("workers", world.keys.instance_type, count),)
    wanted = clusters.Order(name, "slurm", world.keys.site, sets, wait=True)
    view, _ = world.do(lambda session: clusters.order_cluster(session, world.tenant, world.keys.project_id, wanted))
    return str(view.row.id)


def delete(world: World, cluster_id: str) -> None:
    """
    Deletion was accepted.
    """
    project = world.keys.project_id
    world.do(lambda session: clusters.delete_cluster(session, world.tenant, project, cluster_id, lambda _: None))


def test_a_release_that_is_refused_is_not_given_up(world: World, control: SimControl) -> None:
    """Seed 1332: the provider refuses to end a tenancy. The node is not put aside with a tenant on it, but asked for until released."""
    cluster_id = order(world)
    world.settle()
    control.play("refused_final", "release", count=3)
    delete(world, cluster_id)
    world.go_on(12)
    assert world.rows("SELECT count(*) FROM nodes WHERE state = 'quarantined'") == [(0,)]
    world.settle()
    assert world.rows("SELECT DISTINCT state FROM nodes") == [("available",)]
    assert broken_promises(world) == []


@pytest.mark.parametrize("fault", ["wipe_fails", "wipe_check_fails", "wipe_lies", "wipe_empty_report"])
def test_a_node_whose_wipe_failed_can_be_wiped_again(world: World, control: SimControl, fault: str) -> None:
    """Seeds 1381, 1708: traces that a failed wipe left do not keep the next one from being tried, and it counts."""
    cluster_id = order(world)
    world.settle()
    control.play(fault, "wipe")
    delete(world, cluster_id)
    world.settle()
    (node,) = world.rows("SELECT id FROM nodes WHERE state = 'quarantined'")
    world.do(lambda session: nodes.act(session, node.id, "requalify", reason="looked at", by="test", check=lambda _: None))
    world.settle()
    assert world.rows("SELECT DISTINCT state FROM nodes") == [("available",)]
    assert broken_promises(world) == []


def test_a_late_result_does_not_wake_what_is_at_rest(world: World) -> None:
    """Seed 1318: a refused order is deleted while a worker clears up after it; what the worker brings afterwards leaves the row at rest."""
    first = order(world, 6)
    world.settle()
    second = order(world, 1, "d")
    world.do(lambda session: session.execute(REFUSED, {"id": second}))
    driver = world.drivers["cluster"]
    claims = [one for one in driver.claim(100) if one.id == second]
    assert claims
    delete(world, second)
    driver.apply([driver.step(one, world.tools) for one in claims])
    assert world.rows("SELECT state, due_at FROM clusters WHERE id = :id", id=second) == [("deleted", None)]
    delete(world, first)
    world.settle()


def test_a_node_that_became_ready_too_late_is_taken_back(world: World) -> None:
    """A worker brings word that a node is deployed after its cluster has gone: it is wiped like the others, and stays with nobody."""
    cluster_id = order(world)
    driver = world.drivers["node"]
    late = []
    for _ in range(200):
        for kind in ("cluster", "node"):
            one = world.drivers[kind]
            one.decide(100)
            results = [one.step(claim, world.tools) for claim in one.claim(100)]
            late = [
                result
                for result in results
                if result.claim.state == "deploying" and result.outcome == Advance("active", "Deployed.")
            ]
            one.apply([result for result in results if result not in late])
            if late:
                break
        if late:
            break
        world.clock.advance(1)
    assert late
    delete(world, cluster_id)
    others = world.drivers["cluster"]
    for _ in range(100):
        others.apply([others.step(claim, world.tools) for claim in others.claim(100)])
        if world.rows("SELECT 1 FROM clusters WHERE id = :id AND state = 'deleted'", id=cluster_id):
            break
        world.clock.advance(0.2)
    assert world.rows("SELECT state FROM nodes WHERE state <> 'available'") == [("deploying",)]
    driver.apply(late)
    world.settle()
    assert world.rows("SELECT DISTINCT state FROM nodes") == [("available",)]
    assert broken_promises(world) == []
