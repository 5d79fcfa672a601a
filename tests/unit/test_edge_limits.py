"""
Token buckets: what is let through, what is refused and for how long, and what they remember.
"""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.kit.access import Principal
from controlplane.kit.errors import TooMany
from controlplane.web.limits import ADDRESS_FACTOR, FAILURE_COST, TENANT_FACTOR, Buckets, Limiter, address_name


class Hands:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def principal(key: str, tenant: str = "ten_1") -> Principal:
    """Somebody with a key."""
    return Principal("prn_1", key, "tenant", tenant, frozenset(), tenant_id=tenant)


@given(
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 4)), max_size=80), rate=st.floats(0.5, 20), burst=st.integers(4, 30)
)
def test_never_more_than_burst_and_rate(steps: list[tuple[float, int]], rate: float, burst: int) -> None:
    """In any stretch of time no more is let through than the bucket holds plus what it gains."""
    clock = Hands()
    buckets = Buckets(rate, burst, clock=clock)
    taken = 0
    for pause, cost in steps:
        clock.now += pause
        level = buckets.take("a", cost)
        taken += cost if level.allowed else 0
        assert 0 <= level.remaining <= burst
        assert taken <= burst + clock.now * rate + 1e-6
        if not level.allowed:
            clock.now += level.retry_after_s + 1e-6
            assert buckets.take("a", cost).allowed
            taken += cost


def test_memory_is_bounded_and_the_busy_stay() -> None:
    """A flood of names neither grows without end nor makes the busy one forgotten while it is used."""
    clock = Hands()
    buckets = Buckets(0.001, 10, clock=clock, most=50)
    for n in range(5000):
        buckets.take(f"stranger-{n}")
        buckets.take("busy")
    assert len(buckets) == 50
    assert len(buckets.drain_used()) <= 50
    assert not buckets.take("busy").allowed


def test_a_key_is_refused_and_its_stops_are_not() -> None:
    """A key that used up its budget is told when to go on, and may still delete."""
    clock = Hands()
    limiter = Limiter(10, 20, clock=clock)
    for _ in range(20):
        limiter.admit(ip_address("192.0.2.1")).check_key(principal("key_1"))
    ticket = limiter.admit(ip_address("192.0.2.1"))
    with pytest.raises(TooMany) as caught:
        ticket.check_key(principal("key_1"))
    assert caught.value.fields["retry_after_s"] >= 1
    assert (ticket.level.limit, ticket.level.remaining) == (20, 0)
    ticket.check_key(principal("key_1"), cheap=True)
    ticket.check_key(principal("key_2"))
    clock.now += 1
    ticket.check_key(principal("key_1"))


def test_a_tenant_with_many_keys_is_limited_as_one() -> None:
    """Keys of one tenant share its budget; another tenant is not touched, and the key's own token is given back."""
    limiter = Limiter(1, 10, clock=Hands())
    ticket = limiter.admit(None)
    for n in range(10 * TENANT_FACTOR):
        ticket.check_key(principal(f"key_{n}"))
    for _ in range(50):
        with pytest.raises(TooMany, match="tenant"):
            ticket.check_key(principal("key_new"))
    ticket.check_key(principal("key_other", "ten_2"))
    assert limiter.kinds["key"].take("key_new").remaining == 9


def test_guessing_costs_the_address_more() -> None:
    """An address that sends refused credentials is stopped long before one that sends good ones; a neighbour is not."""
    limiter = Limiter(1, 100, clock=Hands())
    guesser, neighbour = ip_address("192.0.2.7"), ip_address("192.0.2.8")
    for _ in range(100 * ADDRESS_FACTOR // FAILURE_COST):
        limiter.admit(guesser)
        limiter.charge_failure(guesser)
    with pytest.raises(TooMany, match="address"):
        limiter.admit(guesser)
    limiter.admit(neighbour)


def test_one_customer_of_ipv6_is_one_address() -> None:
    """All addresses of a /64 share a budget; other networks have their own."""
    assert address_name(ip_address("2001:db8::1")) == address_name(ip_address("2001:db8::ffff:1"))
    assert address_name(ip_address("2001:db8::1")) != address_name(ip_address("2001:db8:0:1::1"))
    assert address_name(ip_address("192.0.2.1")) != address_name(ip_address("192.0.2.2"))
