"""
Server-sent events: the one place that is async.

A stream never holds a transaction, a connection or a thread between two looks: each look is one hop to a small thread pool of the
streams' own and one short transaction. The credential is accepted anew at least every `recheck_s`, so that a revoked key, a lost
role or a suspension ends open streams too.
"""

import functools
import inspect
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from controlplane.kit.access import Principal
from controlplane.kit.db import raise_wall
from controlplane.kit.errors import DomainError, FieldError, Invalid, TooMany
from controlplane.web.endpoint import Audience, Edge, Rule, answer_admitted, check_allowed, declared_problem
from controlplane.web.problems import problem
from controlplane.web.schemas import plain

log = logging.getLogger(__name__)
T = TypeVar("T")
LONGEST_POSITION = 200
OPENED = 200
EVENT_STREAM = "text/event-stream"

News = list[tuple[str, str, dict[str, Any]]]
"""(position behind it, event name, data), in order."""
Poll = Callable[[Session, Principal, str], tuple[News, bool]]
"""What is new since the position, and whether the stream is over. Runs in a transaction behind the principal's wall; raises kit.errors."""


@dataclass(frozen=True, slots=True)
class StreamTempo:
    """
    Times and counts of streams.
    """

    poll_s: float = 1.0
    """Between two looks that found nothing new."""
    recheck_s: float = 2.0
    """Longest time on one acceptance of the credential; the identity room's cache comes on top."""
    heartbeat_s: float = 15.0
    """A comment is sent after so long a silence, so that proxies keep the line and a dead one is noticed."""
    lifetime_s: float = 900.0
    """Then the stream is closed; the client goes on with Last-Event-ID."""
    per_principal: int = 16
    """Open streams of one principal in one process."""
    threads: int = 4
    """Looks under way at once in one process."""


@dataclass(frozen=True, slots=True)
class Stream:
    """
    What a stream handler answers.
    """

    poll: Poll
    """Finds what is new."""
    start: str = ""
    """Where a client without Last-Event-ID begins."""


@dataclass
class _Room:
    """
    What the streams of one process share; lives in `app.state.streams`.
    """

    tempo: StreamTempo
    """Times and counts."""
    threads: anyio.CapacityLimiter
    """The pool's size."""
    open: Counter[str] = field(default_factory=Counter)
    """Open streams by principal."""

    async def hop(self, work: Callable[[], T]) -> T:
        """
        The work's answer, from a thread.
        """
        return await run_sync(work, limiter=self.threads)


def stream_endpoint(
    router: APIRouter,
    path: str,
    *,
    permission: str,
    audience: Audience = "tenant",
    summary: str,
    events: Mapping[str, str],
    problems: tuple[int, ...] = (),
) -> Callable[[Callable[..., Stream]], Callable[..., Stream]]:
    """
    The function is served at the path as a stream of server-sent events. It gets the path and query parameters and answers a Stream;
    `events` says what each event is, for the OpenAPI document.
    """

    def register(function: Callable[..., Stream]) -> Callable[..., Stream]:
        inner = list(inspect.signature(function).parameters.values())
        known = frozenset(one.name for one in inner if f"{{{one.name}}}" not in path)
        rule = Rule(permission, audience, mutates=False, repeatable=False, works_suspended=False, lists=frozenset(), query=known)

        async def serve(**kwargs: Any) -> Response:
            request: Request = kwargs.pop("request_")
            stream = function(**kwargs)
            return await event_stream(request, stream.poll, rule=rule, start=stream.start)

        functools.update_wrapper(serve, function)
        outer = [inspect.Parameter("request_", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
        outer += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in inner]
        serve.__signature__ = inspect.Signature(outer)  # type: ignore[attr-defined]
        serve.__annotations__ = {one.name: one.annotation for one in outer} | {"return": Response}
        serve.rule = rule  # type: ignore[attr-defined]
        declared = {401, 403, 404, 422, 429, 503, *problems}
        said = "\n".join(f"- `{name}`: {words}" for name, words in events.items())
        router.add_api_route(
            path,
            serve,
            methods=["GET"],
            response_class=StreamingResponse,
            summary=summary,
            description=f"{inspect.cleandoc(function.__doc__ or summary)}\n\nEvents:\n{said}",
            operation_id=function.__name__,
            responses={
                200: {
                    "description": "Events, until the stream is over.",
                    "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
                },
                **{code: declared_problem(code) for code in sorted(declared)},
            },
            openapi_extra={
                "x-permission": permission,
                "x-audience": audience,
                "x-works-suspended": False,
                "parameters": [LAST_EVENT_ID],
            },
        )
        return function

    return register


LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "The id of the last event that was received: the stream goes on behind it.",
    "schema": {"type": "string", "maxLength": LONGEST_POSITION},
}


async def event_stream(request: Request, poll: Poll, *, rule: Rule, start: str = "") -> Response:
    """
    The answer to the request: a stream of what `poll` finds from Last-Event-ID (or `start`) on, or a problem.
    """
    room = _room(request)
    watch = _Watch(request, poll, rule, request.headers.get("last-event-id") or start)
    refusal = await room.hop(watch.open)
    if watch.principal is None or refusal.status_code != OPENED:
        return refusal
    if room.open[watch.principal.id] >= room.tempo.per_principal:
        words = f"{room.tempo.per_principal} streams are open with this credential; close one first."
        return problem(TooMany(words, limit=room.tempo.per_principal, retry_after_s=5.0), request.state.request_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Request-Id": request.state.request_id}
    if getattr(request.state, "headless", False):
        answer = Response(headers=headers, media_type=EVENT_STREAM)  # a HEAD came here as a GET; nobody would read the events
        del answer.headers["Content-Length"]
        return answer
    return _HeldResponse(room, watch.principal.id, _frames(room, watch), headers)


def _room(request: Request) -> _Room:
    found: _Room | None = getattr(request.app.state, "streams", None)
    if found is None:
        tempo = getattr(request.app.state, "stream_tempo", None) or StreamTempo()
        found = request.app.state.streams = _Room(tempo, anyio.CapacityLimiter(tempo.threads))
    return found


class _HeldResponse(StreamingResponse):
    """
    A response that counts as an open stream while it is sent, however it ends.
    """

    def __init__(self, room: _Room, principal_id: str, frames: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(frames, headers=headers, media_type=EVENT_STREAM)
        self._room = room
        self._principal_id = principal_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._room.open[self._principal_id] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._room.open[self._principal_id] -= 1
            if not self._room.open[self._principal_id]:
                del self._room.open[self._principal_id]


class _Watch:
    """
    One stream's looks at the database; its methods run in a thread.
    """

    def __init__(self, request: Request, poll: Poll, rule: Rule, position: str) -> None:
        self.position = position
        self.news: News = []
        self.over = False
        self.principal: Principal | None = None
        self._request = request
        self._edge: Edge = request.app.state.edge
        self._poll = poll
        self._rule = rule
        self._accepted_at = 0.0

    def open(self) -> Response:
        """
        The credential is accepted and the first look taken, when the answer's status is OPENED; else it is the problem.
        """
        return answer_admitted(self._rule, self._request, self._open)

    def _open(self, principal: Principal) -> Response:
        if len(self.position) > LONGEST_POSITION or not self.position.isprintable():
            wrong = FieldError("header.Last-Event-ID", "invalid_position", "Send the id of an event of this stream.")
            raise Invalid("The position is not one of ours.", errors=[wrong])
        self.principal, self._accepted_at = principal, monotonic()
        self._look(principal)
        return Response(status_code=OPENED)

    def look(self, recheck_s: float) -> None:
        """
        The news are those since the last look. Raises DomainError when the credential does not allow it any more.
        """
        if self.principal is None or monotonic() - self._accepted_at >= recheck_s:
            self.principal = self._accept()
        self._look(self.principal)

    def _accept(self) -> Principal:
        self._accepted_at = monotonic()
        brand = getattr(self._request.state, "brand", None)
        principal = self._edge.authenticator.authenticate(
            self._request.headers.get("authorization"), self._request.state.client, reseller_id=brand.reseller_id if brand else None
        )
        check_allowed(principal, self._rule, self._request)
        return principal

    def _look(self, principal: Principal) -> None:
        with Session(self._edge.engine, expire_on_commit=False) as session:
            raise_wall(session, principal.wall)
            self.news, self.over = self._poll(session, principal, self.position)
            session.commit()  # a rollback would throw away the connection's prepared statements
        if self.news:
            self.position = self.news[-1][0]


async def _frames(room: _Room, watch: _Watch) -> AsyncIterator[bytes]:
    tempo = room.tempo
    opened_at = spoke_at = monotonic()
    yield b"retry: 2000\n\n"
    while True:
        for position, event, data in watch.news:
            yield frame(position, event, data)
            spoke_at = monotonic()
        if watch.over or monotonic() - opened_at >= tempo.lifetime_s:
            return
        if monotonic() - spoke_at >= tempo.heartbeat_s:
            yield b": still here\n\n"
            spoke_at = monotonic()
        if not watch.news:
            await anyio.sleep(tempo.poll_s)
        try:
            await room.hop(functools.partial(watch.look, tempo.recheck_s))
        except DomainError as error:
            log.info("stream closed", extra={"code": error.code, "request_id": watch._request.state.request_id})  # noqa: SLF001 - one module
            return
        except (DBAPIError, PoolTimeout):
            return  # closed rather than silent: the client comes back with its position


def frame(position: str, event: str, data: Mapping[str, Any]) -> bytes:
    """
    One event on the wire; JSON never holds a raw line end, so one data line is enough.
    """
    return f"id: {position}\nevent: {event}\ndata: {json.dumps(plain(dict(data)))}\n\n".encode()
