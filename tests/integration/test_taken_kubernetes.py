"""
A Kubernetes that stands already on machines that we enrolled, through the API in this process: seen, taken over, used, grown, shrunk,
given back, deleted. Its machines are benches, its API is the kit's emulator.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane import bootstrap, seeding
from controlplane.boots import service as boots
from controlplane.kit.access import Principal
from controlplane.kit.lifecycle import Claim
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.registering import NewPort
from controlplane.providers.toolbox import Reachable, Toolbox
from controlplane.settings import Settings
from tests.conftest import Database
from tests.crash.main_job import Story
from tests.factories.kubernetes_plans import keys
from tests.factories.metal import INVENTORY, Bench
from tests.factories.world import MASTER_KEY, SharedClock, World
from tests.integration.test_dedicated_slurm import OwnRack, OwnTools
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit
from tests.own_kit import NAME, administrators, join, stand, uuid_of
from workers.sweeps import check_providers, discover, look_at_targets, reap

pytestmark = UNTIDY
SLOW = pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1")
OFFER = {
    "versions": {"kubeadm": "1.36.2"},
    "shapes": {"hgx-h100-8": {"gpus": 8, "gpu_model": "H100-SXM5-80GB"}},
}
SITE, IN_USE = "site-one", (3, 4, 5)
MARK = "/api/v1/namespaces/kube-system/configmaps"
SECRETS = "/api/v1/namespaces/kube-system/secrets"


class TookTools(OwnTools):
    """Whoever speaks Kubernetes is the real adapter."""

    def clusters(self, provider: Reachable) -> Any:
        return Toolbox.clusters(self, provider)


class TookRack(OwnRack):
    """Two free machines without ports of ours, which come to somebody's cluster when they join it."""

    made_with = TookTools

    def __init__(self, world: World, kit: KubernetesKit) -> None:
        super().__init__(world, 2)
        self.kit = kit
        self.joined: set[str] = set()
        self.offer(OFFER)
        self.settle()

    def cables(self, number: int, fabric_id: str) -> tuple[NewPort, ...]:
        """None is kept by us."""
        del number, fabric_id
        return ()

    def offer(self, offer: dict[str, Any] | None) -> None:
        """What the machines' provider sells."""
        config = {} if offer is None else {"kubernetes": offer}
        change = nodes.ProviderChange(config=config, secrets=None)
        found = self.metal()
        self.world.do(lambda s: nodes.change_provider(s, found, change, None, lambda version: None))

    def metal(self) -> str:
        """The provider of the machines."""
        return str(self.world.rows("SELECT id FROM providers WHERE adapter = 'redfish'")[0].id)

    def _speak(self) -> int:
        """Machines that were installed come to the cluster by their names, while a token lets them in."""
        spoke = super()._speak()
        query = """
            SELECT replace(a.instance_id, '_', '-') AS name, n.address FROM boots b JOIN allocations a ON a.id = b.allocation_id
            JOIN nodes n ON n.id = a.node_id WHERE b.state = 'ready' AND a.state = 'active' AND b.purpose = 'deploy'"""
        for row in self.world.rows(query):
            if row.name not in self.joined and self.kit.ask("GET", SECRETS)["items"]:
                join(self.kit, row.name, int(row.address.rsplit(".", 1)[1]))
                self.joined.add(row.name)
                spoke += 1
        return spoke


class Scene(Story):
    """
    An operator with a rack and a cluster of its own on three more machines, known by what their controllers tell.
    """

    def __init__(self, world: World, rack: TookRack, way: str) -> None:
        super().__init__(world)
        self.rack, self.kit = rack, rack.kit
        config = {"machines_of": rack.metal()}
        self.way = way
        self.used = self._enroll(IN_USE)
        body = {"name": "theirs", "adapter": "kubernetes", "site": world.keys.site, "config": config, "shared": True}
        self.provider = self.operate("POST", "/v1/admin/providers", {**body, "secrets": {"kubeconfig": way}})
        check_providers(world.engine, world.tools)

    def _enroll(self, numbers: Sequence[int]) -> list[str]:
        """Machines that run are enrolled as such, and their controllers are looked at."""
        place = {"block": "b9", "leaf": "l9", "rack": "r9", "instance_type": self.world.keys.instance_type, "in_use": True}
        urls = [f"https://10.0.9.{one}" for one in numbers]
        wanted = [
            {"ref": f"bare-{one}", **place, "controller": {"url": url, "password": "bmc secret"}, "address": f"10.1.9.{one}"}
            for one, url in zip(numbers, urls, strict=True)
        ]
        metal = self.rack.metal()
        made: list[str] = self.operate("POST", "/v1/admin/nodes", {"provider_id": metal, "nodes": wanted})["enrolled"]
        for number, one in zip(numbers, made, strict=True):
            self.rack.tools.benches[one] = Bench(secret="bmc secret", inventory=replace(INVENTORY, uuid=uuid_of(number)))
        self.operate("PUT", f"/v1/admin/providers/{metal}/discovery/targets", {"controllers": urls})
        with ThreadPoolExecutor(1) as pool:
            look_at_targets(self.world.engine, self.world.tools, pool)
        return made

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> httpx.Response:
        """What the API answers to the operator."""
        told = {"Authorization": f"Bearer {self.world.keys.operator_key}", **headers}
        return self._loop.run(self._client.request(method, path, json=body, headers=told))

    def operate(self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Any:
        """The same, which must be good."""
        answer = self.admin(method, path, body, **headers)
        assert answer.is_success, answer.text
        return answer.json()

    @property
    def found(self) -> str:
        """Where clusters that were found are listed."""
        return f"/v1/admin/providers/{self.provider['id']}/discovered-clusters"

    def see(self) -> dict[str, Any]:
        """What is told of the cluster after another look."""
        self.operate("POST", f"/v1/admin/providers/{self.provider['id']}/actions/discover")
        discover(self.world.engine, self.world.tools)
        (one,) = self.operate("GET", self.found)["items"]
        seen: dict[str, Any] = one
        return seen

    def wish(self) -> dict[str, Any]:
        """The body that makes it the tenant's."""
        return {"tenant_id": self.world.keys.tenant_id, "project_id": self.world.keys.project_id, "name": "research"}

    def adopt(self, key: str = "adopt-1") -> str:
        """It is asked for; the cluster's id."""
        path = f"{self.found}/{self.see()['id']}/actions/adopt"
        return str(self.operate("POST", path, self.wish(), **{"Idempotency-Key": key})["cluster_id"])

    def state(self, cluster_id: str) -> str:
        """Where it stands."""
        return str(self.world.rows("SELECT state FROM clusters WHERE id = :id", id=cluster_id)[0].state)

    def resize(self, cluster_id: str, workers: int) -> httpx.Response:
        """It is to have so many workers."""
        self.world.clock.advance(60)
        body = {"node_sets": [{"name": "workers", "count": workers}]}
        return self.send("PATCH", f"/clusters/{cluster_id}", body, **{"If-Match": "*"})

    def look(self, cluster_id: str) -> None:
        """It has been looked at once more."""
        before = self.world.rows("SELECT fence FROM clusters WHERE id = :id", id=cluster_id)[0].fence
        for _ in range(100):
            if self.world.rows("SELECT fence FROM clusters WHERE id = :id", id=cluster_id)[0].fence > before:
                return
            self.world.clock.advance(30)
            self.world.tick()
        raise AssertionError("nobody looks at it")

    def detail(self, cluster_id: str) -> str:
        """What operators are told of the last look."""
        return str(self.world.rows("SELECT detail FROM clusters WHERE id = :id", id=cluster_id)[0].detail)

    def names(self) -> set[str]:
        """Nodes that its API shows."""
        return {one["metadata"]["name"] for one in self.kit.ask("GET", "/api/v1/nodes")["items"]}

    def charged(self) -> dict[str, int]:
        """What counts against the tenant's quota."""
        rows = self.world.rows(
            "SELECT resource, max(used) AS used FROM quotas WHERE scope_id = :t AND resource IN ('gpus', 'clusters') GROUP BY 1",
            t=self.world.keys.tenant_id,
        )
        return {row.resource: int(row.used) for row in rows}

    def billed(self) -> int:
        """Meters that run."""
        return int(self.world.rows("SELECT count(*) AS n FROM meter_intervals WHERE upper_inf(during)")[0].n)

    def machines(self) -> list[str]:
        """States of those that were in use, then of the free ones."""
        found = {row.id: row.state for row in self.world.rows("SELECT id, state FROM nodes")}
        return [found[one] for one in (*self.used, *self.rack.ids)]

    def acts(self) -> list[str]:
        """Everything that was asked of the machines that were in use."""
        return [act for one in self.used for act in self.rack.tools.benches[one].acts]


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    """Kubeadm's, one control plane and two workers; two machines are free."""
    world = people_only(database, tmp_path)
    with kubernetes_kit(nodes=3, kueue=False) as kit:
        stand(kit, keys().cluster, first=IN_USE[0])
        with administrators(kit, keys().cluster, tmp_path) as way:
            made = Scene(world, TookRack(world, kit), way)
            yield made
            made.close()
            world.tools.close()
    world.clock.stop()


def people_only(database: Database, folder: Path) -> World:
    """A cloud without any machine."""
    people = seeding.sow_people(database.engine, "USD", site=SITE)
    clock = SharedClock(database)
    settings = Settings(
        database_url=database.app_url,  # type: ignore[arg-type]
        owner_database_url=database.owner_url,  # type: ignore[arg-type]
        data_dir=folder,
        master_key=MASTER_KEY,  # type: ignore[arg-type]
    )
    nobody = Principal("prn_none", "key_none", "tenant", people.tenant_id, frozenset())
    drivers = dict(bootstrap.drivers(database.engine, settings))
    tools = Toolbox(deployment="cp", now=clock, open_secrets=lambda _, sealed: {})
    return World(database, settings, people, nobody, drivers, tools, seeding.Region(folder / "none.sqlite"), clock)


def test_from_somebody_elses_to_like_any_other(scene: Scene) -> None:
    """Seen, previewed, taken over without touching a machine, billed from then on; let in, grown, shrunk, deleted."""
    seen = scene.see()
    assert (seen["ref"], seen["product"], seen["version"], seen["obstacles"]) == ("research", "own_kubernetes", "1.36.2", [])
    assert [(one["role"], one["node_id"]) for one in seen["hosts"]] == [
        (role, one) for role, one in zip(("control_plane", "worker", "worker"), scene.used, strict=True)
    ]
    dry = scene.operate("POST", f"{scene.found}/{seen['id']}/actions/adopt?dry_run=true", scene.wish())
    assert (dry["adoptable"], dry["nodes"], list(dry["gpus"].values())) == (True, 3, [24])
    assert scene.world.rows("SELECT 1 FROM clusters") == []
    before = scene.acts()
    cluster_id = scene.adopt()
    assert scene.adopt() == cluster_id, "the same key is the same request"
    assert (scene.charged(), scene.billed()) == ({"gpus": 24, "clusters": 1}, 0)
    scene.rack.settle(60)
    assert (scene.state(cluster_id), scene.billed()) == ("running", 3)
    assert scene.acts() == before == []
    assert scene.machines() == ["active", "active", "active", "available", "available"]
    shown = scene.send("GET", f"/clusters/{cluster_id}").json()
    assert shown["spec"]["kubernetes"]["distribution"] == "kubeadm"
    assert {one["name"]: (one["role"], one["ready"]) for one in shown["spec"]["node_sets"]} == {
        "control-planes": ("control_plane", 1),
        "workers": ("worker", 2),
    }
    told = scene.send("POST", f"/clusters/{cluster_id}/kubeconfigs", {"lifetime_s": 900})
    assert told.is_success, told.text
    assert "client-certificate-data" in told.text
    rotates(scene, cluster_id)
    grows_and_shrinks(scene, cluster_id)
    ends(scene, cluster_id)


def rotates(scene: Scene, cluster_id: str) -> None:
    """A new kubeconfig by the provider's own endpoint is used from the next look; none of it is in any answer."""
    secret = json.loads(scene.way)["users"][0]["user"]["client-key-data"]
    path = f"/v1/admin/providers/{scene.provider['id']}"
    wrong = {"secrets": {"kubeconfig": scene.way.replace(NAME, "api.other.example")}}
    shown = scene.operate("PATCH", path, wrong, **{"If-Match": "*"})
    scene.look(cluster_id)
    assert "SSLError" in scene.detail(cluster_id)
    scene.operate("PATCH", path, {"secrets": {"kubeconfig": scene.way}}, **{"If-Match": "*"})
    scene.look(cluster_id)
    assert (scene.state(cluster_id), scene.detail(cluster_id)) == ("running", "")
    assert secret not in json.dumps(shown)
    assert secret not in scene.admin("GET", path).text + scene.admin("GET", f"{scene.found}").text


def grows_and_shrinks(scene: Scene, cluster_id: str) -> None:
    """A new worker boots with what lets it in, by a token that is gone when it is in; one that came with the cluster leaves empty."""
    answer = scene.resize(cluster_id, 3)
    assert answer.status_code == 202, answer.text
    scene.rack.settle()
    assert scene.state(cluster_id) == "running"
    assert scene.names() == {"gpu-00000", "gpu-00001", "gpu-00002", *scene.rack.joined}
    assert (scene.billed(), scene.charged()["gpus"]) == (4, 32)
    assert scene.kit.ask("GET", SECRETS)["items"] == [], "the door is closed"
    row = scene.world.rows("SELECT id, sealed, scripts, files FROM blueprints WHERE cluster_id = :id", id=cluster_id)[0]
    assert row.scripts == ["files", "start-worker"]
    assert "/etc/hosts" not in {one["path"] for one in row.files}
    _, secret, scripts = boots.open_content(Sealer.from_base64(MASTER_KEY), row.id, row.sealed)
    assert [one.path for one in secret] == ["/etc/controlplane/kubernetes/join.yaml"]
    assert "apiServerEndpoint: 10.1.9.1:6443" in secret[0].content
    assert keys().cluster.pin in secret[0].content
    assert "kubeadm join" in scripts[0].text
    assert not [one for one in row.files if "token" in one["content"]]
    leaves(scene, cluster_id)


def instance_of(scene: Scene, node_id: str) -> str:
    """The tenant's name of the machine."""
    query = "SELECT instance_id FROM allocations WHERE node_id = :node AND state = 'active'"
    return str(scene.world.rows(query, node=node_id)[0].instance_id)


def leaves(scene: Scene, cluster_id: str) -> None:
    """A worker that came with the cluster is emptied, forgotten, given back, wiped, and put aside as it was never inspected."""
    instance = instance_of(scene, scene.used[2])
    scene.world.clock.advance(60)
    body = {"node_sets": [{"name": "workers", "count": 2}], "leaving": [instance]}
    answer = scene.send("PATCH", f"/clusters/{cluster_id}", body, **{"If-Match": "*"})
    assert answer.status_code == 202, answer.text
    scene.rack.settle()
    assert scene.state(cluster_id) == "running"
    assert scene.names() == {"gpu-00000", "gpu-00001", *scene.rack.joined}
    assert scene.machines()[2] == "quarantined", "it was wiped, and what it had before nobody had seen"
    scene.operate("POST", f"/v1/admin/nodes/{scene.used[2]}/actions/requalify", {"reason": "clean"}, **{"If-Match": "*"})
    scene.rack.settle()
    assert scene.machines()[2] == "available"
    assert (scene.billed(), scene.charged()["gpus"]) == (3, 24)


def ends(scene: Scene, cluster_id: str) -> None:
    """Changed through us it is not given back any more; deleted, its machines are wiped and free, and the provider stays the operator's."""
    gone = scene.admin("POST", f"/v1/admin/clusters/{cluster_id}/actions/let-go", None, **{"If-Match": "*"})
    assert (gone.status_code, gone.json()["code"]) == (409, "wrong_state"), gone.text
    busy = scene.admin("DELETE", f"/v1/admin/providers/{scene.provider['id']}", None, **{"If-Match": "*"})
    assert (busy.status_code, busy.json()["code"]) == (409, "provider_in_use"), busy.text
    scene.world.clock.advance(60)
    answer = scene.send("DELETE", f"/clusters/{cluster_id}", None, **{"If-Match": "*"})
    assert answer.status_code == 202, answer.text
    scene.rack.settle()
    assert scene.state(cluster_id) == "deleted"
    assert scene.machines() == ["quarantined", "quarantined", "available", "available", "available"]
    assert (scene.billed(), scene.charged()) == (0, {"gpus": 0, "clusters": 0})
    shown = scene.operate("GET", f"/v1/admin/providers/{scene.provider['id']}")
    assert shown["state"] == "active"
    assert scene.admin("DELETE", f"/v1/admin/providers/{scene.provider['id']}", None, **{"If-Match": "*"}).is_success


def test_what_cannot_be_is_refused_with_a_way_and_the_wrong_tenants_is_given_back(scene: Scene) -> None:
    """Machines that are not known by their firmware, busy or different; control planes, versions and installations; no offer, no growth."""
    scene.world.do(lambda s: s.connection().exec_driver_sql("UPDATE nodes SET address = '10.9.9.9' WHERE ref = 'bare-4'"))
    info = {"status": {"nodeInfo": {"systemUUID": "ffffffff-0000-0000-0000-000000000009"}, "allocatable": {"nvidia.com/gpu": "7"}}}
    scene.kit.ask("PATCH", "/api/v1/nodes/gpu-00002/status", info)
    seen = scene.see()
    assert [one["code"] for one in seen["obstacles"]] == ["host_address_differs", "host_not_enrolled"]
    refused = scene.admin("POST", f"{scene.found}/{seen['id']}/actions/adopt", scene.wish())
    assert (refused.status_code, refused.json()["code"]) == (409, "not_adoptable"), refused.text
    scene.world.do(lambda s: s.connection().exec_driver_sql("UPDATE nodes SET address = '10.1.9.4' WHERE ref = 'bare-4'"))
    info["status"]["nodeInfo"]["systemUUID"] = uuid_of(5)
    scene.kit.ask("PATCH", "/api/v1/nodes/gpu-00002/status", info)
    assert [one["code"] for one in scene.see()["obstacles"]] == ["host_gpus_differ"]
    info["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    scene.kit.ask("PATCH", "/api/v1/nodes/gpu-00002/status", info)
    scene.rack.offer(None)
    cluster_id = scene.adopt()
    driver = scene.world.drivers["cluster"]
    (claim,) = driver.claim(10)
    driver.apply([driver.step(claim, scene.world.tools)])
    scene.rack.settle(60)
    assert scene.state(cluster_id) == "running"
    lead, worker = (instance_of(scene, one) for one in scene.used[:2])
    cases = [
        ("POST", f"/instances/{lead}/actions/replace", None, "control_planes_stay"),
        ("POST", "/actions/upgrade", {"version": "1.36.3"}, "control_planes_stay"),
        ("PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]}, "growth_not_offered"),
        ("POST", f"/instances/{worker}/actions/replace", None, "growth_not_offered"),
        ("POST", f"/instances/{worker}/actions/reinstall", None, "action_not_offered"),
    ]
    for method, more, body, code in cases:
        answer = scene.send(method, f"/clusters/{cluster_id}{more}", body, **{"If-Match": "*"})
        assert answer.json()["code"] == code, answer.text
        assert answer.status_code == 409, answer.text
        assert code == "action_not_offered" or answer.json()["hint"]
    assert scene.state(cluster_id) == "running"
    gives_back(scene, cluster_id, claim)


def gives_back(scene: Scene, cluster_id: str, claim: Claim) -> None:
    """Billing ends at once, no machine is touched or wiped, no mark stays, and a late call's marks are removed."""
    before = scene.acts()
    scene.world.clock.advance(60)
    done = scene.admin("POST", f"/v1/admin/clusters/{cluster_id}/actions/let-go", None, **{"If-Match": "*"})
    assert done.status_code == 202, done.text
    assert scene.billed() == 0
    scene.rack.settle(60)
    assert scene.state(cluster_id) == "deleted"
    assert scene.acts() == before
    assert scene.machines() == ["maintenance"] * 3 + ["available"] * 2
    assert scene.charged() == {"gpus": 0, "clusters": 0}
    scene.world.drivers["cluster"].step(claim, scene.world.tools)
    assert marks(scene) == [cluster_id], "a call of ours came late"
    suspects: dict[str, Any] = {}
    for _ in range(3):
        scene.world.clock.advance(4000)
        reap(scene.world.engine, scene.world.tools, suspects)
    assert marks(scene) == []
    again = scene.adopt("adopt-2")
    scene.rack.settle(60)
    assert scene.state(again) == "running"


def marks(scene: Scene) -> list[str]:
    """Clusters of ours that the objects in it speak of."""
    items = [*scene.kit.ask("GET", MARK)["items"], *scene.kit.ask("GET", "/api/v1/nodes")["items"]]
    found = {(one["metadata"].get("labels") or {}).get("controlplane.internal/cluster") for one in items}
    return sorted(one for one in found if one)


@SLOW
def test_whatever_is_lost_on_the_way_it_comes_to_the_same_end(scene: Scene) -> None:
    """Every claim of a takeover and of a growth loses its answer once, as if the worker had died after the call."""
    cluster_id = scene.adopt()
    lost: set[tuple[str, str]] = set()
    lose(scene, cluster_id, lost)
    assert scene.state(cluster_id) == "running"
    assert scene.resize(cluster_id, 3).status_code == 202
    lose(scene, cluster_id, lost)
    assert {step for state, step in lost if state == "adopting"} >= {"", "told"}
    assert {step for state, step in lost if state == "updating"} >= {"", "applying", "applied"}
    assert (scene.state(cluster_id), scene.billed()) == ("running", 4)
    assert scene.kit.ask("GET", SECRETS)["items"] == [], "no token stays, of those either whose answers were lost"


def lose(scene: Scene, cluster_id: str, lost: set[tuple[str, str]]) -> None:
    """All goes on until the cluster runs; each part of it is done once in vain."""
    driver = scene.world.drivers["cluster"]
    for _ in range(200):
        for claim in driver.claim(10):
            result = driver.step(claim, scene.world.tools)
            if (claim.state, claim.step) not in lost:
                lost.add((claim.state, claim.step))
                scene.world.clock.advance(70)
                continue
            driver.apply([result])
        scene.world.drivers["cluster"].decide(10)
        for name in ("node",):
            other = scene.world.drivers[name]
            other.apply([other.step(one, scene.world.tools) for one in other.claim(10)])
        scene.rack._speak()
        if scene.state(cluster_id) == "running":
            return
        scene.world.clock.advance(2)
