"""
The main job on a real Slurm, through the public API: register, enrol, qualify, order, run a gang, read it, pay, delete, wipe.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from controlplane import seeding
from controlplane.settings import Settings
from tests.conftest import Database
from tests.e2e.rack import done
from tests.factories.serving import MASTER_KEY, serving
from tests.slurm_kit import SlurmKit
from workers.engine import Engine

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(280)]
SCRIPT = """#!/bin/bash
srun bash -c 'echo "step on $SLURMD_NODENAME with $CUDA_VISIBLE_DEVICES"'
"""


class Cloud:
    """
    The API and a worker on one database, with a real Slurm beside them.
    """

    def __init__(self, operator: httpx.Client, tenant: httpx.Client, keys: seeding.DemoKeys) -> None:
        self.operator = operator
        self.tenant = tenant
        self.keys = keys

    @property
    def project(self) -> str:
        """
        Path of the tenant's project.
        """
        return f"/v1/projects/{self.keys.project_id}"

    def until(self, path: str, *states: str, client: httpx.Client | None = None, within_s: float = 90.0) -> dict[str, Any]:
        """
        The resource once it has come to one of the states; the API is asked to wait, so nothing sleeps here.
        """
        ask = client or self.tenant
        end = time.monotonic() + within_s
        while True:
            seen: dict[str, Any] = done(ask.get(path))
            state = seen["status"]["state"] if "status" in seen else seen["state"]
            if state in states:
                return seen
            assert time.monotonic() < end, f"{path} stays {state}: {seen}"
            ask.get("/v1/events", params={"limit": 1})


@pytest.fixture
def cloud(database: Database, tmp_path: Path, slurm_kit: SlurmKit) -> Iterator[Cloud]:
    """
    A cloud whose only machines are the Slurm's.
    """
    keys = seeding.sow_people(database.engine, "USD", site="real")
    settings = Settings(
        database_url=SecretStr(database.app_url),
        owner_database_url=SecretStr(database.owner_url),
        data_dir=tmp_path,
        master_key=SecretStr(MASTER_KEY),
        sweep_interval_s=0.3,
        observe_interval_s=2.0,
    )
    engine = Engine(settings)
    engine.start()
    try:
        with (
            serving(database, data_dir=tmp_path) as served,
            served.client(keys.operator_key) as operator,
            served.client(keys.tenant_key) as tenant,
        ):
            yield Cloud(operator, tenant, keys)
    finally:
        engine.stop()


def register(cloud: Cloud, kit: SlurmKit) -> list[str]:
    """
    The Slurm is a provider and its four nodes are enrolled; their ids are returned.
    """
    provider = done(
        cloud.operator.post(
            "/v1/admin/providers",
            json={
                "name": "slurm-real",
                "adapter": "slurm",
                "site": "real",
                "config": {**kit.config(), "users": list(kit.users)},
                "secrets": kit.secrets(),
                "shared": True,
            },
        )
    )
    assert "secrets" not in provider
    nodes = [
        {"ref": name, "block": "b1", "leaf": "leaf1", "rack": "r1", "instance_type": "hgx-h100-8", "gpus": 8} for name in kit.nodes
    ]
    body = {"provider_id": provider["id"], "nodes": nodes}
    enrolled: list[str] = done(cloud.operator.post("/v1/admin/nodes", json=body))["enrolled"]
    return enrolled


def test_a_gang_runs_on_all_nodes_of_a_real_slurm(cloud: Cloud, slurm_kit: SlurmKit) -> None:
    """Four nodes of eight GPUs are ordered, run one job on all of them, are paid for, deleted, wiped and free again."""
    nodes = register(cloud, slurm_kit)
    for node_id in nodes:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
    sets = [{"name": "workers", "instance_type": "hgx-h100-8", "count": 4}]
    order = {"name": "real", "spec": {"kind": "slurm", "site": "real", "node_sets": sets, "wait": True}}
    cluster = done(cloud.tenant.post(f"{cloud.project}/clusters", json=order, headers={"Idempotency-Key": "real-1"}))
    path = f"{cloud.project}/clusters/{cluster['id']}"
    running = cloud.until(path, "running")
    checks = {one["name"]: one["result"] for one in running["status"]["conditions"]}
    assert checks["nodes_answer"] == "passed"
    assert checks["fabric_bandwidth"] == "not_measured"
    spec = {"cluster_id": cluster["id"], "nodes": 4, "gpus_per_node": 8, "tasks_per_node": 1, "script": SCRIPT, "time_limit_s": 300}
    job = done(cloud.tenant.post(f"{cloud.project}/jobs", json={"name": "gang", "spec": spec}))
    ended = cloud.until(f"{cloud.project}/jobs/{job['id']}", "succeeded", "failed", "cancelled")
    text = "".join(one["text"] for one in done(cloud.tenant.get(f"{cloud.project}/jobs/{job['id']}/logs"))["items"])
    assert ended["status"]["state"] == "succeeded", (ended, text)
    seen = dict(re.findall(r"step on (\S+) with (\S+)", text))
    assert seen == dict.fromkeys(slurm_kit.nodes, "0,1,2,3,4,5,6,7")
    assert len(ended["status"]["instances"]) == 4
    usage = done(cloud.tenant.get("/v1/usage", params={"group_by": "cluster"}))
    assert float(usage["items"][0]["gpu_seconds"]) > 0
    version = done(cloud.tenant.get(path))["version"]
    assert version
    done(cloud.tenant.delete(path, headers={"If-Match": "*"}))
    cloud.until(path, "deleted")
    for node_id in nodes:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
        wipes = done(cloud.operator.get(f"/v1/admin/nodes/{node_id}/wipes"))["items"]
        assert [one["verified"] for one in wipes] == [True, True]
    assert slurm_kit.scontrol("show", "reservation").count("clu_") == 0
