"""
Who I am, the tenant and its projects over HTTP; members, keys and what sellers do are in the modules beside.
"""

from fastapi import APIRouter

from controlplane.identity import service
from controlplane.identity.key_routes import router as key_router
from controlplane.identity.member_routes import router as member_router
from controlplane.identity.schemas import (
    ProjectCreate,
    ProjectOut,
    Relabelled,
    Renamed,
    TenantOut,
    WhoAmI,
)
from controlplane.identity.seller_routes import router as seller_router
from controlplane.identity.service import Changes, Described, Filters
from controlplane.identity.wire import CreatedAfter, Label, Limit, PageToken, ProjectState
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["identity"])
router.include_router(member_router)
router.include_router(key_router)
router.include_router(seller_router)


@endpoint(
    router,
    "GET",
    "/v1/whoami",
    permission="",
    audience="any",
    answer=WhoAmI,
    summary="Show the caller's key and rights",
    works_suspended=True,
)
def get_whoami(call: Call) -> WhoAmI:
    """
    Tells whose key was sent, where it stands and what it may do at this moment. Served to suspended callers too.
    """
    caller = call.principal
    return WhoAmI(
        principal_id=caller.id,
        key_id=caller.key_id,
        scope_kind=caller.scope_kind,
        scope_id=caller.scope_id,
        tenant_id=caller.tenant_id or None,
        project_id=caller.project_id or None,
        permissions=sorted(caller.permissions),
        suspended=caller.suspended,
    )


@endpoint(router, "GET", "/v1/tenant", permission="tenants:read", answer=TenantOut, summary="Show the own tenant")
def get_own_tenant(call: Call) -> Reply:
    """
    The tenant that the key belongs to.
    """
    row = service.get_tenant(call.session, call.principal, call.principal.tenant_id)
    return Reply(TenantOut.of(row), etag=row.version)


@endpoint(
    router,
    "PATCH",
    "/v1/tenant",
    permission="tenants:update",
    answer=TenantOut,
    summary="Change the own tenant's labels",
    problems=(412, 428),
)
def update_own_tenant(call: Call, body: Relabelled) -> Reply:
    """
    The tenant has these labels. Its name belongs to whoever sells to it.
    """
    service.require_tenant_key(call.principal)
    call.audit_target = call.principal.tenant_id
    changes = Changes(labels=body.labels)
    row = service.update_tenant(call.session, call.principal, call.principal.tenant_id, changes, call.check_version)
    return Reply(TenantOut.of(row), etag=row.version)


@endpoint(
    router,
    "GET",
    "/v1/projects",
    permission="projects:read",
    answer=ListOf[ProjectOut],
    summary="List projects",
    works_suspended=True,
)
def list_projects(
    call: Call,
    limit: Limit = 50,
    page_token: PageToken = None,
    state: ProjectState = None,
    label: Label = None,
    created_after: CreatedAfter = None,
) -> ListOf[ProjectOut]:
    """
    The tenant's projects, oldest first; a key of a project sees that one.
    """
    filters = Filters(state, label, created_after)
    page = service.list_projects(call.session, call.principal, PageAsk(limit, page_token), filters).map(ProjectOut.of)
    return ListOf[ProjectOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "POST",
    "/v1/projects",
    permission="projects:create",
    status=201,
    answer=ProjectOut,
    summary="Create a project",
    problems=(409,),
)
def create_project(call: Call, body: ProjectCreate) -> Reply:
    """
    The project exists, empty, and counts what is held in it.
    """
    service.require_tenant_key(call.principal)
    row = service.create_project(call.session, call.principal, Described(body.name, body.labels))
    call.audit_target = row.id
    return Reply(ProjectOut.of(row), headers={"Location": f"/v1/projects/{row.id}"}, etag=row.version)


@endpoint(
    router,
    "GET",
    "/v1/projects/{project_id}",
    permission="projects:read",
    answer=ProjectOut,
    summary="Show a project",
    works_suspended=True,
)
def get_project(call: Call, project_id: str) -> Reply:
    """
    The project.
    """
    row = service.get_project(call.session, call.principal, project_id)
    return Reply(ProjectOut.of(row), etag=row.version)


@endpoint(
    router,
    "PATCH",
    "/v1/projects/{project_id}",
    permission="projects:update",
    answer=ProjectOut,
    summary="Change a project",
    problems=(409, 412),
)
def update_project(call: Call, project_id: str, body: Renamed) -> Reply:
    """
    The project has the new name and labels. If-Match is honoured when it is sent.
    """
    call.audit_target = project_id
    changes = Changes(body.name, body.labels)
    row = service.update_project(call.session, call.principal, project_id, changes, _if_sent(call))
    return Reply(ProjectOut.of(row), etag=row.version)


@endpoint(
    router,
    "DELETE",
    "/v1/projects/{project_id}",
    permission="projects:delete",
    status=204,
    summary="Delete a project",
    problems=(409, 412),
)
def delete_project(call: Call, project_id: str) -> Reply:
    """
    The project is gone with its keys; refused while it has clusters. If-Match is honoured when it is sent.
    """
    call.audit_target = project_id
    service.delete_project(call.session, call.principal, project_id, _if_sent(call))
    return Reply(None)


def _if_sent(call: Call) -> service.CheckVersion:
    return call.check_version if call.if_match is not None else lambda _: None
