"""
A Kubernetes that its provider makes and keeps, through the API in this process: a Cluster API whose controllers are played, workers that
are stepped by hand, and a clock that goes on only where everybody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from controlplane import bootstrap, seeding
from controlplane.kit.access import Principal
from controlplane.kit.secrets import Sealer
from controlplane.providers.toolbox import Toolbox
from controlplane.settings import Settings
from tests.capi_kit import CONFIG, CapiKit, capi_kit
from tests.conftest import Database
from tests.crash.main_job import Story
from tests.factories.world import MASTER_KEY, SharedClock, World
from tests.kubernetes_kit import UNTIDY
from tests.schedules.invariants import promises_of_rows
from workers.sweeps import check_providers

pytestmark = UNTIDY
Made = TypeVar("Made", bound="Scene")
SITE, TYPE = "site-one", "hgx-h100-8"
LOOKS = 400
ORDER: dict[str, Any] = {
    "name": "research",
    "spec": {
        "kind": "kubernetes",
        "site": SITE,
        "node_sets": [{"name": "workers", "instance_type": TYPE, "count": 2}],
        "kubernetes": {"distribution": "managed"},
    },
}


class Scene(Story):
    """
    A cloud whose one provider is a management cluster with four hosts.
    """

    def __init__(self, world: World, kit: CapiKit) -> None:
        super().__init__(world)
        self.kit = kit
        body = {
            "name": "capi",
            "adapter": "clusterapi",
            "site": SITE,
            "config": {**CONFIG, "machine_classes": {TYPE: "h100"}},
            "secrets": {"kubeconfig": kit.kit.kubeconfig},
            "shared": True,
        }
        self.provider = self.operate("POST", "/v1/admin/providers", body)
        place = {"block": "b0", "leaf": "l0", "rack": "r0", "instance_type": TYPE, "gpus": 8}
        hosts = [{"ref": f"metal-{number:02d}", **place} for number in range(3)]
        self.operate("POST", "/v1/admin/nodes", {"provider_id": self.provider["id"], "nodes": hosts})
        check_providers(world.engine, world.tools)
        self.all_free()

    def operate(self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: str) -> Any:
        """What the API answers to the operator."""
        headers = {"Authorization": f"Bearer {self.world.keys.operator_key}", **more}
        answer: httpx.Response = self._loop.run(self._client.request(method, path, json=body, headers=headers))
        assert answer.is_success, answer.text
        return answer.json()

    def until(self, cluster_id: str, state: str) -> dict[str, Any]:
        """The cluster once it has come to the state."""
        self._work(lambda: self._state(f"clusters/{cluster_id}") == state)
        found: dict[str, Any] = self.send("GET", f"/clusters/{cluster_id}").json()
        return found

    def all_free(self) -> None:
        """Every node is cleaned and free."""
        self._work(lambda: not self.world.rows("SELECT 1 FROM nodes WHERE state <> 'available'"))

    def look(self, times: int = 40) -> None:
        """Everybody has looked so often."""
        for _ in range(times):
            self.world.tick()
            self.kit.settle()
            self._wait()

    def _work(self, over: Any) -> None:
        for _ in range(LOOKS):
            done = self.world.tick()
            self.kit.settle()
            if done:
                continue
            if over():
                return
            self._wait()
        raise AssertionError(
            f"it does not come to an end: {self.world.rows('SELECT id, state, step, reason, detail FROM clusters')}"
        )

    def to(self, cluster_id: str, method: str, more: str, body: Mapping[str, Any] | None, state: str = "running") -> dict[str, Any]:
        """The cluster after a change, a minute after the last one."""
        self.world.clock.advance(60)
        self._number += 1
        self.ask(method, f"/clusters/{cluster_id}{more}", body, **{"If-Match": "*"})
        return self.until(cluster_id, state)

    def billed(self) -> int:
        """Meters that run."""
        return int(self.world.rows("SELECT count(*) AS n FROM meter_intervals WHERE upper_inf(during)")[0].n)

    def members(self) -> set[str]:
        """Hosts that Machines have."""
        return {
            one["metadata"]["name"] for one in self.kit.kit.ask("GET", self.kit.hosts())["items"] if one["spec"].get("consumerRef")
        }


@contextmanager
def open_scene(
    database: Database,
    folder: Path,
    made_as: Callable[[World, Any], Made],
    before: Callable[[Any], object] = lambda _: None,
    peer: Callable[[], AbstractContextManager[Any]] = lambda: capi_kit(hosts=4),
) -> Iterator[Made]:
    """Three hosts are in the fleet and free; the fourth is nobody's. What is there before us is made first."""
    keys = seeding.sow_people(database.engine, "USD", site=SITE)
    clock = SharedClock(database)
    settings = Settings(
        database_url=database.app_url,  # type: ignore[arg-type]
        owner_database_url=database.owner_url,  # type: ignore[arg-type]
        data_dir=folder,
        master_key=MASTER_KEY,  # type: ignore[arg-type]
    )
    sealer = Sealer.from_base64(MASTER_KEY)

    def opened(provider_id: str, sealed: bytes | None) -> Mapping[str, str]:
        return bootstrap.open_secrets(sealer, provider_id, sealed)

    tools = Toolbox(deployment="cp", now=clock, open_secrets=opened)
    drivers = dict(bootstrap.drivers(database.engine, settings))
    nobody = Principal("prn_none", "key_none", "tenant", keys.tenant_id, frozenset())
    region = seeding.Region(folder / "none.sqlite")
    world = World(database, settings, keys, nobody, drivers, tools, region, clock)
    with peer() as kit:
        before(kit)
        made = made_as(world, kit)
        yield made
        made.close()
        world.tools.close()
    clock.stop()


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    """A management cluster, and a fleet of its hosts."""
    with open_scene(database, tmp_path, Scene) as made:
        yield made


def test_the_whole_life(scene: Scene) -> None:
    """Ordered, grown, shrunk, a node replaced, upgraded, deleted: each is seen at the peer, and nothing of it is left there."""
    made = scene.ask("POST", "/clusters", ORDER)
    running = scene.until(made["id"], "running")
    assert running["spec"]["kubernetes"] == {"distribution": "managed", "version": "1.34.2", "upgrading_to": None}
    checks = {one["name"]: one["result"] for one in running["status"]["conditions"]}
    assert checks["nodes_answer"] == checks["gpu_count"] == checks["control_plane"] == "passed"
    assert len(scene.members()) == 2
    for count in (3, 2):
        scene.to(made["id"], "PATCH", "", {"node_sets": [{"name": "workers", "count": count}]})
        assert len(scene.members()) == count
    before = scene.members()
    one = scene.send("GET", f"/clusters/{made['id']}/instances").json()["items"][0]
    scene.to(made["id"], "POST", f"/instances/{one['id']}/actions/replace", None)
    assert (len(scene.members() & before), len(scene.members())) == (1, 2)
    scene.kit.controllers.budgets = scene.members()
    scene.ask("POST", f"/clusters/{made['id']}/actions/upgrade", {"version": "1.35.1"}, **{"If-Match": "*"})
    scene.look(20)
    held = scene.send("GET", f"/clusters/{made['id']}").json()
    assert (held["status"]["state"], held["spec"]["kubernetes"]["upgrading_to"]) == ("upgrading", "1.35.1")
    assert held["status"]["reason"] == "0 of 2 workers have Kubernetes 1.35.1.", "pods that cannot be evicted hold their workers"
    scene.kit.controllers.budgets = set()
    upgraded = scene.until(made["id"], "running")
    assert upgraded["spec"]["kubernetes"] == {"distribution": "managed", "version": "1.35.1", "upgrading_to": None}
    at_new = [line for line in scene.kit.controllers.story if line.endswith("is made at v1.35.1")]
    assert "-cp-0" in at_new[0], "control planes come first"
    assert sum("-workers-" in line for line in at_new) == 2
    assert scene.billed() == 2
    scene.to(made["id"], "DELETE", "", None, "deleted")
    scene.all_free()
    assert scene.kit.remains() == []
    assert scene.billed() == 0


def test_what_cannot_be_is_said_and_nothing_is_lost_while_the_peer_is_away(scene: Scene) -> None:
    """Roles, logins, versions and upgrades that cannot be, each in words; a silent management cluster changes nothing."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kubernetes": {"distribution": "managed", "version": "1.33.0"}}, "product_not_available"),
        ({"login": {"ssh_keys": ["ssh-ed25519 " + "A" * 68]}}, "login_not_taken"),
        ({"node_sets": [{"name": "cp", "instance_type": TYPE, "count": 1, "role": "control_plane"}]}, "role_not_taken"),
    ]
    for change, code in wrong:
        refused = scene.send("POST", "/clusters", {"name": "odd", "spec": {**ORDER["spec"], **change}})
        told = refused.json()
        assert code in {told["code"], *(one["code"] for one in told.get("errors", []))}, told
    made = scene.ask(
        "POST", "/clusters", {**ORDER, "spec": {**ORDER["spec"], "kubernetes": {"distribution": "managed", "version": "1.34.2"}}}
    )
    scene.until(made["id"], "running")
    for body, code in (
        ({"version": "1.36.0"}, "kubernetes_upgrade_impossible"),
        ({"version": "1.34.9"}, "version_not_offered"),
        ({"version": "1.34.2"}, "kubernetes_upgrade_impossible"),
        ({}, "version_missing"),
        ({"version": "1.35.1", "node_sets": ["workers"]}, "not_taken"),
    ):
        refused = scene.send("POST", f"/clusters/{made['id']}/actions/upgrade", body, **{"If-Match": "*"})
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, code), refused.text
    scene.kit.kit.handle.post("/_emu/faults", [{"path": "/api", "times": 100_000, "status": 503}])
    scene.look(30)
    assert scene.send("GET", f"/clusters/{made['id']}").json()["status"]["state"] == "running", "away is not lost"
    assert {row.state for row in scene.world.rows("SELECT state FROM allocations")} == {"active"}
    assert scene.billed() == 2
    scene.kit.kit.handle.post("/_emu/faults", [])
    scene.world.tools.close()
    scene.world.tools = scene.world.toolbox()  # circuits stay open for seconds of real time
    scene.to(made["id"], "PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]})


def test_what_runs_goes_on_by_itself_once_a_wrong_setting_or_a_refusal_is_mended(scene: Scene) -> None:
    """A credential that nobody can read fails no order and asks for nobody; a look that is refused asks, and is taken again."""
    made = scene.ask("POST", "/clusters", ORDER)
    path = f"/v1/admin/providers/{scene.provider['id']}"
    scene.operate("PATCH", path, {"secrets": {"kubeconfig": "nonsense"}}, **{"If-Match": "*"})
    scene.look(20)
    asking = "SELECT state, attention FROM clusters UNION SELECT state, attention FROM nodes WHERE state <> 'available'"
    assert sorted(scene.world.rows(asking)) == [("deploying", ""), ("provisioning", "")]
    scene.operate("PATCH", path, {"secrets": {"kubeconfig": scene.kit.kit.kubeconfig}}, **{"If-Match": "*"})
    scene.until(made["id"], "running")
    scene.kit.kit.handle.post("/_emu/faults", [{"method": "GET", "path": "/clusters/", "times": 100_000, "status": 422}])
    scene.look(20)
    assert scene.world.rows("SELECT state, attention FROM clusters") == [("running", "provider_refused")]
    scene.kit.kit.handle.post("/_emu/faults", [])
    scene.look(20)
    assert scene.world.rows("SELECT state, attention FROM clusters") == [("running", "")]
    assert (scene.billed(), promises_of_rows(scene.world)) == (2, [])


def test_what_the_server_refuses_for_good_changes_nothing(scene: Scene) -> None:
    """Grown, shrunk, a node replaced, upgraded: the same Machines on the same hosts, nobody aside, billed as before."""
    made = scene.ask("POST", "/clusters", ORDER)
    scene.until(made["id"], "running")
    one = scene.send("GET", f"/clusters/{made['id']}/instances").json()["items"][0]
    hosts, story = scene.members(), list(scene.kit.controllers.story)
    asked: list[tuple[str, str, Any]] = [
        ("PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]}),
        ("PATCH", "", {"node_sets": [{"name": "workers", "count": 1}]}),
        ("POST", f"/instances/{one['id']}/actions/replace", None),
        ("POST", "/actions/upgrade", {"version": "1.35.1"}),
    ]
    for method, more, body in asked:
        scene.kit.kit.handle.post("/_emu/faults", [{"method": "PATCH", "path": "/clusters/", "times": 100_000, "status": 422}])
        seen = scene.to(made["id"], method, more, body)
        scene._work(lambda: not scene.world.rows("SELECT 1 FROM nodes WHERE state NOT IN ('active', 'available')"))
        assert (scene.members(), scene.kit.controllers.story) == (hosts, story)
        assert (seen["status"]["state"], seen["status"]["issues"], seen["spec"]["node_sets"][0]["count"]) == ("running", [], 2)
        assert (seen["spec"]["kubernetes"], scene.billed()) == (
            {"distribution": "managed", "version": "1.34.2", "upgrading_to": None},
            2,
        )
        scene.kit.kit.handle.post("/_emu/faults", [])
        scene.look(3)
    ended = scene.world.rows("SELECT state, error->>'code' AS code FROM operations WHERE type <> 'cluster.create' ORDER BY id")
    assert ended == [("failed", "provider_refused")] * 3 + [("failed", "upgrade_refused")]
    assert promises_of_rows(scene.world) == []
    scene.to(made["id"], *asked[2])
    assert (len(scene.members() & hosts), scene.billed()) == (1, 2)
    scene.to(made["id"], "DELETE", "", None, "deleted")
    scene.all_free()
    assert scene.kit.remains() == []
