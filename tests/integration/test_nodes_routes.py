"""
What operators do with nodes and providers over HTTP, and what tenants learn of what is free.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from controlplane import bootstrap
from controlplane.nodes import checking
from controlplane.nodes.models import NodeRow
from controlplane.nodes.states import ProviderCheck
from controlplane.nodes.steps.provider import check
from tests.conftest import Database
from tests.factories.nodes import REFS, SITE, TYPE, Fleet, hold_for, make_fleet, step_ground

CANARY = "s3cr3t-canary-9c1f"
NEW_CANARY = "rotated-canary-7d2f0e"
ENTRY = {"ref": "new-1", "block": "b1", "leaf": "l1", "rack": "r1", "instance_type": TYPE}


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Fleet:
    """
    Three machines that were just enrolled.
    """
    return make_fleet(database, tmp_path)


def test_the_list_narrows_by_every_filter(fleet: Fleet) -> None:
    """Each filter shows exactly the nodes it names."""
    fleet.put("quarantined", node=1, attention="wipe_failed")
    hold_for(fleet, fleet.tree.left, node=2)
    first, second, third = fleet.node_ids
    expected = {
        "": {first, second, third},
        "state=quarantined": {second},
        "attention=true": {second},
        "attention=false": {first, third},
        f"site={SITE}&instance_type={TYPE}&provider_id={fleet.provider_id}": {first, second, third},
        "site=elsewhere": set(),
        f"tenant_id={fleet.tree.left.tenant_id}": {third},
        f"tenant_id={fleet.tree.right.tenant_id}": set(),
    }
    for query, ids in expected.items():
        answer = fleet.call()("GET", f"/v1/admin/nodes?{query}")
        assert {one["id"] for one in answer.json()["items"]} == ids, query


def test_pages_meet_every_node_once(fleet: Fleet) -> None:
    """Following the tokens lists every node exactly once."""
    seen, token = [], ""
    while True:
        body = fleet.call()("GET", f"/v1/admin/nodes?limit=1{token}").json()
        seen += [one["id"] for one in body["items"]]
        if body["next_page_token"] is None:
            break
        token = f"&page_token={body['next_page_token']}"
    assert seen == sorted(fleet.node_ids)


def test_a_node_shows_its_tenant_and_its_overstay(fleet: Fleet) -> None:
    """One node tells who holds it, the provider's words and that it is there too long."""
    fleet.put("releasing", detail="BMC says no", attention="deadline")
    fleet.sql("UPDATE nodes SET deadline_at = cp_clock() - interval '1 s' WHERE id = :n", n=fleet.node_ids[0])
    hold_for(fleet, fleet.tree.left)
    body = fleet.call()("GET", f"/v1/admin/nodes/{fleet.node_ids[0]}").json()
    assert body["tenancy"]["tenant_id"] == fleet.tree.left.tenant_id
    assert (body["detail"], body["overstays"], body["attention"]) == ("BMC says no", True, "deadline")


def test_a_verb_needs_the_version_and_a_lawful_state(fleet: Fleet) -> None:
    """Without If-Match 428, with a stale one 412, in the wrong state 409 with what is allowed; else 202 with an operation."""
    path = f"/v1/admin/nodes/{fleet.node_ids[0]}"
    call = fleet.call()
    why = {"reason": "fan"}
    version = call("GET", path).json()["version"]
    assert call("POST", f"{path}/actions/quarantine", why).status_code == 428
    assert call("POST", f"{path}/actions/quarantine", why, version=version + 1).status_code == 412
    refused = call("POST", f"{path}/actions/retire", why, version=version)
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert refused.json()["allowed"] == ["requalify", "quarantine", "maintain"]
    done = call("POST", f"{path}/actions/quarantine", why, version=version)
    assert (done.status_code, done.json()["status"]["state"]) == (202, "quarantined")
    operation = call("GET", done.headers["Location"]).json()
    assert (operation["state"], operation["type"]) == ("succeeded", "node.quarantine")
    assert [one["after"] for one in call("GET", f"{path}/history").json()["items"]] == ["enrolled", "quarantined"]
    allowed = {one["name"]: one["allowed"] for one in call("GET", f"{path}/actions").json()["items"]}
    assert allowed == {
        "requalify": True,
        "update-firmware": False,
        "quarantine": False,
        "maintain": True,
        "repair": True,
        "retire": True,
    }


def test_setting_a_node_aside_ends_its_tenancy(fleet: Fleet) -> None:
    """A node taken aside while it is wiped is nobody's any more: the tenant is not charged for the repair."""
    fleet.put("cleaning")
    allocation = hold_for(fleet, fleet.tree.left)
    fleet.sql("UPDATE allocations SET state = 'releasing', release_accepted_at = cp_clock() WHERE id = :a", a=allocation)
    path = f"/v1/admin/nodes/{fleet.node_ids[0]}"
    version = fleet.call()("GET", path).json()["version"]
    done = fleet.call()("POST", f"{path}/actions/maintain", {"reason": "fan"}, version=version)
    assert (done.status_code, done.json()["tenancy"]) == (202, None)
    assert fleet.one("SELECT state FROM allocations WHERE id = :a", a=allocation) == "ended"


def test_nobody_interferes_with_a_release(fleet: Fleet) -> None:
    """While a node is taken from its tenant every verb is refused with the reason, and the tenancy stays until the machine let go."""
    fleet.put("releasing")
    allocation = hold_for(fleet, fleet.tree.left)
    path = f"/v1/admin/nodes/{fleet.node_ids[0]}"
    call = fleet.call()
    actions = call("GET", f"{path}/actions").json()["items"]
    assert {one["name"] for one in actions} == {"requalify", "update-firmware", "quarantine", "maintain", "repair", "retire"}
    assert all(not one["allowed"] and "taken from its tenant" in one["reason"] for one in actions)
    for one in actions:
        refused = call("POST", f"{path}/actions/{one['name']}", {"reason": "now"}, version=call("GET", path).json()["version"])
        assert (refused.status_code, refused.json()["code"], refused.json()["allowed"]) == (409, "wrong_state", [])
    assert fleet.one("SELECT state FROM allocations WHERE id = :a", a=allocation) != "ended"


def test_only_one_verb_at_a_time(fleet: Fleet) -> None:
    """While a requalification runs, a second verb is told which operation it waits for."""
    fleet.put("maintenance")
    path = f"/v1/admin/nodes/{fleet.node_ids[0]}"
    call = fleet.call()
    first = call("POST", f"{path}/actions/requalify", {"reason": "back"}, version=call("GET", path).json()["version"])
    second = call("POST", f"{path}/actions/quarantine", {"reason": "no"}, version=first.json()["version"])
    assert second.status_code == 409
    assert second.json()["operation_id"] == first.json()["operation_id"]


def test_holds_and_health_keep_a_node_out(fleet: Fleet) -> None:
    """What is free falls with a hold and with a bad report, and comes back; nobody but operators sees the count."""
    fleet.do(lambda session: checking.store(session, fleet.provider_id, ProviderCheck({"products": ["slurm"], "scrub": True})))
    for number in range(3):
        fleet.put("available", node=number)
    call = fleet.call()
    path = f"/v1/admin/nodes/{fleet.node_ids[0]}"

    def free() -> int:
        (one,) = call("GET", f"/v1/availability?site={SITE}").json()["items"]
        return int(one["free"])

    assert free() == 3
    hold = call("POST", f"{path}/holds", {"reason": "kept"})
    assert (hold.status_code, free()) == (201, 2)
    assert call("GET", path).json()["holds"][0]["id"] == hold.json()["id"]
    assert call("DELETE", f"{path}/holds/{hold.json()['id']}").json()["lifted_at"] is not None
    report = {"source": "bmc", "check": "ecc", "class": "drain", "message": "remap pending"}
    assert call("PUT", f"{path}/health", report).json()["health"] == "drain"
    assert free() == 2
    assert call("PUT", f"{path}/health", report | {"class": "ok"}).json()["health"] == "ok"
    (seen,) = fleet.call(fleet.tree.left.owner_key)("GET", "/v1/availability").json()["items"]
    assert (seen["level"], seen["free"]) == ("low", None)
    assert seen["age_s"] >= 0
    call("POST", f"/v1/admin/providers/{fleet.provider_id}/actions/disable", version=_version(fleet))
    assert call("GET", "/v1/availability").json()["items"] == []


def test_a_hold_ends_by_itself(fleet: Fleet) -> None:
    """A hold whose time is over is not shown as one; an endless year is refused."""
    path = f"/v1/admin/nodes/{fleet.node_ids[0]}"
    made = fleet.call()("POST", f"{path}/holds", {"reason": "kept", "until": "2026-01-01T00:00:00Z"})
    assert made.status_code == 201
    assert fleet.call()("GET", path).json()["holds"] == []
    assert fleet.call()("POST", f"{path}/holds", {"reason": "kept", "until": "9999-12-31T23:59:59-12:00"}).status_code == 422


def test_enrolling_skips_what_is_known_and_names_what_is_wrong(fleet: Fleet) -> None:
    """Known machines and repeats are left alone; a type that does not exist is named by its place in the list."""
    call = fleet.call()
    body = {"provider_id": fleet.provider_id, "nodes": [ENTRY, ENTRY, ENTRY | {"ref": REFS[0]}]}
    done = call("POST", "/v1/admin/nodes", body)
    assert (done.status_code, len(done.json()["enrolled"]), done.json()["known"]) == (202, 1, 2)
    assert call("GET", f"/v1/admin/nodes/{done.json()['enrolled'][0]}").json()["gpus"] == 8
    wrong = call("POST", "/v1/admin/nodes", body | {"nodes": [ENTRY, ENTRY | {"ref": "n2", "instance_type": "abacus"}]})
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "body.nodes.1.instance_type")
    nobody = call("POST", "/v1/admin/nodes", body | {"provider_id": "prv_none"})
    assert (nobody.status_code, nobody.json()["errors"][0]["field"]) == (422, "body.provider_id")


def _register(fleet: Fleet, **changes: object) -> dict[str, object]:
    config = {"path": "/nowhere/region.sqlite"}
    return {"name": "second", "adapter": "simulated", "site": SITE, "config": config, "secrets": {"token": CANARY}, **changes}


def test_a_providers_secrets_leave_by_no_door(fleet: Fleet) -> None:
    """What was given as a secret opens for the worker alone: it is in no answer, repeat, audit entry, event or plain column."""
    call = fleet.call()
    made = call("POST", "/v1/admin/providers", _register(fleet), once="k1")
    assert made.status_code == 201
    path = f"/v1/admin/providers/{made.json()['id']}"
    again = call("POST", "/v1/admin/providers", _register(fleet), once="k1")
    assert again.json() == made.json()
    shown = [
        made,
        again,
        call("GET", path),
        call("GET", "/v1/admin/providers"),
        call("GET", "/v1/audit-events"),
        call("GET", "/v1/events"),
    ]
    assert not [one.url for one in shown if CANARY in one.text]
    assert call("GET", path).json()["has_secrets"] is True
    rows = fleet.do(
        lambda session: [
            str(session.execute(text(f"SELECT coalesce(jsonb_agg(to_jsonb(t)), '[]') FROM {table} t")).scalar_one())
            for table in ("providers", "events", "audit_entries", "idempotency_keys")
        ]
    )
    assert not [one for one in rows if CANARY in one or CANARY.encode().hex() in one]
    sealed = fleet.one("SELECT sealed FROM providers WHERE name = 'second'")
    assert bootstrap.open_secrets(fleet.sealer, made.json()["id"], bytes(sealed)) == {"token": CANARY}


def test_a_providers_settings_are_replaced(fleet: Fleet) -> None:
    """Settings and secrets change together or alone; the version rises, and the provider is due to be asked at once."""
    call = fleet.call()
    made = call("POST", "/v1/admin/providers", _register(fleet))
    path, provider_id = f"/v1/admin/providers/{made.json()['id']}", made.json()["id"]
    fleet.do(lambda session: checking.due_providers(session, 10))
    fleet.do(lambda session: checking.store(session, provider_id, ProviderCheck({"products": ["slurm"], "scrub": True})))
    fleet.sql("UPDATE providers SET checked_at = cp_clock() WHERE id = :p", p=provider_id)
    assert fleet.do(lambda session: checking.due_providers(session, 10)) == []
    version = call("GET", path).json()["version"]
    change = {"config": {"path": "/elsewhere/region.sqlite"}, "secrets": {"token": NEW_CANARY, "more": "x"}}
    assert call("PATCH", path, change).status_code == 428
    assert call("PATCH", path, change, version=version + 1).status_code == 412
    done = call("PATCH", path, change, version=version)
    assert (done.status_code, done.json()["version"], done.json()["config"]) == (200, version + 1, change["config"])
    assert done.json()["capabilities"]["products"] == ["slurm"]
    (due,) = fleet.do(lambda session: checking.due_providers(session, 10))
    assert (due.id, due.version, due.config) == (provider_id, version + 1, change["config"])
    assert _secrets(fleet, provider_id) == change["secrets"]
    moved = call("PATCH", path, {"config": {"path": "/third"}}, version=version + 1)
    assert (moved.json()["has_secrets"], _secrets(fleet, provider_id)) == (True, change["secrets"])
    assert call("PATCH", path, {"secrets": {}}, version=version + 2).json()["has_secrets"] is False
    for seen in (done, call("GET", path), call("GET", "/v1/audit-events"), call("GET", "/v1/events")):
        assert NEW_CANARY not in seen.text


def test_a_change_of_nothing_changes_nothing(fleet: Fleet) -> None:
    """An empty change, or the same settings again, leaves the version as it is, so that no adapter is built anew."""
    call = fleet.call()
    path = f"/v1/admin/providers/{fleet.provider_id}"
    before = call("GET", path).json()
    for change in ({}, {"config": before["config"]}):
        assert call("PATCH", path, change, version=before["version"]).json() == before
    wrong = call("PATCH", path, {"adapter": "slurm"}, version=before["version"])
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")


def _secrets(fleet: Fleet, provider_id: str) -> dict[str, str]:
    sealed = fleet.one("SELECT sealed FROM providers WHERE id = :p", p=provider_id)
    return dict(bootstrap.open_secrets(fleet.sealer, provider_id, bytes(sealed)))


def test_a_malformed_secret_is_not_repeated(fleet: Fleet) -> None:
    """The problem about a bad body says where, and never what was sent."""
    answer = fleet.call()("POST", "/v1/admin/providers", _register(fleet, secrets={"token": [CANARY]}))
    assert answer.status_code == 422
    assert CANARY not in answer.text


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"adapter": "abacus"}, 422, "adapter_unknown"),
        ({"site": "nowhere"}, 422, "invalid_request"),
        ({"name": "sim-ams1"}, 409, "name_taken"),
        ({"config": {"a": {"b": 10**30}}}, 422, "invalid_request"),
        ({"config": {"a": "\u0000"}}, 422, "invalid_request"),
        ({"secrets": {"UPPER": "x"}}, 422, "invalid_request"),
        ({"more": 1}, 422, "invalid_request"),
    ],
)
def test_what_cannot_be_registered(fleet: Fleet, change: dict[str, object], status: int, code: str) -> None:
    """Unknown adapters and sites, taken names and unstorable settings are refused by name."""
    answer = fleet.call()("POST", "/v1/admin/providers", _register(fleet, **change))
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_provider_goes_only_when_nothing_stands_on_it(fleet: Fleet) -> None:
    """Deleting is refused while nodes are not retired; afterwards the name is free and the secrets are gone."""
    call = fleet.call()
    path = f"/v1/admin/providers/{fleet.provider_id}"
    refused = call("DELETE", path, version=_version(fleet))
    assert (refused.status_code, refused.json()["code"], refused.json()["nodes"]) == (409, "provider_in_use", 3)
    for number in range(3):
        fleet.put("retired", node=number)
    assert call("DELETE", path).status_code == 428
    assert call("DELETE", path, version=_version(fleet)).status_code == 204
    gone, never = call("GET", path), call("GET", "/v1/admin/providers/prv_never")
    assert gone.status_code == 404
    assert gone.json() == never.json()
    assert call("POST", "/v1/admin/providers", _register(fleet, name="sim-ams1")).status_code == 201


def test_only_operators_see_the_fleet(fleet: Fleet) -> None:
    """No other key learns whether a node or a provider exists."""
    for key in (fleet.tree.left.reseller_key, fleet.tree.left.owner_key):
        for path in ("nodes", f"nodes/{fleet.node_ids[0]}", "providers", f"providers/{fleet.provider_id}"):
            answer = fleet.call(key)("GET", f"/v1/admin/{path}")
            assert (answer.status_code, answer.json()["code"]) == (403, "wrong_audience")


def test_providers_are_asked_in_turn(fleet: Fleet, tmp_path: Path) -> None:
    """A new provider is due at once and for one asker only; what it says and which machines differ stands on its row."""
    (due,) = fleet.do(lambda session: checking.due_providers(session, 10))
    assert fleet.do(lambda session: checking.due_providers(session, 10)) == []
    fleet.call()("POST", "/v1/admin/nodes", {"provider_id": fleet.provider_id, "nodes": [ENTRY | {"ref": "not-there"}]})
    with step_ground(tmp_path) as ground:
        seen = check(due, ground.tools)
    fleet.do(lambda session: checking.store(session, due.id, seen))
    body = fleet.call()("GET", f"/v1/admin/providers/{fleet.provider_id}").json()
    assert "slurm" in body["capabilities"]["products"]
    assert (body["seen_at"] is not None, body["problem"]) == (True, "")
    found = {(one["code"], one["ref"]) for one in body["findings"]}
    assert ("missing", "not-there") in found
    assert ("not_enrolled", "ams1-b1-l1-r1-n04") in found
    assert not {ref for _, ref in found} & set(REFS)


def test_silence_forgets_nothing(fleet: Fleet) -> None:
    """A provider that does not answer keeps what it said before, and its problem is shown; an incomplete list proves no absence."""
    said = ProviderCheck({"products": ["slurm"], "scrub": False}, refs=(REFS[0],), complete=False)
    fleet.do(lambda session: checking.store(session, fleet.provider_id, said))
    fleet.do(lambda session: checking.store(session, fleet.provider_id, ProviderCheck(problem="provider_unreachable: refused")))
    body = fleet.call()("GET", f"/v1/admin/providers/{fleet.provider_id}").json()
    assert (body["capabilities"]["products"], body["problem"]) == (["slurm"], "provider_unreachable: refused")
    assert (body["shared"], body["findings"]) == (False, [])
    types = [one["type"] for one in fleet.call()("GET", "/v1/events").json()["items"]]
    assert types.count("provider.silent") == 1


def _version(fleet: Fleet) -> int:
    return int(fleet.call()("GET", f"/v1/admin/providers/{fleet.provider_id}").json()["version"])


def test_a_controllers_password_is_changed_on_request_and_never_shown(fleet: Fleet) -> None:
    """202 with how far it is; what the operator says it is now stands nowhere; other nodes and stale versions are refused."""
    enrolled = {
        "provider_id": fleet.provider_id,
        "nodes": [{**ENTRY, "controller": {"url": "https://10.0.7.41", "username": "cp", "password": CANARY}}],
    }
    (node_id,) = fleet.call()("POST", "/v1/admin/nodes", enrolled).json()["enrolled"]
    path, call = f"/v1/admin/nodes/{node_id}", fleet.call()
    shown = call("GET", path)
    assert (shown.json()["controller"]["rotation"], shown.json()["controller"]["findings"]) == ("due", [])
    fleet.sql("UPDATE nodes SET rotation = 'refused', door = 'not_supported' WHERE id = :n", n=node_id)
    shown = call("GET", path)
    assert {one["code"] for one in shown.json()["controller"]["findings"]} == {"controller_rotation", "controller_lock"}
    asked, version = {"reason": "leaked", "password": NEW_CANARY}, shown.json()["version"]
    verb = f"{path}/actions/rotate-controller"
    assert call("POST", verb, asked, version=version + 1).status_code == 412
    done = call("POST", verb, asked, version=version)
    assert (done.status_code, done.json()["controller"]["rotation"]) == (202, "due")
    assert done.json()["version"] > version
    for body in (shown.text, done.text, call("GET", "/v1/audit-events?limit=50").text):
        assert CANARY not in body
        assert NEW_CANARY not in body
    opened = fleet.do(lambda s: bootstrap.open_password(fleet.sealer, node_id, s.get_one(NodeRow, node_id).sealed))
    assert opened == NEW_CANARY
    other = call("GET", f"/v1/admin/nodes/{fleet.node_ids[0]}").json()
    refused = call("POST", f"/v1/admin/nodes/{other['id']}/actions/rotate-controller", {"reason": "x"}, version=other["version"])
    assert (refused.status_code, refused.json()["code"], other["controller"]) == (409, "no_controller", None)
    assert fleet.call(fleet.tree.left.owner_key)("POST", verb, asked, version=version).status_code in {403, 404}
