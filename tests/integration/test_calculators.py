"""
The calculators over HTTP: for every kind of key, from the catalog of the database, strict, and leaving nothing behind.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.calculators.routes import router
from controlplane.kit.db import EVERYTHING, raise_wall
from tests.conftest import Database
from tests.factories.catalog import furnished
from tests.factories.quotas import Caller, chain, principal

KV = {"model": "deepseek-v3", "context_tokens": 1000}
FIT = {"model": "llama-3.1-405b", "gpu_model": "H100-SXM5-80GB", "context_tokens": 8192}


@pytest.fixture
def call(database: Database) -> Caller:
    """An application with the catalog loaded."""
    with Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        furnished(session)
    return Caller(database.engine, [router])


def test_every_key_may_calculate(call: Caller) -> None:
    """Operators, resellers, tenants and projects get the same answer; a key without the catalog's permission does not."""
    path = chain()
    answers = [
        call(principal(kind, path), "POST", "/v1/calculators/kv-cache", json=KV)
        for kind in ("platform", "reseller", "tenant", "project")
    ]
    assert {one.status_code for one in answers} == {200}
    assert len({one.text for one in answers}) == 1
    assert answers[0].json()["result"]["bytes_per_token"] == 70_272
    narrow = principal("project", path)
    narrow = type(narrow)(
        **{name: getattr(narrow, name) for name in narrow.__dataclass_fields__} | {"permissions": frozenset({"jobs:read"})}
    )
    assert call(narrow, "POST", "/v1/calculators/kv-cache", json=KV).status_code == 403


def test_every_listed_calculator_is_served(call: Caller) -> None:
    """Each has its inputs told and an address that answers; models are listed with their sources."""
    who = principal("project", chain())
    listed = call(who, "GET", "/v1/calculators").json()["items"]
    assert len(listed) == 7
    for one in listed:
        refused = call(who, "POST", one["path"], json={"cow": 1})
        fields = {error["field"] for error in refused.json()["errors"]}
        assert refused.status_code == 422
        assert {"body.cow", *(f"body.{name}" for name in one["required"])} <= fields
    models = call(who, "GET", "/v1/calculators/models").json()["items"]
    assert {"llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"} <= {one["name"] for one in models}
    assert all(one["source"]["url"] for one in models)


def test_gpus_and_shapes_come_from_the_database(call: Caller, database: Database) -> None:
    """A figure that the operator's catalog has is the one that counts; one that it has not is unknown."""
    who = principal("tenant", chain())
    assert call(who, "POST", "/v1/calculators/inference-fit", json=FIT).json()["result"]["gpus"] == 16
    with database.owner.begin() as connection:
        connection.execute(text("UPDATE gpu_models SET memory_gib = 640, tflops = '{}' WHERE name = 'H100-SXM5-80GB'"))
        connection.execute(text("UPDATE instance_types SET power_kw = 20 WHERE name = 'hgx-h100-8'"))
    assert call(who, "POST", "/v1/calculators/inference-fit", json=FIT).json()["result"]["gpus"] == 2
    time = {"model": "llama-3.1-8b", "tokens": 10**12, "gpus": 8, "gpu_model": "H100-SXM5-80GB"}
    answer = call(who, "POST", "/v1/calculators/training-time", json=time).json()
    assert answer["result"]["time_s"] is None
    assert answer["unknown"] == ["No bf16 peak is known of this GPU, so the time is not told."]
    rack = call(who, "POST", "/v1/calculators/rack-power", json={"instance_type": "hgx-h100-8", "rack_w": 42_000})
    assert rack.json()["result"]["nodes_per_rack"] == 2


@pytest.mark.parametrize(
    ("name", "body", "code", "field"),
    [
        ("kv-cache", KV | {"model": "cow"}, "unknown_facts", "body.model"),
        ("kv-cache", KV | {"tensor_parallel": 3}, "cannot_calculate", "body.tensor_parallel"),
        ("kv-cache", KV | {"context_tokens": "1000"}, "invalid_request", "body.context_tokens"),
        ("kv-cache", KV | {"context_tokens": 10**10}, "invalid_request", "body.context_tokens"),
        ("engine", FIT | {"engine": "tgi"}, "engine_archived", "body.engine"),
        ("engine", FIT | {"engine": "vllm", "model_path": "--trust-remote-code"}, "invalid_request", "body.model_path"),
    ],
)
def test_refusals_have_codes_and_fields(call: Caller, name: str, body: dict[str, object], code: str, field: str) -> None:
    """422 with a stable code and the input to change."""
    answer = call(principal("project", chain()), "POST", f"/v1/calculators/{name}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert answer.json()["errors"][0]["field"] == field


def test_calculating_leaves_nothing_behind(call: Caller, database: Database) -> None:
    """No audit entry and no event: nothing was changed."""
    call(principal("tenant", chain()), "POST", "/v1/calculators/inference-fit", json=FIT)
    with database.owner.connect() as connection:
        assert connection.execute(text("SELECT (SELECT count(*) FROM audit_entries) + (SELECT count(*) FROM events)")).scalar() == 0
