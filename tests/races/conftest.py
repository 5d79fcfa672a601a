"""
The processes that all races share, and a cloud for each race.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.factories.processes import Processes, processes
from tests.races.arena import Arena, make_arena

FULL = os.environ.get("RACES") == "full"
"""Whether the long races are run, as `make races` does."""


@pytest.fixture(scope="package")
def running(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """
    Two API servers and two workers.
    """
    migrated.reset()
    with processes(migrated, tmp_path_factory.mktemp("races"), db_pool_size=10, http_threads=10) as started:
        yield started


@pytest.fixture
def arena(running: Processes, migrated: Database, tmp_path: Path) -> Iterator[Callable[..., Arena]]:
    """
    Makes a new cloud of so many nodes under the processes.
    """
    made: list[Arena] = []

    def fresh(nodes: int, **more: str) -> Arena:
        made.append(make_arena(running, migrated, tmp_path, nodes, **more))
        return made[-1]

    yield fresh
    for one in made:
        one.close()
