"""
Rows of bare machines through their whole life: boots begin and end with states, tokens die with tenancies, wipes are on record, meters run.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from controlplane import bootstrap
from controlplane.boots import reporting
from controlplane.boots.states import CLOUD_INIT_STAGES, Outcome, Report
from controlplane.clusters import service as clusters
from controlplane.kit.errors import Invalid, NotFound, Unavailable
from controlplane.kit.ids import new_id
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.registering import NewController, NewPort
from controlplane.providers.errors import Permanent
from controlplane.providers.fabrics import Fabrics
from controlplane.providers.hardware import Controller, Fact, Hardware
from controlplane.providers.toolbox import Reachable, Toolbox
from tests.factories.metal import Bench
from tests.factories.world import MASTER_KEY, World
from workers.watch import Watch

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ada"
WIPED = tuple({"name": name, "result": "passed", "detail": ""} for name in ("disk:nvme0n1", "disk:nvme1n1", "disks_counted"))
ENROLLED_WITH = "bmc secret"
CHECKED = ({"name": "gpu_count", "result": "passed", "detail": "8"},)


class BenchTools(Toolbox):
    """A toolbox whose controllers and switches are benches; all else is the simulator's."""

    benches: dict[str, Bench]

    def hardware(self, provider: Reachable, ref: str) -> Hardware:
        del provider
        return self.benches[ref]

    def fabric(self, provider: Reachable, switch: str) -> Fabrics:
        del provider, switch
        return self.benches["fabric"]


class Rack:
    """Bare machines of the world, and what they would say of themselves."""

    made_with: type[BenchTools] = BenchTools

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.lies: dict[str, tuple[dict[str, str], ...]] = {}
        self.silent: set[str] = set()
        self.broken: set[str] = set()
        sealer = Sealer.from_base64(MASTER_KEY)
        self.tools = self.made_with(
            deployment="cp",
            now=world.clock,
            open_secrets=lambda provider_id, sealed: bootstrap.open_secrets(sealer, provider_id, sealed),
            open_password=lambda node_id, sealed: bootstrap.open_password(sealer, node_id, sealed),
            seal_password=lambda node_id, password: bootstrap.seal_password(sealer, node_id, password),
            seed_url=lambda boot_id: f"http://cp/{boot_id}",
        )
        world.tools = self.tools
        self.ids = world.do(lambda s: self._enroll(s, count, sealer))
        self.tools.benches = {one: Bench(secret=ENROLLED_WITH) for one in self.ids} | {"fabric": Bench(power_="off")}

    def _enroll(self, session: Any, count: int, sealer: Sealer) -> list[str]:
        provider_id = new_id("prv")
        fabric_id = new_id("prv")
        for one, adapter in ((provider_id, "redfish"), (fabric_id, "frr-evpn")):
            new = nodes.NewProvider(
                name=adapter,
                adapter=adapter,
                site=self.world.keys.site,
                config={},
                sealed=None,
                capabilities={"products": ["baremetal"], "scrub": True} if adapter == "redfish" else {},
                shared=True,
                provider_id=one,
            )
            nodes.register_provider(session, new)
        rows = [
            nodes.NewNode(
                ref=f"bare-{number}",
                block="b9",
                leaf="l9",
                rack="r9",
                nvlink_domain=None,
                instance_type=self.world.keys.instance_type,
                gpus=8,
                controller=NewController(f"https://10.0.9.{number}", password=ENROLLED_WITH),
                address=f"10.1.9.{number}",
                ports=self.cables(number, fabric_id),
            )
            for number in range(1, count + 1)
        ]
        return nodes.enroll_from(session, provider_id, rows, sealer)

    def cables(self, number: int, fabric_id: str) -> tuple[NewPort, ...]:
        """Where the ports of one of them end."""
        return (NewPort("p1", fabric_id, "leaf9", f"swp{number}"),)

    def due(self) -> list[Any]:
        """Machines of the rack whose controllers were not looked at within the last minute."""
        late = "looked_at IS NULL OR looked_at < cp_clock() - interval '60 s'"
        return self.world.rows(f"SELECT id FROM nodes WHERE id = ANY(:ids) AND ({late})", ids=self.ids)

    def settle(self, most: int = 400) -> None:
        """Everything that can happen has happened: the engine looks, machines with power and a seed speak."""
        for _ in range(most):
            if not self.world.tick() and not self._speak():
                pauses = [row.pause_s for row in self.world.waiting() if not row.endless]
                if not pauses:
                    return
                self.world.clock.advance(max(0.001, min(pauses)))

    def _speak(self) -> int:
        rows = self.world.rows(
            "SELECT id, node_id, purpose, facts->>'instance_id' AS instance FROM boots"
            " WHERE state IN ('made', 'fetched', 'reporting') AND purpose <> 'fabric'"
        )
        spoke = 0
        for row in rows:
            bench = self.tools.benches[row.node_id]
            if row.node_id in self.silent or bench.power_ != "on" or bench.media != f"http://cp/{row.id}":
                continue
            spoke += 1
            self.world.do(lambda s, one=row: self._report(s, one))
        return spoke

    def _report(self, session: Any, row: Any) -> None:
        reporting.phone_home(session, row.id, {"instance_id": row.instance})
        good = row.node_id not in self.broken or row.purpose != "deploy"
        checks = {"wipe": WIPED, "check": CHECKED}.get(row.purpose, ())
        scripts = () if row.purpose == "deploy" else (Outcome(row.purpose, ok=True, exit_code=0, line=None, output=""),)
        stages = dict.fromkeys(CLOUD_INIT_STAGES, "")
        if not good:
            stages["modules-final"] = "it broke"
        said = self.lies.get(f"{row.node_id}/{row.purpose}", checks)
        reporting.take_report(session, row.id, row.id, Report(final=True, stages=stages, outcomes=scripts, checks=said))

    def states(self) -> dict[str, int]:
        """How many machines stand in which state."""
        rows = self.world.rows("SELECT state, count(*) AS n FROM nodes WHERE id = ANY(:ids) GROUP BY state", ids=self.ids)
        return {row.state: row.n for row in rows}


@pytest.fixture
def rack(world: World) -> Rack:
    """Three bare machines, enrolled."""
    return Rack(world, 3)


def order(world: World, count: int = 2, **login: Any) -> str:
    """The id of a bare-metal cluster just ordered."""
    given = clusters.Login((KEY,), login.get("user_data", ""))
    wanted = clusters.Order(
        "bare",
        "baremetal",
        world.keys.site,
        (clusters.SetOrder("workers", world.keys.instance_type, count),),
        wait=True,
        login=given,
    )
    sealer = Sealer.from_base64(MASTER_KEY)
    view, _ = world.do(lambda s: clusters.order_cluster(s, world.tenant, world.keys.project_id, wanted, sealer))
    return str(view.row.id)


def only_bare(world: World) -> None:
    """The simulated machines take no orders."""
    world.do(lambda s: s.connection().exec_driver_sql("UPDATE providers SET state = 'disabled' WHERE adapter = 'simulated'"))


def test_machines_are_checked_and_wiped_before_they_are_free(world: World, rack: Rack) -> None:
    """Each had a boot for its checks and one for its wipe, both over, and a verified wipe on record."""
    rack.settle()
    assert rack.states() == {"available": 3}
    rows = world.rows("SELECT purpose, state, count(*) FROM boots GROUP BY 1, 2 ORDER BY 1")
    assert rows == [("check", "ended", 3), ("wipe", "ended", 3)]
    assert world.rows("SELECT count(*) FROM wipes WHERE verified AND node_id = ANY(:ids)", ids=rack.ids) == [(3,)]
    assert all(bench.power_ == "off" and bench.unsafe == [] for bench in rack.tools.benches.values())
    assert world.rows(
        "SELECT count(*) FROM nodes WHERE sealed IS NOT NULL AND position('bmc secret' in encode(sealed, 'escape')) > 0"
    ) == [(0,)]


def test_an_order_is_deployed_metered_given_back_and_wiped(world: World, rack: Rack) -> None:
    """The tenant's nodes boot from its blueprint on its network; given back, their tokens open nothing and they are wiped anew."""
    only_bare(world)
    rack.settle()
    cluster_id = order(world, user_data="#cloud-config\npackages: [htop]\n")
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    boots = world.rows(
        "SELECT id, node_id, tenant_id, blueprint_id, address FROM boots WHERE purpose = 'deploy' AND state = 'ready'"
    )
    assert len(boots) == 2
    assert {row.tenant_id for row in boots} == {world.keys.tenant_id}
    assert None not in {row.blueprint_id for row in boots}
    (segment,) = world.rows("SELECT segment FROM networks WHERE tenant_id = :t", t=world.keys.tenant_id)
    carried = [value for value in rack.tools.benches["fabric"].ports.values() if value is not None]
    assert carried == [segment.segment] * 2
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(2,)]
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    for _ in range(3):
        world.tick()
    for row in boots:
        with pytest.raises(NotFound):
            world.do(lambda s, one=row: reporting.take_console(s, one.id, b"", None))
    rack.settle()
    assert rack.states() == {"available": 3}
    assert set(rack.tools.benches["fabric"].ports.values()) == {None}
    assert world.rows("SELECT count(*) FROM wipes WHERE verified AND node_id = ANY(:ids)", ids=rack.ids) == [(5,)]
    assert world.rows("SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')") == []


def test_a_machine_that_breaks_on_a_tenants_data_is_replaced_and_wiped(world: World, rack: Rack) -> None:
    """A node whose boot reports an error goes back, is held for a person and wiped; the order runs on another."""
    only_bare(world)
    rack.settle()
    order(world)
    while not (chosen := [row.node_id for row in world.rows("SELECT node_id FROM allocations ORDER BY id")]):
        world.tick()
    rack.broken = {chosen[0]}
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    held = {row.node_id for row in world.rows("SELECT node_id FROM allocations WHERE state = 'active'")}
    assert chosen[0] not in held
    assert world.rows("SELECT count(*) FROM node_holds WHERE lifted_at IS NULL") == [(1,)]


def test_a_machine_that_loses_its_power_while_it_comes_up_is_switched_on(world: World, rack: Rack) -> None:
    """It has called and is dark by now: the same boot goes on from its disk, no other is made and nothing is held against it."""
    only_bare(world)
    rack.settle()
    order(world, 1)
    rack.silent = set(rack.ids)
    query = "SELECT id, node_id FROM boots WHERE purpose = 'deploy' AND state = 'made'"
    while not (begun := [row for row in world.rows(query) if rack.tools.benches[row.node_id].media]):
        world.tick() or world.clock.advance(1)
    (boot,) = begun
    bench = rack.tools.benches[boot.node_id]
    while bench.power_ != "on":
        world.tick() or world.clock.advance(1)
    told = Report(final=False, stages={"init": ""}, outcomes=(), checks=())
    world.do(lambda s: reporting.take_report(s, boot.id, boot.id, told))
    bench.power_ = "off"
    for _ in range(8):
        world.tick() or world.clock.advance(16)
    assert bench.power_ == "on"
    rack.silent = set()
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert world.rows("SELECT id FROM boots WHERE purpose = 'deploy'") == [(boot.id,)]
    assert world.rows("SELECT count(*) FROM node_holds") == [(0,)]


@pytest.mark.parametrize(
    "said",
    [
        (),
        WIPED[:1],
        (*WIPED[:2], {"name": "disks_counted", "result": "not_measured", "detail": "no disk was found"}),
        (*WIPED, {"name": "disk:sdb", "result": "failed", "detail": "in use"}),
    ],
)
def test_no_half_wipe_makes_a_machine_free(world: World, rack: Rack, said: tuple[dict[str, str], ...]) -> None:
    """Whatever a wipe boot leaves out, its machine is put aside and never offered."""
    rack.lies = {f"{rack.ids[0]}/wipe": said}
    rack.settle()
    assert rack.states() == {"available": 2, "quarantined": 1}
    assert world.rows("SELECT state FROM nodes WHERE id = :id", id=rack.ids[0]) == [("quarantined",)]
    assert world.rows("SELECT count(*) FROM wipes WHERE verified AND node_id = :id", id=rack.ids[0]) == [(0,)]


def test_a_machine_whose_parts_changed_is_put_aside(world: World, rack: Rack) -> None:
    """Other firmware after a tenancy than before it is never waved through."""
    only_bare(world)
    rack.settle()
    cluster_id = order(world, 3)
    rack.settle()
    bench = rack.tools.benches[rack.ids[1]]
    bench.inventory = replace(bench.inventory, firmware={"BMC": "6.66"})
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    rack.settle()
    assert rack.states() == {"available": 2, "quarantined": 1}


def test_a_silent_machine_costs_the_others_nothing(world: World, rack: Rack) -> None:
    """Started twice, then put aside with the reason; the rest of its rack is free long before."""
    rack.silent = {rack.ids[2]}
    rack.settle()
    assert rack.states() == {"available": 2, "quarantined": 1}
    assert world.rows("SELECT reason FROM nodes WHERE id = :id", id=rack.ids[2]) == [
        ("The machine was started twice and never called.",)
    ]
    assert rack.tools.benches[rack.ids[2]].acts.count("on") == 2


def test_a_controllers_word_is_a_report(world: World, rack: Rack) -> None:
    """A critical GPU makes its node sick and well again by the same source; silence and unknown change nothing; others are not asked."""
    rack.settle()
    bench = rack.tools.benches[rack.ids[0]]

    def looked(*facts: Fact, after_s: float = 61.0) -> tuple[str, int]:
        bench.facts = facts
        world.clock.advance(after_s)
        asked = len(rack.due())
        with Watch(world.engine, rack.tools) as watch:
            watch.whole_round()
        (row,) = world.rows("SELECT health FROM nodes WHERE id = :id", id=rack.ids[0])
        return row.health, asked

    assert looked(Fact("gpu_health:GPU3", "ok"), Fact("fan:1", "ok")) == ("ok", 3)
    assert world.rows("SELECT count(*) FROM health_reports") == [(0,)]
    assert looked(Fact("gpu_health:GPU3", "critical", "thermal"), after_s=1) == ("ok", 0)
    assert looked(Fact("gpu_health:GPU3", "critical", "thermal")) == ("quarantine", 3)
    assert looked(Fact("gpu_health:GPU3", "unknown")) == ("quarantine", 3)
    bench.mute = True
    assert looked() == ("quarantine", 3)
    bench.mute = False
    assert looked(Fact("gpu_health:GPU3", "ok"), Fact("fan:1", "warning", "slow")) == ("info", 3)


class Hanging(Bench):
    """A bench whose controller says nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.free = threading.Event()

    def read_health(self, controller: Controller) -> tuple[Fact, ...]:
        self.asked.set()
        assert self.free.wait(60), "nobody let it go"
        return super().read_health(controller)


def test_a_controller_that_hangs_keeps_no_other_waiting(world: World, rack: Rack) -> None:
    """While one says nothing, the others are looked at again and again, and what they say is stored."""
    rack.settle()
    hanging = Hanging()
    rack.tools.benches[rack.ids[0]] = hanging
    well = rack.tools.benches[rack.ids[1]]
    with Watch(world.engine, rack.tools) as watch:
        sick, fine = Fact("gpu_health:GPU0", "critical"), Fact("gpu_health:GPU0", "ok")
        for fact, health in ((sick, "quarantine"), (fine, "ok"), (sick, "quarantine")):
            well.facts = (fact,)
            world.clock.advance(61)
            while world.rows("SELECT health FROM nodes WHERE id = :id", id=rack.ids[1]) != [(health,)]:
                assert watch.turn(1.5), "nothing is under way"
            assert hanging.asked.is_set()
        hanging.free.set()
        watch.whole_round()


def test_a_worker_that_stops_asks_no_further_controller(world: World, rack: Rack) -> None:
    """Once it is stopping, controllers that are due are left to the next worker's round."""
    rack.settle()
    rack.tools.benches[rack.ids[0]].facts = (Fact("gpu_health:GPU3", "critical"),)
    world.clock.advance(61)
    stopping = threading.Event()
    stopping.set()
    with Watch(world.engine, rack.tools, stopping) as watch:
        watch.whole_round()
    assert world.rows("SELECT DISTINCT health FROM nodes WHERE id = ANY(:ids)", ids=rack.ids) == [("ok",)]
    with Watch(world.engine, rack.tools) as watch:
        watch.whole_round()
    assert world.rows("SELECT health FROM nodes WHERE id = :id", id=rack.ids[0]) == [("quarantine",)]


def test_machines_without_a_way_to_us_say_what_is_missing(world: World) -> None:
    """Where no address of ours is known to machines, the toolbox says which setting is missing."""
    tools = bootstrap.toolbox(world.settings, Sealer.from_base64(MASTER_KEY))
    with pytest.raises(Permanent, match="CONTROLPLANE_MACHINE_URL"):
        tools.seed_url(new_id("bot"))
    tools.close()


def test_orders_say_who_may_log_in(world: World) -> None:
    """Bare metal needs keys and takes good user-data only; other products take neither; secrets need a master key."""
    sets = (clusters.SetOrder("workers", world.keys.instance_type, 1),)

    def ask(kind: str, login: clusters.Login | None, sealer: Sealer | None = None) -> Any:
        wanted = clusters.Order("bare", kind, world.keys.site, sets, wait=True, login=login)
        return world.do(lambda s: clusters.order_cluster(s, world.tenant, world.keys.project_id, wanted, sealer))

    for kind, login in (
        ("baremetal", None),
        ("slurm", clusters.Login((KEY,))),
        ("baremetal", clusters.Login((KEY,), "no kind of user-data")),
    ):
        with pytest.raises(Invalid):
            ask(kind, login)
    with pytest.raises(Unavailable):
        ask("baremetal", clusters.Login((KEY,)))
