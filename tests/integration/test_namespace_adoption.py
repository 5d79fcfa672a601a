"""
Namespaces that run in a shared Kubernetes already, through the API in this process: seen, taken over, turned down, let go.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.crash.main_job import Story
from tests.factories.world import World
from tests.integration.test_adoption import Standing
from tests.integration.test_managed_kubernetes import SITE, TYPE, open_scene
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit
from tests.kubernetes_standing import BASE, DEPLOYMENTS, JSON, hosts, running, stand, state
from workers.sweeps import check_providers

pytestmark = UNTIDY


class Peer:
    """
    The shared Kubernetes, whose controllers go on by themselves.
    """

    def __init__(self, kit: KubernetesKit) -> None:
        self.kit = kit

    def settle(self) -> None:
        """They had a moment."""
        time.sleep(0.02)


class Sharing(Standing):
    """
    A cloud whose one provider is a shared Kubernetes of four nodes, on two of which somebody's namespace runs; three are enrolled.
    """

    def __init__(self, world: World, peer: Peer) -> None:
        Story.__init__(self, world)
        self.kit: Any = peer
        body = {
            "name": "kube",
            "adapter": "kubernetes",
            "site": SITE,
            "config": {"settle_s": 0},
            "secrets": {"kubeconfig": peer.kit.kubeconfig},
            "shared": True,
        }
        self.provider = self.operate("POST", "/v1/admin/providers", body)
        place = {"block": "b0", "leaf": "l0", "rack": "r0", "instance_type": TYPE, "gpus": 8}
        self.theirs_on = hosts(peer.kit)
        every = sorted(name for _, name in peer.kit.emulator.data[("", "nodes")])
        self.free = next(ref for ref in every if ref not in self.theirs_on)
        enrolled = [{"ref": ref, **place} for ref in [*self.theirs_on, self.free]]
        self.operate("POST", "/v1/admin/nodes", {"provider_id": self.provider["id"], "nodes": enrolled})
        check_providers(world.engine, world.tools)
        self.all_free()

    def all_free(self) -> None:
        """Nodes that are in use are put in maintenance by a person; the other is free."""
        for row in self.world.rows("SELECT id, ref FROM nodes WHERE state = 'enrolled'"):
            if row.ref in self.theirs_on:
                self.verb(row.id, "maintain")
        self._work(lambda: not self.world.rows("SELECT 1 FROM nodes WHERE state NOT IN ('available', 'maintenance')"))

    def on(self) -> set[str]:
        """Nodes that the namespace's pods run on."""
        return set(hosts(self.kit.kit))


@contextmanager
def peer() -> Iterator[Peer]:
    """Four nodes, and a server that can change pods on the way in."""
    with kubernetes_kit(nodes=4, more=("policies",)) as kit:
        yield Peer(kit)


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Sharing]:
    """The namespace runs before anything of ours is there."""
    with open_scene(database, tmp_path, Sharing, before=lambda made: stand(made.kit), peer=peer) as made:
        yield made


def test_from_somebody_elses_namespace_to_a_cluster_like_any_other(scene: Sharing) -> None:
    """Seen, previewed, taken over without touching a pod, billed from then on; a job runs beside; then grown, shrunk and deleted."""
    seen, there = scene.see(), running(scene.kit.kit)
    assert (seen["ref"], seen["adoptable"], seen["obstacles"]) == ("theirs", True, [])
    assert {(one["ref"], one["node_state"]) for one in seen["hosts"]} == {(ref, "maintenance") for ref in scene.theirs_on}
    path = f"{scene.found}/{seen['id']}/actions/adopt"
    plan = scene.admin("POST", f"{path}?dry_run=true", scene.wish()).json()
    assert (plan["adoptable"], plan["nodes"], list(plan["gpus"].values())) == (True, 2, [16])
    assert {"policies_stay", "pods_are_steered"} <= {one["code"] for one in plan["notices"]}
    before = scene.world.rows("SELECT cp_clock() AS at")[0].at
    made = scene.adopt()
    done = scene.until(made["cluster_id"], "running")
    assert done["spec"]["node_sets"][0]["ready"] == 2
    assert scene.end(made["operation_id"]) == ("succeeded", "")
    assert running(scene.kit.kit) == there
    assert scene.nodes() == {**dict.fromkeys(scene.theirs_on, "active"), scene.free: "available"}
    meters = scene.world.rows("SELECT lower(during) AS at FROM meter_intervals")
    assert len(meters) == 2
    assert all(one.at >= before for one in meters), "nothing is billed for the time before"
    spec = {
        "cluster_id": made["cluster_id"],
        "nodes": 1,
        "gpus_per_node": 2,
        "script": "#!/bin/bash\necho here\n",
        "time_limit_s": 600,
    }
    job = scene.ask("POST", "/jobs", {"name": "beside", "spec": spec})
    scene._work(lambda: scene._state(f"jobs/{job['id']}") == "succeeded")
    scene.to(made["cluster_id"], "PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]})
    assert running(scene.kit.kit) == there
    leaves = scene.send("GET", f"/clusters/{made['cluster_id']}/instances").json()["items"]
    assert len(leaves) == 3
    scene.to(made["cluster_id"], "PATCH", "", {"node_sets": [{"name": "workers", "count": 2}]})
    members = {row.ref for row in scene.world.rows("SELECT ref FROM nodes WHERE state = 'active'")}
    assert (len(members), scene.on() <= members) == (2, True)
    scene.to(made["cluster_id"], "DELETE", "", None, "deleted")
    scene._work(lambda: set(scene.nodes().values()) == {"available"})
    assert not [one for one in state(scene.kit.kit) if "theirs" in one or "clu-" in one]
    assert (scene.billed(), scene.used()) == (0, {"gpus": 0, "clusters": 0})


def test_a_namespace_that_became_the_wrong_tenants_is_given_back_as_it_was(scene: Sharing) -> None:
    """Billing ends at once; nothing of ours is left, nothing is wiped, and it stands there to be taken over again."""
    kit = scene.kit.kit
    untouched = {key: value for key, value in state(kit).items() if "nodes" not in key}
    there = running(kit)
    made = scene.adopt()
    scene.until(made["cluster_id"], "running")
    path = f"/v1/admin/clusters/{made['cluster_id']}/actions/let-go"
    scene.world.clock.advance(60)
    done = scene.admin("POST", path, **{"If-Match": "*"})
    assert done.status_code == 202, done.text
    assert scene.billed() == 0
    scene._work(lambda: scene.state(made) == "deleted")
    assert scene.end(done.json()["operation_id"]) == ("succeeded", "")
    assert running(kit) == there
    assert {key: value for key, value in state(kit).items() if "nodes" not in key} == untouched
    assert not any(one["spec"].get("taints") for one in kit.ask("GET", "/api/v1/nodes")["items"])
    assert {scene.nodes()[ref] for ref in scene.theirs_on} == {"maintenance"}
    assert scene.used() == {"gpus": 0, "clusters": 0}
    again = scene.adopt("adopt-2")
    scene.until(again["cluster_id"], "running")


def test_a_namespace_that_changed_since_it_was_seen_is_left_as_it_was(scene: Sharing) -> None:
    """Obstacles are said in words; what comes after the look is found by the provider, and nothing of ours stays."""
    kit = scene.kit.kit
    made = scene.adopt()
    service = {"metadata": {"name": "public"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}
    kit.ask("POST", f"{BASE}/services", service, JSON)
    before = state(kit)
    scene._work(lambda: scene.state(made) == "deleted")
    assert scene.end(made["operation_id"]) == ("failed", "adoption_refused")
    assert state(kit) == before
    assert {scene.nodes()[ref] for ref in scene.theirs_on} == {"maintenance"}
    assert scene.world.rows("SELECT 1 FROM meter_intervals") == []
    kit.ask("PATCH", f"{DEPLOYMENTS}/serve", {"spec": {"replicas": 3}})
    seen = scene.see()
    assert "provider_services_outside" in seen["refusal"]["message"]
    assert "services_outside" in {one["code"] for one in seen["obstacles"]}
