"""
Random schedules over a real Postgres: workers die anywhere, providers misbehave, and every promise holds once all is healed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises
from tests.schedules.schedule import Schedule

FLEET = Path(__file__).with_name("fleet.yaml")
FIRST = int(os.environ.get("SCHEDULE_SEED", "1"))
COUNT = int(os.environ.get("SCHEDULES", "40"))
MOVES = int(os.environ.get("SCHEDULE_MOVES", "120"))
PER_WORLD = 10


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """
    Six nodes, two tenants, virtual time.
    """
    made = make_world(database, tmp_path, fleet=str(FLEET))
    made.settle()
    yield made
    made.clock.stop()


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, PER_WORLD))
def test_every_promise_holds_after_any_schedule(world: World, first: int) -> None:
    """Whatever the seed chooses, after healing nothing is lost, doubled, unbilled, overbilled or unwiped."""
    for seed in range(first, first + PER_WORLD):
        schedule = Schedule(world, seed)
        schedule.run(MOVES)
        broken = broken_promises(world)
        assert not broken, f"seed {seed}: {broken}\n" + "\n".join(schedule.log[-40:])
        idle = world.rows("SELECT state, count(*) FROM nodes GROUP BY 1")
        assert idle == [("available", 6)], f"seed {seed}: {idle}"
        left = world.rows("SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')")
        assert left == [], f"seed {seed}: {left}"
