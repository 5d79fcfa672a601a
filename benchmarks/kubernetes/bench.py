"""
What following jobs on a Kubernetes costs: calls for each job, what finished ones cost, many pods folded, the time that we add.

Run from the repository root: `python benchmarks/kubernetes/bench.py`. One JSON line per question; exit code 1 where a goal is missed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from kubernetes.client import V1PodList

from benchmarks.kubernetes.server import KIT
from benchmarks.stage import Stage, circumstances, cpu_s, plain_environment, postgres_cpu_s, report, staged, started, wait_for
from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.local.commands import api_command
from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter, build
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.kube.work.folding import accounted, view
from controlplane.providers.kube.work.memory import Memory
from controlplane.providers.registry import AdapterInput

JOBS = int(os.environ.get("BENCH_JOBS", "1000"))
NODES = 16
JOB_S = 2.0
MANY_TURN_S = 0.25
"""Between two turns of the kit's controllers and scheduler, each of which looks at all there is."""
GOAL_CALLS = 8.0
FINISHED = (1_000, 10_000, 100_000)
FOLLOWED = 50
PODS = 5_000
GANG = 8
GOAL_FOLD_S = 2.0
ROUNDS = 20
LONG_S = 6.0
GOAL_ADDED_S = 0.3
ENDS = ("succeeded", "failed", "cancelled")
ID = re.compile(r"job-01[0-9a-z]{24}-\d+")


@contextmanager
def kubernetes(
    folder: Path, *, job_s: float, nodes: int = NODES, finished: int = 0, turn_s: float = 0.02
) -> Iterator[tuple[str, int]]:
    """
    The URL and the process of an API server that runs.
    """
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.kubernetes.server", str(port), str(nodes), str(job_s), str(finished), str(turn_s)]
    with started(f"kube-{port}", command, plain_environment(), folder) as child:
        url = f"http://{LOOPBACK}:{port}"
        wait_for(f"{url}/version", child, folder / f"kube-{port}.log")
        yield url, child.pid


def kubeconfig(url: str) -> str:
    """
    Leads to the server.
    """
    context = {"name": "k", "context": {"cluster": "k", "user": "k"}}
    named = [{"name": "k", "cluster": {"server": url}}], [{"name": "k", "user": {}}], [context]
    whole = dict(zip(("clusters", "users", "contexts"), named, strict=True))
    return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "k", **whole})


class Cloud:
    """
    API and one worker over a Kubernetes whose nodes are one cluster.
    """

    def __init__(self, stage: Stage, stack: ExitStack, url: str, server: int) -> None:
        port = free_port()
        told = stage.environment()
        api = stack.enter_context(started("api", api_command(port=port), told, stage.folder))
        wait_for(f"http://{LOOPBACK}:{port}/healthz", api, stage.folder / "api.log")
        command = [sys.executable, "-m", "benchmarks.kubernetes.worker"]
        self.worker = stack.enter_context(started("worker", command, told, stage.folder)).pid
        time.sleep(5.0)  # until the worker has started; a signal before would end it

        def client(key: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {key}"}
            return stack.enter_context(httpx.Client(base_url=f"http://{LOOPBACK}:{port}", headers=headers, timeout=30))

        self.stage, self.url, self.server = stage, url, server
        self.operator, self.tenant = client(stage.keys.operator_key), client(stage.keys.tenant_key)
        self.project = f"/v1/projects/{stage.keys.project_id}"
        self.cluster_id = self._ordered()

    def post(self, seconds: int = 600) -> str:
        """
        A job of one GPU is ordered, and the hint that the broker else brings is given; its id.
        """
        spec = {
            "cluster_id": self.cluster_id,
            "nodes": 1,
            "gpus_per_node": 1,
            "script": "#!/bin/sh\ntrue\n",
            "time_limit_s": seconds,
        }
        answer = self.tenant.post(f"{self.project}/jobs", json={"name": "j", "spec": spec})
        assert answer.is_success, answer.text
        os.kill(self.worker, signal.SIGUSR1)
        return str(answer.json()["id"])

    def _ordered(self) -> str:
        site = self.stage.keys.site
        # the first provider of a site that makes a product makes it, and the stage's simulator makes Kubernetes, too
        self.stage.run("UPDATE providers SET state = 'disabled' WHERE adapter = 'simulated'")
        config = {"settle_s": 0, "gpu_models": {"H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3"}}
        body = {"name": "kube", "adapter": "kubernetes", "site": site, "config": config, "shared": True}
        body["secrets"] = {"kubeconfig": kubeconfig(self.url)}
        provider = done(self.operator.post("/v1/admin/providers", json=body))
        place = {"block": "kb", "leaf": "kl", "rack": "kr", "instance_type": "hgx-h100-8", "gpus": 8}
        nodes = [{"ref": f"gpu-{number:05d}", **place} for number in range(NODES)]
        enrolled = done(self.operator.post("/v1/admin/nodes", json={"provider_id": provider["id"], "nodes": nodes}))["enrolled"]
        free = "SELECT count(*) FROM nodes WHERE id = ANY(:ids) AND state = 'available'"
        until(lambda: self.stage.rows(free, ids=enrolled)[0][0] == NODES, 900)
        sets = [{"name": "workers", "instance_type": "hgx-h100-8", "count": NODES}]
        order = {"name": "k", "spec": {"kind": "kubernetes", "site": site, "node_sets": sets, "wait": True}}
        cluster = str(done(self.tenant.post(f"{self.project}/clusters", json=order))["id"])
        runs = "SELECT state FROM clusters WHERE id = :id"
        until(lambda: self.stage.rows(runs, id=cluster)[0][0] == "running", 900)
        return cluster


def done(answer: httpx.Response) -> Any:
    """
    What was answered.
    """
    assert answer.is_success, answer.text
    return answer.json()


def until(is_so: Callable[[], object], within_s: float, every_s: float = 0.2) -> None:
    """
    Returns when it is so.
    """
    ends_at = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_at, "it did not come to be"
        time.sleep(every_s)


def requests(url: str) -> list[tuple[str, str]]:
    """
    Every request that the server had so far, watches twice: as they begin and as they end.
    """
    return [(method, path) for method, path, _ in httpx.get(f"{url}/_emu/requests", timeout=60).json()]


def followed(cloud: Cloud) -> bool:
    """
    Many jobs from POST to their end by one worker.
    """
    before, cpu = len(requests(cloud.url)), (cpu_s(cloud.worker), postgres_cpu_s(cloud.stage.postmaster), cpu_s(cloud.server))
    began = time.monotonic()
    for _ in range(JOBS):
        cloud.post()
    ended = "SELECT count(*) FROM jobs WHERE state = ANY(:ends)"
    until(lambda: cloud.stage.rows(ended, ends=list(ENDS))[0][0] >= JOBS, 1200, every_s=1.0)
    took = time.monotonic() - began
    used = cpu_s(cloud.worker) - cpu[0], postgres_cpu_s(cloud.stage.postmaster) - cpu[1]
    good = cloud.stage.rows("SELECT count(*) FROM jobs WHERE state = 'succeeded'")[0][0]
    made = requests(cloud.url)[before:]
    calls = [one for one in made if one[0] != "WATCH"]
    kinds = Counter(_kind(method, path) for method, path in calls)
    result = {
        "question": f"{JOBS} jobs from POST to their end by one worker process",
        "succeeded": good,
        "wall_s": round(took, 1),
        "cpu_s": {"worker": round(used[0], 1), "postgres": round(used[1], 1)},
        "server_cpu_s": round(cpu_s(cloud.server) - cpu[2], 1),
        "calls": dict(sorted(kinds.items())),
        "calls_per_job": round(len(calls) / JOBS, 2),
        "lists_of_one_job": sum(1 for _, path in calls if "labelSelector" in path and "token%3D" in path),
        "goal": f"calls a job <= {GOAL_CALLS:g}, no list for a job",
    }
    within = result["calls_per_job"] <= GOAL_CALLS and good == JOBS and not result["lists_of_one_job"]
    report(result | {"within_goal": within} | circumstances())
    return bool(within)


def _kind(method: str, path: str) -> str:
    where, _, query = path.partition("?")
    one = "job" if ID.search(where) else ""
    if "watch=true" in query:
        return "watch"
    what = next((name for name in ("log", "secrets", "jobs", "pods", "nodes", "namespaces") if name in where), "other")
    return f"{'LIST' if 'limit=' in query and method == 'GET' else method} {what}{' of a job' if one and what != 'log' else ''}"


def added(cloud: Cloud) -> bool:
    """
    From order to running, through us and by kubectl on the same server.
    """
    ours, plain = [], []
    folder = cloud.stage.folder / "kubectl"
    folder.mkdir()
    subprocess.run(
        [Path(sys.base_prefix) / "bin" / "python3", KIT.with_name("get_tools.py"), folder], check=True, capture_output=True
    )
    config = folder / "kubeconfig"
    config.write_text(kubeconfig(cloud.url))
    for number in range(ROUNDS):
        began = time.perf_counter()
        job = cloud.post()
        path = f"{cloud.project}/jobs/{job}"
        until(lambda path=path: done(cloud.tenant.get(path))["status"]["state"] == "running", 30, every_s=0.01)  # type: ignore[misc]
        ours.append(time.perf_counter() - began)
        plain.append(_by_kubectl(cloud.url, folder, config, number))
    difference = statistics.median(ours) - statistics.median(plain)
    result = {
        "question": f"submit to running, {ROUNDS} jobs, one after the other",
        "through_us_p50_s": round(statistics.median(ours), 3),
        "kubectl_apply_p50_s": round(statistics.median(plain), 3),
        "added_p50_s": round(difference, 3),
        "goal": f"added p50 < {GOAL_ADDED_S:g} s",
        "within_goal": difference < GOAL_ADDED_S,
    }
    report(result | circumstances())
    return bool(result["within_goal"])


def _by_kubectl(url: str, folder: Path, config: Path, number: int) -> float:
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    tolerated = [{"operator": "Exists"}]
    pod = {"containers": [container], "restartPolicy": "Never", "tolerations": tolerated}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"plain-{number}", "namespace": "default"}}
    manifest = folder / "job.json"
    manifest.write_text(json.dumps(body | {"spec": {"backoffLimit": 0, "template": {"spec": pod}}}))
    began = time.perf_counter()
    command = [folder / "kubectl", "--kubeconfig", config, "apply", "--validate=false", "-f", manifest]
    subprocess.run(command, check=True, capture_output=True)
    pods = f"{url}/api/v1/namespaces/default/pods?labelSelector=job-name%3Dplain-{number}"
    until(lambda: [1 for one in httpx.get(pods).json()["items"] if one["status"]["phase"] == "Running"], 30, every_s=0.01)
    return time.perf_counter() - began


def curve(folder: Path) -> bool:
    """
    Fifty jobs followed beside ever more finished ones, the watches' beginning and a relist among it; and the same by asking.
    """
    costs: dict[str, dict[str, float]] = {}
    for finished in FINISHED:
        with kubernetes(folder, job_s=1.0, finished=finished) as (url, _):
            for way in ("watched", "asked"):
                if way == "watched" or finished == FINISHED[0]:
                    costs[f"{finished} {way}"] = _followed_alone(url, watched=way == "watched")
    cpu = [costs[f"{finished} watched"]["cpu_s"] for finished in FINISHED]
    calls = [costs[f"{finished} watched"]["calls"] for finished in FINISHED]
    within = calls[-1] <= calls[0] * 1.5 and cpu[-1] <= cpu[0] * 1.5
    result = {
        "question": f"{FOLLOWED} jobs followed beside finished ones, one relist each",
        "by_finished_jobs": costs,
        "ratio_100k_to_1k_cpu": round(cpu[-1] / cpu[0], 2),
        "goal": "cost of the tracker does not grow: at most half as much again at 100k",
        "within_goal": within,
    }
    report(result | circumstances())
    return within


def _followed_alone(url: str, *, watched: bool) -> dict[str, float]:
    adapter = built(url, watches="auto" if watched else "off")
    members = tuple(Member(f"gpu-{number:05d}", 8, f"alc_{number}") for number in range(NODES))
    name = "w" if watched else "a"
    adapter.apply_cluster(ClusterSpec(f"clu_{name}", "ten_one", "prj_one", "", members))
    job = JobSpec(f"job_{name}0-1", f"clu_{name}", "ten_one", "", "#!/bin/sh\ntrue\n", 1, 1, 1, 600)
    _follow(adapter, [job])  # one has ended: from now on lists show the finished ones
    adapter.close()
    adapter = built(url, watches="auto" if watched else "off")
    before, began = len(requests(url)), time.process_time()
    half = FOLLOWED // 2
    _follow(adapter, [replace(job, token=f"job_{name}{number}-1") for number in range(1, half)])
    httpx.post(f"{url}/_emu/compact", json={})
    httpx.post(f"{url}/_emu/drop-watches", json={})
    _follow(adapter, [replace(job, token=f"job_{name}{number}-1") for number in range(half, FOLLOWED + 1)])
    used = time.process_time() - began
    calls = [one for one in requests(url)[before:] if one[0] != "WATCH"]
    adapter.delete_cluster(f"clu_{name}")
    adapter.close()
    return {"cpu_s": round(used, 2), "calls": len(calls), "calls_per_job": round(len(calls) / FOLLOWED, 2)}


def _follow(adapter: KubernetesAdapter, jobs: list[JobSpec]) -> None:
    for one in jobs:
        adapter.submit(one)
    left = {one.token: one.cluster_id for one in jobs}
    ends_at = time.monotonic() + 120
    while left:
        assert time.monotonic() < ends_at, left
        for token, cluster_id in list(left.items()):
            seen = adapter.glance(cluster_id, token) or adapter.find_job(cluster_id, token)
            if seen.phase in ENDS:
                del left[token]
        time.sleep(0.25)


def built(url: str, **config: Any) -> KubernetesAdapter:
    """
    The adapter as a worker builds it.
    """
    given = AdapterInput(
        "prv_b", {"settle_s": 0, "timeout_s": 20.0, **config}, {"kubeconfig": kubeconfig(url)}, "bench", lambda: datetime.now(UTC)
    )
    return build(given)


def folded() -> bool:
    """
    The states of many pods, from the list's text to the views of their jobs; beside it the client's own models, which only read them.
    """
    jobs, pods = _population()
    text = json.dumps({"items": pods, "metadata": {}})
    began, wall = time.process_time(), time.perf_counter()
    memory = Memory()
    memory.begin("jobs", jobs)
    memory.begin("pods", json.loads(text)["items"])
    memory.take_news()
    views = []
    for one in jobs:
        kept = memory.recall("ns", one["metadata"]["name"])
        assert kept is not None
        assert accounted(*kept)
        views.append(view(kept[0], kept[1]))
    took, wall = time.process_time() - began, time.perf_counter() - wall
    assert {one.phase for one in views} == {"running"}
    began = time.process_time()
    V1PodList.from_dict(json.loads(text) | {"kind": "PodList", "apiVersion": "v1"})
    models = time.process_time() - began
    result = {
        "question": f"the states of {PODS} pods folded, in gangs of {GANG}",
        "mib": round(len(text) / 2**20, 1),
        "cpu_s": round(took, 2),
        "wall_s": round(wall, 2),
        "models_of_the_client_cpu_s": round(models, 2),
        "ratio_to_models": round(models / took, 1),
        "goal": f"< {GOAL_FOLD_S:g} s",
        "within_goal": wall < GOAL_FOLD_S,
    }
    report(result | circumstances())
    return took < GOAL_FOLD_S


def _population() -> tuple[list[Any], list[Any]]:
    jobs, pods = [], []
    for number in range(PODS // GANG):
        name = f"job-{number}-1"
        meta = {"namespace": "ns", "resourceVersion": "7", "labels": {"controlplane.internal/token": name}}
        jobs.append({"metadata": meta | {"name": name, "uid": name}, "spec": {"completions": GANG}, "status": {"active": GANG}})
        pods += [_pod(name, rank, meta) for rank in range(GANG)]
    return jobs, pods


def _pod(name: str, rank: int, meta: dict[str, Any]) -> dict[str, Any]:
    at = "2026-11-29T00:00:00Z"
    own = {"name": f"{name}-{rank}", "uid": f"{name}-{rank}", "creationTimestamp": at}
    notes = {"annotations": {"batch.kubernetes.io/job-completion-index": str(rank)}}
    fields = {f"f:{number}": {"f:value": {}} for number in range(60)}
    managed = {"managedFields": [{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsV1": fields}]}
    container = {"name": "job", "image": "x", "env": [{"name": f"V{number}", "value": "x"} for number in range(10)]}
    state = {"name": "job", "image": "x", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": at}}}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers")
    ]
    status = {"phase": "Running", "startTime": at, "conditions": conditions, "containerStatuses": [state]}
    return {
        "metadata": meta | own | notes | managed,
        "spec": {"nodeName": f"gpu-{rank}", "containers": [container]},
        "status": status,
    }


def main() -> int:
    """
    Exit code of the benchmark.
    """
    if not KIT.exists():
        report({"question": "Kubernetes", "not_measured": f"the kit is not there: {KIT.name}"})
        return 0
    wanted = sys.argv[1:] or ["fold", "curve", "follow", "added"]
    good = folded() if "fold" in wanted else True
    if "curve" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            good = curve(Path(folder)) and good
    for name, job_s, turn_s, work in (("follow", JOB_S, MANY_TURN_S, followed), ("added", LONG_S, 0.02, added)):
        if name in wanted:
            with ExitStack() as stack:
                stage = stack.enter_context(staged(fleet="demo"))
                stage.run("UPDATE nodes SET due_at = NULL")
                url, server = stack.enter_context(kubernetes(stage.folder, job_s=job_s, turn_s=turn_s))
                good = work(Cloud(stage, stack, url, server)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
