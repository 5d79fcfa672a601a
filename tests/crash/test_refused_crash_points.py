"""
Every named crash point in the life of a cluster whose provider turns each change down for good: a node replaced. By default one
life in which somebody dies at every point, twice; with CRASH_PASSES=all it is grown and shrunk as well, and each pass of each point is
played by itself, once, twice in a row, and frozen there and taken over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.kit.crashpoints import POINTS
from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import Database
from tests.crash.dying import die_at_each_pass, die_everywhere
from tests.crash.main_job import Doom, Story
from tests.crash.test_crash_points import ALL, FLEET, HELD, LONG_S, MANNERS, MODEST_S
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises

DEATHS = 2
"""At each point, in one life."""
PASSES = {"request": 3, "decide": 5, "": 20}
"""Passes of which the deaths are drawn: a life has three requests, some decisions, and much of everything else."""
MEMBERS = "SELECT id FROM allocations WHERE cluster_id = :c AND state = 'active' AND NOT leaving AND charged ORDER BY id"


class Lives(Story):
    """
    Lives of clusters, one after the other, that nobody can change.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.sim = SimControl(world.region.world, now=world.clock)

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """
        A whole life, by other processes where the first ones died.
        """
        with self.watched(doom):
            made = self.ask("POST", "/clusters", self.order("slurm", "life"))
            path = f"/clusters/{made['id']}"
            self.drive(path[1:], "running", takeover=takeover)
            before = self.world.rows(MEMBERS, c=made["id"])
            self.sim.play("refused_final", "apply_cluster", count=None)
            changes: list[tuple[str, str, Any]] = [
                ("PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]}),
                ("PATCH", "", {"node_sets": [{"name": "workers", "count": 1}]}),
                ("POST", "/instances/{}/actions/replace", None),
            ]
            changes = changes if ALL else changes[2:]
            for method, more, body in changes:
                self.alter(path, method, more, body)
                self.drive(path[1:], "running", takeover=takeover)
                assert self.world.rows(MEMBERS, c=made["id"]) == before
            self.sim.heal()
            self.alter(path, "DELETE", "", None)
            self.drive(path[1:], "deleted", takeover=takeover)
            self.work(lambda: not self.world.rows("SELECT 1 FROM nodes WHERE state <> 'available' LIMIT 1"), takeover=takeover)


@pytest.fixture(scope="module")
def lives(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """
    A region for all lives.
    """
    migrated.reset()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    world = make_world(migrated, tmp_path_factory.mktemp("region"), fleet=str(FLEET))
    world.settle()
    made = Lives(world)
    root.handlers[:] = handlers
    root.setLevel(level)
    yield made
    made.sim.close()
    made.close()
    world.clock.stop()
    migrated.reset()


def assert_clean(made: Lives, words: str) -> None:
    """
    Every promise holds, two nodes of each life were billed and no newcomer, and each change was one operation that failed.
    """
    world = made.world
    broken = broken_promises(world)
    assert not broken, f"{words}: {broken}"
    assert world.rows("SELECT state, count(*) AS n FROM nodes GROUP BY 1") == [("available", 6)], words
    assert world.rows(HELD) == [], words
    (count,) = world.rows("SELECT count(*) AS n, count(DISTINCT name) AS names FROM clusters")
    assert count.n == count.names, words
    assert world.rows("SELECT count(*) AS n FROM meter_intervals") == [(2 * count.n,)], words
    done = world.rows("SELECT state, count(*) AS n FROM operations WHERE resource_kind = 'cluster' GROUP BY 1 ORDER BY 1")
    assert [(row.state, row.n) for row in done] == [("failed", (3 if ALL else 1) * count.n), ("succeeded", 2 * count.n)], words


def test_one_life_with_deaths_at_every_point(lives: Lives) -> None:
    """Whoever dies, and wherever: after each refusal the members are those of before, and at the end nothing stays."""
    assert_clean(lives, die_everywhere(lives, POINTS, PASSES, DEATHS))


@pytest.mark.skipif(not ALL, reason="many minutes: CRASH_PASSES=all plays it")
@pytest.mark.timeout(LONG_S if ALL else MODEST_S)
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("point", POINTS)
def test_death_at_a_point_breaks_no_promise(lives: Lives, point: str, manner: str) -> None:
    """Each pass by itself."""
    for words in die_at_each_pass(lives, point, manner):
        assert_clean(lives, words)
