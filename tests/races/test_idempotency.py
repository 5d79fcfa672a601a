"""
One idempotency key sent many times at once to two servers, and repeated after a server was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.races.arena import Arena, all_at_once, cluster_body
from tests.races.conftest import FULL

ROUNDS = 50 if FULL else 2
KILLS = 20 if FULL else 2
AT_ONCE = 100

pytestmark = pytest.mark.timeout(3600 if FULL else 900)


def answers_until_settled(here: Arena, key: str, *, api: int | None = None) -> httpx.Response:
    """The answer to the order with this key, asked again while another is being served."""
    while True:
        answer = here.order(here.tenant, key, Idempotency_Key=key, wait=True, api=api)
        if answer.status_code != 409 or answer.json()["code"] != "idempotency_in_flight":
            return answer


def _order(here: Arena, name: str, _: int) -> httpx.Response:
    return here.order(here.tenant, name, Idempotency_Key=name, wait=True)


def test_one_key_has_one_effect(arena: Callable[..., Arena]) -> None:
    """A hundred equal orders with one key at two servers make one cluster; all answers are that one or `still being served`."""
    here = arena(16)
    for turn in range(ROUNDS):
        name = f"only-{turn}"
        answers = all_at_once(AT_ONCE, partial(_order, here, name), lanes=AT_ONCE // 2)
        counted = Counter(f"{one.status_code} {one.json().get('code', '')}".strip() for one in answers)
        assert set(counted) <= {"202", "409 idempotency_in_flight"}, counted
        assert counted["202"] >= 1
        made = {one.json()["id"] for one in answers if one.status_code == 202}
        assert len(made) == 1
        assert sum("idempotent-replayed" not in one.headers for one in answers if one.status_code == 202) == 1
        again = [here.order(here.tenant, name, Idempotency_Key=name, wait=True, api=api) for api in (0, 1)]
        assert {one.json()["id"] for one in again} == made
        assert {one.headers.get("idempotent-replayed") for one in again} == {"true"}
        other = here.order(here.tenant, f"other-{turn}", Idempotency_Key=name)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert here.world.rows("SELECT count(*) AS n FROM clusters")[0].n == ROUNDS
    assert here.world.rows("SELECT count(*) AS n FROM operations")[0].n == ROUNDS


def test_a_killed_server_leaves_what_a_repeat_finishes(arena: Callable[..., Arena]) -> None:
    """A server killed under load has done each order wholly or not at all; the other one finishes every repeat, once."""
    here = arena(16)
    names = []
    for turn in range(KILLS):
        some = [f"k{turn}-{number}" for number in range(40)]
        names += some
        seen = _orders_until_killed(here, some, after=5 + 7 * (turn % 4))
        here.running.apis[0].start_again()
        assert any(one is None for one in seen.values()), "the server answered everything before it was killed"
        for name in some:
            answer = answers_until_settled(here, name, api=1)
            assert answer.status_code == 202, answer.text
            first = seen[name]
            if first is not None:
                assert first["id"] == answer.json()["id"]
    rows = here.world.rows("SELECT name, count(*) AS n FROM clusters GROUP BY 1")
    assert {row.name: row.n for row in rows} == dict.fromkeys(names, 1)
    charged = here.world.rows("SELECT used FROM quotas WHERE resource = 'clusters' AND scope_id = :id", id=here.tenant.id)
    assert [row.used for row in charged] == [len(names)]


def _orders_until_killed(here: Arena, names: list[str], *, after: int) -> dict[str, Any]:
    """The answers of the first server by name, None where it died first; it is killed after so many."""
    server = here.running.apis[0]
    seen: dict[str, Any] = dict.fromkeys(names)
    path = f"/v1/projects/{here.tenant.project_id}/clusters"

    def order(name: str) -> None:
        try:
            with server.client(here.tenant.key) as client:
                answer = client.post(path, json=cluster_body(name, wait=True), headers={"Idempotency-Key": name})
        except httpx.TransportError:
            return
        if answer.status_code == 202:
            seen[name] = answer.json()
        if sum(one is not None for one in seen.values()) == after:
            server.kill()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(order, names))
    here.clients.pop((here.tenant.key, 0), None)
    return seen
