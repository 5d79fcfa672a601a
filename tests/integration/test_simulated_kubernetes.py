"""
The Kubernetes product of a simulated region, as somebody meets it who tries it on a laptop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import ROOT, Database
from tests.crash.main_job import ServiceLife, Story
from tests.factories.world import make_world
from tests.integration.test_bare_nodes import KEY
from tests.schedules.invariants import broken_promises
from tests.schedules.run import FLEET


@pytest.fixture
def life(database: Database, tmp_path: Path) -> Iterator[ServiceLife]:
    """A region whose tenant has a running Kubernetes cluster."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    world.settle()
    made = ServiceLife(world, whole=False)
    yield made
    made.close()
    world.clock.stop()


def test_services_run_and_kubeconfigs_are_refused_in_words(life: ServiceLife) -> None:
    """The guide's service comes to run on an ordered cluster; there is no API server to be let into; all of it goes with the cluster."""
    refused = life.send("POST", f"/clusters/{life.cluster}/kubeconfigs", {"lifetime_s": 900})
    assert (refused.status_code, refused.json()["code"]) == (409, "kubeconfig_not_offered")
    guide = (ROOT / "docs" / "guides" / "services.md").read_text("utf-8")
    example = json.loads(re.findall(r"```json\n(.*?)```", guide, re.DOTALL)[0])
    example["spec"]["cluster_id"] = life.cluster
    made = life.ask("POST", "/services", example)
    life.drive(f"services/{made['id']}", "running", takeover=False)
    assert broken_promises(life.world) == []
    life.change(f"/clusters/{life.cluster}", "DELETE", None)
    life.drive(f"services/{made['id']}", "deleted", takeover=False)
    life.drive(f"clusters/{life.cluster}", "deleted", takeover=False)
    assert broken_promises(life.world) == []


def test_the_guides_job_runs_once_on_each_node_and_is_told_where_it_is(life: ServiceLife) -> None:
    """Ranks, sizes and a meeting place, as on a real one; its own variables win, and no srun is there."""
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text("utf-8")
    shown = map(json.loads, re.findall(r"```json\n(.*?)```", guide, re.DOTALL))
    (example,) = (one for one in shown if "script" in one.get("spec", {}))
    example["spec"] |= {"cluster_id": life.cluster, "nodes": 2, "tasks_per_node": 4, "env": {"MASTER_PORT": "1234"}}
    example["spec"]["script"] += 'echo "$MASTER_ADDR:$MASTER_PORT $TASKS_PER_NODE"\nsrun hostname\nexit $NODE_RANK\n'
    made = life.ask("POST", "/jobs", example)
    life.drive(f"jobs/{made['id']}", "failed", takeover=False)
    pieces = life.world.rows("SELECT data FROM job_logs WHERE job_id = :id ORDER BY byte_offset", id=made["id"])
    lines = b"".join(bytes(row.data) for row in pieces).decode().splitlines()
    assert [line for line in lines if line.startswith("rank")] == [f"rank {one} of 2 with 8 GPUs" for one in (0, 1)]
    met = [line for line in lines if line.endswith(":1234 4")]
    assert (len(met), len(set(met)), met[0] != ":1234 4") == (2, 1, True)
    assert lines.count("srun: command not found") == 2
    (row,) = life.world.rows("SELECT exit_code, failure_class FROM jobs WHERE id = :id", id=made["id"])
    assert (row.exit_code, row.failure_class) == (1, "user_error")
    assert broken_promises(life.world) == []


def test_slices_can_be_tried(life: ServiceLife) -> None:
    """The guide's slices in a job and in a service, side by side on one GPU; what is metered is their share, and whole GPUs stay whole."""
    world = life.world
    with world.database.owner.begin() as connection:
        connection.execute(text("UPDATE gpu_models SET mig_profiles = '{1g.10gb,3g.40gb,7g.80gb}'"))
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text("utf-8").partition("## Slices of GPUs")[2]
    mig = json.loads(re.findall(r"```json\n(.*?)```", guide, re.DOTALL)[0])["mig"]
    served = {"template": {"image": "example.org/echo:1", "port": 8000, "gpus_per_node": 0, "mig": mig}, "replicas": 2}
    service = life.ask("POST", "/services", {"name": "echo", "spec": {**served, "cluster_id": life.cluster}})
    life.drive(f"services/{service['id']}", "running", takeover=False)
    shape = {"script": "#!/bin/bash\necho $CUDA_VISIBLE_DEVICES\n", "nodes": 1, "time_limit_s": 600, "cluster_id": life.cluster}
    job = life.ask("POST", "/jobs", {"name": "small", "spec": {**shape, "gpus_per_node": 0, "mig": mig}})
    life.drive(f"jobs/{job['id']}", "succeeded", takeover=False)
    (piece,) = world.rows("SELECT data FROM job_logs WHERE job_id = :id", id=job["id"])
    assert bytes(piece.data).decode().strip() == "0/1g.10gb/4,0/1g.10gb/5", "behind the replicas' four"
    for _ in range(2):
        world.clock.advance(60)
        world.go_on(5)
    kept = world.rows("SELECT DISTINCT kind, profile, slices, of_slices FROM work_intervals ORDER BY kind")
    assert [tuple(one) for one in kept] == [("job", "1g.10gb", 1, 7), ("service", "1g.10gb", 1, 7)]
    whole = life.send("POST", "/jobs", {"name": "whole", "spec": {**shape, "gpus_per_node": 7}}).json()
    life.drive(f"jobs/{whole['id']}", "succeeded", takeover=False)
    assert broken_promises(world) == []


def guides(key: str) -> dict[str, Any]:
    """What the guide of dedicated clusters sends whose spec has the key."""
    guide = (ROOT / "docs" / "guides" / "dedicated-kubernetes.md").read_text("utf-8")
    found = map(json.loads, re.findall(r"```json\n(.*?)```", guide, re.DOTALL))
    return next(one for one in found if key in one.get("spec", {}))


def own_order(story: Story, workers: int = 2) -> dict[str, Any]:
    """The guide's order of a Kubernetes of one's own, made smaller."""
    shown = guides("kubernetes")
    shown["spec"] |= {"site": story.world.keys.site, "login": {"ssh_keys": [KEY]}}
    for one, count in zip(shown["spec"]["node_sets"], (1, workers), strict=True):
        one |= {"count": count, "instance_type": story.world.keys.instance_type}
    return shown


@pytest.fixture
def region(database: Database, tmp_path: Path) -> Iterator[Story]:
    """A region in which nothing was ordered yet."""
    world = make_world(database, tmp_path, fleet=str(FLEET), profile="fast")
    world.settle()
    made = Story(world)
    yield made
    made.close()
    world.clock.stop()


def test_a_kubernetes_of_ones_own_can_be_tried(region: Story) -> None:
    """Ordered, worked in, grown, mended, deleted; work comes to workers only, and the ledger agrees after each."""
    control = SimControl(region.world.region.world, now=region.world.clock)
    cluster = runs_once_all_have_joined(region, control)
    path = f"/clusters/{cluster}"
    shown = region.send("GET", path).json()
    assert shown["spec"]["kubernetes"] == {"distribution": "kubeadm", "version": "1.36.2", "upgrading_to": None}
    assert {one["name"]: one["result"] for one in shown["status"]["conditions"]}["gpu_count"] == "passed"
    refused = region.send("POST", f"{path}/kubeconfigs", {"lifetime_s": 900})
    assert (refused.status_code, refused.json()["code"]) == (409, "kubeconfig_not_offered")
    query = "SELECT a.instance_id AS id FROM allocations a JOIN node_sets s ON s.id = a.node_set_id WHERE s.role = 'control_plane'"
    lead = str(region.world.rows(query)[0].id)
    works_on_workers(region, cluster, lead)
    outlives_an_api_that_is_away(region, control, cluster)
    grows_and_is_mended(region, cluster, lead)
    assert broken_promises(region.world) == []
    region.change(path, "DELETE", None)
    region.drive(f"clusters/{cluster}", "deleted", takeover=False)
    assert broken_promises(region.world) == []
    control.close()


def runs_once_all_have_joined(region: Story, control: SimControl) -> str:
    """While a node does not join the cluster neither runs nor is billed; its id is returned once it runs."""
    control.play("join_never", "apply_cluster", count=1)
    cluster = str(region.ask("POST", "/clusters", own_order(region))["id"])
    region.drive(f"clusters/{cluster}", "verifying", takeover=False)
    region.world.go_on(20)
    (row,) = region.world.rows("SELECT state, reason FROM clusters")
    assert (row.state, row.reason.split(";")[0]) == ("verifying", "nodes_answer: 0 of 3")
    assert region.world.rows("SELECT count(*) FROM meter_intervals") == [(0,)]
    control.heal()
    region.drive(f"clusters/{cluster}", "running", takeover=False)
    return cluster


def works_on_workers(region: Story, cluster: str, lead: str) -> None:
    """The guide's job takes both workers; a control plane counts for none, also without GPUs."""
    job = guides("script")
    job["spec"]["cluster_id"] = cluster
    for gpus in (8, 0):
        made = region.send("POST", "/jobs", {**job, "spec": {**job["spec"], "gpus_per_node": gpus}}).json()
        region.drive(f"jobs/{made['id']}", "succeeded", takeover=False)
        ran_on = region.send("GET", f"/jobs/{made['id']}").json()["status"]["instances"]
        assert (len(ran_on), lead in ran_on) == (2, False)
    larger = region.send("POST", "/jobs", {**job, "spec": {**job["spec"], "nodes": 3, "gpus_per_node": 0}})
    assert (larger.status_code, larger.json()["limit"]) == (409, 2)


def outlives_an_api_that_is_away(region: Story, control: SimControl, cluster: str) -> None:
    """A running cluster, and its job, are what they were after an hour without an answer."""
    spec = {"cluster_id": cluster, "nodes": 2, "gpus_per_node": 8, "script": "#!/bin/sh\nsleep 3700\n", "time_limit_s": 9000}
    job = region.send("POST", "/jobs", {"name": "long", "spec": spec}).json()["id"]
    region.drive(f"jobs/{job}", "running", takeover=False)
    for operation, target in (("observe_cluster", cluster), ("find_job", f"{job}-1")):
        control.play("timeout_before_effect", operation, target, count=None)
    region.world.clock.advance(3600)
    region.world.go_on(20)
    states = "SELECT state FROM jobs WHERE id = :id UNION ALL SELECT state FROM clusters"
    assert region.world.rows(states, id=job) == [("running",), ("running",)]
    control.heal()
    region.drive(f"jobs/{job}", "succeeded", takeover=False)


def grows_and_is_mended(region: Story, cluster: str, lead: str) -> None:
    """Workers come, are replaced and leave; a control plane stays."""
    path = f"/clusters/{cluster}"
    region.change(path, "PATCH", {"node_sets": [{"name": "workers", "count": 3}]})
    region.drive(f"clusters/{cluster}", "running", takeover=False)
    anybody = {"If-Match": "*"}
    stays = region.send("POST", f"{path}/instances/{lead}/actions/replace", None, **anybody)
    assert (stays.status_code, stays.json()["code"]) == (409, "quorum_at_risk")
    newer = region.send("POST", f"{path}/actions/upgrade", {"version": "1.37.0"}, **anybody)
    assert (newer.status_code, newer.json()["code"]) == (409, "wrong_state")
    worker = next(one["id"] for one in region.send("GET", f"{path}/instances").json()["items"] if one["id"] != lead)
    region.ask("POST", f"{path}/instances/{worker}/actions/replace", None, **anybody)
    region.drive(f"clusters/{cluster}", "running", takeover=False)
    in_use = {row.instance_id for row in region.world.rows("SELECT instance_id FROM allocations WHERE state = 'active'")}
    assert (len(in_use), lead in in_use, worker in in_use) == (4, True, False)
    less = {"node_sets": [{"name": "workers", "count": 1}]}
    assert region.send("PATCH", path, less, **anybody).status_code == 202
    region.drive(f"clusters/{cluster}", "running", takeover=False)
