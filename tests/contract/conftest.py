"""
One fixture: a harness of every adapter that brings one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.contract.harness import Harness


def _modules() -> list[ModuleType]:
    found = sorted(Path(__file__).parent.glob("*_harness.py"))
    return [importlib.import_module(f"tests.contract.{path.stem}") for path in found]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test that takes a harness runs once for each adapter's harnesses."""
    if "harness" in metafunc.fixturenames:
        metafunc.parametrize(
            "harness",
            [
                pytest.param((module, name), id=name, marks=getattr(module, "MARKS", ()))
                for module in _modules()
                for name in module.harnesses()
            ],
            indirect=True,
        )


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """A peer of its own for each test; a test whose needs the peer lacks is skipped with that word."""
    module, name = request.param
    needs = {word for mark in request.node.iter_markers("needs") for word in mark.args}
    with module.harnesses()[name](tmp_path) as made:
        lacking = needs & made.lacks
        if lacking:
            pytest.skip(f"{name} lacks: {', '.join(sorted(lacking))}")
        yield made


def pytest_configure(config: pytest.Config) -> None:
    """The mark `needs` is known."""
    config.addinivalue_line("markers", "needs(word): what the peer must be able to do for this contract test")
