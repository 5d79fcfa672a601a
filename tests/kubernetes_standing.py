"""
A namespace that somebody runs in a shared Kubernetes before we come: workloads behind policies of its own.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from tests.kubernetes_kit import KubernetesKit

JSON = "application/json"
THEIRS = "theirs"
BASE = f"/api/v1/namespaces/{THEIRS}"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{THEIRS}/networkpolicies"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{THEIRS}/deployments"
PATIENCE_S = 20.0
SECURE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def a_namespace(name: str = THEIRS, **labels: str) -> dict[str, Any]:
    """One that enforces the strictest level."""
    return {"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted", **labels}}}


def a_policy() -> dict[str, Any]:
    """It states all traffic of every pod, and lets the front in."""
    front = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "front"}}}
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": [front]}]}
    return {"metadata": {"name": "stated"}, "spec": spec}


def a_deployment(name: str = "serve", replicas: int = 2, gpus: int = 6, **spec: Any) -> dict[str, Any]:
    """One replica finds room on each node."""
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "4", "memory": "8Gi"}
    container = {"name": "main", "image": "a/b:1", "resources": {"limits": limits}, "securityContext": SECURE}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container], **spec}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def stand(kit: KubernetesKit, replicas: int = 2, gpus: int = 6) -> None:
    """The namespace runs its replicas, each on a node of its own."""
    kit.ask("POST", "/api/v1/namespaces", a_namespace(), JSON)
    kit.ask("POST", POLICIES, a_policy(), JSON)
    kit.ask("POST", DEPLOYMENTS, a_deployment(replicas=replicas, gpus=gpus), JSON)
    until(lambda: len(running(kit)) == replicas)


def pods(kit: KubernetesKit, namespace: str = THEIRS) -> list[Any]:
    """Its pods that are not over."""
    found = kit.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [one for one in found if one["status"].get("phase") not in {"Succeeded", "Failed"}]


def running(kit: KubernetesKit, namespace: str = THEIRS) -> dict[str, str]:
    """Pod to node, of those that run and are not ending."""
    return {
        one["metadata"]["name"]: one["spec"]["nodeName"]
        for one in pods(kit, namespace)
        if one["status"].get("phase") == "Running" and not one["metadata"].get("deletionTimestamp")
    }


def hosts(kit: KubernetesKit) -> list[str]:
    """Nodes that its pods run on."""
    return sorted(set(running(kit).values()))


def until(over: Callable[[], bool]) -> None:
    """The kit's controllers have come to it."""
    ends_at = time.monotonic() + PATIENCE_S
    while not over():
        assert time.monotonic() < ends_at, "it does not come to it"
        time.sleep(0.02)


def state(kit: KubernetesKit) -> dict[str, Any]:
    """All that is written there, but for versions, who wrote it, and what controllers and nodes report."""
    told = {}
    for (group, plural), things in kit.emulator.data.items():
        if plural in {"events", "leases", "workloads"}:
            continue
        for key, thing in things.items():
            kept = {name: value for name, value in copy.deepcopy(thing).items() if name != "status"}
            meta = kept["metadata"]
            for name in ("resourceVersion", "managedFields", "generation"):
                meta.pop(name, None)
            for name in ("labels", "annotations"):
                if not meta.get(name):
                    meta.pop(name, None)
            if not kept.get("spec", {}).get("taints", True):
                kept["spec"].pop("taints")
            told[f"{group} {plural} {'/'.join(key)}"] = kept
    return told
