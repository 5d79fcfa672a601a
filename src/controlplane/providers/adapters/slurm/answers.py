"""
The records of slurmrestd in one form, whatever its version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from controlplane.providers.adapters.slurm.folding import (
    ShapeError,
    exit_status,
    gpus,
    moment,
    names,
    needed,
    text,
    whole,
    words,
)
from controlplane.providers.adapters.slurm.hostlist import BadHostlist, expand
from controlplane.providers.errors import Unsupported

Record = TypeVar("Record")
ENDED = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
        "REVOKED",
    }
)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """
    One node.
    """

    name: str
    """NodeName."""
    states: frozenset[str]
    """Base state and flags, upper case: `{"IDLE", "DRAIN"}`."""
    gpus: int
    """GPUs in its GRES."""
    gpu_types: tuple[str, ...]
    """Their types, as in gres.conf."""
    memory_mib: int
    """RealMemory; 0 when unknown."""
    cpus: int
    """Logical CPUs; 0 when unknown."""
    reason: str
    """Of a drain or an outage."""
    extra: str
    """Free text that scontrol can set."""
    comment: str
    """Another one."""
    slurmd_started_at: datetime | None
    """When its slurmd last started."""
    version: str
    """Of its slurmd."""
    partitions: tuple[str, ...]
    """Those it is in."""

    @property
    def drained(self) -> bool:
        """
        Whether no new job may start on it by somebody's wish.
        """
        return "DRAIN" in self.states

    @property
    def answers(self) -> bool:
        """
        Whether slurmctld reaches it and its registration was accepted.
        """
        away = {"DOWN", "NOT_RESPONDING", "FAIL", "ERROR", "FUTURE", "INVALID_REG", "INVAL", "POWERED_DOWN", "POWER_DOWN"}
        return not self.states & (away | {"POWERING_UP", "POWERING_DOWN", "REBOOT_ISSUED", "UNKNOWN"})


@dataclass(frozen=True, slots=True)
class JobRecord:
    """
    One job.
    """

    job_id: int
    """Slurm's number."""
    name: str
    """Our token, or whatever a user chose."""
    user: str
    """Whose it is."""
    comment: str
    """Our mark, or whatever a user chose."""
    reservation: str
    """Where it runs; 22.05 forgets it when the reservation goes."""
    states: frozenset[str]
    """Base state and flags, upper case."""
    reason: str
    """Why it waits or ended."""
    exit_code: int
    """Of the batch script."""
    signal: int
    """0: none."""
    nodes: tuple[str, ...]
    """Allocated, or planned while it waits."""
    started_at: datetime | None
    """Start, or the estimate of it while it waits."""
    ended_at: datetime | None
    """End, or the latest possible one while it runs."""
    restarts: int
    """Requeues under this number."""
    held: bool
    """Whether it waits for a release."""

    @property
    def ended(self) -> bool:
        """
        Whether nothing of it runs any more.
        """
        return bool(self.states & ENDED) and "COMPLETING" not in self.states

    @property
    def waits(self) -> bool:
        """
        Whether it holds no nodes yet.
        """
        return "PENDING" in self.states or bool(self.states & {"REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})

    @property
    def rejected(self) -> bool:
        """
        Whether this is only the trace of a refused submit: such a one uses up a number and never was a job.
        """
        never_ran = self.started_at is None or self.started_at == self.ended_at
        return "FAILED" in self.states and self.reason == "BadConstraints" and never_ran and not self.nodes

    @property
    def order(self) -> int:
        """
        By which the first of several is found.
        """
        return self.job_id


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """
    One reservation.
    """

    name: str
    """Its name."""
    nodes: tuple[str, ...]
    """What it holds."""
    users: tuple[str, ...]
    """Who may use it."""
    started_at: datetime | None
    """When it began to hold."""
    ends_at: datetime | None
    """When it stops to."""


def node(record: Mapping[str, Any]) -> NodeRecord:
    """
    The node of any version: `"idle"` with state_flags, or `["IDLE", "DRAIN"]`.
    """
    states = frozenset(words(needed(record, "state"))) | frozenset(words(record.get("state_flags")))
    count, types = gpus(text(record.get("gres")))
    return NodeRecord(
        name=text(needed(record, "name")),
        states=frozenset(part for state in states for part in state.split("+")),
        gpus=count,
        gpu_types=types,
        memory_mib=whole(record.get("real_memory")),
        cpus=whole(record.get("cpus")),
        reason=text(record.get("reason")),
        extra=text(record.get("extra")),
        comment=text(record.get("comment")),
        slurmd_started_at=moment(record.get("slurmd_start_time")),
        version=text(record.get("slurmd_version") or record.get("version")),
        partitions=names(record.get("partitions")),
    )


def job(record: Mapping[str, Any]) -> JobRecord:
    """
    The job of any version.
    """
    code, signal = exit_status(record.get("exit_code"))
    states = frozenset(words(needed(record, "job_state")))
    reason = text(record.get("state_reason"))
    return JobRecord(
        job_id=_positive(needed(record, "job_id")),
        name=text(needed(record, "name")),
        user=text(record.get("user_name")),
        comment=text(record.get("comment")),
        reservation=text(record.get("resv_name")),
        states=states,
        reason="" if reason == "None" else reason,
        exit_code=code,
        signal=signal,
        nodes=expand(text(record.get("nodes"))),
        started_at=moment(record.get("start_time")),
        ended_at=moment(record.get("end_time")),
        restarts=whole(record.get("restart_cnt")),
        held=reason in {"JobHeldUser", "JobHeldAdmin"},
    )


def reservation(record: Mapping[str, Any]) -> ReservationRecord:
    """
    The reservation of any version.
    """
    return ReservationRecord(
        name=text(needed(record, "name")),
        nodes=expand(text(record.get("node_list"))),
        users=names(record.get("users")),
        started_at=moment(record.get("start_time")),
        ends_at=moment(record.get("end_time")),
    )


def records(body: Mapping[str, Any], key: str, read: Callable[[Mapping[str, Any]], Record]) -> tuple[Record, ...]:
    """
    All records of a listing. Raises Unsupported for a form that is not known: a part of a list is never passed off as the list.
    """
    rows = body.get(key)
    if not isinstance(rows, list):
        raise Unsupported(f"slurmrestd's answer has no list of {key}", code="provider_answer_unknown")
    out: list[Record] = []
    for row in rows:
        try:
            out.append(read(_object(row)))
        except (ShapeError, BadHostlist, OverflowError) as error:
            raise Unsupported(
                f"slurmrestd's answer has an unknown form in {key}: {error}", code="provider_answer_unknown"
            ) from error
    return tuple(out)


def release(body: Mapping[str, Any]) -> str:
    """
    Slurm's release as it says it, from either spelling of the meta part; empty when it does not say.
    """
    meta = body.get("meta")
    if not isinstance(meta, Mapping):
        return ""
    part = meta.get("slurm") or meta.get("Slurm")
    return text(part.get("release")) if isinstance(part, Mapping) else ""


def _object(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ShapeError(f"not an object: {row!r:.80}")
    return row


def _positive(value: Any) -> int:
    folded = whole(value)
    if folded <= 0:
        raise ShapeError(f"not a job number: {value!r:.80}")
    return folded
