"""
A rack of machines that we drive ourselves, with faults to play on their controllers, their switch and themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controlplane import bootstrap
from controlplane.kit.ids import new_id
from controlplane.kit.outcome import Outcome as StepOutcome
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.registering import NewController, NewPort
from controlplane.nodes.states import NodeSnapshot
from controlplane.providers.fabrics import PortRef
from controlplane.providers.hardware import Controller
from controlplane.providers.toolbox import Toolbox
from controlplane.quotas import service as quotas
from tests.conftest import ROOT, Database
from tests.factories.metal import INVENTORY
from tests.factories.world import MASTER_KEY, World, make_world
from tests.matrix.machines_say import Voices
from tests.matrix.metal import Machine, Seed, Site
from tests.matrix.playing import Director, FaultyController, FaultySwitch

FLEET = ROOT / "tests" / "schedules" / "fleet.yaml"
PASSWORD = "bmc-canary-secret"
SEED = """
    SELECT b.purpose, b.tenant_id, w.segment FROM boots b LEFT JOIN networks w ON w.tenant_id = b.tenant_id WHERE b.id = :id
"""
PLENTY = 100_000


def forget_silence(tools: Toolbox) -> None:
    """
    Circuits that are open would be closed by now: they count real seconds, and here the time is virtual.
    """
    for circuit in tools._circuits.values():
        circuit.closed_again_at = 0.0


class StageTools(Toolbox):
    """
    A toolbox whose controllers and switches are the rack's, and which tells the director whose step runs.
    """

    rack: Rack

    def run(self, step: Any, snapshot: Any, *, attempt: int) -> tuple[StepOutcome, bool]:
        """See `Toolbox.run`."""
        director = self.rack.director
        is_node = isinstance(snapshot, NodeSnapshot)
        director.state = snapshot.state if is_node else ""
        director.cluster_id = snapshot.tenancy.cluster_id if is_node and snapshot.tenancy is not None else ""
        if is_node:
            self.rack.before_step(snapshot)
        answer = super().run(step, snapshot, attempt=attempt)
        if is_node:
            self.rack.after_step(snapshot)
        return answer

    def hardware(self, provider: Any, ref: str) -> Any:
        """See `Toolbox.hardware`."""
        return self.rack.hardware(provider, ref) or super().hardware(provider, ref)

    def fabric(self, provider: Any, switch: str) -> Any:
        """See `Toolbox.fabric`."""
        return self.rack.fabric(provider) or super().fabric(provider, switch)

    def controller(self, ref: str, *, url: str, system: str, username: str, sealed: bytes | None) -> Controller:
        """See `Toolbox.controller`."""
        return self.rack.controller(super().controller(ref, url=url, system=system, username=username, sealed=sealed))


class Rack:
    """
    The machines, their site and their rows; the ground of the adapters `bare`, and the ground others build on.
    """

    adapter = "bare"
    kind = "baremetal"
    reports = True
    """Whether machines tell themselves when they are ready."""

    def __init__(self, database: Database, folder: Path, count: int) -> None:
        self.world: World = make_world(database, folder, fleet=str(FLEET))
        self.world.settle()
        self.world.do(lambda s: s.connection().exec_driver_sql("UPDATE providers SET state = 'disabled'"))
        self.director = Director(self.world.clock)
        self._seeds: dict[str, Seed] = {}
        self.site = Site(self.world.clock, self._seed_of)
        self.site.switch.site = self.site
        self.voices = Voices(self.world, self.site, self.director)
        self._switch = FaultySwitch(self.site.switch, self.site, self.director)
        self.provider_id, self.fabric_id = new_id("prv"), new_id("prv")
        self.restart()
        self.world.do(self._raise_limits)
        self.world.do(self._register)
        self.ids = self.world.do(lambda s: self._enrol(s, count))
        self._stand_up()

    def restart(self) -> None:
        """
        The workers are new processes.
        """
        sealer = Sealer.from_base64(MASTER_KEY)
        tools = StageTools(
            deployment="cp",
            now=self.world.clock,
            open_secrets=lambda provider_id, sealed: bootstrap.open_secrets(sealer, provider_id, sealed),
            open_password=lambda node_id, sealed: bootstrap.open_password(sealer, node_id, sealed),
            seal_password=lambda node_id, password: bootstrap.seal_password(sealer, node_id, password),
            seed_url=lambda boot_id: f"http://cp/{boot_id}",
        )
        tools.rack = self
        self.world.tools.close()
        self.world.tools = tools

    def _raise_limits(self, session: Any) -> None:
        for scope_id in (self.world.keys.tenant_id, *(project for _, project in self.world.people)):
            scope = quotas.find_scope(session, scope_id)
            if scope is not None:
                for resource in ("gpus", "clusters", "operations"):
                    quotas.set_limit(session, scope, resource, PLENTY)  # type: ignore[arg-type]
        session.connection().exec_driver_sql(f"UPDATE quotas SET ceiling = {PLENTY} WHERE ceiling IS NOT NULL")

    def _register(self, session: Any) -> None:
        for provider_id, adapter in ((self.provider_id, "redfish"), (self.fabric_id, "frr-evpn")):
            can = {"products": [self.kind], "scrub": True} if adapter == "redfish" else {}
            new = nodes.NewProvider(
                name=adapter,
                adapter=adapter,
                site=self.world.keys.site,
                config=self._config(adapter),
                sealed=None,
                capabilities=can,
                shared=True,
                provider_id=provider_id,
            )
            nodes.register_provider(session, new)

    def _config(self, adapter: str) -> dict[str, Any]:
        return {"update_firmware": True} if adapter == "redfish" else {}

    def _enrol(self, session: Any, count: int) -> list[str]:
        rows = [
            nodes.NewNode(
                ref=f"bare-{number}",
                block="b9",
                leaf="l9",
                rack="r9",
                nvlink_domain=None,
                instance_type=self.world.keys.instance_type,
                gpus=8,
                controller=NewController(self._url(number), username="admin", password=PASSWORD),
                address=f"10.1.{number // 250}.{number % 250 + 1}",
                ports=(NewPort("p1", self.fabric_id, self._port(number).switch, self._port(number).port),),
            )
            for number in range(1, count + 1)
        ]
        return nodes.enroll_from(session, self.provider_id, rows, Sealer.from_base64(MASTER_KEY))

    def _url(self, number: int) -> str:
        return f"https://10.0.{number // 250}.{number % 250 + 1}"

    def _port(self, number: int) -> PortRef:
        return PortRef("leaf9", f"swp{number}")

    def _stand_up(self) -> None:
        for number, node_id in enumerate(self.ids, start=1):
            self.site.machines[node_id] = Machine(node_id, self._port(number), self.site)

    def _seed_of(self, boot_id: str) -> Seed:
        if boot_id not in self._seeds:
            (row,) = self.world.rows(SEED, id=boot_id)
            self._seeds[boot_id] = Seed(row.purpose, row.tenant_id, row.segment)
        return self._seeds[boot_id]

    # What steps reach

    def before_step(self, node: NodeSnapshot) -> None:
        """
        A step of the node is about to run.
        """

    def after_step(self, node: NodeSnapshot) -> None:
        """
        A step of the node has run.
        """

    def hardware(self, provider: Any, ref: str) -> Any:
        """
        The machine's controller.
        """
        return FaultyController(self.site.machines[ref], self.director)

    def fabric(self, provider: Any) -> Any:
        """
        The switch.
        """
        return self._switch

    def controller(self, found: Controller) -> Controller:
        """
        How it is reached; by default nobody cares.
        """
        return found

    # What the matrix asks

    def live(self) -> int:
        """
        Machines have gone on for a moment; how many said something is returned.
        """
        forget_silence(self.world.tools)
        self.director.pass_time()
        return self.voices.speak()

    def heal(self) -> None:
        """
        Nothing goes wrong any more, parts are what they were, and who worked is a new process.
        """
        self.director.heal()
        for machine in self.site.machines.values():
            machine.inventory, machine.flash.silent = INVENTORY, 0
        self.site.switch.strange.clear()
        self.restart()

    def broken(self) -> list[str]:
        """
        What the site saw that must not be, since it was asked last.
        """
        found = [*self.site.findings, *self.voices.believed]
        for machine in self.site.machines.values():
            found += [f"I6 {machine.node_id}: {one}" for one in machine.flash.findings]
            machine.flash.findings.clear()
        self.site.findings.clear()
        self.voices.believed.clear()
        free = self.world.rows("SELECT id FROM nodes WHERE state IN ('available', 'reserved') AND id = ANY(:ids)", ids=self.ids)
        left = [self.site.machines[row.id] for row in free]
        return found + [f"I7 {one.node_id}: offered with data of {one.residue.tenant_id}" for one in left if one.residue]

    def remains(self) -> list[str]:
        """
        What is left at machines and ports of which nobody has any more.
        """
        found = []
        for machine in self.site.machines.values():
            if machine.residue is not None or machine.media is not None or machine.is_on:
                found.append(f"I2 {machine.node_id}: on {machine.is_on}, media {machine.media}, data {machine.residue}")
            if self.site.switch.carried(machine.port) is not None:
                found.append(f"I2 {machine.node_id}: its port still carries {self.site.switch.carried(machine.port)}")
        return found

    def close(self) -> None:
        """
        Nothing is held.
        """
        self.world.tools.close()
        self.world.clock.stop()
