"""
What MPI programs on a Kubernetes cost: requests for each job from POST to its end, followed by one worker, beside plain gangs.

Run from the repository root: `python -m benchmarks.mpi.bench`. One JSON line per question; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.kubernetes.bench import ENDS, GOAL_CALLS, NODES, Cloud, done, requests, until
from benchmarks.kubernetes.server import KIT
from benchmarks.stage import circumstances, cpu_s, plain_environment, postgres_cpu_s, report, staged, started, wait_for
from controlplane.local.addresses import LOOPBACK, free_port

JOBS = int(os.environ.get("BENCH_JOBS", "200"))
JOB_S = 2.0
TURN_S = 0.25
AT_A_TIME = 32
WITHIN_S = 1200.0
ID = re.compile(r"job-01[0-9a-z]{24}-\d+")
PROGRAM: Mapping[str, Mapping[str, Any]] = {
    "MPI programs": {"launch": {"kind": "mpi", "command": ["train"]}, "image": "example.org/mpi:1"},
    "plain gangs": {"script": "#!/bin/sh\ntrue\n"},
}
REVIEWS = "/selfsubjectaccessreviews"
"""How a worker asks once a minute what its credential may: no job's."""
WHAT = ("log", "secrets", "mpijobs", "jobs", "pods", "nodes", "namespaces")


@contextmanager
def kubernetes(folder: Path) -> Iterator[tuple[str, int]]:
    """
    The URL and the process of an API server with Kueue and the MPI operator.
    """
    port = free_port()
    told = [str(one) for one in (port, NODES, JOB_S, TURN_S, AT_A_TIME)]
    command = [sys.executable, "-m", "benchmarks.mpi.server", *told]
    with started(f"kube-{port}", command, plain_environment(), folder) as child:
        url = f"http://{LOOPBACK}:{port}"
        wait_for(f"{url}/version", child, folder / f"kube-{port}.log")
        yield url, child.pid


def followed(cloud: Cloud, kind: str) -> tuple[dict[str, Any], bool]:
    """
    Many gangs of the kind from POST to their end.
    """
    before, cpu = len(requests(cloud.url)), (cpu_s(cloud.worker), postgres_cpu_s(cloud.stage.postmaster))
    began, ids = time.monotonic(), []
    for _ in range(JOBS):
        spec = {"cluster_id": cloud.cluster_id, "nodes": 2, "gpus_per_node": 1, "time_limit_s": 600, **PROGRAM[kind]}
        ids.append(str(done(cloud.tenant.post(f"{cloud.project}/jobs", json={"name": "gang", "spec": spec}))["id"]))
        os.kill(cloud.worker, signal.SIGUSR1)
    ended = "SELECT count(*) FROM jobs WHERE state = ANY(:ends) AND id = ANY(:ids)"
    until(lambda: cloud.stage.rows(ended, ends=list(ENDS), ids=ids)[0][0] >= JOBS, WITHIN_S, every_s=1.0)
    took = time.monotonic() - began
    used = cpu_s(cloud.worker) - cpu[0], postgres_cpu_s(cloud.stage.postmaster) - cpu[1]
    good = cloud.stage.rows("SELECT count(*) FROM jobs WHERE state = 'succeeded' AND id = ANY(:ids)", ids=ids)[0][0]
    made = [one for one in requests(cloud.url)[before:] if one[0] != "WATCH"]
    calls = [one for one in made if REVIEWS not in one[1]]
    lists = sum(1 for _, path in calls if "labelSelector" in path and "token%3D" in path)
    result = {
        "question": f"{JOBS} {kind} of two nodes from POST to their end by one worker process",
        "succeeded": good,
        "wall_s": round(took, 1),
        "cpu_s": {"worker": round(used[0], 1), "postgres": round(used[1], 1)},
        "calls": dict(sorted(Counter(_kind(method, path) for method, path in calls).items())),
        "calls_per_job": round(len(calls) / JOBS, 2),
        "of_the_providers_check_beside": len(made) - len(calls),
        "lists_of_one_job": lists,
        "goal": f"calls a job <= {GOAL_CALLS:g}, at most one list for a single job: the first, before its kind is watched",
    }
    within = result["calls_per_job"] <= GOAL_CALLS and good == JOBS and lists <= 1
    return result | {"within_goal": within}, bool(within)


def _kind(method: str, path: str) -> str:
    where, _, query = path.partition("?")
    if "watch=true" in query:
        return "watch"
    what = next((name for name in WHAT if f"/{name}" in where), "other")
    one = " of a job" if ID.search(where) and what != "log" else ""
    return f"{'LIST' if 'limit=' in query and method == 'GET' else method} {what}{one}"


def main() -> int:
    """
    Exit code of the benchmark.
    """
    if not KIT.exists():
        report({"question": "MPI on Kubernetes", "not_measured": f"the kit is not there: {KIT.name}"})
        return 0
    good, costs = True, {}
    with ExitStack() as stack:
        stage = stack.enter_context(staged(fleet="demo"))
        stage.run("UPDATE nodes SET due_at = NULL")
        url, server = stack.enter_context(kubernetes(stage.folder))
        cloud = Cloud(stage, stack, url, server)
        for kind in PROGRAM:
            result, within = followed(cloud, kind)
            report(result | circumstances())
            costs[kind], good = result["calls_per_job"], good and within
    report(
        {"question": "an MPI program beside a plain gang", "calls_ratio": round(costs["MPI programs"] / costs["plain gangs"], 2)}
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
