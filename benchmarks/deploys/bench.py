"""
A thousand bare machines deployed at once by two workers, and what we add to the time that one machine takes by itself.

Run from the repository root: `python benchmarks/deploys/bench.py`. Prints one JSON line per question; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from benchmarks.deploys.rack import Rack, rack_tools, url_of
from benchmarks.stage import (
    MASTER_KEY,
    Stage,
    circumstances,
    cpu_s,
    free_nodes,
    postgres_cpu_s,
    report,
    resident_mib,
    staged,
    started,
)
from controlplane import bootstrap, seeding
from controlplane.boots import reporting
from controlplane.boots.states import CLOUD_INIT_STAGES, Report
from controlplane.clusters import service as clusters
from controlplane.kit.access import Principal
from controlplane.kit.clock import utc_now
from controlplane.kit.db import EVERYTHING, in_transaction, make_engine
from controlplane.kit.ids import new_id
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.registering import NewController
from controlplane.settings import Settings

SEED = 20260131
MACHINES = 1000
EACH = 10
"""Machines in one order."""
WORKERS = 2
CALL_S = 0.05
CALLS = 5
"""Calls of the controller from power cut to power on, one after the other, and the ejection afterwards."""
BOOT_S = (30.0, 90.0)
"""From power on to the machine's last report: drawn evenly. Machines take minutes; what we do is the same, in less of the bench's time."""
ALONE = 5
ALONE_BOOT_S = 60.0
SINGLE = 20
WARM_S = 10.0
"""Until the workers have started; a signal before would end them."""
PATIENCE_S = 900.0
ADDED_GOAL_S = 2.0
ADDED_GOAL_SHARE = 0.05
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ada"
GOOD = Report(final=True, stages=dict.fromkeys(CLOUD_INIT_STAGES, ""), outcomes=())
SPEAKERS = """
SELECT b.id, b.facts->>'instance_id' AS instance, n.ref FROM boots b JOIN nodes n ON n.id = b.node_id
WHERE b.purpose = 'deploy' AND b.state IN ('made', 'fetched', 'reporting') AND n.ref LIKE 'bare-%'
"""


@dataclass
class Fleet:
    """
    The machines, who orders them, and how long each takes.
    """

    stage: Stage
    """Database and processes."""
    engine: Engine
    """What the machines' reports go through."""
    rack: Rack
    """The machines."""
    owner: Principal
    """The tenant's owner."""
    boot_s: dict[int, float]
    """How long each machine takes from power to its report."""
    workers: list[int] = field(default_factory=list)
    """Processes that are given hints, as the API gives them: after an order and after a report."""

    def hint(self) -> None:
        """
        Workers look at once.
        """
        for pid in self.workers:
            os.kill(pid, signal.SIGUSR1)

    def order(self, name: str, count: int) -> None:
        """
        A cluster of so many machines is ordered.
        """
        keys = self.stage.keys
        sets = (clusters.SetOrder("workers", keys.instance_type, count),)
        wanted = clusters.Order(name, "baremetal", keys.site, sets, wait=True, login=clusters.Login((KEY,), ""))
        sealer = Sealer.from_base64(MASTER_KEY)

        def work(session: Session) -> None:
            clusters.order_cluster(session, self.owner, keys.project_id, wanted, sealer)

        in_transaction(self.engine, EVERYTHING, work)
        self.hint()

    def speak(self) -> int:
        """
        Machines that have been on for as long as they take have phoned home and reported; how many did.
        """
        now, spoke = time.time(), 0
        for row in self.stage.rows(SPEAKERS):
            number = int(row.ref.removeprefix("bare-"))
            since = self.rack.boots_since(number)
            if not since or now - since < self.boot_s[number]:
                continue
            in_transaction(self.engine, EVERYTHING, lambda session, one=row: _speak(session, one))  # type: ignore[misc]
            spoke += 1
        if spoke:
            self.hint()
        return spoke

    def active(self) -> int:
        """
        How many machines are their tenants'.
        """
        return int(self.stage.rows("SELECT count(*) FROM nodes WHERE state = 'active' AND ref LIKE 'bare-%'")[0][0])


def _speak(session: Session, row: Any) -> None:
    reporting.phone_home(session, row.id, {"instance_id": row.instance})
    reporting.take_report(session, row.id, row.id, GOOD)


def enrolled(stage: Stage, engine: Engine, rack: Rack, count: int) -> Fleet:
    """
    So many bare machines are available, and no others.
    """
    keys = stage.keys
    provider_id = new_id("prv")

    def work(session: Session) -> None:
        new = nodes.NewProvider(
            name="bare",
            adapter="redfish",
            site=keys.site,
            config={},
            sealed=None,
            capabilities={"products": ["baremetal"], "scrub": True},
            shared=True,
            provider_id=provider_id,
        )
        nodes.register_provider(session, new)
        rows = [
            nodes.NewNode(
                ref=f"bare-{number}",
                block=f"b{number // 256}",
                leaf=f"l{number // 32}",
                rack=f"r{number // 8}",
                nvlink_domain=None,
                instance_type=keys.instance_type,
                gpus=8,
                controller=NewController(url_of(number), password="x"),
                address=None,
                ports=(),
            )
            for number in range(count)
        ]
        for place in range(0, count, 100):
            nodes.enroll_from(session, provider_id, rows[place : place + 100], Sealer.from_base64(MASTER_KEY))

    in_transaction(engine, EVERYTHING, work)
    stage.run("UPDATE providers SET state = 'disabled' WHERE adapter = 'simulated'")
    free_nodes(stage)
    known = stage.rows("SELECT t.reseller_id, k.principal_id, k.id FROM tenants t JOIN api_keys k ON k.tenant_id = t.id LIMIT 1")[0]
    owner = seeding.tenant_principal(keys.tenant_id, *known)
    return Fleet(stage, engine, rack, owner, dict.fromkeys(range(count), 0.0))


def one_by_one(fleet: Fleet, settings: Settings, rack: Rack) -> float:
    """
    Processor seconds a deploy of the baseline, this process's and the database's: one row to a claim, one order at a time.
    """
    drivers = bootstrap.drivers(fleet.engine, settings)
    tools = rack_tools(rack, now=utc_now)
    before = time.process_time() + postgres_cpu_s(fleet.stage.postmaster)
    for number in range(SINGLE):
        fleet.order(f"single-{number}", 1)
        while fleet.active() <= number:
            for one in drivers.values():
                one.decide(1)
                one.apply([one.step(claim, tools) for claim in one.claim(1)])
            fleet.speak()
    return (time.process_time() + postgres_cpu_s(fleet.stage.postmaster) - before) / SINGLE


def alone(fleet: Fleet, done: int) -> dict[str, Any]:
    """
    From the order to the active machine, less what the machine takes by itself: its boot, and its controller's answers.
    """
    own_s = ALONE_BOOT_S + CALLS * CALL_S
    fleet.boot_s = dict.fromkeys(fleet.boot_s, ALONE_BOOT_S)
    began_at = time.time()
    fleet.order("alone", ALONE)
    while fleet.active() < done + ALONE:
        fleet.speak()
        time.sleep(0.05)
        assert time.time() - began_at < PATIENCE_S
    rows = _became_active(fleet, began_at)
    added = [round(row.active_s - own_s, 2) for row in rows]
    share = statistics.median(added) / own_s
    lit = [fleet.rack.on_since(int(row.ref.removeprefix("bare-"))) - began_at for row in rows]
    return {
        "question": "what we add to a deploy",
        "machines": ALONE,
        "own_s": own_s,
        "added_s": added,
        "median_added_s": statistics.median(added),
        "share": round(share, 3),
        "of_it_before_power_on_s": round(statistics.median(lit) - CALLS * CALL_S, 2),
        "of_it_after_the_report_s": round(statistics.median(row.report_s for row in rows), 2),
        "goal": f"< {ADDED_GOAL_S:g} s and < {ADDED_GOAL_SHARE:.0%}",
        "within_goal": statistics.median(added) < ADDED_GOAL_S and share < ADDED_GOAL_SHARE,
    }


def _became_active(fleet: Fleet, since: float) -> list[Any]:
    """
    (ref, active_s, report_s) of the machines that became active since: after so many seconds, and so long after their report.
    """
    return fleet.stage.rows(
        "SELECT n.ref, extract(epoch FROM n.state_since)::float8 - :since AS active_s,"
        " extract(epoch FROM n.state_since - b.ready_at)::float8 AS report_s FROM nodes n JOIN boots b ON b.id = n.boot_id"
        " WHERE n.state = 'active' AND n.state_since > to_timestamp(:since)",
        since=since,
    )


def all_at_once(fleet: Fleet, done: int) -> dict[str, Any]:
    """
    The figures of the thousand.
    """
    draw = random.Random(SEED)
    fleet.boot_s = {number: draw.uniform(*BOOT_S) for number in fleet.boot_s}
    count = MACHINES // EACH
    before = sum(cpu_s(pid) for pid in fleet.workers), postgres_cpu_s(fleet.stage.postmaster), time.process_time()
    began_at, most, connections = time.time(), 0.0, 0
    for number in range(count):
        fleet.order(f"many-{number}", EACH)
    while fleet.active() < done + MACHINES:
        fleet.speak()
        most = max(most, *(resident_mib(pid) for pid in fleet.workers))
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'controlplane-worker'"
        connections = max(connections, fleet.stage.rows(asked)[0][0])
        time.sleep(0.5)
        if time.time() - began_at > PATIENCE_S:
            raise AssertionError(fleet.stage.rows("SELECT state, step, reason, count(*) FROM nodes GROUP BY 1, 2, 3"))
    after = sum(cpu_s(pid) for pid in fleet.workers), postgres_cpu_s(fleet.stage.postmaster), time.process_time()
    rows = _became_active(fleet, began_at)
    lit = sorted(fleet.rack.on_since(int(row.ref.removeprefix("bare-"))) - began_at for row in rows)
    used = [round(late - early, 2) for early, late in zip(before, after, strict=True)]
    return {
        "question": "deploys in flight with two workers",
        "machines": len(rows),
        "wall_s": round(max(row.active_s for row in rows), 1),
        "own_longest_s": round(max(fleet.boot_s.values()) + CALLS * CALL_S, 1),
        "power_on_after_s": {"median": round(statistics.median(lit), 1), "last": round(lit[-1], 1)},
        "active_after_report_s": {
            "median": round(statistics.median(row.report_s for row in rows), 2),
            "longest": round(max(row.report_s for row in rows), 2),
        },
        "cpu_s": dict(zip(("workers", "postgres", "bench_and_reports"), used, strict=True)),
        "ms_a_deploy": round((used[0] + used[1]) * 1000 / MACHINES, 1),
        "worker_mib_at_most": round(most, 1),
        "worker_connections_at_most": connections,
        "failed": fleet.stage.rows("SELECT count(*) FROM node_holds")[0][0],
    }


def main() -> int:
    """
    All questions answered; 1 where a goal is missed.
    """
    with staged(fleet="demo") as stage, ExitStack() as stack:
        path, total = stage.folder / "rack", MACHINES + ALONE + SINGLE
        Rack.make(path, total)
        engine = make_engine(stage.app_url, pool_size=2)
        fleet = enrolled(stage, engine, Rack(path, call_s=CALL_S), total)
        settings = Settings(database_url=stage.app_url, master_key=MASTER_KEY, data_dir=stage.folder)  # type: ignore[arg-type]
        single = one_by_one(fleet, settings, Rack(path, call_s=0.0))
        environment = stage.environment() | {"PYTHONPATH": "."}
        command = [sys.executable, "benchmarks/deploys/worker.py", str(path), str(CALL_S)]
        names = [f"worker-{number}" for number in range(WORKERS)]
        fleet.workers = [stack.enter_context(started(name, command, environment, stage.folder)).pid for name in names]
        time.sleep(WARM_S)
        one = alone(fleet, SINGLE)
        report(one | circumstances())
        many = all_at_once(fleet, SINGLE + ALONE)
        many |= {
            "one_by_one_ms": round(single * 1000, 1),
            "ratio_to_one_by_one": round(single * 1000 / many["ms_a_deploy"], 2),
            "within_goal": many["machines"] == MACHINES and not many["failed"],
        }
        report(many | circumstances(SEED))
        engine.dispose()
        return 0 if one["within_goal"] and many["within_goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
