"""
Every state that waits has a way out by time, and somebody who looks after it: made from the state tables, so that a new state is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane import bootstrap
from controlplane.clusters.states import CLUSTER_STATES
from controlplane.jobs.states import JOB_STATES
from controlplane.nodes.states import ACTING, NODE_STATES
from controlplane.services.states import SERVICE_STATES
from controlplane.settings import Settings
from tests.conftest import Database
from tests.faults.region import NODES, Grounds, make_grounds

TABLES = {"nodes": NODE_STATES, "clusters": CLUSTER_STATES, "jobs": JOB_STATES, "services": SERVICE_STATES}
OF_CONTROLLERS = {("nodes", state) for state in {*ACTING, "updating"}} | {("clusters", "upgrading")}
"""
What is done through a controller, which the simulator has not: `test_instance_actions.py`, `test_node_firmware.py` and
`test_slurm_upgrades.py` of integration.
"""
WAITING = [
    (table, state) for table, states in TABLES.items() for state in states.names("moving") if (table, state) not in OF_CONTROLLERS
]
EARLY = {("nodes", "enrolled"), ("nodes", "inspecting"), ("nodes", "qualifying")}


def bring(grounds: Grounds, table: str, state: str) -> str:
    """
    The id of a row that stands in the state.
    """
    begin(grounds, table, state)
    for _ in range(600):
        rows = grounds.world.rows(f"SELECT id FROM {table} WHERE state = :s AND due_at IS NOT NULL ORDER BY id LIMIT 1", s=state)
        if rows:
            return str(rows[0].id)
        if not one_look(grounds):
            pauses = [row.pause_s for row in grounds.world.waiting() if row.pause_s > 0]
            grounds.world.clock.advance(max(0.001, min([*pauses, 60.0])))
    raise AssertionError(f"no row came to {state}")


def one_look(grounds: Grounds) -> int:
    """
    A single row of one kind has been looked at, so that no state is passed unseen; how much was done is returned.
    """
    for driver in grounds.world.drivers.values():
        done = driver.decide(1) or driver.apply([driver.step(one, grounds.world.tools) for one in driver.claim(1)])
        if done:
            return done
    return 0


def begin(grounds: Grounds, table: str, state: str) -> None:
    """
    What leads to the state has been asked for.
    """
    if (table, state) in EARLY:
        return
    if (table, state) == ("clusters", "placing"):
        grounds.order("full", NODES)
        grounds.world.settle()
        grounds.order("late", 1, wait=True)
        return
    if (table, state) == ("clusters", "adopting"):
        grounds.take_over(row.ref for row in grounds.world.rows("SELECT ref FROM nodes ORDER BY ref LIMIT 2"))
        return
    cluster_id = grounds.order(count=1, product="kubernetes" if table == "services" else "slurm")
    if table == "jobs":
        begin_job(grounds, cluster_id, state)
    elif table == "services":
        begin_service(grounds, cluster_id, state)
    elif state in {"releasing", "cleaning", "deleting", "updating"}:
        grounds.world.settle()
        if state == "updating":
            grounds.resize(cluster_id, 2)
        else:
            grounds.delete(cluster_id)


def begin_job(grounds: Grounds, cluster_id: str, state: str) -> None:
    """
    A job is on its way to the state.
    """
    if state != "queued":
        grounds.world.settle()
    job_id = grounds.submit(cluster_id)
    if state == "admitted":
        grounds.sim.play("no_capacity", "submit", count=None)
    if state == "unknown":
        grounds.work(60, until=lambda: grounds.state("jobs", job_id) == "running")
        grounds.sim.play("flapping_404", "find_job", count=1)


def begin_service(grounds: Grounds, cluster_id: str, state: str) -> None:
    """
    A service is on its way to the state.
    """
    if state != "pending":
        grounds.world.settle()
    service_id = grounds.serve(cluster_id)
    if state == "deleting":
        grounds.work(60, until=lambda: grounds.state("services", service_id) == "running")
        grounds.end_service(service_id)


@pytest.fixture
def ground(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Grounds]:
    """
    A region whose nodes are free, or have only just been enrolled for the states that come first.
    """
    made = make_grounds(database, tmp_path, settled=request.node.callspec.params["where"] not in EARLY)
    yield made
    made.close()


def test_every_waiting_state_is_driven_and_bounded() -> None:
    """BR-029: each waiting state has a longest stay, a way out, and a step or a decision that looks after it; no other one is needed."""
    kinds = bootstrap.kinds(Settings())
    for kind in kinds.values():
        decided = {name.split("/")[0] for name in kind.decisions}
        for name in kind.table.names("moving"):
            assert name in kind.steps or name in decided
            assert kind.table.by_name[name].longest_stay_s
            assert kind.table.by_name[name].moves


@pytest.mark.parametrize("where", WAITING, ids="-".join)
def test_a_waiting_state_outlives_ten_minutes_without_workers(ground: Grounds, where: tuple[str, str]) -> None:
    """BR-029: nobody works for ten minutes; then one worker begins, and what waited goes on without anybody's help."""
    row_id = bring(ground, *where)
    ground.silence(600)
    ground.heal()
    left: Callable[[], bool] = lambda: ground.state(where[0], row_id) != where[1]  # noqa: E731
    if where == ("clusters", "placing"):
        (full,) = ground.world.rows("SELECT id FROM clusters WHERE name = 'full'")
        ground.delete(full.id)
    ground.work(120, until=left)
    assert left()
    ground.run_out()


@pytest.mark.parametrize("where", WAITING, ids="-".join)
def test_no_waiting_state_is_without_an_end(ground: Grounds, where: tuple[str, str]) -> None:
    """BR-029: the provider never answers again: by its longest stay the row has left the state or stands before a person."""
    row_id = bring(ground, *where)
    ground.sim.play("timeout_before_effect", "*", count=None)
    stay_s = TABLES[where[0]].by_name[where[1]].longest_stay_s
    assert stay_s is not None
    ground.work(5)
    ground.silence(stay_s + 1)
    ground.work(5)
    (row,) = ground.world.rows(f"SELECT state, attention FROM {where[0]} WHERE id = :id", id=row_id)
    assert row.state != where[1] or (row.attention and row_id in ground.attention())
    ground.heal()
    ground.work(120)
    ground.run_out(people=True)
