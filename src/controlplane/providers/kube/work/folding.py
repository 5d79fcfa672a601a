"""
A Job and its pods in the port's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.providers.clusters import FailureClass, JobPhase, JobView
from controlplane.providers.kube.reading import instant
from controlplane.providers.kube.work.manifests import CONTAINER, DISRUPTED
from controlplane.providers.kube.work.mpi import is_one, is_worker, place
from controlplane.providers.kube.work.names import CANCELLED, CLUSTER, QUEUE, TOKEN
from controlplane.providers.kube.work.pool import ended

Json = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
SIGNALS = range(129, 193)
"""Exit codes by which a runtime tells that a signal ended the process: 128 and the signal."""
_NODES_FAULT = frozenset({"NodeLost", "NodeShutdown", "NodeAffinity", "Terminated", "UnexpectedAdmissionError", "Shutdown"})
_OF_ANOTHER_KIND = "didn't match Pod's node affinity/selector"
_CODE_IN_WORDS = re.compile(r"failed with exit code (\d+)")


@dataclass(frozen=True, slots=True)
class End:
    """
    How the script ended on one node.
    """

    code: int
    """Its exit code."""
    reason: str
    """The runtime's word for it, for example `OOMKilled`."""


def view(job: Json, pods: Sequence[Json]) -> JobView:
    """
    The attempt as its Job and those of its pods that still exist tell it.
    """
    state = phase(job, pods)
    over = state in {"succeeded", "failed", "cancelled"}
    code = _exit_code(job, pods, state)
    placed = [one for one in pods if one.get("spec", {}).get("nodeName")]
    ran = state != "pending" and bool(placed)
    return JobView(
        token=job["metadata"]["labels"][TOKEN],
        external_id=job["metadata"]["uid"],
        phase=state,
        reason=_reason(job, pods, state),
        failure=failure(job, pods) if state == "failed" else None,
        exit_code=code,
        signal=code - SIGNALS.start + 1 if code is not None and code in SIGNALS else None,
        nodes=tuple(dict.fromkeys(one["spec"]["nodeName"] for one in sorted(placed, key=index))) if ran else (),
        started_at=_started_at(job, pods) if ran else None,
        ended_at=_ended_at(job) if over else None,
        requeues=sum(1 for one in pods if _disruption(one) is not None) if state != "failed" else 0,
    )


def phase(job: Json, pods: Sequence[Json]) -> JobPhase:
    """
    Where the attempt stands. A gang runs once every pod has started; a cancel is over once no pod is left running.
    """
    if _condition(job, "Complete"):
        return "succeeded"
    cancelled = CANCELLED in _annotations(job)
    if _condition(job, "Failed"):
        return "cancelled" if cancelled else "failed"
    alive = [one for one in pods if not ended(one)]
    if cancelled:
        return "completing" if alive else "cancelled"
    if job["spec"].get("suspend"):
        return "completing" if alive else "pending"
    if _condition(job, "SuccessCriteriaMet") or _condition(job, "FailureTarget"):
        return "completing"
    started = {index(one) for one in pods if one.get("status", {}).get("phase") in {"Running", "Succeeded"}}
    return "running" if len(started) >= job["spec"]["completions"] else "pending"


def failure(job: Json, pods: Iterable[Json]) -> FailureClass:
    """
    Why it failed: the time limit, then what took its machine, then how its script ended.
    """
    said = _condition(job, "Failed") or {}
    words = str(said.get("message", ""))
    if said.get("reason") == "DeadlineExceeded":
        return "time_limit"
    kept = list(pods)
    disrupted = [reason for one in kept if (reason := _disruption(one)) is not None]
    if "PreemptionByScheduler" in disrupted:
        return "preempted"
    if (
        disrupted
        or f"has condition {DISRUPTED}" in words
        or any(one.get("status", {}).get("reason") in _NODES_FAULT for one in kept)
    ):
        return "node_fault"
    ends = [end for one in kept if (end := _end(one)) is not None and end.code]
    if any(one.reason == "OOMKilled" for one in ends):
        return "out_of_memory"
    return "user_error" if ends or _CODE_IN_WORDS.search(words) else "unknown"


def over(job: Json) -> bool:
    """
    Whether the server has declared the Job's end, which nothing changes any more.
    """
    return _condition(job, "Complete") is not None or _condition(job, "Failed") is not None


def accounted(job: Json, pods: Sequence[Json], whole: bool) -> bool:  # noqa: FBT001 - as the memory keeps the three
    """
    Whether what was told of the Job and of its pods fits together, so that their fold is no guess. They are told apart, so one may lag.
    """
    if is_one(job):
        return _launcher_accounted(phase(job, pods), pods)
    status = job.get("status") or {}
    counted = sum(int(status.get(name) or 0) for name in ("active", "succeeded", "failed"))
    if len(pods) < counted:
        return False
    state = phase(job, pods)
    if state == "succeeded":
        return len({index(one) for one in pods if one["spec"].get("nodeName")}) >= int(job["spec"]["completions"])
    if state == "failed":
        over_now = sum(1 for one in pods if one.get("status", {}).get("phase") == "Failed")
        return whole and 0 < int(status.get("failed") or 0) <= over_now and all(ended(one) for one in pods)
    return state != "cancelled"


def _launcher_accounted(state: JobPhase, pods: Sequence[Json]) -> bool:
    """
    As `accounted`, of an MPIJob: it counts no pods, its workers go when it ends, and its end is its launcher's. Why it failed is asked for.
    """
    if state == "succeeded":
        return any(not is_worker(one) and ended(one) for one in pods)
    return state not in {"failed", "cancelled"}


def index(pod: Json) -> int:
    """
    Which of the gang's pods it is.
    """
    in_mpi = place(pod)
    if in_mpi is not None:
        return in_mpi
    kept = str(_annotations(pod).get(INDEX, "0"))
    return int(kept) if kept.isdecimal() else 0


def _reason(job: Json, pods: Sequence[Json], state: JobPhase) -> str:
    """
    A word for why it waits or ended; the peer's own where it has one.
    """
    if state == "failed":
        return str((_condition(job, "Failed") or {}).get("reason", ""))
    if state != "pending":
        return ""
    if job["spec"].get("suspend"):
        return "Queued" if QUEUE in (job["metadata"].get("labels") or {}) else "Suspended"
    waiting = [reason for one in pods if (reason := _waits_for(one))]
    return waiting[0] if waiting else "PodsStarting" if pods else "PodsMissing"


def _waits_for(pod: Json) -> str:
    status = pod.get("status", {})
    for one in status.get("containerStatuses") or []:
        reason = ((one.get("state") or {}).get("waiting") or {}).get("reason")
        if reason and reason != "ContainerCreating":
            return str(reason)
    unscheduled = _condition(pod, "PodScheduled", status="False")
    if unscheduled is None:
        return ""
    return "NoSuchNode" if _fits_nowhere(pod, str(unscheduled.get("message", ""))) else "Resources"


def _fits_nowhere(pod: Json, why: str) -> bool:
    """
    Whether the scheduler found none of the cluster's nodes to be of the kind that the pod asks for. Nodes of others are kept off by their
    taint, so where no node lacks room and none is out of service, those of the cluster differ by the label alone.
    """
    spec = pod["spec"]
    by_model = bool((spec.get("nodeSelector") or {}).keys() - {CLUSTER}) and "nodeAffinity" not in (spec.get("affinity") or {})
    return (
        by_model and _OF_ANOTHER_KIND in why and not any(word in why for word in ("Insufficient", "unschedulable", "anti-affinity"))
    )


def _exit_code(job: Json, pods: Iterable[Json], state: JobPhase) -> int | None:
    """
    Of the script: 0 when all succeeded, else the first failure's.
    """
    if state == "succeeded":
        return 0
    if state != "failed":
        return None
    codes = [end.code for one in sorted(pods, key=index) if (end := _end(one)) is not None and end.code]
    if codes:
        return codes[0]
    told = _CODE_IN_WORDS.search(str((_condition(job, "Failed") or {}).get("message", "")))
    return int(told[1]) if told else None


def _end(pod: Json) -> End | None:
    for one in pod.get("status", {}).get("containerStatuses") or []:
        done = (one.get("state") or {}).get("terminated")
        if one.get("name") == CONTAINER and done:
            return End(int(done.get("exitCode", 0)), str(done.get("reason", "")))
    return None


def _disruption(pod: Json) -> str | None:
    found = _condition(pod, DISRUPTED) if pod.get("status", {}).get("phase") == "Failed" else None
    return str(found.get("reason", "")) if found is not None else None


def _started_at(job: Json, pods: Iterable[Json]) -> datetime | None:
    """
    When the last of the gang's pods was taken up by its node.
    """
    known = [at for one in pods if (at := instant(one.get("status", {}).get("startTime")))]
    return max(known) if known else instant(job.get("status", {}).get("startTime"))


def _ended_at(job: Json) -> datetime | None:
    done = instant(job.get("status", {}).get("completionTime"))
    failed = _condition(job, "Failed") or {}
    return done or instant(failed.get("lastTransitionTime")) or instant(_annotations(job).get(CANCELLED))


def _condition(thing: Json, kind: str, *, status: str = "True") -> Json | None:
    conditions = thing.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind and one.get("status") == status), None)


def _annotations(thing: Json) -> Json:
    kept: Json = thing["metadata"].get("annotations") or {}
    return kept
