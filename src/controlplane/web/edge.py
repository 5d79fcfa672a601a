"""
The outermost layer of the API: every request passes it before anything else reads it, every answer on its way out.

Plain ASGI, so that streams stream and small requests cost microseconds.
"""

import asyncio
import contextlib
import functools
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import unquote_to_bytes

import anyio.to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.kit.errors import DomainError, FieldError, Invalid, NotFound
from controlplane.kit.ids import new_id
from controlplane.kit.logging import REQUEST_ID
from controlplane.web.brand import Brand, Brands
from controlplane.web.limits import Limiter, Ticket
from controlplane.web.machine import Lane, lane_of
from controlplane.web.payload import check_json
from controlplane.web.problems import document, plain_problem, problem
from controlplane.web.uploads import Upload, Written

log = logging.getLogger(__name__)
requests = logging.getLogger("controlplane.requests")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
SAFE_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{7,63}")
UNMETERED = frozenset({"/healthz", "/readyz"})
LONGEST_TARGET = 8192
MOST_HEADERS = 100
LONGEST_HEADERS = 32_768
ONLY_ONCE = frozenset({b"host", b"content-length", b"content-type", b"content-encoding", b"idempotency-key", b"if-match"})
WANTED = ONLY_ONCE | {b"transfer-encoding", b"x-forwarded-for", b"x-request-id", b"authorization"}
BYTES_PER_TOKEN = 65_536
DRAINED = 4
"""A body up to this many times the limit is read to its end and thrown away, so that the caller can read the refusal."""
BODY_DEADLINE_S = 30.0
DRAIN_DEADLINE_S = 2.0
PLAIN_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)


class Refused(DomainError):
    """
    A request that is turned away before any room could see it.
    """

    def __init__(self, status: int, code: str, title: str, detail: str) -> None:
        super().__init__(detail, code=code)
        self.status = status
        self.title = title


class Hung(Exception):
    """
    The caller has gone before its body was here.
    """


@dataclass(frozen=True, slots=True)
class Gate:
    """
    What the edge was told.
    """

    limiter: Limiter
    """Budgets of addresses, keys and tenants."""
    brands: Brands
    """Resellers' domains."""
    trusted: tuple[Network, ...]
    """Proxies whose X-Forwarded-For is believed."""
    max_body_bytes: int
    """Largest body that is read here."""
    lanes: tuple[Lane, ...] = ()
    """Paths of machines, which bring no key and have budgets of their own."""
    uploads: tuple[Upload, ...] = ()
    """Places whose bodies are read by their endpoints."""
    written: tuple[Written, ...] = ()
    """Places whose bodies are files of text."""

    def file(self, method: str, path: str) -> Written | None:
        """
        The place where a file of text is sent to; None for all others.
        """
        return next((at for at in self.written if at.method == method and at.path.fullmatch(path)), None)

    def upload(self, method: str, path: str) -> Upload | None:
        """
        The place where the endpoint reads the body itself; None where it is read here.
        """
        return next((at for at in self.uploads if at.method == method and at.path.fullmatch(path)), None)


@dataclass(slots=True)
class Seen:
    """
    The headers that the edge acts on.
    """

    host: str = ""
    """As sent."""
    request_id: str = ""
    """As sent."""
    forwarded: str = ""
    """All X-Forwarded-For, joined."""
    length: str = ""
    """Content-Length as sent."""
    has_body: bool = False
    """Whether a body may follow."""
    media_type: str = ""
    """Content-Type as sent."""
    encoding: str = ""
    """Content-Encoding as sent."""
    wrong: Refused | None = None
    """Why the request must be turned away for its headers alone."""

    def check(self) -> None:
        """
        Returns when the headers can be read. Raises Refused.
        """
        if self.wrong is not None:
            raise self.wrong


def trusted_networks(names: Sequence[str]) -> tuple[Network, ...]:
    """
    The networks by their names. Raises ValueError for what is none.
    """
    return tuple(ip_network(name) for name in names)


class Visit:
    """
    One request on its way through: what is known of it, and the way its answer leaves.
    """

    __slots__ = ("headless", "request_id", "scope", "started_at", "status", "ticket", "unread", "wire")

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self.scope = scope
        self.wire = send
        self.request_id = request_id
        self.started_at = time.perf_counter()
        self.status = 0
        self.headless = scope["method"] == "HEAD"
        self.ticket: Ticket | None = None
        self.unread = False

    async def send(self, message: Message) -> None:
        """
        The message has left, with the headers that every answer carries.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._headers(message.get("headers", ()))}
        elif self.headless and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self.wire(message)

    def _headers(self, given: Any) -> list[tuple[bytes, bytes]]:
        headers = [(name, value) for name, value in given if name.lower() != b"x-request-id"]
        present = {name.lower() for name, _ in headers}
        headers.append((b"x-request-id", self.request_id.encode()))
        headers.extend(pair for pair in PLAIN_HEADERS if pair[0] not in present)
        if self.ticket is not None:
            level = self.ticket.level
            headers.append((b"ratelimit-limit", b"%d" % level.limit))
            headers.append((b"ratelimit-remaining", b"%d" % level.remaining))
            headers.append((b"ratelimit-reset", b"%d" % (-(-level.reset_s // 1))))
        return headers


class EdgeMiddleware:
    """
    Wraps the application: admits, limits and checks requests, and answers for failures.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        The request is answered, whatever it was.
        """
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        seen = _look(scope["headers"])
        given = seen.request_id
        request_id = given if SAFE_REQUEST_ID.fullmatch(given) else new_id("req")
        visit = Visit(scope, send, request_id)
        visit.unread = seen.has_body
        token = REQUEST_ID.set(request_id)
        try:
            await self._serve(visit, seen, receive)
        finally:
            REQUEST_ID.reset(token)
            _write_line(visit)

    async def _serve(self, visit: Visit, seen: Seen, receive: Receive) -> None:
        scope = visit.scope
        state = scope.setdefault("state", {})
        state["request_id"] = visit.request_id
        state["client"] = client = client_address(scope.get("client"), seen.forwarded, self.gate.trusted)
        state["brand"] = None
        state["body"] = b""
        lane = lane_of(self.gate.lanes, scope["path"])
        try:
            if lane is not None:
                seen.check()
                check_target(scope)
            elif scope["path"] not in UNMETERED:
                visit.ticket = state["limiter"] = self.gate.limiter.admit(client)
                seen.check()
                check_target(scope)
                state["brand"] = await self._brand(seen.host)
            if seen.has_body:
                receive = await self._body(visit, seen, receive, lane)
            if visit.headless:
                scope["method"] = "GET"
                state["headless"] = True
            await (self.app if lane is None else lane.routes)(scope, receive, visit.send)
        except Hung:
            return
        except DomainError as error:
            await self._refuse(visit, error, receive)
        except Exception:
            log.exception("request failed", extra={"request_id": visit.request_id})
            if visit.status:
                raise
            await plain_problem(500, visit.request_id)(scope, receive, visit.send)
        if visit.status == 401:  # noqa: PLR2004
            self.gate.limiter.charge_failure(client)

    async def _brand(self, host: str) -> Brand | None:
        found = self.gate.brands.recall(host)
        if found is not None:
            return found.brand
        return await anyio.to_thread.run_sync(self.gate.brands.find, host)

    async def _refuse(self, visit: Visit, error: DomainError, receive: Receive) -> None:
        if isinstance(error, Refused):
            response = document(error.status, error.code, error.title, error.detail, visit.request_id)
        else:
            response = problem(error, visit.request_id)
        if visit.status == 0:
            if visit.unread:
                response.headers["Connection"] = "close"  # what is left of the body is not waited for
            await response(visit.scope, receive, visit.send)

    async def _body(self, visit: Visit, seen: Seen, receive: Receive, lane: Lane | None) -> Receive:
        """
        The way to read the body again, now that all of it is here and may be read; for an upload the way to read it for the first time.
        """
        upload = self.gate.upload(visit.scope["method"], visit.scope["path"])
        if upload is not None:
            if _length(seen.length) > upload.max_body_bytes:
                raise _too_large(upload.max_body_bytes)
            _check_octets(seen)
            return receive
        written = self.gate.file(visit.scope["method"], visit.scope["path"])
        limit = (written or lane or self.gate).max_body_bytes
        declared = _length(seen.length)
        if declared > limit * DRAINED:
            raise _too_large(limit)
        body = await _read(receive, limit)
        visit.unread = False
        visit.scope["state"]["body"] = body
        if body:
            _check_kind(seen, lane if written is None else written)
            if len(body) > BYTES_PER_TOKEN and visit.ticket is not None:
                visit.ticket = visit.scope["state"]["limiter"] = self.gate.limiter.admit(
                    visit.scope["state"]["client"], len(body) // BYTES_PER_TOKEN
                )
            if (lane is None and written is None) or seen.media_type.startswith("application/json"):
                check_json(body)
        return _again(body, receive)


def _look(headers: Sequence[tuple[bytes, bytes]]) -> Seen:
    """
    The headers that matter, and what is wrong with them. A doubled Authorization is as good as none.
    """
    found: dict[bytes, list[bytes]] = {}
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
        if name in WANTED:
            found.setdefault(name, []).append(value)

    def first(name: bytes) -> str:
        return found[name][0].decode("latin-1") if name in found else ""

    seen = Seen(
        host=first(b"host"),
        request_id=first(b"x-request-id"),
        forwarded=b",".join(found.get(b"x-forwarded-for", ())).decode("latin-1"),
        length=first(b"content-length"),
        has_body=b"transfer-encoding" in found or first(b"content-length") not in {"", "0"},
        media_type=first(b"content-type"),
        encoding=first(b"content-encoding"),
    )
    if len(headers) > MOST_HEADERS or size > LONGEST_HEADERS:
        detail = f"At most {MOST_HEADERS} headers of {LONGEST_HEADERS} bytes in all."
        seen.wrong = Refused(431, "headers_too_large", "The headers are too large", detail)
    doubled = [name for name in ONLY_ONCE.intersection(found) if len(found[name]) > 1]
    if doubled:
        detail = f"The header {min(doubled).decode()} stands twice."
        seen.wrong = Refused(400, "doubled_header", "The request cannot be read", detail)
    if len(found.get(b"authorization", ())) > 1 and isinstance(headers, list):
        headers[:] = [pair for pair in headers if pair[0] != b"authorization"]
    return seen


def client_address(peer: Sequence[Any] | None, forwarded: str, trusted: Sequence[Network]) -> Address | None:
    """
    Who really called: the peer, or, where the peer is a trusted proxy, the last address in X-Forwarded-For that is none.
    """
    address = parse_address(str(peer[0])) if peer else None
    if not trusted or not forwarded:
        return address
    for hop in reversed(forwarded.split(",")):
        if address is None or not any(address in network for network in trusted):
            return address
        nearer = parse_address(hop.strip())
        if nearer is None:
            return address
        address = nearer
    return address


@functools.lru_cache(maxsize=4096)
def parse_address(words: str) -> Address | None:
    """
    The address in the words, with or without a port, IPv4 inside IPv6 unwrapped; None when there is none.
    """
    if words.startswith("["):
        words = words[1:].partition("]")[0]
    elif words.count(":") == 1:
        words = words.partition(":")[0]
    try:
        address = ip_address(words)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def check_target(scope: Scope) -> None:
    """
    Returns when path and query are short, UTF-8 and without NUL. Raises Refused, NotFound for a path nothing can have, Invalid.
    """
    path: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    query: bytes = scope["query_string"]
    if len(path) + len(query) > LONGEST_TARGET:
        raise Refused(414, "target_too_long", "The address is too long", f"Path and query hold at most {LONGEST_TARGET} bytes.")
    if (b"%" in path or not path.isascii()) and not _is_text(path):
        raise NotFound
    if (b"%" in query or not query.isascii()) and not (query.isascii() and _is_text(query)):
        wrong = FieldError("query", "invalid_text", "Percent-encoded UTF-8 without NUL characters.")
        raise Invalid("The query is not valid text.", errors=[wrong])


def _is_text(quoted: bytes) -> bool:
    plain = unquote_to_bytes(quoted)
    if b"\0" in plain:
        return False
    try:
        plain.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _length(words: str) -> int:
    if not words:
        return 0
    if not (words.isascii() and words.isdigit()) or len(words) > 18:  # noqa: PLR2004 - digits of what fits into 64 bits
        raise Refused(400, "invalid_length", "The request cannot be read", "Content-Length is not a number of bytes.")
    return int(words)


def _check_encoding(seen: Seen) -> None:
    if seen.encoding and seen.encoding.strip().lower() != "identity":
        detail = "Send the body as it is, without Content-Encoding."
        raise Refused(415, "unsupported_encoding", "The body's encoding is not accepted", detail)


def _check_octets(seen: Seen) -> None:
    _check_encoding(seen)
    if seen.media_type.partition(";")[0].strip().lower() != "application/octet-stream":
        detail = "Send Content-Type: application/octet-stream."
        raise Refused(415, "unsupported_media_type", "The body's type is not accepted", detail)


def _check_kind(seen: Seen, takes: Lane | Written | None) -> None:
    _check_encoding(seen)
    kind, _, rest = seen.media_type.partition(";")
    kind = kind.strip().lower()
    if takes is not None and kind in takes.media_types:
        return
    if isinstance(takes, Written):
        detail = f"Send Content-Type: {' or '.join(sorted(takes.media_types))}."
        raise Refused(415, "unsupported_media_type", "The body's type is not accepted", detail)
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refused(415, "unsupported_media_type", "The body's type is not accepted", "Send Content-Type: application/json.")
    charset = rest.lower().partition("charset=")[2].strip().strip('"')
    if charset and charset not in {"utf-8", "utf8", "us-ascii"}:
        raise Refused(415, "unsupported_media_type", "The body's type is not accepted", "JSON travels as UTF-8.")


def _too_large(limit: int) -> Refused:
    return Refused(413, "too_large", "The request is too large", f"A body holds at most {limit} bytes.")


async def _read(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_DEADLINE_S) as deadline:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Hung
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size <= limit:
                    chunks.append(chunk)
                elif size > limit * DRAINED:
                    break
                elif size - len(chunk) <= limit:
                    chunks.clear()
                    deadline.reschedule(asyncio.get_running_loop().time() + DRAIN_DEADLINE_S)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        if size > limit:
            raise _too_large(limit) from None
        detail = f"The body was not here within {BODY_DEADLINE_S:.0f} s."
        raise Refused(408, "body_too_slow", "The body took too long", detail) from None
    if size > limit:
        raise _too_large(limit)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _again(body: bytes, receive: Receive) -> Receive:
    given = False

    async def read() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return read


def _write_line(visit: Visit) -> None:
    scope = visit.scope
    level = logging.DEBUG if scope["path"] in UNMETERED and visit.status < 400 else logging.INFO  # noqa: PLR2004
    if not requests.isEnabledFor(level):
        return
    state = scope.get("state", {})
    client = state.get("client")
    principal = state.get("principal")
    route = scope.get("route")
    with contextlib.suppress(Exception):  # a line that cannot be written must not fail the request
        requests.log(
            level,
            "request",
            extra={
                "request_id": visit.request_id,
                "method": "HEAD" if visit.headless else scope["method"],
                "route": getattr(route, "path", ""),
                "status": visit.status,
                "duration_ms": round((time.perf_counter() - visit.started_at) * 1000, 2),
                "principal_id": getattr(principal, "id", ""),
                "client": str(client) if client else "",
            },
        )
