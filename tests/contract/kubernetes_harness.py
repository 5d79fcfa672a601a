"""
The Kubernetes kit under the contract suite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import pytest

from controlplane.providers.clusters import Member
from tests.contract.harness import Harness
from tests.kubernetes_kit import UNTIDY, WHY, KubernetesKit, kubernetes_kit

MARKS: tuple[pytest.MarkDecorator, ...] = (UNTIDY,)
POLL_S = 0.02
DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByTaintManager",
    "message": "its node does not answer",
}


class KubernetesHarness(Harness):
    """
    An emulator of its own, with a Kueue that admits gangs whole.
    """

    patience_s = 20.0
    # The nodes are their operator's and stay on. The emulator knows no activeDeadlineSeconds. No container has an srun.
    lacks = frozenset({"machines", "short_time_limits", "srun"})

    def __init__(self, kit: KubernetesKit) -> None:
        self.kit = kit
        self.adapter = kit.adapter()
        self._free = iter(sorted(name for _, name in kit.emulator.data[("", "nodes")]))
        self._numbers = count(1)
        self._clusters: set[str] = set()

    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        The next nodes.
        """
        return tuple(next(self._free) for _ in range(count))

    def user_of(self, tenant_id: str) -> str:
        """
        Namespaces keep tenants apart; jobs have no account.
        """
        return f"u-{tenant_id.replace('_', '-')}"

    def make_members(self, cluster_id: str, tenant_id: str, refs: tuple[str, ...]) -> tuple[Member, ...]:
        """
        Nothing is deployed; the server's clock has seconds only, so late members wait for the next one.
        """
        if cluster_id in self._clusters:
            time.sleep(1.05 - time.time() % 1)
        self._clusters.add(cluster_id)
        return tuple(Member(ref, self.gpus_per_node, self.new_id("alc")) for ref in refs)

    def pass_time(self) -> None:
        """
        Real time.
        """
        time.sleep(POLL_S)

    def now_s(self) -> float:
        """
        Real time.
        """
        return time.monotonic()

    def admin_drain(self, ref: str, reason: str) -> None:
        """
        A cordon, with the reason where this operator writes it.
        """
        self.kit.ask("PATCH", f"/api/v1/nodes/{ref}", {"metadata": {"annotations": {WHY: reason}}, "spec": {"unschedulable": True}})

    def admin_undrain(self, ref: str) -> None:
        """
        The cordon is lifted.
        """
        self.kit.ask("PATCH", f"/api/v1/nodes/{ref}", {"metadata": {"annotations": {WHY: None}}, "spec": {"unschedulable": None}})

    def node_dies(self, ref: str) -> None:
        """
        Its kubelet has gone silent, and the controllers have given up its pods.
        """
        self._ready(ref, "Unknown")
        for pod in self.kit.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={ref}")["items"]:
            if pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
                self.kit.ask("PATCH", path, {"status": {"phase": "Failed", "conditions": [DISRUPTED]}})

    def node_returns(self, ref: str) -> None:
        """
        Its kubelet reports again.
        """
        self._ready(ref, "True")

    def new_id(self, kind: str) -> str:
        """
        Numbered from 1.
        """
        return f"{kind}_{next(self._numbers):06d}"

    def _ready(self, ref: str, status: str) -> None:
        conditions = [{"type": "Ready", "status": status, "reason": "KubeletReady" if status == "True" else "NodeStatusUnknown"}]
        self.kit.ask("PATCH", f"/api/v1/nodes/{ref}/status", {"status": {"conditions": conditions}})


@contextmanager
def _open(directory: Path) -> Iterator[Harness]:
    del directory
    with kubernetes_kit(more=("lws", "keda", "metrics")) as kit:
        harness = KubernetesHarness(kit)
        try:
            yield harness
        finally:
            harness.adapter.close()


def harnesses() -> Mapping[str, Callable[[Path], AbstractContextManager[Harness]]]:
    """
    The kit's emulator, checked against a recorded kube-apiserver 1.36.
    """
    return {"kubernetes": _open}
