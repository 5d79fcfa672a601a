"""
What providers say when they fail, and what is secret, never reaches a customer; a reseller's domain never names the platform.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.clusters import service as clusters
from controlplane.jobs import service as jobs
from controlplane.kit.errors import DomainError
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.adapters.simulated.faults import LEAK_CANARIES, PRESETS
from controlplane.web import openapi
from controlplane.web.streams import StreamTempo
from tests.conftest import Database
from tests.factories.serving import MASTER_KEY, Served, serving
from tests.factories.world import World, make_world
from tests.fuzz.population import FLEET, JOB
from tests.schedules.schedule import Schedule

FULL = os.environ.get("RACES") == "full"
LOOKS = 40
PLATFORM = re.compile(
    r"controlplane|control plane|gpu cloud|fastapi|uvicorn|starlette|swagger|pydantic|sqlalchemy|psycopg|cloud\.example",
    re.IGNORECASE,
)
HOST = "north.example"


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """Six nodes, two tenants, virtual time."""
    made = make_world(database, tmp_path, fleet=str(FLEET))
    made.settle()
    yield made
    made.clock.stop()


DETAILS = "SELECT detail FROM nodes UNION ALL SELECT detail FROM clusters UNION ALL SELECT detail FROM jobs"
TABLES = {
    "cluster_id": "clusters",
    "job_id": "jobs",
    "operation_id": "operations",
    "project_id": "projects",
    "key_id": "api_keys",
    "image_id": "images",
    "member_id": "principals",
}
MOVING = "clusters|jobs$|operations$|events$"


def advance(world: World) -> bool:
    """Time goes on and everything due is done, however it ends; whether operators were told what a provider said."""
    told = False
    for _ in range(LOOKS):
        told = told or any(LEAK_CANARIES[0] in row.detail for row in world.rows(DETAILS))
        if not world.tick():
            world.clock.advance(4)
    return told


def live_through(world: World, fault: str, turn: int) -> Iterator[tuple[str, bool]]:
    """A tenant orders, works and deletes while the fault is played; yields where it stands, and whether operators were told."""
    control = SimControl(world.region.world, now=world.clock)
    owner, project = world.people[0]
    sets = (clusters.SetOrder("workers", world.keys.instance_type, 2),)
    order = clusters.Order(f"c{turn}", "slurm", world.keys.site, sets, wait=True)
    if turn % 2:  # trouble from the start, or once it runs
        control.play(fault, count=60, probability=0.9, seed=turn)
    view, _ = world.do(lambda session: clusters.order_cluster(session, owner, project, order))
    yield "ordered", advance(world)
    spec = {**JOB, "script": "#!/bin/bash\nsleep 30\n", "cluster_id": view.row.id}
    with contextlib.suppress(DomainError):  # it may never have come up
        world.do(lambda s: jobs.create_job(s, owner, project, jobs.JobOrder(f"j{turn}", {}, view.row.id, 1, 8, spec)))
    control.play(fault, count=60, probability=0.9, seed=turn)
    yield "worked", advance(world)
    world.do(lambda s: clusters.delete_cluster(s, owner, project, view.row.id, lambda _: None))
    yield "deleted", advance(world)
    control.close()


def tenant_answers(served: Served, world: World, key: str, *, only: str = "") -> Iterator[tuple[str, str]]:
    """Everything a tenant's key can read: each route of the document with each id of the tenant's own."""
    document = openapi.build(served.app)
    tenant = world.keys.tenant_id
    newest = 3 if only else 100
    ids = {
        name: [
            row.id for row in world.rows(f"SELECT id FROM {table} WHERE tenant_id = :t ORDER BY id DESC LIMIT {newest}", t=tenant)
        ]
        for name, table in TABLES.items()
    }
    with served.client(key) as client:
        for path, method, operation in openapi.operations(document):
            if method != "get" or operation.get("x-audience", "any") not in {"tenant", "any"} or not re.search(only, path):
                continue
            for target in targets(path, ids):
                yield from pages(client, target)


def targets(path: str, ids: dict[str, list[str]]) -> list[str]:
    """The path with each id that fits."""
    found = [path]
    for name in re.findall(r"\{(\w+)\}", path):
        found = [one.replace(f"{{{name}}}", known) for one in found for known in ids.get(name, ["hgx-h100-8"])]
    return found


def pages(client: httpx.Client, target: str) -> Iterator[tuple[str, str]]:
    """Every page of the answer, with its headers."""
    token, more = "", ""
    while True:
        answer = client.get(f"{target}{more}")
        yield f"{target}{more}", f"{answer.text}\n{dict(answer.headers)}"
        body = answer.json() if answer.headers.get("content-type", "").startswith("application/json") else {}
        token = body.get("next_page_token") or ""
        if not token:
            return
        more = f"?page_token={token}"


def secrets_of(world: World) -> set[str]:
    """What no answer may hold but the one that made it."""
    keys = world.keys
    shown = {keys.operator_key, keys.reseller_key, keys.tenant_key}
    return {key.split("_")[3] for key in shown} | {MASTER_KEY, world.database.app_url.split(":")[2].split("@")[0]}


def forbidden_to(world: World) -> set[str]:
    """Words that a tenant may never read."""
    machines = {row.ref for row in world.rows("SELECT ref FROM nodes")} | {row.id for row in world.rows("SELECT id FROM nodes")}
    providers = {row.id for row in world.rows("SELECT id FROM providers")} | {str(world.region.world), "sim-"}
    others = {row.id for row in world.rows("SELECT id FROM tenants WHERE id <> :t", t=world.keys.tenant_id)}
    internals = {"Traceback", "sqlite", "psycopg", ".py", "SELECT ", "10.255.", "oob.sim"}
    return {*LEAK_CANARIES, *machines, *providers, *others, *internals, *secrets_of(world)}


def test_no_fault_shows_a_customer_what_the_provider_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """With every fault played on everything, no answer to the tenant holds a canary, a machine's name or a secret; operators see them."""
    caplog.set_level("DEBUG")
    faults = [name for name, one in PRESETS.items() if one.error is not None][:: 1 if FULL else 4]
    told, leaks, asked = set(), [], 0
    with serving(world.database, log_level="DEBUG") as served:
        served.app.state.stream_tempo = StreamTempo(poll_s=0.01, lifetime_s=0.05)
        for turn, fault in enumerate(faults):
            for stage, seen in live_through(world, fault, turn):
                told |= {fault} if seen else set()
                forbidden = forbidden_to(world)
                quick = turn < len(faults) - 1 or stage != "deleted"
                for target, answer in tenant_answers(served, world, world.keys.tenant_key, only=MOVING if quick else ""):
                    asked += 1
                    leaks += [(fault, stage, target, word, _around(answer, word)) for word in forbidden if word in answer]
            Schedule(world, turn, faults=False).heal()
    print(f"{len(faults)} faults, {len(told)} of them told to operators, {asked} answers")
    assert len(told) > len(faults) / 2, "operators were told of too few faults: hardly anything was tried here"
    assert asked > 100
    assert not leaks, leaks[:10]
    lines = [record.getMessage() + str(vars(record)) for record in caplog.records]
    assert lines
    assert not [line for line in lines for word in secrets_of(world) if word in line]


def test_no_answer_on_a_resellers_domain_names_the_platform(world: World) -> None:
    """Document, page, problems, headers and every answer on the reseller's host hold the reseller's name or none."""
    owner = _customer(world)
    found, asked = [], 0
    with serving(world.database) as served:
        served.app.state.stream_tempo = StreamTempo(poll_s=0.01, lifetime_s=0.05)
        for key in (owner, world.keys.reseller_key):
            with served.client(key, host=HOST) as client:
                for target, answer in [*_all_gets(served, client), *_problems(client)]:
                    asked += 1
                    match = PLATFORM.search(answer)
                    found += [(target, _around(answer, match.group()))] if match else []
        with served.client(host=HOST) as client:
            assert client.get("/openapi.json").json()["info"]["title"] == "North Compute API"
    assert asked > 60
    assert not found, found[:10]


def _customer(world: World) -> str:
    """The key of the owner of a tenant that the reseller has."""
    with serving(world.database) as served, served.client(world.keys.reseller_key) as client:
        body = {"name": "branded", "owner": {"name": "Ola", "email": "ola@branded.example"}}
        made = client.post("/v1/reseller/tenants", json=body)
        assert made.status_code == 201, made.text
        key: str = made.json()["owner"]["key"]["key"]
    with serving(world.database) as served, served.client(key) as client:
        assert client.post("/v1/projects", json={"name": "main"}).status_code == 201
    return key


def _all_gets(served: Served, client: httpx.Client) -> Iterator[tuple[str, str]]:
    for path in ("/openapi.json", "/docs", "/", "/favicon.ico", "/redoc"):
        yield from pages(client, path)
    for path, method, operation in openapi.operations(openapi.build(served.app)):
        if method == "get" and operation.get("x-audience"):
            yield from pages(client, re.sub(r"\{\w+\}", "x", path))


def _problems(client: httpx.Client) -> Iterator[tuple[str, str]]:
    attempts: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/projects", {"content": b"{"}),
        ("POST", "/v1/projects", {"json": {"nonsense": 1}}),
        ("POST", "/v1/projects", {"content": b"x" * 2_000_000, "headers": {"Content-Type": "application/json"}}),
        ("POST", "/v1/projects", {"content": b"a=b", "headers": {"Content-Type": "application/x-www-form-urlencoded"}}),
        ("PUT", "/v1/whoami", {}),
        ("DELETE", "/v1/tenant", {}),
        ("GET", "/v1/projects?limit=x", {}),
        ("GET", "/v1/whoami", {"headers": {"Authorization": "Bearer nothing"}}),
        ("OPTIONS", "/v1/whoami", {}),
        ("TRACE", "/v1/whoami", {}),
    ]
    for method, path, more in attempts:
        answer = client.request(method, path, **more)
        yield f"{method} {path}", f"{answer.text}\n{dict(answer.headers)}"


def _around(answer: str, word: str) -> str:
    place = answer.find(word)
    return json.dumps(answer[max(0, place - 160) : place + 80])
