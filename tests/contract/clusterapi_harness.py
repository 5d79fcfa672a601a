"""
A management cluster under the contract suite: the Kubernetes kit's emulator, with Cluster API's and Metal3's controllers played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from controlplane.providers.clusters import Member
from controlplane.providers.machines import Deployment
from tests.capi_kit import CapiKit, capi_kit
from tests.contract.harness import Harness
from tests.contract.on_kubernetes import OnKubernetes
from tests.kubernetes_kit import UNTIDY

MARKS: tuple[pytest.MarkDecorator, ...] = (UNTIDY,)


class ClusterApiHarness(OnKubernetes):
    """
    Free hosts, and controllers that never rest.
    """

    poll_s = 0.02
    patience_s = 20.0
    # A cordon of the owner's own is the owner's: it makes no member less.
    lacks = frozenset({"jobs", "admin_drain"})

    def __init__(self, kit: CapiKit) -> None:
        super().__init__()
        self.kit = kit
        self.adapter = kit.adapter()
        self._free = iter(sorted(one["metadata"]["name"] for one in kit.kit.ask("GET", kit.hosts())["items"]))

    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        The next hosts.
        """
        return tuple(next(self._free) for _ in range(count))

    def make_members(self, cluster_id: str, tenant_id: str, refs: tuple[str, ...]) -> tuple[Member, ...]:
        """
        Each host is deployed first, for a cluster takes no other.
        """
        made = []
        for one in super().make_members(cluster_id, tenant_id, refs):
            wanted = Deployment(one.ref, one.token, tenant_id, cluster_id, network="net-contract")
            self.insist(partial(self.adapter.deploy, wanted), what="deploy")
            self.until(partial(self.adapter.observe, one.ref), lambda seen: seen.phase == "deployed", what="deployed")
            made.append(Member(one.ref, one.gpus, one.token, "workers", "gpu-8"))
        return tuple(made)

    def admin_drain(self, ref: str, reason: str) -> None:
        """
        Only owners cordon here.
        """
        raise AssertionError("a test that needs admin_drain was not left out")

    def admin_undrain(self, ref: str) -> None:
        """
        Only owners cordon here.
        """
        raise AssertionError("a test that needs admin_drain was not left out")

    def node_dies(self, ref: str) -> None:
        """
        Its kubelet has gone silent.
        """
        self._ready(ref, "Unknown")

    def node_returns(self, ref: str) -> None:
        """
        Its kubelet reports again.
        """
        self._ready(ref, "True")

    def _ready(self, ref: str, status: str) -> None:
        conditions = [{"type": "Ready", "status": status, "reason": "KubeletReady" if status == "True" else "NodeStatusUnknown"}]
        self.kit.tenant.ask("PATCH", f"/api/v1/nodes/{self.kit.node_of(ref)}/status", {"status": {"conditions": conditions}})


@contextmanager
def _open(directory: Path, *, api: str) -> Iterator[Harness]:
    del directory
    with capi_kit(api=api) as kit:
        harness = ClusterApiHarness(kit)
        if api != "v1beta2":
            harness.lacks |= {"machines"}  # hosts are Metal3's, which has one version: they were tried with the other
        try:
            yield harness
        finally:
            harness.adapter.close()


def harnesses() -> Mapping[str, Callable[[Path], AbstractContextManager[Harness]]]:
    """
    Cluster API as it serves itself today, and as older releases do.
    """
    return {"clusterapi": partial(_open, api="v1beta2"), "clusterapi-v1beta1": partial(_open, api="v1beta1")}
