"""
Services over HTTP and through their states, on a simulated cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.providers.errors import NotFound
from tests.conftest import ROOT, Database
from tests.factories.services import ENGINE, SERVICE_RIGHTS, ServiceWorld, service_world


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[ServiceWorld]:
    """Two tenants with a Kubernetes cluster each."""
    with service_world(database, tmp_path) as made:
        yield made


def test_a_service_from_order_to_nothing(world: ServiceWorld) -> None:
    """202 with the operation; replicas, address and output; then deleted with nothing left at the provider."""
    answer = world.api.call("one", "POST", world.path, {**world.body(), "labels": {"team": "vision"}})
    assert answer.status_code == 202
    made = answer.json()
    path = f"{world.path}/{made['id']}"
    assert (answer.headers["location"], answer.headers["etag"]) == (path, '"1"')
    assert (made["status"]["state"], made["spec"]["rollout"]) == ("pending", {"surge": 0, "unavailable": 1, "timeout_s": 3600})
    assert world.api.nudges == [("service", made["id"])]
    running = world.until_state(path, "running")
    status = running["status"]
    assert (status["ready"], status["wanted"], status["current_version"], status["gpus_held"]) == (2, 2, 1, 2)
    assert {one for replica in status["replicas"] for one in replica["instances"]} <= set(world.customer.instances.values())
    assert not any(ref in str(running) for ref in world.customer.instances)
    assert status["address"].endswith(":8000")
    logs = world.get(f"{path}/logs")["items"]
    assert [one["text"].splitlines()[-1] for one in logs] == ["version 1 listens on port 8000"] * 2
    assert world.get(f"{path}/logs?replica={logs[0]['replica']}")["items"] == logs[:1]
    assert world.rows("SELECT state, type FROM operations") == [("succeeded", "service.create")]
    assert world.call("DELETE", path)[0] == 428
    assert world.call("DELETE", path, If_Match='"1"')[0] == 412
    assert world.call("DELETE", path, If_Match=f'"{running["version"]}"')[0] == 202
    gone = world.until_state(path, "deleted")
    assert (gone["status"]["replicas"], gone["status"]["gpus_held"]) == ([], 0)
    assert world.jobs.tools.services(world.jobs.provider).list_services(world.customer.cluster) == ()
    assert world.get(f"{path}/logs")["items"] == []
    assert (world.get(world.path)["items"], len(world.get(f"{world.path}?state=deleted")["items"])) == ([], 1)
    assert world.rows("SELECT type, state FROM operations ORDER BY id")[-1] == ("service.delete", "succeeded")
    history = [row.after for row in world.rows("SELECT after FROM state_history WHERE kind = 'service' ORDER BY id")]
    assert history == ["pending", "rolling_out", "running", "deleting", "deleted"]
    events = [row.type for row in world.rows("SELECT type FROM events WHERE resource_kind = 'service' ORDER BY id")]
    assert events == [f"service.{one}" for one in history]


@pytest.mark.parametrize("kind", ["slurm", "baremetal"])
def test_other_clusters_refuse_with_a_hint(world: ServiceWorld, kind: str) -> None:
    """409 that says which kind to order."""
    other = world.jobs.add_customer((), kind=kind, count=1)
    world.api.keys.known["other"] = other.principal(permissions=SERVICE_RIGHTS)
    body = world.body()
    body["spec"]["cluster_id"] = other.cluster
    status, problem = world.call("POST", f"/v1/projects/{other.project}/services", body, key="other")
    assert (status, problem["code"]) == (409, "cluster_runs_no_services")
    assert "kubernetes" in problem["hint"]


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("template", {"template": {"image": None}}),
        ("template.image", {"template": {"image": "--privileged"}}),
        ("template.image", {"template": {"image": "a b"}}),
        ("template.command", {"template": {"command": ["a\x00"]}}),
        ("template.command", {"template": {"command": ["x" * 16_384] * 5}}),
        ("template.env", {"template": {"env": {"1A": "x"}}}),
        ("template.env", {"template": {"env": {"A": "x\ny"}}}),
        ("template.env", {"template": {"env": {"MASTER_ADDR": "x"}}}),
        ("template.env", {"template": {"env": {"LWS_GROUP_SIZE": "1"}}}),
        ("template.port", {"template": {"port": 0}}),
        ("template.port", {"template": {"port": 65_536}}),
        ("template.readiness.path", {"template": {"readiness": {"path": "health"}}}),
        ("template.readiness.path", {"template": {"readiness": {"path": "/a b"}}}),
        ("template.gpus_per_node", {"template": {"gpus_per_node": 17}}),
        ("template.hostPath", {"template": {"hostPath": "/"}}),
        ("template", {"template": {"mig": {"profile": "1g.10gb"}}}),  # with gpus_per_node
        ("template.mig.profile", {"template": {"gpus_per_node": 0, "mig": {"profile": "1g"}}}),
        ("template", {"template": {"image": None, "engine": ENGINE}}),  # with gpus_per_node
        ("replicas", {"replicas": -1}),
        ("replicas", {"replicas": 1025}),
        ("replicas", {"replicas": True}),
        ("autoscaling", {"autoscaling": {"least": 3, "most": 2, "metric": "cpu_cores", "target": 1.0}}),
        ("autoscaling.metric", {"autoscaling": {"least": 1, "most": 2, "metric": 'a"} or vector(9', "target": 1.0}}),
        ("autoscaling.target", {"autoscaling": {"least": 1, "most": 2, "metric": "cpu_cores", "target": 0.0}}),
        ("rollout", {"rollout": {"surge": 0, "unavailable": 0}}),
        ("unknown", {"unknown": 1}),
    ],
    ids=lambda one: str(one)[:40],
)
def test_what_is_malformed_is_refused(world: ServiceWorld, field: str, spec: dict[str, Any]) -> None:
    """422 with the field; nothing is stored."""
    status, problem = world.call("POST", world.path, world.body(**spec))
    assert (status, problem["code"]) == (422, "invalid_request")
    assert problem["errors"][0]["field"].startswith(f"body.spec.{field}")
    assert world.get(world.path)["items"] == []


@pytest.mark.parametrize(
    ("spec", "resource", "limit"),
    [
        ({"template": {"gpus_per_node": 9}}, "gpus_per_node", 8),
        ({"template": {"nodes_per_replica": 3}}, "nodes", 2),
        ({"template": {"gpus_per_node": 8}, "replicas": 3}, "replicas", 2),
        ({"autoscaling": {"least": 1, "most": 17, "metric": "cpu_cores", "target": 1.0}}, "replicas", 16),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(world: ServiceWorld, spec: dict[str, Any], resource: str, limit: int) -> None:
    """409 with the limit."""
    status, problem = world.call("POST", world.path, world.body(**spec))
    assert (status, problem["code"], problem["resource"], problem["limit"]) == (409, "service_larger_than_cluster", resource, limit)


def test_a_kind_of_gpu_is_refused_where_it_cannot_be_asked_for(world: ServiceWorld) -> None:
    """With the feature and what to do instead; another model than the cluster's; where it is offered the wish is kept and shown."""
    wish = {"gpus_per_node": 1, "gpu": {"min_memory_gib": 40}}
    for features, status, code in (
        ([], 409, "service_feature_unsupported"),
        (["gpu_attributes"], 202, None),
    ):
        said = json.dumps({"job_features": features})
        with world.jobs.database.owner.begin() as connection:
            connection.execute(text("UPDATE providers SET capabilities = CAST(:said AS jsonb)"), {"said": said})
        body = world.body() | {"name": f"s{status}"}
        body["spec"]["template"] |= wish
        answer = world.api.call("one", "POST", world.path, body)
        told = answer.json()
        assert (answer.status_code, told.get("code")) == (status, code), told
        shown = told["feature"] if code else told["spec"]["template"]["gpu"]
        assert shown == ("gpu_attributes" if code else {"model": None, "min_memory_gib": 40, "nvlink": None})
    body = world.body() | {"name": "other"}
    body["spec"]["template"] |= {"gpus_per_node": 1, "gpu": {"model": "B300"}}
    answer = world.api.call("one", "POST", world.path, body)
    assert (answer.status_code, answer.json()["resource"], answer.json()["requested"]) == (409, "gpu_model", "B300")
    body["spec"]["template"] |= {"gpus_per_node": 0}
    assert world.api.call("one", "POST", world.path, body).status_code == 422


@pytest.mark.parametrize(
    ("offered", "asked", "code", "told"),
    [
        (None, ("1g.10gb", 1, 1), "service_feature_unsupported", {"feature": "mig"}),
        ({"3g.40gb": 4}, ("1g.5gb", 1, 1), "mig_profile_unknown", {"profile": "1g.5gb"}),  # an A100's
        ({"3g.40gb": 4}, ("1g.10gb", 1, 1), "mig_profile_unknown", {"offered": ["3g.40gb"]}),
        ({"3g.40gb": 4}, ("3g.40gb", 5, 1), "service_larger_than_cluster", {"resource": "mig_per_node", "limit": 4}),
        ({"3g.40gb": 40}, ("3g.40gb", 19, 1), "service_larger_than_cluster", {"resource": "mig_per_node", "limit": 18}),
        ({"3g.40gb": 5}, ("3g.40gb", 2, 5), "service_larger_than_cluster", {"resource": "replicas", "limit": 4}),
        ({"3g.40gb": 5}, ("3g.40gb", 2, 4), None, {}),
    ],
)
def test_slices_that_its_cluster_has_not_are_refused_when_they_are_ordered(
    world: ServiceWorld, offered: dict[str, int] | None, asked: tuple[str, int, int], code: str | None, told: dict[str, Any]
) -> None:
    """By what is offered, by the catalog, by what nodes have, and by the room that all replicas together would need; else taken."""
    said = json.dumps({"job_features": [] if offered is None else ["mig"], "mig": offered or {}})
    with world.jobs.database.owner.begin() as connection:
        connection.execute(text("UPDATE gpu_models SET mig_profiles = '{1g.10gb,3g.40gb,7g.80gb}'"))
        connection.execute(text("UPDATE providers SET capabilities = CAST(:said AS jsonb)"), {"said": said})
    profile, per_node, replicas = asked
    slices = {"gpus_per_node": 0, "mig": {"profile": profile, "per_node": per_node}}
    status, answer = world.call("POST", world.path, world.body(template=slices, replicas=replicas))
    assert (status, answer.get("code")) == (409 if code else 202, code), answer
    assert {name: answer[name] for name in told} == told
    if code is None:
        assert answer["spec"]["rollout"]["surge"] == 0


def test_names_are_unique_until_deleted(world: ServiceWorld) -> None:
    """409 for the second; the name is free again afterwards."""
    path = world.start()
    assert world.call("POST", world.path, world.body())[1]["code"] == "name_taken"
    world.call("DELETE", path, If_Match="*")
    world.until_state(path, "deleted")
    world.start()


def test_dry_runs_and_repeats(world: ServiceWorld) -> None:
    """A dry run starts nothing; the same idempotency key makes one service."""
    status, told = world.call("POST", f"{world.path}?dry_run=true", world.body())
    assert (status, told["spec"]["template"]["image"], world.get(world.path)["items"]) == (200, "example.org/echo:1", [])
    first = world.call("POST", world.path, world.body(), Idempotency_Key="k1")[1]
    assert world.call("POST", world.path, world.body(), Idempotency_Key="k1")[1] == first
    assert world.call("POST", world.path, world.body("other"), Idempotency_Key="k1")[0] == 422


def test_a_changed_template_is_a_version_and_can_be_rolled_back(world: ServiceWorld) -> None:
    """Versions are numbered; a rollback is a new one that repeats an old one; scaling makes none."""
    path = world.start()
    etag = world.until_state(path, "running")["version"]
    patch = {"spec": {"template": {"image": "example.org/echo:2", "gpus_per_node": 1}}}
    assert world.call("PATCH", path, patch)[0] == 428
    status, changed = world.call("PATCH", path, patch, If_Match=f'"{etag}"')
    assert (status, changed["status"]["state"], changed["status"]["current_version"]) == (202, "rolling_out", 2)
    busy = world.call("PATCH", path, {"spec": {"replicas": 1}}, If_Match="*")
    assert (busy[0], busy[1]["code"], busy[1]["operation_id"]) == (409, "operation_active", changed["operation_id"])
    replicas = world.until_state(path, "running")["status"]["replicas"]
    assert [one["version"] for one in replicas] == [2, 2]
    world.act(path, "scale", {"replicas": 3})
    assert world.until_state(path, "running")["status"]["ready"] == 3
    back = world.act(path, "rollback", {})
    assert back["status"]["current_version"] == 3
    assert back["spec"]["template"]["image"] == "example.org/echo:1"
    assert [one["version"] for one in world.until_state(path, "running")["status"]["replicas"]] == [3, 3, 3]
    versions = world.get(f"{path}/versions")["items"]
    assert [(one["number"], one["restored"], one["outcome"]) for one in versions] == [
        (1, None, "ready"), (2, None, "ready"), (3, 1, "ready"),
    ]  # fmt: skip
    assert world.call("POST", f"{path}/actions/rollback", {"version": 9})[1]["code"] == "version_unknown"
    assert world.call("POST", f"{path}/actions/rollback", {"version": 3})[1]["code"] == "service_not_changeable"
    first = world.get(f"{path}/versions?limit=2")
    assert [one["number"] for one in world.get(f"{path}/versions?page_token={first['next_page_token']}")["items"]] == [3]


def test_a_version_that_fails_says_why_and_leaves_what_was_there(world: ServiceWorld) -> None:
    """The image cannot be pulled: in words, with a stable code; one old replica goes on; a rollback needs no waiting."""
    path = world.start()
    world.until_state(path, "running")
    patch = {"spec": {"template": {"image": "example.org/echo:missing", "gpus_per_node": 1}, "rollout": {"timeout_s": 60}}}
    world.call("PATCH", path, patch, If_Match="*")
    world.until(lambda: world.get(path)["status"]["issues"])
    seen = world.get(path)["status"]
    assert (seen["state"], seen["issues"][0]["code"]) == ("rolling_out", "image_pull")
    assert "cannot be pulled" in seen["reason"]
    assert sorted((one["version"], one["phase"]) for one in seen["replicas"]) == [(1, "ready"), (2, "failing")]
    degraded = world.until_state(path, "degraded")["status"]
    assert "within 60 s" in degraded["reason"]
    assert world.rows("SELECT state FROM operations ORDER BY id")[-1] == ("failed",)
    assert world.get(f"{path}/versions")["items"][1]["outcome"] == "failed"
    world.act(path, "rollback", {})
    assert [one["version"] for one in world.until_state(path, "running")["status"]["replicas"]] == [3, 3]


def test_a_rollback_gives_up_the_rollout_under_way(world: ServiceWorld) -> None:
    """Its operation ends as cancelled, its version was replaced."""
    path = world.start()
    world.until_state(path, "running")
    world.call("PATCH", path, {"spec": {"template": {"image": "a:missing", "gpus_per_node": 1}}}, If_Match="*")
    world.until(lambda: world.get(path)["status"]["issues"])
    world.act(path, "rollback", {"version": 1})
    world.until_state(path, "running")
    assert [row.state for row in world.rows("SELECT state FROM operations ORDER BY id")] == ["succeeded", "cancelled", "succeeded"]
    assert world.get(f"{path}/versions")["items"][1]["outcome"] == "replaced"


def test_a_program_that_ends_at_once_is_shown_with_its_code(world: ServiceWorld) -> None:
    """Crash loops tell exit code and restarts, and what was printed before."""
    path = world.start(world.body(template={"command": ["sh", "-c", "exit 3"]}, replicas=1))
    world.until(lambda: world.get(path)["status"]["issues"])
    (replica,) = world.get(path)["status"]["replicas"]
    assert (replica["phase"], replica["issue"]["code"], replica["exit_code"]) == ("failing", "crash_loop", 3)
    assert "exit code 3" in world.get(f"{path}/logs")["items"][0]["text"]


def test_suspend_and_resume(world: ServiceWorld) -> None:
    """Suspended it holds nothing and keeps its version; GPU time stands still meanwhile."""
    path = world.start()
    world.until_state(path, "running")
    world.jobs.clock.advance(100)
    world.act(path, "suspend")
    rest = world.until_state(path, "suspended")["status"]
    assert (rest["replicas"], rest["gpus_held"], rest["suspended"]) == ([], 0, True)
    assert 200 <= rest["gpu_seconds"] <= 240
    assert world.call("POST", f"{path}/actions/suspend")[1]["code"] == "service_not_changeable"
    world.jobs.clock.advance(1000)
    world.act(path, "resume")
    again = world.until_state(path, "running")["status"]
    assert (again["ready"], again["current_version"]) == (2, 1)
    assert again["gpu_seconds"] - rest["gpu_seconds"] <= 20


def test_a_metric_decides_within_its_bounds(world: ServiceWorld) -> None:
    """Replicas follow what they carry; scaling by hand is refused then; null makes the number fixed again."""
    scaling = {"least": 1, "most": 4, "metric": "vllm:num_requests_waiting", "target": 5.0}
    path = world.start(world.body(autoscaling=scaling, replicas=1))
    service_id = world.until_state(path, "running")["id"]
    assert world.get(path)["status"]["ready"] == 1
    assert world.call("POST", f"{path}/actions/scale", {"replicas": 2})[1]["code"] == "service_not_changeable"
    for load, replicas in ((12, 3), (1000, 4), (1, 1)):
        world.jobs.sim.load(service_id, load)
        world.until(lambda wanted=replicas: world.get(path)["status"]["ready"] == wanted)  # type: ignore[misc]
        assert world.get(path)["status"]["state"] == "running"
    world.call("PATCH", path, {"spec": {"autoscaling": None, "replicas": 2}}, If_Match="*")
    fixed = world.until_state(path, "running")
    assert (fixed["spec"]["autoscaling"], fixed["status"]["ready"]) == (None, 2)


def test_a_lost_node_degrades_and_heals(world: ServiceWorld) -> None:
    """Its replicas are made again elsewhere; without room it is degraded and says so."""
    path = world.start(world.body(template={"gpus_per_node": 8}))
    world.until_state(path, "running")
    ref = next(iter(world.customer.instances))
    world.jobs.sim.kill_node(ref)
    seen = world.until_state(path, "degraded")["status"]
    assert (seen["ready"], seen["issues"][0]["code"]) == (1, "no_room")
    world.jobs.sim.revive_node(ref)
    world.until_state(path, "running")


def test_what_others_removed_is_brought_back(world: ServiceWorld) -> None:
    """A cluster that does not show it is told again."""
    path = world.start()
    service_id = world.until_state(path, "running")["id"]
    world.jobs.sim.play("flapping_404", "observe_service", service_id)
    world.until(lambda: len(world.rows("SELECT 1 FROM state_history WHERE after = 'rolling_out'")) == 2)
    assert world.until_state(path, "running")["status"]["ready"] == 2


@pytest.mark.parametrize(
    "fault", ["effect_then_timeout", "late_success", "duplicate_effect", "delay", "refuse_before_effect", "busy_429_without"]
)
def test_faults_of_the_line_leave_one_service_and_then_none(world: ServiceWorld, fault: str) -> None:
    """Every call may be lost, doubled or late: in the end there are two replicas, and after the delete nothing."""
    for operation in ("apply_service", "delete_service"):
        world.jobs.sim.play(fault, operation)
    path = world.start()
    assert len(world.until_state(path, "running")["status"]["replicas"]) == 2
    world.call("DELETE", path, If_Match="*")
    world.until_state(path, "deleted")
    world.jobs.clock.advance(120)
    assert world.jobs.tools.services(world.jobs.provider).list_services(world.customer.cluster) == ()


def test_one_look_that_finds_nothing_ends_no_service(world: ServiceWorld) -> None:
    """The peer is slow to remove it and once says that it is not there: it is deleted only when it is gone in truth."""
    path = world.start()
    service_id = world.until_state(path, "running")["id"]
    world.jobs.sim.play("delay", "delete_service")
    world.jobs.sim.play("flapping_404", "observe_service")
    world.call("DELETE", path, If_Match="*")
    world.until_state(path, "deleted")
    with pytest.raises(NotFound):
        world.jobs.tools.services(world.jobs.provider).observe_service(world.customer.cluster, service_id)


def test_a_refusal_is_shown_and_can_be_mended(world: ServiceWorld) -> None:
    """What the cluster turns down has failed; a change starts it again."""
    world.jobs.sim.play("refused_final", "apply_service")
    path = world.start()
    failed = world.until_state(path, "failed")
    assert "turned" in failed["status"]["reason"]
    assert not any(canary in str(failed) for canary in ("canary", "10.255"))
    world.act(path, "scale", {"replicas": 1})
    world.until_state(path, "running")


def test_it_waits_for_its_cluster_and_goes_with_it(world: ServiceWorld) -> None:
    """Ordered early, it starts when the cluster runs; when the cluster is deleted it is, too."""
    world.jobs.set_cluster_state("provisioning", world.customer)
    path = world.start()
    world.once()
    assert "provisioning" in world.get(path)["status"]["reason"]
    world.act(path, "scale", {"replicas": 1})
    world.jobs.set_cluster_state("running", world.customer)
    assert world.until_state(path, "running")["status"]["ready"] == 1
    world.jobs.set_cluster_state("deleting", world.customer)
    world.until_state(path, "deleted")
    assert world.call("POST", world.path, world.body())[1]["code"] == "cluster_not_usable"


def test_a_stale_claim_changes_nothing(world: ServiceWorld) -> None:
    """A step that was under way when a request came is dropped."""
    path = world.start()
    world.until_state(path, "running")
    world.jobs.clock.advance(20)
    (claim,) = world.driver.claim(10)
    result = world.driver.step(claim, world.jobs.tools)
    world.act(path, "suspend")
    assert world.driver.apply([result]) == 0
    assert world.get(path)["status"]["state"] == "rolling_out"


def test_actions_tell_what_is_allowed(world: ServiceWorld) -> None:
    """Each verb with the reason why not; the reason names the operation under way."""
    path = world.start()
    told = {one["name"]: one["reason"] for one in world.get(f"{path}/actions")["items"]}
    assert world.get(path)["operation_id"] in told["scale"]
    world.until_state(path, "running")
    told = {one["name"]: one["reason"] for one in world.get(f"{path}/actions")["items"]}
    assert told == {
        "rollback": "It has had one version only.", "scale": "", "suspend": "", "resume": "It is not suspended.", "delete": "",
    }  # fmt: skip


def test_labels_change_at_once(world: ServiceWorld) -> None:
    """No operation, no rollout; lists filter by them."""
    path = world.start()
    world.until_state(path, "running")
    status, changed = world.call("PATCH", path, {"labels": {"team": "vision"}}, If_Match="*")
    assert (status, changed["labels"], changed["operation_id"]) == (202, {"team": "vision"}, None)
    world.start(world.body("second"))
    assert len(world.get(f"{world.path}?label=team:vision")["items"]) == 1
    first = world.get(f"{world.path}?limit=1")
    assert [one["name"] for one in world.get(f"{world.path}?limit=1&page_token={first['next_page_token']}")["items"]] == ["second"]
    assert world.call("GET", f"{world.path}?state=nonsense")[0] == 422


def test_each_right_is_needed(world: ServiceWorld) -> None:
    """Every route refuses a key without its permission."""
    path = world.start()
    needs = {
        ("POST", world.path): ("services:create", world.body("x")),
        ("GET", world.path): ("services:read", None),
        ("GET", path): ("services:read", None),
        ("PATCH", path): ("services:update", {}),
        ("DELETE", path): ("services:delete", None),
        ("GET", f"{path}/actions"): ("services:read", None),
        ("GET", f"{path}/versions"): ("services:read", None),
        ("GET", f"{path}/logs"): ("services:logs", None),
        ("POST", f"{path}/actions/rollback"): ("services:update", {}),
        ("POST", f"{path}/actions/scale"): ("services:update", {"replicas": 1}),
        ("POST", f"{path}/actions/suspend"): ("services:update", None),
        ("POST", f"{path}/actions/resume"): ("services:update", None),
    }
    for (method, where), (right, body) in needs.items():
        world.api.keys.known["less"] = world.customer.principal(permissions=SERVICE_RIGHTS - {right})
        status, problem = world.call(method, where, body, key="less")
        assert (status, problem.get("permission")) == (403, right), (method, where)


def test_other_tenants_services_are_as_if_they_were_not(world: ServiceWorld) -> None:
    """On every route a foreign service, a foreign project and an unknown one answer alike."""
    service_id = world.start().rsplit("/", 1)[1]
    world.until_state(f"{world.path}/{service_id}", "running")
    routes = [
        ("GET", "", None), ("PATCH", "", {"spec": {"replicas": 0}}), ("DELETE", "", None), ("GET", "/actions", None),
        ("GET", "/versions", None), ("GET", "/logs", None), ("POST", "/actions/rollback", {}),
        ("POST", "/actions/scale", {"replicas": 0}), ("POST", "/actions/suspend", None), ("POST", "/actions/resume", None),
    ]  # fmt: skip
    for method, tail, body in routes:
        answers = [
            world.api.call("two", method, f"/v1/projects/{project}/services/{one}{tail}", body, If_Match="*")
            for project in (world.customer.project, world.other.project, "prj_none")
            for one in (service_id, "svc_none")
        ]
        assert {one.status_code for one in answers} == {404}, (method, tail)
        assert len({one.content for one in answers}) == 1
    foreign = {**world.body(), "name": "x"}
    assert world.call("POST", f"/v1/projects/{world.other.project}/services", foreign, key="two")[0] == 404
    assert world.get(f"{world.path}/{service_id}")["status"]["ready"] == 2


def test_a_suspended_account_can_look_and_stop(world: ServiceWorld) -> None:
    """It starts nothing, and it may suspend and delete."""
    path = world.start()
    world.until_state(path, "running")
    world.api.keys.known["one"] = replace(world.api.keys.known["one"], suspended=True)
    assert world.call("POST", world.path, world.body("x"))[0] == 403
    assert world.call("POST", f"{path}/actions/scale", {"replicas": 8})[0] == 403
    assert world.call("GET", path)[0] == 200
    world.act(path, "suspend")
    assert world.call("DELETE", path, If_Match="*")[0] == 202


def test_the_guides_examples_start(world: ServiceWorld) -> None:
    """Every example of the guide is accepted as it stands, on a cluster of one's own, and comes to run."""
    guide = (ROOT / "docs" / "guides" / "services.md").read_text("utf-8")
    examples = [json.loads(one) for one in re.findall(r"```json\n(.*?)```", guide, re.DOTALL)]
    assert len(examples) == 2
    for example in examples:
        example["spec"]["cluster_id"] = world.customer.cluster
        world.until_state(world.start(example), "running")
