"""
Ports of bare machines on the simulated fabric: what switches forget is told again, and no old look undoes a release.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.clusters import service as clusters
from controlplane.kit.access import Principal
from controlplane.kit.ids import new_id
from controlplane.kit.secrets import Sealer
from controlplane.nodes import wiring
from controlplane.nodes.cabling import Mend, SeenPort, SwitchLook, WatchedSwitch
from controlplane.nodes.steps.metal import ports
from controlplane.providers.adapters.simulated.faults import FABRIC_PRESETS, PRESETS
from tests.conftest import Database
from tests.factories.wired import FAR, FLEET, LEAF, ROUND_S, WiredRack
from tests.factories.world import MASTER_KEY, make_world
from tests.integration.test_bare_nodes import KEY, only_bare
from workers.sweeps import watch_ports

MORE_PORTS = """
    INSERT INTO node_ports (node_id, name, provider_id, switch, port)
    SELECT one.node_id, 'x' || n, one.provider_id, one.switch, 'x' || n
    FROM (SELECT * FROM node_ports WHERE switch = :leaf ORDER BY node_id LIMIT 1) one, generate_series(1, 3) n
"""


@pytest.fixture
def rack(database: Database, tmp_path: Path) -> Iterator[WiredRack]:
    """Three bare machines, free; two on one leaf and one on another."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    world.settle()
    only_bare(world)
    made = WiredRack(world, 3)
    made.settle()
    yield made
    made.tools.close()
    world.clock.stop()


def order(rack: WiredRack, count: int, person: int = 0) -> tuple[Principal, str, str]:
    """Who has ordered, in which project, and the id of a bare-metal cluster that runs."""
    held = ask(rack, count, person)
    rack.settle()
    return held


def ask(rack: WiredRack, count: int, person: int = 0) -> tuple[Principal, str, str]:
    """The same of a cluster just ordered."""
    principal, project = rack.world.people[person]
    keys = rack.world.keys
    sets = (clusters.SetOrder("workers", keys.instance_type, count),)
    wanted = clusters.Order(new_id("x"), "baremetal", keys.site, sets, wait=True, login=clusters.Login((KEY,)))
    sealer = Sealer.from_base64(MASTER_KEY)
    view, _ = rack.world.do(lambda s: clusters.order_cluster(s, principal, project, wanted, sealer))
    return principal, project, str(view.row.id)


def give_back(rack: WiredRack, held: tuple[Principal, str, str]) -> None:
    """The order's end is accepted; nothing has been done for it yet."""
    principal, project, cluster_id = held
    rack.world.do(lambda s: clusters.delete_cluster(s, principal, project, cluster_id, lambda _: None))


def segment_of(rack: WiredRack, tenant: Principal) -> int:
    """The number of the tenant's network."""
    (row,) = rack.world.rows("SELECT segment FROM networks WHERE tenant_id = :t", t=tenant.tenant_id)
    return int(row.segment)


def test_what_a_switch_forgot_is_told_again(rack: WiredRack) -> None:
    """Ports that carried a network get it back within a round, the others stay bare; operators hear when it went and when it was back."""
    held = order(rack, 3)
    segment = segment_of(rack, held[0])
    assert rack.look() == 2
    assert (rack.look(1), rack.troubles(), rack.events()) == (0, [], [])
    rack.control.reboot_switch(LEAF)
    assert rack.carried() == [None, None, segment]
    assert rack.look() == 2
    assert rack.carried() == [segment] * 3
    assert rack.troubles() == [f"It carries no network where it should carry segment {segment}."] * 2
    assert rack.look(wiring.SOON_S + 1) == 1
    names = {one.port for one in rack.refs[:2]}
    events = rack.events()
    assert rack.troubles() == []
    assert set(events[:2]) == {("wrong", one) for one in names}
    assert set(events[2:]) == {("right", one) for one in names}
    assert len(events) == 4
    give_back(rack, held)
    rack.settle()
    assert rack.states() == {"available": 3}
    assert rack.look() == 2
    assert (rack.carried(), rack.findings()) == ([None] * 3, [])
    assert rack.world.rows("SELECT count(*) FROM nodes WHERE lease_until IS NOT NULL") == [(0,)]


def test_a_network_on_a_free_machine_is_taken_off(rack: WiredRack) -> None:
    """However it came there: what the rows know nothing of does not stay."""
    held = order(rack, 1)
    segment = segment_of(rack, held[0])
    port = next(one for one, carried in zip(rack.refs, rack.carried(), strict=True) if carried is None)
    network = ports.NetworkSpec(f"net-{held[0].tenant_id}", str(held[0].tenant_id), segment)
    rack.tools.fabric(rack.switches, port.switch).attach(port, network)
    assert rack.carried().count(segment) == 2
    rack.look()
    assert rack.troubles() == [f"It carries segment {segment} where it should carry no network."]
    assert rack.carried().count(segment) == 1
    rack.look()
    assert rack.troubles() == []


def test_a_network_without_a_record_stays_for_a_person(rack: WiredRack) -> None:
    """It has our marks and no row of ours speaks of it, so our rows may be wrong: it is told of, and keeps new orders from its node."""
    port = rack.refs[0]
    before = rack.control.calls(operation="detach")
    rack.tools.fabric(rack.switches, port.switch).attach(port, ports.NetworkSpec("net-strange", "ten_strange", 5000))
    rack.look()
    rack.look(wiring.LONG_S + 1)
    assert rack.carried() == [5000, None, None]
    assert rack.troubles() == [f"It carries segment 5000 where it should carry no network; {wiring.NO_RECORD}"]
    assert rack.events() == [("wrong", port.port)]
    assert rack.world.rows("SELECT health FROM nodes WHERE health <> 'ok'") == [("block_allocation",)]
    assert rack.control.calls(operation="detach") == before


def test_many_ports_that_should_be_bare_stay_for_a_person(rack: WiredRack) -> None:
    """More than a few of one switch at once are no leftover: none is told anything."""
    held = order(rack, 1)
    segment = segment_of(rack, held[0])
    give_back(rack, held)
    rack.settle()
    rack.world.do(lambda s: s.execute(text(MORE_PORTS), {"leaf": LEAF}))
    names = [row.port for row in rack.world.rows("SELECT port FROM node_ports WHERE switch = :leaf ORDER BY port", leaf=LEAF)]
    switch = WatchedSwitch(rack.switches, LEAF, rack.world.clock())
    for number, told in ((3, 3), (5, 0)):
        look = SwitchLook(tuple(SeenPort(one, segment, "") for one in names[:number]))
        judged = rack.world.do(lambda s, seen=look: wiring.judge(s, switch, seen))
        assert len(judged.mends) == told
        rack.world.do(lambda s, one=judged: wiring.settle(s, one, {}))
    assert {one.rpartition("; ")[2] for one in rack.troubles()} == {wiring.TOO_MANY}


def test_a_port_that_stays_wrong_keeps_new_orders_away(rack: WiredRack) -> None:
    """Somebody's own network is not touched: after five minutes it is a report, which ends with it. So is a switch that stays silent."""
    rack.control.rewire(rack.refs[0], 4242, tenant_id="somebody")
    rack.look()
    words = "It carries no network, and it is in a network that was not made by us. Telling it failed: fabric_device_foreign."
    assert rack.troubles() == [words]
    assert rack.world.rows("SELECT count(*) FROM health_reports") == [(0,)]
    rack.control.silence_switch(FAR)
    rack.look()
    silent = f"{wiring.SILENT}: provider_unreachable."
    assert rack.troubles()[1] == silent
    rack.look(wiring.LONG_S + 1)
    query = "SELECT n.health, r.source, r.check_name, r.message FROM nodes n JOIN health_reports r ON r.node_id = n.id ORDER BY r.message"
    kept = rack.world.rows(query)
    assert [row[:3] for row in kept] == [("block_allocation", "fabric", "port:p1")] * 2
    assert kept[1].message == f"{FAR}/{rack.refs[2].port}: {silent}"
    assert rack.events() == [("wrong", rack.refs[0].port)]
    rack.control.rewire(rack.refs[0], None)
    rack.control.restore_switch(FAR)
    rack.look()
    assert {row.health for row in rack.world.rows(query)} == {"ok"}
    assert rack.troubles() == []


class Late:
    """A worker that looked, and can be stopped between any two things it does."""

    def __init__(self, rack: WiredRack) -> None:
        self.rack = rack
        self.switch = WatchedSwitch(rack.switches, LEAF, rack.world.clock())
        self.seen = ports.look(self.switch, rack.tools)
        self.judged: wiring.Judged
        self.told: dict[tuple[str, str], str] = {}

    def judge(self) -> tuple[Mend, ...]:
        """It decides, by the rows of now."""
        self.judged = self.rack.world.do(lambda s: wiring.judge(s, self.switch, self.seen))
        return self.judged.mends

    def tell(self) -> list[str]:
        """It makes its calls."""
        self.told = {(one.node_id, one.wire.name): ports.tell(one, self.rack.tools) for one in self.judged.mends}
        return list(self.told.values())

    def settle(self) -> int:
        """It stores what came of it and takes back what came too late; how much that was is returned."""
        late = self.rack.world.do(lambda s: wiring.settle(s, self.judged, self.told))
        for one in late:
            ports.take_back(one, self.rack.tools)
        return len(late)


def test_an_old_look_decides_nothing(rack: WiredRack) -> None:
    """It saw a bare port of a running machine; by the time it decides, the machine is given back, wiped and free: nothing is told."""
    held = order(rack, 3)
    rack.control.reboot_switch(LEAF)
    worker = Late(rack)
    give_back(rack, held)
    rack.settle()
    before = rack.control.calls(operation="attach")
    assert worker.judge() == ()
    assert worker.settle() == 0
    assert rack.control.calls(operation="attach") == before
    assert rack.carried() == [None] * 3


def test_a_node_that_moved_while_its_switch_was_asked_is_left_to_the_next_look(rack: WiredRack) -> None:
    """Deployed after the look began, its port was still bare in it: that is no trouble, and nothing is told."""
    worker = Late(rack)
    rack.world.clock.advance(1)
    order(rack, 3)
    before = rack.control.calls(operation="attach")
    assert worker.judge() == ()
    worker.settle()
    assert (rack.troubles(), rack.events()) == ([], [])
    assert rack.control.calls(operation="attach") == before


def test_a_release_waits_for_a_decision_that_is_under_way(rack: WiredRack) -> None:
    """Given back between decision and call: the attachment comes first, then the detach, and `apart` sees what is true."""
    held = order(rack, 3)
    rack.control.reboot_switch(LEAF)
    worker = Late(rack)
    assert len(worker.judge()) == 2
    give_back(rack, held)
    rack.settle(3)
    query = "SELECT n.state, n.step FROM nodes n JOIN node_ports p ON p.node_id = n.id WHERE p.switch = :leaf"
    assert rack.world.rows(query, leaf=LEAF) == [("releasing", "")] * 2
    assert worker.tell() == ["", ""]
    assert worker.settle() == 0
    assert None not in rack.carried()[:2]
    rack.settle()
    assert rack.states() == {"available": 3}
    assert (rack.carried(), rack.findings()) == ([None] * 3, [])


def sleeps_through_its_lease(rack: WiredRack, held: tuple[Principal, str, str]) -> Late:
    """A worker that decided to attach and then slept until the machines were given back, wiped and free."""
    rack.control.reboot_switch(LEAF)
    worker = Late(rack)
    assert len(worker.judge()) == 2
    give_back(rack, held)
    rack.world.clock.advance(wiring.LEASE_S + wiring.GRACE_S + 1)
    rack.settle()
    assert rack.states() == {"available": 3}
    return worker


def test_a_worker_that_slept_through_its_lease_is_turned_away_by_the_switch(rack: WiredRack) -> None:
    """Its attachment comes after the detach and has no effect, not for an instant; the ledger has no link after the release."""
    held = order(rack, 3)
    worker = sleeps_through_its_lease(rack, held)
    links = rack.control.ledger().links
    assert worker.tell() == ["fabric_turn_over"] * 2
    assert rack.control.ledger().links == links
    assert worker.settle() == 2
    assert rack.control.ledger().links == links
    assert (rack.carried(), rack.findings()) == ([None] * 3, [])


def test_a_sleeper_does_not_meet_the_next_tenant(rack: WiredRack) -> None:
    """The machines are another tenant's by now, on its network: neither the attachment nor its taking back touches them."""
    held = order(rack, 3)
    worker = sleeps_through_its_lease(rack, held)
    other = order(rack, 3, person=1)
    segment = segment_of(rack, other[0])
    assert worker.tell() == ["fabric_turn_over"] * 2
    assert worker.settle() == 2
    assert (rack.carried(), rack.findings()) == ([segment] * 3, [])
    rack.control.reboot_switch(LEAF)
    rack.look()
    assert worker.tell() == ["fabric_turn_over"] * 2
    assert (rack.carried(), rack.findings()) == ([segment] * 3, [])


def test_a_sleeper_at_a_switch_that_forgot_takes_its_attachment_back(rack: WiredRack) -> None:
    """The turn died with the switch's memory: what was put on is taken off by who put it there, or by the next look if that one dies."""
    held = order(rack, 3)
    worker = sleeps_through_its_lease(rack, held)
    rack.control.reboot_switch(LEAF)
    assert worker.tell() == ["", ""]
    assert None not in rack.carried()[:2]
    assert worker.settle() == 2
    assert rack.carried() == [None] * 3
    assert worker.tell() == ["", ""]
    rack.look()
    assert (rack.carried(), rack.findings()) == ([None] * 3, [])


FAULTS = sorted(name for name, preset in {**PRESETS, **FABRIC_PRESETS}.items() if preset.on_fabrics)


def test_whatever_fault_befalls_a_look_or_its_calls_the_ports_end_right(rack: WiredRack) -> None:
    """Every fault that a fabric can have, on every call of the sweep: after it the ports carry what they should, and nobody has met."""
    tenant = str(order(rack, 2)[0].tenant_id)
    wanted = rack.carried()
    assert sorted(one is None for one in wanted) == [False, False, True]
    (segment,) = {one for one in wanted if one is not None}
    free = rack.refs[wanted.index(None)]
    played = set()
    for fault in FAULTS:
        rack.control.reboot_switch(LEAF)
        rack.control.reboot_switch(FAR)
        strange = ports.NetworkSpec(f"net-{tenant}", tenant, segment)
        rack.tools.fabric(rack.switches, free.switch).attach(free, strange)
        rules = {}
        for operation in ("observe_ports", "attach", "detach"):
            with suppress(ValueError):
                rules[operation] = rack.control.play(fault, operation)
        for _ in range(2):
            rack.look()
        played |= {(fault, operation) for operation, rule in rules.items() if rack.control.played(rule)}
        rack.control.heal()
        rack.look()
        assert rack.carried() == wanted, fault
        rack.look(wiring.SOON_S + 1)
        assert rack.troubles() == [], fault
        assert rack.findings() == [], fault
    could = {(fault, one) for fault in FAULTS for one in _operations(fault) if one in {"observe_ports", "attach", "detach"}}
    # What forgot at the look has nothing left that could be taken off.
    assert could - played <= {("switch_forgets", "detach")}


def _operations(fault: str) -> tuple[str, ...]:
    return {**PRESETS, **FABRIC_PRESETS}[fault].on_fabrics


@pytest.mark.parametrize("seed", [1, 3])
def test_no_order_of_looks_and_lives_leaves_a_port_where_it_must_not_be(rack: WiredRack, seed: int) -> None:  # noqa: C901 - moves
    """Two tenants come and go, workers stop anywhere and go on any time later, by chance: a port does what its machine's row says."""
    chance = random.Random(seed)
    held: list[tuple[Principal, str, str]] = []
    asleep: list[Late] = []

    def come() -> None:
        if len(held) < 2:
            held.append(ask(rack, 1, person=len(held)))

    def go() -> None:
        if held:
            give_back(rack, held.pop(chance.randrange(len(held))))

    def nod() -> None:
        pull()
        asleep.append(Late(rack))
        asleep[-1].judge()

    def wake() -> None:
        if asleep:
            worker = asleep.pop(chance.randrange(len(asleep)))
            worker.tell()
            assert rack.astray() == []
            worker.settle()

    def pull() -> None:
        for port in rack.refs:
            rack.tools.fabric(rack.switches, port.switch).detach(port)

    def pass_time() -> None:
        rack.world.clock.advance(chance.choice((0.5, 5, 70)))

    def live() -> None:
        rack.settle(chance.choice((2, 12, 200)))

    moves = {come: 2, go: 2, nod: 3, wake: 2, pass_time: 3, live: 8, lambda: rack.look(5): 1}
    for _ in range(45):
        chance.choices(list(moves), list(moves.values()))[0]()
        assert rack.astray() == []
    while asleep:
        wake()
        assert rack.astray() == []
    while held:
        go()
    rack.settle()
    assert (rack.carried(), rack.findings()) == ([None] * 3, [])


def test_machines_that_somebody_is_at_are_left_to_them(rack: WiredRack) -> None:
    """While a claim is in force nothing is told; once it has lapsed, and its grace, it is."""
    order(rack, 3)
    rack.control.reboot_switch(LEAF)
    rack.world.do(lambda s: s.connection().exec_driver_sql("UPDATE nodes SET lease_until = cp_clock() + interval '60 s'"))
    worker = Late(rack)
    assert worker.judge() == ()
    assert worker.settle() == 0
    assert len(rack.troubles()) == 2
    rack.world.clock.advance(60 + wiring.GRACE_S + 1)
    assert len(worker.judge()) == 2


def test_two_workers_do_not_look_at_one_switch_at_once(rack: WiredRack) -> None:
    """Who comes while another plans its looks gets other switches, or none."""
    rack.world.clock.advance(ROUND_S)

    def both(session: Any) -> tuple[list[str], list[str]]:
        mine = wiring.due_switches(session, 1)
        theirs = rack.world.do(lambda s: wiring.due_switches(s, 10))
        return [one.name for one in mine], [one.name for one in theirs]

    mine, theirs = rack.world.do(both)
    assert sorted([*mine, *theirs]) == [LEAF, FAR]
    assert rack.world.do(lambda s: wiring.due_switches(s, 10)) == []


def test_a_worker_that_stops_asks_no_further_switch(rack: WiredRack) -> None:
    """A round that fails at one switch goes on with the others; a stopping worker asks none."""
    rack.world.clock.advance(ROUND_S)
    rack.control.play("switch_forgets", "observe_ports", LEAF, count=None)
    rack.control.play("flapping_404", "observe_ports", FAR, count=None)
    assert rack.look() == 2
    assert rack.troubles() == [f"{wiring.SILENT}: provider_not_found."]
    rack.world.clock.advance(ROUND_S)
    stopping = threading.Event()
    stopping.set()
    before = len(rack.control.calls())
    with ThreadPoolExecutor(2) as pool:
        assert watch_ports(rack.world.engine, rack.tools, pool, stopping) == 2
    assert len(rack.control.calls()) == before
