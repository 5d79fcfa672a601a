"""
The audit: everybody's own chain, narrowed by what it says, and an edit that nobody can hide.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from controlplane.activity import service
from controlplane.kit import audit
from controlplane.kit.audit import AuditEntry
from controlplane.kit.errors import Forbidden
from tests.conftest import Database
from tests.factories.identity import principal_of, work
from tests.factories.nodes import Fleet, make_fleet

AT = "2026-01-31T12:00:00Z"
EVIL = 'x","actor":"prn_evil","at":"'


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Fleet:
    """
    Two tenants of two resellers.
    """
    return make_fleet(database, tmp_path)


def write(fleet: Fleet, chain: str, count: int = 1, **changes: str) -> None:
    """
    Entries stand in the chain.
    """
    words = {"actor": "prn_a", "action": "jobs:create", "target": "job_1", "outcome": "done", "request_id": "req_1"} | changes
    for _ in range(count):
        work(fleet.engine, lambda session: audit.append(session, chain, AuditEntry(**words, detail={"note": EVIL}), at=AT))


def edit(database: Database, statement: str) -> None:
    """
    Somebody with the owner's password has changed what is stored.
    """
    with database.owner.begin() as connection:
        connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        assert connection.execute(text(statement)).rowcount > 0


def test_everybody_reads_their_own_chain(fleet: Fleet) -> None:
    """A tenant and a reseller read their own; operators any by name; a foreign chain is as one that never was."""
    left, right = fleet.tree.left, fleet.tree.right
    write(fleet, left.tenant_id, 2, target="job_tenant")
    write(fleet, left.reseller_id, target="ten_reseller")

    def targets(key: str, query: str = "") -> set[str]:
        return {one["target"] for one in fleet.call(key)("GET", f"/v1/audit-events{query}").json()["items"]}

    assert targets(left.owner_key) == {"job_tenant"}
    assert targets(left.reseller_key) == {"ten_reseller"}
    assert targets(right.owner_key) == set()
    assert targets(fleet.tree.operator_key, f"?chain={left.tenant_id}") == {"job_tenant"}
    assert targets(left.owner_key, f"?chain={left.tenant_id}") == {"job_tenant"}
    for path in ("/v1/audit-events", "/v1/audit-events/verification"):
        for key in (right.owner_key, left.reseller_key):
            foreign = fleet.call(key)("GET", f"{path}?chain={left.tenant_id}")
            unknown = fleet.call(key)("GET", f"{path}?chain=ten_00000000000000000000000000")
            assert foreign.status_code == 404
            assert foreign.json() == unknown.json()


def test_the_audit_is_the_tenants_not_a_projects(fleet: Fleet) -> None:
    """A key of one project does not read what happened in the others."""
    left = fleet.tree.left
    owner = principal_of(fleet.engine, left.owner_key)
    scoped = type(owner)(
        "prn_2", "key_2", "project", left.project_id, owner.permissions, left.reseller_id, left.tenant_id, left.project_id
    )
    with pytest.raises(Forbidden):
        work(fleet.engine, lambda session: service.verify_chain(session, scoped, None), scoped.wall)


def test_filters_match_fields_not_words(fleet: Fleet) -> None:
    """Actor, action and outcome narrow by the entry's own fields; a text in the detail that looks like one is not taken for it."""
    left = fleet.tree.left
    write(fleet, left.tenant_id)
    write(fleet, left.tenant_id, actor="prn_b", action="jobs:delete", outcome="denied")
    call = fleet.call(left.owner_key)

    def count(query: str) -> int:
        return len(call("GET", f"/v1/audit-events?{query}").json()["items"])

    found = [count(one) for one in ("actor=prn_a", "actor=prn_evil", "action=jobs:delete", "outcome=denied", "outcome=failed")]
    assert found == [1, 0, 1, 1, 0]
    assert count("actor=prn_b&action=jobs:delete&outcome=denied") == 1
    assert count("actor=prn_a&outcome=denied") == 0
    assert (count("created_after=2020-01-01T00:00:00Z"), count("created_after=2199-01-01T00:00:00Z")) == (2, 0)
    first = call("GET", "/v1/audit-events?limit=1").json()
    second = call("GET", f"/v1/audit-events?limit=1&page_token={first['next_page_token']}").json()
    assert [first["items"][0]["seq"], second["items"][0]["seq"], second["next_page_token"]] == [1, 2, None]


def test_a_whole_chain_verifies(fleet: Fleet) -> None:
    """An untouched chain is intact, also one without an entry."""
    left = fleet.tree.left
    empty = fleet.call(left.owner_key)("GET", "/v1/audit-events/verification").json()
    assert (empty["intact"], empty["entries"]) == (True, 0)
    write(fleet, left.tenant_id, 3)
    whole = fleet.call(left.owner_key)("GET", "/v1/audit-events/verification").json()
    assert whole == {"chain": left.tenant_id, "entries": 3, "checked": 3, "intact": True, "breaks": []}


@pytest.mark.parametrize(
    ("statement", "seq"),
    [
        ("UPDATE audit_entries SET body = convert_to('{}', 'UTF8') WHERE tenant_id = '{t}' AND seq = 2", 2),
        ("UPDATE audit_entries SET body = decode('00ff', 'hex') WHERE tenant_id = '{t}' AND seq = 2", 2),
        ("DELETE FROM audit_entries WHERE tenant_id = '{t}' AND seq = 2", 3),
        ("DELETE FROM audit_entries WHERE tenant_id = '{t}' AND seq = 3", 3),
        ("UPDATE audit_heads SET seq = 2 WHERE tenant_id = '{t}'", 2),
    ],
)
def test_no_edit_stays_hidden(fleet: Fleet, database: Database, statement: str, seq: int) -> None:
    """A changed, unreadable or removed entry, at the end too, breaks the chain where it was; the list still answers."""
    left = fleet.tree.left
    write(fleet, left.tenant_id, 3)
    edit(database, statement.replace("{t}", left.tenant_id))
    call = fleet.call(left.owner_key)
    seen = call("GET", "/v1/audit-events/verification").json()
    assert (seen["intact"], seen["breaks"][0]["seq"]) == (False, seq)
    assert call("GET", "/v1/audit-events").status_code == 200
    assert call("GET", "/v1/audit-events?actor=prn_a").status_code == 200


def test_a_very_long_chain_is_verified_in_part(fleet: Fleet) -> None:
    """Beyond the bound the answer says how far it looked, and does not call the rest intact or broken."""
    left = fleet.tree.left
    write(fleet, left.tenant_id, 5)
    owner = principal_of(fleet.engine, left.owner_key)
    seen = work(fleet.engine, lambda session: service.verify_chain(session, owner, None, most=3), owner.wall)
    assert (seen.entries, seen.checked, seen.intact) == (5, 3, True)
