"""
The main job in one process: order, place, deploy, run, bill, delete, wipe; judged by the simulator's ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.clusters import service as clusters
from tests.conftest import Database
from tests.factories.world import World, make_world


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """
    A demo region on virtual time.
    """
    made = make_world(database, tmp_path)
    yield made
    made.clock.stop()


def order(world: World, name: str = "train", count: int = 4, *, wait: bool = False) -> str:
    """
    The id of a cluster just ordered.
    """
    sets = (clusters.SetOrder("workers", world.keys.instance_type, count),)
    wanted = clusters.Order(name, "slurm", world.keys.site, sets, wait)
    view, _ = world.do(lambda session: clusters.order_cluster(session, world.tenant, world.keys.project_id, wanted))
    return str(view.row.id)


def test_nodes_become_available_only_after_a_verified_wipe(world: World) -> None:
    """Enrolled nodes go through inspection, checks and a wipe, and each has a verified record of it."""
    world.settle()
    assert world.rows("SELECT DISTINCT state FROM nodes") == [("available",)]
    assert world.rows("SELECT count(*) FROM wipes WHERE verified") == world.rows("SELECT count(*) FROM nodes")


def test_order_runs_and_goes(world: World) -> None:
    """A cluster is placed, runs, is metered from the provider's evidence, is deleted, and its nodes come back wiped."""
    world.settle()
    cluster_id = order(world)
    world.settle()
    assert world.rows("SELECT state, reason, issues FROM clusters") == [("running", "All 4 nodes answer.", [])]
    assert world.rows("SELECT type, state FROM operations") == [("cluster.create", "succeeded")]
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(4,)]
    world.clock.advance(3600)
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    world.settle()
    assert world.rows("SELECT state FROM clusters") == [("deleted",)]
    assert world.rows("SELECT DISTINCT state FROM nodes") == [("available",)]
    assert world.rows("SELECT DISTINCT state, end_reason FROM allocations") == [("ended", "released")]
    assert world.rows("SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')") == []
