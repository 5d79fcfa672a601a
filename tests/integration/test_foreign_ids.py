"""
Another tenant's ids answer exactly as ids that never existed: every route, every id parameter, taken from the OpenAPI document.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.ids import new_id
from controlplane.web.docs import example_of
from tests.conftest import Database
from tests.factories.identity import Branch, Tree, make_tree
from tests.factories.images import declared
from tests.factories.serving import Served, serving

CANARY = "zebra"
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z")
PREFIXES = {
    "project_id": "prj",
    "cluster_id": "clu",
    "job_id": "job",
    "array_id": "jar",
    "checkpoint_id": "ckp",
    "service_id": "svc",
    "tenant_id": "ten",
    "reseller_id": "rsl",
    "member_id": "prn",
    "principal_id": "prn",
    "key_id": "key",
    "operation_id": "opr",
    "node_id": "nod",
    "hold_id": "hld",
    "freeze_id": "frz",
    "instance_id": "ins",
    "boot_id": "bot",
    "machine_id": "dsc",
    "found_id": "fcl",
    "provider_id": "prv",
    "check_id": "fck",
    "measurement_id": "msr",
    "standing_id": "std",
    "baseline_id": "bsl",
    "peer_node_id": "nod",
    "instance_type": "",
    "resource_id": "clu",
    "scope_id": "ten",
    "image_id": "img",
    "name": "",
}
ORDERED = (
    "INSERT INTO sites (name, region) VALUES ('ams1', 'eu') ON CONFLICT DO NOTHING",
    """
    INSERT INTO clusters (id, tenant_id, reseller_id, project_id, name, kind, site, spec, state, due_at)
    VALUES (:cluster_id, :tenant_id, :reseller_id, :project_id, :name, 'slurm', 'ams1', '{}', 'pending', NULL)
    """,
    """
    INSERT INTO jobs (id, tenant_id, project_id, cluster_id, name, spec, state, due_at)
    VALUES (:job_id, :tenant_id, :project_id, :cluster_id, :name, '{}', 'queued', NULL)
    """,
    """
    INSERT INTO job_arrays (id, tenant_id, project_id, cluster_id, name, spec, first, last, step)
    VALUES (:array_id, :tenant_id, :project_id, :cluster_id, :name, '{}', 0, 0, 1)
    """,
    """
    INSERT INTO checkpoints (id, tenant_id, project_id, job_id, attempt, step, kind, location, size_bytes, state)
    VALUES (:checkpoint_id, :tenant_id, :project_id, :job_id, 1, 1, 'full', '/data/' || :name, 1, 'good')
    """,
    """
    INSERT INTO services (id, tenant_id, project_id, cluster_id, name, replicas, rollout, created_by, state, due_at)
    VALUES (:service_id, :tenant_id, :project_id, :cluster_id, :name, 1, '{"surge": 0, "unavailable": 1}', :name, 'suspended', NULL)
    """,
    """
    INSERT INTO service_versions (service_id, number, tenant_id, template, created_by)
    VALUES (:service_id, 1, :tenant_id, '{}', :name)
    """,
    """
    INSERT INTO operations (id, tenant_id, project_id, type, resource_kind, resource_id, principal_id, reason)
    VALUES (:operation_id, :tenant_id, :project_id, 'cluster.create', 'cluster', :cluster_id, :principal_id, :name)
    """,
)


@dataclass(frozen=True)
class Side:
    """One tenant with a resource of every kind."""

    branch: Branch
    ids: dict[str, str]


@dataclass(frozen=True)
class Ask:
    """One request that names an id."""

    method: str
    template: str
    parameter: str
    where: str
    audience: str
    body: Any
    ids: tuple[str, ...]


@pytest.fixture(scope="module")
def tree(migrated: Database) -> Tree:
    """Two resellers with a tenant each."""
    migrated.reset()
    return make_tree(migrated.engine)


@pytest.fixture(scope="module")
def served(migrated: Database, tree: Tree) -> Iterator[Served]:
    """The application."""
    del tree
    with serving(migrated) as one:
        yield one


@pytest.fixture(scope="module")
def victim(migrated: Database, served: Served, tree: Tree) -> Side:
    """The tenant whose ids are tried; everything it owns carries the canary."""
    return furnish(migrated.engine, served, tree.left, CANARY)


@pytest.fixture(scope="module")
def caller(migrated: Database, served: Served, tree: Tree) -> Side:
    """The tenant that tries them."""
    return furnish(migrated.engine, served, tree.right, "own")


def furnish(engine: Engine, served: Served, branch: Branch, name: str) -> Side:
    """The tenant owns a project, a cluster, a job, an operation, a member, a key and an image of this name."""
    with served.client(branch.owner_key) as client:
        project = client.post("/v1/projects", json={"name": f"{name}-project"}).raise_for_status().json()
        member = client.get("/v1/members").raise_for_status().json()["items"][0]
        key = client.get("/v1/api-keys").raise_for_status().json()["items"][0]
        image = client.post("/v1/images", json=declared(b"x", f"{name}-image")).raise_for_status().json()
    ids = {
        "tenant_id": branch.tenant_id,
        "reseller_id": branch.reseller_id,
        "project_id": project["id"],
        "member_id": member["id"],
        "principal_id": member["id"],
        "key_id": key["id"],
        "image_id": image["id"],
        "cluster_id": new_id("clu"),
        "job_id": new_id("job"),
        "array_id": new_id("jar"),
        "checkpoint_id": new_id("ckp"),
        "service_id": new_id("svc"),
        "operation_id": new_id("opr"),
        "instance_id": new_id("ins"),
    }
    ids |= {"resource_id": ids["cluster_id"], "scope_id": branch.tenant_id}
    values = {**ids, "name": name}
    in_transaction(engine, EVERYTHING, lambda session: [session.execute(text(one), values) for one in ORDERED])
    return Side(branch, ids)


def asks(document: dict[str, Any]) -> Iterator[Ask]:
    """Every request of the document that names an id: in its path, its query or its body."""
    for template, item in document["paths"].items():
        for method, one in item.items():
            audience = one.get("x-audience", "")
            content = one.get("requestBody", {}).get("content", {}).get("application/json")
            body = example_of(content["schema"], document["components"]["schemas"]) if content else None
            in_path = tuple(re.findall(r"{(\w+)}", template))
            streams = any("text/event-stream" in answer.get("content", {}) for answer in one["responses"].values())
            found = [(name, "path") for name in in_path if name != "name"]
            found += [
                (one["name"], "query") for one in one.get("parameters", ()) if one["in"] == "query" and one["name"] in PREFIXES
            ]
            found += [(name, "body") for name in sorted(id_fields(body))]
            for name, where in found:
                if where == "path" or not streams:
                    yield Ask(method.upper(), template, name, where, audience, body, in_path)


def id_fields(body: Any) -> set[str]:
    """Names of fields of the body, at any depth, that hold ids."""
    if isinstance(body, list):
        return set().union(*(id_fields(one) for one in body)) if body else set()
    if not isinstance(body, dict):
        return set()
    own = {name for name, value in body.items() if name in PREFIXES and name.endswith("_id") and isinstance(value, str)}
    return own.union(*(id_fields(one) for one in body.values())) if body else own


def with_ids(body: Any, ids: dict[str, str]) -> Any:
    """The body with these ids in the fields of their names."""
    if isinstance(body, list):
        return [with_ids(one, ids) for one in body]
    if isinstance(body, dict):
        return {
            name: ids[name] if name in ids and isinstance(value, str) and name.endswith("_id") else with_ids(value, ids)
            for name, value in body.items()
        }
    return body


def send(client: httpx.Client, ask: Ask, own: dict[str, str], name: str, value: str) -> tuple[int, str]:
    """Status and body of the answer, with what may differ taken out; all ids are the caller's own, but for the one."""
    ids = {**own, name: value}
    path = re.sub(r"{(\w+)}", lambda found: (ids if ask.where == "path" else own).get(found.group(1), "x"), ask.template)
    query = {name: value} if ask.where == "query" else {}
    headers = {"If-Match": "*"}
    body = with_ids(ask.body, ids if ask.where == "body" else own)
    answer = client.request(ask.method, path, params=query, headers=headers, json=body)
    assert CANARY not in answer.text + str(answer.headers), f"{ask.method} {path}"
    told = answer.text.replace(answer.headers["x-request-id"], "")
    if answer.headers["content-type"] == "application/json":
        told = json.dumps(answer.json(), sort_keys=True)
    return answer.status_code, MOMENT.sub("<time>", told.replace(value, "<id>"))


def test_foreign_ids_answer_as_unknown_ones(served: Served, victim: Side, caller: Side, tree: Tree) -> None:
    """Status, words and headers are the same, for tenants' and for resellers' keys, and nothing of the other's is shown."""
    with served.client() as client:
        document = client.get("/openapi.json").json()
    tried = 0
    with served.client(caller.branch.owner_key) as tenant, served.client(caller.branch.reseller_key) as reseller:
        for ask in asks(document):
            for client in (tenant, reseller):
                prefix = PREFIXES[ask.parameter]
                foreign = victim.ids.get(ask.parameter)
                if foreign is None:
                    continue
                seen = send(client, ask, caller.ids, ask.parameter, foreign)
                unknown = send(client, ask, caller.ids, ask.parameter, new_id(prefix))
                assert seen == unknown, f"{ask.method} {ask.template} {ask.where} {ask.parameter}"
                assert 400 <= seen[0] < 500 or ask.where == "query", f"{ask.method} {ask.template}: {seen}"
                tried += 1
    assert tried > 80
    with served.client(tree.left.owner_key) as owner:
        assert owner.get(f"/v1/projects/{victim.ids['project_id']}/clusters/{victim.ids['cluster_id']}").json()["name"] == CANARY


def test_lists_show_only_ones_own(served: Served, victim: Side, caller: Side) -> None:
    """No list or other GET without an id shows anything of the other tenant, to tenant or reseller."""
    with served.client() as client:
        document = client.get("/openapi.json").json()
    paths = [path for path, item in document["paths"].items() if "get" in item and "{" not in path and "stream" not in path]
    assert len(paths) > 15
    for key in (caller.branch.owner_key, caller.branch.reseller_key):
        with served.client(key) as client:
            for path in paths:
                one = document["paths"][path]["get"]
                if any("text/event-stream" in answer.get("content", {}) for answer in one["responses"].values()):
                    continue
                text_ = client.get(path).text
                assert CANARY not in text_, path
                if path != "/v1/audit-events":  # it repeats what this caller tried, and that names the ids
                    assert not [one for one in victim.ids.values() if one in text_], path
