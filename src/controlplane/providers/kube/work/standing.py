"""
How a service stands, as pure functions from its main object and its pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.devices import claimed
from controlplane.providers.kube.work.names import SERVICE, TURN, VERSION
from controlplane.providers.kube.work.pool import ended
from controlplane.providers.kube.work.serving import CONTAINER, LWS_INDEX
from controlplane.providers.kube.work.slicing import held
from controlplane.providers.services import ReplicaPhase, ReplicaView, ServiceView, Trouble

Json = dict[str, Any]
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
_WAITS: dict[str, Trouble] = {
    "ErrImagePull": "image_pull",
    "ImagePullBackOff": "image_pull",
    "ErrImageNeverPull": "image_pull",
    "InvalidImageName": "image_name",
    "CrashLoopBackOff": "crash_loop",
    "CreateContainerError": "cannot_start",
    "CreateContainerConfigError": "cannot_start",
    "RunContainerError": "cannot_start",
}
_LOST = frozenset({"NodeLost", "NodeShutdown", "Terminated", "Shutdown"})


def view(main: Json | None, pods: Sequence[Json], service_id: str, config: WorkConfig, address: str) -> ServiceView:
    """
    The service as its main object and those of its pods that are not over tell it.
    """
    notes = {} if main is None else main["metadata"].get("annotations") or {}
    spec = {} if main is None else main["spec"]
    groups: dict[str, list[Json]] = {}
    for pod in pods:
        if not ended(pod) or pod["metadata"].get("deletionTimestamp"):
            key = pod["metadata"]["labels"].get(GROUP) or pod["metadata"]["name"]
            groups.setdefault(f"{key}/{_version(pod)}", []).append(pod)
    size = int((spec.get("leaderWorkerTemplate") or {}).get("size", 1))
    return ServiceView(
        service_id=service_id,
        version=int(notes.get(VERSION, 0)),
        turn=int(notes.get(TURN, 0)),
        wanted=int(spec.get("replicas", 0)),
        replicas=tuple(_replica(groups[key], size, config) for key in sorted(groups)),
        trouble="" if main is None else _unmade(main),
        address=address,
        going=main is None or bool(main["metadata"].get("deletionTimestamp")),
    )


def service_of(thing: Json) -> str:
    """
    The id of the service that the object belongs to.
    """
    return str((thing["metadata"].get("labels") or {}).get(SERVICE, ""))


def _replica(pods: Sequence[Json], size: int, config: WorkConfig) -> ReplicaView:
    ordered = sorted(pods, key=lambda one: (int(one["metadata"]["labels"].get(LWS_INDEX, 0)), one["metadata"]["name"]))
    placed = [one for one in ordered if one.get("spec", {}).get("nodeName")]
    told: list[Trouble] = [_trouble(one) for one in ordered]
    trouble: Trouble = next((one for one in told if one), "")
    ends = [code for one in ordered if (code := _last_code(one)) is not None]
    phase = _phase(ordered, len(placed), size, trouble)
    gpus = [_gpus(one, config) for one in placed]
    return ReplicaView(
        name=ordered[0]["metadata"]["name"],
        version=_version(ordered[0]),
        phase=phase,
        trouble="" if phase in {"ready", "ending"} else trouble,
        exit_code=ends[0] if ends else None,
        restarts=sum(int(one.get("restartCount", 0)) for pod in ordered for one in _statuses(pod)),
        refs=tuple(dict.fromkeys(one["spec"]["nodeName"] for one in placed)),
        gpus=sum(count for _, count in gpus),
        profile=next((profile for profile, _ in gpus if profile), ""),
    )


def _phase(pods: Sequence[Json], placed: int, size: int, trouble: Trouble) -> ReplicaPhase:
    if any(one["metadata"].get("deletionTimestamp") for one in pods):
        return "ending"
    if len(pods) >= size and all(_condition(one, "Ready", "True") for one in pods):
        return "ready"
    if placed < max(size, len(pods)):
        return "pending"
    return "failing" if trouble not in {"", "not_ready"} else "starting"


def _trouble(pod: Json) -> Trouble:
    """
    What keeps one pod, from the kubelet's and the scheduler's words.
    """
    if pod.get("status", {}).get("reason") in _LOST or _condition(pod, "DisruptionTarget", "True"):
        return "node_lost"
    for one in _statuses(pod):
        ends = [(one.get(which) or {}).get("terminated") or {} for which in ("state", "lastState")]
        if any(end.get("reason") == "OOMKilled" for end in ends):
            return "out_of_memory"
        waits = ((one.get("state") or {}).get("waiting") or {}).get("reason", "")
        if waits in _WAITS:
            return _WAITS[waits]
        if any(end.get("exitCode") for end in ends):
            return "crash_loop"
    if _condition(pod, "PodScheduled", "False") or not pod.get("spec", {}).get("nodeName"):
        return "no_room"
    return "" if _condition(pod, "Ready", "True") or pod.get("status", {}).get("phase") != "Running" else "not_ready"


def _unmade(main: Json) -> Trouble:
    """
    Why pods are not made at all: a Deployment says it by a condition.
    """
    said = _condition(main, "ReplicaFailure", "True")
    if said is None:
        return ""
    return "quota" if "exceeded quota" in str(said.get("message", "")) else "cannot_start"


def _last_code(pod: Json) -> int | None:
    for one in _statuses(pod):
        for which in ("state", "lastState"):
            done = (one.get(which) or {}).get("terminated")
            if done:
                return int(done.get("exitCode", 0))
    return None


def _statuses(pod: Json) -> list[Json]:
    kept: list[Json] = [one for one in pod.get("status", {}).get("containerStatuses") or [] if one.get("name") == CONTAINER]
    return kept


def _gpus(pod: Json, config: WorkConfig) -> tuple[str, int]:
    """
    The GPUs that the pod holds, or the profile and number of its slices: never both.
    """
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pod["spec"].get("containers") or []]
    sliced = next((found for one in limits if (found := held(one, config))[0]), None)
    return sliced or ("", claimed(pod) + sum(int(one.get(config.gpu_resource, 0)) for one in limits))


def _version(pod: Json) -> int:
    kept = str(pod["metadata"]["labels"].get(VERSION, "0"))
    return int(kept) if kept.isdecimal() else 0


def _condition(thing: Json, kind: str, status: str) -> Json | None:
    found = thing.get("status", {}).get("conditions") or []
    return next((one for one in found if one.get("type") == kind and one.get("status") == status), None)
