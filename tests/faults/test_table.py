"""
The table of reports in the documentation names tests that exist.
"""

from __future__ import annotations

import re

from tests.conftest import ROOT

REPORTS = 88
ROW = re.compile(r"^\| (BR-\d{3}) \| [^|]+ \| (.+) \|$", re.MULTILINE)
SHORT, LONG = re.compile(r"`(\w+)::(\w+)`"), re.compile(r"`(tests/\S+\.py)::(test_\w+)`")


def test_every_report_has_its_test_or_a_reason() -> None:
    """Each report stands in the table once; each test it names is defined where it says; what names none says why."""
    table = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = ROW.findall(table)
    assert len({number for number, _ in rows}) == len(rows) == REPORTS
    for number, words in rows:
        named = [(f"tests/faults/test_{file}.py", f"test_{name}") for file, name in SHORT.findall(words)] + LONG.findall(words)
        assert named or "`schedules`" in words or words.startswith("later: "), number
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{number}: {file}::{name}"
