"""
Bare machines whose data ports end at switches of the simulated region.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from controlplane.nodes import wiring
from controlplane.nodes.cabling import ports_carry
from controlplane.nodes.registering import NewPort
from controlplane.nodes.service import read_providers
from controlplane.nodes.states import ProviderRef
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.fabric_judge import fabric_findings
from controlplane.providers.fabrics import Fabrics, PortRef
from controlplane.providers.toolbox import Reachable, Toolbox
from tests.integration.test_bare_nodes import BenchTools, Rack
from workers.sweeps import watch_ports

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
LEAF, FAR = "one-b1-l1", "one-b1-l2"
ROUND_S = wiring.EVERY_S * (1 + wiring.SPREAD) + 1


class WiredTools(BenchTools):
    """Controllers are benches, switches are the simulator's."""

    def fabric(self, provider: Reachable, switch: str) -> Fabrics:
        return Toolbox.fabric(self, provider, switch)


class WiredRack(Rack):
    """Bare machines whose data ports end at two leaves of the simulated region."""

    made_with = WiredTools
    refs: tuple[PortRef, ...] = ()

    def cables(self, number: int, fabric_id: str) -> tuple[NewPort, ...]:
        del fabric_id
        (sim,) = self.world.rows("SELECT id FROM providers WHERE adapter = 'simulated' AND site = :s", s=self.world.keys.site)
        leaf = LEAF if number < 3 else FAR
        self.refs = (*self.refs, PortRef(leaf, f"{leaf}-r1-n0{number}.p1"))
        return (NewPort("p1", sim.id, leaf, self.refs[-1].port),)

    @property
    def control(self) -> SimControl:
        """The hand that reaches into the fabric."""
        return SimControl(self.world.region.world)

    def carried(self) -> list[int | None]:
        """What the switches have on the machines' ports."""
        fabric = self.switches
        return [self.tools.fabric(fabric, one.switch).observe_port(one).segment for one in self.refs]

    def look(self, after_s: float = ROUND_S) -> int:
        """A worker's round, so much later."""
        self.world.clock.advance(after_s)
        with ThreadPoolExecutor(2) as pool:
            return watch_ports(self.world.engine, self.tools, pool)

    @property
    def switches(self) -> ProviderRef:
        """Where the ports end."""
        (wire,) = self.world.rows("SELECT DISTINCT provider_id FROM node_ports")
        found: ProviderRef = self.world.do(lambda s: read_providers(s, [wire.provider_id]))[wire.provider_id]
        return found

    def astray(self) -> list[str]:
        """Machines whose port is in a network that is not their tenant's, or in any after it was taken off and seen to be off."""
        rows = self.world.rows(
            "SELECT p.port, n.state, n.step, net.segment FROM node_ports p JOIN nodes n ON n.id = p.node_id"
            " LEFT JOIN allocations a ON a.id = n.allocation_id LEFT JOIN networks net ON net.name = a.network ORDER BY p.port"
        )
        allowed = {row.port: {None} if ports_carry(row.state, row.step) == "nothing" else {None, row.segment} for row in rows}
        return [
            f"{one.port} carries {carried}"
            for one, carried in zip(self.refs, self.carried(), strict=True)
            if carried not in allowed[one.port]
        ]

    def troubles(self) -> list[str]:
        """What stands against the ports, where anything does."""
        return [row.trouble for row in self.world.rows("SELECT trouble FROM node_ports WHERE trouble <> '' ORDER BY port")]

    def events(self) -> list[tuple[str, str]]:
        """What operators heard of ports, in order: verb and switch port."""
        rows = self.world.rows(
            "SELECT type, data->>'switch_port' AS port FROM events WHERE type LIKE 'node.port%' ORDER BY xact, id"
        )
        return [(row.type.removeprefix("node.port_"), row.port) for row in rows]

    def findings(self) -> list[str]:
        """What the ledger's judge says: who met whom."""
        return [one.words for one in fabric_findings(self.control.ledger())]

    def was_on(self, ref: PortRef) -> list[str]:
        """Whose networks the port was in, in order."""
        return [one.tenant_id for one in self.control.ledger().links if one.port == ref.port and one.until != one.since]
