"""
Secrets of a project, given to its services and shown to nobody.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.kit.secrets import Sealer
from tests.conftest import Database
from tests.factories.services import SERVICE_RIGHTS, ServiceWorld, service_world

CANARY = "canary-77ab"
HUB = [{"name": "hub", "env": "HF_TOKEN"}]
KEPT = ("services", "service_versions", "service_logs", "events", "audit_entries", "state_history", "project_secrets")


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[ServiceWorld]:
    """Two tenants with a Kubernetes cluster each, on an installation with a master key."""
    sealer = Sealer.from_base64(base64.b64encode(bytes(range(32))).decode())
    with service_world(database, tmp_path, sealer=sealer) as made:
        rights = SERVICE_RIGHTS | {"jobs:create", "jobs:delete"}
        made.api.keys.known["one"] = made.customer.principal(permissions=rights)
        made.api.keys.known["two"] = made.other.principal(permissions=rights)
        yield made


def put(world: ServiceWorld, value: str, *, key: str = "one") -> None:
    """The project's secret has the value."""
    project = world.customer.project if key == "one" else world.other.project
    assert world.call("PUT", f"/v1/projects/{project}/secrets/hub", {"value": value}, key=key)[0] == 200


def drop(world: ServiceWorld) -> None:
    """The project has no such secret any more."""
    assert world.api.call("one", "DELETE", f"/v1/projects/{world.customer.project}/secrets/hub").status_code == 204


def told(world: ServiceWorld) -> dict[str, Any]:
    """What the provider was told of the only service."""
    peer = sqlite3.connect(world.jobs.provider.config["path"])
    ((spec,),) = peer.execute("SELECT spec FROM services")
    peer.close()
    return dict(json.loads(spec))


def test_a_service_is_given_what_nobody_can_read(world: ServiceWorld) -> None:
    """The cluster has the value of the moment it is told; answers, rows, events and records never do."""
    put(world, "old")
    path = world.start(world.body(template={"secrets": [*HUB, {"name": "hub", "file": "hub.key"}]}))
    put(world, CANARY)
    running = world.until_state(path, "running")
    assert (told(world)["secret_env"], told(world)["secret_files"]) == ({"HF_TOKEN": CANARY}, {"hub.key": CANARY})
    ways = [{"name": "hub", "env": "HF_TOKEN", "file": None}, {"name": "hub", "env": None, "file": "hub.key"}]
    assert running["spec"]["template"]["secrets"] == ways
    shown = [world.get(path), world.get(f"{path}/versions"), world.get(f"{path}/logs"), world.get(world.path)]
    assert CANARY not in json.dumps(shown)
    for table in KEPT:
        rows = [row[0] for row in world.rows(f"SELECT t::text FROM {table} t")]
        assert not any(CANARY in row or CANARY.encode().hex() in row for row in rows), table


def test_a_new_value_reaches_the_cluster_with_the_next_change(world: ServiceWorld) -> None:
    """Whatever the change is; until then the service keeps what it was given."""
    put(world, "first")
    path = world.start(world.body(template={"secrets": HUB}))
    world.until_state(path, "running")
    put(world, "second")
    world.jobs.clock.advance(60)
    world.once()
    assert told(world)["secret_env"] == {"HF_TOKEN": "first"}
    world.act(path, "scale", {"replicas": 3})
    world.until_state(path, "running")
    assert told(world)["secret_env"] == {"HF_TOKEN": "second"}


def test_a_secret_that_is_not_there_is_refused(world: ServiceWorld) -> None:
    """By name, at creation, at a change and at a rollback; another tenant's of the same name is none, and no value of it ever arrives."""
    put(world, CANARY, key="two")
    status, problem = world.call("POST", world.path, world.body(template={"secrets": HUB}))
    assert (status, problem["code"], problem["secret"]) == (409, "secret_unknown", "hub")
    put(world, "mine")
    path = world.start(world.body(template={"secrets": HUB}))
    running = world.until_state(path, "running")
    change = {"spec": {"template": {"image": "example.org/echo:2", "gpus_per_node": 1}}}
    assert world.call("PATCH", path, change, If_Match=f'"{running["version"]}"')[0] == 202
    running = world.until_state(path, "running")
    assert told(world)["secret_env"] == {}
    drop(world)
    assert world.call("POST", f"{path}/actions/rollback", {})[1]["code"] == "secret_unknown"
    change["spec"]["template"]["secrets"] = HUB
    assert world.call("PATCH", path, change, If_Match=f'"{running["version"]}"')[1]["code"] == "secret_unknown"


def test_a_secret_that_went_before_the_cluster_was_told_is_named(world: ServiceWorld) -> None:
    """The service has failed with the reason, and nothing was told; once the secret is written, a change mends it."""
    put(world, CANARY)
    path = world.start(world.body(template={"secrets": HUB}))
    drop(world)
    failed = world.until_state(path, "failed")
    assert failed["status"]["reason"] == "The project has no secret hub any more: write it, or change the service."
    assert world.jobs.tools.services(world.jobs.provider).list_services(world.customer.cluster) == ()
    put(world, "again")
    world.act(path, "scale", {"replicas": 1})
    world.until_state(path, "running")
    assert told(world)["secret_env"] == {"HF_TOKEN": "again"}


@pytest.mark.parametrize(
    "template",
    [
        {"secrets": [{"name": "hub"}]},
        {"secrets": [{"name": "hub", "env": "A", "file": "a"}]},
        {"secrets": [{"name": "hub", "env": "A"}, {"name": "hub", "env": "A"}]},
        {"secrets": [{"name": "hub", "env": "A"}], "env": {"A": "x"}},
        {"secrets": [{"name": "hub", "env": "MASTER_ADDR"}]},
        {"secrets": [{"name": "hub", "env": "LWS_GROUP_SIZE"}]},
        {"secrets": [{"name": "hub", "env": "SECRETS_DIR"}]},
        {"secrets": [{"name": "hub", "file": "../a"}]},
        {"secrets": [{"name": "hub", "file": "a/b"}]},
        {"secrets": [{"name": "hub", "env": "A", "value": "x"}]},
    ],
    ids=str,
)
def test_ways_that_cannot_be_are_refused(world: ServiceWorld, template: dict[str, Any]) -> None:
    """422, and nothing is stored."""
    put(world, CANARY)
    assert world.call("POST", world.path, world.body(template=template))[0] == 422
    assert world.get(world.path)["items"] == []
