"""
One schedule: several workers as state machines, callers, time, faults and crashes, all chosen by one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from controlplane.clusters import scaling
from controlplane.clusters import service as clusters
from controlplane.jobs import service as jobs
from controlplane.kit import crashpoints
from controlplane.kit.errors import DomainError
from controlplane.kit.lifecycle import Claim, Driver, Result
from controlplane.nodes import service as nodes
from controlplane.providers.adapters.simulated.control import SimControl
from tests.factories.world import World
from workers.sweeps import reap

FAULTS = (
    "refuse_before_effect",
    "5xx_before_effect",
    "timeout_before_effect",
    "effect_then_5xx",
    "effect_then_timeout",
    "effect_then_reset",
    "late_success",
    "delay",
    "duplicate_effect",
    "stale_read",
    "flapping_404",
    "auth_401_mid_operation",
    "busy_429_with_retry_after",
    "busy_429_without",
    "ok_with_error_inside",
    "truncated_json",
    "deploy_fails",
    "wipe_fails",
    "wipe_lies",
)
OPERATIONS = (
    "*",
    "deploy",
    "release",
    "wipe",
    "observe",
    "apply_cluster",
    "observe_cluster",
    "delete_cluster",
    "submit",
    "find_job",
    "cancel",
)


JOB = {
    "nodes": 1,
    "gpus_per_node": 8,
    "tasks_per_node": 8,
    "script": "#!/bin/bash\nsrun sleep 20\n",
    "env": {},
    "time_limit_s": 3600,
    "restart": {"max_restarts": 3},
}
RESUME = """
    UPDATE {table} SET attention = '', attempts = 0, due_at = cp_clock(), deadline_at = cp_clock() + interval '4 hours'
    WHERE attention <> '' AND state NOT IN ('quarantined', 'available')
"""


class Crash(BaseException):
    """
    The process dies here.
    """


@dataclass
class Worker:
    """
    A worker process, one phase at a time; killing it loses all it holds.
    """

    number: int
    """Which one."""
    claims: dict[str, list[Claim]] = field(default_factory=dict)
    """Claimed, not stepped."""
    results: dict[str, list[Result]] = field(default_factory=dict)
    """Stepped, not applied."""

    def die(self) -> None:
        """
        Whatever it held is lost; leases lapse by themselves.
        """
        self.claims.clear()
        self.results.clear()


class Schedule:
    """
    What happens, in which order, for one seed.
    """

    def __init__(self, world: World, seed: int, *, crash_chance: float = 0.02, faults: bool = True) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.crash_chance = crash_chance
        self.faults = faults
        self.workers = [Worker(number) for number in range(3)]
        self.control = SimControl(world.region.world, now=world.clock)
        self.log: list[str] = []
        self._armed = False

    def run(self, moves: int) -> None:
        """
        So many moves, then everything is healed, deleted and settled.
        """
        take_out = crashpoints.install(self._maybe_crash)
        try:
            for _ in range(moves):
                self.random.choice(self._moves())()
        finally:
            take_out()
        self.heal()

    def heal(self) -> None:
        """
        Faults are over, crashed workers' leases lapse, everybody gives back what they hold, and all settles.
        """
        for worker in self.workers:
            worker.die()
        self.control.heal()
        self.world.clock.advance(200)
        self._calm()
        for row in self.world.rows("SELECT id, project_id FROM clusters WHERE state NOT IN ('deleting', 'deleted')"):
            self._delete(row.id, row.project_id)
        self._calm()

    def _calm(self) -> None:
        """
        All settles, and a person sees to what asks for one.
        """
        for _ in range(6):
            self.world.settle()
            if not self._see_to_what_asks() + self._reap():
                return

    def _reap(self) -> int:
        """
        What came back after it was gone is removed, some time later.
        """
        if self.world.rows("SELECT 1 FROM clusters WHERE state <> 'deleted' LIMIT 1"):
            return 0
        self.world.clock.advance(130)
        return reap(self.world.engine, self.world.tools)

    def _see_to_what_asks(self) -> int:
        return self._resume() + self._lift_holds()

    def _resume(self) -> int:
        """
        What needs attention is resumed, as an operator would; how much that was is returned.
        """
        tables = ("nodes", "clusters", "jobs")
        return sum(int(self.world.do(lambda s, name=one: s.execute(text(RESUME.format(table=name))).rowcount)) for one in tables)

    def _moves(self) -> list[Callable[[], None]]:
        work = [self._work] * 12
        people = [self._order, self._grow_or_shrink, self._remove, self._submit, self._cancel_job, self._cancel_order]
        trouble = [self._fault] if self.faults else []
        return [*work, *people, self._time, *trouble]

    def _maybe_crash(self, point: str) -> None:
        if self._armed and self.random.random() < self.crash_chance:
            raise Crash(point)

    def _work(self) -> None:
        worker = self.random.choice(self.workers)
        name = self.random.choice(list(self.world.drivers))
        driver = self.world.drivers[name]
        self._armed = True
        try:
            self._phase(worker, name, driver)
        except Crash as crash:
            self.log.append(f"worker {worker.number} died at {crash}")
            worker.die()
        finally:
            self._armed = False

    def _phase(self, worker: Worker, name: str, driver: Driver) -> None:
        if worker.results.get(name) and self.random.random() < 0.7:
            driver.apply(worker.results.pop(name))
        elif worker.claims.get(name):
            claim = worker.claims[name].pop()
            worker.results.setdefault(name, []).append(driver.step(claim, self.world.tools))
        elif self.random.random() < 0.4:
            driver.decide(10)
        else:
            worker.claims.setdefault(name, []).extend(driver.claim(self.random.randint(1, 6)))

    def _ask(self, words: str, work: Callable[[Any], Any]) -> None:
        self._armed = True
        try:
            self.world.do(work)
            self.log.append(words)
        except DomainError as error:
            self.log.append(f"{words}: {error.code}")
        except Crash as crash:
            self.log.append(f"{words}: died at {crash}")
        finally:
            self._armed = False

    def _order(self) -> None:
        sets = (clusters.SetOrder("workers", self.world.keys.instance_type, self.random.randint(1, 4)),)
        name = f"c{self.random.randint(0, 5)}"
        wanted = clusters.Order(name, "slurm", self.world.keys.site, sets, wait=self.random.random() < 0.5)
        tenant, project = self.random.choice(self.world.people)
        self._ask(f"order {name}", lambda session: clusters.order_cluster(session, tenant, project, wanted))

    def _some(self, sql: str) -> Any:
        rows = self.world.rows(sql)
        return self.random.choice(rows) if rows else None

    def _owner(self, project_id: str) -> Any:
        return next(principal for principal, project in self.world.people if project == project_id)

    def _grow_or_shrink(self) -> None:
        row = self._some("SELECT id, project_id FROM clusters WHERE state IN ('running', 'degraded') ORDER BY id")
        if row is not None:
            counts = {"workers": self.random.randint(1, 5)}
            owner = self._owner(row.project_id)
            self._ask(
                f"resize {row.id} to {counts}",
                lambda s: scaling.change_cluster(s, owner, row.project_id, row.id, lambda _: None, counts=counts),
            )

    def _delete(self, cluster_id: str, project_id: str) -> None:
        owner = self._owner(project_id)
        self._ask(f"delete {cluster_id}", lambda s: clusters.delete_cluster(s, owner, project_id, cluster_id, lambda _: None))

    def _remove(self) -> None:
        row = self._some("SELECT id, project_id FROM clusters WHERE state <> 'deleted' ORDER BY id")
        if row is not None and self.random.random() < 0.5:
            self._delete(row.id, row.project_id)

    def _cancel_order(self) -> None:
        row = self._some("SELECT id, project_id FROM clusters WHERE state NOT IN ('running', 'deleted') ORDER BY id")
        if row is not None and self.random.random() < 0.3:
            owner = self._owner(row.project_id)
            self._ask(f"cancel {row.id}", lambda s: clusters.cancel_order(s, owner, row.id))

    def _submit(self) -> None:
        row = self._some("SELECT id, project_id FROM clusters WHERE state NOT IN ('deleting', 'deleted') ORDER BY id")
        if row is not None:
            owner = self._owner(row.project_id)
            spec = {**JOB, "cluster_id": row.id}
            order = jobs.JobOrder("j", {}, row.id, 1, 8, spec)
            self._ask(f"submit to {row.id}", lambda s: jobs.create_job(s, owner, row.project_id, order))

    def _cancel_job(self) -> None:
        row = self._some("SELECT id, project_id FROM jobs ORDER BY id")
        if row is not None and self.random.random() < 0.3:
            owner = self._owner(row.project_id)
            self._ask(f"cancel {row.id}", lambda s: jobs.cancel_job(s, owner, row.project_id, row.id))

    def _time(self) -> None:
        self.world.clock.advance(self.random.choice((0.5, 2, 10, 70)))

    def _fault(self) -> None:
        if self.random.random() < 0.3:
            fault, operation = self.random.choice(FAULTS), self.random.choice(OPERATIONS)
            try:
                self.control.play(fault, operation, count=self.random.randint(1, 2))
            except ValueError:
                return
            self.log.append(f"fault {fault} on {operation}")

    def _lift_holds(self) -> int:
        """
        A person has looked at what was put aside: holds are lifted, quarantined nodes go through qualification again.
        """

        def look(session: Any) -> int:
            ids = [row.id for row in self.world.rows("SELECT id FROM nodes")]
            holds = nodes.open_holds(session, ids)
            for hold in holds:
                nodes.lift_hold(session, hold.node_id, hold.id)
            aside = self.world.rows("SELECT id FROM nodes WHERE state = 'quarantined'")
            for row in aside:
                nodes.act(session, row.id, "requalify", reason="looked at", by="test", check=lambda _: None)
            return len(holds) + len(aside)

        return int(self.world.do(look))
