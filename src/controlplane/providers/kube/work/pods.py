"""
What every pod of a tenant has, whatever runs in it: its cluster's nodes and no others, and no right beyond its container.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from controlplane.providers.errors import Refused
from controlplane.providers.gpus import Slices
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.devices import CLAIM
from controlplane.providers.kube.work.names import CLUSTER
from controlplane.providers.kube.work.slicing import limits
from controlplane.providers.kube.work.walls import toleration

Json = dict[str, Any]
MAX_SECRET_BYTES = 900_000
"""What a Secret of ours may hold; the server's own limit is 1 MiB for the whole object."""
SECRETS_AT = "/controlplane-secrets"
"""What SECRETS_DIR names."""
_READ_OWN = 0o440
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,252}")


def odd_variables(env: Mapping[str, str]) -> list[str]:
    """
    The names of variables that no container can be given as they are.
    """
    return [key for key, value in env.items() if not _VARIABLE.fullmatch(key) or "\0" in value]


def from_secret(secret: str, names: Iterable[str]) -> dict[str, Json]:
    """
    Variables whose values stand in the Secret, under `env.<name>`.
    """
    return {key: {"valueFrom": {"secretKeyRef": {"name": secret, "key": f"env.{key}"}}} for key in names}


def odd_files(names: Iterable[str]) -> list[str]:
    """
    The names of files that no volume is given: what could be more than a name.
    """
    return [name for name in names if not _FILE.fullmatch(name)]


def secret_files(secret: str, keys: Mapping[str, str]) -> Json:
    """
    A volume's source: the Secret's values as files of these names, by their keys there; the pod's group may read them and nobody else.
    """
    items = [{"key": key, "path": name} for name, key in sorted(keys.items())]
    return {"secretName": secret, "defaultMode": _READ_OWN, "items": items}


def fence(
    config: WorkConfig, cluster_id: str, gpu_model: str, gpus: int, *, unknown_model: str, slices: Slices | None = None
) -> Json:
    """
    The fields of a pod that keep it in its place; a whole Kubernetes of one tenant's has no other place. Slices are given by the same
    runtime as whole GPUs. Raises Refused, with the code `unknown_model`, for a model that no label stands for.
    """
    shared = not config.whole
    place = {CLUSTER: cluster_id} if shared else {}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": place | _model(config, gpu_model, gpus, unknown_model),
        "tolerations": [toleration(cluster_id)] if shared else [],
        **({"runtimeClassName": config.gpu_runtime_class} if (gpus or slices) and config.gpu_runtime_class else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": config.run_as_user,
            "runAsGroup": config.run_as_user,
            "fsGroup": config.run_as_user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def confine(config: WorkConfig, gpus: int, slices: Slices | None = None) -> Json:
    """
    The fields of a container that hold what it may use: so many GPUs or slices of GPUs, and no privilege.
    """
    counted = limits(slices, config) or ({config.gpu_resource: str(gpus)} if gpus else {})
    held: Json = {"limits": counted, "requests": counted} if counted else {}
    if counted and config.gpus_by == "dra":
        held = {"claims": [{"name": CLAIM}]}
    return {
        "resources": held,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _model(config: WorkConfig, gpu_model: str, gpus: int, unknown_model: str) -> dict[str, str]:
    if not (gpu_model and gpus and config.gpu_models) or config.gpus_by == "dra":
        return {}
    if gpu_model not in config.gpu_models:
        raise Refused(f"no label is configured for {gpu_model}", code=unknown_model)
    return {config.gpu_model_label: config.gpu_models[gpu_model]}
