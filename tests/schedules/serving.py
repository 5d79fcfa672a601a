"""
Schedules of services and nothing else, on clusters that stand.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import text

from controlplane.clusters import service as clusters
from controlplane.kit import crashpoints
from controlplane.providers.adapters.simulated.faults import PRESETS, SERVICE_PRESETS
from controlplane.services import service as services
from tests.factories.world import World
from tests.schedules.schedule import QUIET_S, RESUME, Schedule, Size
from tests.schedules.tenants import OPEN

ON_SERVICES = {name: preset for name, preset in {**PRESETS, **SERVICE_PRESETS}.items() if preset.on_services}
"""What can befall a service."""
NODES = "SELECT ref FROM nodes WHERE state = 'active' ORDER BY id"
RESTING = "SELECT id, state, suspended, replicas, scaling FROM services WHERE state IN ('running', 'suspended')"
MOVING = "SELECT id, state, reason FROM services WHERE state NOT IN ('running', 'degraded', 'suspended', 'failed', 'deleted')"
SERVICES = Size(40, 0.0, 0.0)
MANY = 10


def stand(world: World) -> None:
    """
    Each of the two tenants has a running Kubernetes cluster of three nodes.
    """
    sets = (clusters.SetOrder("workers", world.keys.instance_type, 3),)
    for tenant, project in world.people:
        wanted = clusters.Order("serve", "kubernetes", world.keys.site, sets, wait=True)
        world.do(lambda s, o=wanted, t=tenant, p=project: clusters.order_cluster(s, t, p, o))
    world.settle()


class ServiceSchedule(Schedule):
    """
    Services come, change and go on two clusters that stand, while workers die, the provider misbehaves and machines are dead for a while.
    """

    def run(self) -> None:
        """
        All moves; once healed, every service is as it was asked for last, or says why not; then all are deleted.
        """
        take_out = crashpoints.install(self._maybe_crash)
        try:
            self.tenants.start()
            for _ in range(self.size.moves):
                self.random.choice(self._moves())()
        finally:
            take_out()
        self.heal()

    def heal(self) -> None:
        """
        Faults are over, leases lapse, all comes to rest and is looked at; nothing is left in the end.
        """
        for worker in self.workers:
            worker.die()
        for fault, rule in self._rules:
            self.played[fault] += self.control.played(rule)
        self.control.heal()
        self.world.tools = self.world.toolbox()
        self.world.clock.advance(QUIET_S)
        self._rest()
        broken = self._not_as_asked()
        for row in self.world.rows(OPEN):
            owner = self._owner(row.project_id)
            self.world.do(lambda s, one=row, o=owner: services.delete_service(s, o, one.project_id, one.id, lambda _: None))
        self._rest()
        broken += [
            f"GPU {one.gpu} of {one.ref} is still held by {one.holder}" for one in self.control.ledger().uses if not one.until
        ]
        self.control.close()
        assert not broken, broken

    def _rest(self) -> None:
        """
        Everything has come to rest, with a person for what asks for one, and whatever rests was looked at once more.
        """
        for _ in range(MANY):
            self.world.settle()
            resumed = self.world.do(lambda s: s.execute(text(RESUME.format(table="services"))).rowcount)
            if not resumed and not self.world.rows(MOVING):
                break
        self.world.clock.advance(20)
        self.world.go_on(3)

    def _not_as_asked(self) -> list[str]:
        found = [f"I6 {row.id} stays {row.state}: {row.reason}" for row in self.world.rows(MOVING)]
        there = {one.service_id: one.replicas for one in self.control.ledger().services if one.ended_at is None}
        for row in self.world.rows(RESTING):
            least, most = (row.replicas, row.replicas) if row.scaling is None else (row.scaling["least"], row.scaling["most"])
            least, most = (0, 0) if row.suspended else (least, most)
            if not least <= there.get(row.id, -1) <= most:
                found.append(f"I2 {row.id} is {row.state} with {there.get(row.id)} replicas, not {least} to {most}")
        return found

    def _moves(self) -> list[Callable[[], None]]:
        trouble = [self._trouble] * 2 + [self._death]
        return [*[self._work] * 26, *[self.tenants.act] * 6, self._time, self._sweep, *trouble]

    def _trouble(self) -> None:
        """
        Something befalls calls about services from now on.
        """
        fault = self.random.choice(sorted(ON_SERVICES))
        operation = "*" if self.random.random() < 0.5 else self.random.choice(ON_SERVICES[fault].on_services)
        params = {"seconds": self.random.choice((1.0, 60.0, 600.0))} if "seconds" in ON_SERVICES[fault].params else {}
        rule = self.control.play(fault, operation, count=self.random.randint(1, 3), params=params)
        self._rules.append((fault, rule))
        self.log.append(f"fault {fault} on {operation} {params}")

    def _death(self) -> None:
        """
        A machine is dead for a while.
        """
        row = self._some(NODES)
        if row is not None:
            self.control.kill_node(row.ref, for_s=self.random.choice((5.0, 60.0, 300.0)))
            self.log.append(f"{row.ref} is dead")
