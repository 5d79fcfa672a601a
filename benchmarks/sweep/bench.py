"""
What looking costs: sweeps that find nothing, a pass over every node, and memory at rest.

Run from the repository root: `python benchmarks/sweep/bench.py`. Prints one JSON line per question; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from benchmarks.stage import (
    MASTER_KEY,
    Stage,
    analyze,
    circumstances,
    cpu_s,
    postgres_cpu_s,
    report,
    resident_mib,
    staged,
    started,
    wait_for,
)
from controlplane import bootstrap
from controlplane.clusters.models import ClusterRow
from controlplane.kit.clock import utc_now
from controlplane.kit.db import EVERYTHING, make_engine, raise_wall
from controlplane.kit.lifecycle import Driver
from controlplane.kit.secrets import Sealer
from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.local.commands import api_command, worker_command
from controlplane.providers.toolbox import Toolbox
from controlplane.settings import Settings

ROWS = 10_000
MANY_ROWS = 100_000
ROUNDS = 15
BATCH = 100
SINGLE = 200
REST_S = 8.0
SWEEP_GOAL_MS = 50.0
PASS_GOAL_S = 30.0
GROWTH_GOAL_MIB = 50.0

LATER = """
INSERT INTO clusters (id, tenant_id, reseller_id, project_id, name, kind, site, spec, state, due_at)
SELECT 'clu_later' || lpad(i::text, 7, '0'), t.id, t.reseller_id, CAST(:project AS text), 'later-' || i, 'slurm', CAST(:site AS text),
  '{}', CASE WHEN i % 2 = 0 THEN 'running' ELSE 'pending' END, cp_clock() + interval '1 hour'
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) i, tenants t WHERE t.id = :tenant
"""


def add_later(stage: Stage, first: int, last: int) -> None:
    """
    So many more clusters are due in an hour: half of them to be observed, half to be decided on.
    """
    keys = stage.keys
    stage.run(LATER, project=keys.project_id, site=keys.site, tenant=keys.tenant_id, first=first, last=last)
    analyze(stage)


def median_ms(work: Callable[[], object]) -> float:
    """
    The median time of a call.
    """
    times = []
    for _ in range(ROUNDS):
        began_at = time.perf_counter()
        work()
        times.append((time.perf_counter() - began_at) * 1000)
    return round(statistics.median(times), 2)


def sweep(stage: Stage, engine: Engine, driver: Driver) -> bool:
    """
    A look of the real driver at rows that are due later, against a loop that reads the rows and compares them itself.
    """

    def look() -> None:
        assert driver.decide(BATCH) + len(driver.claim(BATCH)) == 0

    def naive() -> None:
        with Session(engine) as session:
            raise_wall(session, EVERYTHING)
            now = utc_now()
            rows = session.scalars(select(ClusterRow).where(ClusterRow.due_at.is_not(None))).all()
            assert not [row for row in rows if row.due_at is not None and row.due_at <= now]

    mine, next_due, theirs = median_ms(look), median_ms(driver.next_due_in_s), median_ms(naive)
    result = {
        "question": "a sweep with nothing due",
        "rows": stage.rows("SELECT count(*) FROM clusters WHERE due_at IS NOT NULL")[0][0],
        "claim_and_decide_ms": mine,
        "next_due_ms": next_due,
        "naive_ms": theirs,
        "ratio_to_naive": round(theirs / mine, 1),
        "goal_ms": SWEEP_GOAL_MS,
        "within_goal": mine < SWEEP_GOAL_MS,
    }
    report(result | circumstances())
    return mine < SWEEP_GOAL_MS


def drive(driver: Driver, tools: Toolbox, count: int, batch: int) -> int:
    """
    At least so many rows have been driven one step; their number is returned.
    """
    done = 0
    while done < count:
        driven = driver.apply([driver.step(claim, tools) for claim in driver.claim(batch)])
        assert driven, "nothing is due"
        done += driven
    return done


def whole_pass(stage: Stage, driver: Driver, tools: Toolbox) -> bool:
    """
    Every node of the fleet driven one step, against one row to a claim.
    """

    def used() -> float:
        return time.process_time() + postgres_cpu_s(stage.postmaster)

    early = used()
    single = drive(driver, tools, SINGLE, 1)
    single_s = (used() - early) / single
    early, began_at = used(), time.perf_counter()
    count = drive(driver, tools, ROWS - single, BATCH) + single
    wall_s, spent_s = (time.perf_counter() - began_at) * ROWS / count, (used() - early) * ROWS / count
    left = stage.rows("SELECT state, count(*) FROM nodes GROUP BY 1")
    assert {row[0] for row in left} == {"inspecting"}, left
    result = {
        "question": "a pass that drives every node one step",
        "rows": count,
        "wall_s": round(wall_s, 2),
        "cpu_s": round(spent_s, 2),
        "one_row_a_claim_cpu_s": round(single_s * ROWS, 2),
        "ratio_to_one_row_a_claim": round(single_s * ROWS / spent_s, 1),
        "goal_s": PASS_GOAL_S,
        "within_goal": wall_s < PASS_GOAL_S,
    }
    report(result | circumstances())
    return wall_s < PASS_GOAL_S


def at_rest(stage: Stage) -> bool:
    """
    Memory of real processes that have nothing to do, and of a worker that has 100,000 rows to look at in an hour.
    """
    with ExitStack() as stack:
        environment, port = stage.environment(), free_port()
        api = stack.enter_context(started("api", api_command(port=port), environment, stage.folder))
        worker = stack.enter_context(started("worker", worker_command(), environment, stage.folder))
        wait_for(f"http://{LOOPBACK}:{port}/readyz", api, stage.folder / "api.log")
        time.sleep(REST_S)
        before, busy_s = resident_mib(worker.pid), cpu_s(worker.pid)
        time.sleep(REST_S)
        idle = (cpu_s(worker.pid) - busy_s) / REST_S
        add_later(stage, ROWS + 1, MANY_ROWS)
        busy_s = cpu_s(worker.pid)
        time.sleep(REST_S * 2)
        growth = resident_mib(worker.pid) - before
        result = {
            "question": "memory at rest",
            "api_mib": round(resident_mib(api.pid), 1),
            "worker_mib": round(before, 1),
            "worker_cores_idle": round(idle, 4),
            "rows_due_in_an_hour": MANY_ROWS,
            "worker_growth_mib": round(growth, 1),
            "worker_cores_then": round((cpu_s(worker.pid) - busy_s) / REST_S / 2, 4),
            "goal_mib": GROWTH_GOAL_MIB,
            "within_goal": growth < GROWTH_GOAL_MIB,
        }
        report(result | circumstances())
        return growth < GROWTH_GOAL_MIB


def main() -> int:
    """
    All questions answered; 1 where a goal is missed.
    """
    with staged() as stage:
        settings = Settings(database_url=stage.app_url, master_key=MASTER_KEY, data_dir=stage.folder)  # type: ignore[arg-type]
        engine = make_engine(stage.app_url, pool_size=2)
        drivers = bootstrap.drivers(engine, settings)
        analyze(stage)
        good = [whole_pass(stage, drivers["node"], bootstrap.toolbox(settings, Sealer.from_base64(MASTER_KEY)))]
        stage.run("UPDATE nodes SET due_at = NULL")
        add_later(stage, 1, ROWS)
        good += [sweep(stage, engine, drivers["cluster"]), at_rest(stage)]
        engine.dispose()
        return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
