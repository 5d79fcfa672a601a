"""
Real workers, killed at random moments while clusters are ordered and deleted: every promise holds after each round.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.crash.real import Cloud, cloud
from tests.factories.processes import until

KILLS = int(os.environ.get("KILLS", "30"))
SEED = int(os.environ.get("KILL_SEED", "1"))
WORKERS = 3
LONGEST_PAUSE_S = 1.5
LIMIT_S = 600 + 20 * KILLS
HELD = "SELECT id, fence FROM nodes WHERE lease_until IS NOT NULL"
FENCES = """
    SELECT resource_id, fence, before, after FROM (
      SELECT *, max(fence) OVER (PARTITION BY resource_id ORDER BY id) AS highest FROM state_history WHERE fence > 0) h
    WHERE fence < highest
"""


def one_round(made: Cloud, chance: random.Random, number: int, kills: int) -> None:
    """
    Clusters, and a service on one of them, come and go while workers are killed and replaced.
    """
    pause = threading.Event()
    home = made.order(f"r{number}k", 1, kind="kubernetes")
    service = made.serve(f"r{number}s", home)
    ids = [made.order(f"r{number}n{place}", chance.randint(1, 3)) for place in range(chance.randint(1, 3))]
    for _ in range(kills):
        pause.wait(chance.uniform(0, LONGEST_PAUSE_S))
        victim = chance.choice(made.running.workers)
        victim.kill()
        made.running.workers.remove(victim)
        made.another_worker(victim.name)
        if ids and chance.random() < 0.5:
            made.delete(ids.pop())
    for one in (*ids, home):
        made.delete(one)
    made.until_clean()
    left = "SELECT state, reason FROM services WHERE id = :id AND state <> 'deleted'"
    until(lambda: not made.world.rows(left, id=service), "the service has gone with its cluster")


@pytest.mark.timeout(LIMIT_S)
def test_promises_hold_however_workers_are_killed(database: Database, tmp_path: Path) -> None:
    """Workers die by kill -9 in the middle of anything; after each round all is deleted, wiped, billed rightly and nothing is left over."""
    chance, left, number = random.Random(SEED), KILLS, 0
    with cloud(database, tmp_path, workers=WORKERS) as made:
        while left > 0:
            kills = min(left, chance.randint(1, 5))
            one_round(made, chance, number, kills)
            assert made.broken() == []
            left -= kills
            number += 1
        print(f"seed {SEED}: {KILLS} kills in {number} rounds")


def test_a_worker_that_slept_through_its_lease_changes_nothing(database: Database, tmp_path: Path) -> None:
    """A worker is stopped with a claim in its hands; another takes over after the lease; awake again, the first one's result is dropped."""
    with cloud(database, tmp_path, workers=1) as made:
        sleeper = made.running.workers[0]
        peer = sqlite3.connect(made.world.region.world, isolation_level=None)
        peer.execute("BEGIN IMMEDIATE")  # calls to the provider hang
        made.order("c")
        asleep: list[Any] = []

        def falls_asleep() -> bool:
            """A call that hangs for long is given up, and the lease with it: only what is held while the worker sleeps counts."""
            if made.world.rows(HELD):
                os.killpg(sleeper.child.pid, signal.SIGSTOP)
                asleep.extend(made.world.rows(HELD))
                if not asleep:
                    os.killpg(sleeper.child.pid, signal.SIGCONT)
            return bool(asleep)

        until(falls_asleep, "the worker sleeps with a lease", within_s=30)
        peer.execute("ROLLBACK")
        peer.close()
        caught = asleep[0]
        made.another_worker("worker-1")
        fence = "SELECT fence FROM nodes WHERE id = :id"
        until(lambda: made.world.rows(fence, id=caught.id)[0].fence > caught.fence, "the other worker takes over")
        os.killpg(sleeper.child.pid, signal.SIGCONT)
        (cluster,) = made.world.rows("SELECT id FROM clusters")
        made.until_running(cluster.id)
        made.delete(cluster.id)
        made.until_clean()
        assert made.broken() == []
        assert made.world.rows(FENCES) == [], "a result came in under a fence that had been overtaken"
