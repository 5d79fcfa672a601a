"""
A thousand times a machine goes from one tenant to another, on virtual time, and nothing of the first is there for the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from controlplane.clusters import service as clusters
from controlplane.kit.access import Principal
from controlplane.providers.adapters.simulated import judge
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.ledger import Ledger
from tests.conftest import Database
from tests.factories.world import World, make_world
from tests.races.conftest import FULL

TURNOVERS = 1000 if FULL else 16
LOOKS = 5000
NODES = 16
"""Machines in one order, so that each round turns so many over."""

pytestmark = pytest.mark.timeout(3600 if FULL else 900)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A region where everything takes its time, deployments and wipes among it, on a clock that need not be waited for."""
    made = make_world(database, tmp_path, profile="fast")
    yield made
    made.clock.stop()


def test_no_tenant_finds_anothers_canary(world: World) -> None:
    """Whatever a tenancy wrote to disk, memory, GPU memory, firmware and BMC was wiped before the next tenant had the machine."""
    world.settle(looks=LOOKS)
    round_, turned = 0, 0
    while turned < TURNOVERS:
        who, project_id = world.people[round_ % 2]
        cluster_id = _order(world, who, project_id, f"round-{round_}")
        world.settle(looks=LOOKS)
        assert world.rows("SELECT state FROM clusters WHERE id = :id", id=cluster_id) == [("running",)]
        world.do(lambda s, who=who, at=project_id, one=cluster_id: clusters.delete_cluster(s, who, at, one, lambda _: None))
        world.settle(looks=LOOKS)
        round_ += 1
        turned = _turnovers(_ledger(world))
    ledger = _ledger(world)
    print(f"{turned} turnovers in {round_} rounds, {len(ledger.wipes)} wipes, {len(judge.unwiped_reuse(ledger))} canaries")
    assert judge.all_findings(ledger) == []
    assert judge.unwiped_reuse(_without_wipes(ledger)), "the judge would not see a canary"


def _order(world: World, who: Principal, project_id: str, name: str) -> str:
    sets = (clusters.SetOrder("workers", world.keys.instance_type, NODES),)
    wanted = clusters.Order(name, "slurm", world.keys.site, sets)
    view, _ = world.do(lambda s: clusters.order_cluster(s, who, project_id, wanted))
    return str(view.row.id)


def _ledger(world: World) -> Ledger:
    control = SimControl(world.region.world, now=world.clock)
    try:
        return control.ledger()
    finally:
        control.close()


def _turnovers(ledger: Ledger) -> int:
    """How often a machine went from one tenant to another."""
    held = defaultdict(list)
    for one in sorted(ledger.tenancies, key=lambda one: one.order):
        held[one.ref].append(one.tenant_id)
    return sum(before != after for tenants in held.values() for before, after in pairwise(tenants))


def _without_wipes(ledger: Ledger) -> Ledger:
    """The same book, had the wipes between tenancies never taken place."""
    return replace(ledger, wipes=())
