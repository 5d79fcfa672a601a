"""
What calls do to jobs, and what the simulated peer says of them.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, replace
from typing import Any

from controlplane.providers.adapters.simulated import queue
from controlplane.providers.adapters.simulated import script as shell
from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.clock import from_us, instant_or_none
from controlplane.providers.adapters.simulated.groups import standing
from controlplane.providers.adapters.simulated.members import current_members
from controlplane.providers.adapters.simulated.slices import could
from controlplane.providers.clusters import JobSpec, JobView, OutputChunk
from controlplane.providers.errors import NoCapacity, NotFound, Refused, Unsupported
from controlplane.providers.launching import Gang, on_each_node, under_slurm
from controlplane.providers.tracking import GpuUse

_JOB_FAULTS = {
    "job_node_fault": "node_fault",
    "job_requeue": "node_fault",
    "job_out_of_memory": "out_of_memory",
    "job_time_limit": "time_limit",
    "job_preempted": "preempted",
    "job_fabric_fault": "fabric_fault",
}
_END_LINES = {
    "TimeLimit": "slurmstepd: error: *** JOB {id} ON {node} CANCELLED AT {at} DUE TO TIME LIMIT ***",
    "NodeFail": "slurmstepd: error: *** JOB {id} ON {node} CANCELLED AT {at} DUE TO NODE FAILURE ***",
    "OutOfMemory": "slurmstepd: error: Detected 1 oom_kill event in StepId={id}.batch. Some tasks have been OOM Killed.",
    "Preempted": "slurmstepd: error: *** JOB {id} ON {node} CANCELLED AT {at} DUE TO PREEMPTION ***",
    "FabricFault": "NCCL WARN {node}: NET/IB: got completion with error 12, opcode 0, len 0, vendor err 129",
    "Cancelled": "slurmstepd: error: *** JOB {id} ON {node} CANCELLED AT {at} ***",
}
"""What the peer itself writes into the output when it ends a job, by reason."""


def played(spec: JobSpec) -> JobSpec:
    """
    The attempt as the queue plays it: a program to launch is a script, secrets are environment. Raises Unsupported.
    """
    if spec.image or spec.secret_files or spec.mounts:
        raise Unsupported("the simulator has no containers and no files", code="job_feature_unsupported")
    if spec.gpu is not None:
        raise Unsupported("the simulator's GPUs have no attributes", code="job_feature_unsupported")
    if spec.mig is not None and (spec.gpus_per_node or spec.cluster_kind == "slurm"):
        raise Unsupported("slices are for Kubernetes, and in the place of whole GPUs", code="job_feature_unsupported")
    spec = replace(spec, env={**spec.env, **spec.secret_env}, secret_env={})
    if spec.launch is None:
        return spec
    if spec.cluster_kind == "kubernetes" and spec.launch.kind == "torchrun":
        return replace(spec, script=on_each_node(spec.launch), launch=None)
    # its shell reads line by line and knows one address of a node: its name
    made = under_slurm(spec.launch, Gang(spec.nodes, spec.gpus_per_node, spec.tasks_per_node)).splitlines()
    begin = next(number for number, line in enumerate(made) if line.startswith("exec srun"))
    address, port = spec.env.get("MASTER_ADDR", "$SLURMD_NODENAME"), spec.env.get("MASTER_PORT", "29500")
    known = f"export MASTER_ADDR={address} MASTER_PORT={port}"
    script = "\n".join([*made[:2], known, "; ".join(filter(str.strip, made[begin:])), ""])
    tasks = 1 if spec.launch.kind == "torchrun" else spec.tasks_per_node
    # as a batch script, wherever it is: only a scheduler starts every process
    return replace(spec, script=script, launch=None, tasks_per_node=tasks, cluster_kind="")


def submit(act: Act, spec: JobSpec) -> str:
    """
    The attempt is in the queue, once, however often it is submitted; the peer's id is returned.
    """
    known = act.db.execute("SELECT * FROM jobs WHERE cluster_id = ? AND token = ?", (spec.cluster_id, spec.token)).fetchone()
    if known is not None:
        if known["tenant_id"] != spec.tenant_id:
            raise Refused(f"job {spec.token} belongs to {known['tenant_id']}", code="job_of_another_tenant")
        act.db.execute("UPDATE jobs SET submissions = submissions + 1 WHERE id = ?", (known["id"],))
        return str(known["id"])
    cluster = standing(act, spec.cluster_id, act.now)
    _check(act, cluster, spec)
    fate = _fate(act)
    habit = act.requeue if act.fault not in {"job_node_fault", "job_requeue"} else act.fault == "job_requeue"
    requeue = habit and spec.requeue
    made = act.db.execute(
        "INSERT INTO jobs (object_id, cluster_id, token, tenant_id, spec, submitted_at, eligible_at, fate, requeue, submissions,"
        " phase, reason) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, 'pending', 'None')",
        (
            cluster["id"],
            spec.cluster_id,
            spec.token,
            spec.tenant_id,
            json.dumps(asdict(spec)),
            *(act.start, act.start, fate, requeue),
        ),
    ).lastrowid
    act.changed = True
    queue.wake(act, cluster["id"])
    return str(made)


def _fate(act: Act) -> str | None:
    kind = _JOB_FAULTS.get(act.fault)
    return None if kind is None else json.dumps({"kind": kind, **act.params})


def _check(act: Act, cluster: sqlite3.Row, spec: JobSpec) -> None:
    if cluster["delete_requested_at"] is not None:
        raise Refused(f"cluster {spec.cluster_id} is being deleted", code="cluster_deleting")
    if spec.tenant_id != cluster["tenant_id"] or (cluster["run_as"] and spec.user != cluster["run_as"]):
        raise Refused(
            f"{spec.user!r} of {spec.tenant_id} may not run on {spec.cluster_id} of {cluster['tenant_id']}",
            code="not_allowed_on_cluster",
        )
    wrong = shell.problem_of(spec.script)
    if not wrong and (spec.nodes < 1 or spec.gpus_per_node < 0 or spec.tasks_per_node < 1 or spec.time_limit_s < 1):
        wrong = "nodes, tasks and the time limit must be at least 1, GPUs at least 0"
    if wrong:
        raise Refused(f"job {spec.token}: {wrong}", code="job_invalid")
    members = current_members(act.db, cluster["id"], act.now, need_deployment=act.need_deployment)
    able = [
        one
        for one in members
        if not one.leads
        and one.ref not in spec.exclude
        and spec.gpu_model in {"", one.gpu_model}
        and could(one, spec.gpus_per_node, spec.mig)
    ]
    if len(able) < spec.nodes:
        raise NoCapacity(
            f"job {spec.token} wants {spec.nodes} x {spec.mig or f'{spec.gpus_per_node} GPUs'}; {len(able)} members of"
            f" {spec.cluster_id} could",
            code="job_never_fits",
        )


def cancel(act: Act, cluster_id: str, token: str) -> None:
    """
    The attempt has ended, unless it was over before; one that is not there is a success.
    """
    job = _find(act, cluster_id, token)
    if job is None:
        return
    queue.settle(act, job["object_id"])
    job = _find(act, cluster_id, token)
    if job["phase"] not in {"pending", "running"}:
        return
    queue.end_job(act, job, at=act.now, phase="cancelled", reason="Cancelled", failure=None, code=0, signal=15)
    queue.wake(act, job["object_id"])
    act.changed = True


def find(act: Act, cluster_id: str, token: str, at: int) -> JobView:
    """
    The attempt at that time. Raises NotFound.
    """
    job = _seen(act, cluster_id, token, at)
    return _view(job, _runs(act.db, job["id"], at), at)


def list_of(act: Act, cluster_id: str, at: int) -> tuple[JobView, ...]:
    """
    All attempts of the cluster at that time, in the order they were submitted. Raises NotFound when there was never such a cluster.
    """
    known = act.db.execute(
        "SELECT id FROM clusters WHERE cluster_id = ? AND deployment = ? AND created_at <= ?", (cluster_id, act.deployment, at)
    ).fetchall()
    if not known:
        raise NotFound(f"there is no cluster {cluster_id!r}", code="cluster_not_found")
    for row in known:
        queue.settle(act, row["id"])
    jobs = act.db.execute("SELECT * FROM jobs WHERE cluster_id = ? AND submitted_at <= ? ORDER BY id", (cluster_id, at)).fetchall()
    return tuple(_view(job, _runs(act.db, job["id"], at), at) for job in jobs)


def output(act: Act, cluster_id: str, token: str, at: int, *, offset: int, limit: int) -> OutputChunk:
    """
    Bytes of what the attempt has printed by that time; runs after a requeue append. Raises NotFound before its first run.
    """
    job = _seen(act, cluster_id, token, at)
    runs = _runs(act.db, job["id"], at)
    if not runs:
        raise NotFound(f"job {token} has printed nothing yet", code="output_not_found")
    spec = queue.spec_of(job)
    lines: list[str] = []
    for number, run in enumerate(runs):
        ended = run["ended_at"] if run["ended_at"] is not None and run["ended_at"] <= at else None
        until = (at if ended is None else ended) - run["started_at"]
        nodes = queue.nodes_of(run["nodes"])
        played = shell.play(spec.script, queue.gang_of(job, spec, nodes, number))
        lines += [one.line for one in played.printed if one.at_us <= until]
        last = number == len(runs) - 1
        reason = "NodeFail" if not last or job["phase"] == "pending" else job["reason"]
        if ended is not None and reason in _END_LINES:
            lines.append(_END_LINES[reason].format(id=job["id"], node=nodes[0][0], at=from_us(ended).strftime("%Y-%m-%dT%H:%M:%S")))
    printed = "".join(f"{line}\n" for line in lines).encode()
    data = printed[offset : offset + max(limit, 0)] if offset >= 0 else b""
    over = job["ended_at"] is not None and job["ended_at"] <= at
    return OutputChunk(offset=offset, data=data, end=over and offset + len(data) >= len(printed))


def gpu_use(act: Act, cluster_id: str, token: str, at: int, *, window_s: int) -> GpuUse:
    """
    Busy GPUs unless the job's own environment says SIMULATED_GPUS=idle; watched once its run has lasted for the window.
    """
    job = _seen(act, cluster_id, token, at)
    spec, runs = queue.spec_of(job), _runs(act.db, job["id"], at)
    if not runs or at - runs[-1]["started_at"] < window_s * 1_000_000:
        return GpuUse(watched=0, peak_percent=None)
    idle = spec.env.get("SIMULATED_GPUS") == "idle"
    return GpuUse(watched=spec.nodes * spec.gpus_per_node, peak_percent=0.0 if idle else 97.0)


def _find(act: Act, cluster_id: str, token: str) -> Any:
    return act.db.execute(
        "SELECT j.* FROM jobs j JOIN clusters c ON c.id = j.object_id WHERE j.cluster_id = ? AND j.token = ? AND c.deployment = ?",
        (cluster_id, token, act.deployment),
    ).fetchone()


def _seen(act: Act, cluster_id: str, token: str, at: int) -> sqlite3.Row:
    job = _find(act, cluster_id, token)
    if job is not None:
        queue.settle(act, job["object_id"])
        job = _find(act, cluster_id, token)
    if job is None or job["submitted_at"] > at:
        raise NotFound(f"there is no job {token!r} on {cluster_id!r}", code="job_not_found")
    found: sqlite3.Row = job
    return found


def _runs(db: sqlite3.Connection, job_id: int, at: int) -> list[sqlite3.Row]:
    return db.execute("SELECT * FROM runs WHERE job_id = ? AND started_at <= ? ORDER BY id", (job_id, at)).fetchall()


def _view(job: sqlite3.Row, runs: list[sqlite3.Row], at: int) -> JobView:
    run = runs[-1] if runs else None
    over = job["ended_at"] is not None and job["ended_at"] <= at
    running = run is not None and (run["ended_at"] is None or run["ended_at"] > at)
    freeing = over and run is not None and run["freed_at"] is not None and run["freed_at"] > at
    shown = run is not None and (running or over)
    return JobView(
        token=job["token"],
        external_id=str(job["id"]),
        phase="running" if running else ("completing" if freeing else (job["phase"] if over else "pending")),
        reason="None" if running else job["reason"],
        failure=job["failure"] if over and not freeing else None,
        exit_code=job["exit_code"] if over else None,
        signal=job["signal"] if over else None,
        nodes=tuple(ref for ref, _ in queue.nodes_of(run["nodes"])) if run is not None and shown else (),
        started_at=from_us(run["started_at"]) if run is not None and shown else None,
        ended_at=from_us(job["ended_at"]) if over else None,
        expected_start_at=None if over or running else instant_or_none(job["expected_start_at"]),
        requeues=max(0, len(runs) - 1) if over or running else len(runs),
    )
