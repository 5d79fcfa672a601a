"""
A Kubernetes of one's own under the contract suites: an emulator for itself, with a control plane beside the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter, build
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.registry import AdapterInput
from controlplane.rendering.kubernetes.settings import adapter_config
from tests.contract.kubernetes_harness import KubernetesHarness
from tests.contract.on_kubernetes import OnKubernetes
from tests.factories.kubernetes_plans import keys, plain
from tests.kubernetes_kit import KubernetesKit, kubernetes_kit

LEADS = "node-role.kubernetes.io/control-plane"


class OwnHarness(KubernetesHarness):
    """
    One cluster only, whose workers are all nodes but the last. Who the owner is, the emulator does not ask.
    """

    def __init__(self, stack: ExitStack, *, kueue: bool, more: tuple[str, ...] = ()) -> None:
        OnKubernetes.__init__(self)
        self._stack = stack
        self._kueue = kueue
        self._more = ("lws", "keda", "metrics", *more)

    def cluster(self, count: int, tenant_id: str | None = None) -> ClusterSpec:
        """
        The Kubernetes is there, with so many workers.
        """
        tenant, cluster_id = tenant_id or self.tenants[0], self.new_id("clu")
        self.kit = self._stack.enter_context(kubernetes_kit(nodes=count + 1, kueue=self._kueue, more=self._more))
        *workers, lead = sorted(name for _, name in self.kit.emulator.data[("", "nodes")])
        make_lead(self.kit, lead)
        self.adapter = own_adapter(self.kit, cluster_id, tenant)
        self._stack.callback(self.adapter.close)
        members = tuple(Member(ref, self.gpus_per_node, "") for ref in workers)
        return ClusterSpec(cluster_id, tenant, "prj_contract", self.user_of(tenant), members)


def make_lead(kit: KubernetesKit, ref: str) -> None:
    """
    The node is a control plane: pods do not come to it, and its GPUs are given to none.
    """
    taint = {"key": LEADS, "effect": "NoSchedule"}
    kit.ask("PATCH", f"/api/v1/nodes/{ref}", {"metadata": {"labels": {LEADS: ""}}, "spec": {"taints": [taint]}})
    kit.ask("PATCH", f"/api/v1/nodes/{ref}/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})


def own_adapter(kit: KubernetesKit, cluster_id: str, tenant_id: str, **config: Any) -> KubernetesAdapter:
    """
    Built as for an order, but for the door: the emulator has no TLS.
    """
    made = {**adapter_config(plain(), cluster_id, tenant_id), "url": kit.handle.url, **config}
    return build(AdapterInput("prv_own", made, keys().secrets(), "contract", lambda: datetime.now(UTC)))


@contextmanager
def own_harness(*, kueue: bool = True, more: tuple[str, ...] = ()) -> Iterator[OwnHarness]:
    """
    A harness whose cluster begins with `cluster`; its owner has installed `more`.
    """
    with ExitStack() as stack:
        yield OwnHarness(stack, kueue=kueue, more=more)
