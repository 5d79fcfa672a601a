"""
The lock files pin all that pyproject.toml asks for, by digest, from no particular host; and each dependency has a reason.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RUNTIME = (ROOT / "requirements.lock").read_text(encoding="utf-8")
DEVELOPMENT = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
REASONS = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    """The packages that requirements ask for."""
    return {re.split(r"[\s<>=!~;\[]", each, maxsplit=1)[0].lower() for each in requirements}


def pins(lock: str) -> dict[str, set[str]]:
    """The versions that a lock allows, by package: more than one where Python versions differ."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?==(\S+)", lock, flags=re.MULTILINE):
        found.setdefault(name, set()).add(version)
    return found


DIRECT = names(PROJECT["project"]["dependencies"]) | names(PROJECT["project"]["optional-dependencies"]["embedded"])
TOOLS = names([each for group in PROJECT["dependency-groups"].values() for each in group])


def test_everything_asked_for_is_pinned() -> None:
    """A dependency that was added without `make lock` is noticed here, not on a fresh machine."""
    assert DIRECT | {"hatchling"} <= pins(RUNTIME).keys()
    assert pins(DEVELOPMENT).keys() >= DIRECT | TOOLS


def test_development_runs_on_what_production_runs_on() -> None:
    """Both locks agree on every version, so that what was tested is what is used."""
    tested = pins(DEVELOPMENT)
    assert {name: tested.get(name) for name in pins(RUNTIME)} == pins(RUNTIME)


@pytest.mark.parametrize("lock", [RUNTIME, DEVELOPMENT], ids=["runtime", "development"])
def test_every_pin_has_a_digest_and_no_host(lock: str) -> None:
    """The lock works with any index, and whatever the index answers is checked."""
    assert "://" not in lock
    for block in re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]:
        assert "--hash=sha256:" in block, block.split("\n", 1)[0]


def test_every_dependency_has_a_reason() -> None:
    """Nothing is depended on without a line in docs/dependencies.md."""
    assert {name for name in DIRECT | TOOLS if not re.search(rf"\b{re.escape(name)}\b", REASONS)} == set()
