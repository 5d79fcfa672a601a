"""
One endpoint, one thread hop, one transaction.

`endpoint` turns a plain function into a FastAPI route. FastAPI parses and validates on the event loop; everything else (authentication,
authorisation, transaction, handler, audit, idempotency record, serialisation, commit) runs in a single hop to the thread pool, and
the answer leaves only after the commit.
"""

import functools
import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from starlette.responses import Response

from controlplane.kit import audit, crashpoints
from controlplane.kit.access import Authenticator, Principal
from controlplane.kit.clock import rfc3339, utc_now
from controlplane.kit.db import DEADLOCK, EVERYTHING, SERIALIZATION_FAILURE, constraint_name, raise_wall, sqlstate
from controlplane.kit.errors import Conflict, DomainError, FieldError, Forbidden, Invalid, NotFound, QuotaExceeded, Unavailable
from controlplane.kit.secrets import Sealer
from controlplane.web.call import Call, Reply
from controlplane.web.files import SentFile
from controlplane.web.problems import MEDIA_TYPE, problem, validation_problem
from controlplane.web.repeat import Remembered, Repeat, remember, reserve
from controlplane.web.waiting import WaitSeconds, answer_when_changed

log = logging.getLogger(__name__)
OPERATIONS_QUOTA = "operations_quota"
TRIES = 4
UNSTORABLE = frozenset({"22003", "22007", "22008", "22021", "22P05"})
"""SQL states of values that no column can hold: numbers, times and text out of range."""
OVERTAKEN = frozenset({"23503", "23505", "23P01"})
"""SQL states of constraints that catch two requests which both looked first."""
READ_ONLY = "25006"
MADE = frozenset({201, 202})
"""Answers to what makes something; a dry run, which makes nothing, answers 200."""
DRY = "With dry_run: what it would be. Nothing has changed."
Audience = Literal["operator", "reseller", "tenant", "any"]
LEVELS: dict[Audience, frozenset[str]] = {
    "operator": frozenset({"platform"}),
    "reseller": frozenset({"reseller", "platform"}),
    "tenant": frozenset({"tenant", "project"}),
    "any": frozenset({"platform", "reseller", "tenant", "project"}),
}
PROBLEMS: dict[int, str] = {
    401: "No accepted credential.",
    403: "The credential does not allow this.",
    404: "It does not exist, or this credential may not see it.",
    409: "The present state, a quota or the capacity does not allow this.",
    412: "If-Match names an older version.",
    416: "The content has no byte of the range.",
    422: "The request is malformed.",
    428: "If-Match is required.",
    429: "Too many requests.",
    503: "A part that is needed is down.",
}


@dataclass(frozen=True, slots=True)
class Edge:
    """
    What endpoints need of the application; stands in `app.state.edge`.
    """

    engine: Engine
    """The application role's engine."""
    authenticator: Authenticator
    """The identity room's."""
    nudge: Callable[[list[tuple[str, str]]], None]
    """Wakes workers for (kind, id); never blocks, never fails."""
    tenant_limits: Mapping[str, int | None] = field(default_factory=dict)
    """Quota of a tenant that is created without one, by resource; what is missing has no limit of its own."""
    sealer: Sealer | None = None
    """Seals secrets that callers hand in; none: this installation has no master key and takes none."""
    images: Any = None
    """The images room's depot, which only that room understands; none: this installation keeps no images."""
    credentials: Any = None
    """Asks providers for tenants' credentials; only the clusters room understands it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """
    How one route is guarded; tests walk these.
    """

    permission: str
    """`noun:verb`, or empty where any accepted credential will do."""
    audience: Audience
    """Which levels of keys may call it."""
    mutates: bool
    """Whether it changes anything: then it is audited."""
    repeatable: bool
    """Whether Idempotency-Key is honoured."""
    works_suspended: bool
    """Whether a suspended caller may still use it."""
    lists: frozenset[str]
    """Those that may be repeated."""
    query: frozenset[str]
    """Query parameters it knows."""


def endpoint(
    router: APIRouter,
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
    path: str,
    *,
    permission: str,
    audience: Audience = "tenant",
    status: int = 200,
    answer: type[BaseModel] | None = None,
    summary: str,
    problems: tuple[int, ...] = (),
    mutates: bool | None = None,
    dry_run: bool = False,
    tags: list[str] | None = None,
    works_suspended: bool | None = None,
    waits: frozenset[str] = frozenset(),
    also: dict[int, tuple[type[BaseModel], str]] | None = None,
    takes: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    The function is served at the path. Its first parameter is the `Call`; the rest is declared as FastAPI knows it. With `waits` the
    route has `wait_s`: while the resource's state is among these, the answer is held back until it changes. `takes` are the media types of
    a file of text, each with an example, which the function is given as a `SentFile`.
    """
    changes = method != "GET" if mutates is None else mutates

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        signature, known = _outer_signature(function, path, dry_run=dry_run, waits=bool(waits))
        rule = Rule(
            permission=permission,
            audience=audience,
            mutates=changes,
            repeatable=method == "POST",
            works_suspended=method == "DELETE" if works_suspended is None else works_suspended,
            lists=_lists_of(function),
            query=known,
        )

        @functools.wraps(function)
        def serve(*args: Any, **kwargs: Any) -> Response:
            return answer_in_transaction(function, rule, status, kwargs.pop("request_"), *args, **kwargs)

        served: Any = _held_back(serve, waits) if waits else serve
        served.__signature__ = signature
        served.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()} | {"return": Response}
        served.rule = rule
        declared = {401, 403, 422, 429, 503, *problems} | ({404} if "{" in path else set()) | ({409} if method == "POST" else set())
        dry = {200: (answer, DRY)} if dry_run and answer is not None and status in MADE else {}
        headers = _headers(rule, declared)
        router.add_api_route(
            path,
            served,
            methods=[method],
            status_code=status,
            response_model=answer,
            summary=summary,
            description=inspect.cleandoc(function.__doc__ or summary),
            operation_id=function.__name__,
            tags=list(tags) if tags else None,
            responses=_answers(declared, dry | dict(also or {})),
            openapi_extra=_described(rule, headers, takes or {}),
        )
        return function

    return register


def _described(rule: Rule, headers: list[dict[str, Any]], takes: Mapping[str, str]) -> dict[str, Any]:
    """
    What the OpenAPI document says of the route beside what FastAPI finds out by itself.
    """
    told: dict[str, Any] = {
        "x-permission": rule.permission,
        "x-audience": rule.audience,
        "x-works-suspended": rule.works_suspended,
    }
    if headers:
        told["parameters"] = headers
    if takes:
        content = {kind: {"schema": {"type": "string"}, "example": example} for kind, example in takes.items()}
        told["requestBody"] = {"required": True, "description": "The file as it is.", "content": content}
    return told


def _lists_of(function: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    return frozenset(_sent_name(one) for one in parameters if "list[" in str(one.annotation))


def _answers(declared: Collection[int], also: Mapping[int, tuple[type[BaseModel], str]]) -> dict[int | str, dict[str, Any]]:
    answers: dict[int | str, dict[str, Any]] = {code: declared_problem(code) for code in sorted(declared)}
    return answers | {code: {"model": model, "description": words} for code, (model, words) in also.items()}


def _held_back(serve: Callable[..., Response], waits: frozenset[str]) -> Callable[..., Any]:
    @functools.wraps(serve)
    async def wait(**kwargs: Any) -> Response:
        wait_s = kwargs.pop("wait_s")
        look = functools.partial(serve, **kwargs)
        return await answer_when_changed(kwargs["request_"], look, wait_s=wait_s, unsettled=waits)

    return wait


def _outer_signature(
    function: Callable[..., Any], path: str, *, dry_run: bool, waits: bool
) -> tuple[inspect.Signature, frozenset[str]]:
    inner = list(inspect.signature(function).parameters.values())[1:]
    outer = [inspect.Parameter("request_", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    known = set()
    for one in inner:
        if one.annotation is SentFile:
            outer.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=Depends(SentFile.of)))
            continue
        outer.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        is_body = inspect.isclass(one.annotation) and issubclass(one.annotation, BaseModel)
        if f"{{{one.name}}}" not in path and not is_body:
            known.add(_sent_name(one))
    if dry_run:
        flag = Query(False, description="Answer what would happen and change nothing.")
        outer.append(inspect.Parameter("dry_run", inspect.Parameter.KEYWORD_ONLY, default=flag, annotation=bool))
        known.add("dry_run")
    if waits:
        outer.append(inspect.Parameter("wait_s", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=WaitSeconds))
        known.add("wait_s")
    return inspect.Signature(outer), frozenset(known)


def _sent_name(parameter: inspect.Parameter) -> str:
    """
    The parameter's name on the wire: its alias where it has one.
    """
    declared = getattr(parameter.annotation, "__metadata__", ())
    return next((one.alias for one in declared if getattr(one, "alias", None)), parameter.name)


def declared_problem(code: int) -> dict[str, Any]:
    """
    The OpenAPI response object of a problem with this status.
    """
    return {"description": PROBLEMS[code], "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _headers(rule: Rule, declared: Collection[int]) -> list[dict[str, Any]]:
    headers = []
    if rule.repeatable:
        words = "A repeat with the same key and body within 24 h is given the first answer."
        schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
        headers.append({"name": "Idempotency-Key", "in": "header", "required": False, "description": words, "schema": schema})
    if 428 in declared:  # noqa: PLR2004
        words = "The ETag of the version that is meant; `*` for whichever is the present one."
        schema = {"type": "string", "minLength": 1, "maxLength": 255}
        headers.append(
            {"name": "If-Match", "in": "header", "required": False, "description": words, "schema": schema, "example": '"3"'}
        )
    return headers


def refuse_malformed(request: Request, error: RequestValidationError) -> Response:
    """
    The answer to a request whose body or parameters do not fit: its fields, or, for a caller who may not call here at all, that.
    """
    rule: Rule | None = getattr(getattr(request.scope.get("route"), "endpoint", None), "rule", None)
    refusal = validation_problem(error, request.state.request_id)
    return refusal if rule is None else answer_admitted(rule, request, lambda _: refusal)


def answer_in_transaction(function: Callable[..., Any], rule: Rule, status: int, request: Request, **kwargs: Any) -> Response:
    """
    The function's answer in one transaction of its own, committed before the answer leaves, for a caller whom the rule admits. Blocks.
    """
    edge: Edge = request.app.state.edge
    return answer_admitted(rule, request, lambda principal: _with_retries(edge, function, rule, status, request, principal, kwargs))


def answer_admitted(rule: Rule, request: Request, work: Callable[[Principal], Response]) -> Response:
    """
    The answer of the work for a caller whom the rule admits; otherwise, or when the database refuses, a problem. Blocks: never call it
    on the event loop.
    """
    request_id: str = request.state.request_id
    try:
        return _admitted(rule, request, work)
    except PoolTimeout:
        unavailable = Unavailable("All connections to the database are in use; the request changed nothing. Try again soon.")
        return problem(unavailable, request_id)
    except DBAPIError as error:
        known = _told(error)
        if known is None:
            raise
        log.warning("database refused", extra={"kind": type(error).__name__, "sqlstate": sqlstate(error)})
        return problem(known, request_id)


def _admitted(rule: Rule, request: Request, work: Callable[[Principal], Response]) -> Response:
    edge: Edge = request.app.state.edge
    principal: Principal | None = None
    try:
        brand = getattr(request.state, "brand", None)  # set where the host is a reseller's domain
        principal = edge.authenticator.authenticate(
            request.headers.get("authorization"), request.state.client, reseller_id=brand.reseller_id if brand else None
        )
        request.state.principal = principal
        # A suspended caller may still delete and stop things, and so may one who ran into the limit.
        request.state.limiter.check_key(principal, cheap=rule.mutates and rule.works_suspended)
        check_allowed(principal, rule, request)
        return work(principal)
    except DomainError as error:
        if principal is not None and rule.mutates and isinstance(error, (Forbidden, NotFound)):
            _audit_denied(edge, principal, rule, request, error)
        return problem(error, request.state.request_id)


def _told(error: DBAPIError) -> DomainError | None:
    """
    What a caller can be told of a database error; None when it is a fault of ours.
    """
    state = sqlstate(error)
    if state in UNSTORABLE:
        return Invalid("A value cannot be stored.")
    if constraint_name(error) == OPERATIONS_QUOTA:
        words = "As many operations as your quota allows are open; wait for some to end, or cancel them."
        return QuotaExceeded(words, resource="operations", scope=_scope_that_refused(error), requested=1)
    if state in OVERTAKEN:
        return Conflict("Another request changed this at the same time; look again.", code="changed_meanwhile", retry_after_s=1.0)
    if isinstance(error, (OperationalError, InterfaceError)) or error.connection_invalidated or state == READ_ONLY:
        return Unavailable("The database does not answer; the request changed nothing. Try again soon.")
    return None


def _scope_that_refused(error: DBAPIError) -> str:
    level = str(getattr(getattr(error.orig, "diag", None), "message_detail", ""))
    return level if level in {"tenant", "project"} else "provider"


def check_allowed(principal: Principal, rule: Rule, request: Request) -> None:
    """
    Returns when the rule lets the principal make this request. Raises Forbidden, Invalid for unknown query parameters.
    """
    if principal.suspended and not rule.works_suspended:
        raise Forbidden("The account is suspended: what it has can be read, stopped and deleted, nothing else.", code="suspended")
    if principal.scope_kind not in LEVELS[rule.audience]:
        raise Forbidden(f"This is for {rule.audience} keys.", code="wrong_audience")
    if rule.permission:
        principal.require(rule.permission)
    sent = Counter(name for name, _ in request.query_params.multi_items())
    repeated = [name for name, times in sent.items() if times > 1 and name in rule.query - rule.lists]
    if repeated:
        fields = [FieldError(f"query.{name[:60]}", "repeated_parameter", "Give this parameter once.") for name in repeated]
        raise Invalid(f"The query parameter {repeated[0][:60]!r} is given more than once.", errors=fields)
    unknown = sorted(set(request.query_params) - rule.query)
    if unknown:
        fields = [
            FieldError(f"query.{name[:60]}", "unknown_parameter", "This parameter is not known here.") for name in unknown[:20]
        ]
        raise Invalid(f"Unknown query parameter: {unknown[0][:60]!r}.", errors=fields)


def _with_retries(
    edge: Edge,
    function: Callable[..., Any],
    rule: Rule,
    status: int,
    request: Request,
    principal: Principal,
    kwargs: dict[str, Any],
) -> Response:
    dry_run = bool(kwargs.pop("dry_run", False))
    for attempt in range(TRIES):
        call = Call(
            session=Session(edge.engine, expire_on_commit=False),
            principal=principal,
            request_id=request.state.request_id,
            if_match=request.headers.get("if-match"),
            dry_run=dry_run,
            tenant_limits=edge.tenant_limits,
            sealer=edge.sealer,
            images=edge.images,
            credentials=edge.credentials,
        )
        try:
            with call.session:
                response = _in_one_transaction(function, rule, status, request, call, kwargs)
        except DBAPIError as error:
            if sqlstate(error) not in {SERIALIZATION_FAILURE, DEADLOCK} or attempt == TRIES - 1:
                raise
            time.sleep(0.01 * (attempt + 1))
            continue
        if call.nudges and not dry_run:
            edge.nudge(call.nudges)
        for action in call.after_commit:
            action()
        return response if call.finish is None or dry_run else _finished(call, response)
    raise AssertionError("unreachable")


def _in_one_transaction(
    function: Callable[..., Any], rule: Rule, status: int, request: Request, call: Call, kwargs: dict[str, Any]
) -> Response:
    session = call.session
    raise_wall(session, call.principal.wall)
    repeat = Repeat.of(request, call.principal) if rule.repeatable else None  # a malformed key is refused in a dry run too
    if repeat is not None and not call.dry_run:
        first = reserve(session, repeat)
        if first is not None:
            session.rollback()
            return _response(first.body, first.status, {**first.headers, "Idempotent-Replayed": "true"}, call)
    result = function(call, **kwargs)
    reply = result if isinstance(result, Reply) else Reply(result)
    body = b"" if reply.body is None else reply.body.model_dump_json(by_alias=True).encode()
    code = reply.status or (200 if call.dry_run and status in MADE else status)
    headers = dict(reply.headers) | ({"ETag": f'"{reply.etag}"'} if reply.etag is not None else {})
    if call.dry_run:
        session.rollback()
        return _response(body, code, headers, call)
    if repeat is not None:
        kept = body if reply.remembered is None else reply.remembered.model_dump_json(by_alias=True).encode()
        remember(session, repeat, Remembered(code, headers, kept))
    if rule.mutates:
        _audit_done(call, rule, request)
    crashpoints.reach("request.before_commit")
    _commit(session)
    crashpoints.reach("request.after_commit")
    return _response(body, code, headers, call)


def _finished(call: Call, response: Response) -> Response:
    """
    The answer with the body that is made now, after the commit; it is kept nowhere on its way.
    """
    assert call.finish is not None
    body = call.finish().model_dump_json(by_alias=True).encode()
    return _response(body, response.status_code, {"Cache-Control": "no-store"}, call)


def _commit(session: Session) -> None:
    try:
        session.commit()
    except (OperationalError, InterfaceError) as error:
        if sqlstate(error) in {SERIALIZATION_FAILURE, DEADLOCK}:
            raise
        detail = (
            "The connection broke while the change was stored, so it may be done. Repeat with the same Idempotency-Key, or look."
        )
        raise Unavailable(detail, code="outcome_unknown") from error


def _response(body: bytes, status: int, headers: dict[str, str], call: Call) -> Response:
    return Response(body, status, {**headers, "X-Request-Id": call.request_id}, "application/json" if body else None)


def _audit_done(call: Call, rule: Rule, request: Request) -> None:
    entry = audit.AuditEntry(
        actor=call.principal.id,
        action=rule.permission or f"self:{request.method.lower()}",
        target=call.audit_target or request.url.path,
        outcome="done",
        request_id=call.request_id,
        detail={"key_id": call.principal.key_id, **call.audit_detail},
    )
    audit.append(call.session, call.principal.audit_chain, entry, at=rfc3339(utc_now()))


def _audit_denied(edge: Edge, principal: Principal, rule: Rule, request: Request, error: DomainError) -> None:
    entry = audit.AuditEntry(
        actor=principal.id,
        action=rule.permission or f"self:{request.method.lower()}",
        target=request.url.path[:500],
        outcome="denied",
        request_id=request.state.request_id,
        detail={"key_id": principal.key_id, "code": error.code},
    )
    with Session(edge.engine) as session:
        raise_wall(session, EVERYTHING)
        audit.append(session, principal.audit_chain, entry, at=rfc3339(utc_now()))
        session.commit()
