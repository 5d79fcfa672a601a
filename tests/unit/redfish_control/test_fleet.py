"""
Many controllers, some of them silent: nobody else waits.
"""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import Busy, NotSent, ProviderError, Unknown
from controlplane.providers.hardware import Controller
from tests.simulators.redfish.server import FakeBmc, serving
from tests.simulators.redfish.tree import SYSTEM
from tests.unit.redfish_control.conftest import Build


def outcome(adapter: RedfishAdapter, at: Controller) -> str:
    """How the call ended."""
    try:
        adapter.observe(at)
    except ProviderError as error:
        return type(error).__name__
    return "answered"


def test_one_in_twenty_hangs_and_costs_the_others_nothing(build: Build) -> None:
    """Every healthy controller is done while the hung one's first call still hangs, with as few places as it takes."""
    bmcs = [FakeBmc() for _ in range(20)]
    bmcs[7].fail("GET", "hang", times=99)
    with serving(*bmcs), ThreadPoolExecutor(20) as threads:
        adapter = build(calls=2, timeout_s=10.0, wait_s=20.0)
        hung = threads.submit(outcome, adapter, Controller("nod_7", bmcs[7].url))
        assert bmcs[7].hung.wait(5)
        rest = [threads.submit(outcome, adapter, Controller(f"nod_{n}", one.url)) for n, one in enumerate(bmcs) if n != 7]
        done, _ = wait(rest, timeout=30)
        assert [one.result() for one in rest if one in done] == ["answered"] * 19
        assert not hung.done()
        bmcs[7].let_go.set()
        assert hung.result() == "Unknown"


def test_known_silent_ones_never_take_the_others_places(build: Build) -> None:
    """Once silent, a controller is asked in a lane of its own: more of them than there are places leave all places free."""
    silent = [FakeBmc() for _ in range(4)]
    healthy = FakeBmc()
    for bmc in silent:
        bmc.fail("GET", "reset")
        bmc.fail("GET", "hang", times=99)
    with serving(healthy, *silent), ThreadPoolExecutor(4) as threads:
        at = [Controller(f"nod_{n}", bmc.url) for n, bmc in enumerate(silent)]
        adapter = build(calls=1, silent_calls=4, read_retries=0, timeout_s=10.0, wait_s=0.5)
        assert {outcome(adapter, one) for one in at} == {"Unknown"}
        stuck = [threads.submit(outcome, adapter, one) for one in at]
        for bmc in silent:
            assert bmc.hung.wait(5)
        assert outcome(adapter, Controller("nod_healthy", healthy.url)) == "answered"
        assert not any(one.done() for one in stuck)
        for bmc in silent:
            bmc.let_go.set()
        assert {one.result() for one in stuck} == {"Unknown"}


def test_a_silent_controller_is_left_alone_for_a_while(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """Calls meanwhile end at once and send nothing; a good answer ends the silence."""
    adapter = build(timeout_s=0.6, call_limit_s=5.0, silence_s=30.0)
    bmc.fail("GET", "hang", times=1)
    with pytest.raises(Unknown):
        adapter.observe(at)
    sent = len(bmc.requests)
    with pytest.raises(NotSent) as caught:
        adapter.observe(at)
    assert 20.0 < caught.value.retry_in_s <= 30.0
    assert len(bmc.requests) == sent
    other = build(timeout_s=0.6, call_limit_s=5.0)
    bmc.fail("GET", "hang", times=1)
    assert [outcome(other, at) for _ in range(3)] == ["TimedOut", "answered", "answered"]


def test_a_second_call_to_a_hung_controller_is_told_to_come_back(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """It waits its time and no longer, and takes no place."""
    adapter = build(calls=1, wait_s=0.1, timeout_s=10.0)
    bmc.fail(f"GET {SYSTEM}$", "hang")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(outcome, adapter, at)
        assert bmc.hung.wait(5)
        with pytest.raises(Busy):
            adapter.observe(at)
        bmc.let_go.set()
        first.result()


def test_closing_waits_for_nobody(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """While a call hangs the adapter can be closed, as on shutdown."""
    adapter = build(timeout_s=10.0)
    bmc.fail(f"GET {SYSTEM}$", "hang")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(outcome, adapter, at)
        assert bmc.hung.wait(5)
        adapter.close()
        assert not first.done()
        bmc.let_go.set()
        first.result()
