"""
What every adapter of the Fabrics port must do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from controlplane.providers.errors import Busy, NotFound, Refused, Transient
from controlplane.providers.fabrics import Fabrics, NetworkSpec, PortRef
from tests.contract.fabric_harnesses import FabricHarness, SimulatedFabric, frr_fabric
from tests.fabric_lab import FabricLab, running_lab


@pytest.fixture(scope="module")
def lab() -> Iterator[FabricLab]:
    """One lab for all tests of this file; started by the first that needs it."""
    with running_lab() as running:
        yield running


@pytest.fixture(params=["simulated", "frr-evpn"])
def fabric(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FabricHarness]:
    """A fabric with bare ports for each test."""
    if request.param == "simulated":
        with SimulatedFabric(tmp_path) as made:
            yield made
    else:
        with frr_fabric(request.getfixturevalue("lab")) as harness:
            yield harness


def test_it_is_a_fabrics_adapter(fabric: FabricHarness) -> None:
    """The adapter has every method of the port."""
    assert isinstance(fabric.adapter, Fabrics)


def test_a_healthy_fabric_is_complete_and_bare(fabric: FabricHarness) -> None:
    """Every listed port once and in order, none in a network, nothing strange."""
    view = fabric.adapter.observe_fabric()
    refs = [one.ref for one in view.ports]
    assert (view.complete, view.silent) == (True, ())
    assert refs == sorted(set(refs), key=lambda one: (one.switch, one.port))
    assert set(fabric.ports) <= set(refs)
    assert [(one.segment, one.strange) for one in view.ports] == [(None, "")] * len(refs)


def test_an_attached_port_is_read_back(fabric: FabricHarness) -> None:
    """The port shows its segment alone and in the listing, and no other port does."""
    port, *others = fabric.ports
    network = fabric.network()
    fabric.adapter.attach(port, network)
    seen = fabric.settled(port, network.segment)
    assert seen.up is not False
    listed = {one.ref: one for one in fabric.adapter.observe_fabric().ports}
    assert listed[port] == seen
    assert [listed[one].segment for one in others] == [None] * 3


def test_attaching_again_changes_nothing(fabric: FabricHarness) -> None:
    """A repeat succeeds, also one by another process, and leaves the port as it was."""
    port, network = fabric.ports[0], fabric.network()
    fabric.adapter.attach(port, network)
    before = fabric.settled(port, network.segment)
    fabric.adapter.attach(port, network)
    fabric.another().attach(port, network)
    assert fabric.adapter.observe_port(port) == before


def test_a_port_that_carries_another_network_is_refused(fabric: FabricHarness) -> None:
    """A network is never replaced in passing: the port keeps the first one."""
    port, first, second = fabric.ports[0], fabric.network(), fabric.network()
    fabric.adapter.attach(port, first)
    with pytest.raises(Refused):
        fabric.adapter.attach(port, second)
    fabric.settled(port, first.segment)


def test_detaching_leaves_a_bare_port(fabric: FabricHarness) -> None:
    """The port carries nothing afterwards; detaching a bare port is success."""
    port, network = fabric.ports[0], fabric.network()
    fabric.adapter.detach(port)
    fabric.adapter.attach(port, network)
    fabric.adapter.detach(port)
    fabric.adapter.detach(port)
    fabric.settled(port, None)


def test_a_port_moves_to_another_tenant_and_back(fabric: FabricHarness) -> None:
    """Detached from one network it can have another, and the first again."""
    port, first, second = fabric.ports[0], fabric.network(), fabric.network()
    for network in (first, second, first):
        fabric.adapter.attach(port, network)
        fabric.settled(port, network.segment)
        fabric.adapter.detach(port)
        fabric.settled(port, None)


def test_detaching_one_port_leaves_the_network_to_the_others(fabric: FabricHarness) -> None:
    """What a port of the same switch, and one of another, still need stays."""
    one, same_switch, far = fabric.ports[:3]
    network = fabric.network()
    for port in (one, same_switch, far):
        fabric.adapter.attach(port, network)
    fabric.adapter.detach(one)
    fabric.settled(one, None)
    for port in (same_switch, far):
        fabric.settled(port, network.segment)


def test_a_reserved_port_is_refused(fabric: FabricHarness) -> None:
    """The operator's ports can neither be attached nor detached, and are not shown."""
    with pytest.raises(Refused):
        fabric.adapter.attach(fabric.reserved, fabric.network())
    with pytest.raises(Refused):
        fabric.adapter.detach(fabric.reserved)
    with pytest.raises(NotFound):
        fabric.adapter.observe_port(fabric.reserved)
    assert fabric.reserved not in [one.ref for one in fabric.adapter.observe_fabric().ports]


def test_an_unlisted_port_is_refused(fabric: FabricHarness) -> None:
    """Neither a port that is not in the list nor a switch that is none can be changed; a look says NotFound."""
    for ref in (fabric.missing, replace(fabric.ports[0], switch="nowhere"), PortRef("", ""), PortRef("../x", "; reboot")):
        with pytest.raises(Refused):
            fabric.adapter.attach(ref, fabric.network())
        with pytest.raises(Refused):
            fabric.adapter.detach(ref)
        with pytest.raises(NotFound):
            fabric.adapter.observe_port(ref)


def test_a_segment_that_cannot_be_is_refused(fabric: FabricHarness) -> None:
    """A segment has 24 bits and is not 0."""
    for segment in (0, -1, 1 << 24):
        with pytest.raises(Refused):
            fabric.adapter.attach(fabric.ports[0], NetworkSpec("net-x", "ten_x", segment))
    assert fabric.adapter.observe_port(fabric.ports[0]).segment is None


def test_the_largest_segment_works(fabric: FabricHarness) -> None:
    """Names of what is made for it still fit."""
    port = fabric.ports[0]
    fabric.adapter.attach(port, NetworkSpec("net-largest", "ten_x", (1 << 24) - 1))
    fabric.settled(port, (1 << 24) - 1)


def test_a_segment_in_use_by_another_network_is_refused(fabric: FabricHarness) -> None:
    """Two tenants never meet because a number was given out twice on one switch."""
    one, other = fabric.ports[:2]
    network = fabric.network()
    fabric.adapter.attach(one, network)
    with pytest.raises(Refused):
        fabric.adapter.attach(other, replace(network, name="net-other", tenant_id="ten_other"))
    fabric.settled(other, None)


def test_a_silent_switch_makes_the_view_incomplete(fabric: FabricHarness) -> None:
    """It is named, the ports of others are still told, changes on it fail for now, and afterwards all is as it was."""
    port, far = fabric.ports[0], fabric.ports[2]
    network = fabric.network()
    fabric.adapter.attach(port, network)
    fabric.settled(port, network.segment)
    fabric.silence(port.switch)
    try:
        view = fabric.adapter.observe_fabric()
        assert (view.complete, view.silent) == (False, (port.switch,))
        assert {far} <= {one.ref for one in view.ports}
        assert port.switch not in {one.ref.switch for one in view.ports}
        with pytest.raises(Transient):
            fabric.adapter.detach(port)
        with pytest.raises(Transient):
            fabric.adapter.attach(port, network)
        with pytest.raises(Transient):
            fabric.adapter.observe_port(port)
        with pytest.raises(Transient):
            fabric.adapter.observe_ports(port.switch)
        assert far in {one.ref for one in fabric.adapter.observe_ports(far.switch)}
        fabric.adapter.attach(far, network)
    finally:
        fabric.restore(port.switch)
    fabric.settled(port, network.segment)
    fabric.settled(far, network.segment)


def test_a_port_in_a_foreign_network_is_strange(fabric: FabricHarness) -> None:
    """What somebody did by hand is told, and is not taken for a network of ours."""
    port = fabric.ports[0]
    fabric.meddle(port)
    try:
        seen = fabric.adapter.observe_port(port)
        assert (seen.segment, bool(seen.strange)) == (None, True)
        with pytest.raises(Refused):
            fabric.adapter.attach(port, fabric.network())
        with pytest.raises(Refused):
            fabric.adapter.detach(port)
        assert fabric.adapter.observe_port(port) == seen
    finally:
        fabric.tidy(port)


def test_of_two_at_once_one_is_refused(fabric: FabricHarness) -> None:
    """However two workers race for one port, it carries the network of the one that was told so."""
    port, networks = fabric.ports[0], (fabric.network(), fabric.network())

    def attach(network: NetworkSpec) -> int | None:
        adapter = fabric.another()
        for _ in range(100):
            try:
                adapter.attach(port, network)
            except Refused:
                return None
            except Transient:
                continue
            return network.segment
        return None

    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            told = [one for one in pool.map(attach, networks) if one is not None]
        assert len(told) == 1
        fabric.settled(port, told[0])
        fabric.adapter.detach(port)


def test_one_switch_tells_of_all_its_ports(fabric: FabricHarness) -> None:
    """The same words as the listing of the fabric, in order, and of no other switch; one that is not listed is not found."""
    port, network = fabric.ports[0], fabric.network()
    fabric.adapter.attach(port, network)
    fabric.settled(port, network.segment)
    listed = tuple(one for one in fabric.adapter.observe_fabric().ports if one.ref.switch == port.switch)
    assert fabric.adapter.observe_ports(port.switch) == listed
    for name in ("nowhere", "", "; reboot"):
        with pytest.raises(NotFound):
            fabric.adapter.observe_ports(name)


def test_a_port_is_taken_off_one_network_only(fabric: FabricHarness) -> None:
    """A detach that names a segment leaves a port that carries another, or nothing, as it is."""
    port, other = fabric.ports[:2]
    network, another = fabric.network(), fabric.network()
    fabric.adapter.attach(port, network)
    fabric.adapter.detach(port, only=another.segment)
    fabric.adapter.detach(other, only=another.segment)
    fabric.settled(port, network.segment)
    fabric.settled(other, None)
    fabric.adapter.detach(port, only=network.segment)
    fabric.settled(port, None)


def test_an_older_turn_changes_nothing(fabric: FabricHarness) -> None:
    """Whoever decided earlier is turned away, also by another process, and may repeat what was decided last."""
    port, network, another = fabric.ports[0], fabric.network(), fabric.network()
    early, late, latest = fabric.turn(), fabric.turn(), fabric.turn()
    fabric.adapter.attach(port, network, turn=early)
    fabric.adapter.detach(port, turn=late)
    for adapter in (fabric.adapter, fabric.another()):
        with pytest.raises(Busy) as told:
            adapter.attach(port, network, turn=early)
        assert told.value.code == "fabric_turn_over"
    fabric.settled(port, None)
    for _ in range(2):
        fabric.adapter.attach(port, another, turn=late)
    fabric.adapter.attach(port, another, turn=latest)
    fabric.adapter.detach(port, only=another.segment, turn=late)
    fabric.settled(port, another.segment)
    fabric.adapter.detach(port, only=another.segment, turn=latest)
    fabric.settled(port, None)


def test_separating_is_never_turned_away(fabric: FabricHarness) -> None:
    """A detach of everything is always made, whenever it was decided; and it does not make an older turn good again."""
    port, network = fabric.ports[0], fabric.network()
    early, late = fabric.turn(), fabric.turn()
    fabric.adapter.attach(port, network, turn=late)
    fabric.adapter.detach(port, turn=early)
    fabric.settled(port, None)
    with pytest.raises(Busy):
        fabric.adapter.attach(port, network, turn=early)
    fabric.adapter.attach(port, network)
    fabric.settled(port, network.segment)


def test_what_was_decided_is_remembered_though_nothing_was_to_be_done(fabric: FabricHarness) -> None:
    """A detach of a bare port, or of a segment that it does not carry, still turns away an attachment that was decided before."""
    port, network = fabric.ports[0], fabric.network()
    for only in (None, network.segment):
        early, late = fabric.turn(), fabric.turn()
        fabric.adapter.detach(port, only=only, turn=late)
        with pytest.raises(Busy):
            fabric.adapter.attach(port, network, turn=early)
    fabric.settled(port, None)


def test_however_an_old_attachment_races_a_detach_the_port_ends_bare(fabric: FabricHarness) -> None:
    """Both are on their way at once; the later decision stands."""
    port, network = fabric.ports[0], fabric.network()

    def keep_at(change: Callable[[Fabrics], None]) -> None:
        adapter = fabric.another()
        for _ in range(100):
            try:
                return change(adapter)
            except Busy as wrong:
                if wrong.code == "fabric_turn_over":
                    return None
        raise AssertionError("the switch is busy for ever")

    for _ in range(4):
        early, late = fabric.turn(), fabric.turn()
        changes = (partial(_attach, port, network, early), partial(_detach, port, late))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(keep_at, changes))
        fabric.settled(port, None)


def test_a_switch_that_started_anew_takes_what_it_is_told(fabric: FabricHarness) -> None:
    """Its ports carry nothing, its turns are gone, others keep what they carry, and the same attachment brings its port back."""
    port, far = fabric.ports[0], fabric.ports[2]
    network = fabric.network()
    early, late = fabric.turn(), fabric.turn()
    for one in (port, far):
        fabric.adapter.attach(one, network, turn=late)
        fabric.settled(one, network.segment)
    fabric.reboot(port.switch)
    fabric.settled(port, None)
    fabric.settled(far, network.segment)
    fabric.adapter.attach(port, network, turn=early)
    fabric.settled(port, network.segment)


def _attach(port: PortRef, network: NetworkSpec, turn: int, adapter: Fabrics) -> None:
    adapter.attach(port, network, turn=turn)


def _detach(port: PortRef, turn: int, adapter: Fabrics) -> None:
    adapter.detach(port, turn=turn)


def test_any_order_of_calls_ends_where_a_model_says(fabric: FabricHarness) -> None:
    """Thirty moves by chance: each port carries what the last accepted change of it left."""
    chance = random.Random(20260131)
    networks = [fabric.network() for _ in range(3)]
    model: dict[PortRef, int | None] = dict.fromkeys(fabric.ports)
    for _ in range(30):
        port = chance.choice(fabric.ports)
        if chance.random() < 0.4:
            fabric.adapter.detach(port)
            model[port] = None
            continue
        network = chance.choice(networks)
        try:
            fabric.adapter.attach(port, network)
        except Refused:
            assert model[port] not in {None, network.segment}
        else:
            assert model[port] in {None, network.segment}
            model[port] = network.segment
    for port, segment in model.items():
        fabric.settled(port, segment)
