"""
The main job on a real Slurm, through the public API: register, enrol, qualify, order, run a gang, read it, pay, delete, wipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.e2e.clouds import Cloud, running_cloud
from tests.e2e.rack import done
from tests.factories.qualification import nccl, write_bw
from tests.slurm_kit import SlurmKit, checks_config

pytestmark = [pytest.mark.slurm]
SCRIPT = """#!/bin/bash
srun bash -c 'echo "step on $SLURMD_NODENAME with $CUDA_VISIBLE_DEVICES"'
"""


@pytest.fixture
def cloud(database: Database, tmp_path: Path, slurm_kit: SlurmKit) -> Iterator[Cloud]:
    """
    A cloud whose only machines are the Slurm's.
    """
    del slurm_kit
    with running_cloud(database, tmp_path) as made:
        yield made


def register(cloud: Cloud, kit: SlurmKit, **config: Any) -> list[str]:
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
                "config": {**kit.config(), "users": list(kit.users), **config},
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


def test_a_leaf_of_a_real_slurm_is_checked_by_jobs(cloud: Cloud, slurm_kit: SlurmKit) -> None:
    """The leaf together and a pair by itself: what the tools printed on the nodes stands in the ledger, and the nodes are free again."""
    nodes = register(cloud, slurm_kit, fabric_checks=checks_config(slurm_kit, nccl(370.0), write_bw(392.0)))
    for node_id in nodes:
        cloud.until(f"/v1/admin/nodes/{node_id}", "available", client=cloud.operator)
    leaf = {"scope": {"kind": "leaf", "site": "real", "leaf": "leaf1"}, "tool": "nccl-tests"}
    pair = {"scope": {"kind": "pair", "node_id": nodes[0], "peer_node_id": nodes[1], "rail": 1}, "tool": "ib_write_bw"}
    speeds = {}
    for body in (leaf, pair):
        made = done(cloud.operator.post("/v1/admin/fabric-checks", json=body))
        path = f"/v1/admin/fabric-checks/{made['id']}"
        ended = cloud.until(path, "done", "failed", "cancelled", client=cloud.operator, within_s=200.0)
        assert (ended["status"]["state"], ended["verdict"]) == ("done", "not_judged"), ended
        assert {one["result"] for one in ended["runs"]} == {"passed"}
        query = {"run_id": made["id"], "limit": 200}
        speeds[body["tool"]] = {
            (one["subject"]["kind"], one["metric"], one["value"])
            for one in done(cloud.operator.get("/v1/admin/measurements", params=query))["items"]
        }
    assert ("leaf", "nccl_all_reduce_bus_bandwidth_largest", 370.0) in speeds["nccl-tests"]
    assert ("pair", "rdma_write_bandwidth_average", 392.0) in speeds["ib_write_bw"]
    for node_id in nodes:
        assert done(cloud.operator.get(f"/v1/admin/nodes/{node_id}"))["status"]["state"] == "available"
    assert slurm_kit.slurm("squeue", "-h") == ""
