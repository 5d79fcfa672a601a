"""
Lives on one management cluster of Cluster API, as crash points interrupt them: where they are lived, and what must be left of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import Database
from tests.crash.test_crash_points import HELD, METERS
from tests.integration.test_managed_kubernetes import Made, Scene, World, open_scene
from tests.schedules.invariants import promises_of_rows


@contextmanager
def many_lives(
    migrated: Database, folder: Path, made_as: Callable[[World, Any], Made], before: Callable[[Any], object] = lambda _: None
) -> Iterator[Made]:
    """
    A management cluster for all lives; what is logged of them goes where it went before.
    """
    migrated.reset()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with open_scene(migrated, folder, made_as, before=before) as made:
        root.handlers[:] = handlers
        root.setLevel(level)
        yield made
    migrated.reset()


def assert_nothing_is_left(made: Scene, words: str, *, operations: int) -> None:
    """
    Every promise holds, each wish was one operation, of which each life has so many, and nothing is left here or at the peer.
    """
    world = made.world
    broken = promises_of_rows(world)
    assert not broken, f"{words}: {broken}"
    assert made.kit.remains() == [], words
    assert world.rows("SELECT state, count(*) AS n FROM nodes GROUP BY 1") == [("available", 3)], words
    assert world.rows(HELD) == [], words
    assert world.rows(METERS) == [], words
    (count,) = world.rows("SELECT count(*) AS n, count(DISTINCT name) AS names FROM clusters")
    assert count.n == count.names, words
    done = world.rows("SELECT state, count(*) AS n FROM operations WHERE resource_kind = 'cluster' GROUP BY 1")
    assert [(row.state, row.n) for row in done] == [("succeeded", operations * count.n)], words
