"""
Work in a Kubernetes of one's own, through the public API: the guide's order and job, a service, what its owner takes away, what is counted,
and the end of it all. Hosts are played; the cluster's API is the kit's, under the adapter as an order configures it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.providers.toolbox import Reachable, Toolbox
from tests.conftest import ROOT, Database
from tests.contract.own_kubernetes import LEADS, make_lead
from tests.crash.main_job import Story
from tests.factories.world import World, make_world
from tests.integration.test_bare_nodes import KEY, only_bare
from tests.integration.test_dedicated_kubernetes import MEMBERS, KubeRack, KubeTools
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit
from tests.schedules.run import FLEET

pytestmark = [UNTIDY]
GUIDE = ROOT / "docs" / "guides" / "dedicated-kubernetes.md"
LOOKS = 1000
REFUSED = 409


class LiveTools(KubeTools):
    """Whoever asks the cluster's own API asks the kit."""

    kit: KubernetesKit

    def adapter(self, provider: Reachable) -> Any:
        if "dedicated" in provider.config:
            provider = replace(provider, config={**provider.config, "url": self.kit.handle.url})  # type: ignore[type-var]
        return super().adapter(provider)

    def clusters(self, provider: Reachable) -> Any:
        return Toolbox.clusters(self, provider)


class LiveRack(KubeRack):
    """Machines whose kubelets join the kit's API, and whose control planes make their list true there."""

    made_with = LiveTools
    off = False

    def _speak(self) -> int:
        spoke = super()._speak()
        if self.off:
            return spoke
        kit = self.tools.kit  # type: ignore[attr-defined]
        there = {one["metadata"]["name"] for one in kit.ask("GET", "/api/v1/nodes")["items"]}
        said = self.api.standing() if MEMBERS in self.api.files else {}
        for name, role in self.api.joined.items():
            if name not in there and said.get(name) != "gone":
                kit.ask("POST", "/api/v1/nodes", node(name), kind="application/json")
                kit.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": node(name)["status"]})
                if role == "control_plane":
                    make_lead(kit, name)
                spoke += 1
        return spoke


def node(name: str) -> dict[str, Any]:
    """What a kubelet with eight GPUs registers."""
    given = {"cpu": "192", "memory": "2048Gi", "pods": "110", "ephemeral-storage": "10Ti", "nvidia.com/gpu": "8"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": {"capacity": given, "allocatable": given, "conditions": [ready]},
    }


class Owner(Story):
    """Who orders the cluster and works in it, by HTTP, and may do anything at its API."""

    def __init__(self, world: World, rack: LiveRack, kit: KubernetesKit) -> None:
        super().__init__(world)
        self.rack = rack
        self.kit = kit

    def until(self, place: str, *states: str) -> Any:
        """The row once it is there: workers, hosts and time go on meanwhile."""
        table, _, row_id = place.partition("/")
        for _ in range(LOOKS):
            (row,) = self.world.rows(f"SELECT * FROM {table} WHERE id = :id", id=row_id)
            if row.state in states:
                return row
            if not self.world.tick() and not self.rack._speak():
                pauses = [one.pause_s for one in self.world.waiting()]
                self.world.clock.advance(max(0.1, min(pauses)))
        raise AssertionError(f"{place} stays {row.state}: {row.reason} {row.detail}")

    def work(self, kind: str, body: dict[str, Any], **spec: Any) -> str:  # type: ignore[override]
        """The id of a new job or service."""
        told = copy.deepcopy(body)
        told["spec"] |= spec
        self._number += 1
        return str(self.ask("POST", f"/{kind}", told)["id"])


def examples(name: str) -> list[dict[str, Any]]:
    """What a guide sends."""
    return [
        json.loads(one) for one in re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "guides" / name).read_text("utf-8"), re.DOTALL)
    ]


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """An API with Kueue, and no Node yet."""
    with kubernetes_kit(nodes=0) as made:
        yield made


@pytest.fixture
def owner(database: Database, tmp_path: Path, kit: KubernetesKit) -> Iterator[Owner]:
    """A region of three bare machines."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    rack = LiveRack(world, 3)
    assert isinstance(rack.tools, LiveTools)
    rack.tools.kit = kit
    only_bare(world)
    rack.settle()
    made = Owner(world, rack, kit)
    yield made
    made.close()
    rack.tools.close()
    world.clock.stop()


def test_an_owner_orders_a_kubernetes_and_works_in_it(owner: Owner, kit: KubernetesKit) -> None:
    """The guide's cluster takes the guide's job and a service; kubectl's deletions are told in words; all of it ends with the cluster."""
    shown = [one for one in examples(GUIDE.name) if "spec" in one]
    order, job = shown[0], shown[1]
    order["spec"] |= {"site": owner.world.keys.site, "wait": True, "login": {"ssh_keys": [KEY]}}
    for one, count in zip(order["spec"]["node_sets"], (1, 2), strict=True):
        one |= {"count": count, "instance_type": owner.world.keys.instance_type}
    cluster = owner.work("clusters", order)
    owner.until(f"clusters/{cluster}", "running")
    there = {"cluster_id": cluster}
    ran = owner.until(f"jobs/{owner.work('jobs', job, **there)}", "succeeded", "failed")
    assert (ran.state, len(ran.placement)) == ("succeeded", 2), ran.reason
    printed = b"".join(
        bytes(one.data) for one in owner.world.rows("SELECT data FROM job_logs WHERE job_id = :id", id=ran.id)
    ).decode()
    assert sorted(re.findall(r"rank (\d) of 2 with 8 GPUs", printed)) == ["0", "1"]
    larger = owner.send("POST", "/jobs", {**job, "spec": {**job["spec"], **there, "nodes": 3}})
    assert (larger.status_code, larger.json()["limit"]) == (REFUSED, 2)
    features = "SELECT capabilities->'job_features' AS told FROM providers WHERE cluster_id = :id"
    assert "gangs" in owner.world.rows(features, id=cluster)[0].told
    service = owner.work("services", examples("services.md")[0], **there)
    owner.until(f"services/{service}", "running")
    removes_what_is_ours(owner, kit, {**job, "spec": {**job["spec"], **there, "nodes": 1, "gpus_per_node": 4}}, service)
    counts_gpu_time_once(owner)
    slices_are_ordered_as_the_owner_cuts_them(owner, kit, cluster, job)
    last = owner.work("jobs", {**job, "spec": {**job["spec"], "nodes": 1, "gpus_per_node": 1, "script": SLEEPS}}, **there)
    owner.until(f"jobs/{last}", "running")
    owner.change(f"/clusters/{cluster}", "DELETE", None)
    owner.rack.off = True  # and nobody answers at its address
    kit.handle.post("/_emu/faults", [{"path": "/", "times": 100_000, "cut": True}])
    assert owner.until(f"jobs/{last}", "cancelled", "failed").state == "cancelled"
    owner.until(f"services/{service}", "deleted")
    owner.until(f"clusters/{cluster}", "deleted")


SLEEPS = "#!/bin/bash\nsleep 100000\n"


def removes_what_is_ours(owner: Owner, kit: KubernetesKit, job: dict[str, Any], service: str) -> None:
    """A job is lost, and said to be; a service is made again."""
    job["spec"]["script"] = SLEEPS
    lost = owner.work("jobs", job)
    owner.until(f"jobs/{lost}", "running")
    removed(kit, "/apis/batch/v1/jobs")
    row = owner.until(f"jobs/{lost}", "failed", "cancelled")
    assert (row.state, row.failure_class, row.issues[0]["code"]) == ("failed", "unknown", "removed_in_cluster")
    assert "somebody removed it there" in row.reason
    removed(kit, "/apis/apps/v1/deployments")
    owner.until(f"services/{service}", "rolling_out")
    owner.until(f"services/{service}", "running")


def removed(kit: KubernetesKit, kind: str) -> None:
    """All of the kind, as kubectl does it."""
    for one in kit.ask("GET", kind)["items"]:
        where = kind.replace("v1/", f"v1/namespaces/{one['metadata']['namespace']}/")
        kit.ask("DELETE", f"{where}/{one['metadata']['name']}?propagationPolicy=Background")


def slices_are_ordered_as_the_owner_cuts_them(owner: Owner, kit: KubernetesKit, cluster: str, job: dict[str, Any]) -> None:
    """Refused before the owner partitions a worker, taken after the next look; the cluster stays as whole as it was."""
    with owner.world.database.owner.begin() as connection:
        connection.execute(text("UPDATE gpu_models SET mig_profiles = '{1g.10gb,3g.40gb,7g.80gb}'"))
    wish = {"gpus_per_node": 0, "mig": {"profile": "3g.40gb", "per_node": 1}}
    order = {**job, "spec": {**job["spec"], "cluster_id": cluster, "nodes": 1, "script": "#!/bin/bash\ntrue\n", **wish}}
    before = owner.send("POST", "/jobs", order)
    assert (before.status_code, before.json()["feature"]) == (REFUSED, "mig")
    worker = next(
        one["metadata"]["name"] for one in kit.ask("GET", "/api/v1/nodes")["items"] if LEADS not in one["metadata"]["labels"]
    )
    kit.ask("PATCH", f"/api/v1/nodes/{worker}", {"metadata": {"labels": {"nvidia.com/gpu.count": "8"}}})
    parts = {"nvidia.com/gpu": "7", "nvidia.com/mig-3g.40gb": "2"}
    kit.ask("PATCH", f"/api/v1/nodes/{worker}/status", {"status": {"allocatable": parts, "capacity": parts}})
    offered = "SELECT capabilities->'mig' AS mig FROM providers WHERE cluster_id = :id"
    for _ in range(LOOKS):
        if owner.world.rows(offered, id=cluster)[0].mig:
            break
        if not owner.world.tick():
            owner.world.clock.advance(5.0)
    assert owner.world.rows(offered, id=cluster)[0].mig == {"3g.40gb": 2}
    assert owner.until(f"jobs/{owner.work('jobs', order)}", "succeeded", "failed").state == "succeeded"
    body = {**examples("services.md")[0], "name": "sliced"}
    body["spec"] = {**body["spec"], "cluster_id": cluster, "template": {"image": "example.org/echo:1", **wish}, "replicas": 2}
    row = owner.until(f"services/{owner.work('services', body)}", "running", "degraded")
    assert (row.state, row.slices_held) == ("running", [{"profile": "3g.40gb", "count": 2, "slices": 3, "of": 7}])
    assert owner.world.rows("SELECT state FROM clusters WHERE id = :id", id=cluster)[0].state == "running"


def counts_gpu_time_once(owner: Owner) -> None:
    """GPU time of work is shown beside what is billed, which is the nodes' and nothing else."""
    work = owner.world.rows("SELECT kind, sum(gpus) AS gpus FROM work_intervals GROUP BY kind ORDER BY kind")
    assert [(one.kind, one.gpus > 0) for one in work] == [("job", True), ("service", True)]
    billed = owner.world.rows("SELECT count(*) AS n, sum(gpus) AS gpus FROM meter_intervals")[0]
    assert (billed.n, billed.gpus) == (3, 24)
