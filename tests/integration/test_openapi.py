"""
The OpenAPI document: complete, true to itself, and pleasant for those who generate clients of it.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from controlplane.identity.states import PERMISSIONS
from controlplane.web.docs import example_of
from tests.conftest import Database
from tests.factories.identity import make_tree
from tests.factories.serving import serving

REF = "#/components/schemas/"


@pytest.fixture(scope="module")
def document(migrated: Database) -> dict[str, Any]:
    """The document as it is served."""
    migrated.reset()
    with serving(migrated) as served, served.client() as client:
        whole: dict[str, Any] = client.get("/openapi.json").json()
    return whole


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Every (method, path, operation)."""
    return [(method, path, one) for path, item in document["paths"].items() for method, one in item.items()]


def test_every_operation_is_described(operations: list[tuple[str, str, dict[str, Any]]], document: dict[str, Any]) -> None:
    """Each has a summary, a description of its own, one known tag, a verb_noun id and a description of every parameter."""
    tags = {tag["name"] for tag in document["tags"]}
    for method, path, one in operations:
        where = f"{method} {path}"
        assert one["summary"], where
        assert one["description"], where
        assert one["description"] != one["summary"], where
        assert len(one["tags"]) == 1, where
        assert one["tags"][0] in tags, where
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", one["operationId"]), where
        for parameter in one.get("parameters", ()):
            assert parameter["in"] == "path" or parameter.get("description"), f"{where} {parameter['name']}"


def test_every_problem_is_declared_as_one(operations: list[tuple[str, str, dict[str, Any]]], document: dict[str, Any]) -> None:
    """Every refusal refers to the one problem shape; the ones any operation may answer with stand everywhere; ours, not FastAPI's."""
    assert "HTTPValidationError" not in json.dumps(document)
    for method, path, one in operations:
        assert "default" in one["responses"], path
        if path.startswith("/v1"):
            assert {"401", "403", "422", "429", "503"} <= set(one["responses"]), f"{method} {path}"
            assert ("404" in one["responses"]) or "{" not in path, f"{method} {path}"
            assert one["x-permission"] in PERMISSIONS | {""}
        for code, response in one["responses"].items():
            if code == "default" or code >= "400":
                told = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
                assert list(told["content"]) == ["application/problem+json"]
                assert told["content"]["application/problem+json"]["schema"] == {"$ref": f"{REF}Problem"}


def test_a_dry_run_has_its_answer(operations: list[tuple[str, str, dict[str, Any]]]) -> None:
    """Where something can be tried without being done, 200 is declared: nothing was made."""
    dry = [(path, one) for _, path, one in operations if any(each.get("name") == "dry_run" for each in one.get("parameters", []))]
    assert len(dry) > 5
    assert [path for path, one in dry if "200" not in one["responses"] and "204" not in one["responses"]] == []


def test_every_schema_is_reached_and_named_well(document: dict[str, Any]) -> None:
    """No reference points nowhere; no name tells of our modules; every schema and every field is described."""
    schemas = document["components"]["schemas"]
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert referred <= set(schemas)
    for name, schema in schemas.items():
        assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", name), name
        for field, one in schema.get("properties", {}).items():
            assert _described(one, schemas), f"{name}.{field}"


def misfits(schemas: dict[str, Any], said: dict[str, tuple[dict[str, Any], list[Any]]]) -> list[str]:
    """
    Which of the examples, by what they are of, does not fit its schema. All are held against one schema, since each one costs the
    reading of all that it may refer to.
    """
    every = {name: {"type": "array", "items": schema} for name, (schema, _) in said.items()}
    validator = jsonschema_rs.Draft202012Validator({"components": {"schemas": schemas}, "properties": every})
    document = {name: examples for name, (_, examples) in said.items()}
    return [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(document)]


def test_examples_validate(document: dict[str, Any], operations: list[tuple[str, str, dict[str, Any]]]) -> None:
    """The example of every body and of every answer fits its own schema."""
    schemas = document["components"]["schemas"]
    said = {}
    for method, path, one in operations:
        parts = [one.get("requestBody", {}), *one["responses"].values()]
        for number, schema in enumerate(found for part in parts for found in _json(part)):
            said[f"{method} {path} {number}"] = (schema, [example_of(schema, schemas)])
    assert len(said) > len(operations) / 2
    assert misfits(schemas, said) == []


def test_examples_in_fields_validate(document: dict[str, Any]) -> None:
    """Every example given at a field fits that field."""
    schemas = document["components"]["schemas"]
    said = {
        f"{name}.{field}": (one, list(one["examples"]))
        for name, schema in schemas.items()
        for field, one in schema.get("properties", {}).items()
        if one.get("examples")
    }
    assert len(said) > len(schemas)
    assert misfits(schemas, said) == []


def test_the_page_needs_nothing_from_elsewhere(migrated: Database) -> None:
    """The page holds every operation, loads no script and no file, and forbids both."""
    with serving(migrated) as served, served.client() as client:
        answer, document = client.get("/docs"), client.get("/openapi.json").json()
    assert "<script" not in answer.text
    assert re.findall(r'(?:src|href)="(?!#|/openapi\.json|mailto:)[^"]*"', answer.text) == []
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for item in document["paths"].values():
        for one in item.values():
            assert f'id="{one["operationId"]}"' in answer.text


def test_a_brand_cannot_write_into_the_page(migrated: Database) -> None:
    """What a reseller calls itself is text on the page, never markup."""
    migrated.reset()
    make_tree(migrated.engine)
    with migrated.owner.begin() as connection:
        brand = (
            '{"name": "<b onclick=x>", "colour": "red;}</style><script>", "logo_url": "javascript:x", "support_email": "a\\"b@x"}'
        )
        connection.exec_driver_sql("UPDATE resellers SET brand = %s::jsonb WHERE name = 'fjord'", (brand,))
    with serving(migrated) as served, served.client(host="cloud.fjord.example") as client:
        page = client.get("/docs").text
    assert "<b onclick" not in page
    assert "<script" not in page
    assert "javascript:" not in page
    assert "&lt;b onclick=x&gt; API" in page


def _described(field: dict[str, Any], schemas: dict[str, Any]) -> bool:
    if field.get("description"):
        return True
    return "$ref" in field and bool(schemas[field["$ref"].removeprefix(REF)].get("description"))


def _json(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    schema = part.get("content", {}).get("application/json", {}).get("schema")
    if schema:
        yield schema
