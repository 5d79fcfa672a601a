"""
What every adapter of the Machines port must do.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from controlplane.providers.errors import Busy, NotFound, Permanent, Refused
from controlplane.providers.machines import Deployment, Machines, MachineView
from tests.contract.harness import Harness

pytestmark = pytest.mark.needs("machines")
ACCEPTED_AT = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


def _deployment(harness: Harness, tenant: int = 0) -> Deployment:
    (ref,) = harness.free_refs(1)
    return Deployment(ref, harness.new_id("alc"), harness.tenants[tenant], harness.new_id("clu"), network="net-contract")


def _phase(harness: Harness, ref: str, phase: str) -> MachineView:
    view: MachineView = harness.until(lambda: harness.adapter.observe(ref), lambda seen: seen.phase == phase, what=f"{ref} {phase}")
    return view


def _deployed(harness: Harness, tenant: int = 0) -> Deployment:
    wanted = _deployment(harness, tenant)
    harness.insist(lambda: harness.adapter.deploy(wanted), what="deploy")
    _phase(harness, wanted.ref, "deployed")
    return wanted


def _released(harness: Harness) -> Deployment:
    held = _deployed(harness)
    harness.insist(lambda: harness.adapter.release(held.ref, held.token, accepted_at=ACCEPTED_AT), what="release")
    _phase(harness, held.ref, "released")
    return held


def test_it_is_a_machines_adapter(harness: Harness) -> None:
    """The adapter has every method of the port."""
    assert isinstance(harness.adapter, Machines)


def test_a_listing_is_complete_and_agrees_with_observe(harness: Harness) -> None:
    """A healthy peer lists every machine once, and each as `observe` shows it."""
    listed = harness.adapter.list_machines()
    refs = [one.ref for one in listed.machines]
    assert listed.complete
    assert len(set(refs)) == len(refs)
    (ref,) = harness.free_refs(1)
    assert next(one for one in listed.machines if one.ref == ref) == harness.adapter.observe(ref)


def test_an_unknown_machine_is_not_found(harness: Harness) -> None:
    """Only a name the peer does not have is NotFound, for looks and for changes."""
    with pytest.raises(NotFound):
        harness.adapter.observe("no-such-machine")
    with pytest.raises((NotFound, Refused)):
        harness.adapter.deploy(replace(_deployment(harness), ref="no-such-machine"))


def test_a_deployment_becomes_ready_under_its_token(harness: Harness) -> None:
    """Deployed, powered, on the tenant's network, tagged with the token and with the instant it was ready."""
    wanted = _deployed(harness)
    view = harness.adapter.observe(wanted.ref)
    assert (view.token, view.power, view.network) == (wanted.token, "on", "net-contract")
    assert view.ready_at is not None
    assert view.ready_at.utcoffset() is not None


def test_a_deployment_repeated_under_its_token_changes_nothing(harness: Harness) -> None:
    """A repeat before and after the machine is ready finds the first attempt."""
    wanted = _deployment(harness)
    harness.adapter.deploy(wanted)
    harness.adapter.deploy(wanted)
    before = _phase(harness, wanted.ref, "deployed")
    harness.pass_time()
    harness.adapter.deploy(wanted)
    assert harness.adapter.observe(wanted.ref) == before


def test_a_held_machine_is_refused_to_another_token(harness: Harness) -> None:
    """The second tenancy is refused and the first is untouched."""
    held = _deployed(harness)
    before = harness.adapter.observe(held.ref)
    with pytest.raises(Refused):
        harness.adapter.deploy(replace(held, token=harness.new_id("alc"), tenant_id=harness.tenants[1]))
    assert harness.adapter.observe(held.ref) == before


def test_a_held_machine_is_not_wiped(harness: Harness) -> None:
    """A wipe while a tenancy is deployed is refused."""
    held = _deployed(harness)
    with pytest.raises(Refused):
        harness.adapter.wipe(held.ref, harness.new_id("wip"))
    assert harness.adapter.observe(held.ref).phase == "deployed"


def test_a_release_detaches_and_powers_off(harness: Harness) -> None:
    """Released means off the network and without power, still tagged with the token."""
    held = _released(harness)
    view = harness.adapter.observe(held.ref)
    assert (view.token, view.power, view.network) == (held.token, "off", None)


def test_a_release_may_be_repeated(harness: Harness) -> None:
    """The second release is a success that changes nothing."""
    held = _released(harness)
    before = harness.adapter.observe(held.ref)
    harness.adapter.release(held.ref, held.token, accepted_at=ACCEPTED_AT)
    assert harness.adapter.observe(held.ref) == before


def test_a_release_under_another_token_ends_nobodys_tenancy(harness: Harness) -> None:
    """A stale release must not touch the tenancy that holds the machine now."""
    held = _deployed(harness)
    with contextlib.suppress(Permanent):
        harness.adapter.release(held.ref, harness.new_id("alc"), accepted_at=ACCEPTED_AT)
    harness.pass_time()
    view = harness.adapter.observe(held.ref)
    assert (view.phase, view.token, view.power) == ("deployed", held.token, "on")


def test_a_deployment_that_comes_after_its_release_stays_over(harness: Harness) -> None:
    """A late repeat of the deploy does not bring the tenancy back."""
    held = _released(harness)
    with pytest.raises((Refused, Busy)):
        harness.adapter.deploy(held)
    harness.pass_time()
    assert harness.adapter.observe(held.ref).phase == "released"


def test_a_wipe_leaves_a_report_with_checks(harness: Harness) -> None:
    """The report carries the wipe's token and says of each wiped thing that it passed; none is missing."""
    held = _released(harness)
    token = harness.new_id("wip")
    harness.insist(lambda: harness.adapter.wipe(held.ref, token), what="wipe")
    view = _phase(harness, held.ref, "wiped")
    assert view.wipe is not None
    assert view.wipe.token == token
    assert len(view.wipe.checks) > 0
    assert {one.result for one in view.wipe.checks} <= {"passed", "not_measured"}
    assert any(one.result == "passed" for one in view.wipe.checks)


def test_a_wipe_repeated_under_its_token_is_one_wipe(harness: Harness) -> None:
    """The repeat finds the first report."""
    held = _released(harness)
    token = harness.new_id("wip")
    harness.insist(lambda: harness.adapter.wipe(held.ref, token), what="wipe")
    before = _phase(harness, held.ref, "wiped")
    harness.pass_time()
    harness.adapter.wipe(held.ref, token)
    assert harness.adapter.observe(held.ref).wipe == before.wipe


def test_a_wiped_machine_can_be_deployed_for_another_tenant(harness: Harness) -> None:
    """The whole round: tenancy, release, wipe, next tenancy."""
    held = _released(harness)
    harness.insist(lambda: harness.adapter.wipe(held.ref, harness.new_id("wip")), what="wipe")
    _phase(harness, held.ref, "wiped")
    after = replace(held, token=harness.new_id("alc"), tenant_id=harness.tenants[1])
    harness.insist(lambda: harness.adapter.deploy(after), what="deploy")
    assert _phase(harness, held.ref, "deployed").token == after.token


def test_an_inspection_shows_the_inventory(harness: Harness) -> None:
    """Once inspected, the machine's GPUs are counted."""
    (ref,) = harness.free_refs(1)
    harness.adapter.inspect(ref, harness.new_id("isp"))
    view = harness.until(lambda: harness.adapter.observe(ref), lambda seen: seen.inventory, what="inventory")
    assert view.inventory.gpus == harness.gpus_per_node


def test_a_qualification_reports_under_its_token(harness: Harness) -> None:
    """Done when the token is shown; a good machine fails no check."""
    (ref,) = harness.free_refs(1)
    token = harness.new_id("qua")
    harness.adapter.qualify(ref, token)
    view = harness.until(lambda: harness.adapter.observe(ref), lambda seen: seen.qualified_token == token, what="qualified")
    assert view.checks
    assert "failed" not in {one.result for one in view.checks}


def test_power_is_read_back(harness: Harness) -> None:
    """Off and on again, as observed and not as asked."""
    held = _deployed(harness)
    for turn_on in (False, True):
        switch = partial(harness.adapter.power, held.ref, on=turn_on, token=harness.new_id("pwr"))
        harness.insist(switch, what="power")
        good = partial(_has_power, "on" if turn_on else "off")
        harness.until(lambda: harness.adapter.observe(held.ref), good, what=f"power on: {turn_on}")


def _has_power(wanted: str, view: MachineView) -> bool:
    return view.power == wanted
