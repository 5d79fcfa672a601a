"""
Values that nothing can store, in every string of every body, in every path and query parameter and in headers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes

import httpx
import pytest

from controlplane.web import openapi
from tests.conftest import Database
from tests.factories.serving import Served, serving
from tests.fuzz.campaign import count_writes
from tests.fuzz.population import Population, populate

HOSTILE = {
    "NUL": b'"a\\u0000b"',
    "raw NUL": b'"a\0b"',
    "half a pair": b'"a\\ud800b"',
    "half a pair in bytes": b'"a\xed\xa0\x80b"',
    "overlong": b'"a\xc0\xafb"',
    "mebibyte": b'"' + b"x" * (1024 * 1024 - 4096) + b'"',
    "NaN": b"NaN",
    "10 to the 400": b"1" + b"0" * 400,
    "1e400": b"1e400",
    "deep": b"[" * 100_000 + b"]" * 100_000,
}
EVERYWHERE = {"NUL", "half a pair", "overlong"}
"""What is tried in every string; the rest in one string of each body."""
TEXT = {"NUL": b"a\0b", "half a pair": b"a\xed\xa0\x80b", "overlong": b"a\xc0\xafb", "latin-1": b"a\xffb"}
CODES = {400, 404, 413, 414, 422, 431}
MARK = '"@@"'


@pytest.fixture(scope="module")
def population(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Population:
    """A cloud that is lived in."""
    migrated.reset()
    return populate(migrated, tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def served(migrated: Database, population: Population) -> Iterator[Served]:
    """The application."""
    del population
    with serving(migrated, log_level="ERROR") as one:
        yield one


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    """What it says of itself."""
    return openapi.build(served.app)


def example(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """A value of the schema with every field filled in."""
    if "$ref" in schema:
        return example(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if schema.get("type") == "object" and "properties" in schema:
        return {name: example(document, one) for name, one in schema["properties"].items()}
    several = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if several:
        return example(document, several[0])
    if schema.get("type") == "array":
        return [example(document, schema["items"])]
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    given = [*schema.get("examples", ()), schema.get("default")]
    return next((one for one in given if one not in (None, "", {})), "text" if schema.get("type") == "string" else 1)


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where strings stand in the value."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, (*place, name))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, (*place, number))


def spoiled(value: Any, place: tuple[Any, ...], raw: bytes) -> bytes:
    """The value as JSON with raw bytes where the place is."""
    copied = json.loads(json.dumps(value))
    inner = copied
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = MARK.strip('"')
    return json.dumps(copied).encode().replace(MARK.encode(), raw)


def credential(population: Population, operation: dict[str, Any]) -> str:
    """A key that may call the operation."""
    return population.keys.get(operation["x-audience"], population.keys["operator"])


def real_path(population: Population, path: str) -> str:
    """The path with ids that exist."""
    return re.sub(r"\{(\w+)\}", lambda found: (population.ids.get(found.group(1)) or ["x"])[0], path)


def test_no_field_of_any_body_takes_what_cannot_be_stored(served: Served, population: Population, document: dict[str, Any]) -> None:
    """Each hostile value in each string of each body is a 4xx, and nothing is written."""
    wrong, asked = [], 0
    writes = count_writes(served.app.state.runtime.engine)
    with served.client() as client:
        for path, method, operation in openapi.operations(document):
            if "application/json" not in operation.get("requestBody", {}).get("content", {}):
                continue
            body = example(document, operation["requestBody"]["content"]["application/json"]["schema"])
            headers = {
                "Authorization": f"Bearer {credential(population, operation)}",
                "If-Match": "*",
                "Content-Type": "application/json",
            }
            for place in leaves(body):
                for name, raw in HOSTILE.items():
                    if name not in EVERYWHERE and place != next(leaves(body)):
                        continue
                    before = writes()
                    answer = client.request(
                        method.upper(), real_path(population, path), content=spoiled(body, place, raw), headers=headers
                    )
                    asked += 1
                    if answer.status_code not in CODES - {404} or writes() != before:
                        wrong.append((method, path, place, name, answer.status_code, answer.text[:200]))
    print(f"{asked} hostile bodies")
    assert asked > 300
    assert not wrong, wrong[:20]


def test_no_parameter_takes_what_cannot_be_stored(served: Served, population: Population, document: dict[str, Any]) -> None:
    """Each hostile text in each path and query parameter is a 4xx, and nothing is written."""
    wrong, asked = [], 0
    writes = count_writes(served.app.state.runtime.engine)
    with served.client() as client:
        for path, method, operation in openapi.operations(document):
            if "x-audience" not in operation:
                continue
            headers = {"Authorization": f"Bearer {credential(population, operation)}", "If-Match": "*"}
            targets = [
                real_path(population, path.replace(f"{{{one['name']}}}", "@@"))
                for one in operation.get("parameters", ())
                if one["in"] == "path"
            ]
            targets += [
                f"{real_path(population, path)}?{one['name']}=@@" for one in operation.get("parameters", ()) if one["in"] == "query"
            ]
            for number, target in enumerate(targets):
                for name, raw in TEXT.items() if number == 0 else [("NUL", TEXT["NUL"])]:
                    before = writes()
                    answer = client.request(method.upper(), target.replace("@@", quote_from_bytes(raw)), headers=headers)
                    asked += 1
                    if answer.status_code not in CODES or writes() != before:
                        wrong.append((method, target, name, answer.status_code, answer.text[:200]))
    print(f"{asked} hostile parameters")
    assert asked > 300
    assert not wrong, wrong[:20]


@pytest.mark.parametrize(
    "header", ["Idempotency-Key", "If-Match", "X-Request-Id", "Last-Event-ID", "Authorization", "Content-Type"]
)
@pytest.mark.parametrize("value", [b"a\xffb", b"a\xc0\xafb", b"\xef\xbb\xbfa", b"x" * 20_000, b'"9' + b"9" * 400 + b'"', b"a\tb"])
def test_no_header_takes_what_cannot_be_read(served: Served, population: Population, header: str, value: bytes) -> None:
    """Hostile bytes in a header never make a 5xx, and what a header says is not stored unless it is well-formed."""
    key = population.keys["tenant"].encode()
    given = {b"Authorization": b"Bearer " + key, b"Content-Type": b"application/json", header.encode(): value}
    with served.client() as client:
        project = population.world.keys.project_id
        made = client.post("/v1/projects", content=b"[]", headers=list(given.items()))
        changed = client.patch(f"/v1/projects/{project}/clusters/clu_x", content=b'{"labels":{}}', headers=list(given.items()))
        stream = httpx.Request("GET", f"{served.url}/v1/events?limit=1", headers=list(given.items()))
        listed = client.send(stream)
    assert {made.status_code, changed.status_code} <= {400, 401, 404, 409, 412, 415, 422, 428, 431}
    assert listed.status_code in {200, 400, 401, 422, 431}
    for one in (made, changed, listed):
        assert re.fullmatch(r"[A-Za-z0-9._-]{8,64}", one.headers["x-request-id"])


def test_a_mark_of_byte_order_is_no_json(served: Served, population: Population) -> None:
    """A body that begins with a byte order mark is refused."""
    with served.client(population.keys["tenant"]) as client:
        body = b"\xef\xbb\xbf" + json.dumps({"name": "bom"}).encode()
        answer = client.post("/v1/projects", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
