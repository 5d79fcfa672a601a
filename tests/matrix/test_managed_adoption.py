"""
Takeovers in the matrix, and what it sees when they are wrong. Slow: `python -m tests.matrix.run --only clusterapi/adopt/` plays them all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest

from controlplane.clusters.states import ClusterFacts
from controlplane.clusters.steps import deleting
from controlplane.clusters.steps.absence import remove
from controlplane.kit.outcome import Gone
from controlplane.providers.adapters.clusterapi.hosts import Hosts
from tests.conftest import Database
from tests.kubernetes_kit import UNTIDY
from tests.matrix.cases import Case
from tests.matrix.managed_adoption import OPERATIONS
from tests.matrix.run import all_cases, play

pytestmark = [
    UNTIDY,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1"),
]
ALL = [one for one in all_cases(1) if one.operation in OPERATIONS]


def cases(*beginnings: str) -> list[Case]:
    """
    Those whose names begin so.
    """
    return [one for one in ALL if one.name.startswith(tuple(f"clusterapi/{beginning}/" for beginning in beginnings))]


def taken_down(cluster: Any, tools: Any) -> Any:
    """
    As any cluster is.
    """
    facts = ClusterFacts(hand_back=tuple(one.allocation_id for one in cluster.members))
    return remove(cluster, tools, "", Gone(facts=facts))


PLANTS: Mapping[str, tuple[Any, str, Any, str, str]] = {
    "hosts keep their marks": (Hosts, "untake", lambda _self, _cluster, host: host, "let_go/says_500", "I6"),
    "who is let go is taken down": (deleting, "let_go", taken_down, "let_go/says_429", "I9"),
}
"""Bugs: where, what instead, in which cases it is seen, and by which promise."""


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_takeovers_under_faults(database: Database, operation: str) -> None:
    """Some of each kind: a lost answer, a refusal, a conflict, silence, trouble behind the server."""
    some = cases(
        *(f"{operation}/{fault}" for fault in ("effect_then_reset", "webhook_denies", "says_409", "silence", "node_silent"))
    )
    verdict = play(database, some)
    assert verdict.broken == []
    assert sum(one.played > 0 for one in verdict.ended) > len(some) // 2
    assert all(one.words for one in verdict.ended if one.person)


@pytest.mark.parametrize("bug", PLANTS)
def test_it_is_not_blind(database: Database, bug: str) -> None:
    """With each planted bug a promise is broken; without one none is."""
    where, what, instead, beginning, promise = PLANTS[bug]
    some = cases(beginning)
    assert play(database, some).broken == []
    with mock.patch.object(where, what, instead):
        found = play(database, some).broken
    assert any(words.startswith(promise) for words in found), found
