"""
Routes for machines: they bring no API key but a token in their path, or are known by their own address.

Such a route has no permission that a role could hold. What stands in its place is explicit all the same: a `MachineRule` that names
what lets the caller in (`admit`), before any query is made. Everything that is not admitted is answered like a path that does not
exist. Nothing of these routes is audited, because no person acts; what they change is history of the machine's boot.

They are a table of their own, which the edge asks by the path's beginning: a thousand machines that start at once do not search the
API's routes, and the API's callers do not search theirs.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from anyio.to_thread import run_sync
from sqlalchemy import Engine
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from controlplane.kit.db import EVERYTHING, Errand, in_transaction, run_errand
from controlplane.kit.errors import DomainError, NotFound, Unavailable
from controlplane.web.problems import document, plain_problem, problem

log = logging.getLogger(__name__)
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
OCTETS = "application/octet-stream"
GZIP = "application/gzip"
Credential = Literal["boot_token", "address", "address_and_token"]
Method = Literal["GET", "POST", "PUT"]
PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


@dataclass(slots=True)
class MachineCall:
    """
    One admitted request inside its transaction.
    """

    session: Session
    """The one transaction of the request; it is committed before the answer leaves."""
    request: Request
    """As it came; its path may hold a token and must not be logged."""
    body: bytes
    """All of it."""
    nudges: list[tuple[str, str]] = field(default_factory=list)
    """(kind, id) to wake workers for after the commit."""


@dataclass(slots=True)
class MachineLook:
    """
    One admitted request whose question to the database was asked and answered before.
    """

    engine: Engine
    """For what must be written after all."""
    request: Request
    """As it came; its path may hold a token and must not be logged."""
    row: Any
    """What the question found."""

    def write(self, errand: Errand, given: Mapping[str, Any]) -> None:
        """
        The errand, which returns rows, is done and committed. Raises OperationalError.
        """
        run_errand(self.engine, EVERYTHING, errand, given)


@dataclass(frozen=True, slots=True)
class MachineReply:
    """
    The answer to a machine.
    """

    body: bytes
    """As sent."""
    media_type: str = "text/plain; charset=utf-8"
    """Its type."""
    status: int = 200
    """HTTP status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers."""
    pieces: Iterator[bytes] | None = None
    """The body instead, where it is too large to be held; read as it is sent."""


Handler = Callable[[MachineCall, Any], MachineReply]
Looker = Callable[[MachineLook, Any], MachineReply]


@dataclass(frozen=True, slots=True)
class MachineRule:
    """
    One route of machines and how it is guarded; tests walk these.
    """

    method: Method
    """HTTP method; HEAD is served where GET is."""
    path: str
    """With `{parameters}`; `{name:path}` reaches to the end."""
    credential: Credential
    """What the machine must have."""
    takes: str
    """Media type of the body; empty where there is none."""
    admit: Callable[[Request], Any]
    """Who calls; makes no query, raises kit.errors."""
    answer: Callable[[Request, Any], Response]
    """Answers in one thread hop."""
    pattern: re.Pattern[str]
    """Of the path."""


class MachineRoutes:
    """
    A table of routes, served as it is registered.
    """

    def __init__(self) -> None:
        self.rules: list[MachineRule] = []

    def route(
        self, method: Method, path: str, *, credential: Credential, admit: Callable[[Request], Any], takes: str = ""
    ) -> Callable[[Handler], Handler]:
        """
        The function is served at the path to whom `admit` answers for, in one thread hop and one transaction that sees everything. What
        `admit` answers is the function's second argument.
        """

        def register(function: Handler) -> Handler:
            self.rules.append(
                MachineRule(method, path, credential, takes, admit, partial(_in_one_transaction, function), _pattern(path))
            )
            return function

        return register

    def look(
        self,
        path: str,
        *,
        credential: Credential,
        admit: Callable[[Request], Any],
        question: Errand,
        asked: Callable[[Request, Any], Mapping[str, Any]],
    ) -> Callable[[Looker], Looker]:
        """
        The function is served at the path for GET, as by `route`, and is given what the question finds in one round trip; where it finds
        nothing, the answer is that of a path that does not exist. `asked` makes the question's parameters of the request and its caller.
        """

        def register(function: Looker) -> Looker:
            answer = partial(_by_errand, function, question, asked)
            self.rules.append(MachineRule("GET", path, credential, "", admit, answer, _pattern(path)))
            return function

        return register

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        The request is answered.
        """
        request = Request(scope, receive)
        rule = self._find(request)
        response = plain_problem(404, request.state.request_id) if rule is None else await run_sync(_serve, rule, request)
        await response(scope, receive, send)

    def _find(self, request: Request) -> MachineRule | None:
        path = request.scope["path"]
        for rule in self.rules:
            found = rule.pattern.fullmatch(path) if rule.method == request.method else None
            if found is not None:
                request.scope["path_params"] = found.groupdict()
                request.scope["route"] = rule  # what the log names instead of the path, which holds a token
                return rule
        return None


@dataclass(frozen=True, slots=True)
class Lane:
    """
    Paths that machines call: outside the budgets of addresses and keys, with limits of their own.
    """

    prefix: str
    """What the path begins with."""
    routes: MachineRoutes
    """What is served there; nothing else is."""
    max_body_bytes: int
    """Largest body."""
    media_types: frozenset[str] = frozenset({JSON, FORM, OCTETS, GZIP})
    """Types of bodies that may pass."""


def lane_of(lanes: Sequence[Lane], path: str) -> Lane | None:
    """
    The lane that the path lies in, or None.
    """
    return next((lane for lane in lanes if path.startswith(lane.prefix)), None)


def _pattern(path: str) -> re.Pattern[str]:
    parts = PARAMETER.split(path)
    literals, names, reaches = parts[0::3], parts[1::3], parts[2::3]
    groups = [f"(?P<{name}>{'.*' if reach else '[^/]+'})" for name, reach in zip(names, reaches, strict=True)]
    return re.compile("".join(re.escape(literal) + group for literal, group in zip(literals, [*groups, ""], strict=True)))


def _serve(rule: MachineRule, request: Request) -> Response:
    request_id: str = request.state.request_id
    try:
        who = rule.admit(request)
        if rule.takes and request.state.body and not _is_of(request, rule.takes):
            words = f"Send {rule.takes}."
            return document(415, "unsupported_media_type", "The body's type is not accepted", words, request_id)
        return rule.answer(request, who)
    except NotFound:
        return problem(NotFound(), request_id)  # in the same words, whatever was not found
    except DomainError as error:
        return problem(error, request_id)
    except (PoolTimeout, OperationalError, InterfaceError) as error:
        log.warning("database refused", extra={"kind": type(error).__name__})
        return problem(Unavailable("The database does not answer. Try again soon."), request_id)


def _is_of(request: Request, takes: str) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == takes


def _in_one_transaction(function: Handler, request: Request, who: Any) -> Response:
    edge = request.scope["app"].state.edge
    engine: Engine = edge.engine
    nudges: list[tuple[str, str]] = []

    def work(session: Session) -> MachineReply:
        call = MachineCall(session, request, request.state.body)
        reply = function(call, who)
        nudges[:] = call.nudges
        return reply

    reply = in_transaction(engine, EVERYTHING, work)
    if nudges:
        edge.nudge(nudges)
    return _response(reply, request)


def _by_errand(
    function: Looker, question: Errand, asked: Callable[[Request, Any], Mapping[str, Any]], request: Request, who: Any
) -> Response:
    engine: Engine = request.scope["app"].state.edge.engine
    rows = run_errand(engine, EVERYTHING, question, asked(request, who))
    if not rows:
        raise NotFound
    return _response(function(MachineLook(engine, request, rows[0]), who), request)


def _response(reply: MachineReply, request: Request) -> Response:
    if reply.pieces is not None and not getattr(request.state, "headless", False):
        return StreamingResponse(reply.pieces, reply.status, dict(reply.headers), reply.media_type)
    return Response(reply.body, reply.status, dict(reply.headers), reply.media_type)
