"""
Pods of a namespace that was taken over and that are not ours: what they ask for is not there for jobs and services. Pure.

Source: kubernetes.io, "Init Containers", "Sidecar Containers": what a pod needs is the larger of what its containers need together and of
what its way up needs; "Pod Overhead"; "Assign Pod-level CPU and memory resources".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from controlplane.providers.kube.work.pool import ended
from controlplane.providers.kube.work.quantities import amount

Json = dict[str, Any]


def left_over(sums: Mapping[str, str], pods: Iterable[Json]) -> dict[str, str]:
    """
    What the pods leave of the sums, none less than nothing.
    """
    taken: dict[str, Decimal] = dict.fromkeys(sums, Decimal(0))
    for pod in pods:
        if not ended(pod):
            for name, asked in needs(pod).items():
                if name in taken:
                    taken[name] += asked
    return {name: str(max(0, int(amount(there) - taken[name]))) for name, there in sums.items()}


def needs(pod: Json) -> dict[str, Decimal]:
    """
    What a node must have for the pod, of every resource that it names.
    """
    spec = pod.get("spec", {})
    running = [_of(one) for one in spec.get("containers") or []]
    beside: list[dict[str, Decimal]] = []
    most: dict[str, Decimal] = {}
    for one in spec.get("initContainers") or []:
        own = _of(one)
        if one.get("restartPolicy") == "Always":
            beside.append(own)
            own = {}
        most = _larger(most, _added([*beside, own]))
    total = _larger(_added([*running, *beside]), most)
    total |= _of(spec)  # of the pod as a whole, where it says so
    return _added([total, _read(spec.get("overhead") or {})])


def _of(container: Json) -> dict[str, Decimal]:
    """
    What it asks for; a limit without a request is one.
    """
    resources = container.get("resources") or {}
    return _read(resources.get("limits") or {}) | _read(resources.get("requests") or {})


def _read(told: Mapping[str, Any]) -> dict[str, Decimal]:
    return {name: amount(str(value)) for name, value in told.items()}


def _added(parts: Iterable[Mapping[str, Decimal]]) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, Decimal(0)) + value
    return sums


def _larger(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in {*one, *other}}
