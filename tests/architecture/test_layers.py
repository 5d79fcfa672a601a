"""
Who may import whom: the contracts of pyproject.toml, and the rule that has no contract.
"""

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.conftest import ROOT

ROOMS = frozenset(
    "activity boots calculators catalog clusters fabric_checks identity images jobs metering nodes qualification quotas services".split()  # noqa: SIM905
)
OPEN = frozenset({"service", "errors", "states"})


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Every import of the product."""
    return grimp.build_graph("controlplane", "workers", cache_dir=None)


def test_contracts_hold() -> None:
    """import-linter finds all ten contracts kept."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_room_sees_only_what_another_opens(graph: grimp.ImportGraph) -> None:
    """Between rooms only `service`, `errors` and `states` are imported."""
    past = [
        f"{importer} -> {imported}"
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if _past(importer.split("."), imported.split("."))
    ]
    assert past == []


def test_every_room_is_known(graph: grimp.ImportGraph) -> None:
    """Each package with a service is named in these tests, so none escapes them."""
    with_service = {name.split(".")[1] for name in graph.modules if name.count(".") == 2 and name.endswith(".service")}
    assert with_service == ROOMS


def _past(importer: list[str], imported: list[str]) -> bool:
    if len(importer) < 3 or len(imported) < 3 or importer[1] == imported[1]:
        return False
    return {importer[1], imported[1]} <= ROOMS and imported[2] not in OPEN
