"""
MPI programs as objects of Kubeflow's MPI operator, which starts workers that wait for SSH and a launcher that has their names. Pure.

An MPIJob is read as a Job would be, so that what is known of Jobs holds for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from controlplane.providers.clusters import JobSpec, JobView
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.names import PRIORITY, QUEUE, TOKEN, Names, job_name
from controlplane.providers.launching import by_mpirun

Json = dict[str, Any]
API, PLURAL, KIND = "kubeflow.org/v2beta1", "mpijobs", "MPIJob"
GROUP = "kubeflow.org"
ROLE, NUMBER = "training.kubeflow.org/job-role", "training.kubeflow.org/replica-index"
"""Labels that the operator puts on pods."""
WORKER = "worker"
IMPLEMENTATIONS: Mapping[str, str] = {"openmpi": "OpenMPI", "intel": "Intel", "mpich": "MPICH"}
TOLD = ("NNODES", "GPUS_PER_NODE", "TASKS_PER_NODE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that every process has besides the job's own."""
_ENDS: Mapping[str, str] = {"Succeeded": "Complete", "Failed": "Failed"}
_NONE_LEFT = "Running"
"""Workers do not end by themselves: those that run when the launcher has ended are removed."""


def is_mpi(spec: JobSpec) -> bool:
    """
    Whether the attempt is one for the MPI operator.
    """
    return spec.launch is not None and spec.launch.kind == "mpi"


def is_one(job: Json) -> bool:
    """
    Whether what is read as a Job is an MPIJob.
    """
    return job.get("kind") == KIND


def script(spec: JobSpec) -> str:
    """
    What the launcher runs.
    """
    assert spec.launch is not None
    known = {*spec.env, *spec.secret_env, *TOLD, *(["SECRETS_DIR"] if spec.secret_files else [])}
    return by_mpirun(spec.launch, nodes=spec.nodes, per_node=spec.tasks_per_node, variables=known)


def mpijob(names: Names, spec: JobSpec, config: WorkConfig, pod: Json, notes: Json) -> Json:
    """
    The MPIJob: a worker on each node and a launcher beside them, all or none by Kueue, and no second try. `pod` is a Job's pod without
    what makes it a rank; `notes` are annotations for the workers' placement.
    """
    assert spec.launch is not None
    labels = names.labels(spec.cluster_id) | {TOKEN: spec.token}
    marks = {QUEUE: "cluster"} | ({PRIORITY: f"{names.deployment}-{spec.priority}"} if spec.priority != "normal" else {})
    worker = _as_user(pod, config)
    serves = {"name": WORKER, "command": ["/usr/sbin/sshd", "-De", "-f", f"{config.mpi_home}/.sshd_config"]}
    worker["containers"] = [{**worker["containers"][0], **serves}]
    launcher = _as_user(pod, config)
    launcher.pop("affinity")
    launcher.pop("resourceClaims", None)
    launcher["containers"] = [{**launcher["containers"][0], "resources": {}}]
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": job_name(spec.token), "namespace": names.namespace(spec.cluster_id), "labels": labels | marks},
        "spec": {
            "slotsPerWorker": spec.tasks_per_node,
            "sshAuthMountPath": f"{config.mpi_home}/.ssh",
            "mpiImplementation": IMPLEMENTATIONS[spec.launch.implementation],
            # it would fail where it cannot reach a worker yet, and has no second try
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {
                "cleanPodPolicy": _NONE_LEFT,
                "ttlSecondsAfterFinished": config.keep_ended_s,
                "activeDeadlineSeconds": spec.time_limit_s,
                "backoffLimit": 0,
                "suspend": True,
            },
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, {"labels": labels}, launcher),
                "Worker": _replicas(spec.nodes, {"labels": labels} | ({"annotations": notes} if notes else {}), worker),
            },
        },
    }


def as_job(thing: Json) -> Json:
    """
    The MPIJob as if it were a Job of so many pods as it has.
    """
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    workers = ((spec.get("mpiReplicaSpecs") or {}).get("Worker") or {}).get("replicas") or 0
    ends = [{**one, "type": _ENDS[one["type"]]} for one in status.get("conditions") or [] if one.get("type") in _ENDS]
    told = {name: status[name] for name in ("startTime", "completionTime") if status.get(name)}
    return {
        "kind": KIND,
        "metadata": thing["metadata"],
        "spec": {"suspend": bool((spec.get("runPolicy") or {}).get("suspend")), "completions": 1 + int(workers)},
        "status": {"conditions": ends, **told},
    }


def seen(view: JobView, job: Json, pods: Iterable[Json]) -> JobView:
    """
    The view, which names as nodes those of the workers; once these are removed it names none, for a part of them would be wrong.
    """
    if not is_one(job):
        return view
    workers = sorted((one for one in pods if is_worker(one)), key=_number)
    placed = [one["spec"]["nodeName"] for one in workers if one["spec"].get("nodeName")]
    whole = len(placed) == job["spec"]["completions"] - 1 and bool(view.nodes)
    return replace(view, nodes=tuple(dict.fromkeys(placed)) if whole else ())


def is_worker(pod: Json) -> bool:
    """
    Whether the pod only waits for what the launcher starts in it.
    """
    return bool((pod["metadata"].get("labels") or {}).get(ROLE) == WORKER)


def place(pod: Json) -> int | None:
    """
    The launcher's is 0, the workers' follow; None for a pod that is none of an MPIJob.
    """
    role = (pod["metadata"].get("labels") or {}).get(ROLE)
    return None if role is None else 1 + _number(pod) if role == WORKER else 0


def _number(pod: Json) -> int:
    told = str((pod["metadata"].get("labels") or {}).get(NUMBER, "0"))
    return int(told) if told.isdecimal() else 0


def _as_user(pod: Json, config: WorkConfig) -> Json:
    user = {"runAsUser": config.mpi_user, "runAsGroup": config.mpi_user, "fsGroup": config.mpi_user}
    # the operator names hosts and sets the policy itself
    kept = {name: value for name, value in pod.items() if name not in {"subdomain", "restartPolicy"}}
    return {**kept, "securityContext": {**pod["securityContext"], **user}}


def _replicas(count: int, metadata: Json, spec: Json) -> Json:
    return {"replicas": count, "restartPolicy": "Never", "template": {"metadata": metadata, "spec": spec}}
