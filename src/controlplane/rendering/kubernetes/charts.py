"""
Helm charts that an operator may offer, and the values that we give them: only what differs from the chart's own.

Source: the charts' own documentation: NVIDIA GPU Operator, NVIDIA Network Operator, NVIDIA DRA driver for GPUs, Kueue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.rendering.kubernetes.plan import KubernetesPlan

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Known:
    """
    A chart that we know how to set.
    """

    namespace: str
    """Where it is installed."""
    values: Callable[[KubernetesPlan], Values]
    """What it is told."""


def values_of(plan: KubernetesPlan, name: str) -> Values:
    """
    The values of this chart. Raises KeyError where it is not known.
    """
    return KNOWN[name].values(plan)


def _gpu_operator(plan: KubernetesPlan) -> Values:
    registry = {"repository": f"{plan.registry}/nvidia"} if plan.registry else {}
    return {
        # driver and container toolkit are the image's: a node's kernel and its modules are changed with the image alone
        "driver": {"enabled": False},
        "toolkit": {"enabled": False},
        "devicePlugin": {"enabled": "nvidia-dra-driver-gpu" not in plan.addons.charts},
        "dcgmExporter": {"enabled": True},
        "migManager": {"enabled": True},
        "mig": {"strategy": "mixed"},
        "operator": {"cleanupCRD": False, **registry},
    }


def _network_operator(plan: KubernetesPlan) -> Values:
    return {"nfd": {"enabled": "gpu-operator" not in plan.addons.charts}, "sriovNetworkOperator": {"enabled": False}}


def _dra_driver(plan: KubernetesPlan) -> Values:
    domains = any(one.position.nvlink_domain for one in plan.workers)
    return {
        "nvidiaDriverRoot": "/",
        "gpuResourcesEnabledOverride": True,
        "resources": {"gpus": {"enabled": True}, "computeDomains": {"enabled": domains}},
    }


def _kueue(plan: KubernetesPlan) -> Values:
    del plan
    return {"controllerManager": {"replicas": 2}}


KNOWN: Mapping[str, Known] = {
    "gpu-operator": Known("gpu-operator", _gpu_operator),
    "network-operator": Known("network-operator", _network_operator),
    "nvidia-dra-driver-gpu": Known("nvidia-dra-driver-gpu", _dra_driver),
    "kueue": Known("kueue-system", _kueue),
}
"""By name, which is the chart's and the release's."""
