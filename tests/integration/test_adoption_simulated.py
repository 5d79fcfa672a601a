"""
Twenty machines that were in use before we were installed (BR-097), taken over in the simulated region, whose ledger is the judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from controlplane.clusters import adopting
from controlplane.clusters import service as clusters
from controlplane.identity import service as identity
from controlplane.kit.access import Principal
from controlplane.nodes import service as nodes
from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import Database
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises
from workers.sweeps import check_providers, discover

MANY = 20


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A region where somebody has a cluster of twenty nodes already, and another of two."""
    made = make_world(database, tmp_path)
    control = SimControl(made.region.world, now=made.clock)
    rows = made.rows("SELECT id, ref FROM nodes WHERE instance_type = :t ORDER BY ref LIMIT 22", t=made.keys.instance_type)
    control.stand("theirs", [row.ref for row in rows[:MANY]])
    control.stand("others", [row.ref for row in rows[MANY:]])
    control.close()
    operator = identity.KeyAuthenticator(database.engine).authenticate(f"Bearer {made.keys.operator_key}", None)

    def aside(session: Session) -> None:
        for row in rows:
            nodes_act(session, row.id, operator)

    made.do(aside)
    check_providers(made.engine, made.tools)
    made.settle()
    discover(made.engine, made.tools)
    yield made
    made.tools.close()
    made.clock.stop()


def nodes_act(session: Session, node_id: str, operator: Principal) -> None:
    """The node is in maintenance."""
    nodes.act(session, node_id, "maintain", reason="in use", by=operator.id, check=lambda _: None)


def take(world: World, ref: str, name: str) -> str:
    """The cluster is the tenant's; its id."""
    operator = identity.KeyAuthenticator(world.engine).authenticate(f"Bearer {world.keys.operator_key}", None)
    (row,) = world.rows("SELECT id, provider_id FROM found_clusters WHERE ref = :r", r=ref)
    wish = adopting.Wish(world.keys.tenant_id, world.keys.project_id, name)
    made: tuple[str, str] = world.do(lambda session: adopting.adopt(session, operator, row.provider_id, row.id, wish))
    return made[0]


def drop(world: World, cluster_id: str) -> None:
    """Its tenant deletes it."""
    world.do(lambda session: clusters.delete_cluster(session, world.tenant, world.keys.project_id, cluster_id, lambda _: None))


def test_what_ran_before_us_is_billed_from_when_it_was_handed_over(world: World) -> None:
    """No interval is negative or overlaps, and their sum is the ledger's; faults of every kind befall the calls meanwhile."""
    world.clock.advance(3600)
    control = SimControl(world.region.world, now=world.clock)
    for fault in ("5xx_before_effect", "late_success", "effect_then_reset", "duplicate_effect"):
        control.play(fault, "adopt_cluster", count=1)
    cluster_id = take(world, "theirs", "old")
    world.settle()
    (row,) = world.rows("SELECT state, reason FROM clusters WHERE id = :c", c=cluster_id)
    assert row.state == "running", row.reason
    assert broken_promises(world) == []
    world.clock.advance(3600)
    drop(world, cluster_id)
    world.settle()
    assert broken_promises(world) == []
    spans = world.rows(
        "SELECT lower(during) AS since, upper(during) AS until FROM meter_intervals WHERE cluster_id = :c", c=cluster_id
    )
    assert len(spans) == MANY
    assert all(0 < (one.until - one.since).total_seconds() < 2 * 3600 for one in spans)
    taken = "SELECT state, count(*) AS n FROM nodes n WHERE EXISTS (SELECT 1 FROM allocations a WHERE a.node_id = n.id) GROUP BY 1"
    assert {row.state: row.n for row in world.rows(taken)} == {"available": MANY}
    assert world.rows("SELECT 1 FROM found_clusters WHERE ref = 'others' AND gone_at IS NULL")
    control.close()


def test_a_machine_in_use_by_somebody_else_is_neither_given_nor_wiped(world: World) -> None:
    """Its node, inspected anew, ends in quarantine; then its cluster is taken over all the same, and its tenant gives it up half-way."""
    operator = identity.KeyAuthenticator(world.engine).authenticate(f"Bearer {world.keys.operator_key}", None)
    (row,) = world.rows("SELECT facts->'hosts'->0->>'ref' AS ref FROM found_clusters WHERE ref = 'others'")
    (node,) = world.rows("SELECT id FROM nodes WHERE ref = :r", r=row.ref)
    world.do(lambda session: nodes.act(session, node.id, "requalify", reason="", by=operator.id, check=lambda _: None))
    world.settle()
    (seen,) = world.rows("SELECT state, detail FROM nodes WHERE id = :n", n=node.id)
    assert seen.state == "quarantined", seen
    assert "in use by others" in seen.detail
    cluster_id = take(world, "others", "given-up")
    (claim,) = world.drivers["cluster"].claim(1)
    machines = world.tools.machines(claim.snapshot.provider)
    before = machines.observe(row.ref)
    world.drivers["cluster"].step(claim, world.tools)
    assert machines.observe(row.ref).phase == "deployed"
    drop(world, cluster_id)
    world.settle()
    assert {one.state for one in world.rows("SELECT state FROM clusters WHERE id = :c", c=cluster_id)} == {"deleted"}
    states = {one.state for one in world.rows("SELECT n.state FROM nodes n JOIN allocations a ON a.node_id = n.id")}
    assert states == {"quarantined", "maintenance"}, "each is where it was"
    assert broken_promises(world) == []
    assert machines.observe(row.ref) == before
    discover(world.engine, world.tools)
    assert world.rows("SELECT 1 FROM found_clusters WHERE ref = 'others' AND gone_at IS NULL")
