"""
Random requests by the OpenAPI document, well-formed and malformed, with every kind of key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Database
from tests.fuzz.campaign import Campaign

CASES = int(os.environ.get("FUZZ_CASES", "1500"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
PARTS = 3 if CASES < 5000 else 1
"""Each has every third operation, so that several processes share the work."""


@pytest.fixture
def campaign(database: Database, tmp_path: Path) -> Iterator[Campaign]:
    """
    A cloud that is lived in, under fire.
    """
    made = Campaign(database, tmp_path, SEED)
    yield made
    made.close()


@pytest.mark.timeout(7200 if CASES > 2000 else 900)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_request_breaks_the_document(campaign: Campaign, part: int) -> None:
    """No 5xx, no status, type or shape that is not declared, nothing malformed accepted, nothing written by what was refused."""
    report = campaign.run(CASES // PARTS, part=part, parts=PARTS)
    print(f"seed {SEED}: {report.told()}")
    for (label, field), count in report.strict.most_common(40):
        print("valid by the document and refused:", label, field, count)
    assert not report.wrong, f"seed {SEED}, {len(report.wrong)} faults\n{report.told()}"
    assert report.cases >= CASES // PARTS
    assert len(report.reached) > report.operations * (0.4 if CASES < 5000 else 0.75)
