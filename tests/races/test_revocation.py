"""
What was taken away is refused by every server within seconds, in open streams too; what a suspended customer holds can still be deleted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.factories.processes import until
from tests.races.arena import Arena, Tenant

REFUSED_S = 5.0
CLOSED_S = 5.5


@contextmanager
def streams(here: Arena, key: str) -> Iterator[list[float]]:
    """An open event stream at each server; the list fills with the moments at which they ended."""
    ended: list[float] = []
    opened = threading.Barrier(len(here.running.apis) + 1)

    def listen(api: int) -> None:
        with here.running.apis[api].client(key) as client, client.stream("GET", "/v1/events/stream") as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            next(lines)
            opened.wait(30)
            try:
                for _ in lines:
                    continue
            except httpx.TransportError:
                pass
        ended.append(time.monotonic())

    threads = [threading.Thread(target=listen, args=(number,), daemon=True) for number in range(len(here.running.apis))]
    for one in threads:
        one.start()
    opened.wait(30)
    yield ended
    for one in threads:
        one.join(30)


def refused_within(here: Arena, key: str, statuses: set[int]) -> float:
    """How long until both servers refused the key, for good."""
    began = time.monotonic()
    for api in range(len(here.running.apis)):
        until(
            lambda api=api: here.ask(key, "GET", "/v1/events", api=api).status_code in statuses,  # type: ignore[misc]
            f"server {api} refuses",
            within_s=REFUSED_S,
        )
    took = time.monotonic() - began
    assert all(here.ask(key, "GET", "/v1/events", api=api).status_code in statuses for api in (0, 1) for _ in range(3))
    return took


def taken(here: Arena, what: str, who: Tenant, reseller_id: str, victim: dict[str, str]) -> httpx.Response:
    """The answer to what takes the rights away."""
    operator = here.world.keys.operator_key
    if what == "key":
        return here.ask(who.key, "DELETE", f"/v1/api-keys/{victim['key_id']}")
    if what == "member":
        return here.ask(who.key, "PATCH", f"/v1/members/{victim['member_id']}", {"state": "disabled"})
    if what == "removal":
        return here.ask(who.key, "DELETE", f"/v1/members/{victim['member_id']}")
    if what == "tenant":
        return here.ask(operator, "POST", f"/v1/admin/tenants/{who.id}/actions/suspend")
    return here.ask(operator, "POST", f"/v1/admin/resellers/{reseller_id}/actions/suspend")


@pytest.mark.parametrize("what", ["key", "member", "removal", "tenant", "reseller"])
def test_what_was_taken_away_is_refused_everywhere(arena: Callable[..., Arena], what: str) -> None:
    """Within five seconds both servers refuse, and soon both streams are closed, and only suspended customers may still delete."""
    here = arena(2)
    reseller_id, seller = here.new_reseller("fjord")
    who = here.new_tenant("customer", seller_key=seller)
    held = here.order(who, "held").json()["id"]
    here.settled()
    victim = _victim(here, who)
    key = victim["key"]
    assert all(here.ask(key, "GET", "/v1/whoami", api=api).status_code == 200 for api in (0, 1))
    suspends = what in {"tenant", "reseller"}
    with streams(here, key) as ended:
        answer = taken(here, what, who, reseller_id, victim)
        assert answer.status_code in {200, 204}, answer.text
        done_at = time.monotonic()
        took = refused_within(here, key, {403} if suspends else {401})
        until(
            lambda: len(ended) == len(here.running.apis),
            "both streams are closed",
            within_s=CLOSED_S - (time.monotonic() - done_at),
        )
    print(f"{what}: refused after {took:.1f} s, streams closed after {max(ended) - done_at:.1f} s")
    deleted = here.ask(key, "DELETE", f"/v1/projects/{who.project_id}/clusters/{held}", If_Match="*")
    assert deleted.status_code == (202 if suspends else 401), deleted.text
    if suspends:
        assert here.order(who, "more").json()["code"] == "suspended"
        here.idle()
        assert here.allocations() == 0


def _victim(here: Arena, who: Tenant) -> dict[str, str]:
    """A service account with every right of an administrator, and its key."""
    roles = [{"role": "tenant_admin"}]
    made = here.ask(who.key, "POST", "/v1/members", {"kind": "service_account", "name": "robot", "roles": roles})
    assert made.status_code == 201, made.text
    key = here.ask(who.key, "POST", "/v1/api-keys", {"name": "robot key", "principal_id": made.json()["id"]})
    assert key.status_code == 201, key.text
    return {"member_id": made.json()["id"], "key_id": key.json()["id"], "key": key.json()["key"]}
