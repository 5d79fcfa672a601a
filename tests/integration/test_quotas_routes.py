"""
Quotas over HTTP: who may see and change what.
"""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.quotas import service as quotas
from controlplane.quotas.routes import router
from controlplane.quotas.service import Chain, Need
from tests.conftest import Database
from tests.factories.quotas import Caller, chain, principal

GPUS_64 = {"limits": [{"resource": "gpus", "limit": 64}]}


@pytest.fixture
def path(database: Database) -> Chain:
    """A project that holds 8 GPUs, with counters at every level above it and a seller's ceiling of 128."""
    made = chain()
    with Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        for scope in made.scopes():
            quotas.open_counters(session, scope, {"gpus": 128} if scope.kind == "reseller" else None)
        quotas.take(session, made, [Need("gpus", 8, "H100", "osl1")])
    return made


@pytest.fixture
def call(database: Database) -> Caller:
    """The edge with this room's routes."""
    return Caller(database.engine, [router])


def test_a_tenant_reads_changes_and_reads_back(call: Caller, path: Chain) -> None:
    """The ETag of the read is the If-Match of the change; a second change with it is stale, one without it is refused."""
    admin, url = principal("tenant", path), f"/v1/projects/{path.project_id}/quotas"
    read = call(admin, "GET", url)
    assert read.status_code == 200
    assert {(one["resource"], one["gpu_model"]): one["used"] for one in read.json()["limits"]}["gpus", "H100"] == 8
    assert call(admin, "PUT", url, json=GPUS_64).status_code == 428
    changed = call(admin, "PUT", url, json=GPUS_64, headers={"If-Match": read.headers["ETag"]})
    assert changed.status_code == 200
    assert {(one["resource"], one["gpu_model"]): one["limit"] for one in changed.json()["limits"]}["gpus", ""] == 64
    assert changed.headers["ETag"] != read.headers["ETag"]
    assert call(admin, "PUT", url, json=GPUS_64, headers={"If-Match": read.headers["ETag"]}).status_code == 412
    listed = call(admin, "GET", "/v1/quotas").json()["items"]
    assert [one["scope_id"] for one in listed] == [path.tenant_id, path.project_id]


def test_a_project_key_reads_its_own_and_changes_nothing(call: Caller, path: Chain) -> None:
    """The list holds its project only, and the right to change limits stays with the tenant."""
    member = principal("project", path)
    assert [one["scope_id"] for one in call(member, "GET", "/v1/quotas").json()["items"]] == [path.project_id]
    answer = call(member, "PUT", f"/v1/projects/{path.project_id}/quotas", json=GPUS_64, headers={"If-Match": "*"})
    assert answer.status_code == 403


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_foreign_scopes_answer_like_unknown_ones(call: Caller, database: Database, path: Chain, method: str) -> None:
    """Another tenant's project, another seller's tenant and another seller itself do not exist for the caller."""
    foreign = chain()
    with Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        for scope in foreign.scopes():
            quotas.open_counters(session, scope)
    extra = {"json": GPUS_64, "headers": {"If-Match": "*"}} if method == "PUT" else {}
    tried = [
        (principal("tenant", path), f"/v1/projects/{foreign.project_id}/quotas"),
        (principal("tenant", path), f"/v1/projects/{path.tenant_id}/quotas"),
        (principal("reseller", path), f"/v1/reseller/tenants/{foreign.tenant_id}/quotas"),
        (principal("reseller", path), f"/v1/reseller/tenants/{foreign.reseller_id}/quotas"),
        (principal("reseller", path), "/v1/reseller/tenants/ten_unknown/quotas"),
        (principal("platform", path), "/v1/admin/quotas/prj_unknown"),
    ]
    bodies = []
    for who, url in tried:
        answer = call(who, method, url, **extra)
        assert answer.status_code == 404
        bodies.append({key: value for key, value in answer.json().items() if key != "request_id"})
    assert all(one == bodies[0] for one in bodies)


def test_a_seller_is_bound_by_its_ceiling(call: Caller, path: Chain) -> None:
    """A customer's limit up to the ceiling is set, one above it is a conflict with the seller's own number."""
    seller, url = principal("reseller", path), f"/v1/reseller/tenants/{path.tenant_id}/quotas"
    etag = call(seller, "GET", url).headers["ETag"]
    body = {"limits": [{"resource": "gpus", "limit": 129}]}
    refused = call(seller, "PUT", url, json=body, headers={"If-Match": etag})
    assert (refused.status_code, refused.json()["code"], refused.json()["limit"]) == (409, "limit_above_ceiling", 128)
    assert (
        call(seller, "PUT", url, json={"limits": [{"resource": "gpus", "limit": 128}]}, headers={"If-Match": etag}).status_code
        == 200
    )


def test_the_operator_sets_any_scope(call: Caller, path: Chain) -> None:
    """Platform and sellers are listed first and can be limited."""
    operator = principal("platform", path)
    listed = [one["scope"] for one in call(operator, "GET", "/v1/admin/quotas").json()["items"]]
    assert listed == ["platform", "reseller", "tenant", "project"]
    for scope_id in ("platform", path.reseller_id):
        etag = call(operator, "GET", f"/v1/admin/quotas/{scope_id}").headers["ETag"]
        answer = call(operator, "PUT", f"/v1/admin/quotas/{scope_id}", json=GPUS_64, headers={"If-Match": etag})
        assert {one["limit"] for one in answer.json()["limits"] if one["resource"] == "gpus" and not one["gpu_model"]} == {64}


@pytest.mark.parametrize(
    "limit",
    [
        {"resource": "cows", "limit": 1},
        {"resource": "gpus", "limit": -1},
        {"resource": "gpus", "limit": 1.5},
        {"resource": "gpus", "limit": "1"},
        {"resource": "gpus", "limit": 10**30},
        {"resource": "gpus", "limit": 1, "more": 1},
        {"resource": "gpus", "limit": 1, "site": "os\u0000l"},
        {"resource": "keys", "limit": 1, "gpu_model": "H100"},
        {"resource": "gpus"},
    ],
)
def test_malformed_limits_are_refused(call: Caller, path: Chain, limit: dict[str, object]) -> None:
    """422, never a stored surprise."""
    url = f"/v1/projects/{path.project_id}/quotas"
    answer = call(principal("tenant", path), "PUT", url, json={"limits": [limit]}, headers={"If-Match": "*"})
    assert answer.status_code == 422
    assert answer.json()["errors"]
