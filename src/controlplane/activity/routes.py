"""
Operations, what needs a person, events and the audit over HTTP.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from controlplane.activity import service
from controlplane.activity.schemas import (
    AttentionOut,
    AuditEntryOut,
    Dotted,
    EventFeed,
    IdFilter,
    OperationOut,
    OperationState,
    PageLimit,
    PageToken,
    Resolved,
    VerificationOut,
)
from controlplane.kit.operations import ACTIVE
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import GivenMoment, ListOf
from controlplane.web.streams import Stream, stream_endpoint

router = APIRouter(tags=["activity"])
OPERATIONS = "/v1/operations"
ADMIN_OPERATION = "/v1/admin/operations/{operation_id}"
Chain = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=60,
        pattern=r"^[a-z0-9_]+$",
        description="For operators: a tenant's or a reseller's id, or `platform`.",
        examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    ),
]
TypeFilter = Annotated[Dotted, Query(description="Only of this type.", examples=["cluster.create"])]
StateFilter = Annotated[OperationState | None, Query(description="Only in this state.", examples=["running"])]


@endpoint(
    router,
    "GET",
    OPERATIONS,
    permission="operations:read",
    audience="any",
    answer=ListOf[OperationOut],
    summary="List operations",
    works_suspended=True,
)
def list_operations(
    call: Call,
    state: StateFilter = None,
    type: TypeFilter = None,  # noqa: A002 - the parameter's name on the wire
    resource_id: IdFilter = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[OperationOut]:
    """
    Long-running changes, oldest first: those of the key's project, tenant or tenants.
    """
    which = service.OperationFilter(state, type, resource_id)
    return _operations(call, which, PageAsk(limit, page_token))


def _operations(call: Call, which: service.OperationFilter, ask: PageAsk) -> ListOf[OperationOut]:
    page = service.list_operations(call.session, call.principal, which, ask).map(OperationOut.of)
    return ListOf[OperationOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    OPERATIONS + "/{operation_id}",
    permission="operations:read",
    audience="any",
    answer=OperationOut,
    summary="Show an operation, or wait for it",
    waits=frozenset(ACTIVE),
    works_suspended=True,
)
def get_operation(call: Call, operation_id: str) -> Reply:
    """
    The operation with its steps. With `wait_s` the answer comes when the state has changed, or when the time is up.
    """
    row = service.get_operation(call.session, call.principal, operation_id)
    return Reply(OperationOut.of(row), etag=row.version)


@endpoint(
    router,
    "POST",
    OPERATIONS + "/{operation_id}/actions/cancel",
    permission="operations:cancel",
    audience="any",
    status=202,
    answer=OperationOut,
    summary="Cancel an operation",
    works_suspended=True,
)
def cancel_operation(call: Call, operation_id: str) -> Reply:
    """
    The order is called off: billing never starts, what was begun is undone, and the operation ends as cancelled once nothing is left.
    Only orders that do not run yet can be cancelled.
    """
    row = service.cancel_operation(call.session, call.principal, operation_id)
    call.audit_target, call.audit_detail = row.resource_id, {"operation_id": row.id}
    call.nudge(row.resource_kind, row.resource_id)
    return Reply(OperationOut.of(row), etag=row.version)


@endpoint(
    router,
    "GET",
    "/v1/admin/operations",
    permission="operations:read",
    audience="operator",
    answer=ListOf[OperationOut],
    summary="List everybody's operations",
)
def list_all_operations(
    call: Call,
    state: StateFilter = None,
    type: TypeFilter = None,  # noqa: A002 - the parameter's name on the wire
    resource_id: IdFilter = None,
    tenant_id: Annotated[IdFilter, Query(description="Only of this tenant.")] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[OperationOut]:
    """
    Long-running changes of all tenants and of the fleet, oldest first; `state=needs_attention` are those that wait for a person.
    """
    which = service.OperationFilter(state, type, resource_id, tenant_id)
    return _operations(call, which, PageAsk(limit, page_token))


def _verb(path: str, summary: str, answer: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return endpoint(
        router, "POST", path, permission="operations:resolve", audience="operator", status=202, answer=answer, summary=summary
    )


def _resolve(call: Call, operation_id: str, verb: Literal["resume", "retry", "abandon"]) -> Reply:
    row = service.resolve_operation(call.session, call.principal, operation_id, verb)
    call.audit_target, call.audit_detail = row.resource_id, {"action": verb, "operation_id": row.id}
    call.nudge(row.resource_kind, row.resource_id)
    return Reply(OperationOut.of(row), etag=row.version)


@_verb(ADMIN_OPERATION + "/actions/resume", "Let an operation go on", OperationOut)
def resume_operation(call: Call, operation_id: str) -> Reply:
    """
    The state goes on where it stood, with a new deadline and no attempt counted.
    """
    return _resolve(call, operation_id, "resume")


@_verb(ADMIN_OPERATION + "/actions/retry", "Start an operation's state again", OperationOut)
def retry_operation(call: Call, operation_id: str) -> Reply:
    """
    The state starts afresh, with a new deadline and no attempt counted.
    """
    return _resolve(call, operation_id, "retry")


@_verb(ADMIN_OPERATION + "/actions/abandon", "Give an operation up", OperationOut)
def abandon_operation(call: Call, operation_id: str) -> Reply:
    """
    The operation has failed, and its resource with all that follows: nodes go back, quota is returned. Refused where something that may
    still cost money would be forgotten.
    """
    return _resolve(call, operation_id, "abandon")


@endpoint(
    router,
    "GET",
    "/v1/admin/attention",
    permission="operations:read",
    audience="operator",
    answer=ListOf[AttentionOut],
    summary="List what needs a person",
)
def list_attention(
    call: Call,
    kind: Annotated[service.KindName | None, Query(description="Only of this kind.", examples=["node"])] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[AttentionOut]:
    """
    Nodes, clusters and jobs that failed for good or stay too long, deletes that were not confirmed, and providers that are silent.
    """
    page = service.list_attention(call.session, kind, PageAsk(limit, page_token)).map(AttentionOut.model_validate)
    return ListOf[AttentionOut](items=list(page.items), next_page_token=page.next_page_token)


def _settle(call: Call, resource_id: str, verb: Literal["resume", "retry", "abandon"]) -> Resolved:
    kind = service.resolve_resource(call.session, resource_id, verb)
    call.audit_target, call.audit_detail = resource_id, {"action": verb}
    call.nudge(kind, resource_id)
    return Resolved(kind=kind, id=resource_id, action=verb)


@_verb("/v1/admin/attention/{resource_id}/actions/resume", "Let a resource go on", Resolved)
def resume_resource(call: Call, resource_id: str) -> Resolved:
    """
    As for an operation, for a resource that has none.
    """
    return _settle(call, resource_id, "resume")


@_verb("/v1/admin/attention/{resource_id}/actions/retry", "Start a resource's state again", Resolved)
def retry_resource(call: Call, resource_id: str) -> Resolved:
    """
    As for an operation, for a resource that has none.
    """
    return _settle(call, resource_id, "retry")


@_verb("/v1/admin/attention/{resource_id}/actions/abandon", "Give a resource up", Resolved)
def abandon_resource(call: Call, resource_id: str) -> Resolved:
    """
    As for an operation, for a resource that has none.
    """
    return _settle(call, resource_id, "abandon")


@endpoint(router, "GET", "/v1/events", permission="events:read", audience="any", answer=EventFeed, summary="List what happened")
def list_events(
    call: Call,
    after: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="A position: only what comes behind it.", examples=["NzQxLjE3"]),
    ] = None,
    type: Annotated[Dotted, Query(description="Only of this type.", examples=["cluster.running"])] = None,  # noqa: A002 - as on the wire
    resource_id: IdFilter = None,
    limit: PageLimit = 50,
) -> EventFeed:
    """
    What happened in the key's project, tenant or tenants, in an order that never changes and without gaps: keep `next_after`, and go on
    from it whenever you like.
    """
    which = service.EventFilter(type, resource_id)
    return EventFeed.of(service.list_events(call.session, call.principal, which, after=after, limit=limit))


@stream_endpoint(
    router,
    "/v1/events/stream",
    permission="events:read",
    audience="any",
    summary="Follow what happens",
    events={
        "start": "The stream begins here; sent when no position was given.",
        "<type>": "What happened, named by its type: {type, resource_kind, resource_id, tenant_id, project_id, at, data}.",
    },
)
def stream_events(
    after: Annotated[
        str | None,
        Query(min_length=1, max_length=200, description="A position to begin behind; now when left out.", examples=["NzQxLjE3"]),
    ] = None,
    type: Annotated[Dotted, Query(description="Only of this type.", examples=["cluster.running"])] = None,  # noqa: A002 - as on the wire
    resource_id: IdFilter = None,
) -> Stream:
    """
    The same as server-sent events. The id of each is its position: send it back as `Last-Event-ID` to go on where a connection broke.
    """
    return Stream(partial(service.follow_events, which=service.EventFilter(type, resource_id)), after or "")


@endpoint(
    router,
    "GET",
    "/v1/audit-events",
    permission="audit:read",
    audience="any",
    answer=ListOf[AuditEntryOut],
    summary="List the audit",
    problems=(404,),
)
def list_audit_events(
    call: Call,
    chain: Chain = None,
    actor: Annotated[IdFilter, Query(description="Only by this principal.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])] = None,
    action: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=60,
            pattern=r"^[a-z_]+:[a-z_]+$",
            description="Only this permission.",
            examples=["clusters:create"],
        ),
    ] = None,
    outcome: Annotated[
        Literal["done", "denied", "failed"] | None, Query(description="Only with this end.", examples=["denied"])
    ] = None,
    created_after: Annotated[GivenMoment | None, Query(description="Only younger ones.", examples=["2026-03-01T00:00:00Z"])] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[AuditEntryOut]:
    """
    Every change, denied attempt and override by keys of the tenant or reseller, oldest first.
    """
    which = service.EntryFilter(actor, action, outcome, created_after)
    page = service.list_entries(call.session, call.principal, chain, which, PageAsk(limit, page_token)).map(AuditEntryOut.of)
    return ListOf[AuditEntryOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/audit-events/verification",
    permission="audit:read",
    audience="any",
    answer=VerificationOut,
    summary="Verify the audit",
    problems=(404,),
)
def verify_audit_events(call: Call, chain: Chain = None) -> VerificationOut:
    """
    Every hash of the chain has been computed anew from the stored bytes. Of a chain of more than 100 000 entries only the first ones are.
    """
    return VerificationOut.of(service.verify_chain(call.session, call.principal, chain))
