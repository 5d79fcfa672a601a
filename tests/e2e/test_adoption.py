"""
A cluster that an operator has already, taken over through the public API by workers that run: found, adopted, opened, upgraded, deleted.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from tests.capi_kit import CapiKit
from tests.e2e.clouds import Cloud
from tests.e2e.rack import LOOK_S, done
from tests.e2e.test_managed_kubernetes import ADMIN, TYPE, cloud, door, kit, members, register, theirs
from tests.kubernetes_kit import UNTIDY, KubernetesKit

__all__ = ["cloud", "door", "kit", "theirs"]
pytestmark = [
    UNTIDY,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1"),
]


def first(cloud: Cloud, path: str) -> dict[str, Any]:
    """What is listed there, once anything is: a provider tells of its clusters after it has told what it can do."""
    pause, end = threading.Event(), time.monotonic() + 30.0
    while True:
        answer = cloud.operator.get(path)
        if answer.is_success and answer.json()["items"]:
            found: dict[str, Any] = answer.json()["items"][0]
            return found
        assert time.monotonic() < end, answer.text
        pause.wait(LOOK_S)


def test_an_operators_cluster_becomes_a_tenants(cloud: Cloud, kit: CapiKit, theirs: KubernetesKit) -> None:
    """Its machines go on while it changes hands; then its tenant opens it, has it upgraded and deletes it, and every host is cleaned."""
    kit.stand("research-2025", 2)
    story, there = list(kit.controllers.story), members(kit)
    provider = register(cloud, kit)
    place = {"block": "b0", "leaf": "l0", "rack": "r0", "instance_type": TYPE, "gpus": 8}
    nodes = [{"ref": f"metal-{number:02d}", **place} for number in range(3)]
    ids = done(cloud.operator.post("/v1/admin/nodes", json={"provider_id": provider["id"], "nodes": nodes}))["enrolled"]
    for node_id, node in zip(ids, nodes, strict=True):
        if node["ref"] in there:
            asked = {"reason": "in use by research-2025"}
            done(cloud.operator.post(f"/v1/admin/nodes/{node_id}/actions/maintain", json=asked, headers={"If-Match": "*"}))
        else:
            cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
    found = f"/v1/admin/providers/{provider['id']}/discovered-clusters"
    done(cloud.operator.post(f"/v1/admin/providers/{provider['id']}/actions/discover"))
    seen = first(cloud, found)
    assert seen["adoptable"], seen["obstacles"]
    body = {"tenant_id": cloud.keys.tenant_id, "project_id": cloud.keys.project_id, "name": "research"}
    made = done(cloud.operator.post(f"{found}/{seen['id']}/actions/adopt", json=body))
    path = f"{cloud.project}/clusters/{made['cluster_id']}"
    cloud.until(path, "running")
    assert (kit.controllers.story, members(kit)) == (story, there)
    got = done(cloud.tenant.post(f"{path}/kubeconfigs", json={"lifetime_s": 900}))
    assert ADMIN not in got["kubeconfig"]
    done(cloud.tenant.post(f"{path}/actions/upgrade", json={"version": "1.35.1"}, headers={"If-Match": "*"}))
    cloud.until(path, "running")
    versions = {each["status"]["nodeInfo"]["kubeletVersion"] for each in theirs.ask("GET", "/api/v1/nodes")["items"]}
    assert versions == {"v1.35.1"}
    done(cloud.tenant.delete(path, headers={"If-Match": "*"}))
    cloud.until(path, "deleted")
    assert kit.remains() == []
    for node_id in ids:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
