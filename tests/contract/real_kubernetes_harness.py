"""
Any Kubernetes under the contract suite: the one that KUBECONFIG names, when CONTROLPLANE_USE_KUBECONFIG=1 says that it is meant.

Everything is made under an installation name drawn for the run, in namespaces of that name, so nothing that is there is touched but free
GPU nodes: they are marked, and cordoned where a test needs an administrator. After each test all of it is gone, or the test fails.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.access import access
from controlplane.providers.adapters.kubernetes.adapter import build
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.errors import ProviderError
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.names import CLUSTER
from controlplane.providers.kube.work.pool import gpus_of, state_of
from controlplane.providers.registry import AdapterInput
from tests.contract.harness import Harness
from tests.contract.on_kubernetes import OnKubernetes

SWITCH = "CONTROLPLANE_USE_KUBECONFIG"
WHY = "controlplane.test/why"
IMAGE = "CONTROLPLANE_TEST_IMAGE"
"""An image with a bash that the cluster can pull; unset: the adapter's own default."""
MARKS: tuple[pytest.MarkDecorator, ...] = (pytest.mark.timeout(900),)
POLL_S = 0.5
REMOVED_S = 300.0


class RealKubernetesHarness(OnKubernetes):
    """
    Nodes with GPUs that nobody uses, of a cluster that somebody else runs.
    """

    poll_s = POLL_S
    patience_s = 300.0
    # The nodes are their operator's: none is killed, and how soon a limit is enforced is the cluster's affair.
    lacks = frozenset({"machines", "node_death", "short_time_limits", "srun"})

    def __init__(self, kubeconfig: str) -> None:
        super().__init__()
        config: dict[str, Any] = {"settle_s": 0, "cordon_reason": WHY}
        config |= {"image": os.environ[IMAGE]} if os.environ.get(IMAGE) else {}
        given = {"kubeconfig": kubeconfig}
        self.deployment = f"cptest-{secrets.token_hex(4)}"
        self.adapter = build(AdapterInput("prv_real", config, given, self.deployment, lambda: datetime.now(UTC)))
        way = access(KubernetesConfig(), given)
        self._admin = Kube(way, timeout_s=20.0, max_body_bytes=64 << 20, page_size=500)
        free = [one for one in self._admin.list_all("/api/v1/nodes") if _is_free(one)]
        self.gpus_per_node = min((gpus_of(one, "nvidia.com/gpu") or 0 for one in free), default=0)
        self._free = iter(sorted(one["metadata"]["name"] for one in free))
        self._cordoned: set[str] = set()

    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        The next nodes; the test is skipped where there are too few.
        """
        found = tuple(name for name, _ in zip(self._free, range(count), strict=False))
        if len(found) < count:
            pytest.skip("the cluster has too few free nodes with GPUs")
        return found

    def admin_drain(self, ref: str, reason: str) -> None:
        """
        A cordon, with the reason where this operator writes it.
        """
        self._cordoned.add(ref)
        self._admin.patch(f"/api/v1/nodes/{ref}", {"metadata": {"annotations": {WHY: reason}}, "spec": {"unschedulable": True}})

    def admin_undrain(self, ref: str) -> None:
        """
        The cordon is lifted.
        """
        self._admin.patch(f"/api/v1/nodes/{ref}", {"metadata": {"annotations": {WHY: None}}, "spec": {"unschedulable": None}})
        self._cordoned.discard(ref)

    def node_dies(self, ref: str) -> None:
        """
        Never here.
        """
        pytest.fail(f"{ref} is somebody's: nothing here kills it")

    def node_returns(self, ref: str) -> None:
        """
        Never here.
        """
        pytest.fail(f"{ref} is somebody's: nothing here kills it")

    def clean(self) -> None:
        """
        Nothing of this run is left. Raises AssertionError naming what is.
        """
        for ref in list(self._cordoned):
            self.admin_undrain(ref)
        ends_at = time.monotonic() + REMOVED_S
        while left := self.adapter.list_clusters().cluster_ids:
            assert time.monotonic() < ends_at, f"{self.deployment} is still there: {left}"
            for cluster_id in left:
                with suppress(ProviderError):
                    self.adapter.delete_cluster(cluster_id)
            time.sleep(POLL_S)
        self.adapter.close()
        self._admin.close()


def _is_free(node: dict[str, Any]) -> bool:
    held = CLUSTER in (node["metadata"].get("labels") or {}) or node["spec"].get("taints")
    return not held and state_of(node, 0) == "up" and bool(gpus_of(node, "nvidia.com/gpu"))


@contextmanager
def _open(directory: Path) -> Iterator[Harness]:
    del directory
    harness = RealKubernetesHarness(Path(os.environ["KUBECONFIG"]).expanduser().read_text(encoding="utf-8"))
    try:
        yield harness
    finally:
        harness.clean()


def harnesses() -> Mapping[str, Callable[[Path], AbstractContextManager[Harness]]]:
    """
    The cluster of KUBECONFIG, when it is meant.
    """
    return {"real-kubernetes": _open} if named_cluster() else {}


def named_cluster() -> Path | None:
    """
    The kubeconfig of a cluster to experiment with; None without the switch, as having KUBECONFIG set is no consent to make things there.
    With the switch and no such file nothing is skipped: the run ends before its first test.
    """
    if os.environ.get(SWITCH) != "1":
        return None
    path = Path(os.environ.get("KUBECONFIG") or "/nowhere").expanduser()
    if not path.is_file():
        raise pytest.UsageError(f"{SWITCH}=1 asks for a real Kubernetes, and KUBECONFIG names no file: {path}")
    return path
