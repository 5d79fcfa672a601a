"""
The main job in one process: order, place, deploy, run, bill, delete, wipe; judged by the simulator's ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from controlplane.activity import repository as activity
from controlplane.clusters import reaping, scaling
from controlplane.clusters import service as clusters
from controlplane.kit.db import constraint_name
from controlplane.kit.errors import NoCapacity
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.clusters import ClusterSpec
from tests.conftest import Database
from tests.factories.world import World, make_world
from workers.sweeps import Suspects, check_providers, reap


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """
    A demo region on virtual time.
    """
    made = make_world(database, tmp_path)
    yield made
    made.clock.stop()


def control(world: World) -> SimControl:
    """
    The hand that reaches into the simulator.
    """
    return SimControl(world.region.world, now=world.clock)


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


def test_a_node_that_cannot_be_deployed_is_replaced(world: World) -> None:
    """One bad node is replaced by another, kept out of placement, and charged once."""
    world.settle()
    control(world).play("deploy_fails", "deploy", count=1)
    order(world)
    world.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert world.rows("SELECT count(*) FROM node_holds WHERE lifted_at IS NULL") == [(1,)]
    assert world.rows("SELECT DISTINCT used FROM quotas WHERE resource = 'gpus' AND used <> 0") == [(32,)]
    assert world.rows("SELECT sum(unplaced) FROM node_sets") == [(0,)]


def test_grow_and_shrink(world: World) -> None:
    """A cluster grows near its nodes and shrinks again; nodes that left are not billed on and come back wiped."""
    world.settle()
    cluster_id = order(world)
    world.settle()
    for count in (6, 3):
        world.do(
            lambda s, n=count: scaling.change_cluster(
                s, world.tenant, world.keys.project_id, cluster_id, lambda _: None, counts={"workers": n}
            )
        )
        world.settle()
        assert world.rows("SELECT state FROM clusters") == [("running",)]
        assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(count,)]
        assert world.rows("SELECT count(*) FROM nodes WHERE state = 'active'") == [(count,)]
    assert world.rows("SELECT DISTINCT used FROM quotas WHERE resource = 'gpus' AND used <> 0") == [(24,)]


def test_what_does_not_fit_is_refused_or_waits(world: World) -> None:
    """An order beyond the fleet is refused with what is missing; one that waits is placed when nodes come free."""
    world.settle()
    with pytest.raises(NoCapacity) as refused:
        order(world, "huge", 2000)
    assert refused.value.fields["missing"] > 0
    first = order(world, "first", 30)
    world.settle()
    order(world, "second", 30, wait=True)
    for _ in range(20):
        world.tick()
    assert world.rows("SELECT state FROM clusters WHERE name = 'second'") == [("placing",)]
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, first, lambda _: None))
    world.settle()
    world.clock.advance(10)
    world.settle()
    assert world.rows("SELECT state FROM clusters WHERE name = 'second'") == [("running",)]


def test_node_sets_are_shown_in_the_order_of_the_order(world: World) -> None:
    """However they are named, and however fast they are written."""
    names = ["zeta", "alpha", "mid", "omega", "beta", "kilo"]
    sets = tuple(clusters.SetOrder(one, world.keys.instance_type, 1) for one in names)
    wish = clusters.Order("many", "slurm", world.keys.site, sets, wait=True)
    view, _ = world.do(lambda s: clusters.order_cluster(s, world.tenant, world.keys.project_id, wish))
    again = world.do(lambda s: clusters.get_cluster(s, world.tenant, world.keys.project_id, view.row.id))
    assert [[one.name for one in told.sets] for told in (view, again)] == [names, names]


def test_a_waiting_order_is_deleted_without_any_worker(world: World) -> None:
    """Deleting what was never placed is done in the request: no provider is asked, and quota is back at once."""
    world.settle()
    cluster_id = order(world, "never", 30, wait=True)
    before = len(control(world).calls())
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    assert world.rows("SELECT state FROM clusters") == [("deleted",)]
    assert world.rows("SELECT state FROM operations ORDER BY id") == [("cancelled",), ("succeeded",)]
    assert world.rows("SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')") == []
    assert len(control(world).calls()) == before


def open_operations(world: World) -> list[tuple[str, int]]:
    """
    The counters of open operations that are not zero.
    """
    rows = world.rows("SELECT scope_kind, used FROM quotas WHERE resource = 'operations' AND used <> 0 ORDER BY depth")
    return [(row.scope_kind, row.used) for row in rows]


def test_open_operations_are_counted_and_limited(world: World) -> None:
    """Each level counts open operations from their start to their end; a full quota refuses a new order and never a delete."""
    world.settle()
    limit = text("UPDATE quotas SET ceiling = 2 WHERE resource = 'operations' AND scope_id = :tenant")
    world.do(lambda s: s.execute(limit, {"tenant": world.tenant.tenant_id}))
    first = order(world, "one", 30, wait=True)
    order(world, "two", 30, wait=True)
    assert open_operations(world) == [(kind, 2) for kind in ("platform", "reseller", "tenant", "project")]
    with pytest.raises(IntegrityError) as refused:
        order(world, "three", 1)
    assert constraint_name(refused.value) == "operations_quota"
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, first, lambda _: None))
    world.settle()
    assert open_operations(world) == []


def test_a_cluster_without_a_record_is_a_finding_and_is_left_alone(world: World) -> None:
    """What the provider has and no row of ours speaks of is shown to operators; no sweep removes it."""
    world.settle()
    order(world)
    world.settle()
    provider = world.do(reaping.watched_providers)[0]
    stranger = ClusterSpec("clu_stranger", world.tenant.tenant_id, world.keys.project_id, "", ())
    world.tools.clusters(provider).apply_cluster(stranger)
    world.clock.advance(3600)
    check_providers(world.engine, world.tools)
    found = world.rows("SELECT findings FROM providers WHERE id = :p", p=provider.id)[0].findings
    assert [(one["code"], one["ref"]) for one in found] == [("unknown_cluster", "clu_stranger")]
    suspects: Suspects = {}
    assert reap(world.engine, world.tools, suspects) == 0
    world.clock.advance(60)
    assert reap(world.engine, world.tools, suspects) == 0
    assert "clu_stranger" in world.tools.clusters(provider).list_clusters().cluster_ids


def test_a_delete_that_is_not_confirmed_is_shown_after_two_minutes(world: World) -> None:
    """Operators see an unconfirmed delete long before its deadline, and no longer once it is confirmed."""
    world.settle()
    cluster_id = order(world)
    world.settle()
    control(world).play("5xx_before_effect", "delete_cluster", count=None)
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    world.tick()
    assert unconfirmed(world) == []
    world.clock.advance(121)
    world.tick()
    assert unconfirmed(world) == [cluster_id]
    control(world).heal()
    world.settle()
    assert unconfirmed(world) == []


def unconfirmed(world: World) -> list[str]:
    """
    Clusters that operators are shown as unconfirmed deletes.
    """
    page = world.do(lambda s: activity.list_attention(s, "cluster", None, 50, silent_s=1e9))
    return [one.id for one in page if one.attention == "unconfirmed_delete"]


@pytest.mark.parametrize("wait", [True, False])
def test_a_product_that_nobody_makes_is_waited_for_or_refused(world: World, *, wait: bool) -> None:
    """Where no provider makes the product, an order that waits goes on once one does; another is refused and costs nothing."""
    world.settle()
    order(world, wait=wait)
    world.do(lambda s: s.execute(text("UPDATE providers SET capabilities = '{}', checked_at = NULL")))
    for _ in range(5):
        world.tick()
    assert world.rows("SELECT state FROM clusters") == [("placing" if wait else "failed",)]
    check_providers(world.engine, world.tools)
    world.clock.advance(10)
    world.settle()
    assert world.rows("SELECT state FROM clusters") == [("running" if wait else "failed",)]


def test_a_growth_that_nobody_can_make_leaves_the_cluster_as_it_was(world: World) -> None:
    """While its provider is switched off a cluster's growth is refused like an order; it goes on, and the quota for the rest is back."""
    world.settle()
    cluster_id = order(world)
    world.settle()
    world.do(lambda s: s.execute(text("UPDATE providers SET state = 'disabled'")))
    world.do(
        lambda s: scaling.change_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None, counts={"workers": 6})
    )
    world.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert world.rows("SELECT state, error->>'code' FROM operations WHERE type = 'cluster.update'") == [
        ("failed", "product_not_available")
    ]
    assert world.rows("SELECT count, unplaced FROM node_sets") == [(4, 0)]
    assert world.rows("SELECT DISTINCT used FROM quotas WHERE resource = 'gpus' AND used <> 0") == [(32,)]
