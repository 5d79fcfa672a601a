"""
A slice of the fault matrix in every test run; `make fault-matrix` plays all of it.
"""

from __future__ import annotations

import random

import pytest

from tests.conftest import Database
from tests.kubernetes_kit import UNTIDY
from tests.matrix import managed_cases
from tests.matrix.cases import OPERATIONS, Case
from tests.matrix.flashing import ENDS
from tests.matrix.run import GROUNDS, all_cases, play

pytestmark = UNTIDY
SIZES = {"bare": 14, "simulated": 8, "redfish": 4, "frr_evpn": 4, "ironic": 6, "clusterapi": 4}
DRAWN_BY = 7


def _slice(adapter: str) -> list[Case]:
    """
    Some of the adapter's cases, drawn by a seed, all of which can be played side by side.
    """
    known = [one for one in all_cases(1) if one.adapter == adapter and one.operation not in GROUNDS[adapter].apart]
    return random.Random(DRAWN_BY).sample(known, SIZES[adapter])


@pytest.mark.parametrize("adapter", GROUNDS)
def test_a_slice_of_the_matrix(database: Database, adapter: str) -> None:
    """Every case ends well or with a person who has a reason, every machine comes back, and no promise is broken."""
    cases = _slice(adapter)
    verdict = play(database, cases)
    assert verdict.broken == []
    assert sorted(one.case.name for one in verdict.ended) == sorted(one.name for one in cases)
    assert sum(one.played > 0 for one in verdict.ended) > len(cases) // 2
    assert all(one.words for one in verdict.ended if one.person)


def test_a_slice_of_firmware_updates(database: Database) -> None:
    """What can become of an update although the call that began it succeeded, each once."""
    cases = [Case("bare", "firmware", fault, DRAWN_BY) for fault in ENDS]
    verdict = play(database, cases)
    assert verdict.broken == []
    assert all(one.played > 0 for one in verdict.ended)


def test_the_matrix_has_no_hole() -> None:
    """Every operation has a fault on machines that we drive, and no case stands twice."""
    cases = all_cases(2)
    assert len(set(cases)) == len(cases)
    assert {one.operation for one in cases if one.adapter == "bare"} == set(OPERATIONS)
    for adapter in GROUNDS:
        assert any(one.adapter == adapter for one in cases)
    assert {one.operation for one in cases if one.adapter == "clusterapi"} == set(managed_cases.OPERATIONS)
