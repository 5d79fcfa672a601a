"""
The identity room over HTTP: what each level may do, what it never sees, and what is written down.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from controlplane.identity.routes import router
from controlplane.identity.states import PERMISSIONS, ROLES
from controlplane.kit import audit
from controlplane.quotas.service import Chain, Need, give_back, take
from tests.conftest import Database
from tests.factories.identity import Caller, Tree, make_tree, small_app, work

Call = Callable[..., httpx.Response]


@pytest.fixture
def tree(database: Database) -> Tree:
    """
    Two resellers with a tenant each.
    """
    return make_tree(database.engine)


@pytest.fixture
def app(database: Database) -> FastAPI:
    """
    The room's routes alone.
    """
    return small_app(database.engine, router)


def made(answer: httpx.Response) -> dict[str, Any]:
    """
    The body of a 201.
    """
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """
    The problem, which has this status and code.
    """
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    body: dict[str, Any] = answer.json()
    return body


def entries(database: Database, chain: str) -> list[dict[str, Any]]:
    """
    The bodies of an audit chain, which verifies.
    """
    assert work(database.engine, lambda s: list(audit.verify(s, chain))) == []
    query = text("SELECT body FROM audit_entries WHERE tenant_id = :chain ORDER BY seq")
    bodies = work(database.engine, lambda s: s.execute(query, {"chain": chain}).scalars().all())
    return [json.loads(bytes(one)) for one in bodies]


def test_the_whole_tree_from_one_operator_key(app: FastAPI, database: Database, tree: Tree) -> None:
    """
    The operator makes a reseller, the reseller a tenant, the owner a project, a member and a key; each deed has one audit entry.
    """
    operator = Caller(app, tree.operator_key)
    body = {
        "name": "nova",
        "brand": {"name": "Nova GPU", "colour": "#123abc"},
        "domains": ["gpu.nova.example"],
        "ceilings": {"gpus": 128},
        "admin": {"name": "Ann", "email": "Ann@Nova.example"},
    }
    reseller = made(operator("POST", "/v1/admin/resellers", body))
    assert reseller["admin"]["email"] == "ann@nova.example"
    seller = Caller(app, reseller["admin"]["key"]["key"])
    assert seller("GET", "/v1/reseller").json()["domains"] == ["gpu.nova.example"]
    ordered = {"name": "acme", "limits": {"gpus": 64, "keys": 5}, "owner": {"name": "Ola", "email": "ola@acme.example"}}
    tenant = made(seller("POST", "/v1/reseller/tenants", ordered))
    assert tenant["reseller_id"] == reseller["id"]
    owner = Caller(app, tenant["owner"]["key"]["key"])
    assert owner("GET", "/v1/whoami").json()["tenant_id"] == tenant["id"]
    assert owner("GET", "/v1/tenant").json()["name"] == "acme"
    project = made(owner("POST", "/v1/projects", {"name": "vision", "labels": {"team": "a"}}))
    role = {"role": "project_member", "project_id": project["id"]}
    member = made(owner("POST", "/v1/members", {"kind": "service_account", "name": "ci", "roles": [role]}))
    asked = {"name": "ci", "principal_id": member["id"], "project_id": project["id"]}
    key = made(owner("POST", "/v1/api-keys", asked))
    robot = Caller(app, key["key"])
    assert robot("GET", "/v1/whoami").json()["permissions"] == sorted(ROLES["project_member"])
    assert [one["id"] for one in robot("GET", "/v1/projects").json()["items"]] == [project["id"]]
    assert [one["action"] for one in entries(database, tenant["id"])] == ["projects:create", "members:write", "keys:create"]
    assert [one["target"] for one in entries(database, tenant["id"])] == [project["id"], member["id"], key["id"]]
    assert [one["target"] for one in entries(database, reseller["id"])] == [tenant["id"]]
    assert key["key"] not in json.dumps(entries(database, tenant["id"]))


def test_a_repeated_create_shows_no_secret(app: FastAPI, tree: Tree) -> None:
    """
    Under the same idempotency key the same key is answered, without its text, and there is one.
    """
    owner = Caller(app, tree.left.owner_key)
    first, again = (made(owner("POST", "/v1/api-keys", {"name": "ci"}, once="abc")) for _ in range(2))
    assert first["id"] == again["id"]
    assert first["key"]
    assert again["key"] is None
    assert len([one for one in owner("GET", "/v1/api-keys").json()["items"] if one["name"] == "ci"]) == 1


def test_no_key_is_ever_shown_again(app: FastAPI, tree: Tree) -> None:
    """
    Neither lists nor single answers hold a key's text or hash.
    """
    owner = Caller(app, tree.left.owner_key)
    key = made(owner("POST", "/v1/api-keys", {"name": "ci"}))
    shown = owner("GET", "/v1/api-keys").text + owner("GET", f"/v1/api-keys/{key['id']}").text
    assert key["key"].split("_")[3] not in shown
    assert "hash" not in shown


@pytest.mark.parametrize(
    "asked",
    [
        {"permissions": ["clusters:create"]},
        {"permissions": sorted(PERMISSIONS)},
        {"expires_at": "2199-01-01T00:00:00Z"},
        {"networks": ["0.0.0.0/0"]},
    ],
)
def test_a_narrow_key_makes_no_wider_one(app: FastAPI, database: Database, tree: Tree, asked: dict[str, Any]) -> None:
    """
    A key with few rights, networks and days cannot make one with more of any; each attempt is written down.
    """
    owner = Caller(app, tree.left.owner_key)
    own = {
        "permissions": ["keys:create", "keys:read", "members:write"],
        "networks": ["192.0.2.0/24"],
        "expires_at": "2190-01-01T00:00:00Z",
    }
    narrow = Caller(app, made(owner("POST", "/v1/api-keys", {"name": "narrow", **own}))["key"])
    refused(narrow("POST", "/v1/api-keys", {"name": "wide", **asked}), 403, "exceeds_own_rights")
    child = made(narrow("POST", "/v1/api-keys", {"name": "child"}))
    assert {name: child[name] for name in own} == own
    assert [one["outcome"] for one in entries(database, tree.left.tenant_id)] == ["done", "denied", "done"]


def test_a_key_that_writes_members_gains_nothing(app: FastAPI, tree: Tree) -> None:
    """
    With members:write alone: no owner can be invited, no role given, no key made, oneself not promoted, the owner not removed.
    """
    owner = Caller(app, tree.left.owner_key)
    me = owner("GET", "/v1/whoami").json()["principal_id"]
    narrow = Caller(app, made(owner("POST", "/v1/api-keys", {"name": "n", "permissions": ["members:write"]}))["key"])
    invite = {"name": "Eve", "email": "eve@acme.example", "roles": [{"role": "tenant_owner"}]}
    refused(narrow("POST", "/v1/members", invite), 403, "exceeds_own_rights")
    refused(narrow("PATCH", f"/v1/members/{me}", {"roles": [{"role": "tenant_admin"}]}), 403, "exceeds_own_rights")
    refused(narrow("POST", "/v1/api-keys", {"name": "x", "permissions": ["members:write"]}), 403, "forbidden")
    robot = made(owner("POST", "/v1/members", {"kind": "service_account", "name": "r", "roles": [{"role": "tenant_admin"}]}))
    refused(narrow("DELETE", f"/v1/members/{robot['id']}"), 403, "exceeds_own_rights")
    assert owner("GET", f"/v1/members/{me}").json()["roles"][0]["role"] == "tenant_owner"


@pytest.mark.parametrize("role", [one for one in ROLES if one.startswith(("tenant", "project"))])
def test_no_member_gives_more_than_it_holds(app: FastAPI, tree: Tree, role: str) -> None:
    """
    For each role, as a member's own key: what it can give to others or itself is at most what it holds.
    """
    owner = Caller(app, tree.left.owner_key)

    def ask(name: str) -> dict[str, Any]:
        return {"role": name, "project_id": tree.left.project_id} if name.startswith("project") else {"role": name}

    robot = made(owner("POST", "/v1/members", {"kind": "service_account", "name": "r", "roles": [ask(role)]}))
    where = {"project_id": tree.left.project_id} if role.startswith("project") else {}
    key = made(owner("POST", "/v1/api-keys", {"name": "r", "principal_id": robot["id"], **where}))
    caller = Caller(app, key["key"])
    for other in ROLES:
        body = {"kind": "service_account", "name": "x", "roles": [ask(other)]}
        answers = [
            caller("POST", "/v1/members", body),
            caller("PATCH", f"/v1/members/{robot['id']}", {"roles": [ask(role), ask(other)]}),
        ]
        holds = ROLES[other] <= ROLES[role] and "members:write" in ROLES[role]
        lower = other.startswith("project") or not role.startswith("project")
        for answer in answers:
            assert (answer.status_code in {200, 201}) is (holds and lower), (role, other, answer.text)
    assert set(caller("GET", "/v1/whoami").json()["permissions"]) == ROLES[role]


def test_sellers_and_operators_have_people_too(app: FastAPI, tree: Tree) -> None:
    """
    A reseller's administrator adds a viewer and a program at its own level only; the operator likewise; neither may go above.
    """
    operator, seller = Caller(app, tree.operator_key), Caller(app, tree.left.reseller_key)
    viewer = made(
        seller("POST", "/v1/reseller/members", {"name": "Vi", "email": "vi@fjord.example", "roles": [{"role": "reseller_viewer"}]})
    )
    assert viewer["roles"][0]["scope_id"] == tree.left.reseller_id
    robot = {"kind": "service_account", "name": "sync"}
    program = made(seller("POST", "/v1/reseller/members", {**robot, "roles": [{"role": "reseller_viewer"}]}))
    key = made(seller("POST", "/v1/reseller/api-keys", {"name": "sync", "principal_id": program["id"]}))
    reader = Caller(app, key["key"])
    assert [one["id"] for one in reader("GET", "/v1/reseller/tenants").json()["items"]] == [tree.left.tenant_id]
    refused(reader("POST", "/v1/reseller/tenants", {"name": "x"}), 403, "forbidden")
    refused(seller("POST", "/v1/reseller/members", {**robot, "roles": [{"role": "operator_viewer"}]}), 403, "exceeds_own_rights")
    assert seller("POST", "/v1/reseller/members", {**robot, "roles": [{"role": "tenant_owner"}]}).status_code == 422
    refused(operator("GET", f"/v1/admin/members/{viewer['id']}"), 404, "not_found")
    refused(Caller(app, tree.right.reseller_key)("GET", f"/v1/reseller/members/{viewer['id']}"), 404, "not_found")
    auditor = made(operator("POST", "/v1/admin/members", {**robot, "roles": [{"role": "operator_viewer"}]}))
    eye = Caller(app, made(operator("POST", "/v1/admin/api-keys", {"name": "eye", "principal_id": auditor["id"]}))["key"])
    assert len(eye("GET", "/v1/admin/tenants").json()["items"]) == 2
    refused(eye("POST", "/v1/admin/tenants", {"name": "x"}), 403, "forbidden")
    assert operator("DELETE", f"/v1/admin/members/{auditor['id']}").status_code == 204
    refused(eye("GET", "/v1/whoami"), 401, "unauthenticated")


def test_roles_are_told_from_the_callers_level_down(app: FastAPI, tree: Tree) -> None:
    """
    A tenant hears of roles in tenants and projects only, an operator of all.
    """
    told = {key: Caller(app, key)("GET", "/v1/roles").json()["items"] for key in (tree.operator_key, tree.left.owner_key)}
    assert {one["name"] for one in told[tree.operator_key]} == set(ROLES)
    assert {one["level"] for one in told[tree.left.owner_key]} == {"tenant", "project"}


def test_the_last_owner_stays(app: FastAPI, tree: Tree) -> None:
    """
    The only owner can neither be removed, nor disabled, nor give the role away; with a second one it can.
    """
    owner, seller = Caller(app, tree.left.owner_key), Caller(app, tree.left.reseller_key)
    me = owner("GET", "/v1/whoami").json()["principal_id"]
    path = f"/v1/members/{me}"
    for answer in (
        owner("DELETE", path),
        owner("PATCH", path, {"state": "disabled"}),
        owner("PATCH", path, {"roles": []}),
    ):
        refused(answer, 409, "last_owner")
    made(seller("POST", f"/v1/reseller/tenants/{tree.left.tenant_id}/owners", {"name": "Bo", "email": "bo@acme.example"}))
    assert owner("DELETE", path).status_code == 204
    refused(owner("GET", "/v1/whoami"), 401, "unauthenticated")


def test_keys_are_rotated_with_overlap(app: FastAPI, tree: Tree) -> None:
    """
    Both keys are accepted during the overlap, none but the new one without any; the limits are the same.
    """
    owner = Caller(app, tree.left.owner_key)
    old = made(owner("POST", "/v1/api-keys", {"name": "ci", "permissions": ["keys:read", "keys:create"]}))
    new = made(owner("POST", f"/v1/api-keys/{old['id']}/actions/rotate", {"overlap_s": 60}))
    assert new["permissions"] == old["permissions"]
    assert {Caller(app, one["key"])("GET", "/v1/whoami").status_code for one in (old, new)} == {200}
    last = made(Caller(app, new["key"])("POST", f"/v1/api-keys/{new['id']}/actions/rotate", {"overlap_s": 0}))
    assert [Caller(app, one["key"])("GET", "/v1/whoami").status_code for one in (new, last)] == [401, 200]
    refused(owner("POST", f"/v1/api-keys/{new['id']}/actions/rotate", {}), 409, "not_allowed_now")


def test_a_lesser_member_revokes_no_owners_key(app: FastAPI, tree: Tree) -> None:
    """
    An administrator cannot revoke the owner's key; anybody can revoke their own.
    """
    owner = Caller(app, tree.left.owner_key)
    robot = made(owner("POST", "/v1/members", {"kind": "service_account", "name": "r", "roles": [{"role": "tenant_admin"}]}))
    key = made(owner("POST", "/v1/api-keys", {"name": "r", "principal_id": robot["id"]}))
    admin = Caller(app, key["key"])
    owner_key_id = owner("GET", "/v1/whoami").json()["key_id"]
    refused(admin("DELETE", f"/v1/api-keys/{owner_key_id}"), 403, "exceeds_own_rights")
    assert admin("DELETE", f"/v1/api-keys/{key['id']}").status_code == 204
    refused(admin("GET", "/v1/whoami"), 401, "unauthenticated")


def test_keys_are_counted(app: FastAPI, tree: Tree) -> None:
    """
    The quota of keys is binding, and a revoked key makes room.
    """
    seller = Caller(app, tree.left.reseller_key)
    ordered = {"name": "tiny", "limits": {"keys": 2}, "owner": {"name": "Ola", "email": "ola@tiny.example"}}
    owner = Caller(app, made(seller("POST", "/v1/reseller/tenants", ordered))["owner"]["key"]["key"])
    second = made(owner("POST", "/v1/api-keys", {"name": "b"}))
    refused(owner("POST", "/v1/api-keys", {"name": "c"}), 409, "quota_exceeded")
    assert owner("DELETE", f"/v1/api-keys/{second['id']}").status_code == 204
    made(owner("POST", "/v1/api-keys", {"name": "c"}))


def test_changes_of_tenants_need_the_version(app: FastAPI, tree: Tree) -> None:
    """
    A change or delete without If-Match is refused, a stale one too; the present one is done and rises.
    """
    for caller, path in (
        (Caller(app, tree.left.reseller_key), f"/v1/reseller/tenants/{tree.left.tenant_id}"),
        (Caller(app, tree.operator_key), f"/v1/admin/resellers/{tree.left.reseller_id}"),
    ):
        version = caller("GET", path).json()["version"]
        change = {"labels": {"plan": "gold"}}
        refused(caller("PATCH", path, change), 428, "version_required")
        refused(caller("PATCH", path, change, version=version + 1), 412, "version_stale")
        answer = caller("PATCH", path, change, version=version)
        assert answer.json()["labels"] == {"plan": "gold"}
        assert answer.headers["etag"] == f'"{version + 1}"'
        refused(caller("DELETE", path), 428, "version_required")
        refused(caller("DELETE", path, version=version), 412, "version_stale")


def test_a_tenant_with_clusters_is_not_deleted(app: FastAPI, database: Database, tree: Tree) -> None:
    """
    While clusters are held neither project nor tenant goes, and the actions say so; then both do, and nothing can be taken again.
    """
    seller, owner = Caller(app, tree.left.reseller_key), Caller(app, tree.left.owner_key)
    path, project = f"/v1/reseller/tenants/{tree.left.tenant_id}", f"/v1/projects/{tree.left.project_id}"
    chain, need = Chain(tree.left.reseller_id, tree.left.tenant_id, tree.left.project_id), [Need("clusters", 1)]
    work(database.engine, lambda s: take(s, chain, need))
    refused(seller("DELETE", path, version=1), 409, "still_in_use")
    refused(owner("DELETE", project), 409, "still_in_use")
    verbs = {one["name"]: one for one in seller("GET", f"{path}/actions").json()["items"]}
    assert (verbs["delete"]["allowed"], verbs["delete"]["reason"]) == (False, "1 clusters must be deleted first.")
    assert verbs["suspend"]["allowed"]
    work(database.engine, lambda s: give_back(s, chain, need))
    assert owner("DELETE", project).status_code == 204
    refused(owner("GET", project), 404, "not_found")
    assert seller("DELETE", path, version=1).status_code == 204
    refused(seller("GET", path), 404, "not_found")
    refused(owner("GET", "/v1/tenant"), 401, "unauthenticated")
    ordered = {"name": "acme"}
    assert made(seller("POST", "/v1/reseller/tenants", ordered))["id"] != tree.left.tenant_id


def test_suspension_from_above(app: FastAPI, tree: Tree) -> None:
    """
    A suspended tenant is shown what it has and may delete it; what the operator suspended the reseller cannot resume.
    """
    operator, seller, owner = (Caller(app, one) for one in (tree.operator_key, tree.left.reseller_key, tree.left.owner_key))
    key = made(owner("POST", "/v1/api-keys", {"name": "x"}))
    suspended = operator("POST", f"/v1/admin/tenants/{tree.left.tenant_id}/actions/suspend")
    assert suspended.json()["status"]["state"] == "suspended"
    assert tree.left.project_id in {one["id"] for one in owner("GET", "/v1/projects").json()["items"]}
    refused(owner("POST", "/v1/projects", {"name": "more"}), 403, "suspended")
    refused(owner("GET", "/v1/members"), 403, "suspended")
    assert owner("GET", "/v1/whoami").json()["suspended"]
    assert owner("DELETE", f"/v1/api-keys/{key['id']}").status_code == 204
    resume = f"/v1/reseller/tenants/{tree.left.tenant_id}/actions/resume"
    refused(seller("POST", resume), 409, "not_allowed_now")
    assert operator("POST", f"/v1/admin/tenants/{tree.left.tenant_id}/actions/resume").status_code == 200
    refused(seller("POST", resume), 409, "not_allowed_now")
    assert owner("GET", "/v1/projects").status_code == 200


def test_names_are_unique_under_their_parent(app: FastAPI, tree: Tree) -> None:
    """
    Two resellers each have a tenant acme; one has not two. The same for projects, members, resellers and host names.
    """
    operator, seller, owner = (Caller(app, one) for one in (tree.operator_key, tree.left.reseller_key, tree.left.owner_key))
    refused(seller("POST", "/v1/reseller/tenants", {"name": "acme"}), 409, "name_taken")
    other = made(seller("POST", "/v1/reseller/tenants", {"name": "beta"}))
    refused(seller("PATCH", f"/v1/reseller/tenants/{other['id']}", {"name": "acme"}, version=1), 409, "name_taken")
    refused(owner("POST", "/v1/projects", {"name": "vision"}), 409, "name_taken")
    refused(owner("POST", "/v1/members", {"name": "Ola", "email": "OLA@acme.example"}), 409, "name_taken")
    brand = {"brand": {"name": "X"}}
    refused(operator("POST", "/v1/admin/resellers", {"name": "fjord", **brand}), 409, "name_taken")
    clash = {"name": "new", "domains": ["cloud.fjord.example"], **brand}
    refused(operator("POST", "/v1/admin/resellers", clash), 409, "domain_taken")


def test_a_reseller_promises_no_more_than_it_has(app: FastAPI, tree: Tree) -> None:
    """
    A tenant's first limit above the reseller's ceiling is refused.
    """
    seller = Caller(app, tree.left.reseller_key)
    refused(seller("POST", "/v1/reseller/tenants", {"name": "big", "limits": {"gpus": 513}}), 409, "limit_above_ceiling")
    made(seller("POST", "/v1/reseller/tenants", {"name": "big", "limits": {"gpus": 512}}))


def test_a_reseller_with_tenants_is_not_deleted(app: FastAPI, tree: Tree) -> None:
    """
    A reseller goes after its tenants, with its keys; the platform's own never.
    """
    operator, seller = Caller(app, tree.operator_key), Caller(app, tree.left.reseller_key)
    path = f"/v1/admin/resellers/{tree.left.reseller_id}"
    refused(operator("DELETE", path, version=1), 409, "still_in_use")
    assert seller("DELETE", f"/v1/reseller/tenants/{tree.left.tenant_id}", version=1).status_code == 204
    assert operator("DELETE", path, version=1).status_code == 204
    refused(seller("GET", "/v1/reseller"), 401, "unauthenticated")
    own = operator("GET", "/v1/reseller").json()
    refused(operator("DELETE", f"/v1/admin/resellers/{own['id']}", version=own["version"]), 409, "not_allowed_now")
    refused(operator("POST", f"/v1/admin/resellers/{own['id']}/actions/suspend"), 409, "not_allowed_now")


def test_other_branches_answer_like_nothing(app: FastAPI, tree: Tree) -> None:
    """
    For every route with an id, a foreign id and an unknown one are answered alike.
    """
    foreign = {
        "tenant_id": tree.right.tenant_id,
        "project_id": tree.right.project_id,
        "reseller_id": tree.right.reseller_id,
        "key_id": Caller(app, tree.right.owner_key)("GET", "/v1/whoami").json()["key_id"],
        "member_id": Caller(app, tree.right.owner_key)("GET", "/v1/whoami").json()["principal_id"],
    }
    bodies: dict[str, Any] = {"owners": {"name": "E", "email": "e@e.example"}, "admins": {"name": "E", "email": "e@e.example"}}
    walked = 0
    for key, (path, methods) in itertools.product((tree.left.owner_key, tree.left.reseller_key), app.openapi()["paths"].items()):
        names = [name for name in foreign if f"{{{name}}}" in path]
        if not names:
            continue
        caller = Caller(app, key)
        for method in methods:
            body = bodies.get(path.rsplit("/", 1)[1], {}) if method in {"post", "patch"} else None
            answers = []
            for chosen in (foreign[names[0]], foreign[names[0]][:-4] + "0000", "nonsense"):
                answer = caller(method.upper(), path.replace(f"{{{names[0]}}}", chosen), body, version=1)
                answers.append((answer.status_code, answer.text.replace(chosen, "")))
            assert len(set(answers)) == 1, (method, path, answers)
            assert answers[0][0] in {403, 404}, (method, path, answers)
            walked += 1
    assert walked > 40


def test_lists_page_and_filter(app: FastAPI, tree: Tree) -> None:
    """
    Pages are in order and whole; state, label and time narrow them; nonsense is refused.
    """
    owner = Caller(app, tree.left.owner_key)
    names = [f"p{number}" for number in range(5)]
    projects = [made(owner("POST", "/v1/projects", {"name": one, "labels": {"n": one}})) for one in names]
    seen, token = [], ""
    while token is not None:
        page = owner("GET", "/v1/projects?limit=2" + (f"&page_token={token}" if token else "")).json()
        seen += [one["name"] for one in page["items"]]
        token = page["next_page_token"]
    assert seen == ["vision", *names]

    def found(query: str) -> list[str]:
        return [one["name"] for one in owner("GET", f"/v1/projects?{query}").json()["items"]]

    assert found("label=n%3Dp3") == ["p3"]
    assert found("label=n") == names
    assert found(f"created_after={projects[3]['created_at']}") == ["p4"]
    assert owner("DELETE", f"/v1/projects/{projects[0]['id']}").status_code == 204
    assert found("state=deleted") == ["p0"]
    assert [one["status"]["state"] for one in owner("GET", "/v1/api-keys?state=active&limit=1").json()["items"]] == ["active"]
    for query in ("limit=0", "limit=201", "page_token=%00", "state=odd", "created_after=2026-03-01", "label=%00", "x=1"):
        assert owner("GET", f"/v1/projects?{query}").status_code == 422, query


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/projects", {"name": "Bad Name"}),
        ("/v1/projects", {"name": "ok", "extra": 1}),
        ("/v1/projects", {"name": "ok", "labels": {"k": "a\x00b"}}),
        ("/v1/members", {"name": "x"}),
        ("/v1/members", {"name": "x", "email": "no-address"}),
        ("/v1/members", {"kind": "service_account", "name": "x", "email": "a@b.example"}),
        ("/v1/members", {"kind": "service_account", "name": "x", "roles": [{"role": "king"}]}),
        ("/v1/members", {"kind": "service_account", "name": "x", "roles": [{"role": "project_viewer"}]}),
        ("/v1/members", {"kind": "service_account", "name": "x", "roles": [{"role": "tenant_admin", "project_id": "prj_x"}]}),
        ("/v1/api-keys", {"name": "x", "permissions": ["fly:high"]}),
        ("/v1/api-keys", {"name": "x", "permissions": []}),
        ("/v1/api-keys", {"name": "x", "networks": ["300.0.0.0/8"]}),
        ("/v1/api-keys", {"name": "x", "networks": ["10.0.0.1/8"]}),
        ("/v1/api-keys", {"name": "x", "expires_at": "2020-01-01T00:00:00Z"}),
        ("/v1/api-keys", {"name": "x", "expires_at": "9999-12-31T23:59:59-12:00"}),
        ("/v1/api-keys", {"name": "x", "expires_at": "0001-01-01T00:00:00+14:00"}),
        ("/v1/api-keys", {"name": "x", "expires_at": "2030-01-01T00:00:00"}),
        ("/v1/api-keys", {"name": "x", "expires_at": 1900000000}),
    ],
)
def test_malformed_bodies_are_refused(app: FastAPI, tree: Tree, path: str, body: dict[str, Any]) -> None:
    """
    What cannot be meant is a 422 that names the field.
    """
    answer = Caller(app, tree.left.owner_key)("POST", path, body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]


def test_a_project_key_does_not_reach_outside(app: FastAPI, tree: Tree) -> None:
    """
    Even an owner's key for one project makes no project, no tenant-wide role, no tenant-wide key, and sees no other project.
    """
    owner = Caller(app, tree.left.owner_key)
    other = made(owner("POST", "/v1/projects", {"name": "other"}))
    inside = Caller(app, made(owner("POST", "/v1/api-keys", {"name": "p", "project_id": tree.left.project_id}))["key"])
    refused(inside("POST", "/v1/projects", {"name": "third"}), 403, "wrong_audience")
    refused(inside("PATCH", "/v1/tenant", {"labels": {}}, version=1), 403, "wrong_audience")
    robot = {"kind": "service_account", "name": "r"}
    refused(inside("POST", "/v1/members", {**robot, "roles": [{"role": "tenant_billing"}]}), 403, "exceeds_own_rights")
    elsewhere = [{"role": "project_viewer", "project_id": other["id"]}]
    refused(inside("POST", "/v1/members", {**robot, "roles": elsewhere}), 404, "not_found")
    refused(inside("POST", "/v1/api-keys", {"name": "x", "project_id": other["id"]}), 404, "not_found")
    refused(inside("GET", f"/v1/projects/{other['id']}"), 404, "not_found")
    assert inside("GET", "/v1/members").json()["items"] == []
    key = made(inside("POST", "/v1/api-keys", {"name": "y"}))
    assert (key["scope_kind"], key["scope_id"]) == ("project", tree.left.project_id)


def test_a_domain_serves_its_own_reseller_only(app: FastAPI, tree: Tree) -> None:
    """
    On a reseller's host foreign keys answer exactly as unknown ones.
    """
    host = "cloud.fjord.example"
    assert Caller(app, tree.left.owner_key, host=host)("GET", "/v1/tenant").status_code == 200
    answers = {Caller(app, key, host=host)("GET", "/v1/whoami").text for key in (tree.right.owner_key, tree.operator_key, "cpk_x")}
    assert len(answers) == 1
    assert "unauthenticated" in answers.pop()


def test_every_route_says_who_may(app: FastAPI) -> None:
    """
    Each route names a known permission (whoami needs none) and has its own operation id, and its audience fits its path.
    """
    ids = set()
    for path, methods in app.openapi()["paths"].items():
        for spec in methods.values():
            assert spec["x-permission"] in PERMISSIONS or path in {"/v1/whoami", "/v1/roles"}
            part = path.split("/")[2]
            assert spec["x-audience"] == {"admin": "operator", "reseller": "reseller", "whoami": "any", "roles": "any"}.get(
                part, "tenant"
            )
            assert spec["operationId"] not in ids
            ids.add(spec["operationId"])
