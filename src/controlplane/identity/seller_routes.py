"""
What sellers do over HTTP: resellers with their tenants, and the operator with everybody's.
"""

from typing import Any

from fastapi import APIRouter

from controlplane.identity import service
from controlplane.identity.schemas import Renamed
from controlplane.identity.seller_schemas import (
    AnyTenantCreate,
    OwnBrandChange,
    OwnerCreate,
    OwnerOut,
    ResellerChange,
    ResellerCreate,
    ResellerCreated,
    ResellerOut,
    SoldTenantOut,
    TenantCreate,
    TenantCreated,
    VerbsOut,
)
from controlplane.identity.service import Changes, Described, Filters, ResellerView
from controlplane.identity.shared_routes import Shared, add_shared
from controlplane.identity.wire import CreatedAfter, Label, Limit, PageToken, ResellerId, ResellerState, TenantState
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter()


# The reseller itself


@endpoint(
    router,
    "GET",
    "/v1/reseller",
    permission="resellers:read",
    audience="reseller",
    answer=ResellerOut,
    summary="Show the own reseller",
)
def get_own_reseller(call: Call) -> Reply:
    """
    The reseller that the key belongs to; for operators the platform's own.
    """
    view = service.get_reseller(call.session, service.own_reseller_id(call.session, call.principal))
    return Reply(ResellerOut.of(view), etag=view.row.version)


@endpoint(
    router,
    "PATCH",
    "/v1/reseller",
    permission="resellers:update",
    audience="reseller",
    answer=ResellerOut,
    summary="Change the own brand",
    problems=(412, 428),
)
def update_own_brand(call: Call, body: OwnBrandChange) -> Reply:
    """
    The reseller's customers see this brand.
    """
    call.audit_target = service.own_reseller_id(call.session, call.principal)
    changes = Changes(brand=body.brand.model_dump())
    view = service.update_reseller(call.session, call.audit_target, changes, call.check_version)
    return Reply(ResellerOut.of(view), etag=view.row.version)


# Resellers, for operators


@endpoint(
    router,
    "GET",
    "/v1/admin/resellers",
    permission="resellers:read",
    audience="operator",
    answer=ListOf[ResellerOut],
    summary="List resellers",
)
def list_resellers(
    call: Call,
    limit: Limit = 50,
    page_token: PageToken = None,
    state: ResellerState = None,
    label: Label = None,
    created_after: CreatedAfter = None,
) -> ListOf[ResellerOut]:
    """
    All resellers, oldest first, the platform's own among them.
    """
    filters = Filters(state, label, created_after)
    page = service.list_resellers(call.session, PageAsk(limit, page_token), filters).map(ResellerOut.of)
    return ListOf[ResellerOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "POST",
    "/v1/admin/resellers",
    permission="resellers:create",
    audience="operator",
    status=201,
    answer=ResellerCreated,
    summary="Create a reseller",
    problems=(409,),
)
def create_reseller(call: Call, body: ResellerCreate) -> Reply:
    """
    The reseller exists with its brand, host names and ceilings; its first administrator's key is shown, this once.
    """
    view = service.create_reseller(
        call.session,
        Described(body.name, body.labels),
        brand=body.brand.model_dump(),
        domains=body.domains,
        ceilings=body.ceilings.given(),
    )
    call.audit_target = view.row.id
    first = _admin(call, view.row.id, body.admin) if body.admin else (None, None)
    return Reply(
        ResellerCreated.made(view, first[0]),
        headers={"Location": f"/v1/admin/resellers/{view.row.id}"},
        etag=view.row.version,
        remembered=ResellerCreated.made(view, first[1]),
    )


@endpoint(
    router,
    "GET",
    "/v1/admin/resellers/{reseller_id}",
    permission="resellers:read",
    audience="operator",
    answer=ResellerOut,
    summary="Show a reseller",
)
def get_reseller(call: Call, reseller_id: str) -> Reply:
    """
    The reseller.
    """
    return _reseller(service.get_reseller(call.session, reseller_id))


@endpoint(
    router,
    "PATCH",
    "/v1/admin/resellers/{reseller_id}",
    permission="resellers:update",
    audience="operator",
    answer=ResellerOut,
    summary="Change a reseller",
    problems=(409, 412, 428),
)
def update_reseller(call: Call, reseller_id: str, body: ResellerChange) -> Reply:
    """
    The reseller has the new name, labels, brand and host names. Its ceilings are changed through its quotas.
    """
    call.audit_target = reseller_id
    brand = None if body.brand is None else body.brand.model_dump()
    changes = Changes(body.name, body.labels, brand, body.domains)
    return _reseller(service.update_reseller(call.session, reseller_id, changes, call.check_version))


@endpoint(
    router,
    "DELETE",
    "/v1/admin/resellers/{reseller_id}",
    permission="resellers:delete",
    audience="operator",
    status=204,
    summary="Delete a reseller",
    problems=(409, 412, 428),
)
def delete_reseller(call: Call, reseller_id: str) -> Reply:
    """
    The reseller is gone with its host names, people and keys; refused while it has tenants.
    """
    call.audit_target = reseller_id
    service.delete_reseller(call.session, reseller_id, call.check_version)
    return Reply(None)


@endpoint(
    router,
    "POST",
    "/v1/admin/resellers/{reseller_id}/actions/suspend",
    permission="resellers:update",
    audience="operator",
    answer=ResellerOut,
    summary="Suspend a reseller",
)
def suspend_reseller(call: Call, reseller_id: str) -> Reply:
    """
    The reseller's keys and those of all its tenants serve nothing but deletes, within seconds; what runs goes on.
    """
    call.audit_target = reseller_id
    return _reseller(service.suspend_reseller(call.session, reseller_id))


@endpoint(
    router,
    "POST",
    "/v1/admin/resellers/{reseller_id}/actions/resume",
    permission="resellers:update",
    audience="operator",
    answer=ResellerOut,
    summary="Resume a reseller",
)
def resume_reseller(call: Call, reseller_id: str) -> Reply:
    """
    The reseller is active again, and its tenants are as they were.
    """
    call.audit_target = reseller_id
    return _reseller(service.resume_reseller(call.session, reseller_id))


@endpoint(
    router,
    "POST",
    "/v1/admin/resellers/{reseller_id}/admins",
    permission="resellers:update",
    audience="operator",
    status=201,
    answer=OwnerOut,
    summary="Appoint an administrator of a reseller",
)
def create_reseller_admin(call: Call, reseller_id: str, body: OwnerCreate) -> Reply:
    """
    The reseller has an administrator with this address, new or not, and a fresh key for it is shown, this once.
    """
    shown, hidden = _admin(call, reseller_id, body)
    call.audit_target = shown.principal_id
    return Reply(shown, remembered=hidden)


def _reseller(view: ResellerView) -> Reply:
    return Reply(ResellerOut.of(view), etag=view.row.version)


def _admin(call: Call, reseller_id: str, body: OwnerCreate) -> tuple[OwnerOut, OwnerOut]:
    row, made = service.create_reseller_admin(call.session, call.principal, reseller_id, name=body.name, email=body.email)
    return OwnerOut.of(row, made), OwnerOut.of(row, made, shown=False)


# Tenants, for resellers and operators


@endpoint(
    router,
    "POST",
    "/v1/reseller/tenants",
    permission="tenants:create",
    audience="reseller",
    status=201,
    answer=TenantCreated,
    summary="Create a tenant",
    problems=(409,),
)
def create_tenant(call: Call, body: TenantCreate) -> Reply:
    """
    The tenant exists under the reseller with its quota; its first owner's key is shown, this once.
    """
    return _create_tenant(call, body, None, "/v1/reseller/tenants")


@endpoint(
    router,
    "POST",
    "/v1/admin/tenants",
    permission="tenants:create",
    audience="operator",
    status=201,
    answer=TenantCreated,
    summary="Create a tenant of any seller",
    problems=(404, 409),
)
def create_any_tenant(call: Call, body: AnyTenantCreate) -> Reply:
    """
    The tenant exists under the reseller named, or the platform's own; its first owner's key is shown, this once.
    """
    return _create_tenant(call, body, body.reseller_id, "/v1/admin/tenants")


@endpoint(
    router,
    "GET",
    "/v1/admin/tenants",
    permission="tenants:read",
    audience="operator",
    answer=ListOf[SoldTenantOut],
    summary="List everybody's tenants",
)
def list_all_tenants(
    call: Call,
    limit: Limit = 50,
    page_token: PageToken = None,
    state: TenantState = None,
    label: Label = None,
    created_after: CreatedAfter = None,
    reseller_id: ResellerId = None,
) -> ListOf[SoldTenantOut]:
    """
    The tenants of all resellers, or of one, oldest first.
    """
    return _tenants(call, PageAsk(limit, page_token), Filters(state, label, created_after), reseller_id)


@endpoint(
    router,
    "GET",
    "/v1/reseller/tenants",
    permission="tenants:read",
    audience="reseller",
    answer=ListOf[SoldTenantOut],
    summary="List the reseller's tenants",
)
def list_tenants(
    call: Call,
    limit: Limit = 50,
    page_token: PageToken = None,
    state: TenantState = None,
    label: Label = None,
    created_after: CreatedAfter = None,
) -> ListOf[SoldTenantOut]:
    """
    The reseller's tenants, oldest first.
    """
    own = service.own_reseller_id(call.session, call.principal)
    return _tenants(call, PageAsk(limit, page_token), Filters(state, label, created_after), own)


def _tenants(call: Call, ask: PageAsk, filters: Filters, reseller_id: str | None) -> ListOf[SoldTenantOut]:
    page = service.list_tenants(call.session, call.principal, ask, filters, reseller_id=reseller_id).map(SoldTenantOut.of)
    return ListOf[SoldTenantOut](items=list(page.items), next_page_token=page.next_page_token)


def _create_tenant(call: Call, body: TenantCreate, reseller_id: str | None, path: str) -> Reply:
    limits = {**call.tenant_limits, **body.limits.given()}
    new = Described(body.name, body.labels)
    row = service.create_tenant(call.session, call.principal, new, limits=limits, reseller_id=reseller_id)
    call.audit_target = row.id
    shown, hidden = _owner(call, row.id, body.owner) if body.owner else (None, None)
    headers = {"Location": f"{path}/{row.id}"}
    return Reply(TenantCreated.made(row, shown), headers=headers, etag=row.version, remembered=TenantCreated.made(row, hidden))


def _owner(call: Call, tenant_id: str, body: OwnerCreate) -> tuple[OwnerOut, OwnerOut]:
    row, made = service.create_owner(call.session, call.principal, tenant_id, name=body.name, email=body.email)
    return OwnerOut.of(row, made), OwnerOut.of(row, made, shown=False)


def _get(call: Call, tenant_id: str) -> Reply:
    """
    The tenant.
    """
    return _tenant(service.get_tenant(call.session, call.principal, tenant_id))


def _update(call: Call, tenant_id: str, body: Renamed) -> Reply:
    """
    The tenant has the new name and labels.
    """
    call.audit_target = tenant_id
    changes = Changes(body.name, body.labels)
    return _tenant(service.update_tenant(call.session, call.principal, tenant_id, changes, call.check_version))


def _delete(call: Call, tenant_id: str) -> Reply:
    """
    The tenant is gone with its projects, people and keys; refused while it has clusters.
    """
    call.audit_target = tenant_id
    service.delete_tenant(call.session, call.principal, tenant_id, call.check_version)
    return Reply(None)


def _actions(call: Call, tenant_id: str) -> VerbsOut:
    """
    Which verbs are allowed now, and why the others are not.
    """
    return VerbsOut.of(service.tenant_actions(call.session, call.principal, tenant_id))


def _suspend(call: Call, tenant_id: str) -> Reply:
    """
    The tenant's keys serve nothing but deletes, within seconds; what runs goes on.
    """
    call.audit_target = tenant_id
    return _tenant(service.suspend_tenant(call.session, call.principal, tenant_id))


def _resume(call: Call, tenant_id: str) -> Reply:
    """
    The tenant is active again. What the platform suspended, a reseller cannot resume.
    """
    call.audit_target = tenant_id
    return _tenant(service.resume_tenant(call.session, call.principal, tenant_id))


def _appoint(call: Call, tenant_id: str, body: OwnerCreate) -> Reply:
    """
    The tenant has an owner with this address, new or not, and a fresh key for it is shown, this once.
    """
    shown, hidden = _owner(call, tenant_id, body)
    call.audit_target = shown.principal_id
    return Reply(shown, remembered=hidden)


def _tenant(row: Any) -> Reply:
    return Reply(SoldTenantOut.of(row), etag=row.version)


VERSIONED = (409, 412, 428)
TENANT_ROUTES: tuple[Shared, ...] = (
    Shared(_get, "GET", "get_{}", "", "tenants:read", "Show a tenant", SoldTenantOut),
    Shared(_update, "PATCH", "update_{}", "", "tenants:update", "Change a tenant", SoldTenantOut, problems=VERSIONED),
    Shared(_delete, "DELETE", "delete_{}", "", "tenants:delete", "Delete a tenant", status=204, problems=VERSIONED),
    Shared(_actions, "GET", "list_{}_actions", "/actions", "tenants:read", "List a tenant's actions", VerbsOut),
    Shared(_suspend, "POST", "suspend_{}", "/actions/suspend", "tenants:suspend", "Suspend a tenant", SoldTenantOut),
    Shared(_resume, "POST", "resume_{}", "/actions/resume", "tenants:suspend", "Resume a tenant", SoldTenantOut),
    Shared(_appoint, "POST", "create_{}_owner", "/owners", "tenants:update", "Appoint an owner", OwnerOut, status=201),
)
add_shared(router, "/v1/reseller/tenants/{tenant_id}", "reseller", "tenant", TENANT_ROUTES)
add_shared(router, "/v1/admin/tenants/{tenant_id}", "operator", "any_tenant", TENANT_ROUTES)
