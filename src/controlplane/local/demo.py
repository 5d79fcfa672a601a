"""
The main job, through the public API and with a tenant's key: order a Slurm cluster, run a gang job on it, read the bill.

It is safe to run again: everything has a name and an idempotency key, so what exists is found and not ordered twice.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from decimal import Decimal

from controlplane.local.client import ApiClient, Json
from controlplane.local.errors import LocalError
from controlplane.local.progress import Progress, Step

CLUSTER = "demo"
JOB = "hello-gang"
NODES = 4
GPUS_PER_NODE = 8
TIME_LIMIT_S = 600
GIVE_UP_AFTER_S = 300.0
LOOK_EVERY_S = 2
SCRIPT = """#!/bin/bash
srun bash -c 'echo "hello from $SLURMD_NODENAME with GPUs $CUDA_VISIBLE_DEVICES"'
"""
ENDED_WELL = {"running", "degraded", "updating"}
ON_ITS_WAY = {"pending", "placing", "provisioning", "bootstrapping", "verifying"}
JOB_ENDED = {"succeeded", "failed", "cancelled"}
OPERATION_ENDED = {"succeeded", "failed", "cancelled", "needs_attention"}


class MainJobFailed(LocalError):
    """
    The cluster or the job did not come to a good end.
    """


@dataclass(frozen=True, slots=True)
class Order:
    """
    Where the tenant orders, and what.
    """

    project_id: str
    """The tenant's project."""
    site: str
    """Where the nodes shall be."""
    instance_type: str
    """Of which shape."""


class MainJob:
    """
    One run of the main job.
    """

    def __init__(self, api: ApiClient, order: Order, progress: Progress) -> None:
        self._api = api
        self._order = order
        self._progress = progress
        self._project = f"/v1/projects/{order.project_id}"
        self._until_s = time.monotonic() + GIVE_UP_AFTER_S

    def run(self) -> Json:
        """
        The gang job has succeeded on the tenant's own cluster and its output, usage and cost are shown; answers the cluster.
        """
        cluster = self._have_cluster()
        job = self._have_job(cluster["id"])
        self._show_output(job)
        self._show_usage(cluster)
        return cluster

    def _have_cluster(self) -> Json:
        taken = set()
        for each in self._api.pages(f"{self._project}/clusters"):
            state = each["status"]["state"]
            taken.add(each["name"])
            if each["name"].startswith(CLUSTER) and state in ENDED_WELL | ON_ITS_WAY:
                with self._progress.step(f"Slurm cluster {each['name']} is there") as step:
                    return self._until_running(each["id"], step, operation_id=each["operation"])
        name = _free_name(CLUSTER, taken)
        shape = f"{NODES} nodes x {GPUS_PER_NODE} GPUs in {self._order.site}"
        with self._progress.step(f"Slurm cluster {name}: {shape}") as step:
            node_set = {"name": "workers", "instance_type": self._order.instance_type, "count": NODES}
            # On the first start the region's nodes are still being inspected, tested and wiped: the order waits for them.
            spec = {"kind": "slurm", "site": self._order.site, "node_sets": [node_set], "wait": True}
            ordered = self._api.post(
                f"{self._project}/clusters",
                {"name": name, "spec": spec},
                idempotency_key=f"up-{self._order.project_id}-{name}",
            )
            return self._until_running(ordered["id"], step, operation_id=ordered["operation"])

    def _until_running(self, cluster_id: str, step: Step, *, operation_id: str | None) -> Json:
        if operation_id:
            self._follow(operation_id, step)
        cluster = self._api.get(f"{self._project}/clusters/{cluster_id}")
        status = cluster["status"]
        if status["state"] not in ENDED_WELL:
            raise MainJobFailed(
                f"The cluster is {status['state']}: {status.get('reason') or 'no reason given'}{_issues(status)}",
                f"Look at it: GET {self._project}/clusters/{cluster_id}",
            )
        self._progress.change(step, f"Slurm cluster {cluster['name']} is {status['state']}")
        return cluster

    def _follow(self, operation_id: str, step: Step) -> None:
        """
        The operation has succeeded; each of its steps was shown as it happened.
        """
        title, shown = step.text, 0
        while True:
            operation = self._api.get(f"/v1/operations/{operation_id}", wait_s=LOOK_EVERY_S)
            for each in operation["steps"][shown:]:
                self._progress.detail(f"{each['name']:<14} {each.get('reason') or ''}".rstrip())
                self._progress.change(step, f"{title} · {each['name']}")
            shown = len(operation["steps"])
            if operation["state"] == "succeeded":
                return
            if operation["state"] in OPERATION_ENDED:
                raise MainJobFailed(f"The operation {operation_id} {_why(operation)}", f"GET /v1/operations/{operation_id}")
            self._check_patience(f"operation {operation_id}")

    def _have_job(self, cluster_id: str) -> Json:
        taken = set()
        for each in self._api.pages(f"{self._project}/jobs"):
            taken.add(each["name"])
            if each["spec"].get("cluster_id") == cluster_id and each["status"]["state"] not in {"failed", "cancelled"}:
                with self._progress.step(f"gang job {each['name']}") as step:
                    return self._until_ended(each["id"], step)
        name = _free_name(JOB, taken)
        with self._progress.step(f"gang job {name}: {NODES} nodes x {GPUS_PER_NODE} GPUs, all or none") as step:
            spec = {
                "cluster_id": cluster_id,
                "nodes": NODES,
                "gpus_per_node": GPUS_PER_NODE,
                "tasks_per_node": 1,
                "script": SCRIPT,
                "time_limit_s": TIME_LIMIT_S,
            }
            submitted = self._api.post(
                f"{self._project}/jobs", {"name": name, "spec": spec}, idempotency_key=f"up-{cluster_id}-{name}"
            )
            return self._until_ended(submitted["id"], step)

    def _until_ended(self, job_id: str, step: Step) -> Json:
        title, shown = step.text, ""
        while True:
            job = self._api.get(f"{self._project}/jobs/{job_id}")
            state = job["status"]["state"]
            if state in JOB_ENDED:
                break
            if state != shown:
                self._progress.change(step, f"{title} · {state}")
                shown = state
            self._check_patience(f"job {job_id}")
            time.sleep(0.25)
        if state != "succeeded":
            raise MainJobFailed(f"The job {_why_status(job)}", f"GET {self._project}/jobs/{job_id}/logs")
        self._progress.change(step, f"{title} · {state}")
        return job

    def _show_output(self, job: Json) -> None:
        path, text, offset = f"{self._project}/jobs/{job['id']}/logs", "", 0
        with self._progress.step(f"output of {job['name']}"):
            while True:
                page = self._api.get(path, after=offset)
                text += "".join(each["text"] for each in page["items"])
                if page["complete"] or page["next_offset"] == offset:
                    break
                offset = page["next_offset"]
        for line in text.splitlines():
            self._progress.detail(line)

    def _show_usage(self, cluster: Json) -> None:
        with self._progress.step("usage and cost so far"):
            usage = self._api.get("/v1/usage", group_by="cluster,instance_type", project_id=self._order.project_id)
        for each in usage["items"]:
            if each["cluster_id"] == cluster["id"]:
                cost = " + ".join(f"{money['amount']} {money['currency']}" for money in each["cost"])
                held = f"{Decimal(each['gpu_seconds']):.1f} GPU-seconds of {each['instance_type']}"
                self._progress.detail(f"{cluster['name']}: {held} = {cost}")

    def _check_patience(self, what: str) -> None:
        if time.monotonic() > self._until_s:
            raise MainJobFailed(f"{what} did not end within {GIVE_UP_AFTER_S:.0f} s.", "See worker-1.log in the logs.")


def _free_name(name: str, taken: set[str]) -> str:
    return next(each for each in itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2))) if each not in taken)


def _issues(status: Json) -> str:
    return "".join(f" [{each['code']}] {each['message']}" for each in status.get("issues") or [])


def _why(operation: Json) -> str:
    error = operation.get("error") or {}
    return f"{operation['state']}: {error.get('code', '')} {error.get('message', error.get('detail', ''))}"


def _why_status(job: Json) -> str:
    status = job["status"]
    return f"{status['state']}: {status.get('reason') or 'no reason given'}{_issues(status)}"
