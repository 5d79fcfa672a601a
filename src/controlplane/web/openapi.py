"""
The OpenAPI document as a product: what FastAPI derives from the routes, put into words for people and for generators of clients.
"""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, Response

from controlplane.web.brand import Brand
from controlplane.web.docs import page
from controlplane.web.endpoint import PROBLEMS
from controlplane.web.problems import MEDIA_TYPE
from controlplane.web.schemas import Problem

VERSION = "1.0.0"
NAME = "GPU cloud"
MOST_KEPT = 64
REF = "#/components/schemas/"
LIST = re.compile(r"^ListOf_(\w+?)(?:Out)?_$")
QUALIFIED = re.compile(r"^controlplane__(\w+?)__(?:\w+__)?([A-Z]\w*)$")
INTRODUCTION = """
Order GPU clusters, run jobs on them and read what they cost. One inventory, one quota and one meter for all products.

## Authentication

Send an API key with every request: `Authorization: Bearer <key>`. A key belongs to one user or service account and to one place
(a tenant, a project); it may be narrowed to permissions and networks, and it may expire. Each operation names the permission it
needs in `x-permission` and the keys it is for in `x-audience`. A key is shown once, when it is made.

A suspended account can still find, stop and delete what it has: projects, clusters with their nodes, jobs, operations, usage and
quotas are shown to it, and deletes and cancels are served. Those operations say `x-works-suspended: true`; the rest answers 403 with
the code `suspended`. What is held goes on to cost until it is deleted.

## Changes that take time

What touches hardware answers 202 with the resource and its operation; `Location` points to the resource. Ask the operation for its
steps, or wait for the next change with `wait_s`. One operation at a time is active on a resource: another change answers 409 and
names the one that is active.

## Repeating safely

Send an `Idempotency-Key` of your choice with every POST. A repeat with the same key and the same body within 24 hours is given the
first answer, marked `Idempotent-Replayed: true`, and changes nothing; with another body it answers 422, and 409 while the first is
still being served.

## Versions

Resources that cost money carry an `ETag`. Send it as `If-Match` with a change or a delete: without it the answer is 428, and 412
when somebody else changed the resource meanwhile.

## Lists

Lists answer `items` and `next_page_token`. Send the token as `page_token` for the next page; `limit` is 50 and at most 200. What is
made while you read appears at the end, never twice and never in between.

## Errors

Every error is `application/problem+json` with a stable `code`, the `request_id` to name when you ask for help, the fields that were
refused in `errors`, and in `retry` whether and when the same request can succeed. What does not exist and what a key may not see
answer alike. Unknown fields and unknown query parameters are refused.

## Limits

Every answer tells the present budget in `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` (seconds until it is full).
Over it the answer is 429 with `Retry-After`. Deleting and stopping have a budget of their own. A body holds at most 1 MiB of JSON in
UTF-8, 32 levels and 20,000 values; only files of machines, and the content of images in chunks, are sent as they are.

## Values

Times are RFC 3339 in UTC, durations end in `_s`, sizes in `_bytes` or `_gib`. Money is a decimal number as text with its currency.
Ids are opaque and never change.
""".strip()
TAGS = {
    "Clusters": "Nodes turned into a product: ordered, grown, shrunk and deleted as one.",
    "Jobs": "Work with an end, on a cluster: submitted, watched, cancelled, with its output.",
    "Services": "Work without an end, on a cluster: kept up in replicas, rolled out in versions, scaled, with its output.",
    "Checkpoints": "What jobs have saved of their work: where it is, whether it is good, and how long it is kept.",
    "Projects": "A tenant's units that own resources.",
    "Images": "Operating systems: uploaded in chunks, checked, and served to machines.",
    "Catalog": "What can be ordered, where, and how much of it is free.",
    "Calculators": "Sizes, times and fits of training and serving, with formula, assumptions and source.",
    "Quotas": "How much may be held at once, and how much is.",
    "Usage": "What was held, by the second, and what it costs.",
    "Operations": "Long-running changes: their steps, how they ended, and how to stop them.",
    "Events": "What happened, in order: to be read from any position, or streamed.",
    "Audit": "Who did what, in a chain that shows any later edit.",
    "Account": "The tenant itself, its members and who a key belongs to.",
    "API keys": "Credentials: made, rotated, revoked.",
    "Reselling": "For resellers: their customers, quotas, keys and usage.",
    "Administration": "For the operator: the fleet, the providers, the tree and the prices.",
    "Health": "What is up.",
}
NOUN_TAGS = {
    "clusters": "Clusters",
    "jobs": "Jobs",
    "services": "Services",
    "checkpoint-policy": "Checkpoints",
    "projects": "Projects",
    "images": "Images",
    "calculators": "Calculators",
    "quotas": "Quotas",
    "usage": "Usage",
    "prices": "Usage",
    "operations": "Operations",
    "events": "Events",
    "audit-events": "Audit",
    "api-keys": "API keys",
    "members": "Account",
    "tenant": "Account",
    "whoami": "Account",
    "roles": "Account",
    "healthz": "Health",
    "readyz": "Health",
}
EDGE_PROBLEMS = {
    "413": "The body is larger than 1 MiB.",
    "415": "The body is not JSON in UTF-8 without a content encoding.",
    "default": "Any other problem, for example an address or headers that are too long.",
}
PROBLEMS_OF = {str(code): words for code, words in PROBLEMS.items()} | EDGE_PROBLEMS
PROBLEM_CONTENT = {MEDIA_TYPE: {"schema": {"$ref": REF + "Problem"}}}
OPEN = frozenset({"/healthz", "/readyz"})
HEADERS: dict[str, Any] = {
    "X-Request-Id": {"description": "Names this request; your own when you sent one.", "schema": {"type": "string"}},
    "RateLimit-Limit": {"description": "Requests that the budget holds.", "schema": {"type": "integer"}},
    "RateLimit-Remaining": {"description": "Requests left now.", "schema": {"type": "integer"}},
    "RateLimit-Reset": {"description": "Seconds until the budget is full.", "schema": {"type": "integer"}},
    "Retry-After": {"description": "Seconds after which the request can succeed.", "schema": {"type": "integer"}},
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src https:; frame-ancestors 'none'",
}


class Documents:
    """
    The document and the page made of it, as each domain shows them; made once per brand.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._whole: dict[str, Any] | None = None
        self._kept: dict[Brand | None, tuple[bytes, str]] = {}

    def of(self, brand: Brand | None) -> tuple[bytes, str]:
        """
        The document as JSON and as a page.
        """
        kept = self._kept.get(brand)
        if kept is None:
            if self._whole is None:
                self._whole = build(self._app)
            shown = branded(self._whole, brand)
            kept = (json.dumps(shown, separators=(",", ":")).encode(), page(shown, brand))
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[brand] = kept
        return kept


def mount_documents(app: FastAPI) -> None:
    """
    The document stands at /openapi.json and reads as a page at /docs, on every domain under its own name.
    """
    documents = Documents(app)

    def get_document(request: Request) -> Response:
        return Response(documents.of(request.state.brand)[0], media_type="application/json")

    def get_page(request: Request) -> Response:
        return HTMLResponse(documents.of(request.state.brand)[1], headers=PAGE_HEADERS)

    app.add_api_route("/openapi.json", get_document, include_in_schema=False)
    app.add_api_route("/docs", get_page, include_in_schema=False)


def build(app: FastAPI) -> dict[str, Any]:
    """
    The whole document of the application, for every audience.
    """
    document = get_openapi(title=f"{NAME} API", version=VERSION, description=INTRODUCTION, routes=app.routes)
    document["servers"] = [{"url": "/", "description": "This domain"}]
    document["security"] = [{"apiKey": []}]
    components = document.setdefault("components", {})
    components["headers"] = HEADERS
    components["securitySchemes"] = {
        "apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, as shown once when it was made."}
    }
    schemas = components.setdefault("schemas", {})
    problem = Problem.model_json_schema(ref_template=REF + "{model}")
    schemas.update(problem.pop("$defs", {}))
    schemas["Problem"] = problem
    for path, method, operation in operations(document):
        told = _complete(operation, tag_of(path), open_to_all=path in OPEN, changes=method != "get")
        components.setdefault("responses", {}).update(told)
    _list_tags(document)
    return _renamed(document)


def branded(whole: dict[str, Any], brand: Brand | None) -> dict[str, Any]:
    """
    The document as a domain shows it: a reseller's has its name and nothing of the operator's.
    """
    document = copy.deepcopy(whole)
    if brand is None:
        return document
    document["info"]["title"] = f"{brand.name} API"
    if brand.support_email:
        document["info"]["contact"] = {"name": brand.name, "email": brand.support_email}
    for path, method, operation in list(operations(document)):
        if operation.get("x-audience") == "operator" or path in OPEN:
            del document["paths"][path][method]
    document["paths"] = {path: item for path, item in document["paths"].items() if item}
    _list_tags(document)
    _drop_unused(document)
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """
    Every (path, method, operation) of the document.
    """
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def tag_of(path: str) -> str:
    """
    The heading under which a path is found.
    """
    parts = [part for part in path.split("/") if part and not part.startswith("{") and part != "v1"]
    if parts[0] == "admin":
        return "Administration"
    if parts[0] == "reseller":
        return "Reselling"
    if parts[0] == "projects" and "checkpoints" in parts:
        return "Checkpoints"
    if parts[0] == "projects" and len(parts) > 1:
        return NOUN_TAGS.get(parts[1], "Projects")
    return NOUN_TAGS.get(parts[0], "Catalog")


def _complete(operation: dict[str, Any], tag: str, *, open_to_all: bool, changes: bool) -> dict[str, Any]:
    """
    The problems that the operation may answer with, by component name; it refers to them now.
    """
    operation["tags"] = [tag]
    responses = operation["responses"]
    if open_to_all:
        operation["security"] = []
    wanted = EDGE_PROBLEMS if "requestBody" in operation else {"default": EDGE_PROBLEMS["default"]}
    problems = {}
    edge = {code: {"description": words} for code, words in wanted.items() if code not in responses}
    for code, response in [*responses.items(), *edge.items()]:
        if code == "default" or code >= "400":
            name = f"Problem{code.title()}" if PROBLEMS_OF.get(code) == response["description"] else operation["operationId"]
            problems[name] = {"description": response["description"], "content": PROBLEM_CONTENT}
            if code in {"429", "503"}:
                problems[name]["headers"] = {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}
            responses[code] = {"$ref": f"#/components/responses/{name}"}
            continue
        if response.get("description") == "Successful Response":
            response["description"] = "Accepted; the change goes on." if code == "202" else "Done." if changes else "As it is now."
        names = ["X-Request-Id"] if open_to_all else [name for name in HEADERS if name != "Retry-After"]
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    operation["responses"] = dict(sorted(responses.items()))
    return problems


def _list_tags(document: dict[str, Any]) -> None:
    used = {tag for _, _, operation in operations(document) for tag in operation["tags"]}
    document["tags"] = [{"name": name, "description": words} for name, words in TAGS.items() if name in used]


def _renamed(document: dict[str, Any]) -> dict[str, Any]:
    """
    The document with schema names that read well in a generated client and tell nothing of our modules.
    """
    schemas = document["components"]["schemas"]
    names = {name: _pleasant(name) for name in schemas}
    if len(set(names.values())) != len(names):
        names = {name: one if list(names.values()).count(one) == 1 else name for name, one in names.items()}
    text = re.sub(
        re.escape(f'"{REF}') + r'([^"]+)"',
        lambda found: f'"{REF}{names.get(found.group(1), found.group(1))}"',
        json.dumps(document),
    )
    changed: dict[str, Any] = json.loads(text)
    changed["components"]["schemas"] = {names[name]: schema for name, schema in changed["components"]["schemas"].items()}
    for name, schema in changed["components"]["schemas"].items():
        schema["title"] = name
    return changed


def _pleasant(name: str) -> str:
    listed = LIST.match(name)
    if listed:
        return f"{listed.group(1)}List"
    qualified = QUALIFIED.match(name)
    if qualified:
        return qualified.group(1).title().replace("_", "") + qualified.group(2)
    return name


def _drop_unused(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    reached: set[str] = set()
    told = set(re.findall(r'"#/components/responses/([^"]+)"', json.dumps(document["paths"])))
    document["components"]["responses"] = {name: one for name, one in document["components"]["responses"].items() if name in told}
    waiting = _referred([document["paths"], document["components"]["responses"]])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting |= _referred(schemas[name])
    document["components"]["schemas"] = {name: schema for name, schema in schemas.items() if name in reached}


def _referred(part: Any) -> set[str]:
    return set(re.findall(re.escape(f'"{REF}') + r'([^"]+)"', json.dumps(part)))
