"""
The edge around a small application: what passes, what is turned away, what every answer carries.
"""

import asyncio
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from controlplane.kit.errors import Unavailable
from controlplane.web.brand import Brands
from controlplane.web.edge import EdgeMiddleware, Gate, client_address, trusted_networks
from controlplane.web.limits import Limiter

LIMIT = 4096
Headers = Sequence[tuple[bytes, bytes]]


@dataclass
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def code(self) -> str:
        """The problem's code."""
        return str(json.loads(self.body)["code"])


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Tells what reached it; fails when asked to."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if scope["path"] == "/fail":
        raise RuntimeError("a secret of ours")
    state = scope["state"]
    told = {
        "method": scope["method"],
        "client": str(state["client"]),
        "request_id": state["request_id"],
        "body": body.decode(),
        "brand": state["brand"],
        "bearers": sum(1 for name, _ in scope["headers"] if name == b"authorization"),
    }
    await send(
        {"type": "http.response.start", "status": 401 if scope["path"] == "/401" else 200, "headers": [(b"x-request-id", b"?")]}
    )
    await send({"type": "http.response.body", "body": json.dumps(told).encode()})


def gate(*, trusted: Sequence[str] = (), rate: float = 1e6, burst: int = 100_000, brands: Brands | None = None) -> Gate:
    """An edge with a small limit on bodies."""
    return Gate(Limiter(rate, burst), Brands(lambda host: None) if brands is None else brands, trusted_networks(trusted), LIMIT)


def call(
    path: str = "/x",
    *,
    method: str = "GET",
    headers: Headers = (),
    chunks: Sequence[bytes] = (),
    query: bytes = b"",
    edge: EdgeMiddleware | None = None,
    raw: bytes | None = None,
    peer: str = "192.0.2.1",
    log: list[int] | None = None,
) -> Answer:
    """One request through the edge; `log` gets the sizes of the body's pieces that were read."""
    sent = list(headers)
    if chunks and not any(name in {b"content-length", b"transfer-encoding"} for name, _ in sent):
        sent.append((b"content-length", b"%d" % sum(map(len, chunks))))
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode() if raw is None else raw,
        "query_string": query,
        "headers": sent,
        "client": (peer, 5000),
    }
    left, answer = list(chunks), Answer()

    async def receive() -> Message:
        if not left:
            return {"type": "http.request", "body": b"", "more_body": False}
        piece = left.pop(0)
        if log is not None:
            log.append(len(piece))
        return {"type": "http.request", "body": piece, "more_body": bool(left)}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]

    asyncio.run((edge or EdgeMiddleware(echo, gate()))(scope, receive, send))
    return answer


JSON = [(b"content-type", b"application/json")]


def test_a_body_arrives_as_it_was_sent() -> None:
    """The application reads the same bytes, however they were cut."""
    for chunks in ([b'{"a": [1, 2]}'], [b'{"a"', b": [1,", b" 2]}"]):
        answer = call(method="POST", headers=JSON, chunks=chunks)
        assert (answer.status, json.loads(answer.body)["body"]) == (200, '{"a": [1, 2]}')


def test_every_answer_carries_the_same_headers() -> None:
    """Good answers, problems and failures name the request, the budget and the rules for browsers."""
    for answer in (call(), call(query=b"%00"), call("/fail"), call(method="POST", headers=JSON, chunks=[b"{"])):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-request-id"].startswith("req_")
        assert {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"} <= set(answer.headers)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"trace-0123456789", True), (b"a" * 65, False), (b"short", False), (b"x y z 1234567", False), (b'"><script>12345', False)],
)
def test_a_callers_request_id_is_kept_when_it_is_harmless(given: bytes, kept: bool) -> None:  # noqa: FBT001
    """A plain id is taken over; anything else is replaced by one of ours."""
    answer = call(headers=[(b"x-request-id", given)])
    assert (answer.headers["x-request-id"] == given.decode()) is kept
    assert json.loads(answer.body)["request_id"] == answer.headers["x-request-id"]


def test_failures_say_nothing_of_us(caplog: pytest.LogCaptureFixture) -> None:
    """An exception becomes a 500 with a code and an id; its words go to the log only."""
    with caplog.at_level(logging.ERROR):
        answer = call("/fail")
    assert (answer.status, answer.code) == (500, "internal")
    assert b"secret" not in answer.body
    assert b"RuntimeError" not in answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert "a secret of ours" in caplog.text


@pytest.mark.parametrize(
    ("headers", "chunks", "status", "code"),
    [
        ([*JSON, (b"content-length", b"99999999999")], [b"{}"], 413, "too_large"),
        ([*JSON, (b"content-length", b"5000")], [b" " * 5000], 413, "too_large"),
        ([*JSON, (b"transfer-encoding", b"chunked")], [b" " * 1000] * 5, 413, "too_large"),
        ([*JSON, (b"content-length", b"-1")], [b"{}"], 400, "invalid_length"),
        ([*JSON, (b"content-encoding", b"gzip")], [b"\x1f\x8b"], 415, "unsupported_encoding"),
        ([(b"content-type", b"text/plain")], [b"{}"], 415, "unsupported_media_type"),
        ([(b"content-type", b"multipart/form-data; boundary=x")], [b"--x"], 415, "unsupported_media_type"),
        ([(b"content-type", b"application/json; charset=utf-16")], [b"{}"], 415, "unsupported_media_type"),
        ([], [b"{}"], 415, "unsupported_media_type"),
        (JSON, [b'{"a":1,"a":2}'], 422, "invalid_request"),
        ([(b"idempotency-key", b"a"), (b"idempotency-key", b"b")], [], 400, "doubled_header"),
        ([(b"x-%d" % n, b"v") for n in range(101)], [], 431, "headers_too_large"),
        ([(b"x", b"v" * 40_000)], [], 431, "headers_too_large"),
    ],
)
def test_what_cannot_be_read_is_refused(headers: Headers, chunks: list[bytes], status: int, code: str) -> None:
    """Sizes, encodings, kinds and headers out of bounds are told apart before any room sees them."""
    answer = call(method="POST", headers=headers, chunks=chunks)
    assert (answer.status, answer.code) == (status, code)


def test_a_huge_body_is_not_read() -> None:
    """With a length nothing is read; without, reading stops soon after the limit, and the connection is closed."""
    log: list[int] = []
    chunks = [b" " * LIMIT] * 1000
    answer = call(method="POST", headers=[*JSON, (b"content-length", b"%d" % (LIMIT * 1000))], chunks=chunks, log=log)
    assert (answer.status, answer.headers["connection"], log) == (413, "close", [])
    answer = call(method="POST", headers=[*JSON, (b"transfer-encoding", b"chunked")], chunks=chunks, log=log)
    assert (answer.status, len(log)) == (413, 5)


@pytest.mark.parametrize("raw", [b"/v1/x%00", b"/v1/%ff", b"/v1/%c0%80", b"/v1/%ed%a0%80", b"/v1/\xff"])
def test_paths_that_are_no_text_do_not_exist(raw: bytes) -> None:
    """A path that no resource can have answers as any unknown one."""
    answer = call(raw=raw)
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("query", [b"a=%00", b"a=%ff", b"%ed%a0%80=1", b"a=\xff", b"a=%c0%80"])
def test_queries_that_are_no_text_are_refused(query: bytes) -> None:
    """NUL, broken UTF-8 and surrogates in a query are a malformed request."""
    answer = call(query=query)
    assert (answer.status, answer.code) == (422, "invalid_request")


def test_long_targets_are_refused() -> None:
    """Path and query together hold 8 KiB; ordinary percent-encoding is fine."""
    assert call(query=b"a=" + b"x" * 8192).status == 414
    assert call(query=b"a=%C3%A9+b&c=%F0%9F%9A%80").status == 200


def test_head_is_get_without_a_body() -> None:
    """HEAD reaches the application as GET; the answer has its headers and no body."""
    answer = call(method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


def test_two_credentials_are_none() -> None:
    """A request with two Authorization headers reaches the application without any."""
    both = [(b"authorization", b"Bearer a"), (b"authorization", b"Bearer b")]
    assert json.loads(call(headers=both).body)["bearers"] == 0
    assert json.loads(call(headers=both[:1]).body)["bearers"] == 1


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.1", "198.51.100.9", "192.0.2.1"),
        ("10.0.0.5", "198.51.100.9", "198.51.100.9"),
        ("10.0.0.5", "203.0.113.66, 198.51.100.9", "198.51.100.9"),
        ("10.0.0.5", "203.0.113.66, 198.51.100.9, 10.0.0.6", "198.51.100.9"),
        ("10.0.0.5", "198.51.100.9:4711", "198.51.100.9"),
        ("10.0.0.5", "[2001:db8::9]:4711", "2001:db8::9"),
        ("10.0.0.5", "198.51.100.9, nonsense", "10.0.0.5"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("::ffff:192.0.2.1", "", "192.0.2.1"),
    ],
)
def test_only_trusted_proxies_are_believed(peer: str, forwarded: str, client: str) -> None:
    """The client is the peer, or what the nearest trusted proxy saw; what stands further left may be made up."""
    assert str(client_address((peer, 1), forwarded, trusted_networks(["10.0.0.0/8"]))) == client
    assert str(client_address((peer, 1), forwarded, ())) == str(client_address((peer, 1), "", ()))


@given(forwarded=st.lists(st.ip_addresses(), min_size=1, max_size=5))
def test_a_made_up_address_is_never_taken_from_a_stranger(forwarded: list[object]) -> None:
    """Whatever a caller writes into the header, it stays who it is."""
    words = ",".join(map(str, forwarded))
    assert str(client_address(("192.0.2.1", 1), words, trusted_networks(["10.0.0.0/8"]))) == "192.0.2.1"


def test_forged_addresses_do_not_get_round_the_limit() -> None:
    """A thousand requests under a thousand made-up addresses are limited as one client's; through the proxy each has its own."""
    names = (b"x-forwarded-for", b"forwarded", b"x-real-ip")

    def statuses(peer: str) -> list[int]:
        edge = EdgeMiddleware(echo, gate(trusted=["10.0.0.0/8"], rate=0.001, burst=2))
        return [
            call(edge=edge, peer=peer, headers=[(name, b"198.51.%d.%d" % divmod(n, 256)) for name in names]).status
            for n in range(1000)
        ]

    direct = statuses("192.0.2.1")
    assert (direct.count(200), direct.count(429)) == (10, 990)
    assert statuses("10.0.0.5").count(429) == 0


def test_refused_credentials_use_up_the_address() -> None:
    """After some 401s the address gets 429 with a time, whatever it sends next; probes of health still pass."""
    edge = EdgeMiddleware(echo, gate(rate=0.001, burst=8))
    statuses = [call("/401", edge=edge).status for _ in range(4)]
    assert statuses == [401, 401, 429, 429]
    last = call(edge=edge)
    assert last.status == 429
    assert int(last.headers["retry-after"]) >= 1
    assert call("/healthz", edge=edge).status == 200


def test_brands_are_remembered_and_bounded() -> None:
    """A host is looked up once in half a minute; strangers do not fill the memory; addresses are not looked up at all."""
    asked: list[str] = []
    now = [0.0]

    def look_up(host: str) -> None:
        asked.append(host)

    brands = Brands(look_up, clock=lambda: now[0])
    edge = EdgeMiddleware(echo, gate(brands=brands))
    for host in (b"GPU.example", b"gpu.example:8080", b"gpu.example.", b"127.0.0.1:80", b"[::1]:80", b"localhost", b""):
        assert call(edge=edge, headers=[(b"host", host)]).status == 200
    assert asked == ["gpu.example"]
    now[0] = 31.0
    call(edge=edge, headers=[(b"host", b"gpu.example")])
    assert asked == ["gpu.example"] * 2
    for n in range(3000):
        brands.find(f"h{n}.example")
    assert len(brands) <= 1024


def test_a_domain_nobody_can_look_up_is_not_served_under_our_name() -> None:
    """When the database is away a known domain stays what it was, and an unknown one is a failure, not the platform's page."""
    down = [False]

    def look_up(host: str) -> None:
        if down[0]:
            raise Unavailable("The database does not answer.")

    now = [0.0]
    edge = EdgeMiddleware(echo, gate(brands=Brands(look_up, clock=lambda: now[0])))
    assert call(edge=edge, headers=[(b"host", b"gpu.example")]).status == 200
    down[0], now[0] = True, 100.0
    assert call(edge=edge, headers=[(b"host", b"gpu.example")]).status == 200
    assert call(edge=edge, headers=[(b"host", b"other.example")]).status == 503


def test_the_edge_costs_little() -> None:
    """A small request passes the edge in far less than a millisecond of work."""
    edge = EdgeMiddleware(echo, gate())
    headers = [*JSON, (b"host", b"127.0.0.1"), (b"authorization", b"Bearer x"), (b"content-length", b"13")]

    async def many() -> float:
        async def receive() -> Message:
            return {"type": "http.request", "body": b'{"a": [1, 2]}', "more_body": False}

        async def send(message: Message) -> None:
            pass

        best = 1.0
        for _ in range(20):
            started_at = time.perf_counter()
            for _ in range(20):
                scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x", "query_string": b"", "headers": headers}
                await edge(scope, receive, send)
            best = min(best, (time.perf_counter() - started_at) / 20)
        return best

    assert asyncio.run(many()) < 400e-6
