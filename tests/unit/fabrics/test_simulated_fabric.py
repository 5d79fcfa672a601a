"""
The simulated fabric: every fault on it, its ledger of who could reach whom, and the judge that reads it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.providers.adapters.simulated import judge
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.fabric_judge import fabric_findings, reaches
from controlplane.providers.adapters.simulated.faults import FABRIC_CHANGES, FABRIC_PRESETS, LEAK_CANARIES, PRESETS
from controlplane.providers.errors import Busy, NotFound, ProviderError, Refused, Transient, Unknown
from controlplane.providers.fabrics import NetworkSpec, PortRef
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput, build_adapter

FLEET = """
fleet: pair
region: sim-eu
templates:
  h100: {instance_type: hgx-h100-8, gpu_model: H100-SXM5-80GB, gpus: 8, memory_gib: 2048, cpus: 192, power_w: 10200}
sites:
  - name: ams1
    blocks:
      - {template: h100, leaves: 2, racks_per_leaf: 1, nodes_per_rack: 2}
  - name: fra1
    blocks:
      - {template: h100, leaves: 1, racks_per_leaf: 1, nodes_per_rack: 1}
"""
REF = "ams1-b1-l1-r1-n01"
ONE, TWO = PortRef("ams1-b1-l1", f"{REF}.p1"), PortRef("ams1-b1-l1", "ams1-b1-l1-r1-n02.p1")
FAR = PortRef("ams1-b1-l2", "ams1-b1-l2-r1-n01.p1")
BMC = PortRef("ams1-b1-l1", f"{REF}.bmc")
A, B = NetworkSpec("net-a", "ten_a", 100), NetworkSpec("net-b", "ten_b", 200)
BEFORE = [name for name, preset in PRESETS.items() if preset.on_fabrics and preset.when == "before" and preset.error is not None]
AFTER = [name for name, preset in PRESETS.items() if preset.on_fabrics and preset.when == "after"]


class World:
    """
    A small fleet on a clock that tests move.
    """

    def __init__(self, folder: Path) -> None:
        fleet = folder / "fleet.yaml"
        fleet.write_text(FLEET, encoding="utf-8")
        self.moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
        self._config: dict[str, Any] = {"path": str(folder / "world.sqlite"), "fleet": str(fleet)}
        self.sim = self.adapter()
        self.control = SimControl(folder / "world.sqlite", now=lambda: self.moment)

    def adapter(self, deployment: str = "test", **more: Any) -> Any:
        """Another adapter of the same world."""
        return build_adapter("simulated", AdapterInput("prv_1", {**self._config, **more}, {}, deployment, lambda: self.moment))

    def pass_s(self, seconds: float) -> None:
        """Time has passed."""
        self.moment += timedelta(seconds=seconds)

    def segment(self, ref: PortRef = ONE) -> int | None:
        """What the port carries."""
        found: int | None = self.sim.observe_port(ref).segment
        return found

    def findings(self) -> list[str]:
        """What the judge says of the fabric."""
        return [one.words for one in fabric_findings(self.control.ledger())]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world of its own."""
    return World(tmp_path)


@pytest.mark.parametrize("fault", BEFORE)
@pytest.mark.parametrize("operation", FABRIC_CHANGES)
def test_a_fault_before_the_effect_leaves_the_port_alone(world: World, fault: str, operation: str) -> None:
    """The error is the port's, nothing has changed, no canary is in the code, and the next call works."""
    if operation == "detach":
        world.sim.attach(ONE, A)
    before = world.segment()
    world.control.play(fault, operation)
    calls = {"attach": lambda: world.sim.attach(ONE, A), "detach": lambda: world.sim.detach(ONE)}
    with pytest.raises(ProviderError) as told:
        calls[operation]()
    assert type(told.value) is type(PRESETS[fault].error("", {"retry_in_s": 1.0}))  # type: ignore[misc]
    assert all(canary in told.value.detail and canary not in told.value.code for canary in LEAK_CANARIES)
    assert world.segment() == before
    calls[operation]()
    assert world.segment() != before


@pytest.mark.parametrize("fault", AFTER)
def test_a_fault_after_the_effect_leaves_it_done(world: World, fault: str) -> None:
    """The caller knows nothing, the port carries the network, and a repeat finds it so."""
    world.control.play(fault, "attach")
    with pytest.raises(Unknown):
        world.sim.attach(ONE, A)
    assert world.segment() == 100
    world.sim.attach(ONE, A)
    assert len(world.control.ledger().links) == 1


def test_an_attachment_that_comes_late_comes_after_a_detach(world: World) -> None:
    """As unkind as a real switch: what was given up on may come when nobody wants it, and is then seen."""
    world.control.play("late_success", "attach", params={"seconds": 30})
    with pytest.raises(Unknown):
        world.sim.attach(ONE, A)
    world.sim.detach(ONE)
    assert world.segment() is None
    world.pass_s(31)
    assert world.segment() == 100


def test_an_attachment_that_comes_late_is_turned_away_by_a_later_turn(world: World) -> None:
    """The same with turns: what was decided before the detach has no effect, however late it comes."""
    world.control.play("late_success", "attach", params={"seconds": 30})
    with pytest.raises(Unknown):
        world.sim.attach(ONE, A, turn=1)
    world.sim.detach(ONE, turn=2)
    world.pass_s(31)
    assert world.segment() is None
    assert world.control.ledger().links == ()
    with pytest.raises(Busy) as told:
        world.sim.attach(ONE, A, turn=1)
    assert all(canary in told.value.detail for canary in LEAK_CANARIES[:1])


@pytest.mark.parametrize("operation", ["observe_port", "observe_ports", "attach", "detach"])
def test_a_switch_forgets_as_a_call_comes(world: World, operation: str) -> None:
    """All of its ports are bare from that instant, what was on its way in it is lost, other switches keep theirs."""
    for one in (ONE, TWO, FAR):
        world.sim.attach(one, A, turn=9)
    world.control.play("late_success", "attach", params={"seconds": 30})
    with pytest.raises(Unknown):
        world.sim.attach(ONE, A, turn=9)
    world.pass_s(5)
    world.control.play("switch_forgets", operation, f"{ONE.switch}*")
    calls = {
        "observe_port": lambda: world.sim.observe_port(ONE),
        "observe_ports": lambda: world.sim.observe_ports(ONE.switch),
        "attach": lambda: world.sim.attach(ONE, A, turn=1),
        "detach": lambda: world.sim.detach(ONE, turn=1),
    }
    calls[operation]()
    world.pass_s(60)
    assert [world.segment(one) for one in (ONE, TWO, FAR)] == [100 if operation == "attach" else None, None, 100]
    assert world.findings() == []


def test_a_world_from_before_turns_is_taken_over(world: World, tmp_path: Path) -> None:
    """A file that an earlier version made gets what it lacks when an adapter is built over it."""
    with closing(sqlite3.connect(tmp_path / "world.sqlite")) as db:
        db.execute("DROP TABLE turns")
    world.adapter().attach(ONE, A, turn=3)
    with pytest.raises(Busy):
        world.sim.attach(ONE, A, turn=2)


def test_a_delayed_change_is_seen_when_it_is_due(world: World) -> None:
    """Accepted at once, true later; a detach takes a planned attachment back for good."""
    world.control.play("delay", "attach", params={"seconds": 30})
    world.sim.attach(ONE, A)
    assert world.segment() is None
    with pytest.raises(Refused):
        world.sim.attach(ONE, B)
    world.pass_s(30)
    assert world.segment() == 100
    world.control.play("delay", "detach", params={"seconds": 30})
    world.sim.detach(ONE)
    assert world.segment() == 100
    world.pass_s(30)
    assert world.segment() is None
    world.control.play("delay", "attach", params={"seconds": 30})
    world.sim.attach(ONE, A)
    world.sim.detach(ONE)
    world.pass_s(60)
    assert world.segment() is None
    assert len(world.control.ledger().links) == 1


def test_a_doubled_change_is_one(world: World) -> None:
    """A request that arrives twice leaves one link."""
    world.control.play("duplicate_effect", "attach")
    world.sim.attach(ONE, A)
    world.pass_s(1)
    world.control.play("duplicate_effect", "detach")
    world.sim.detach(ONE)
    assert len(world.control.ledger().links) == 1


def test_a_lie_is_found_by_looking(world: World) -> None:
    """Success that changed nothing is seen by read-back only, for both changes."""
    world.control.play("attach_lies", "attach")
    world.sim.attach(ONE, A)
    assert world.segment() is None
    world.sim.attach(ONE, A)
    world.control.play("detach_lies", "detach")
    world.sim.detach(ONE)
    assert world.segment() == 100


def test_a_half_made_attachment_is_strange_until_it_is_repeated(world: World) -> None:
    """It shows its segment, carries nothing, and the same call completes it; so does healing."""
    world.control.play("attach_half_made", "attach", count=2)
    world.sim.attach(ONE, A)
    world.sim.attach(TWO, A)
    seen = world.sim.observe_port(ONE)
    assert (seen.segment, seen.up, bool(seen.strange)) == (100, False, True)
    assert reaches(world.control.ledger()) == []
    world.sim.attach(ONE, A)
    world.control.heal()
    assert [world.sim.observe_port(one).strange for one in (ONE, TWO)] == ["", ""]
    assert [(one.one.port, one.other.port) for one in reaches(world.control.ledger())] == [(TWO.port, ONE.port)]


def test_reads_lag_and_come_in_part(world: World) -> None:
    """A stale look shows the past; a short one says which switches it lacks."""
    world.sim.attach(ONE, A)
    world.pass_s(10)
    world.sim.detach(ONE)
    world.control.play("stale_read", "observe_port", params={"seconds": 5})
    assert world.segment() == 100
    assert world.segment() is None
    world.control.play("partial_list", "observe_fabric", params={"share": 0.0})
    view = world.sim.observe_fabric()
    assert (view.complete, view.ports, view.silent) == (False, (), ("ams1-b1-l1", "ams1-b1-l2", "fra1-b1-l1"))


def test_a_silent_switch_keeps_what_it_carries(world: World) -> None:
    """Nobody is answered for the time, and the machines go on meeting."""
    world.sim.attach(ONE, A)
    world.control.silence_switch(ONE.switch, for_s=30)
    with pytest.raises(Transient):
        world.sim.detach(ONE)
    world.sim.attach(FAR, A)
    assert len(reaches(world.control.ledger())) == 1
    world.pass_s(31)
    assert world.sim.observe_fabric().complete


def test_a_site_shows_its_own_switches(world: World) -> None:
    """An adapter of one site sees no port, and no silence, of another."""
    world.control.silence_switch("fra1-b1-l1")
    view = world.adapter(site="ams1").observe_fabric()
    assert (view.complete, len(view.ports)) == (True, 4)
    assert not world.sim.observe_fabric().complete


def test_another_installations_network_is_refused(world: World) -> None:
    """Two control planes on one fabric do not join each other's networks."""
    world.sim.attach(ONE, A)
    other = world.adapter("other")
    for ref in (ONE, TWO):
        with pytest.raises(Refused):
            other.attach(ref, A)


@pytest.mark.parametrize("name", [*FABRIC_PRESETS, "partial_list"])
def test_a_rule_that_could_never_be_played_is_refused(world: World, name: str) -> None:
    """A fabric's fault is not played on machines, nor a machine's on a fabric."""
    with pytest.raises(ValueError, match="never played"):
        world.control.play(name, "observe")
    with pytest.raises(ValueError, match="never played"):
        world.control.play("wipe_lies", "attach")


def test_the_ledger_tells_who_met_whom_and_when(world: World) -> None:
    """Half-open intervals, to the microsecond."""
    world.sim.attach(ONE, A)
    world.pass_s(10)
    world.sim.attach(FAR, A)
    world.sim.attach(TWO, B)
    since = world.moment
    world.pass_s(5)
    world.sim.detach(ONE)
    (met,) = reaches(world.control.ledger())
    assert (met.segment, met.one.port, met.other.port) == (100, ONE.port, FAR.port)
    assert (met.since, met.until) == (since, since + timedelta(seconds=5))
    world.sim.attach(ONE, B)
    assert world.findings() == []
    assert judge.all_findings(world.control.ledger()) == []


def test_the_judge_finds_tenants_that_met(world: World) -> None:
    """A segment that was given out twice joins two tenants, here on two switches that do not know of each other."""
    world.sim.attach(ONE, A)
    world.sim.attach(FAR, NetworkSpec("net-b", "ten_b", 100))
    (words,) = world.findings()
    assert "ten_a" in words
    assert "ten_b" in words


def test_the_judge_finds_a_reserved_port_in_a_network(world: World) -> None:
    """A management controller is never in a tenant's network."""
    world.sim.attach(TWO, A)
    world.control.rewire(BMC, 100, tenant_id="ten_a")
    assert any("reserved" in words for words in world.findings())


def test_the_judge_finds_a_port_in_two_networks(world: World) -> None:
    """Planted in the file, for nothing that is offered does it."""
    world.sim.attach(ONE, A)
    with world.sim._store.change() as db:
        db.execute(
            "INSERT INTO links (switch, port, ref, network, tenant_id, segment, deployment, from_at)"
            " SELECT switch, port, ref, 'net-b', 'ten_b', 200, deployment, from_at + 1 FROM links"
        )
    world.pass_s(1)
    assert any("at once" in words for words in world.findings())
    assert "100, 200" in world.sim.observe_port(ONE).strange


def test_the_judge_finds_a_machine_in_anothers_network(world: World) -> None:
    """A tenancy that runs while the machine's port is still in the network of the tenant before."""
    world.sim.attach(ONE, A)
    world.pass_s(1)
    world.sim.deploy(Deployment(REF, "alc_1", "ten_b", "clu_1", "net-b"))
    assert any("ten_b" in words and "net-a" in words for words in world.findings())
    world.sim.release(REF, "alc_1", accepted_at=world.moment)
    world.pass_s(1)
    world.sim.detach(ONE)
    world.sim.attach(ONE, B)
    assert len(world.findings()) == 1


def test_rewiring_what_is_not_there_is_refused(world: World) -> None:
    """Also by hand only cables that exist can be moved."""
    with pytest.raises(NotFound):
        world.control.rewire(PortRef("ams1-b1-l1", "nothing.p1"), 1)


MOVES = st.lists(
    st.tuples(
        st.sampled_from([ONE, TWO, FAR]),
        st.sampled_from([A, B, None]),
        st.sampled_from([None, None, *BEFORE, *AFTER, "delay", "late_success", "duplicate_effect", *FABRIC_PRESETS]),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_no_order_of_calls_and_faults_lets_tenants_meet(tmp_path_factory: pytest.TempPathFactory, moves: list[Any]) -> None:
    """Whatever is asked and whatever goes wrong, the port alone never joins two tenants, and once healed a repeat ends as asked."""
    world = World(tmp_path_factory.mktemp("world"))
    for ref, network, fault in moves:
        operation = "detach" if network is None else "attach"
        if fault is not None and can_befall(fault, operation):
            world.control.play(fault, operation)
        with suppress(ProviderError):
            world.sim.detach(ref) if network is None else world.sim.attach(ref, network)
        world.pass_s(7)
    assert world.findings() == []
    world.control.heal()
    world.pass_s(300)
    world.sim.observe_fabric()
    for ref in (ONE, TWO, FAR):
        world.sim.detach(ref)
        world.sim.attach(ref, A)
    view = world.sim.observe_fabric()
    assert [(one.segment, one.strange) for one in view.ports if one.ref in {ONE, TWO, FAR}] == [(100, "")] * 3
    assert world.findings() == []
    world.control.close()
    world.sim.close()


def can_befall(fault: str, operation: str) -> bool:
    """Whether the fault can be played on the operation."""
    return operation in {**PRESETS, **FABRIC_PRESETS}[fault].on_fabrics
