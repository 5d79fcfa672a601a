"""
Clusters that Cluster API makes, under the suites of jobs and services: each has an API server of its own, an emulator with a Kueue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from controlplane.providers.clusters import ClusterSpec
from tests.capi_kit import CapiKit, capi_kit
from tests.contract.clusterapi_harness import ClusterApiHarness
from tests.contract.kubernetes_harness import DISRUPTED
from tests.kubernetes_kit import KubernetesKit, kubernetes_kit


class ManagedHarness(ClusterApiHarness):
    """
    Its clusters run jobs and services.
    """

    lacks = frozenset({"admin_drain", "short_time_limits", "srun"})

    def __init__(self, kit: CapiKit, stack: ExitStack, *, kueue: bool, more: tuple[str, ...] = ()) -> None:
        super().__init__(kit)
        self._stack = stack
        self._kueue = kueue
        self._more = ("lws", "keda", "metrics", *more)

    def new_id(self, kind: str) -> str:
        """
        A cluster's API server is there before the cluster: it stands for what Cluster API will have made.
        """
        made = super().new_id(kind)
        if kind == "clu":
            theirs = self._stack.enter_context(kubernetes_kit(nodes=0, kueue=self._kueue, more=self._more))
            self.kit.apart[f"contract-{made.replace('_', '-')}"] = theirs
        return made

    def theirs(self, spec: ClusterSpec) -> KubernetesKit:
        """
        The cluster's own API server.
        """
        return self.kit.apart[f"contract-{spec.cluster_id.replace('_', '-')}"]

    def another_process(self, **config: Any) -> Any:
        """
        An adapter that remembers nothing.
        """
        made = self.kit.adapter(**config)
        self._stack.callback(made.close)
        return made

    def node_dies(self, ref: str) -> None:
        """
        Its kubelet has gone silent, and the controllers have given up its pods. In this order, or their successors could come here, too.
        """
        super().node_dies(ref)
        node = self.kit.node_of(ref)
        for kit in self.kit.apart.values():
            for pod in kit.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={node}")["items"]:
                if pod["status"]["phase"] not in {"Succeeded", "Failed"}:
                    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/status"
                    kit.ask("PATCH", path, {"status": {"phase": "Failed", "conditions": [DISRUPTED]}})

    def _ready(self, ref: str, status: str) -> None:
        conditions = [{"type": "Ready", "status": status, "reason": "KubeletReady" if status == "True" else "NodeStatusUnknown"}]
        node = self.kit.node_of(ref)
        kit = next(kit for name, kit in self.kit.apart.items() if node.startswith(f"{name}-"))
        kit.ask("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": conditions}})


@contextmanager
def managed_harness(*, kueue: bool = True, hosts: int = 6, more: tuple[str, ...] = ()) -> Iterator[ManagedHarness]:
    """
    A harness with no cluster yet, in all of which `more` is installed.
    """
    with ExitStack() as stack:
        kit = stack.enter_context(capi_kit(hosts=hosts))
        harness = ManagedHarness(kit, stack, kueue=kueue, more=more)
        stack.callback(harness.adapter.close)
        yield harness
