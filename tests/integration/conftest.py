"""
What tests of whole regions share.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.factories.world import World, make_world


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """
    A region on virtual time, everything that was due done.
    """
    made = make_world(database, tmp_path)
    made.settle()
    yield made
    made.clock.stop()
