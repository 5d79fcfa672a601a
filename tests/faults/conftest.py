"""
The region that faults are played in.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.faults.region import Grounds, make_grounds


@pytest.fixture
def grounds(database: Database, tmp_path: Path) -> Iterator[Grounds]:
    """
    Six free nodes on a provider where everything happens at once.
    """
    made = make_grounds(database, tmp_path)
    yield made
    made.close()


@pytest.fixture
def slow(database: Database, tmp_path: Path) -> Iterator[Grounds]:
    """
    Six free nodes on a provider that takes its time.
    """
    made = make_grounds(database, tmp_path, profile="realistic")
    yield made
    made.close()
