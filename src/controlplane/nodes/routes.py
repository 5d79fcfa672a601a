"""
The fleet over HTTP: nodes and providers for operators, availability for everybody.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query

from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk
from controlplane.nodes import rotating, service
from controlplane.nodes.enrolment_routes import router as enrolment
from controlplane.nodes.health_routes import router as health
from controlplane.nodes.schemas import (
    ActionsOut,
    AvailabilityList,
    AvailabilityOut,
    HoldOut,
    HoldPlace,
    MoveOut,
    NodeAct,
    NodeOut,
    PageLimit,
    PageToken,
    ProviderOut,
    ProviderRegister,
    ProviderUpdate,
    RotateAsk,
    WipeOut,
)
from controlplane.nodes.states import NODE_STATES
from controlplane.nodes.wire import EnrollBody, Enrolled
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf, Out

T = TypeVar("T", bound=Out)
router = APIRouter(tags=["nodes"])
router.include_router(health)
router.include_router(enrolment)
NODES = "/v1/admin/nodes"
NODE = NODES + "/{node_id}"
PROVIDERS = "/v1/admin/providers"
PROVIDER = PROVIDERS + "/{provider_id}"

StateName = Literal[NODE_STATES.names()]  # type: ignore[valid-type]
NameFilter = Annotated[str | None, Query(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9_.-]+$", description="Only these.")]


@endpoint(
    router,
    "GET",
    "/v1/availability",
    permission="availability:read",
    audience="any",
    answer=AvailabilityList,
    summary="Show what is free",
)
def list_availability(
    call: Call,
    site: Annotated[NameFilter, Query(description="Only in this site.", examples=["osl1"])] = None,
    instance_type: Annotated[NameFilter, Query(description="Only of this type.", examples=["hgx-h100-8"])] = None,
) -> AvailabilityList:
    """
    How much of each instance type is free in each site, as a level, with the age of what is known. Operators see the count too.
    """
    counts = call.principal.scope_kind == "platform"
    found = service.availability(call.session, site, instance_type)
    return AvailabilityList(items=[AvailabilityOut.of(one, counts=counts) for one in found])


@endpoint(
    router, "GET", NODES, permission="nodes:read", audience="operator", answer=ListOf[NodeOut], summary="List the fleet's nodes"
)
def list_nodes(
    call: Call,
    state: Annotated[StateName | None, Query(description="Only in this state.", examples=["quarantined"])] = None,  # type: ignore[valid-type]
    site: Annotated[NameFilter, Query(description="Only in this site.", examples=["osl1"])] = None,
    instance_type: Annotated[NameFilter, Query(description="Only of this type.", examples=["hgx-h100-8"])] = None,
    provider_id: Annotated[NameFilter, Query(description="Only of this provider.")] = None,
    tenant_id: Annotated[NameFilter, Query(description="Only those that this tenant holds.")] = None,
    attention: Annotated[bool | None, Query(description="Only those that need a person, or only the others.")] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[NodeOut]:
    """
    Nodes with their tenancies and holds, oldest first.
    """
    which = service.NodeFilter(state, site, instance_type, provider_id, attention, tenant_id)
    return _listed(service.list_nodes(call.session, which, PageAsk(limit, page_token)).map(NodeOut.of))


@endpoint(router, "POST", NODES, permission="nodes:write", audience="operator", status=202, answer=Enrolled, summary="Enroll nodes")
def enroll_nodes(call: Call, body: EnrollBody) -> Enrolled:
    """
    Machines of a provider are known by name, and are inspected, checked and wiped before they are available. Known ones are left alone.
    """
    ids = service.enroll_from(call.session, body.provider_id, [one.new() for one in body.nodes], call.sealer)
    call.audit_target = body.provider_id
    call.audit_detail = {"enrolled": len(ids), "asked": len(body.nodes)}
    for one in ids[:1]:  # one call is enough: workers look for all that is due
        call.nudge("node", one)
    return Enrolled(enrolled=ids, known=len(body.nodes) - len(ids))


@endpoint(router, "GET", NODE, permission="nodes:read", audience="operator", answer=NodeOut, summary="Show a node")
def get_node(call: Call, node_id: str) -> Reply:
    """
    The node with who holds it, what keeps it out of placement, what inspection found and the provider's own words.
    """
    view = service.get_node(call.session, node_id)
    return Reply(NodeOut.of(view), etag=view.row.version)


@endpoint(
    router,
    "GET",
    NODE + "/history",
    permission="nodes:read",
    audience="operator",
    answer=ListOf[MoveOut],
    summary="List a node's moves",
)
def list_node_history(call: Call, node_id: str, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[MoveOut]:
    """
    Every move between two states, oldest first.
    """
    service.get_node(call.session, node_id)
    return _listed(service.history_of(call.session, node_id, PageAsk(limit, page_token)).map(MoveOut.of))


@endpoint(
    router,
    "GET",
    NODE + "/wipes",
    permission="nodes:read",
    audience="operator",
    answer=ListOf[WipeOut],
    summary="List a node's wipes",
)
def list_node_wipes(call: Call, node_id: str, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[WipeOut]:
    """
    Every wipe with what was checked, oldest first; only a verified one newer than the last tenancy makes a node available.
    """
    return _listed(service.wipes_of(call.session, node_id, PageAsk(limit, page_token)).map(WipeOut.of))


@endpoint(
    router,
    "GET",
    NODE + "/actions",
    permission="nodes:read",
    audience="operator",
    answer=ActionsOut,
    summary="List what can be done with a node",
)
def list_node_actions(call: Call, node_id: str) -> ActionsOut:
    """
    Every verb, whether it is allowed now and why not.
    """
    return ActionsOut.of(service.get_node(call.session, node_id))


def _act(call: Call, node_id: str, verb: str, body: NodeAct) -> Reply:
    call.audit_target, call.audit_detail = node_id, {"action": verb, "reason": body.reason}
    view, operation_id = service.act(
        call.session, node_id, verb, reason=body.reason, by=call.principal.id, check=call.check_version
    )
    call.nudge("node", node_id)
    headers = {"Location": f"/v1/operations/{operation_id}"}
    return Reply(NodeOut.of(view, operation_id), headers=headers, etag=view.row.version)


def _verb(verb: str, summary: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return endpoint(
        router,
        "POST",
        f"{NODE}/actions/{verb}",
        permission="nodes:write",
        audience="operator",
        status=202,
        answer=NodeOut,
        summary=summary,
        problems=(409, 412, 428),
    )


@_verb("requalify", "Requalify a node")
def requalify_node(call: Call, node_id: str, body: NodeAct) -> Reply:
    """
    The node is inspected, checked and wiped again, and then available.
    """
    return _act(call, node_id, "requalify", body)


@_verb("update-firmware", "Update a node's firmware")
def update_node_firmware(call: Call, node_id: str, body: NodeAct) -> Reply:
    """
    The images of its instance type are installed where its versions are not among those wanted, and each version is read back. Power is
    cut. Then the node is inspected, checked and wiped, and available. A tenant's node is never updated.
    """
    return _act(call, node_id, "update-firmware", body)


@_verb("quarantine", "Quarantine a node")
def quarantine_node(call: Call, node_id: str, body: NodeAct) -> Reply:
    """
    The node is out of use until somebody decides. A node that a tenant holds must be given back first.
    """
    return _act(call, node_id, "quarantine", body)


@_verb("maintain", "Take a node into maintenance")
def maintain_node(call: Call, node_id: str, body: NodeAct) -> Reply:
    """
    The node is taken out on purpose.
    """
    return _act(call, node_id, "maintain", body)


@_verb("repair", "Send a node to repair")
def repair_node(call: Call, node_id: str, body: NodeAct) -> Reply:
    """
    The node is with whoever repairs it; requalify it when it comes back.
    """
    return _act(call, node_id, "repair", body)


@_verb("retire", "Retire a node")
def retire_node(call: Call, node_id: str, body: NodeAct) -> Reply:
    """
    The node has left the fleet for good.
    """
    return _act(call, node_id, "retire", body)


@_verb("rotate-controller", "Change a controller's password")
def rotate_node_controller(call: Call, node_id: str, body: RotateAsk) -> Reply:
    """
    The node's management controller gets a new password that nobody sees, also while a tenant holds the node. `controller.rotation` shows
    how far it is.
    """
    password = body.password.get_secret_value() if body.password is not None else ""
    rotating.ask_rotation(call.session, node_id, call.sealer, password=password, check=call.check_version)
    call.audit_target = node_id
    call.audit_detail = {"action": "rotate-controller", "reason": body.reason, "password_given": bool(password)}
    view = service.get_node(call.session, node_id)
    return Reply(NodeOut.of(view), etag=view.row.version)


@endpoint(
    router,
    "POST",
    NODE + "/holds",
    permission="nodes:write",
    audience="operator",
    status=201,
    answer=HoldOut,
    summary="Hold a node out of placement",
)
def place_hold(call: Call, node_id: str, body: HoldPlace) -> HoldOut:
    """
    No new order gets the node; its state and whoever holds it are not touched.
    """
    row = service.place_hold(call.session, node_id, reason=body.reason, by=call.principal.id, until=body.until)
    call.audit_target, call.audit_detail = node_id, {"hold_id": row.id, "reason": body.reason}
    return HoldOut.model_validate(row)


@endpoint(
    router,
    "DELETE",
    NODE + "/holds/{hold_id}",
    permission="nodes:write",
    audience="operator",
    answer=HoldOut,
    summary="Lift a hold",
)
def lift_hold(call: Call, node_id: str, hold_id: str) -> HoldOut:
    """
    The hold is over; lifting it twice changes nothing.
    """
    row = service.lift_hold(call.session, node_id, hold_id)
    call.audit_target, call.audit_detail = node_id, {"hold_id": hold_id}
    return HoldOut.model_validate(row)


@endpoint(
    router,
    "GET",
    PROVIDERS,
    permission="providers:read",
    audience="operator",
    answer=ListOf[ProviderOut],
    summary="List providers",
)
def list_providers(call: Call, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[ProviderOut]:
    """
    The systems below us, oldest first.
    """
    return _listed(service.list_providers(call.session, PageAsk(limit, page_token)).map(ProviderOut.of))


@endpoint(
    router,
    "POST",
    PROVIDERS,
    permission="providers:write",
    audience="operator",
    status=201,
    answer=ProviderOut,
    summary="Register a provider",
)
def register_provider(call: Call, body: ProviderRegister) -> Reply:
    """
    The provider is asked what it can do within seconds, takes orders once it has answered, and its machines can be enrolled. Its
    secrets are sealed and never shown again.
    """
    provider_id = new_id("prv")
    secrets = {name: value.get_secret_value() for name, value in body.secrets.items()}
    sealed = service.seal_secrets(call.sealer, provider_id, secrets)
    new = service.NewProvider(body.name, body.adapter, body.site, dict(body.config), sealed, {}, body.shared, provider_id)
    row = service.register_provider(call.session, new)
    call.audit_target, call.audit_detail = row.id, {"name": row.name, "adapter": row.adapter, "secrets": sorted(secrets)}
    call.nudge("provider", row.id)
    return Reply(ProviderOut.of(row), headers={"Location": f"{PROVIDERS}/{row.id}"}, etag=row.version)


@endpoint(router, "GET", PROVIDER, permission="providers:read", audience="operator", answer=ProviderOut, summary="Show a provider")
def get_provider(call: Call, provider_id: str) -> Reply:
    """
    The provider with what it can do, when it last answered, and where its machines differ from the enrolled ones.
    """
    row = service.get_provider(call.session, provider_id)
    return Reply(ProviderOut.of(row), etag=row.version)


@endpoint(
    router,
    "PATCH",
    PROVIDER,
    permission="providers:write",
    audience="operator",
    answer=ProviderOut,
    summary="Change a provider's settings",
    problems=(412, 428),
)
def update_provider(call: Call, provider_id: str, body: ProviderUpdate) -> Reply:
    """
    Settings, secrets or both are replaced; calls that begin from now on use them, and the provider is asked within seconds. What was
    known of it stays until it answers; `problem` tells when it does not.
    """
    secrets = None if body.secrets is None else {name: value.get_secret_value() for name, value in body.secrets.items()}
    change = service.ProviderChange(None if body.config is None else dict(body.config), secrets)
    row = service.change_provider(call.session, provider_id, change, call.sealer, call.check_version)
    call.audit_target = row.id
    call.audit_detail = {"config": body.config is not None, "secrets": None if secrets is None else sorted(secrets)}
    call.nudge("provider", row.id)
    return Reply(ProviderOut.of(row), etag=row.version)


@endpoint(
    router,
    "DELETE",
    PROVIDER,
    permission="providers:write",
    audience="operator",
    status=204,
    summary="Remove a provider",
    problems=(409, 412, 428),
)
def delete_provider(call: Call, provider_id: str) -> Reply:
    """
    The provider and its secrets are forgotten. Refused while nodes that are not retired or clusters that are not deleted stand on it.
    """
    row = service.delete_provider(call.session, provider_id, call.check_version)
    call.audit_target = row.id
    return Reply(None)


@endpoint(
    router,
    "POST",
    PROVIDER + "/actions/enable",
    permission="providers:write",
    audience="operator",
    answer=ProviderOut,
    summary="Enable a provider",
    problems=(412, 428),
)
def enable_provider(call: Call, provider_id: str) -> Reply:
    """
    The provider takes part in placement again.
    """
    return _set_state(call, provider_id, "active")


@endpoint(
    router,
    "POST",
    PROVIDER + "/actions/disable",
    permission="providers:write",
    audience="operator",
    answer=ProviderOut,
    summary="Disable a provider",
    problems=(412, 428),
)
def disable_provider(call: Call, provider_id: str) -> Reply:
    """
    The provider gets no new orders; what stands on it goes on.
    """
    return _set_state(call, provider_id, "disabled")


def _set_state(call: Call, provider_id: str, state: str) -> Reply:
    row = service.set_provider_state(call.session, provider_id, state, call.check_version)
    call.audit_target, call.audit_detail = row.id, {"state": state}
    return Reply(ProviderOut.of(row), etag=row.version)


def _listed(page: Page[T]) -> ListOf[T]:
    return ListOf(items=list(page.items), next_page_token=page.next_page_token)
