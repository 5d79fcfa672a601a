"""
Bodies that the edge leaves to their endpoints: what it still checks, and that it does not read them.
"""

import asyncio
import json
import re
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from controlplane.web.brand import Brands
from controlplane.web.edge import EdgeMiddleware, Gate, Upload
from controlplane.web.limits import Limiter

GATE = Gate(
    Limiter(1e6, 100_000), Brands(lambda host: None), (), 64, uploads=(Upload("PUT", re.compile(r"/v1/[^/]+/content"), 4096),)
)
OCTETS = {"content-type": "application/octet-stream"}


def call(method: str, path: str, headers: dict[str, str], pieces: list[bytes]) -> tuple[int, bytes, list[int]]:
    """Status and body of the answer, and how many pieces had been read when the endpoint was reached."""
    left, reached = list(pieces), list[int]()
    answer: dict[str, Any] = {"status": 0, "body": b""}

    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(len(pieces) - len(left))
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def receive() -> Message:
        piece = left.pop(0) if left else b""
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(message: Message) -> None:
        answer["status"] = message.get("status", answer["status"])
        answer["body"] += message.get("body", b"")

    sent = {"content-length": str(sum(map(len, pieces))), **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "client": ("192.0.2.1", 5000),
    }
    asyncio.run(EdgeMiddleware(echo, GATE)(scope, receive, send))
    return answer["status"], answer["body"], reached


def test_an_upload_reaches_its_endpoint_unread() -> None:
    """Bytes that are no JSON and larger than other bodies may be arrive as they come."""
    pieces = [b"\x00\xff" * 200, b"{" * 300]
    assert call("PUT", "/v1/a/content", OCTETS, pieces) == (200, b"".join(pieces), [0])


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"content-type": "application/json"}, 415, "unsupported_media_type"),
        ({}, 415, "unsupported_media_type"),
        ({**OCTETS, "content-encoding": "gzip"}, 415, "unsupported_encoding"),
        ({**OCTETS, "content-length": "4097"}, 413, "too_large"),
        ({**OCTETS, "content-length": "many"}, 400, "invalid_length"),
    ],
)
def test_an_upload_is_refused_by_its_headers(headers: dict[str, str], status: int, code: str) -> None:
    """Other types, encodings and declared lengths over the limit never reach the endpoint."""
    answered, body, reached = call("PUT", "/v1/a/content", headers, [b"x" * 10])
    assert (answered, json.loads(body)["code"], reached) == (status, code, [])


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/a/content"), ("PUT", "/v1/a/b/content"), ("PUT", "/v1/a/content/")])
def test_no_other_place_takes_bytes(method: str, path: str) -> None:
    """Everywhere else a body is JSON."""
    assert call(method, path, OCTETS, [b"x" * 10])[0] == 415
    assert call(method, path, {"content-type": "application/json"}, [b"[" + b"1," * 40 + b"1]"])[0] == 413
