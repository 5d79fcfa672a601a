"""
Rate limits: token buckets in this process per address, key and tenant; `web/sharing.py` tells other processes of what was used.

An address pays before its credential is looked at, and more when the credential is refused. Deletes and stops have buckets of their
own, so that a caller who ran into the limit can still stop paying.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from threading import Lock

from controlplane.kit.access import Principal
from controlplane.kit.errors import TooMany

ADDRESS_FACTOR = 5
"""Many people share an address: it may send this many times what one key may."""
TENANT_FACTOR = 4
"""A tenant may send this many times what one of its keys may."""
FAILURE_COST = 20
"""What a refused credential costs its address, in requests."""
MOST_BUCKETS = 20_000
"""Of one kind; the least recently used is forgotten first, and an idle bucket is full anyway."""


@dataclass(frozen=True, slots=True)
class Level:
    """
    How a bucket stood after it was asked.
    """

    allowed: bool
    """Whether the tokens were taken."""
    limit: int
    """The most it holds."""
    remaining: int
    """Whole tokens left."""
    reset_s: float
    """Until it is full again."""
    retry_after_s: float
    """Until the asked tokens are there; 0 when they were taken."""


class Buckets:
    """
    Buckets of one kind: each holds `burst` tokens and gains `rate_per_s`.
    """

    def __init__(self, rate_per_s: float, burst: int, *, clock: Callable[[], float], most: int = MOST_BUCKETS) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._clock = clock
        self._most = most
        self._lock = Lock()
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._used: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, name: str, cost: int = 1) -> Level:
        """
        The tokens are taken if the bucket holds them; if not, nothing is taken.
        """
        with self._lock:
            tokens, now = self._tokens(name)
            allowed = tokens >= cost
            if allowed:
                tokens -= cost
                self._used[name] = self._used.get(name, 0) + cost
            self._put(name, tokens, now)
        missing = 0.0 if allowed else (min(cost, self.burst) - tokens) / self.rate_per_s
        return Level(allowed, self.burst, max(0, int(tokens)), max(0.0, self.burst - tokens) / self.rate_per_s, missing)

    def charge(self, name: str, cost: int, *, told: bool = True) -> None:
        """
        The bucket has lost the tokens even if it did not hold them; it never owes more than it can hold. `told`: others hear of it.
        """
        with self._lock:
            tokens, now = self._tokens(name)
            self._put(name, max(-float(self.burst), tokens - cost), now)
            if told:
                self._used[name] = self._used.get(name, 0) + cost

    def give_back(self, name: str, cost: int = 1) -> None:
        """
        Tokens that were taken in vain are in the bucket again.
        """
        with self._lock:
            tokens, now = self._tokens(name)
            self._put(name, min(float(self.burst), tokens + cost), now)
            self._used[name] = self._used.get(name, 0) - cost

    def drain_used(self) -> dict[str, int]:
        """
        What was used of each bucket since this was asked last.
        """
        with self._lock:
            used, self._used = self._used, {}
        return {name: amount for name, amount in used.items() if amount > 0}

    def _tokens(self, name: str) -> tuple[float, float]:
        now = self._clock()
        tokens, at = self._held.get(name, (float(self.burst), now))
        return min(float(self.burst), tokens + (now - at) * self.rate_per_s), now

    def _put(self, name: str, tokens: float, now: float) -> None:
        self._held[name] = (tokens, now)
        self._held.move_to_end(name)
        if len(self._held) > self._most:
            forgotten, _ = self._held.popitem(last=False)
            self._used.pop(forgotten, None)


class Limiter:
    """
    All buckets of this process.
    """

    def __init__(self, rate_per_s: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        def buckets(factor: int) -> Buckets:
            return Buckets(rate_per_s * factor, burst * factor, clock=clock)

        self.kinds: Mapping[str, Buckets] = {
            "address": buckets(ADDRESS_FACTOR),
            "key": buckets(1),
            "key-stop": buckets(1),
            "tenant": buckets(TENANT_FACTOR),
            "tenant-stop": buckets(TENANT_FACTOR),
        }

    def admit(self, client: IPv4Address | IPv6Address | None, cost: int = 1) -> "Ticket":
        """
        The address has paid for one request. Raises TooMany.
        """
        address = address_name(client)
        level = self.kinds["address"].take(address, cost)
        if not level.allowed:
            raise too_many("this address", level)
        return Ticket(self, address, level)

    def charge_failure(self, client: IPv4Address | IPv6Address | None) -> None:
        """
        The address has paid for a refused credential.
        """
        self.kinds["address"].charge(address_name(client), FAILURE_COST - 1)


class Ticket:
    """
    One admitted request: what it is charged, and the level that its answer shows.
    """

    __slots__ = ("_limiter", "address", "level")

    def __init__(self, limiter: Limiter, address: str, level: Level) -> None:
        self._limiter = limiter
        self.address = address
        self.level = level

    def check_key(self, principal: Principal, *, cheap: bool = False) -> None:
        """
        Key and tenant have paid; deletes and stops (`cheap`) from budgets of their own. Raises TooMany.
        """
        suffix = "-stop" if cheap else ""
        keys = self._limiter.kinds[f"key{suffix}"]
        mine = keys.take(principal.key_id)
        self.level = mine
        if not mine.allowed:
            raise too_many("this key", mine)
        if not principal.tenant_id:
            return
        whole = self._limiter.kinds[f"tenant{suffix}"].take(principal.tenant_id)
        if not whole.allowed:
            keys.give_back(principal.key_id)
            self.level = whole
            raise too_many("this tenant", whole)


def too_many(whose: str, level: Level) -> TooMany:
    """
    The refusal, with the time after which the request can succeed.
    """
    return TooMany(
        f"The request budget of {whose} is used up; go on in {max(1, round(level.retry_after_s))} s.",
        retry_after_s=max(1.0, level.retry_after_s),
    )


def address_name(client: IPv4Address | IPv6Address | None) -> str:
    """
    What shares a budget: an IPv4 address, or the /64 that one IPv6 customer holds.
    """
    if client is None:
        return "local"
    if isinstance(client, IPv6Address):
        return str(IPv6Network((client, 64), strict=False).network_address)
    return str(client)
