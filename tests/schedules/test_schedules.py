"""
Random schedules over a real Postgres: workers die anywhere, providers misbehave, and every promise holds once all is healed.

A failing seed is in the message; `SCHEDULE_SEED=n SCHEDULES=1 pytest tests/schedules` runs it alone. `make schedules` runs many more.
SCHEDULES_WITHIN_S is for a run that must end in time: what is not begun by then is skipped, and says so.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from controlplane.kit.crashpoints import POINTS
from controlplane.providers.adapters.simulated.faults import PRESETS
from tests.conftest import BEGAN, Database
from tests.schedules.run import Tally, run_many
from tests.schedules.schedule import BRIEF

FIRST = int(os.environ.get("SCHEDULE_SEED", "1"))
COUNT = int(os.environ.get("SCHEDULES", "2000"))
SERVICE_COUNT = int(os.environ.get("SERVICE_SCHEDULES", "10"))
BATCH = 25
WITHIN_S = float(os.environ.get("SCHEDULES_WITHIN_S", "inf"))
ALWAYS = 400
"""Of these none is skipped."""
RARELY = 8  # four to six of them, mostly faults of jobs, stay out of two hundred schedules
MOST = 600
"""Seeds beyond those of the run after which something was never met because it cannot be, and not by chance."""
LIMIT_S = 1200


@pytest.fixture(scope="module")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Where all processes of this run tell each other what their schedules came to.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    mine = tmp_path_factory.getbasetemp()
    folder = mine.parent / f"tallies-{run}" if run else mine / "tallies"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BATCH))
def test_every_promise_holds_after_any_schedule(database: Database, tallies: Path, first: int) -> None:
    """Whatever the seed chooses, after healing nothing is lost, doubled, unbilled, overbilled or unwiped, and all nodes are free."""
    if first - FIRST >= ALWAYS and time.monotonic() - BEGAN > WITHIN_S:
        pytest.skip(
            f"the run has no time left for seeds {first} to {first + BATCH - 1}: make schedules FIRST={first} COUNT={BATCH}"
        )
    tally = Tally()
    for seed, schedule, broken in run_many(database, first, min(BATCH, FIRST + COUNT - first), BRIEF):
        tally.add(schedule)
        assert not broken, f"seed {seed}: {broken}\n" + "\n".join(schedule.log[-60:])
    tally.keep(tallies / f"{first}.json")


@pytest.mark.timeout(LIMIT_S)
def test_the_schedules_are_not_blind(database: Database, tallies: Path) -> None:
    """Over the run's seeds somebody really dies at every crash point, and nearly every fault is really played; never is named."""
    seen = Tally()
    for kept in tallies.glob("*.json"):
        seen.add_kept(kept)
    beyond = FIRST + COUNT
    while unmet(seen) and beyond < FIRST + COUNT + MOST:
        for _, schedule, _ in run_many(database, beyond, BATCH, BRIEF):
            seen.add(schedule)
        beyond += BATCH
    print(seen.words(), dict(seen.crashes), dict(seen.played), sep="\n")
    left = unmet(seen)
    assert not left, f"never in {seen.done} schedules: {left}"


def unmet(seen: Tally) -> list[str]:
    """
    Crash points at which nobody died, and faults never played, if they are more than chance leaves out.
    """
    never = sorted(set(PRESETS) - set(seen.played))
    return [point for point in POINTS if not seen.crashes[point]] + (never if len(never) > RARELY else [])


@pytest.mark.timeout(LIMIT_S)
def test_every_service_is_as_asked_after_any_schedule(database: Database) -> None:
    """On two clusters that stand: once healed, each service is as it was asked for last, or says why not; deleted, nothing is left."""
    for seed, schedule, broken in run_many(database, FIRST, SERVICE_COUNT, of_services=True):
        assert not broken, f"seed {seed}: {broken}\n" + "\n".join(schedule.log[-60:])
