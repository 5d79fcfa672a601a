"""
Reads over one connection a call, and what becomes of it when the controller ends it.
"""

from __future__ import annotations

import time

from controlplane.providers.hardware import Controller
from tests.simulators.redfish.server import Answer, FakeBmc
from tests.simulators.redfish.tree import RESET, SYSTEM
from tests.unit.redfish_control.conftest import Build

BASIC = {"auth": "basic"}
PATIENCE_S = 5.0


def _nobody_is_connected(bmc: FakeBmc) -> bool:
    ends_at = time.monotonic() + PATIENCE_S
    while bmc.connected and time.monotonic() < ends_at:
        bmc.left.wait(0.01)
    return not bmc.connected


def test_a_look_is_one_connection_that_ends_with_it(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """However many resources it reads; controllers have room for few."""
    adapter = build(**BASIC)
    adapter.read_health(at)
    assert len(bmc.requests) > 5
    assert bmc.connections == 1
    assert _nobody_is_connected(bmc)


def test_a_look_asks_for_nothing_twice(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """Nor for the service's root when it was read before."""
    adapter = build(**BASIC)
    adapter.read_health(at)
    bmc.requests.clear()
    adapter.read_health(at)
    lines = [one.line for one in bmc.requests]
    assert len(lines) == len(set(lines))
    assert not [line for line in lines if line.rstrip("/").endswith("/v1")]


def test_a_change_has_a_connection_of_its_own(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """One that was kept might be dead, and nobody could tell whether it was carried out."""
    build(**BASIC).power(at, on=True)
    assert len(bmc.sent(f"POST {RESET}")) == 1
    assert bmc.connections == 2


def test_connections_that_end_without_a_word_cost_nothing(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """A read never goes into one that the controller has closed."""
    well = build(**BASIC).read_health(at)
    bmc.closes = True
    adapter = build(**BASIC, read_retries=0)
    assert [adapter.read_health(at) for _ in range(3)] == [well] * 3


def test_who_breaks_a_kept_connection_gets_one_a_read(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """As sushy treats all of them: some choke on connections that are kept."""
    adapter = build(**BASIC)
    bmc.fail(f"GET {SYSTEM}$", "reset")
    adapter.read_health(at)
    bmc.requests.clear()
    bmc.connections = 0
    adapter.read_health(at)
    assert bmc.connections == len(bmc.requests) > 1


def test_a_cookie_is_brought_back(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """Whoever sets one is read through sushy's connector, which keeps it."""

    def rule(method: str, path: str, _: object) -> Answer | None:
        if method == "GET" and path == SYSTEM:
            return 200, bmc.tree[path], {"Set-Cookie": "seat=7; path=/"}
        return None

    bmc.rules.append(rule)
    build(**BASIC).read_health(at)
    assert bmc.requests[-1].headers.get("Cookie") == "seat=7"


def test_a_root_is_read_anew_after_silence(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """The controller may have been updated meanwhile."""
    adapter = build(**BASIC)
    adapter.read_health(at)
    bmc.fail(f"GET {SYSTEM}$", "reset")
    bmc.requests.clear()
    adapter.read_health(at)
    assert [one.line for one in bmc.requests if one.line.rstrip("/").endswith("/v1")]
