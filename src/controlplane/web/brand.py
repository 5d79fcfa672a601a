"""
Whose domain a request came to.
"""

import functools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from threading import Lock
from typing import Protocol

KEPT_S = 30.0
MOST_HOSTS = 1024
LONGEST_HOST = 260


class Brand(Protocol):
    """
    What a reseller's domain shows; a hashable value of the identity room.
    """

    @property
    def reseller_id(self) -> str:
        """
        Whose.
        """
        ...

    @property
    def name(self) -> str:
        """
        For people.
        """
        ...

    @property
    def logo_url(self) -> str:
        """
        Empty: none.
        """
        ...

    @property
    def colour(self) -> str:
        """
        `#rrggbb`; empty: none.
        """
        ...

    @property
    def support_email(self) -> str:
        """
        Empty: none.
        """
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """
    What is known of a host.
    """

    brand: Brand | None
    """None: nobody's domain."""


class Brands:
    """
    Brands by host name, remembered for half a minute; `look_up` asks the database.
    """

    def __init__(self, look_up: Callable[[str], Brand | None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._look_up = look_up
        self._clock = clock
        self._lock = Lock()
        self._known: OrderedDict[str, tuple[float, Brand | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def recall(self, host: str) -> Found | None:
        """
        What is known without asking anybody; None when it must be looked up.
        """
        name = host_name(host)
        if not may_be_a_domain(name):
            return Found(None)
        known = self._known.get(name)
        if known is None or self._clock() - known[0] > KEPT_S:
            return None
        return Found(known[1])

    def find(self, host: str) -> Brand | None:
        """
        The brand of the host, looked up now. What was known before is kept when the database does not answer; without it the failure
        is raised, for a guess might show the wrong name.
        """
        name = host_name(host)
        try:
            brand = self._look_up(name)
        except Exception:
            known = self._known.get(name)
            if known is None:
                raise
            return known[1]
        with self._lock:
            self._known[name] = (self._clock(), brand)
            self._known.move_to_end(name)
            if len(self._known) > MOST_HOSTS:
                self._known.popitem(last=False)
        return brand


def host_name(host: str) -> str:
    """
    The host without its port, in lower case.
    """
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".").lower()


@functools.lru_cache(maxsize=1024)
def may_be_a_domain(name: str) -> bool:
    """
    Whether a reseller can own the name: not an address, not this machine.
    """
    if not name or len(name) > LONGEST_HOST or name.startswith("[") or name == "localhost" or not name.isascii():
        return False
    if name[-1].isdigit():
        try:
            ip_address(name)
        except ValueError:
            return True
        return False
    return True
