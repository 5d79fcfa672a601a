"""
Routes for machines: they bring no API key but a token in their path, or are known by their own address.

Such a route has no permission that a role could hold. What stands in its place is explicit all the same: a `MachineRule` that names
who is let in (`admit`) before any query is made. Everything that is not admitted is answered like a path that does not exist. Nothing
of these routes is audited, because no person acts; what they change is history of the machine's boot.
"""

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import APIRouter, Request
from sqlalchemy import Engine
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from starlette.responses import Response

from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.errors import DomainError, Unavailable
from controlplane.web.problems import document, problem

log = logging.getLogger(__name__)
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
OCTETS = "application/octet-stream"
Credential = Literal["boot_token", "address", "address_and_token"]


@dataclass(frozen=True, slots=True)
class Lane:
    """
    Paths that machines call: outside the budgets of addresses and keys, with limits of their own.
    """

    prefix: str
    """What the path begins with."""
    max_body_bytes: int
    """Largest body."""
    media_types: frozenset[str] = frozenset({JSON, FORM, OCTETS})
    """Types of bodies that may pass."""


def lane_of(lanes: Sequence[Lane], path: str) -> Lane | None:
    """
    The lane that the path lies in, or None.
    """
    return next((lane for lane in lanes if path.startswith(lane.prefix)), None)


@dataclass(frozen=True, slots=True)
class MachineRule:
    """
    How one route of machines is guarded; tests walk these.
    """

    credential: Credential
    """What the machine must have."""
    takes: str
    """Media type of the body; empty where there is none."""


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


def machine_endpoint(
    router: APIRouter,
    method: Literal["GET", "POST", "PUT"],
    path: str,
    *,
    credential: Credential,
    admit: Callable[[Request], Any],
    takes: str = "",
) -> Callable[[Callable[[MachineCall, Any], MachineReply]], Callable[[MachineCall, Any], MachineReply]]:
    """
    The function is served at the path to whom `admit` answers for, in one thread hop and one transaction that sees everything. `admit`
    makes no query and raises kit.errors; what it answers is the function's second argument.
    """

    def register(function: Callable[[MachineCall, Any], MachineReply]) -> Callable[[MachineCall, Any], MachineReply]:
        @functools.wraps(function)
        def serve(request: Request) -> Response:
            request_id: str = request.state.request_id
            try:
                who = admit(request)
                if takes and request.state.body and not _is_of(request, takes):
                    return document(415, "unsupported_media_type", "The body's type is not accepted", f"Send {takes}.", request_id)
                return _in_one_transaction(function, request, who)
            except DomainError as error:
                return problem(error, request_id)
            except (PoolTimeout, OperationalError, InterfaceError) as error:
                log.warning("database refused", extra={"kind": type(error).__name__})
                return problem(Unavailable("The database does not answer. Try again soon."), request_id)

        served: Any = serve
        served.__annotations__ = {"request": Request, "return": Response}
        del served.__wrapped__  # else the signature that FastAPI reads is the inner one
        served.rule = MachineRule(credential, takes)
        router.add_api_route(
            path, served, methods=[method], include_in_schema=False, operation_id=function.__name__, response_model=None
        )
        return function

    return register


def _is_of(request: Request, takes: str) -> bool:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == takes


def _in_one_transaction(function: Callable[[MachineCall, Any], MachineReply], request: Request, who: Any) -> Response:
    engine: Engine = request.app.state.edge.engine
    nudges: list[tuple[str, str]] = []

    def work(session: Session) -> MachineReply:
        call = MachineCall(session, request, request.state.body)
        reply = function(call, who)
        nudges[:] = call.nudges
        return reply

    reply = in_transaction(engine, EVERYTHING, work)
    if nudges:
        request.app.state.edge.nudge(nudges)
    return Response(reply.body, reply.status, dict(reply.headers), reply.media_type)
