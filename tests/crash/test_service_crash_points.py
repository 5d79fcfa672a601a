"""
Every named crash point in a service's life: the process dies there once, twice in a row, or is frozen there and taken over. Each manner
at a pass of its own; with CRASH_PASSES=all every pass of a whole life, rollback, scaling and suspension included.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from controlplane.kit.crashpoints import POINTS
from tests.conftest import Database
from tests.crash.main_job import VERBS, Doom, ServiceLife
from tests.crash.test_crash_points import ALL, FLEET, LONG_S, MANNERS, MODEST_S
from tests.factories.world import World, make_world
from tests.schedules.invariants import broken_promises

VERSIONS = "SELECT DISTINCT count(*) AS n FROM service_versions GROUP BY service_id"
UNDONE = "SELECT id FROM services WHERE state <> 'deleted'"
ASKED = 3 + (len(VERBS) if ALL else 0)
"""What each life asks for; each is one operation, however often somebody died."""


@pytest.fixture(scope="module")
def life(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceLife, dict[str, int]]]:
    """
    A service has lived once without a crash on a cluster that stays, and its passes were counted.
    """
    migrated.reset()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    world = make_world(migrated, tmp_path_factory.mktemp("region"), fleet=str(FLEET))
    world.settle()
    made, count = ServiceLife(world, whole=ALL), Doom()
    root.handlers[:] = handlers
    root.setLevel(level)
    made.run(count)
    yield made, dict(count.seen)
    made.close()
    world.clock.stop()
    migrated.reset()


def assert_clean(world: World, words: str) -> None:
    """
    Every promise holds, each service had its versions and operations once, and nothing of it is left.
    """
    broken = broken_promises(world)
    assert not broken, f"{words}: {broken}"
    assert [row.n for row in world.rows(VERSIONS)] == [3 if ALL else 2], words
    assert world.rows(UNDONE) == [], words
    (count,) = world.rows("SELECT count(*) AS n, count(DISTINCT name) AS names FROM services")
    assert count.n == count.names, words
    done = world.rows("SELECT state, count(*) AS n FROM operations WHERE resource_kind = 'service' GROUP BY 1")
    assert [(row.state, row.n) for row in done] == [("succeeded", ASKED * count.n)], words


def chosen(passes: int, manner: str) -> list[int]:
    """
    All passes, or one.
    """
    return list(range(1, passes + 1)) if ALL else [{"first_try": (passes + 1) // 2, "retry": 1, "takeover": passes}[manner]]


def test_a_life_passes_every_point(life: tuple[ServiceLife, dict[str, int]]) -> None:
    """What a service never passes would be proved by nothing here."""
    made, passes = life
    assert set(passes) == set(POINTS)
    assert_clean(made.world, "no crash")


@pytest.mark.timeout(LONG_S if ALL else MODEST_S)
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("point", POINTS)
def test_death_at_a_point_breaks_no_promise(life: tuple[ServiceLife, dict[str, int]], point: str, manner: str) -> None:
    """Whoever dies there, and however often, each change is made once and every promise holds."""
    made, passes = life
    for number in chosen(passes[point], manner):
        doom = Doom(point, frozenset({number, number + 1} if manner == "retry" else {number}))
        made.run(doom, takeover=manner == "takeover")
        assert doom.deaths, f"{point} pass {number} was never reached"
        assert_clean(made.world, f"{point} pass {number} of {passes[point]}, {manner}")
