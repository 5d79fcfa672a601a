"""
One call of the port has one deadline, however many requests and commands it takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from controlplane.providers.errors import Transient

CALL_LIMIT_S = 24.0
"""The port allows well under 30 s a call."""

_ENDS_AT: ContextVar[float | None] = ContextVar("call_ends_at", default=None)


@contextmanager
def one_call(limit_s: float = CALL_LIMIT_S) -> Iterator[None]:
    """
    Everything inside shares one deadline; an inner call cannot make it later.
    """
    ends_at = time.monotonic() + limit_s
    outer = _ENDS_AT.get()
    token = _ENDS_AT.set(ends_at if outer is None else min(outer, ends_at))
    try:
        yield
    finally:
        _ENDS_AT.reset(token)


def time_left_s(cap_s: float) -> float:
    """
    Seconds the next request may take, at most `cap_s`. Raises Transient when the call's time is used up: nothing more is started.
    """
    ends_at = _ENDS_AT.get()
    left_s = cap_s if ends_at is None else min(cap_s, ends_at - time.monotonic())
    if left_s <= 0:
        raise Transient("the call's time is used up before all its requests were sent", retry_in_s=2.0)
    return left_s
