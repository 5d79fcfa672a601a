"""
What tenants do with bare machines, one call at a time: what is asked in which order, what is believed, and that a crash between two
calls changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.kit.outcome import Advance, Fail, Wait
from controlplane.nodes.acting import ACTS
from controlplane.nodes.cabling import ports_carry
from controlplane.nodes.states import ACTING, NODE_STATES, TENANTS, Boot, NodeSnapshot
from tests.factories.metal import HELD, NOW, PROVIDER, Bench, bare_node, drive

READY = Boot("bot_1", "ready", 90.0, NOW)
SEED = "http://cp/v1/boot/bot_1.token/seed.iso"
TWICE = pytest.mark.parametrize("twice", [False, True])


def held(state: str, step: str = "", **settings: object) -> NodeSnapshot:
    """A tenant's machine in the state, with these settings of its provider."""
    provider = replace(PROVIDER, config=dict(settings))
    return bare_node(state, step=step, tenancy=replace(HELD, state="active"), boot=READY, provider=provider)


@pytest.mark.parametrize("verb", ACTS)
def test_every_verb_is_a_lawful_move(verb: str) -> None:
    """A verb begins only where the state table has the move; the database would refuse it otherwise."""
    act = ACTS[verb]
    assert act.to in ACTING
    assert all(act.to in NODE_STATES.by_name[state].moves for state in act.since)


@pytest.mark.parametrize("state", sorted(TENANTS))
def test_a_release_is_lawful_whatever_the_machine_is_at(state: str) -> None:
    """No action of a tenant stands in the way of giving the machine back."""
    assert "releasing" in NODE_STATES.by_name[state].moves


@pytest.mark.parametrize("state", sorted(TENANTS))
def test_its_ports_stay_on_the_tenants_network(state: str) -> None:
    """No look at a switch takes a machine off its network because its tenant acts on it or has switched it off."""
    assert {ports_carry(state, step) for step in ("", "cut", "dark", "attach", "report")} == {"network"}


@TWICE
def test_a_reboot_asks_first(twice: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """The operating system shuts down, the power is cut for good, and it is on again when that was seen."""
    bench = Bench()
    done, trail = drive(held("restarting"), bench, each_twice=twice)
    assert done == Advance("active", "Switched on.")
    assert trail == ["", "off", "dark", "drive", "source", "light", "lit"] if not twice else trail[-1] == "lit"
    assert (bench.power_, bench.media, bench.unsafe) == ("on", None, [])
    assert "cut" not in bench.acts
    assert not [act for act in bench.acts if act.startswith("boot")]


def test_who_does_not_shut_down_is_cut_off_in_time() -> None:
    """A deaf operating system is waited for as long as the settings say, and no longer."""
    bench = Bench(deaf=True)
    waiting, trail = drive(held("restarting", graceful_off_s=60), bench)
    assert isinstance(waiting, Wait)
    assert trail[-1] == "off"
    assert bench.power_ == "on"
    done, _ = drive(replace(held("restarting", "off", graceful_off_s=60), state_for_s=61.0), bench)
    assert isinstance(done, Advance)
    assert bench.acts == ["off", "cut", "eject", "on"]


def test_a_power_cycle_asks_nobody() -> None:
    """Begun at the cut, power goes at once."""
    bench = Bench()
    drive(held("restarting", "cut"), bench)
    assert bench.acts == ["cut", "eject", "on"]


@TWICE
def test_a_stop_ends_in_the_dark(twice: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Stopped is said when the power was seen off, and nothing is in the drive."""
    bench = Bench(media=SEED)
    done, _ = drive(held("stopping"), bench, each_twice=twice)
    assert done == Advance("stopped", "Switched off.")
    assert (bench.power_, bench.media) == ("off", None)
    waiting, _ = drive(held("stopping", "dark"), Bench(stuck_on=True))
    assert isinstance(waiting, Wait)


@TWICE
def test_a_start_is_believed_when_it_is_seen(twice: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A controller that says yes and leaves the power off is told again."""
    bench = Bench(power_="off")
    done, _ = drive(held("starting", restart_from="disk"), bench, each_twice=twice)
    assert done == Advance("active", "Switched on.")
    assert "boot disk" in bench.acts
    waiting, trail = drive(held("starting", "lit"), Bench(power_="off"))
    assert trail[:2] == ["lit", "light"]
    assert isinstance(waiting, Advance)


def test_a_machine_without_a_disk_starts_from_its_seed() -> None:
    """It has nothing else to know its tenant's keys from."""
    bench = Bench(power_="off")
    drive(held("starting", diskless=True, boot="media"), bench)
    assert bench.media == SEED
    assert bench.acts == ["cut", "insert", "boot media", "on"]
    assert bench.unsafe == []


@TWICE
@pytest.mark.parametrize(("state", "after"), [("reinstalling", "active"), ("rescuing", "rescued")])
def test_a_fresh_seed_brings_it_up(state: str, after: str, twice: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Off, seeded, started, and done when it reported itself; the drive is empty then."""
    bench = Bench()
    silent = replace(held(state), boot=Boot("bot_1", "made", 5.0))
    waiting, trail = drive(silent, bench, each_twice=twice)
    assert isinstance(waiting, Wait)
    assert (trail[-1], bench.media, bench.unsafe) == ("report", SEED, [])
    done, _ = drive(held(state, "report"), bench, each_twice=twice)
    assert isinstance(done, Advance)
    assert (done.to, bench.media) == (after, None)


@pytest.mark.parametrize("state", ["reinstalling", "rescuing"])
def test_what_does_not_come_up_is_switched_off_before_it_is_said(state: str) -> None:
    """The failure is told only once the machine was seen dark, so that stopped is true."""
    failed = replace(held(state, "report"), boot=Boot("bot_1", "failed", 90.0, failure="script_failed: line 3"))
    waiting, _ = drive(failed, Bench(stuck_on=True))
    assert isinstance(waiting, Wait)
    bench = Bench()
    outcome, _ = drive(failed, bench)
    assert isinstance(outcome, Fail)
    assert outcome.detail == "script_failed: line 3"
    assert bench.power_ == "off"
