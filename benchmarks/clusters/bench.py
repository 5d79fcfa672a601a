"""
How many clusters a second go from POST to running while the simulator's steps take no time.

Run from the repository root: `python benchmarks/clusters/bench.py`. Prints one JSON line; exit code 1 where the goal is missed.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import ExitStack

from sqlalchemy.orm import Session

from benchmarks.stage import (
    MASTER_KEY,
    Stage,
    ask_all,
    circumstances,
    cpu_s,
    free_nodes,
    postgres_cpu_s,
    report,
    request,
    resident_mib,
    staged,
    started,
    wait_for,
)
from controlplane import bootstrap, seeding
from controlplane.clusters import service as clusters
from controlplane.kit.db import EVERYTHING, in_transaction, make_engine
from controlplane.kit.secrets import Sealer
from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.local.commands import api_command, worker_command
from controlplane.settings import Settings

SEED = 20260131
CLUSTERS = 200
SIZES = (1, 1, 1, 2, 4)
SINGLE = 12
WORKERS = 2
CORES = 2
GOAL_PER_S = 20.0
PATIENCE_S = 240.0
COUNT = "SELECT count(*) FILTER (WHERE state = 'running'), count(*) FILTER (WHERE state IN ('failed')) FROM clusters"


def orders(stage: Stage, count: int, mark: str, random_: random.Random) -> list[bytes]:
    """
    Orders of 1 to 4 nodes.
    """
    sent = []
    for number in range(count):
        sets = [{"name": "workers", "instance_type": stage.keys.instance_type, "count": random_.choice(SIZES)}]
        body = {"name": f"{mark}-{number}", "spec": {"kind": "slurm", "site": stage.keys.site, "node_sets": sets}}
        path = f"/v1/projects/{stage.keys.project_id}/clusters"
        sent.append(request("POST", path, key=stage.keys.tenant_key, body=body, Idempotency_Key=f"{mark}-{number}"))
    return sent


def wait_running(stage: Stage, count: int) -> None:
    """
    So many clusters run. Raises AssertionError when that takes too long or one failed.
    """
    end_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_at:
        running, failed = stage.rows(COUNT)[0]
        assert not failed, f"{failed} clusters failed"
        if running >= count:
            return
        time.sleep(0.1)
    raise AssertionError(
        f"not running in time: {stage.rows('SELECT state, step, reason, count(*) FROM clusters GROUP BY 1, 2, 3')}"
    )


def one_by_one(stage: Stage, settings: Settings, count: int) -> float:
    """
    Processor seconds per cluster of the baseline: the same engine, one row to a claim and one order at a time, as a task queue with a
    task per resource would do it. This process's and Postgres's.
    """
    engine = make_engine(stage.app_url, pool_size=2)
    drivers = bootstrap.drivers(engine, settings)
    tools = bootstrap.toolbox(settings, Sealer.from_base64(MASTER_KEY))
    owner = stage.rows("SELECT t.reseller_id, k.principal_id, k.id FROM tenants t JOIN api_keys k ON k.tenant_id = t.id LIMIT 1")[0]
    principal = seeding.tenant_principal(stage.keys.tenant_id, *owner)
    sets = (clusters.SetOrder("workers", stage.keys.instance_type, 1),)

    def order(session: Session, number: int) -> None:
        named = clusters.Order(f"single-{number}", "slurm", stage.keys.site, sets)
        clusters.order_cluster(session, principal, stage.keys.project_id, named)

    before = time.process_time() + postgres_cpu_s(stage.postmaster)
    for number in range(count):
        in_transaction(engine, EVERYTHING, lambda session, number=number: order(session, number))  # type: ignore[misc]
        busy = 1
        while busy:
            busy = sum(one.decide(1) for one in drivers.values())
            for one in drivers.values():
                busy += one.apply([one.step(claim, tools) for claim in one.claim(1)])
    spent = time.process_time() + postgres_cpu_s(stage.postmaster) - before
    running = stage.rows(COUNT)[0][0]
    assert running == count, f"{running} of {count} run"
    engine.dispose()
    return spent / count


def main() -> int:
    """
    The figure, the baseline and the verdict.
    """
    with staged() as stage, ExitStack() as stack:
        free_nodes(stage)
        settings = Settings(database_url=stage.app_url, master_key=MASTER_KEY, data_dir=stage.folder)  # type: ignore[arg-type]
        single = one_by_one(stage, settings, SINGLE)
        environment, port = stage.environment(sweep_interval_s=0.5), free_port()
        api = stack.enter_context(started("api", api_command(port=port), environment, stage.folder))
        names = [f"worker-{number}" for number in range(WORKERS)]
        workers = [stack.enter_context(started(name, worker_command(name=name), environment, stage.folder)) for name in names]
        wait_for(f"http://{LOOPBACK}:{port}/readyz", api, stage.folder / "api.log")
        ask_all(port, orders(stage, 10, "warm", random.Random(1)), expected=202)
        wait_running(stage, SINGLE + 10)
        before = [cpu_s(api.pid), sum(cpu_s(one.pid) for one in workers), postgres_cpu_s(stage.postmaster)]
        began_at = time.monotonic()
        ask_all(port, orders(stage, CLUSTERS, "bench", random.Random(SEED)), expected=202)
        accepted_s = time.monotonic() - began_at
        wait_running(stage, SINGLE + 10 + CLUSTERS)
        wall_s = time.monotonic() - began_at
        after = [cpu_s(api.pid), sum(cpu_s(one.pid) for one in workers), postgres_cpu_s(stage.postmaster)]
        used = [round(late - early, 2) for early, late in zip(before, after, strict=True)]
        per_s = CLUSTERS / (sum(used) / CORES)
        result = {
            "question": "clusters from POST to running",
            "clusters": CLUSTERS,
            "nodes": stage.rows("SELECT count(*) FROM allocations")[0][0] - SINGLE - 10,
            "fleet": stage.rows("SELECT count(*) FROM nodes")[0][0],
            "wall_s": round(wall_s, 2),
            "accepted_s": round(accepted_s, 2),
            "per_wall_s": round(CLUSTERS / wall_s, 1),
            "cpu_s": dict(zip(("api", "workers", "postgres"), used, strict=True)),
            "per_s_on_2_cores": round(per_s, 1),
            "one_by_one_per_s_on_2_cores": round(CORES / single, 1),
            "ratio_to_one_by_one": round(per_s / (CORES / single), 2),
            "goal_per_s": GOAL_PER_S,
            "within_goal": per_s >= GOAL_PER_S,
            "resident_mib": {"api": resident_mib(api.pid), "worker": resident_mib(workers[0].pid)},
        }
        report(result | circumstances(SEED))
        return 0 if result["within_goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
