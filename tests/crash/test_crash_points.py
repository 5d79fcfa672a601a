"""
Every named crash point, at the first and the last of its passes in a run of the main job (all passes with CRASH_PASSES=all):
the process dies there once, twice in a row, or is frozen there and taken over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.kit.crashpoints import POINTS
from tests.conftest import Database
from tests.crash.main_job import Doom, MainJob
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
ALL = os.environ.get("CRASH_PASSES") == "all"
MANNERS = ("first_try", "retry", "takeover")
MODEST_S = 900
LONG_S = 7200
HELD = "SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')"
METERS = """
    SELECT a.id, count(m.*) AS n, bool_or(upper(m.during) IS DISTINCT FROM a.release_accepted_at) AS wrong FROM allocations a
    LEFT JOIN meter_intervals m ON m.allocation_id = a.id AND NOT isempty(m.during) GROUP BY a.id
    HAVING count(m.*) <> 1 OR bool_or(upper(m.during) IS DISTINCT FROM a.release_accepted_at)
"""
"""Allocations that were not metered once, up to the acceptance of their release."""


@dataclass
class Scene:
    """
    A small cloud, its main job, and how often each point is passed in an undisturbed run.
    """

    world: World
    """The cloud."""
    job: MainJob
    """The job."""
    passes: dict[str, int]
    """By crash point."""


@pytest.fixture(scope="module")
def scene(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """
    The main job was done once without a crash, and its passes were counted; the world is made once, every run leaves it clean.
    """
    migrated.reset()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    world = make_world(migrated, tmp_path_factory.mktemp("region"), fleet=str(FLEET))
    world.settle()
    job, count = MainJob(world), Doom()
    root.handlers[:] = handlers
    root.setLevel(level)
    job.run(count)
    yield Scene(world, job, dict(count.seen))
    job.close()
    world.clock.stop()
    migrated.reset()


def chosen(passes: int) -> list[int]:
    """
    All passes, or the first and the last one.
    """
    return list(range(1, passes + 1)) if ALL else sorted({1, passes} - {0})


def assert_clean(world: World, words: str) -> None:
    """
    Every promise holds, all nodes are free and nothing is charged.
    """
    broken = broken_promises(world)
    assert not broken, f"{words}: {broken}"
    assert world.rows("SELECT state, count(*) FROM nodes GROUP BY 1") == [("available", 6)], words
    assert world.rows(HELD) == [], words
    assert world.rows("SELECT count(*) FROM operations WHERE state <> 'succeeded'") == [(0,)], words
    assert world.rows("SELECT count(*) AS n FROM clusters")[0].n == world.rows("SELECT count(DISTINCT name) FROM clusters")[0][0], (
        words
    )


def test_every_point_lies_on_the_way(scene: Scene) -> None:
    """The main job passes every named crash point; what it never passes is named here, and the rest of this file proves nothing of it."""
    never = [point for point in POINTS if not scene.passes.get(point)]
    assert not never
    assert set(scene.passes) == set(POINTS)
    assert_clean(scene.world, "no crash")


@pytest.mark.timeout(LONG_S if ALL else MODEST_S)
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("point", POINTS)
def test_death_at_a_point_breaks_no_promise(scene: Scene, point: str, manner: str) -> None:
    """Whoever dies there, and however often, the job is done once and every promise holds."""
    tried, missed = 0, []
    for number in chosen(scene.passes[point]):
        passes = frozenset({number, number + 1} if manner == "retry" else {number})
        doom = Doom(point, passes)
        scene.job.run(doom, takeover=manner == "takeover")
        words = f"{point} pass {number} of {scene.passes[point]}, {manner}"
        assert_clean(scene.world, words)
        tried += 1
        if doom.deaths < len(passes):
            missed.append((number, doom.deaths))
    print(f"{point} {manner}: {tried} of {scene.passes[point]} passes tried, deaths short at {missed or 'none'}")
    assert not [one for one in missed if one[1] == 0], f"never reached: {missed}"
