"""
Usage and prices over HTTP: who may see what.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.metering import service as metering
from controlplane.metering.routes import router
from controlplane.quotas.service import Chain
from tests.conftest import Database
from tests.factories.metering import book, opening, seller, tenant
from tests.factories.quotas import Caller, principal

H100 = "hgx-h100-8"


@pytest.fixture
def path(database: Database) -> Chain:
    """A tenant with two projects that each held a node for the last hour and still do, at 2 USD; a neighbour of another seller too."""
    with Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        platform, home, other = seller(session, is_platform=True), seller(session), seller(session)
        book(session, platform, [(H100, "2")])
        mine, foreign = tenant(session, home), tenant(session, other)
        now = metering.window(session, None, None).now
        for customer, project in ((mine, "prj_a"), (mine, "prj_b"), (foreign, "prj_c")):
            begun = now - timedelta(hours=1)
            metering.open_intervals(session, [opening(customer, project_id=project, not_before=begun, usable_at=begun)])
        return Chain(home, mine, "prj_a")


@pytest.fixture
def call(database: Database) -> Caller:
    """The edge with this room's routes."""
    return Caller(database.engine, [router])


def test_a_tenant_sees_its_usage_and_cost(call: Caller, path: Chain) -> None:
    """By project, with exact seconds, money as text and what is unpriced beside it."""
    answer = call(principal("tenant", path), "GET", "/v1/usage", params={"group_by": "project"})
    assert answer.status_code == 200
    report = answer.json()
    assert report["group_by"] == ["project"]
    assert report["from"] < report["to"]
    assert [one["project_id"] for one in report["items"]] == ["prj_a", "prj_b"]
    for one in report["items"]:
        assert one["gpu_seconds"].count(".") == 1
        assert one["unpriced_gpu_seconds"] == "0.000000"
        assert [(money["currency"], type(money["amount"])) for money in one["cost"]] == [("USD", str)]


def test_a_project_key_sees_its_project(call: Caller, path: Chain) -> None:
    """Sums and intervals are its own, and another project's id is unknown to it."""
    member = principal("project", path)
    assert [one["project_id"] for one in call(member, "GET", "/v1/usage", params={"group_by": "project"}).json()["items"]] == [
        "prj_a"
    ]
    assert [one["project_id"] for one in call(member, "GET", "/v1/usage/intervals").json()["items"]] == ["prj_a"]
    for url in ("/v1/usage", "/v1/usage/intervals"):
        assert call(member, "GET", url, params={"project_id": "prj_b"}).status_code == 404


def test_intervals_are_paged_and_carry_their_evidence(call: Caller, path: Chain) -> None:
    """Each is seen once over the pages, with what opened it."""
    admin, seen, token = principal("tenant", path), [], ""
    while token is not None:
        extra = {"page_token": token} if token else {}
        page = call(admin, "GET", "/v1/usage/intervals", params={"limit": 1, **extra}).json()
        seen += page["items"]
        token = page["next_page_token"]
    assert sorted(one["project_id"] for one in seen) == ["prj_a", "prj_b"]
    assert {(one["opened_by"], one["ended_at"]) for one in seen} == {("opr_start", None)}
    assert "allocation_id" not in seen[0]


def test_sellers_and_the_operator_see_by_tenant(call: Caller, path: Chain) -> None:
    """A seller its own customers, the operator all, and no level the routes of another."""
    own = call(principal("reseller", path), "GET", "/v1/reseller/usage").json()["items"]
    assert [one["tenant_id"] for one in own] == [path.tenant_id]
    assert len(call(principal("platform", path), "GET", "/v1/admin/usage").json()["items"]) == 2
    assert call(principal("tenant", path), "GET", "/v1/reseller/usage").status_code == 403
    assert call(principal("reseller", path), "GET", "/v1/admin/usage").status_code == 403


def test_price_lists_are_entered_by_the_operator(call: Caller, path: Chain) -> None:
    """A seller's list overlays at once what its tenants are shown."""
    operator, admin = principal("platform", path), principal("tenant", path)
    assert [one["per_gpu_hour"] for one in call(admin, "GET", "/v1/prices").json()["items"]] == [
        {"amount": "2.000000", "currency": "USD"}
    ]
    body = {"reseller_id": path.reseller_id, "currency": "EUR", "prices": [{"instance_type": H100, "per_gpu_hour": "3.1"}]}
    assert call(admin, "POST", "/v1/admin/price-books", json=body).status_code == 403
    made = call(operator, "POST", "/v1/admin/price-books", json=body)
    assert (made.status_code, made.json()["number"], made.json()["is_base"]) == (201, 1, False)
    assert [one["per_gpu_hour"] for one in call(admin, "GET", "/v1/prices").json()["items"]] == [
        {"amount": "3.100000", "currency": "EUR"}
    ]
    past = call(operator, "POST", "/v1/admin/price-books", json=body | {"valid_from": "2024-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["code"]) == (409, "price_in_past")
    assert len(call(operator, "GET", "/v1/admin/price-books").json()["items"]) == 2
    unknown = call(operator, "POST", "/v1/admin/price-books", json=body | {"reseller_id": "rsl_none"})
    assert unknown.status_code == 404


@pytest.mark.parametrize(
    "params",
    [
        {"group_by": "tenant"},
        {"group_by": "day,"},
        {"to": "yesterday"},
        {"to": "2000-01-01T00:00:00Z"},
        {"project_id": "PRJ"},
        {"cow": "1"},
    ],
)
def test_malformed_questions_are_refused(call: Caller, path: Chain, params: dict[str, str]) -> None:
    """422 with the field named."""
    answer = call(principal("tenant", path), "GET", "/v1/usage", params=params)
    assert answer.status_code == 422
    assert answer.json()["errors"]
