"""
Contents on their way in and out: too large to be held, so they pass in pieces, through threads of their own.

An upload is three parts. A look, in a transaction that changes nothing, decides whether this caller may put bytes there; then the body is
poured without any transaction; then the endpoint's one transaction makes the bytes count. A download is a look, and then the pouring.
While bytes pass, neither a transaction nor a connection to the database is held, and the request threads of the API stay free.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Request
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from controlplane.kit.access import Principal
from controlplane.kit.db import raise_wall
from controlplane.kit.errors import DomainError, FieldError, Invalid
from controlplane.web.call import Call
from controlplane.web.edge import Hung, Refused
from controlplane.web.endpoint import Audience, Edge, Rule, answer_admitted, answer_in_transaction, check_allowed, declared_problem
from controlplane.web.problems import document, problem

log = logging.getLogger(__name__)
T = TypeVar("T")
OCTETS = "application/octet-stream"
BINARY = {"content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}}
PIECE_BYTES = 1024 * 1024
OPENED = 200
NOT_MODIFIED = 304
UNSATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class TransferTempo:
    """
    Times and counts of transfers.
    """

    idle_s: float = 30.0
    """Longest silence of a caller who sends."""
    longest_s: float = 600.0
    """Longest time for one body: whoever sends a chunk keeps others from sending theirs."""
    recheck_s: float = 10.0
    """Longest time on one acceptance of the credential while a content is read."""
    threads: int = 4
    """Pieces written or read at once in one process."""


class Sink(Protocol):
    """
    Where a body goes. Every method may block, and runs in a thread.
    """

    @property
    def length_bytes(self) -> int:
        """
        How many bytes must come, neither fewer nor more.
        """
        ...

    def write(self, data: bytes) -> None:
        """
        The next bytes are taken. Raises kit.errors.
        """
        ...

    def settle(self) -> None:
        """
        All bytes are here and last. Raises kit.errors.
        """
        ...

    def close(self) -> None:
        """
        Nothing is held any more. Called once, however it ended; must not block.
        """
        ...


class Source(Protocol):
    """
    What a download answers.
    """

    @property
    def status(self) -> int:
        """
        200, 206, 304 or 416.
        """
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """
        With Content-Length, where there is a body.
        """
        ...

    @property
    def pieces(self) -> Iterator[bytes]:
        """
        The body; taking a piece may block.
        """
        ...


@dataclass
class _Room:
    """
    What the transfers of one process share; lives in `app.state.transfers`.
    """

    tempo: TransferTempo
    """Times and counts."""
    threads: anyio.CapacityLimiter
    """The pool's size."""

    async def hop(self, work: Callable[[], T]) -> T:
        """
        The work's answer, from a thread.
        """
        return await run_sync(work, limiter=self.threads)


def upload_endpoint(
    router: APIRouter,
    path: str,
    *,
    begin: Callable[..., Sink],
    permission: str,
    audience: Audience,
    answer: type[BaseModel],
    summary: str,
    headers: Mapping[str, str],
    too_large: str,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    The function is served at the path as PUT of bytes: it gets the Call, the sink that took them, and the path's parameters, and makes
    them count. `begin` gets a Call whose transaction changes nothing, the request's headers and the path's parameters. `headers` says
    which of them it reads and what they are. The edge must know the path as an upload.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        rule = Rule(
            permission, audience, mutates=True, repeatable=False, works_suspended=False, lists=frozenset(), query=frozenset()
        )

        async def serve(**kwargs: Any) -> Response:
            return await _take(kwargs.pop("request_"), rule, begin, function, kwargs)

        _dress(serve, function, rule)
        router.add_api_route(
            path,
            serve,
            methods=["PUT"],
            response_model=answer,
            summary=summary,
            description=inspect.cleandoc(function.__doc__ or summary),
            operation_id=function.__name__,
            responses={**_problems({409}), 413: {**declared_problem(409), "description": too_large}},
            openapi_extra={
                **_told(rule, headers, required=True),
                "requestBody": {"required": True, "description": "The bytes as they are.", **BINARY},
            },
        )
        return function

    return register


def download_endpoint(
    router: APIRouter, path: str, *, permission: str, audience: Audience, summary: str, headers: Mapping[str, str]
) -> Callable[[Callable[..., Source]], Callable[..., Source]]:
    """
    The function is served at the path as GET of bytes: it gets a Call whose transaction changes nothing, the request's headers and the
    path's parameters. `headers` says which of them it reads and what they are.
    """

    def register(function: Callable[..., Source]) -> Callable[..., Source]:
        rule = Rule(
            permission, audience, mutates=False, repeatable=False, works_suspended=False, lists=frozenset(), query=frozenset()
        )

        async def serve(**kwargs: Any) -> Response:
            return await _give(kwargs.pop("request_"), rule, function, kwargs)

        _dress(serve, function, rule)
        router.add_api_route(
            path,
            serve,
            methods=["GET"],
            response_class=StreamingResponse,
            summary=summary,
            description=inspect.cleandoc(function.__doc__ or summary),
            operation_id=function.__name__,
            responses={
                **_problems({409, 416}),
                200: {"description": "All of it.", **BINARY},
                206: {"description": "The part that was asked for.", **BINARY},
                304: {"description": "The caller has it already."},
            },
            openapi_extra=_told(rule, headers, required=False),
        )
        return function

    return register


def _dress(serve: Callable[..., Any], function: Callable[..., Any], rule: Rule) -> None:
    """
    To FastAPI it is a function of the request and of the path's parameters, which follow the first two.
    """
    inner = list(inspect.signature(function).parameters.values())[2:]
    outer = [inspect.Parameter("request_", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    outer += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in inner]
    functools.update_wrapper(serve, function)
    served: Any = serve
    served.__signature__ = inspect.Signature(outer)
    served.__annotations__ = {one.name: one.annotation for one in outer} | {"return": Response}
    served.rule = rule


def _problems(more: Collection[int]) -> dict[int | str, dict[str, Any]]:
    return {code: declared_problem(code) for code in sorted({401, 403, 404, 422, 429, 503, *more})}


def _told(rule: Rule, headers: Mapping[str, str], *, required: bool) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]([ -~]*[!-~])?$"}
    parameters = [
        {"name": name, "in": "header", "required": required, "description": words, "schema": schema}
        for name, words in headers.items()
    ]
    return {
        "x-permission": rule.permission,
        "x-audience": rule.audience,
        "x-works-suspended": rule.works_suspended,
        "parameters": parameters,
    }


def _room(request: Request) -> _Room:
    found: _Room | None = getattr(request.app.state, "transfers", None)
    if found is None:
        tempo = getattr(request.app.state, "transfer_tempo", None) or TransferTempo()
        found = request.app.state.transfers = _Room(tempo, anyio.CapacityLimiter(tempo.threads))
    return found


def _looked(request: Request, rule: Rule, look: Callable[[Call], T], found: list[T]) -> Response:
    """
    What the look found is in the list when the answer's status is OPENED; else the answer is the problem.
    """

    def work(principal: Principal) -> Response:
        edge: Edge = request.app.state.edge
        with Session(edge.engine, expire_on_commit=False) as session:
            raise_wall(session, principal.wall)
            call = Call(session, principal, request.state.request_id, images=edge.images)
            found.append(look(call))
        return Response(status_code=OPENED)

    return answer_admitted(rule, request, work)


async def _take(
    request: Request, rule: Rule, begin: Callable[..., Sink], finish: Callable[..., Any], kwargs: dict[str, Any]
) -> Response:
    room, opened = _room(request), list[Sink]()
    look = functools.partial(_looked, request, rule, lambda call: begin(call, request.headers, **kwargs), opened)
    try:
        refusal = await room.hop(look)
        if refusal.status_code != OPENED:
            return refusal
        sink = opened[0]
        await _pour(request, sink, room)
        await room.hop(sink.settle)
        count = functools.partial(answer_in_transaction, finish, rule, OPENED, request, sink=sink, **kwargs)
        return await run_in_threadpool(count)
    except Refused:
        raise
    except DomainError as error:
        return problem(error, request.state.request_id)
    finally:
        for one in opened:
            one.close()


async def _pour(request: Request, sink: Sink, room: _Room) -> None:
    """
    Every byte of the body is in the sink, and there are as many as must be. Raises Invalid, Refused for one who is too slow, Hung.
    """
    ends_at = monotonic() + room.tempo.longest_s
    held, came = bytearray(), 0
    more = True
    while more:
        message = await _heard(request, min(room.tempo.idle_s, ends_at - monotonic()))
        body: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        came += len(body)
        if came > sink.length_bytes:
            raise _mismatch("body_too_long", f"The body holds more than the {sink.length_bytes} bytes that its place has.")
        held += body
        if len(held) >= PIECE_BYTES or (held and not more):
            await room.hop(functools.partial(sink.write, bytes(held)))
            held.clear()
    if came < sink.length_bytes:
        raise _mismatch("body_too_short", f"The body holds {came} bytes; its place has {sink.length_bytes}.")


async def _heard(request: Request, most_s: float) -> Any:
    try:
        async with asyncio.timeout(max(0.0, most_s)):
            message = await request.receive()
    except TimeoutError:
        detail = "The body did not come fast enough; send smaller chunks."
        raise Refused(408, "body_too_slow", "The body took too long", detail) from None
    if message["type"] == "http.disconnect":
        raise Hung
    return message


def _mismatch(code: str, words: str) -> Invalid:
    return Invalid(words, errors=[FieldError("body", code, words)])


async def _give(request: Request, rule: Rule, function: Callable[..., Source], kwargs: dict[str, Any]) -> Response:
    room, found = _room(request), list[Source]()
    look = functools.partial(_looked, request, rule, lambda call: function(call, request.headers, **kwargs), found)
    refusal = await room.hop(look)
    if refusal.status_code != OPENED:
        return refusal
    source = found[0]
    headers = {**source.headers, "X-Request-Id": request.state.request_id, "Cache-Control": "private, no-transform"}
    if source.status == UNSATISFIABLE:
        words = "The content has no byte of the range that was asked for."
        refused = document(UNSATISFIABLE, "range_not_satisfiable", "There is no such part", words, request.state.request_id)
        refused.headers.update(source.headers)
        return refused
    if source.status == NOT_MODIFIED or getattr(request.state, "headless", False):
        return Response(b"", source.status, headers)
    return _PouredResponse(_pieces(request, rule, source.pieces, room), source, headers)


class _PouredResponse(StreamingResponse):
    """
    A response that lets go of its source however it ends.
    """

    def __init__(self, pieces: AsyncIterator[bytes], source: Source, headers: Mapping[str, str]) -> None:
        super().__init__(pieces, source.status, headers)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            close = getattr(self._source.pieces, "close", None)
            if close is not None:
                close()


async def _pieces(request: Request, rule: Rule, pieces: Iterator[bytes], room: _Room) -> AsyncIterator[bytes]:
    accepted_at = monotonic()
    while piece := await room.hop(lambda: next(pieces, b"")):
        yield piece
        if monotonic() - accepted_at >= room.tempo.recheck_s:
            try:
                await room.hop(functools.partial(_accept, request, rule))
            except DomainError as error:
                log.info("download cut", extra={"code": error.code, "request_id": request.state.request_id})
                raise Hung from None
            accepted_at = monotonic()


def _accept(request: Request, rule: Rule) -> None:
    """
    Returns while the credential allows the download. Raises DomainError.
    """
    edge: Edge = request.app.state.edge
    brand = getattr(request.state, "brand", None)
    principal = edge.authenticator.authenticate(
        request.headers.get("authorization"), request.state.client, reseller_id=brand.reseller_id if brand else None
    )
    check_allowed(principal, rule, request)
