"""
With every planted bug the suite's checks fail; without one they pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from controlplane.clusters import service as clusters
from controlplane.kit.db import Wall, raise_wall
from controlplane.kit.errors import NoCapacity
from controlplane.nodes import service as nodes
from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import Database
from tests.crash.main_job import Hand
from tests.factories.world import World, make_world
from tests.planted import bugs
from tests.schedules.invariants import broken_promises
from tests.schedules.run import run_one

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
SEEDS = range(1, 41)
SECOND_ALLOCATION = """
    INSERT INTO allocations (id, instance_id, node_id, tenant_id, reseller_id, project_id, cluster_id, node_set_id, instance_type,
      site, gpus, network, during)
    SELECT id || 'x', instance_id || 'x', node_id, tenant_id, reseller_id, project_id, cluster_id, node_set_id, instance_type, site,
      gpus, network, during FROM allocations LIMIT 1
"""

Plant = Callable[[World], AbstractContextManager[None]]


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """
    Six nodes, two tenants, virtual time.
    """
    made = make_world(database, tmp_path, fleet=str(FLEET))
    made.settle()
    yield made
    made.clock.stop()


def order(world: World, who: int, count: int) -> str:
    """
    A cluster that one of the tenants has just ordered.
    """
    tenant, project = world.people[who]
    sets = (clusters.SetOrder("workers", world.keys.instance_type, count),)
    wanted = clusters.Order(f"c{who}", "slurm", world.keys.site, sets)
    return str(world.do(lambda session: clusters.order_cluster(session, tenant, project, wanted))[0].row.id)


def found_by_schedules(world: World) -> str:
    """
    What the first failing schedule of a few says; nothing when none fails.
    """
    for seed in SEEDS:
        broken = run_one(world, seed)[1]
        if broken:
            return broken
    return ""


def found_by_two_tenants(world: World) -> str:
    """
    One tenant uses all nodes and gives them back to wipes that fail; another orders as many.
    """
    control = SimControl(world.region.world)
    control.play("wipe_fails", "wipe", count=None)
    first = order(world, 0, 6)
    world.settle()
    tenant, project = world.people[0]
    world.do(lambda session: clusters.delete_cluster(session, tenant, project, first, lambda _: None))
    world.settle()
    try:
        order(world, 1, 6)
    except NoCapacity:
        return ""
    finally:
        control.close()
    world.settle()
    return "; ".join(broken_promises(world))


def found_by_a_sleeper(world: World) -> str:
    """
    A worker that lost its lease with a result in its hands still changes something.
    """
    order(world, 0, 2)
    sleeper, second = Hand(world, world.toolbox()), Hand(world, world.toolbox())
    for _ in range(4):
        world.drivers["cluster"].decide(100)
    sleeper.claims = [("node", claim) for claim in world.drivers["node"].claim(100)]
    assert sleeper.claims
    world.clock.advance(70)
    driver = world.drivers["node"]
    held = driver.claim(100)
    late = sleeper.wake_up_late()
    driver.apply([driver.step(claim, second.tools) for claim in held])
    return f"{late} late changes" if late else ""


PLANTS: list[tuple[str, Plant, Callable[[World], str]]] = [
    ("meter_skipped", bugs.meter_skipped, found_by_schedules),
    ("absence_is_an_error", bugs.absence_is_an_error, found_by_schedules),
    ("random_names", bugs.random_names, found_by_schedules),
    ("quota_in_its_own_transaction", lambda world: bugs.quota_in_its_own_transaction(world.database), found_by_schedules),
    ("quota_kept", lambda _: bugs.quota_kept(), found_by_schedules),
    ("wipe_failure_swallowed", bugs.wipe_failure_swallowed, found_by_two_tenants),
    ("no_fence", bugs.no_fence, found_by_a_sleeper),
]


@pytest.mark.parametrize(("plant", "found"), [(one[1], one[2]) for one in PLANTS], ids=[one[0] for one in PLANTS])
def test_bug_is_caught(world: World, plant: Plant, found: Callable[[World], str]) -> None:
    """With the bug the check says what is broken."""
    with plant(world):
        words = found(world)
    print(words[:300])
    assert words


@pytest.mark.parametrize("found", [found_by_two_tenants, found_by_a_sleeper])
def test_no_bug_no_alarm(world: World, found: Callable[[World], str]) -> None:
    """Without a bug the same check is silent; for schedules the schedules' own tests say so."""
    assert found(world) == ""


def one_node_two_tenants(database: Database, world: World) -> str:
    """
    A second active allocation of a node can be stored.
    """
    order(world, 0, 1)
    world.settle()
    try:
        with database.owner.begin() as connection:
            connection.execute(text(SECOND_ALLOCATION))
    except DBAPIError:
        return ""
    return "I1 two active allocations of one node are stored"


def unwiped_and_available(database: Database, world: World) -> str:
    """
    A node that was used can be made available without a wipe.
    """
    order(world, 0, 1)
    world.settle()
    try:
        with database.owner.begin() as connection:
            for state in ("releasing", "cleaning", "available"):
                connection.execute(
                    text("UPDATE nodes SET state = :s, allocation_id = NULL WHERE state IN ('active', 'releasing', 'cleaning')"),
                    {"s": state},
                )
    except DBAPIError:
        return ""
    return "I7 available without a wipe"


def foreign_rows(database: Database, world: World) -> str:
    """
    A tenant's own transaction sees another tenant's cluster.
    """
    order(world, 0, 1)
    other, _ = world.people[1]
    with Session(database.engine) as session:
        raise_wall(session, Wall(tenant_id=other.wall.tenant_id, reseller_id=""))
        seen = session.execute(text("SELECT count(*) FROM clusters")).scalar_one()
    return f"I5 {seen} foreign clusters" if seen else ""


def standing_clock(database: Database) -> str:
    """
    Time stands still inside a transaction.
    """
    with database.engine.begin() as connection:
        first = connection.execute(text("SELECT cp_clock()")).scalar_one()
        connection.execute(text("SELECT pg_sleep(0.002)"))
        second = connection.execute(text("SELECT cp_clock()")).scalar_one()
    return "" if second > first else "I3 two moments of one transaction are one"


STORED: list[tuple[Callable[[Database], AbstractContextManager[None]], Callable[[Database, World], str]]] = [
    (bugs.no_allocation_constraints, one_node_two_tenants),
    (bugs.no_wipe_trigger, unwiped_and_available),
    (bugs.no_tenant_wall, foreign_rows),
]


@pytest.mark.parametrize(("plant", "found"), STORED)
def test_bug_in_the_database_is_caught(
    database: Database,
    world: World,
    plant: Callable[[Database], AbstractContextManager[None]],
    found: Callable[[Database, World], str],
) -> None:
    """With the wall taken down the check says so."""
    with plant(database):
        assert found(database, world)


@pytest.mark.parametrize("found", [one[1] for one in STORED])
def test_the_database_says_no(database: Database, world: World, found: Callable[[Database, World], str]) -> None:
    """With every wall in place the same check is silent."""
    assert found(database, world) == ""


def test_transaction_time_is_caught(database: Database) -> None:
    """`now()` for `clock_timestamp()` makes time stand still in a transaction; the product's clock goes on."""
    assert standing_clock(database) == ""
    with bugs.transaction_time(database):
        assert standing_clock(database)


def test_an_unlocked_hold_is_caught(database: Database, world: World) -> None:
    """Nodes taken without regard to who has them: even with both constraints gone the table of moves refuses the second hold."""
    order(world, 0, 6)
    world.settle()
    with bugs.no_allocation_constraints(database), bugs.unlocked_hold():
        (cluster,) = world.rows("SELECT c.*, s.id AS set_id FROM clusters c JOIN node_sets s ON s.cluster_id = c.id")
        taken = world.rows("SELECT id FROM nodes WHERE allocation_id IS NOT NULL LIMIT 1")[0].id
        hold = nodes.Hold(taken, cluster.id, cluster.set_id, cluster.tenant_id, cluster.reseller_id, cluster.project_id)
        with pytest.raises(IntegrityError, match="may not move from active to reserved"):
            world.do(lambda session: nodes.hold(session, [hold]))
