"""
More orders than capacity, more orders than quota, and exactly as many orders as nodes, all at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.races.arena import Arena, all_at_once
from tests.races.conftest import FULL

CLEAR = {"insufficient_capacity", "never_fits"}
NODES, ORDERS = (64, 2000) if FULL else (16, 300)
QUOTA_ORDERS = 500 if FULL else 150
ROUNDS = 20 if FULL else 1

pytestmark = pytest.mark.timeout(3600 if FULL else 900)


def codes(answers: list[Any]) -> Counter[str]:
    """Answers by status, and by code where they are problems."""
    return Counter(f"{one.status_code} {one.json().get('code', '')}".strip() for one in answers)


def _order(here: Arena, name: str, number: int) -> httpx.Response:
    return here.order(here.tenant, f"{name}-{number}")


def _delete(here: Arena, given: list[httpx.Response], number: int) -> httpx.Response:
    return here.delete(here.tenant, given[number].json()["id"])


def test_nodes_are_given_out_exactly_once(arena: Callable[..., Arena]) -> None:
    """Far more orders than nodes: every node is held once, every other order is refused or fails with a clear code."""
    here = arena(NODES)
    answers = all_at_once(ORDERS, lambda number: here.order(here.tenant, f"c{number}"))
    counted = codes(answers)
    assert set(counted) <= {"202", "409 insufficient_capacity"}, counted
    here.settled(within_s=600)
    assert here.states() == Counter(running=NODES, failed=counted["202"] - NODES) + Counter()
    assert here.allocations() == NODES
    refused = here.world.rows("SELECT DISTINCT issues -> 0 ->> 'code' AS code FROM clusters WHERE state = 'failed'")
    assert {row.code for row in refused} <= CLEAR
    ledger = here.ledger()
    assert len({one.ref for one in ledger.tenancies}) == len(ledger.tenancies) == NODES
    assert here.findings() == []


def test_as_many_orders_as_nodes_all_succeed(arena: Callable[..., Arena]) -> None:
    """Each of many simultaneous one-node orders for as many nodes gets one: no conflict among ours is shown to anybody."""
    here = arena(NODES)
    for turn in range(ROUNDS):
        answers = all_at_once(NODES, partial(_order, here, f"t{turn}"), lanes=NODES)
        assert codes(answers) == {"202": NODES}
        here.settled()
        assert here.allocations() == NODES
        slow = sorted(one.elapsed.total_seconds() for one in answers)
        print(f"{NODES} parallel orders: median {slow[NODES // 2]:.2f} s, slowest {slow[-1]:.2f} s")
        gone = all_at_once(NODES, partial(_delete, here, answers))
        assert {one.status_code for one in gone} == {202}
        here.idle()
    assert here.findings() == []


@pytest.mark.parametrize("tenants", [1, 4])
def test_a_quota_holds_wherever_it_stands(arena: Callable[..., Arena], tenants: int) -> None:
    """A limit of ten clusters lets ten of many simultaneous orders through: at the tenant, and at the reseller over its tenants."""
    here = arena(16)
    if tenants == 1:
        buyers, limited = [here.tenant], here.tenant.id
    else:
        limited, seller = here.new_reseller("fjord")
        buyers = [here.new_tenant(f"customer{number}", seller_key=seller, clusters=None) for number in range(tenants)]
    here.limit(limited, clusters=10, gpus=100_000, operations=100_000, keys=100)
    answers = all_at_once(QUOTA_ORDERS, lambda n: here.order(buyers[n % tenants], f"c{n}", wait=True))
    assert codes(answers) == {"202": 10, "409 quota_exceeded": QUOTA_ORDERS - 10}
    refusal = next(one.json() for one in answers if one.status_code == 409)
    # A customer is told of its own limit; its seller's is none of its business.
    assert (refusal["scope"], refusal["limit"]) == (("tenant", 10) if tenants == 1 else ("provider", None)), refusal
    here.settled()
    assert here.states() == {"running": 10}
    owners = {one.json()["id"]: buyers[n % tenants] for n, one in enumerate(answers) if one.status_code == 202}
    for cluster_id, owner in owners.items():
        assert here.delete(owner, cluster_id).status_code == 202
    here.idle()
    left = here.world.rows("SELECT scope_id, resource, used FROM quotas WHERE used <> 0 AND resource <> 'keys'")
    assert left == []
