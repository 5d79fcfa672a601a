"""
One schedule: several workers as state machines, callers, time, faults and crashes, all chosen by one seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from controlplane.clusters import replacing, scaling
from controlplane.clusters import service as clusters
from controlplane.jobs import service as jobs
from controlplane.jobs.ordering import JobOrder
from controlplane.kit import crashpoints
from controlplane.kit.errors import DomainError
from controlplane.kit.lifecycle import Claim, Result
from controlplane.kit.orphans import GAP_S, OLD_ENOUGH_S
from controlplane.nodes import service as nodes
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.faults import PRESETS, SERVICE_PRESETS
from controlplane.providers.errors import ProviderError
from controlplane.providers.toolbox import Toolbox
from tests.factories.world import World
from tests.schedules.tenants import Tenants
from workers.sweeps import Suspects, check_providers, mend, reap

KNOWN = {**PRESETS, **SERVICE_PRESETS}
FAULTS = tuple(KNOWN)
"""Whatever the simulator can play."""
LIFE = tuple(name for name, preset in PRESETS.items() if preset.when == "world" and name != "delay")
"""What goes wrong in the world although every call succeeds."""
OF_JOBS = tuple(name for name in LIFE if PRESETS[name].operations == ("submit",))
"""Of these, what happens to jobs."""
END = tuple(name for name in LIFE if {"release", "wipe", "qualify", "inspect"} & set(PRESETS[name].operations))
"""Of these, what goes wrong when machines are given back."""
DELAYS_S = (1.0, 60.0, 600.0)
CALM_ROUNDS = 8
FAULT_CHANCE = 0.7
ANYWHERE_CHANCE = 0.6
WORK_SHARE = 26
WORK_OFF_CHANCE = 0.8
APPLY_CHANCE = 0.5
SKEWS_S = (0.0, 3600.0, -3600.0)
"""What the clocks of the workers' machines show beside the true time."""
QUIET_S = 700.0
"""After this nothing that was sent before is still under way."""

JOB = {
    "nodes": 1,
    "gpus_per_node": 8,
    "tasks_per_node": 8,
    "script": "#!/bin/bash\nsleep 20\n",
    "env": {},
    "time_limit_s": 3600,
    "restart": {"max_restarts": 3},
}
RESTLESS = """
    SELECT id, state, step, reason, detail, attention, due_at IS NULL AS at_rest,
      (SELECT jsonb_agg(h.after || ': ' || h.reason ORDER BY h.at DESC) FROM (
        SELECT * FROM state_history h WHERE h.resource_id = nodes.id ORDER BY at DESC LIMIT 12) h) AS history
    FROM nodes WHERE state <> 'available'
"""
OUTLIVING = """
    SELECT 1 FROM services s JOIN clusters c ON c.id = s.cluster_id WHERE s.state IN ('running', 'degraded') AND c.state = 'deleted'
"""
SERVICE_LOOK_S = 20.0
RESUME = """
    UPDATE {table} SET attention = '', attempts = 0, due_at = cp_clock(), deadline_at = cp_clock() + interval '4 hours'
    WHERE attention <> '' AND state NOT IN ('quarantined', 'available')
"""


@dataclass(frozen=True, slots=True)
class Size:
    """
    How much happens in one schedule.
    """

    moves: int
    """Moves under faults and crashes."""
    wind_down_chance: float
    """Of a whole life of everything under faults after them."""
    live_on_chance: float
    """Of going on for a while once healed, before all is deleted."""


FULL = Size(45, 0.6, 0.5)
BRIEF = Size(20, 0.1, 0.1)
"""Most of what schedules cost is life after the moves; where there are many seeds, a few of them have it."""


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
    tools: Toolbox
    """How its steps reach providers, by its own idea of the time."""
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

    def __init__(self, world: World, seed: int, size: Size = FULL, *, crash_chance: float = 0.02, faults: bool = True) -> None:
        self.world = world
        self.size = size
        self.random = random.Random(seed)
        self.crash_chance = crash_chance
        self.faults = faults
        self.workers = [Worker(number, world.toolbox(skew_s)) for number, skew_s in enumerate(SKEWS_S)]
        world.tools = world.toolbox()
        self.control = SimControl(world.region.world, now=world.clock)
        self.tenants = Tenants(self.random, self._ask, self._owner, self._some)
        self.suspects: Suspects = {}
        self.log: list[str] = []
        self.passes: Counter[str] = Counter()
        """How often each crash point was passed while something could die there."""
        self.crashes: Counter[str] = Counter()
        """How often somebody died there."""
        self.played: Counter[str] = Counter()
        """How often each fault was really played."""
        self._rules: list[tuple[str, int]] = []
        self._armed = False

    def run(self) -> None:
        """
        All moves, then everything is healed, deleted and settled.
        """
        take_out = crashpoints.install(self._maybe_crash)
        try:
            for first in (self._order, self._fault, self._fault):
                first()
            for _ in range(self.size.moves):
                self.random.choice(self._moves())()
        finally:
            take_out()
        if self.random.random() < self.size.wind_down_chance:
            self._wind_down()
        self.heal()

    def _wind_down(self) -> None:
        """
        The whole life of everything under faults, without crashes: jobs run, all is deleted and wiped, what is put aside is looked after.
        """
        for row in self.world.rows("SELECT id, project_id FROM clusters WHERE state NOT IN ('deleting', 'deleted') ORDER BY id"):
            self._submit_to(row.id, row.project_id)
        for _ in range(3):
            self.tenants.act()
        for some in (LIFE, OF_JOBS):
            self._fault_in(some)
        self.world.go_on(30)
        self._delete_all()
        self._fault_in(END)
        self.world.go_on(30)
        if self._lift_holds():
            self.world.go_on(20)

    def heal(self) -> None:
        """
        Faults are over, crashed workers' leases lapse, everybody gives back what they hold, and all settles.
        """
        for worker in self.workers:
            worker.die()
        for fault, rule in self._rules:
            self.played[fault] += self.control.played(rule)
        self.control.heal()
        self.world.tools = self.world.toolbox()  # its circuits would stay open for seconds of real time
        self._cure()
        self.world.clock.advance(QUIET_S)
        if self.random.random() < self.size.live_on_chance:
            self.world.go_on(60)
        self._delete_all()
        self._calm()
        self.control.close()

    def _delete_all(self) -> None:
        for row in self.world.rows("SELECT id, project_id FROM clusters WHERE state NOT IN ('deleting', 'deleted') ORDER BY id"):
            self._delete(row.id, row.project_id)

    def _calm(self) -> None:
        """
        All settles, and a person sees to what asks for one.
        """
        for _ in range(CALM_ROUNDS):
            self.world.settle()
            if not self._see_to_what_asks() + self._reap() + self._outlive():
                return
        raise AssertionError(f"it asks for a person again and again: {self.world.rows(RESTLESS)}")

    def _reap(self) -> int:
        """
        What came back after it was gone is removed, some time later.
        """
        if self.world.rows("SELECT 1 FROM clusters WHERE state <> 'deleted' LIMIT 1"):
            return 0
        self.world.clock.advance(OLD_ENOUGH_S + 1)
        reap(self.world.engine, self.world.tools, self.suspects)
        self.world.clock.advance(GAP_S)
        return reap(self.world.engine, self.world.tools, self.suspects)

    def _outlive(self) -> int:
        """
        Services whose clusters are gone see that at their next look, which nothing else waits for; how many that are is returned.
        """
        left = len(self.world.rows(OUTLIVING))
        if left:
            self.world.clock.advance(SERVICE_LOOK_S)
        return left

    def _see_to_what_asks(self) -> int:
        return self._resume() + self._lift_holds()

    def _resume(self) -> int:
        """
        What needs attention is resumed, as an operator would; how much that was is returned.
        """
        tables = ("nodes", "clusters", "jobs", "services")
        return sum(int(self.world.do(lambda s, name=one: s.execute(text(RESUME.format(table=name))).rowcount)) for one in tables)

    def _moves(self) -> list[Callable[[], None]]:
        people = [self._order] * 2 + [self._grow_or_shrink, self._remove, self._submit, self._cancel_job, self._cancel_order]
        people += [self._replace, self._report, self.tenants.act]
        trouble = [self._fault] * 2 if self.faults else []
        return [*[self._work] * WORK_SHARE, *people, self._time, self._sweep, self._mend, *trouble]

    def _replace(self) -> None:
        """
        An owner wants another node in place of one of its own.
        """
        row = self._some("SELECT cluster_id, project_id, instance_id FROM allocations WHERE state = 'active' ORDER BY id")
        if row is not None and self.random.random() < 0.5:
            owner, given = self._owner(row.project_id), (row.project_id, row.cluster_id, row.instance_id)
            self._ask(f"replace {row.instance_id}", lambda s: replacing.replace_instance(s, owner, *given, lambda _: None))

    def _report(self) -> None:
        """
        Somebody says how a node is.
        """
        row = self._some("SELECT id FROM nodes ORDER BY id")
        said = nodes.Report(row.id, "agent", "xid", self.random.choice(("ok", "block_allocation", "drain", "quarantine")))
        self._ask(f"{row.id} is {said.health}", lambda s: nodes.report(s, [said]))

    def _mend(self) -> None:
        """
        A worker begins to replace sick nodes, a minute after they fell ill or not yet.
        """
        self.world.clock.advance(self.random.choice((0.5, 61)))
        worker = self.random.choice(self.workers)
        self._armed = True
        try:
            mend(self.world.engine)
        except Crash as crash:
            self.log.append(f"worker {worker.number} died mending at {crash}")
            worker.die()
        finally:
            self._armed = False

    def _cure(self) -> None:
        """
        All nodes are well and nothing is frozen.
        """
        bad = self.world.rows("SELECT node_id, source, check_name FROM health_reports WHERE class <> 'ok'")
        said = [nodes.Report(row.node_id, row.source, row.check_name, "ok") for row in bad]
        self.world.do(lambda s: nodes.report(s, said))
        for row in self.world.rows("SELECT id FROM automation_freezes WHERE lifted_at IS NULL"):
            self.world.do(lambda s, one=row.id: nodes.lift_freeze(s, one, by="test"))

    def _sweep(self) -> None:
        """
        A worker asks providers how they are and what they have.
        """
        worker = self.random.choice(self.workers)
        self._armed = True
        try:
            check_providers(self.world.engine, worker.tools)
            reap(self.world.engine, worker.tools, self.suspects)
        except ProviderError as error:
            self.log.append(f"sweep: {error.code}")
        except Crash as crash:
            self.log.append(f"worker {worker.number} died sweeping at {crash}")
            worker.die()
        finally:
            self._armed = False

    def _maybe_crash(self, point: str) -> None:
        if not self._armed:
            return
        self.passes[point] += 1
        if self.random.random() < self.crash_chance:
            self.crashes[point] += 1
            raise Crash(point)

    def _work(self) -> None:
        """
        One worker takes one phase of something there is to do; when all rows only wait, time goes on to the next.
        """
        worker = self.random.choice(self.workers)
        waiting = self.world.waiting()
        due = sorted((row.kind, row.decided) for row in waiting if row.pause_s <= 0)
        held = sorted({name for pile in (worker.claims, worker.results) for name, some in pile.items() if some})
        if not due and not held:
            pauses = [row.pause_s for row in waiting]
            if pauses:
                self.world.clock.advance(max(0.001, min(pauses)))
            else:
                self._order()
            return
        self._armed = True
        try:
            if held and (not due or self.random.random() < WORK_OFF_CHANCE):
                self._work_off(worker, self.random.choice(held))
            else:
                self._look(worker, *self.random.choice(due))
        except Crash as crash:
            self.log.append(f"worker {worker.number} died at {crash}")
            worker.die()
        finally:
            self._armed = False

    def _work_off(self, worker: Worker, name: str) -> None:
        driver = self.world.drivers[name]
        if worker.results.get(name) and (not worker.claims.get(name) or self.random.random() < APPLY_CHANCE):
            driver.apply(worker.results.pop(name))
        elif worker.claims.get(name):
            claim = worker.claims[name].pop()
            worker.results.setdefault(name, []).append(driver.step(claim, worker.tools))

    def _look(self, worker: Worker, name: str, decided: bool) -> None:  # noqa: FBT001 - as the world tells it
        driver = self.world.drivers[name]
        if decided:
            driver.decide(10)
        else:
            worker.claims.setdefault(name, []).extend(driver.claim(self.random.randint(1, 6)))

    def _ask(self, words: str, work: Callable[[Any], Any]) -> None:
        self._armed = True
        try:
            self._request(work)
            self.log.append(words)
        except DomainError as error:
            self.log.append(f"{words}: {error.code}")
        except Crash as crash:
            self.log.append(f"{words}: died at {crash}")
        finally:
            self._armed = False

    def _request(self, work: Callable[[Any], Any]) -> None:
        """
        What the edge does around a request, without HTTP: one transaction, with the same places to die.
        """

        def all_of_it(session: Any) -> None:
            work(session)
            crashpoints.reach("request.before_commit")

        self.world.do(all_of_it)
        crashpoints.reach("request.after_commit")

    def _order(self) -> None:
        sets = (clusters.SetOrder("workers", self.world.keys.instance_type, self.random.randint(1, 4)),)
        name = f"c{self.random.randint(0, 5)}"
        kind = self.random.choice(("slurm", "slurm", "kubernetes"))
        wanted = clusters.Order(name, kind, self.world.keys.site, sets, wait=self.random.random() < 0.5)
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
            self._submit_to(row.id, row.project_id)

    def _submit_to(self, cluster_id: str, project_id: str) -> None:
        owner = self._owner(project_id)
        order = JobOrder("j", {}, cluster_id, 1, 8, {**JOB, "cluster_id": cluster_id})
        self._ask(f"submit to {cluster_id}", lambda s: jobs.create_job(s, owner, project_id, order))

    def _cancel_job(self) -> None:
        row = self._some("SELECT id, project_id FROM jobs ORDER BY id")
        if row is not None and self.random.random() < 0.3:
            owner = self._owner(row.project_id)
            self._ask(f"cancel {row.id}", lambda s: jobs.cancel_job(s, owner, row.project_id, row.id))

    def _time(self) -> None:
        self.world.clock.advance(self.random.choice((0.5, 2, 10, 70)))

    def _fault(self) -> None:
        if self.random.random() < FAULT_CHANCE:
            self._fault_in(self.random.choice((FAULTS, LIFE)))

    def _fault_in(self, faults: Sequence[str]) -> None:
        fault = self.random.choice(faults)
        preset = KNOWN[fault]
        operation = "*" if self.random.random() < ANYWHERE_CHANCE else self.random.choice((*preset.operations, *preset.on_services))
        params = {"seconds": self.random.choice(DELAYS_S)} if "seconds" in preset.params else {}
        rule = self.control.play(
            fault, operation, count=self.random.randint(1, 3), after=self.random.choice((0, 0, 2)), params=params
        )
        self._rules.append((fault, rule))
        self.log.append(f"fault {fault} on {operation} {params}")

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
