"""
Random schedules over a real Postgres: workers die anywhere, providers misbehave, and every promise holds once all is healed.

A failing seed is in the message; `SCHEDULE_SEED=n SCHEDULES=1 pytest tests/schedules` runs it alone. `make schedules` runs many more.
"""

from __future__ import annotations

import os

import pytest

from controlplane.kit.crashpoints import POINTS
from controlplane.providers.adapters.simulated.faults import PRESETS
from tests.conftest import Database
from tests.schedules.run import Tally, run_many
from tests.schedules.schedule import BRIEF

FIRST = int(os.environ.get("SCHEDULE_SEED", "1"))
COUNT = int(os.environ.get("SCHEDULES", "400"))
SERVICE_COUNT = int(os.environ.get("SERVICE_SCHEDULES", "10"))
BATCH = 25
ENOUGH = 300
RARELY = 8  # four to six of them, mostly faults of jobs, stay out of two hundred schedules
LIMIT_S = 1200
tally = Tally()


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_every_promise_holds_after_any_schedule(database: Database, first: int) -> None:
    """Whatever the seed chooses, after healing nothing is lost, doubled, unbilled, overbilled or unwiped, and all nodes are free."""
    for seed, schedule, broken in run_many(database, first, min(BATCH, FIRST + COUNT - first), BRIEF):
        tally.add(schedule)
        assert not broken, f"seed {seed}: {broken}\n" + "\n".join(schedule.log[-60:])


def test_the_schedules_are_not_blind(database: Database) -> None:
    """Over a few hundred seeds somebody really dies at every crash point, and nearly every fault is really played; never is named."""
    seen = tally
    if seen.done < ENOUGH:
        for _, schedule, _ in run_many(database, 1, ENOUGH - seen.done, BRIEF):
            seen.add(schedule)
    print(seen.words(), dict(seen.crashes), dict(seen.played), sep="\n")
    assert not [point for point in POINTS if not seen.crashes[point]]
    never = sorted(set(PRESETS) - set(seen.played))
    assert len(never) <= RARELY, f"never played in {seen.done} schedules: {never}"


@pytest.mark.timeout(LIMIT_S)
def test_every_service_is_as_asked_after_any_schedule(database: Database) -> None:
    """On two clusters that stand: once healed, each service is as it was asked for last, or says why not; deleted, nothing is left."""
    for seed, schedule, broken in run_many(database, FIRST, SERVICE_COUNT, of_services=True):
        assert not broken, f"seed {seed}: {broken}\n" + "\n".join(schedule.log[-60:])
