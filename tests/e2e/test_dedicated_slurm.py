"""
A tenant's own Slurm on hosts that really boot: ordered over REST, a gang runs on all workers, a worker dies and is replaced, the cluster
is deleted and its hosts are wiped.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rack import LOOK_S, Metal, done, enroll, key_pair, log_in

pytestmark = [pytest.mark.slurm]
OFFER = {
    "release": "22.05",
    "confinement": "none",
    "made_up_sizes": True,
    "scheduler": ["batch_sched_delay=0", "sched_interval=1", "bf_interval=1", "bf_continue"],
    "shapes": {
        "hgx-h100-8": {
            "sockets": 2,
            "cores_per_socket": 56,
            "threads_per_core": 2,
            "memory_mib": 1_000_000,
            "system_memory_mib": 65_536,
            "gpus": {
                "model": "H100-SXM5-80GB",
                "gres_type": "h100",
                "groups": [{"first": 0, "count": 4}, {"first": 4, "count": 4}],
            },
        }
    },
}
GANG = "#!/bin/sh\nsrun sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES'\n"
PLAIN = {"instance_type": "hgx-h100-8"}


def order(metal: Metal, public: str, workers: int) -> str:
    """
    The path of a Slurm of the tenant's own that was just ordered.
    """
    sets = [{"name": "head", "role": "head", "count": 1, **PLAIN}, {"name": "workers", "count": workers, **PLAIN}]
    spec = {"kind": "slurm", "site": "lab", "node_sets": sets, "wait": True, "login": {"ssh_keys": [public]}, "slurm": {}}
    made = done(metal.tenant.post(f"/v1/projects/{metal.project}/clusters", json={"name": "own", "spec": spec}))
    assert (made["spec"]["slurm"]["release"], made["spec"]["node_sets"][0]["role"]) == ("22.05", "head")
    return f"/v1/projects/{metal.project}/clusters/{made['id']}"


def run_gang(metal: Metal, path: str, nodes: int) -> dict[str, str]:
    """
    What a job through the jobs API printed on each of its nodes: by host, the GPUs it saw.
    """
    spec = {"cluster_id": path.rpartition("/")[2], "script": GANG, "nodes": nodes, "gpus_per_node": 8, "tasks_per_node": 1}
    job = done(metal.tenant.post(f"/v1/projects/{metal.project}/jobs", json={"name": f"gang-{nodes}", "spec": spec}))
    where = f"/v1/projects/{metal.project}/jobs/{job['id']}"
    ended = metal.until(where, "succeeded", "failed", "cancelled", client=metal.tenant)
    placed, output = ended["status"]["instances"], printed(metal, where)
    assert (ended["status"]["state"], ended["status"]["exit_code"], len(placed)) == ("succeeded", 0, nodes), f"{ended}: {output}"
    return dict(line.split(" ", 1) for line in output.splitlines())


def printed(metal: Metal, job: str) -> str:
    """
    What the job's owner reads of its output.
    """
    return "".join(one["text"] for one in done(metal.tenant.get(f"{job}/logs"))["items"])


def addresses(metal: Metal, path: str) -> dict[str, str]:
    """
    Where the cluster's instances are, by id.
    """
    return {one["id"]: one["address"] for one in done(metal.tenant.get(f"{path}/instances"))["items"] if one["state"] == "active"}


def members(metal: Metal, path: str, name: str) -> list[str]:
    """
    The instances of a node set that are in use.
    """
    ids = {one["name"]: one["id"] for one in done(metal.tenant.get(path))["spec"]["node_sets"]}
    items = done(metal.tenant.get(f"{path}/instances"))["items"]
    return [one["id"] for one in items if one["node_set"] == ids[name] and one["state"] == "active"]


def cut_power(metal: Metal, address: str) -> None:
    """
    The host at the address is dead, and nobody has told the control plane.
    """
    (host,) = (one for one in metal.lab.hosts if one.address == address)
    metal.lab.run("power", host.name, "off")


def operation_ends(metal: Metal, answer: Any) -> None:
    """
    The operation that the answer names has succeeded.
    """
    assert answer.is_success, answer.text
    where, pause, end = answer.headers["location"], threading.Event(), time.monotonic() + 240
    while True:
        seen = done(metal.tenant.get(where))
        assert seen["state"] not in {"failed", "cancelled", "needs_attention"}, seen
        if seen["state"] == "succeeded":
            return
        assert time.monotonic() < end, seen
        pause.wait(LOOK_S)


def test_a_slurm_of_ones_own_from_power_on_to_wipe(metal: Metal, tmp_path: Path) -> None:
    """
    A head and two workers boot by what was ordered, with keys that nobody else has; a gang runs on both through the jobs API; one worker
    loses its power for good and another takes its place; all of it is deleted and wiped.
    """
    hosts = enroll(metal, 4, slurm=OFFER)
    for node_id in hosts:
        metal.until(f"/v1/admin/nodes/{node_id}", "available", "quarantined")
    key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 2)
    made = metal.until(path, "running", "failed", client=metal.tenant)
    assert made["status"]["state"] == "running", made
    first = members(metal, path, "workers")
    names = {one.replace("_", "-") for one in first}
    assert run_gang(metal, path, 2) == dict.fromkeys(names, "0,1,2,3,4,5,6,7")
    cut_power(metal, addresses(metal, path)[first[0]])
    operation_ends(metal, metal.tenant.post(f"{path}/instances/{first[0]}/actions/replace", headers={"If-Match": "*"}))
    second = members(metal, path, "workers")
    assert (len(second), first[0] in second, first[1] in second) == (2, False, True)
    (head,) = (addresses(metal, path)[one] for one in members(metal, path, "head"))
    assert set(log_in(head, key, "sinfo -h -N -o %N | sort -u").split()) == {one.replace("_", "-") for one in second}
    assert run_gang(metal, path, 2) == dict.fromkeys({one.replace("_", "-") for one in second}, "0,1,2,3,4,5,6,7")
    done(metal.tenant.delete(path, headers={"If-Match": "*"}))
    metal.until(path, "deleted", client=metal.tenant)
    for node_id in hosts:
        metal.until(f"/v1/admin/nodes/{node_id}", "available", "quarantined")
        wipes = done(metal.operator.get(f"/v1/admin/nodes/{node_id}/wipes"))["items"]
        assert all(one["verified"] for one in wipes)
