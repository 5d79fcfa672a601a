"""
The simulated Slurm's queue: first in, first out, whole gangs, replayed from event to event up to the present.

Nothing runs between calls. Each cluster knows when its queue changes next; a call after that instant replays what has happened.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.providers.adapters.simulated import script as shell
from controlplane.providers.adapters.simulated.acts import Act
from controlplane.providers.adapters.simulated.durations import MICROS
from controlplane.providers.adapters.simulated.members import MemberRow, all_members
from controlplane.providers.adapters.simulated.slices import Device, Nodes, give, held_on
from controlplane.providers.clusters import JobSpec
from controlplane.providers.gpus import slices_of

NODE_FAIL = "NodeFail"
_FATES: dict[str, tuple[str, str, int, int]] = {
    "out_of_memory": ("OutOfMemory", "out_of_memory", 0, 125),
    "preempted": ("Preempted", "preempted", 0, 15),
    "fabric_fault": ("FabricFault", "fabric_fault", 1, 0),
    "time_limit": ("TimeLimit", "time_limit", 0, 15),
    "node_fault": (NODE_FAIL, "node_fault", 0, 9),
}
"""End of a run -> reason, failure class, exit code, signal."""

_RANK = "CASE json_extract(spec, '$.priority') WHEN 'high' THEN 0 WHEN 'low' THEN 2 ELSE 1 END"
"""A job of a higher class stands before all of lower ones."""


def settle(act: Act, object_id: int) -> None:
    """
    The cluster's queue stands as it is now: runs that ended have ended, what could start has started.
    """
    due = act.db.execute("SELECT next_event_at FROM clusters WHERE id = ?", (object_id,)).fetchone()["next_event_at"]
    if due is None or due > act.now:
        return
    replay = _Replay.load(act, object_id)
    instant: int | None = due
    while instant is not None and instant <= act.now:
        replay.step(instant)
        instant = replay.next_edge(instant)
    act.db.execute("UPDATE clusters SET next_event_at = ? WHERE id = ?", (instant, object_id))


def wake(act: Act, object_id: int) -> None:
    """
    The queue has been looked at again, now.
    """
    act.db.execute(
        "UPDATE clusters SET next_event_at = min(coalesce(next_event_at, ?), ?) WHERE id = ?", (act.now, act.now, object_id)
    )
    settle(act, object_id)


def cancel_all(act: Act, object_id: int) -> None:
    """
    Every job of the cluster that had not ended has been cancelled now.
    """
    live = "SELECT * FROM jobs WHERE object_id = ? AND phase IN ('pending', 'running')"
    for row in act.db.execute(live, (object_id,)).fetchall():
        end_job(act, row, at=act.now, phase="cancelled", reason="ClusterDeleted", failure=None, code=0, signal=15)


def end_job(
    act: Act, job: sqlite3.Row, *, at: int, phase: str, reason: str, failure: str | None, code: int | None, signal: int | None
) -> None:
    """
    The job is over, and its run too when it had one.
    """
    run = act.db.execute("SELECT * FROM runs WHERE job_id = ? AND ended_at IS NULL", (job["id"],)).fetchone()
    if run is not None:
        free_run(act, run, at)
    act.db.execute(
        "UPDATE jobs SET phase = ?, reason = ?, failure = ?, exit_code = ?, signal = ?, ended_at = ?, expected_start_at = NULL"
        " WHERE id = ?",
        (phase, reason, failure, None if run is None else code, None if run is None else signal, at, job["id"]),
    )


def free_run(act: Act, run: sqlite3.Row, at: int) -> int:
    """
    The run has ended; when its machines are free again is returned.
    """
    freed = at + act.takes("job_epilog", str(run["job_id"]), str(run["id"]))
    act.db.execute("UPDATE runs SET ended_at = ?, freed_at = ? WHERE id = ?", (at, freed, run["id"]))
    return freed


def nodes_of(stored: str) -> Nodes:
    """
    Machines and what a run has of their GPUs.
    """
    return tuple((ref, tuple(gpus)) for ref, gpus in json.loads(stored))


def replicas_on(db: sqlite3.Connection, object_id: int) -> list[Nodes]:
    """
    Machines and what replicas of services hold of their GPUs in the cluster.
    """
    held = "SELECT nodes FROM replicas WHERE object_id = ? AND placed_at IS NOT NULL AND ended_at IS NULL"
    return [nodes_of(row["nodes"]) for row in db.execute(held, (object_id,))]


def replicas_ending(db: sqlite3.Connection, object_id: int, at: int) -> list[Nodes]:
    """
    Machines and what replicas which were told to end still hold of their GPUs.
    """
    held = "SELECT nodes FROM replicas WHERE object_id = ? AND placed_at IS NOT NULL AND ended_at > ?"
    return [nodes_of(row["nodes"]) for row in db.execute(held, (object_id, at))]


def spec_of(job: sqlite3.Row) -> JobSpec:
    """
    The job as it was submitted.
    """
    return spec_from(json.loads(job["spec"]))


def spec_from(given: Mapping[str, Any]) -> JobSpec:
    """
    The job as it travelled.
    """
    return JobSpec(**{**given, "exclude": tuple(given["exclude"]), "mounts": (), "mig": slices_of(given.get("mig"))})


def gang_of(job: sqlite3.Row, spec: JobSpec, nodes: Nodes, restarts: int) -> shell.Gang:
    """
    What the script sees of a run.
    """
    return shell.Gang(
        job_id=str(job["id"]),
        nodes=nodes,
        tasks_per_node=spec.tasks_per_node,
        cluster=spec.cluster_id,
        env=spec.env,
        restarts=restarts,
        pods=spec.cluster_kind == "kubernetes",
        gpus_per_node=spec.gpus_per_node,
    )


@dataclass(slots=True)
class _Replay:
    """
    One cluster's queue in memory while it is brought up to date.
    """

    act: Act
    object_id: int
    members: list[MemberRow]
    edges: list[int]
    pending: list[sqlite3.Row]
    running: list[sqlite3.Row]
    freeing: list[tuple[int, Nodes]] = field(default_factory=list)

    @classmethod
    def load(cls, act: Act, object_id: int) -> _Replay:
        members = all_members(act.db, object_id, need_deployment=act.need_deployment)
        replay = cls(act, object_id, members, sorted({edge for one in members for edge in one.edges()}), [], [])
        replay.reload()
        return replay

    def reload(self) -> None:
        db, key = self.act.db, (self.object_id,)
        pending = f"SELECT * FROM jobs WHERE object_id = ? AND phase = 'pending' ORDER BY {_RANK}, eligible_at, id"
        self.pending = db.execute(pending, key).fetchall()
        self.running = db.execute("SELECT * FROM runs WHERE object_id = ? AND ended_at IS NULL ORDER BY id", key).fetchall()
        self.freeing = [
            (row["freed_at"], nodes_of(row["nodes"]))
            for row in db.execute(
                "SELECT freed_at, nodes FROM runs WHERE object_id = ? AND ended_at IS NOT NULL ORDER BY id DESC LIMIT 1000", key
            )
        ]

    def step(self, at: int) -> None:
        """
        Everything that happens at the instant has happened.
        """
        started = True
        while started:
            # A job that takes no time at all ends at the instant it starts, and the next may take its place.
            if self._end_runs(at):
                self.reload()
            started = self._start_jobs(at)
            if started:
                self.reload()

    def _end_runs(self, at: int) -> bool:
        touched = False
        for run in self.running:
            lost = any(not self._alive(ref, at) for ref, _ in nodes_of(run["nodes"]))
            if run["ends_at"] <= at and (not lost or run["ends_at"] < at):
                self._finish(run, run["end_kind"], run["ends_at"])
                touched = True
            elif lost:
                self._finish(run, "node_fault", at)
                touched = True
        return touched

    def next_edge(self, after: int) -> int | None:
        """
        When something may happen next, if that is known.
        """
        if not self.pending and not self.running:
            return None
        coming = [edge for edge in self.edges if edge > after]
        coming += [run["ends_at"] for run in self.running if run["ends_at"] > after]
        coming += [freed for freed, _ in self.freeing if freed > after]
        ends = "SELECT ended_at FROM replicas WHERE object_id = ? AND ended_at > ?"
        coming += [row["ended_at"] for row in self.act.db.execute(ends, (self.object_id, after))]
        coming += [job["eligible_at"] for job in self.pending if job["eligible_at"] > after]
        return min(coming, default=None)

    def _alive(self, ref: str, at: int) -> bool:
        return any(one.ref == ref and one.answers(at) and (one.removed_at is None or one.removed_at > at) for one in self.members)

    def _finish(self, run: sqlite3.Row, kind: str, at: int) -> None:
        job = self.act.db.execute("SELECT * FROM jobs WHERE id = ?", (run["job_id"],)).fetchone()
        if kind == "node_fault" and job["requeue"]:
            freed = free_run(self.act, run, at)
            eligible = freed + self.act.takes("requeue", job["token"], str(job["requeues"]))
            self.act.db.execute(
                "UPDATE jobs SET phase = 'pending', reason = 'BeginTime', requeues = requeues + 1, eligible_at = ? WHERE id = ?",
                (eligible, job["id"]),
            )
        elif kind in _FATES:
            reason, failure, code, signal = _FATES[kind]
            end_job(self.act, job, at=at, phase="failed", reason=reason, failure=failure, code=code, signal=signal)
        else:
            spec = spec_of(job)
            ended = shell.play(spec.script, gang_of(job, spec, nodes_of(run["nodes"]), job["requeues"]))
            good = ended.exit_code == 0 and ended.signal == 0
            end_job(
                self.act,
                job,
                at=at,
                phase="succeeded" if good else "failed",
                reason="None" if good else ("RaisedSignal" if ended.signal else "NonZeroExitCode"),
                failure=None if good else "user_error",
                code=ended.exit_code,
                signal=ended.signal,
            )

    def _start_jobs(self, at: int) -> bool:
        """
        Jobs at the head of the queue that fit have started; behind the first that does not fit, all wait.
        """
        started = False
        held = self._held(at)
        blocked = False
        for job in self.pending:
            if job["eligible_at"] > at:
                continue
            spec = spec_of(job)
            stuck = spec.env.get("SIMULATED_WAIT", "")
            chosen = None if blocked or stuck else self._fit(spec, held, at)
            if chosen is None:
                reason = stuck or ("Priority" if blocked else self._why(spec, at))
                expected = None if blocked or stuck else self._expected(spec, held, at)
                if (job["reason"], job["expected_start_at"]) != (reason, expected):
                    self.act.db.execute(
                        "UPDATE jobs SET reason = ?, expected_start_at = ? WHERE id = ?", (reason, expected, job["id"])
                    )
                blocked = blocked or not stuck
                continue
            for ref, devices in chosen:
                held[ref].update(devices)
            self._start(job, spec, chosen, at)
            started = True
        return started

    def _held(self, at: int) -> dict[str, set[Device]]:
        """
        What is held on each member that takes jobs.
        """
        used = [nodes_of(run["nodes"]) for run in self.running] + [nodes for freed, nodes in self.freeing if freed > at]
        used += replicas_on(self.act.db, self.object_id) + replicas_ending(self.act.db, self.object_id, at)
        return held_on((one.ref for one in self.members if one.takes_jobs(at)), used)

    def _fit(self, spec: JobSpec, held: Mapping[str, set[Device]], at: int) -> Nodes | None:
        fitting = [
            (one.ref, devices)
            for one in sorted(self._usable(spec), key=lambda member: member.ref)
            if one.takes_jobs(at) and (devices := give(one, held[one.ref], spec.gpus_per_node, spec.mig)) is not None
        ]
        return tuple(fitting[: spec.nodes]) if len(fitting) >= spec.nodes else None

    def _usable(self, spec: JobSpec) -> Sequence[MemberRow]:
        return [one for one in self.members if one.ref not in spec.exclude and spec.gpu_model in {"", one.gpu_model}]

    def _why(self, spec: JobSpec, at: int) -> str:
        able = sum(1 for one in self._usable(spec) if one.takes_jobs(at))
        return "Resources" if able >= spec.nodes else "ReqNodeNotAvail"

    def _expected(self, spec: JobSpec, held: Mapping[str, set[Device]], at: int) -> int | None:
        """
        When it would start if every running job ran to its limit; None when that is not enough.
        """
        shrunk = {ref: set(devices) for ref, devices in held.items()}
        ends = [(self._limit_end(run), nodes_of(run["nodes"])) for run in self.running]
        ends += [(freed, nodes) for freed, nodes in self.freeing if freed > at]
        for end, nodes in sorted(ends, key=lambda one: one[0]):
            for ref, devices in nodes:
                if ref in shrunk:
                    shrunk[ref].difference_update(devices)
            if self._fit(spec, shrunk, at) is not None:
                return max(end, at)
        return None

    def _limit_end(self, run: sqlite3.Row) -> int:
        job = self.act.db.execute("SELECT * FROM jobs WHERE id = ?", (run["job_id"],)).fetchone()
        return int(run["started_at"]) + spec_of(job).time_limit_s * MICROS

    def _start(self, job: sqlite3.Row, spec: JobSpec, nodes: Nodes, at: int) -> None:
        lasts = shell.play(spec.script, gang_of(job, spec, nodes, job["requeues"])).duration_us
        lasts += self.act.takes("job_run", job["token"], str(job["requeues"]))
        kind, limit = "script", spec.time_limit_s * MICROS
        fate: dict[str, Any] = json.loads(job["fate"]) if job["fate"] else {}
        if fate.get("kind") == "time_limit":
            lasts = limit + 1
        elif fate.get("kind") in {"out_of_memory", "preempted", "fabric_fault"}:
            kind, lasts = fate["kind"], round(fate["after_s"] * MICROS)
        elif fate.get("kind") == "node_fault":
            dies = at + round(fate["after_s"] * MICROS)
            self._kill(nodes[0][0], dies, dies + round(fate["for_s"] * MICROS))
            lasts = max(lasts, dies + 1 - at)
        if lasts > limit:
            kind, lasts = "time_limit", limit
        self.act.db.execute(
            "INSERT INTO runs (job_id, object_id, started_at, ends_at, end_kind, nodes) VALUES (?, ?, ?, ?, ?, ?)",
            (job["id"], self.object_id, at, at + lasts, kind, json.dumps(nodes)),
        )
        self.act.db.execute(
            "UPDATE jobs SET phase = 'running', reason = 'None', fate = NULL, expected_start_at = NULL WHERE id = ?", (job["id"],)
        )

    def _kill(self, ref: str, since: int, until: int) -> None:
        self.act.db.execute(
            "INSERT INTO outages (ref, from_at, until_at, cause) VALUES (?, ?, ?, 'node fault (simulated)')", (ref, since, until)
        )
        self.members = all_members(self.act.db, self.object_id, need_deployment=self.act.need_deployment)
        self.edges = sorted({edge for one in self.members for edge in one.edges()})
