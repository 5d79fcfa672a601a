"""
One simulated controller and an adapter for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.adapters.redfish.adapter import build as build_one
from controlplane.providers.hardware import Controller
from controlplane.providers.registry import AdapterInput
from tests.simulators.redfish.server import FakeBmc, serving

QUICK = {
    "timeout_s": 5.0,
    "call_limit_s": 15.0,
    "read_retries": 1,
    "retry_delay_s": 0.0,
    "poll_s": 0.01,
    "media_wait_s": 0.05,
    "silence_s": 0.0,
}
SECRETS = {"username": "admin", "password": "old secret 1"}
Build = Callable[..., RedfishAdapter]


@pytest.fixture
def build() -> Iterator[Build]:
    """Makes adapters, with these settings besides quick ones, and closes them."""
    with ExitStack() as stack:

        def make(secrets: dict[str, str] | None = None, **config: Any) -> RedfishAdapter:
            given = AdapterInput(
                "prv_1", QUICK | config, SECRETS if secrets is None else secrets, "test", lambda: datetime.now(UTC)
            )
            adapter = build_one(given)
            stack.callback(adapter.close)
            return adapter

        yield make


@pytest.fixture
def bmc() -> Iterator[FakeBmc]:
    """An ordinary controller that listens."""
    fake = FakeBmc()
    with serving(fake):
        yield fake


@pytest.fixture
def adapter(build: Build) -> RedfishAdapter:
    """An adapter."""
    return build()


@pytest.fixture
def at(bmc: FakeBmc) -> Controller:
    """Where the controller is."""
    return Controller("nod_1", bmc.url)
