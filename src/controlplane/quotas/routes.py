"""
Quotas over HTTP: a tenant's own, a seller's for its customers, the operator's for everyone.
"""

from fastapi import APIRouter

from controlplane.kit.paging import PageAsk
from controlplane.quotas import service
from controlplane.quotas.schemas import LimitsIn, PageLimit, PageToken, ScopeQuotasOut
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["quotas"])


@endpoint(
    router,
    "GET",
    "/v1/quotas",
    permission="quotas:read",
    answer=ListOf[ScopeQuotasOut],
    summary="List the quotas of the tenant and its projects",
    works_suspended=True,
)
def list_quotas(call: Call, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[ScopeQuotasOut]:
    """
    The tenant's limits come first, then its projects', each with what is held now. A key of a project sees its project only.
    """
    page = service.list_quotas(
        call.session, call.principal.tenant_id, PageAsk(limit, page_token), project_id=call.principal.project_id or None
    ).map(ScopeQuotasOut.of)
    return ListOf[ScopeQuotasOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/projects/{project_id}/quotas",
    permission="quotas:read",
    answer=ScopeQuotasOut,
    summary="Show the quotas of a project",
    works_suspended=True,
)
def get_project_quotas(call: Call, project_id: str) -> Reply:
    """
    The project's limits and what is held under them; the ETag is needed to change them.
    """
    call.principal.check_project(project_id)
    return _shown(service.get_scoped(call.session, project_id, "project", tenant_id=call.principal.tenant_id))


@endpoint(
    router,
    "PUT",
    "/v1/projects/{project_id}/quotas",
    permission="quotas:write",
    answer=ScopeQuotasOut,
    summary="Set the quotas of a project",
    problems=(412, 428),
)
def set_project_quotas(call: Call, project_id: str, body: LimitsIn) -> Reply:
    """
    The project has exactly these limits. A limit above the tenant's is stored, but the tenant's still binds; a limit below what is
    held only stops new orders.
    """
    call.principal.check_project(project_id)
    held = service.get_scoped(call.session, project_id, "project", tenant_id=call.principal.tenant_id)
    return _changed(call, held, body)


@endpoint(
    router,
    "GET",
    "/v1/reseller/tenants/{tenant_id}/quotas",
    permission="quotas:read",
    audience="reseller",
    answer=ScopeQuotasOut,
    summary="Show the quotas of a customer",
)
def get_tenant_quotas(call: Call, tenant_id: str) -> Reply:
    """
    The customer's limits and what it holds under them; the ETag is needed to change them.
    """
    return _shown(service.get_scoped(call.session, tenant_id, "tenant", reseller_id=call.principal.reseller_id or None))


@endpoint(
    router,
    "PUT",
    "/v1/reseller/tenants/{tenant_id}/quotas",
    permission="quotas:write",
    audience="reseller",
    answer=ScopeQuotasOut,
    summary="Set the quotas of a customer",
    problems=(409, 412, 428),
)
def set_tenant_quotas(call: Call, tenant_id: str, body: LimitsIn) -> Reply:
    """
    The customer has exactly these limits. None may be above the seller's own; all customers together may be promised more than the
    seller has, and the seller's limit then binds when they order.
    """
    held = service.get_scoped(call.session, tenant_id, "tenant", reseller_id=call.principal.reseller_id or None)
    seller = call.principal.reseller_id
    return _changed(call, held, body, within=service.ScopeRef("reseller", seller, seller) if seller else None)


@endpoint(
    router,
    "GET",
    "/v1/admin/quotas",
    permission="quotas:read",
    audience="operator",
    answer=ListOf[ScopeQuotasOut],
    summary="List all quotas",
)
def list_all_quotas(call: Call, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[ScopeQuotasOut]:
    """
    The platform's limits come first, then those of resellers, tenants and projects.
    """
    page = service.list_quotas(call.session, None, PageAsk(limit, page_token)).map(ScopeQuotasOut.of)
    return ListOf[ScopeQuotasOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/admin/quotas/{scope_id}",
    permission="quotas:read",
    audience="operator",
    answer=ScopeQuotasOut,
    summary="Show the quotas of any scope",
)
def get_scope_quotas(call: Call, scope_id: str) -> Reply:
    """
    The limits of the scope, named by its id or `platform`, and what is held under them.
    """
    return _shown(service.get_scoped(call.session, scope_id))


@endpoint(
    router,
    "PUT",
    "/v1/admin/quotas/{scope_id}",
    permission="quotas:write",
    audience="operator",
    answer=ScopeQuotasOut,
    summary="Set the quotas of any scope",
    problems=(412, 428),
)
def set_scope_quotas(call: Call, scope_id: str, body: LimitsIn) -> Reply:
    """
    The scope, named by its id or `platform`, has exactly these limits. A reseller's bind all its customers together.
    """
    return _changed(call, service.get_scoped(call.session, scope_id), body)


def _shown(held: service.ScopeQuotas) -> Reply:
    return Reply(ScopeQuotasOut.of(held), etag=held.version)


def _changed(call: Call, held: service.ScopeQuotas, body: LimitsIn, *, within: service.ScopeRef | None = None) -> Reply:
    call.audit_target = held.scope.id
    call.check_version(held.version)
    call.audit_detail["limits"] = [one.model_dump() for one in body.limits]
    return _shown(service.replace_limits(call.session, held.scope, body.plain(), version=held.version, within=within))
