"""
Many random schedules outside of a test run: `python -m tests.schedules.run --first 1 --count 20000`.

Prints every seed that failed and exits with 1 when there is one; a range can be cut into pieces and gone on with later.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.local.postgres import throwaway_postgres
from tests.conftest import Database
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises
from tests.schedules.schedule import BRIEF, FULL, RESTLESS, Schedule, Size
from tests.schedules.serving import SERVICES, ServiceSchedule, stand

FLEET = Path(__file__).with_name("fleet.yaml")
PER_WORLD = 50
IDLE = "SELECT state, count(*) FROM nodes GROUP BY 1"
HELD = "SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')"


@dataclass
class Tally:
    """
    What many schedules came to.
    """

    done: int = 0
    """Schedules that were run."""
    failed: dict[int, str] = field(default_factory=dict)
    """Seed to what was broken."""
    passes: Counter[str] = field(default_factory=Counter)
    """Crash point to how often it was passed."""
    crashes: Counter[str] = field(default_factory=Counter)
    """Crash point to how often somebody died there."""
    played: Counter[str] = field(default_factory=Counter)
    """Fault to how often it was played."""

    def add(self, schedule: Schedule) -> None:
        """
        The schedule's counts are in.
        """
        self.done += 1
        self.passes += schedule.passes
        self.crashes += schedule.crashes
        self.played += schedule.played

    def keep(self, path: Path) -> None:
        """
        Other processes can add it to theirs; they see all of it or nothing.
        """
        half = path.with_suffix(".half")
        half.write_text(json.dumps([self.done, self.crashes, self.played]), encoding="utf-8")
        half.replace(path)

    def add_kept(self, path: Path) -> None:
        """
        What another process kept is in.
        """
        done, crashes, played = json.loads(path.read_text(encoding="utf-8"))
        self.done += done
        self.crashes.update(crashes)
        self.played.update(played)

    def words(self) -> str:
        """
        One line.
        """
        return (
            f"{self.done} schedules, {sum(self.crashes.values())} crashes at {len(self.crashes)} points, "
            f"{sum(self.played.values())} faults of {len(self.played)} kinds, {len(self.failed)} failed {sorted(self.failed)}"
        )


def run_one(world: World, seed: int, size: Size = FULL) -> tuple[Schedule, str]:
    """
    One schedule, healed; what is broken afterwards is returned in words, nothing when every promise holds.
    """
    schedule = Schedule(world, seed, size)
    try:
        schedule.run()
    except AssertionError as error:
        return schedule, str(error)
    broken = broken_promises(world)
    idle = world.rows(IDLE)
    if [row.state for row in idle] != ["available"]:
        broken.append(f"nodes are {idle}: {world.rows(RESTLESS)}")
    left = world.rows(HELD)
    if left:
        broken.append(f"I4 still counted: {left}")
    return schedule, "; ".join(broken)


def serve_one(world: World, seed: int) -> tuple[Schedule, str]:
    """
    One schedule of services on clusters that stand, healed; what is broken afterwards is returned in words.
    """
    schedule = ServiceSchedule(world, seed, SERVICES)
    try:
        schedule.run()
    except AssertionError as error:
        return schedule, str(error)
    return schedule, "; ".join(broken_promises(world))


def run_many(
    database: Database, first: int, count: int, size: Size = FULL, *, of_services: bool = False
) -> Iterator[tuple[int, Schedule, str]]:
    """
    Schedules of consecutive seeds; a fresh world after every failure and every so many seeds.
    """
    seed, end = first, first + count
    while seed < end:
        database.reset()
        with tempfile.TemporaryDirectory(prefix="schedules") as folder:
            world = make_world(database, Path(folder), fleet=str(FLEET))
            try:
                world.settle()
                if of_services:
                    stand(world)
                until = min(seed + PER_WORLD, end)
                while seed < until:
                    schedule, broken = serve_one(world, seed) if of_services else run_one(world, seed, size)
                    yield seed, schedule, broken
                    seed += 1
                    if broken:
                        break
            finally:
                world.clock.stop()


@contextmanager
def _server() -> Iterator[str]:
    given = os.environ.get("CONTROLPLANE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with throwaway_postgres() as url:
        yield url


def main() -> int:
    """
    The range was run; 1 is returned when a seed failed.
    """
    wanted = argparse.ArgumentParser(description=__doc__)
    wanted.add_argument("--first", type=int, default=1)
    wanted.add_argument("--count", type=int, default=20_000)
    wanted.add_argument("--brief", action="store_true", help="as in `make test`")
    wanted.add_argument("--services", action="store_true", help="services on clusters that stand")
    given = wanted.parse_args()
    logging.disable(logging.CRITICAL)
    tally, began = Tally(), time.monotonic()
    with _server() as url:
        database = Database(url, f"schedules{secrets.token_hex(4)}")
        size = BRIEF if given.brief else FULL
        for seed, schedule, broken in run_many(database, given.first, given.count, size, of_services=given.services):
            tally.add(schedule)
            if broken:
                tally.failed[seed] = broken
                print(f"seed {seed}: {broken}", *schedule.log[-60:], sep="\n  ", flush=True)
            if tally.done % 100 == 0:
                print(f"{time.monotonic() - began:.0f} s, up to seed {seed}: {tally.words()}", flush=True)
        database.close()
    print(tally.words(), dict(tally.crashes), dict(tally.played), f"{time.monotonic() - began:.0f} s", sep="\n", flush=True)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
