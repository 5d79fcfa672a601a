"""
One attempt of one job as objects, pure functions from the order: an Indexed Job with a pod on each node, and a Secret with its script.
"""

from __future__ import annotations

import base64
from typing import Any

from controlplane.providers.clusters import JobSpec
from controlplane.providers.errors import Refused
from controlplane.providers.kube.work import mpi
from controlplane.providers.kube.work.config import WorkConfig, check_image
from controlplane.providers.kube.work.devices import marked_pod, marked_template, refuse_kind, selectors, template_body
from controlplane.providers.kube.work.names import HOSTNAME, PRIORITY, QUEUE, TOKEN, Names, job_name
from controlplane.providers.kube.work.pods import (
    MAX_SECRET_BYTES,
    SECRETS_AT,
    confine,
    fence,
    from_secret,
    odd_files,
    odd_variables,
    secret_files,
)
from controlplane.providers.kube.work.slicing import refuse_slices
from controlplane.providers.kube.work.walls import HEADLESS, Queueing
from controlplane.providers.launching import on_each_node
from controlplane.providers.volumes import Mount, check_mounts

Json = dict[str, Any]
CONTAINER = "job"
DISRUPTED = "DisruptionTarget"
RENDEZVOUS_PORT = 29_500
_SCRIPT_AT = "/controlplane"
_RUN_ALL = 0o555


def refuse_unsendable(spec: JobSpec, config: WorkConfig) -> None:
    """
    The attempt can be written as objects. Raises Refused for what no Kubernetes could run as it is meant.
    """
    if spec.launch is None and not spec.script.startswith("#!"):
        raise Refused("the script has no #! line", code="job_script_invalid")
    env = {**spec.env, **spec.secret_env}
    odd = odd_variables(env) + odd_files(spec.secret_files)
    kept = {**env, **spec.secret_files}
    size = len(_script(spec).encode()) + sum(len(key) + len(value.encode()) for key, value in kept.items())
    if odd or "\0" in spec.script or size > MAX_SECRET_BYTES:
        raise Refused("the environment or script cannot be sent", code="job_env_invalid")
    check_mounts(spec.mounts, config.volumes)
    refuse_kind(spec.gpu, config)
    refuse_slices(spec.mig, spec.gpus_per_node, config)
    if config.gpus_by == "dra":
        selectors(spec.gpu, spec.gpu_model, config)
    if spec.image:
        try:
            check_image(spec.image)
        except ValueError as error:
            raise Refused(f"image: {error}", code="job_image_invalid") from error


def job(names: Names, spec: JobSpec, config: WorkConfig, kueue: Queueing | None) -> Json:
    """
    The Job: all its pods or none where Kueue is present, one pod on each node, and no second try but for a lost machine.
    """
    labels = names.labels(spec.cluster_id) | {TOKEN: spec.token}
    lost = "Ignore" if spec.requeue and spec.nodes == 1 else "FailJob"
    body: Json = {
        "completionMode": "Indexed",
        "completions": spec.nodes,
        "parallelism": spec.nodes,
        "backoffLimit": 0,
        "activeDeadlineSeconds": spec.time_limit_s,
        "ttlSecondsAfterFinished": config.keep_ended_s,
        "suspend": kueue is not None,
        # a gang that lost one pod cannot go on with a new one, so only a job of one node is started again by the peer
        "podFailurePolicy": {"rules": [{"action": lost, "onPodConditions": [{"type": DISRUPTED, "status": "True"}]}]},
        "template": {"metadata": _template_marks(labels, spec, config, kueue), "spec": _pod(spec, config, kueue)},
    }
    queue = {QUEUE: "cluster"} if kueue is not None else {}
    if kueue is not None and spec.priority != "normal":
        queue[PRIORITY] = f"{names.deployment}-{spec.priority}"
    metadata = {"name": job_name(spec.token), "namespace": names.namespace(spec.cluster_id), "labels": labels | queue}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body}


def mpi_job(names: Names, spec: JobSpec, config: WorkConfig, kueue: Queueing) -> Json:
    """
    The MPIJob, whose pods have the walls of a Job's.
    """
    labels = names.labels(spec.cluster_id) | {TOKEN: spec.token}
    notes = _template_marks(labels, spec, config, kueue).get("annotations") or {}
    pod = _pod(spec, config, kueue)
    return mpi.mpijob(names, spec, config, pod, notes)


def _owner(spec: JobSpec, uid: str) -> list[Json]:
    api, kind = (mpi.API, mpi.KIND) if mpi.is_mpi(spec) else ("batch/v1", "Job")
    return [{"apiVersion": api, "kind": kind, "name": job_name(spec.token), "uid": uid}]


def secret(names: Names, spec: JobSpec, uid: str) -> Json:
    """
    Script and environment. The Job owns it, so it goes when the Job goes.
    """
    name = job_name(spec.token)
    texts = {"script": _script(spec)} | {f"env.{key}": value for key, value in (spec.env | spec.secret_env).items()}
    texts |= {f"file.{key}": value for key, value in spec.secret_files.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": names.namespace(spec.cluster_id),
            "labels": names.labels(spec.cluster_id) | {TOKEN: spec.token},
            "ownerReferences": _owner(spec, uid),
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in texts.items()},
    }


def claims(names: Names, spec: JobSpec, config: WorkConfig, api: str, uid: str = "") -> Json:
    """
    What the pods' claims of GPUs are made from. With the Job's uid it belongs to the Job; before there is one, Kueue already reads it.
    """
    name = job_name(spec.token)
    metadata: Json = {
        "name": name,
        "namespace": names.namespace(spec.cluster_id),
        "labels": names.labels(spec.cluster_id) | {TOKEN: spec.token},
    }
    if uid:
        metadata["ownerReferences"] = _owner(spec, uid)
    return template_body(api, metadata, spec.gpus_per_node, spec.gpu, spec.gpu_model, config)


def claims_gpus(spec: JobSpec, config: WorkConfig) -> bool:
    """
    Whether the attempt's pods get their GPUs by claims.
    """
    return bool(spec.gpus_per_node) and config.gpus_by == "dra"


def claim(names: Names, cluster_id: str, volume: str, config: WorkConfig) -> Json:
    """
    The cluster's own piece of the operator's storage.
    """
    asked = config.volumes[volume]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(volume), "namespace": names.namespace(cluster_id), "labels": names.labels(cluster_id)},
        "spec": {
            "accessModes": [asked.access],
            "storageClassName": asked.storage_class,
            "resources": {"requests": {"storage": f"{asked.size_gib}Gi"}},
        },
    }


def claim_name(volume: str) -> str:
    """
    The name of the cluster's claim, and of the volume in its pods.
    """
    return f"volume-{volume}"


def _script(spec: JobSpec) -> str:
    """
    What is the process of each pod.
    """
    if mpi.is_mpi(spec):
        return mpi.script(spec)
    return spec.script if spec.launch is None else on_each_node(spec.launch)


def _template_marks(labels: dict[str, str], spec: JobSpec, config: WorkConfig, kueue: Queueing | None) -> Json:
    notes = marked_template(spec.gpus_per_node) if claims_gpus(spec, config) else {}
    marks: Json = {"labels": labels} | ({"annotations": notes} if notes else {})
    if kueue is not None and kueue.topology and config.topology_labels:
        racks = [one for one in config.topology_labels if one != HOSTNAME] or config.topology_labels
        marks["annotations"] = {**notes, "kueue.x-k8s.io/podset-preferred-topology": racks[-1]}
    return marks


def _pod(spec: JobSpec, config: WorkConfig, kueue: Queueing | None) -> Json:
    return {
        **fence(
            config, spec.cluster_id, spec.gpu_model, spec.gpus_per_node, unknown_model="job_gpu_model_unknown", slices=spec.mig
        ),
        **marked_pod(job_name(spec.token) if claims_gpus(spec, config) else ""),
        "restartPolicy": "Never",
        "subdomain": HEADLESS,
        "affinity": _affinity(spec, by_topology=kueue is not None and kueue.topology and bool(config.topology_labels)),
        "containers": [_container(spec, config)],
        "volumes": [
            {"name": "script", "secret": _script_file(spec)},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *([{"name": "secrets", "secret": _secret_files(spec)}] if spec.secret_files else []),
            *(
                {"name": claim_name(one), "persistentVolumeClaim": {"claimName": claim_name(one)}}
                for one in sorted({mount.volume for mount in spec.mounts})
            ),
        ],
    }


def _container(spec: JobSpec, config: WorkConfig) -> Json:
    return {
        **confine(config, spec.gpus_per_node, spec.mig),
        "name": CONTAINER,
        "image": spec.image or config.image,
        "command": [f"{_SCRIPT_AT}/script"],
        "env": _environment(spec),
        "volumeMounts": [
            {"name": "script", "mountPath": _SCRIPT_AT, "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the mount that collective libraries expect
            *([{"name": "secrets", "mountPath": SECRETS_AT, "readOnly": True}] if spec.secret_files else []),
            *(_mount(one, config) for one in spec.mounts),
        ],
    }


def _mount(one: Mount, config: WorkConfig) -> Json:
    only = one.read_only or config.volumes[one.volume].read_only
    return {"name": claim_name(one.volume), "mountPath": one.path, **({"readOnly": True} if only else {})}


def _environment(spec: JobSpec) -> list[Json]:
    """
    What launchers such as torchrun need to find each other, then the job's own, which wins.
    """
    name = job_name(spec.token)
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    ours: dict[str, Json] = {
        **({} if mpi.is_mpi(spec) else {"NODE_RANK": {"valueFrom": index}}),
        "NNODES": {"value": str(spec.nodes)},
        "GPUS_PER_NODE": {"value": str(spec.gpus_per_node)},
        "TASKS_PER_NODE": {"value": str(spec.tasks_per_node)},
        "MASTER_ADDR": {"value": f"{name}-worker-0.{name}-worker" if mpi.is_mpi(spec) else f"{name}-0.{HEADLESS}"},
        "MASTER_PORT": {"value": str(RENDEZVOUS_PORT)},
    }
    own = from_secret(name, spec.env | spec.secret_env)
    if spec.secret_files:
        ours["SECRETS_DIR"] = {"value": SECRETS_AT}
    return [{"name": key, **value} for key, value in (ours | own).items()]


def _script_file(spec: JobSpec) -> Json:
    return {"secretName": job_name(spec.token), "defaultMode": _RUN_ALL, "items": [{"key": "script", "path": "script"}]}


def _secret_files(spec: JobSpec) -> Json:
    return secret_files(job_name(spec.token), {name: f"file.{name}" for name in spec.secret_files})


def _affinity(spec: JobSpec, *, by_topology: bool) -> Json:
    """
    One pod on a node, and none on excluded ones. Kueue's topology places without regard to this rule, so there it is a wish.
    """
    apart = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {TOKEN: spec.token}}}
    if by_topology:
        rule: Json = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]}
    else:
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    affinity: Json = {"podAntiAffinity": rule}
    if spec.exclude:
        away = [{"key": "metadata.name", "operator": "NotIn", "values": [ref]} for ref in spec.exclude]
        terms = {"nodeSelectorTerms": [{"matchFields": away}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return affinity
