"""
One node that two tenants want: the second has it only after it was wiped of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.factories.processes import until
from tests.races.arena import Arena, Tenant
from tests.races.conftest import FULL

ROUNDS = 100 if FULL else 4

pytestmark = pytest.mark.timeout(3600 if FULL else 900)


def test_a_node_changes_hands_only_after_its_wipe(arena: Callable[..., Arena]) -> None:
    """While one tenant deletes, the other asks again and again: by the simulator's book nobody meets the other's traces."""
    here = arena(1, profile="fast")
    first, second = here.tenant, here.new_tenant("rival")
    holder, held = first, _ordered(here, first, "t0")
    asked = 0
    for turn in range(1, ROUNDS):
        here.settled()
        other = second if holder is first else first
        assert here.order(other, f"early-{turn}").status_code == 409, "a node in use was offered"
        assert here.delete(holder, held).status_code == 202
        tries, held_next = _ask_until_given(here, other, f"t{turn}")
        asked += tries
        holder, held = other, held_next
    here.settled()
    print(f"{ROUNDS} turns, {asked} refused orders in between")
    ledger = here.ledger()
    assert len(ledger.tenancies) == ROUNDS
    assert asked > ROUNDS, "the second tenant never had to wait"
    ordered = sorted(ledger.tenancies, key=lambda one: one.order)
    assert [one.tenant_id for one in ordered] == [(first, second)[turn % 2].id for turn in range(ROUNDS)]
    for before, after in pairwise(ordered):
        assert before.detached_at is not None
        wiped = [one for one in ledger.wipes if before.order < one.order < after.order and one.finished_at is not None]
        assert any(before.detached_at <= one.requested_at and one.finished_at <= after.requested_at for one in wiped)
    assert here.findings() == []


def _ordered(here: Arena, who: Tenant, name: str) -> str:
    answer = here.order(who, name)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def _ask_until_given(here: Arena, who: Tenant, name: str) -> tuple[int, str]:
    """How often the tenant was refused before it got a cluster, and the cluster's id."""
    refused, given = [0], [""]

    def tried() -> bool:
        answer = here.order(who, f"{name}-{refused[0]}")
        if answer.status_code == 202:
            given[0] = answer.json()["id"]
            return True
        assert answer.json()["code"] == "insufficient_capacity", answer.text
        refused[0] += 1
        return False

    until(tried, "the node can be had again", within_s=60)
    return refused[0], given[0]
