"""
A control plane of three is replaced on hosts that really boot: it leaves before another comes, which joins the servers that stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hosts_kit, stand_ins_kit
from tests.e2e.rack import Metal, done, key_pair
from tests.e2e.test_own_kubernetes_hosts import free, names, objects, order, owner, running
from tests.e2e.test_own_kubernetes_slow import PATIENCE_S, nodes
from tests.hosts_kit import Lab
from tests.kubernetes_kit import UNTIDY, KubernetesKit
from tests.slurm_kit import SLOW

__all__ = ["objects"]
pytestmark = [UNTIDY, *SLOW[1:], pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Five hosts whose image has the stand-ins."""
    with stand_ins_kit.image(), hosts_kit.running_lab(5) as made:
        yield made


def test_a_control_plane_is_replaced_by_a_host_that_joins(metal: Metal, objects: KubernetesKit, tmp_path: Path) -> None:
    """
    Three servers of k3s found one cluster and not three; one leaves, its Node is gone and its machine wiped; the one in its place joins by
    the servers' token, and workers and the other servers are the same machines all the time.
    """
    hosts = free(metal, 5, PATIENCE_S)
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1, "k3s", leads=3)
    running(metal, path, PATIENCE_S)
    kube, _ = owner(metal, path, tmp_path)
    before = names(metal, path)
    assert nodes(kube) == {*before["cp"], *before["workers"]}
    goes = max(before["cp"])
    done(metal.tenant.post(f"{path}/instances/{goes.replace('-', '_')}/actions/replace", headers={"If-Match": "*"}))
    running(metal, path, PATIENCE_S)
    after = names(metal, path)
    assert (set(before["cp"]) - set(after["cp"]), len(after["cp"]), after["workers"]) == ({goes}, 3, before["workers"])
    assert nodes(kube) == {*after["cp"], *after["workers"]}
    states = [metal.until(f"/v1/admin/nodes/{one}", "available", "active", within_s=PATIENCE_S)["status"]["state"] for one in hosts]
    assert (states.count("active"), states.count("available")) == (4, 1)
    asked = [(method, where.split("?")[0]) for method, where in objects.asked()]
    assert ("DELETE", f"/api/v1/nodes/{goes}") in asked
