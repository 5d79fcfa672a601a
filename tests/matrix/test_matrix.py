"""
A slice of the fault matrix in every test run; `make fault-matrix` plays all of it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest

from controlplane.clusters.steps import deleting
from controlplane.providers.adapters.clusterapi.clusters import Clusters
from controlplane.providers.adapters.clusterapi.hosts import Hosts
from controlplane.providers.adapters.clusterapi.tenants import Tenants
from controlplane.providers.credentials import Kubeconfig
from tests.conftest import Database
from tests.kubernetes_kit import UNTIDY
from tests.matrix import managed_cases
from tests.matrix.cases import OPERATIONS, Case
from tests.matrix.flashing import ENDS
from tests.matrix.run import GROUNDS, all_cases, play

pytestmark = UNTIDY
SIZES = {"bare": 14, "simulated": 8, "redfish": 4, "frr_evpn": 4, "ironic": 6, "clusterapi": 3}
DRAWN_BY = 7


def _slice(adapter: str) -> list[Case]:
    """
    Some of the adapter's cases, drawn by a seed, all of which can be played side by side.
    """
    known = [one for one in all_cases(1) if one.adapter == adapter and one.operation not in GROUNDS[adapter].apart]
    return random.Random(DRAWN_BY).sample(known, SIZES[adapter])


def administrators(tenants: Tenants, cluster_id: str, lifetime_s: int) -> Kubeconfig:
    """What Cluster API keeps, as it is."""
    way = tenants._way(cluster_id)
    return Kubeconfig(way.access.token, datetime.now(UTC) + timedelta(seconds=lifetime_s))


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


PLANTS: Mapping[str, tuple[Any, str, Any, str, str]] = {
    "marks stay on hosts": (Hosts, "leave", lambda _self, host: host, "delete/reset", "I2"),
    "who goes is not marked": (Clusters, "_mark_going", lambda _self, _staying, _going: None, "shrink/says_500", "I6"),
    "the administrator's way is given out": (Tenants, "issue", administrators, "kubeconfig/says_429", "I10"),
    "gone without a look": (deleting, "remove", lambda _cluster, _tools, _words, gone: gone, "delete/says_500", "I2"),
}
"""Bugs: where, what instead, in which cases it is seen, and by which promise."""


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1")
@pytest.mark.parametrize("bug", PLANTS)
def test_the_managed_matrix_is_not_blind(database: Database, bug: str) -> None:
    """With each planted bug a promise is broken; without one none is."""
    where, what, instead, beginning, promise = PLANTS[bug]
    cases = [one for one in all_cases(1) if one.name.startswith(f"clusterapi/{beginning}/")]
    assert play(database, cases).broken == []
    with mock.patch.object(where, what, instead):
        assert any(words.startswith(promise) for words in play(database, cases).broken)


def test_the_matrix_has_no_hole() -> None:
    """Every operation has a fault on machines that we drive, and no case stands twice."""
    cases = all_cases(2)
    assert len(set(cases)) == len(cases)
    assert {one.operation for one in cases if one.adapter == "bare"} == set(OPERATIONS)
    for adapter in GROUNDS:
        assert any(one.adapter == adapter for one in cases)
    assert {one.operation for one in cases if one.adapter == "clusterapi"} == set(managed_cases.OPERATIONS)
