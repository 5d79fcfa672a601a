"""
A control plane of three is replaced on hosts that really boot: it leaves before another comes, which joins the servers that stay.
"""

from __future__ import annotations

import json
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
from tests.stand_ins.etcd import KEPT_AS

__all__ = ["objects"]
pytestmark = [UNTIDY, *SLOW[1:], pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Five hosts whose image has the stand-ins."""
    with stand_ins_kit.image(), hosts_kit.running_lab(5) as made:
        yield made


def voters(objects: KubernetesKit) -> set[str]:
    """Names of etcd's members that vote; none where it is not played."""
    maps = objects.ask("GET", "/api/v1/namespaces/kube-system/configmaps")["items"]
    kept = [json.loads(one["data"]["members"]) for one in maps if one["metadata"]["name"] == KEPT_AS]
    return {one["name"] for members in kept for one in members if not one["isLearner"]}


@pytest.mark.parametrize("distribution", ["kubeadm", "k3s"])
def test_a_control_plane_is_replaced_by_a_host_that_joins(
    metal: Metal, objects: KubernetesKit, tmp_path: Path, distribution: str
) -> None:
    """
    Three control planes found one cluster and not three; one leaves, its Node is gone, its member too where the stand-ins play etcd, and
    its machine wiped; the one in its place joins, and workers and the other control planes are the same machines all the time.
    """
    hosts = free(metal, 5, PATIENCE_S)
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1, distribution, leads=3)
    running(metal, path, PATIENCE_S)
    kube, _ = owner(metal, path, tmp_path)
    before = names(metal, path)
    assert nodes(kube) == {*before["cp"], *before["workers"]}
    assert voters(objects) == (set(before["cp"]) if distribution == "kubeadm" else set())
    goes = max(before["cp"])
    done(metal.tenant.post(f"{path}/instances/{goes.replace('-', '_')}/actions/replace", headers={"If-Match": "*"}))
    running(metal, path, PATIENCE_S)
    after = names(metal, path)
    assert (set(before["cp"]) - set(after["cp"]), len(after["cp"]), after["workers"]) == ({goes}, 3, before["workers"])
    assert nodes(kube) == {*after["cp"], *after["workers"]}
    assert voters(objects) == (set(after["cp"]) if distribution == "kubeadm" else set())
    states = [metal.until(f"/v1/admin/nodes/{one}", "available", "active", within_s=PATIENCE_S)["status"]["state"] for one in hosts]
    assert (states.count("active"), states.count("available")) == (4, 1)
    asked = [(method, where.split("?")[0]) for method, where in objects.asked()]
    assert ("DELETE", f"/api/v1/nodes/{goes}") in asked
