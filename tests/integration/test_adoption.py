"""
Clusters that exist at a provider already, through the API in this process: seen beside our inventory, taken over, turned down, let go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.providers.adoption import Adoption
from controlplane.providers.clusters import ClusterSpec, Member
from tests.conftest import Database
from tests.integration.test_managed_kubernetes import ORDER, TYPE, Scene, open_scene
from tests.kubernetes_kit import UNTIDY
from workers.sweeps import discover, reap

pytestmark = UNTIDY
THEIRS = {"metal-00", "metal-01"}


class Standing(Scene):
    """
    A cloud whose management cluster has a Cluster of the operator's on two of its four hosts; three are enrolled.
    """

    def all_free(self) -> None:
        """Nodes whose machines are in use are put in maintenance by a person; the others are free."""
        for row in self.world.rows("SELECT id, ref FROM nodes WHERE state = 'enrolled'"):
            if row.ref in THEIRS:
                self.verb(row.id, "maintain")
        self._work(
            lambda: not self.world.rows("SELECT 1 FROM nodes WHERE state NOT IN ('available', 'maintenance', 'quarantined')")
        )

    def verb(self, node_id: str, verb: str) -> None:
        """An operator does that to the node."""
        answer = self.admin("POST", f"/v1/admin/nodes/{node_id}/actions/{verb}", {"reason": "by hand"}, **{"If-Match": "*"})
        assert answer.is_success, answer.text

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> httpx.Response:
        """What the API answers to the operator."""
        told = {"Authorization": f"Bearer {self.world.keys.operator_key}", **headers}
        return self._loop.run(self._client.request(method, path, json=body, headers=told))

    @property
    def found(self) -> str:
        """Where clusters that were found are listed."""
        return f"/v1/admin/providers/{self.provider['id']}/discovered-clusters"

    def see(self) -> dict[str, Any]:
        """What is told of the Cluster after another look."""
        assert self.admin("POST", f"/v1/admin/providers/{self.provider['id']}/actions/discover").status_code == 202
        discover(self.world.engine, self.world.tools)
        (one,) = self.admin("GET", self.found).json()["items"]
        seen: dict[str, Any] = one
        return seen

    def wish(self, **other: Any) -> dict[str, Any]:
        """The body that makes it the tenant's."""
        keys = self.world.keys
        return {"tenant_id": keys.tenant_id, "project_id": keys.project_id, "name": "research", **other}

    def adopt(self, key: str = "adopt-1") -> dict[str, Any]:
        """It is asked for; the ids of the cluster and its operation."""
        answer = self.admin("POST", f"{self.found}/{self.see()['id']}/actions/adopt", self.wish(), **{"Idempotency-Key": key})
        assert answer.status_code == 202, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def theirs(self) -> dict[str, Any]:
        """The Cluster now."""
        found: dict[str, Any] = self.kit.kit.ask("GET", f"{self.kit.capi()}/clusters/theirs")
        return found

    def used(self) -> dict[str, int]:
        """What counts against the tenant's quota."""
        rows = self.world.rows(
            "SELECT resource, max(used) AS used FROM quotas WHERE scope_id = :t AND resource IN ('gpus', 'clusters') GROUP BY 1",
            t=self.world.keys.tenant_id,
        )
        return {row.resource: int(row.used) for row in rows}

    def nodes(self) -> dict[str, str]:
        """Each node's state, by its name at the provider."""
        return {row.ref: row.state for row in self.world.rows("SELECT ref, state FROM nodes")}

    def state(self, made: Mapping[str, Any]) -> str:
        """Where the cluster stands."""
        return self._state(f"clusters/{made['cluster_id']}")

    def end(self, operation_id: str) -> tuple[str, str]:
        """How the operation ended, and its error's code."""
        told = self.admin("GET", f"/v1/operations/{operation_id}").json()
        return told["state"], (told.get("error") or {}).get("code", "")


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Standing]:
    """The operator's Cluster runs before anything of ours is there."""
    with open_scene(database, tmp_path, Standing, before=lambda kit: kit.stand("theirs", 2)) as made:
        yield made


def test_from_somebody_elses_to_like_any_other(scene: Standing) -> None:
    """Seen, previewed, taken over without touching a machine, billed from then on; then grown, upgraded and deleted as any other."""
    seen = scene.see()
    assert (seen["ref"], seen["version"], seen["adoptable"], seen["obstacles"]) == ("theirs", "1.34.2", True, [])
    assert {(one["ref"], one["node_state"]) for one in seen["hosts"]} == {(ref, "maintenance") for ref in THEIRS}
    path = f"{scene.found}/{seen['id']}/actions/adopt"
    dry = scene.admin("POST", f"{path}?dry_run=true", scene.wish())
    assert dry.status_code == 200, dry.text
    plan = dry.json()
    assert (plan["adoptable"], plan["nodes"], list(plan["gpus"].values())) == (True, 2, [16])
    assert scene.world.rows("SELECT 1 FROM clusters") == [], "a preview changes nothing"
    wrong = scene.admin("POST", f"{path}?dry_run=true", scene.wish(project_id="prj_nobodys"))
    assert wrong.status_code == 422, "a preview is told what the real one would be"
    story, before = list(scene.kit.controllers.story), scene.world.rows("SELECT cp_clock() AS at")[0].at
    first = scene.adopt()
    assert scene.adopt() == first, "the same key is the same request"
    assert scene.used() == {"gpus": 16, "clusters": 1}
    running = scene.until(first["cluster_id"], "running")
    assert (running["spec"]["kubernetes"]["version"], running["spec"]["node_sets"][0]["ready"]) == ("1.34.2", 2)
    assert scene.end(first["operation_id"]) == ("succeeded", "")
    assert scene.kit.controllers.story == story
    assert scene.nodes() == {"metal-00": "active", "metal-01": "active", "metal-02": "available"}
    meters = scene.world.rows("SELECT lower(during) AS at FROM meter_intervals")
    assert len(meters) == 2
    assert all(one.at >= before for one in meters), "nothing is billed for the time before"
    assert scene.admin("GET", scene.found).json()["items"][0]["cluster_id"] == first["cluster_id"]
    discover_again(scene)
    assert scene.admin("GET", scene.found).json()["items"] == []
    scene.to(first["cluster_id"], "PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]})
    assert scene.members() == {*THEIRS, "metal-02"}
    assert not [line for line in scene.kit.controllers.story if line.endswith("is gone")]
    scene.to(first["cluster_id"], "POST", "/actions/upgrade", {"version": "1.35.1"})
    assert scene.members() == {*THEIRS, "metal-02"}
    scene.to(first["cluster_id"], "PATCH", "", {"node_sets": [{"name": "workers", "count": 2}]})
    scene.to(first["cluster_id"], "DELETE", "", None, "deleted")
    scene._work(lambda: set(scene.nodes().values()) == {"available"})
    assert scene.kit.remains() == []
    assert (scene.billed(), scene.used()) == (0, {"gpus": 0, "clusters": 0})
    told = {row.type for row in scene.world.rows("SELECT type FROM events WHERE resource_id = :c", c=first["cluster_id"])}
    assert {"cluster.adoption_asked", "cluster.adopting", "cluster.running", "cluster.deleted"} <= told
    audit = scene.admin("GET", "/v1/audit-events?limit=200").json()["items"]
    assert [one["action"] for one in audit if one["target"] == first["cluster_id"]] == ["clusters:create"]


def discover_again(scene: Standing) -> None:
    """The provider is looked at once more."""
    scene.admin("POST", f"/v1/admin/providers/{scene.provider['id']}/actions/discover")
    discover(scene.world.engine, scene.world.tools)


def test_what_stands_in_the_way_is_said_in_words(scene: Standing) -> None:
    """Hosts that are not enrolled, at work, or of another type; a class of nobody's; who may not; providers that cannot."""
    node = scene.world.rows("SELECT id FROM nodes WHERE ref = 'metal-01'")[0].id
    scene.verb(node, "requalify")
    scene.kit.stand("other", 1, classRef={"name": "gpu-metal", "namespace": "elsewhere"})
    discover_again(scene)
    scene.kit.kit.handle.post("/_emu/faults", [{"path": "/machines", "times": 9, "status": 500}])
    discover_again(scene)
    scene.kit.kit.handle.post("/_emu/faults", [])
    items = {one["ref"]: one for one in scene.admin("GET", scene.found).json()["items"]}
    assert set(items) == {"theirs", "other"}, "a look that failed says of nothing that it is gone"
    codes = {ref: [one["code"] for one in seen["obstacles"]] for ref, seen in items.items()}
    assert codes["theirs"] == ["host_busy"]
    assert set(codes["other"]) >= {"other_class"}
    assert "put it in maintenance" in items["theirs"]["obstacles"][0]["message"]
    path = f"{scene.found}/{items['theirs']['id']}/actions/adopt"
    refused = scene.admin("POST", path, scene.wish())
    assert (refused.status_code, refused.json()["code"]) == (409, "not_adoptable"), refused.text
    assert [one["code"] for one in refused.json()["obstacles"]] == ["host_busy"]
    dry = scene.admin("POST", f"{path}?dry_run=true", scene.wish()).json()
    assert (dry["adoptable"], [one["code"] for one in dry["obstacles"]]) == (False, ["host_busy"])
    assert scene.world.rows("SELECT 1 FROM clusters") == []
    assert scene.used() == {"gpus": 0, "clusters": 0}
    switch = f"/v1/admin/providers/{scene.provider['id']}/actions"
    scene.operate("POST", f"{switch}/disable", None, **{"If-Match": "*"})
    off = scene.admin("POST", path, scene.wish()).json()["obstacles"]
    assert [one["code"] for one in off] == ["host_busy", "provider_off"], "each is said once"
    scene.operate("POST", f"{switch}/enable", None, **{"If-Match": "*"})
    unknown = scene.admin("POST", path, scene.wish(project_id="prj_nobodys"))
    assert (unknown.status_code, unknown.json()["errors"][0]["code"]) == (422, "unknown_project"), unknown.text
    for method, where, body in (("GET", scene.found, None), ("POST", path, scene.wish())):
        tenants = scene._loop.run(scene._client.request(method, where, json=body))
        assert (tenants.status_code, tenants.json()["code"]) == (403, "wrong_audience")
    simulated = {"name": "sim", "adapter": "simulated", "site": "site-one", "config": {"world": "/nonexistent"}, "shared": True}
    other = scene.operate("POST", "/v1/admin/providers", simulated)
    answer = scene.admin("GET", f"/v1/admin/providers/{other['id']}/discovered-clusters")
    assert (answer.status_code, answer.json()["code"]) == (409, "adoption_not_offered"), answer.text
    assert answer.json()["hint"]


def test_it_is_taken_once_and_within_quota(scene: Standing) -> None:
    """Too small a quota and a name that is taken change nothing; who comes second is told who has it."""
    path = f"{scene.found}/{scene.see()['id']}/actions/adopt"
    spec = {**ORDER["spec"], "node_sets": [{"name": "workers", "instance_type": TYPE, "count": 1}]}
    first = scene.ask("POST", "/clusters", {**ORDER, "spec": spec})
    named = scene.admin("POST", path, scene.wish())
    assert (named.status_code, named.json()["code"]) == (409, "name_taken"), named.text
    scene.to(first["id"], "DELETE", "", None, "deleted")
    scene._work(lambda: set(scene.nodes().values()) == {"maintenance", "available"})
    limits = {"limits": [{"resource": "gpus", "limit": 8}]}
    for amount, code in ((8, "quota_exceeded"), (None, None)):
        limits["limits"][0]["limit"] = amount
        done = scene.send("PUT", "/quotas", limits, **{"If-Match": "*"})
        assert done.is_success, done.text
        answer = scene.admin("POST", path, scene.wish())
        if code:
            assert (answer.status_code, answer.json()["code"]) == (409, code), answer.text
            assert set(scene.nodes().values()) == {"maintenance", "available"}
            assert scene.used() == {"gpus": 0, "clusters": 0}
    assert answer.status_code == 202, answer.text
    again = scene.admin("POST", path, scene.wish(name="second"))
    assert (again.status_code, again.json()["obstacles"][0]["code"]) == (409, "taken_already"), again.text
    assert answer.json()["cluster_id"] in again.json()["detail"]
    node = scene.world.rows("SELECT id FROM nodes WHERE ref = 'metal-00'")[0].id
    held = scene.admin("POST", f"/v1/admin/nodes/{node}/actions/quarantine", {"reason": "x"}, **{"If-Match": "*"})
    assert (held.status_code, held.json()["code"]) == (409, "wrong_state"), held.text
    scene.kit.kit.handle.post("/_emu/faults", [{"path": "/api", "times": 100_000, "status": 503}])
    scene.look(20)
    assert scene.state(answer.json()) == "adopting", "away is no refusal"
    scene.kit.kit.handle.post("/_emu/faults", [])
    scene.world.tools.close()
    scene.world.tools = scene.world.toolbox()  # circuits stay open for seconds of real time
    scene.until(answer.json()["cluster_id"], "running")
    assert scene.used() == {"gpus": 16, "clusters": 1}


def test_a_provider_that_turns_it_down_is_left_as_it_was(scene: Standing) -> None:
    """The Cluster changed after it was seen: the operation fails with the reason, and rows, quota and marks are as before."""
    made = scene.adopt()
    patch = {"spec": {"topology": {"workers": {"machineDeployments": [{"class": "h100", "name": "workers", "replicas": 3}]}}}}
    scene.kit.kit.ask("PATCH", f"{scene.kit.capi()}/clusters/theirs", patch)
    scene.kit.settle()
    before = scene.kit.state()
    scene._work(lambda: scene.state(made) == "deleted")
    assert scene.end(made["operation_id"]) == ("failed", "adoption_refused")
    assert scene.kit.state() == before
    assert scene.nodes() == {"metal-00": "maintenance", "metal-01": "maintenance", "metal-02": "available"}
    assert scene.used() == {"gpus": 0, "clusters": 0}
    assert scene.world.rows("SELECT 1 FROM meter_intervals") == []
    seen = scene.see()
    assert seen["refusal"]["code"] == "adoption_refused"
    assert "provider_cluster_changed" in seen["refusal"]["message"]
    assert seen["cluster_id"] is None


def test_what_became_the_wrong_tenants_is_given_back_as_it_was(scene: Standing) -> None:
    """Until it is changed through us; billing ends at once, nothing is taken down or wiped, and it stands there to be taken over again."""
    before, story = scene.kit.state(), list(scene.kit.controllers.story)
    made = scene.adopt()
    scene.until(made["cluster_id"], "running")
    path = f"/v1/admin/clusters/{made['cluster_id']}/actions/let-go"
    assert scene.admin("POST", path).status_code == 428
    scene.world.clock.advance(60)
    done = scene.admin("POST", path, **{"If-Match": "*"})
    assert done.status_code == 202, done.text
    assert scene.billed() == 0
    assert {scene.nodes()[ref] for ref in THEIRS} == {"adopting"}
    scene._work(lambda: scene.state(made) == "deleted")
    assert scene.end(done.json()["operation_id"]) == ("succeeded", "")
    assert (scene.kit.state(), scene.kit.controllers.story) == (before, story)
    assert {scene.nodes()[ref] for ref in THEIRS} == {"maintenance"}
    assert scene.used() == {"gpus": 0, "clusters": 0}
    again = scene.adopt("adopt-2")
    scene.until(again["cluster_id"], "running")
    assert again["cluster_id"] != made["cluster_id"]
    spans = scene.world.rows("SELECT node_id, during FROM allocations ORDER BY node_id, lower(during)")
    assert len(spans) == 4, "one tenancy after the other"
    scene.to(again["cluster_id"], "PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]})
    refused = scene.admin("POST", path.replace(made["cluster_id"], again["cluster_id"]), **{"If-Match": "*"})
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state"), refused.text
    assert "changed through us" in refused.json()["detail"]
    tenants = scene._loop.run(scene._client.request("POST", path, headers={"If-Match": "*"}))
    assert tenants.status_code == 403


def test_until_it_is_handed_over_deleting_lets_it_go(scene: Standing) -> None:
    """Its tenant deletes it half-way, and a call of ours that was long under way marks it once more: it is let go, never removed."""
    before = scene.kit.state()
    made = scene.adopt()
    (claim,) = scene.world.drivers["cluster"].claim(1)
    scene.world.drivers["cluster"].step(claim, scene.world.tools)
    assert scene.kit.state() != before
    assert scene.send("DELETE", f"/clusters/{made['cluster_id']}", None, **{"If-Match": "*"}).status_code == 202
    scene.world.clock.advance(70)
    scene._work(lambda: scene.state(made) == "deleted")
    assert scene.kit.state() == before
    assert scene.used() == {"gpus": 0, "clusters": 0}
    assert {scene.nodes()[ref] for ref in THEIRS} == {"maintenance"}
    keys = scene.world.keys
    members = tuple(Member(ref, 8, f"alc_{number}", "workers", "hgx-h100-8") for number, ref in enumerate(sorted(THEIRS)))
    late = ClusterSpec(made["cluster_id"], keys.tenant_id, keys.project_id, "", members, "1.34.2")
    provider = claim.snapshot.provider
    scene.world.tools.adoption(provider).adopt_cluster(Adoption("theirs", scene.theirs()["metadata"]["uid"], late))
    suspects: dict[str, Any] = {}
    for _ in range(3):
        scene.world.clock.advance(4000)
        reap(scene.world.engine, scene.world.tools, suspects)
    assert "controlplane.internal/cluster" not in scene.theirs()["metadata"]["labels"]
    assert scene.members() >= THEIRS


def test_whatever_is_lost_on_the_way_nothing_is_half_taken(scene: Standing) -> None:
    """Every claim of the cluster loses its answer once, as if the worker had died after the call: it comes to the same end, once."""
    made = scene.adopt()
    driver = scene.world.drivers["cluster"]
    lost: set[str] = set()
    for _ in range(12):
        for claim in driver.claim(10):
            result = driver.step(claim, scene.world.tools)
            if claim.step not in lost:
                lost.add(claim.step)
                scene.world.clock.advance(70)
                continue
            driver.apply([result])
        if scene.state(made) == "running":
            break
        scene.world.clock.advance(10)
    assert lost >= {"", "told"}
    assert scene.state(made) == "running"
    rows = scene.world.rows("SELECT count(*) AS n, count(DISTINCT node_id) AS nodes FROM allocations WHERE state = 'active'")
    assert (rows[0].n, rows[0].nodes, scene.billed()) == (2, 2, 2)
