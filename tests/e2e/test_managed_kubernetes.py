"""
Kubernetes clusters that a Cluster API makes on an operator's Metal3 hosts, through the public API: register, enrol, order, grow, shrink,
replace, upgrade, let in, run a job, delete, clean. The tenants' cluster has an API server of its own.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capi_kit import CONFIG, CapiKit, capi_kit
from tests.conftest import Database
from tests.e2e.clouds import SITE, Cloud, running_cloud
from tests.e2e.rack import done
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubeconfig, kubernetes_kit
from tests.tls_door import Door, tls_door

pytestmark = [
    UNTIDY,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1"),
]
TYPE = "hgx-h100-8"
ADMIN = "the-tenants-administrator"


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[KubernetesKit]:
    """The server that stands for the tenant's cluster; only its administrator's token lets in."""
    with kubernetes_kit(nodes=0, kueue=False, token=ADMIN) as made:
        yield made


@pytest.fixture
def door(theirs: KubernetesKit, tmp_path: Path) -> Iterator[Door]:
    """Its way in."""
    with tls_door(theirs.handle.port, tmp_path) as made:
        yield made


@pytest.fixture
def kit(theirs: KubernetesKit, door: Door) -> Iterator[CapiKit]:
    """The management cluster with five hosts."""

    def way_in() -> str:
        ca = base64.b64encode(door.ca_pem.encode()).decode()
        return kubeconfig(door.url, {"token": ADMIN}, **{"certificate-authority-data": ca})

    with capi_kit(hosts=5, tenant=theirs, server=way_in, token="a-managers-token") as made:
        yield made


@pytest.fixture
def cloud(database: Database, tmp_path: Path) -> Iterator[Cloud]:
    """A cloud without machines."""
    with running_cloud(database, tmp_path) as made:
        yield made


def register(cloud: Cloud, kit: CapiKit, **config: Any) -> dict[str, Any]:
    """The management cluster as a provider, which was asked what it can."""
    body = {
        "name": "capi",
        "adapter": "clusterapi",
        "site": SITE,
        "config": {**CONFIG, "machine_classes": {TYPE: "h100"}, **config},
        "secrets": {"kubeconfig": kit.kit.kubeconfig},
        "shared": True,
    }
    made: dict[str, Any] = done(cloud.operator.post("/v1/admin/providers", json=body))
    pause, ends = threading.Event(), time.monotonic() + 60
    while not done(cloud.operator.get(f"/v1/admin/providers/{made['id']}"))["capabilities"].get("products"):
        assert time.monotonic() < ends, "a sweep has not asked it what it can"
        pause.wait(0.2)
    return made


def enrol(cloud: Cloud, provider_id: str, count: int) -> list[str]:
    """So many hosts are in the fleet and free."""
    place = {"block": "b0", "leaf": "l0", "rack": "r0", "instance_type": TYPE, "gpus": 8}
    nodes = [{"ref": f"metal-{number:02d}", **place} for number in range(count)]
    ids: list[str] = done(cloud.operator.post("/v1/admin/nodes", json={"provider_id": provider_id, "nodes": nodes}))["enrolled"]
    for node_id in ids:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
    return ids


def order(cloud: Cloud, count: int, **kubernetes: Any) -> dict[str, Any]:
    """The body of an order."""
    spec = {
        "kind": "kubernetes",
        "site": SITE,
        "node_sets": [{"name": "workers", "instance_type": TYPE, "count": count}],
        "kubernetes": {"distribution": "managed", **kubernetes},
        "wait": True,
    }
    return {"name": "research", "spec": spec}


def members(kit: CapiKit) -> set[str]:
    """Hosts that Machines have."""
    return {one["metadata"]["name"] for one in kit.kit.ask("GET", kit.hosts())["items"] if one["spec"].get("consumerRef")}


def test_the_whole_life_of_a_managed_kubernetes(cloud: Cloud, kit: CapiKit, theirs: KubernetesKit) -> None:
    """Each change is seen at the management cluster and at the tenant's; in the end nothing is left and every host is cleaned."""
    provider = register(cloud, kit)
    nodes = enrol(cloud, provider["id"], 4)
    made = done(cloud.tenant.post(f"{cloud.project}/clusters", json=order(cloud, 2)))
    path = f"{cloud.project}/clusters/{made['id']}"
    running = cloud.until(path, "running")
    assert running["spec"]["kubernetes"] == {"distribution": "managed", "version": "1.34.2", "upgrading_to": None}
    checks = {one["name"]: one["result"] for one in running["status"]["conditions"]}
    assert checks["nodes_answer"] == checks["gpu_count"] == checks["control_plane"] == "passed"
    first = members(kit)
    assert len(first) == 2
    for count in (3, 2):
        done(cloud.tenant.patch(path, json={"node_sets": [{"name": "workers", "count": count}]}, headers={"If-Match": "*"}))
        cloud.until(path, "running")
        assert len(members(kit)) == count
    before = members(kit)
    one = done(cloud.tenant.get(f"{path}/instances"))["items"][0]
    done(cloud.tenant.post(f"{path}/instances/{one['id']}/actions/replace", headers={"If-Match": "*"}))
    cloud.until(path, "running")
    assert len(members(kit) & before) == 1
    assert len(members(kit)) == 2
    asked = cloud.tenant.post(f"{path}/actions/upgrade", json={"version": "1.36.0"}, headers={"If-Match": "*"})
    assert (asked.status_code, asked.json()["errors"][0]["code"]) == (422, "kubernetes_upgrade_impossible"), asked.text
    done(cloud.tenant.post(f"{path}/actions/upgrade", json={"version": "1.35.1"}, headers={"If-Match": "*"}))
    upgraded = cloud.until(path, "running")
    assert upgraded["spec"]["kubernetes"] == {"distribution": "managed", "version": "1.35.1", "upgrading_to": None}
    versions = {each["status"]["nodeInfo"]["kubeletVersion"] for each in theirs.ask("GET", "/api/v1/nodes")["items"]}
    assert versions == {"v1.35.1"}
    at_new = [line for line in kit.controllers.story if line.endswith("is made at v1.35.1")]
    assert "-cp-0" in at_new[0], "control planes come first"
    assert sum("-workers-" in line for line in at_new) == 2
    got = done(cloud.tenant.post(f"{path}/kubeconfigs", json={"lifetime_s": 900}))
    assert ADMIN not in got["kubeconfig"]
    token = next(line.split()[1] for line in got["kubeconfig"].splitlines() if line.strip().startswith("token:"))
    assert theirs.ask("GET", "/api/v1/nodes", token=token)["items"]
    spec = {"cluster_id": made["id"], "script": "#!/bin/sh\necho here\n", "nodes": 1, "gpus_per_node": 8, "time_limit_s": 60}
    job = done(cloud.tenant.post(f"{cloud.project}/jobs", json={"name": "a", "spec": spec}))
    cloud.until(f"{cloud.project}/jobs/{job['id']}", "succeeded")
    assert "here" in cloud.tenant.get(f"{cloud.project}/jobs/{job['id']}/logs").text
    assert not [one for one in theirs.ask("GET", "/api/v1/pods")["items"] if ADMIN in str(one)], "no pod holds a credential of ours"
    done(cloud.tenant.delete(path, headers={"If-Match": "*"}))
    cloud.until(path, "deleted")
    assert kit.remains() == []
    assert theirs.ask("GET", "/api/v1/nodes")["items"] == []
    for node_id in nodes:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
        wiped = done(cloud.operator.get(f"/v1/admin/nodes/{node_id}/wipes"))["items"]
        assert {"disk_metadata", "gpu_memory"} <= {each["name"] for each in wiped[-1]["checks"]}
