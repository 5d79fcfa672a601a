"""
Whatever can wait for a person has its line in the runbooks, and the runbooks speak of nothing else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from controlplane.nodes.finding import CODES
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "guides" / "runbooks.md").read_text()
FINDINGS = (ROOT / "docs" / "guides" / "enrolment.md").read_text()
SOURCES = sorted((ROOT / "src" / "controlplane").rglob("*.py"))
CODE = re.compile(r"[a-z]+(_[a-z]+)+")
ENDING = {"Fail", "_patience", "boot_acts", "wipe_failed"}
"""Calls by which a resource ends, or stops, with a code."""


def codes_of(tree: ast.AST) -> Iterator[str]:
    """
    The codes with which the module lets something fail.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ENDING:
            for given in node.args:
                if isinstance(given, ast.Constant) and isinstance(given.value, str) and CODE.fullmatch(given.value):
                    yield given.value
                    if node.func.id == "boot_acts":
                        yield f"{given.value}_silent"


def told(page: str) -> set[str]:
    """
    What stands in the first column of the page's tables.
    """
    return {one for line in page.splitlines() if line.startswith("| `") for one in re.findall(r"`([^`]+)`", line.split(" | ")[0])}


def test_every_code_has_its_runbook() -> None:
    """
    A code that a step can end with, the words of the engine's own and the findings of enrolment are each in a table.
    """
    there = {code for path in SOURCES for code in codes_of(ast.parse(path.read_text()))}
    assert len(there) > 30
    assert there - told(PAGE) == set()
    assert {"deadline", "attempts", "unconfirmed_delete", "provider_silent"} <= told(PAGE)
    assert set(CODES) - told(FINDINGS) == set()


def test_runbooks_speak_of_what_there_is() -> None:
    """
    What stands in a table is said somewhere in the code.
    """
    source = "\n".join(path.read_text() for path in SOURCES)
    codes = {one for one in told(PAGE) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", one)} - {"resume", "retry", "abandon"}
    assert {one for one in codes if one.removesuffix("_silent") not in source} == set()
