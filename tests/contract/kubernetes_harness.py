"""
The Kubernetes kit under the contract suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.contract.harness import Harness
from tests.contract.on_kubernetes import OnKubernetes
from tests.kubernetes_kit import UNTIDY, WHY, KubernetesKit, kubernetes_kit

MARKS: tuple[pytest.MarkDecorator, ...] = (UNTIDY,)
POLL_S = 0.02
DISRUPTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByTaintManager",
    "message": "its node does not answer",
}


class KubernetesHarness(OnKubernetes):
    """
    An emulator of its own, with a Kueue that admits gangs whole.
    """

    poll_s = POLL_S
    patience_s = 20.0
    # The nodes are their operator's and stay on. The emulator knows no activeDeadlineSeconds. No container has an srun.
    lacks = frozenset({"machines", "short_time_limits", "srun"})

    def __init__(self, kit: KubernetesKit) -> None:
        super().__init__()
        self.kit = kit
        self.adapter = kit.adapter()
        self._free = iter(sorted(name for _, name in kit.emulator.data[("", "nodes")]))

    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        The next nodes.
        """
        return tuple(next(self._free) for _ in range(count))

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
