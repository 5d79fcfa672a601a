"""
The Kubernetes product of a simulated region, as somebody meets it who tries it on a laptop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Database
from tests.crash.main_job import ServiceLife
from tests.factories.world import make_world
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
