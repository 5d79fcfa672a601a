"""
A service as objects, pure functions from the order: a Deployment, or a LeaderWorkerSet where a replica spans nodes, and more.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from controlplane.providers.errors import Refused
from controlplane.providers.kube.work.config import WorkConfig, check_image
from controlplane.providers.kube.work.devices import marked_pod, marked_template, refuse_kind, template_body
from controlplane.providers.kube.work.names import (
    HOSTNAME,
    QUEUE,
    SERVICE,
    TURN,
    VERSION,
    Names,
    core,
    grouped,
    service_name,
)
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
from controlplane.providers.kube.work.walls import Part, Queueing
from controlplane.providers.services import CPU, ServiceSpec

Json = dict[str, Any]
CONTAINER = "service"
APPS, AUTOSCALING = "apps/v1", "autoscaling/v2"
LWS, KEDA = "leaderworkerset.x-k8s.io/v1", "keda.sh/v1alpha1"
LWS_NAME, LWS_INDEX = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/worker-index"
_METRIC = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,127}")
"""Nothing else: it becomes part of a query, which could tell of others' pods."""
_FOLDER = "/controlplane"
_CACHE = f"{_FOLDER}-cache"


@dataclass(frozen=True, slots=True)
class Offer:
    """
    What the server has beside its own kinds.
    """

    lws: bool = False
    """LeaderWorkerSet."""
    keda: bool = False
    """KEDA's ScaledObject."""
    cpu: bool = False
    """A metrics server: processor use of pods."""
    custom: bool = False
    """Metrics that pods tell themselves."""


def refuse_unsendable(spec: ServiceSpec, offer: Offer, config: WorkConfig) -> None:
    """
    The service can be written as objects here. Raises Refused for what could never run as it is meant.
    """
    try:
        check_image(spec.image)
    except ValueError as error:
        raise Refused(f"image: {error}", code="service_image_invalid") from error
    refuse_kind(spec.gpu, config)
    refuse_slices(spec.mig, spec.gpus_per_node, config)
    env = {**spec.env, **spec.secret_env}
    odd = odd_variables(env) + odd_files(spec.secret_files)
    size = sum(len(key) + len(value.encode()) for key, value in {**env, **spec.secret_files}.items())
    size += sum(len(one.content) for one in spec.files)
    if odd or size > MAX_SECRET_BYTES or not all(_stays_inside(one.path) for one in spec.files):
        raise Refused("the environment or files cannot be sent", code="service_env_invalid")
    if spec.nodes > 1 and not offer.lws:
        raise Refused(
            "a replica of several nodes needs the LeaderWorkerSet controller on the cluster", code="service_nodes_unsupported"
        )
    if spec.scaling is not None and not _METRIC.fullmatch(spec.scaling.metric):
        raise Refused("that is no name of a metric", code="service_metric_invalid")
    if spec.scaling is not None and scaler_of(spec, offer, config) == "":
        words = f"the cluster has nothing that tells {spec.scaling.metric}"
        raise Refused(words, code="service_metric_unsupported")


def _stays_inside(path: str) -> bool:
    """
    Whether a volume takes the path for a file below its root: no absolute one, and none that begins with the volume's own `..data`.
    """
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith(("/", "..")) and ".." not in parts and "\0" not in path


def scaler_of(spec: ServiceSpec, offer: Offer, config: WorkConfig) -> str:
    """
    `hpa` or `keda`; empty where neither can follow the metric, or none is asked for.
    """
    if spec.scaling is None:
        return ""
    if spec.scaling.metric == CPU:
        return "hpa" if offer.cpu else ""
    if offer.keda and config.prometheus_url:
        return "keda"
    return "hpa" if offer.custom else ""


def main_path(names: Names, cluster_id: str, service_id: str, *, spread: bool) -> str:
    """
    Where the Deployment, or the LeaderWorkerSet, is.
    """
    name, ns = service_name(service_id), names.namespace(cluster_id)
    return grouped(LWS, "leaderworkersets", name, namespace=ns) if spread else grouped(APPS, "deployments", name, namespace=ns)


def main(names: Names, spec: ServiceSpec, config: WorkConfig, kueue: Queueing | None, replicas: int) -> Json:
    """
    The Deployment, or the LeaderWorkerSet where a replica spans nodes.
    """
    labels = names.labels(spec.cluster_id) | {SERVICE: spec.service_id}
    marks = {**labels, **({QUEUE: "cluster"} if kueue is not None else {})}
    metadata = {
        "name": service_name(spec.service_id),
        "namespace": names.namespace(spec.cluster_id),
        "labels": marks,
        "annotations": {TURN: str(spec.turn), VERSION: str(spec.version)},
    }
    bounds = {"maxSurge": spec.surge, "maxUnavailable": spec.unavailable}
    own: Json = {"labels": {**labels, VERSION: str(spec.version)}}
    if claims_gpus(spec, config):
        own["annotations"] = marked_template(spec.gpus_per_node)
    if spec.nodes == 1:
        body: Json = {
            "replicas": replicas,
            "selector": {"matchLabels": {SERVICE: spec.service_id}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": bounds},
            "revisionHistoryLimit": 3,
            "template": {"metadata": own, "spec": _pod(spec, config, spec.command, first=True)},
        }
        return {"apiVersion": APPS, "kind": "Deployment", "metadata": metadata, "spec": body}
    followers = spec.worker_command or spec.command
    group = {
        "size": spec.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": own, "spec": _pod(spec, config, spec.command, first=True)},
        "workerTemplate": {"metadata": own, "spec": _pod(spec, config, followers, first=False)},
    }
    body = {
        "replicas": replicas,
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": bounds},
        "leaderWorkerTemplate": group,
    }
    return {"apiVersion": LWS, "kind": "LeaderWorkerSet", "metadata": metadata, "spec": body}


def bare(body: Json) -> Json:
    """
    The main object with what every version of it has, and no replica: what it is made as. The fields of a create stay owned as such, so a
    later version could not do without them; all others are applied.
    """
    spec = body["spec"]
    metadata = {**body["metadata"], "annotations": {TURN: "0"}}
    if "template" in spec:
        kept = {"replicas": 0, "selector": spec["selector"], "template": _bare_pod(spec["template"])}
        return {**body, "metadata": metadata, "spec": kept}
    group = spec["leaderWorkerTemplate"]
    templates = {name: _bare_pod(group[name]) for name in ("leaderTemplate", "workerTemplate")}
    return {**body, "metadata": metadata, "spec": {"replicas": 0, "leaderWorkerTemplate": {"size": group["size"], **templates}}}


def _bare_pod(template: Json) -> Json:
    containers = [{name: one[name] for name in ("name", "image")} for one in template["spec"]["containers"]]
    return {"metadata": {"labels": template["metadata"]["labels"]}, "spec": {"containers": containers}}


def beside(names: Names, spec: ServiceSpec, config: WorkConfig, offer: Offer, owner: Json) -> tuple[Part, ...]:
    """
    The Secret of the version, the Service and what scales it. The main object owns them all, so they go when it goes.
    """
    ns, name = names.namespace(spec.cluster_id), service_name(spec.service_id)
    scaler = scaler_of(spec, offer, config)
    target = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": name}

    def part(api: str, kind: str, plural: str, called: str, **fields: Any) -> Part:
        path = core(ns, plural, called) if api == "v1" else grouped(api, plural, called, namespace=ns)
        metadata = {
            "name": called,
            "namespace": ns,
            "labels": names.labels(spec.cluster_id) | {SERVICE: spec.service_id},
            "ownerReferences": [{**target, "uid": owner["metadata"]["uid"]}],
        }
        return Part(path, {"apiVersion": api, "kind": kind, "metadata": metadata} | fields)

    selector = {SERVICE: spec.service_id} | ({LWS_INDEX: "0"} if spec.nodes > 1 else {})
    ports = [{"name": "http", "port": spec.port, "targetPort": spec.port, "protocol": "TCP"}]
    parts = [
        part("v1", "Secret", "secrets", secret_name(spec), type="Opaque", data=_secret_data(spec)),
        part("v1", "Service", "services", name, spec={"type": "ClusterIP", "selector": selector, "ports": ports}),
    ]
    if scaler == "hpa":
        parts.append(part(AUTOSCALING, "HorizontalPodAutoscaler", "horizontalpodautoscalers", name, spec=_hpa(spec, target)))
    if scaler == "keda":
        parts.append(part(KEDA, "ScaledObject", "scaledobjects", name, spec=_scaled_object(spec, target, ns, config)))
    return tuple(parts)


def claims_gpus(spec: ServiceSpec, config: WorkConfig) -> bool:
    """
    Whether the replicas get their GPUs by claims.
    """
    return bool(spec.gpus_per_node) and config.gpus_by == "dra"


def claims(names: Names, spec: ServiceSpec, config: WorkConfig, api: str, owner: Json | None) -> Part:
    """
    What the claims of the version's pods are made from; it cannot be changed, so each version has its own, named as its Secret.
    """
    ns, name = names.namespace(spec.cluster_id), secret_name(spec)
    labels = names.labels(spec.cluster_id) | {SERVICE: spec.service_id}
    metadata: Json = {"name": name, "namespace": ns, "labels": labels}
    if owner is not None:
        target = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": service_name(spec.service_id)}
        metadata["ownerReferences"] = [{**target, "uid": owner["metadata"]["uid"]}]
    body = template_body(api, metadata, spec.gpus_per_node, spec.gpu, spec.gpu_model, config)
    return Part(grouped(api, "resourceclaimtemplates", name, namespace=ns), body)


def scaler_paths(names: Names, cluster_id: str, service_id: str, offer: Offer) -> dict[str, str]:
    """
    Where each kind of scaler of the service is, as far as the server knows the kind.
    """
    ns, name = names.namespace(cluster_id), service_name(service_id)
    paths = {"hpa": grouped(AUTOSCALING, "horizontalpodautoscalers", name, namespace=ns)}
    return paths | ({"keda": grouped(KEDA, "scaledobjects", name, namespace=ns)} if offer.keda else {})


def secret_name(spec: ServiceSpec) -> str:
    """
    Of the version's Secret: pods of an older version that start again still find theirs.
    """
    return f"{service_name(spec.service_id)}-v{spec.version}"


def _hpa(spec: ServiceSpec, target: Json) -> Json:
    assert spec.scaling is not None
    wish = {"type": "AverageValue", "averageValue": _quantity(spec.scaling.target)}
    if spec.scaling.metric == CPU:
        metric: Json = {"type": "Resource", "resource": {"name": "cpu", "target": wish}}
    else:
        metric = {"type": "Pods", "pods": {"metric": {"name": spec.scaling.metric}, "target": wish}}
    return {
        "scaleTargetRef": target,
        "minReplicas": spec.scaling.least,
        "maxReplicas": spec.scaling.most,
        "metrics": [metric],
    }


def _scaled_object(spec: ServiceSpec, target: Json, ns: str, config: WorkConfig) -> Json:
    assert spec.scaling is not None
    query = f'sum({spec.scaling.metric}{{namespace="{ns}",pod=~"{service_name(spec.service_id)}-.+"}})'
    told = {"serverAddress": config.prometheus_url, "query": query, "threshold": f"{spec.scaling.target:g}"}
    return {
        "scaleTargetRef": target,
        "minReplicaCount": spec.scaling.least,
        "maxReplicaCount": spec.scaling.most,
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": told}],
    }


def _quantity(value: float) -> str:
    return f"{max(1, round(value * 1000))}m"


def _secret_data(spec: ServiceSpec) -> dict[str, str]:
    texts = {f"env.{key}": value for key, value in (spec.env | spec.secret_env).items()}
    texts |= {f"secret.{name}": value for name, value in spec.secret_files.items()}
    texts |= {f"file.{number}": one.content for number, one in enumerate(spec.files)}
    return {key: base64.b64encode(value.encode()).decode() for key, value in texts.items()}


def _pod(spec: ServiceSpec, config: WorkConfig, command: tuple[str, ...], *, first: bool) -> Json:
    files = [{"key": f"file.{number}", "path": one.path} for number, one in enumerate(spec.files)]
    volumes: list[Json] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, {"name": "cache", "emptyDir": {}}]
    if files:
        volumes.append({"name": "files", "secret": {"secretName": secret_name(spec), "items": files}})
    if spec.secret_files:
        keys = {name: f"secret.{name}" for name in spec.secret_files}
        volumes.append({"name": "secrets", "secret": secret_files(secret_name(spec), keys)})
    pod: Json = {
        **fence(
            config, spec.cluster_id, spec.gpu_model, spec.gpus_per_node, unknown_model="service_gpu_model_unknown", slices=spec.mig
        ),
        **marked_pod(secret_name(spec) if claims_gpus(spec, config) else ""),
        "containers": [_container(spec, config, command, first=first)],
        "volumes": volumes,
    }
    if spec.nodes > 1:
        apart = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {SERVICE: spec.service_id}}}
        wish = [{"weight": 100, "podAffinityTerm": apart}]
        pod["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wish}}
    return pod


def _container(spec: ServiceSpec, config: WorkConfig, command: tuple[str, ...], *, first: bool) -> Json:
    mounts: list[Json] = [
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the mount that collective libraries expect
        {"name": "cache", "mountPath": _CACHE},
    ]
    if spec.files:
        mounts.append({"name": "files", "mountPath": _FOLDER, "readOnly": True})
    if spec.secret_files:
        mounts.append({"name": "secrets", "mountPath": SECRETS_AT, "readOnly": True})
    made: Json = {
        **confine(config, spec.gpus_per_node, spec.mig),
        "name": CONTAINER,
        "image": spec.image,
        "env": _environment(spec),
        "volumeMounts": mounts,
    }
    if command:
        made["command"] = [one.replace("$", "$$") for one in command]  # the server would take $(NAME) for its own
    if spec.files:
        made["workingDir"] = _FOLDER
    return made | (_probes(spec) if first else {}) | ({"ports": [{"name": "http", "containerPort": spec.port}]} if first else {})


def _probes(spec: ServiceSpec) -> Json:
    """
    The first readiness is waited for by a probe of its own, for models take long to load.
    """
    ready = spec.readiness
    ask: Json = {"httpGet": {"path": ready.path, "port": spec.port}} if ready.path else {"tcpSocket": {"port": spec.port}}
    tries = max(1, -(-ready.start_within_s // ready.every_s))
    return {
        "startupProbe": {**ask, "periodSeconds": ready.every_s, "failureThreshold": tries, "timeoutSeconds": 5},
        "readinessProbe": {**ask, "periodSeconds": ready.every_s, "failureThreshold": ready.failures, "timeoutSeconds": 5},
    }


def _environment(spec: ServiceSpec) -> list[Json]:
    ours: dict[str, Json] = {"GPUS_PER_NODE": {"value": str(spec.gpus_per_node)}, "HF_HOME": {"value": f"{_CACHE}/huggingface"}}
    if spec.nodes > 1:  # the controller puts its own variables before these
        ours |= {
            "MASTER_ADDR": {"value": "$(LWS_LEADER_ADDRESS)"},
            "NNODES": {"value": "$(LWS_GROUP_SIZE)"},
            "NODE_RANK": {"value": "$(LWS_WORKER_INDEX)"},
        }
    if spec.secret_files:
        ours["SECRETS_DIR"] = {"value": SECRETS_AT}
    own = from_secret(secret_name(spec), spec.env | spec.secret_env)
    return [{"name": key, **value} for key, value in (ours | own).items()]
