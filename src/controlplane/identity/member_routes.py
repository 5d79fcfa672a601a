"""
Members over HTTP, alike at every level: a tenant's, a reseller's and the operator's own people and programs.
"""

from fastapi import APIRouter

from controlplane.identity import service
from controlplane.identity.schemas import MemberChange, MemberCreate, MemberOut, RoleDescription, RoleIn, RolesOut
from controlplane.identity.service import Filters, MemberChanges, NewMember, RoleAsk
from controlplane.identity.shared_routes import Shared, add_shared
from controlplane.identity.states import ROLE_LEVEL, ROLES
from controlplane.identity.wire import CreatedAfter, Limit, MemberState, PageToken
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter()
PATHS = {"platform": "/v1/admin/members", "reseller": "/v1/reseller/members", "tenant": "/v1/members", "project": "/v1/members"}


@endpoint(router, "GET", "/v1/roles", permission="", audience="any", answer=RolesOut, summary="List roles")
def list_roles(call: Call) -> RolesOut:
    """
    Every role that can be given at the caller's level or below, and what it may do.
    """
    level = call.principal.scope_kind
    order = ("platform", "reseller", "tenant", "project")
    below = order[order.index(level) :]
    shown = [
        RoleDescription(name=one, level=ROLE_LEVEL[one], permissions=sorted(ROLES[one]))
        for one in ROLES
        if ROLE_LEVEL[one] in below
    ]
    return RolesOut(items=shown)


def _list_members(
    call: Call,
    limit: Limit = 50,
    page_token: PageToken = None,
    state: MemberState = None,
    created_after: CreatedAfter = None,
) -> ListOf[MemberOut]:
    """
    The users and service accounts, oldest first; a key of a project sees who has a role in it.
    """
    filters = Filters(state, None, created_after)
    page = service.list_members(call.session, call.principal, PageAsk(limit, page_token), filters).map(MemberOut.of)
    return ListOf[MemberOut](items=list(page.items), next_page_token=page.next_page_token)


def _create_member(call: Call, body: MemberCreate) -> Reply:
    """
    The user or service account exists with its roles. Nobody can give a right that the key they call with does not hold.
    """
    new = NewMember(body.kind, body.name, body.email or "", _asked(body.roles))
    view = service.create_member(call.session, call.principal, new)
    call.audit_target = view.row.id
    location = f"{PATHS[call.principal.scope_kind]}/{view.row.id}"
    return Reply(MemberOut.of(view), headers={"Location": location}, etag=view.row.version)


def _get_member(call: Call, member_id: str) -> Reply:
    """
    The member with its roles.
    """
    view = service.get_member(call.session, call.principal, member_id)
    return Reply(MemberOut.of(view), etag=view.row.version)


def _update_member(call: Call, member_id: str, body: MemberChange) -> Reply:
    """
    The member has the new name, state and roles. Nobody can give or take a right that they do not hold, and a tenant's last owner
    stays.
    """
    call.audit_target = member_id
    roles = None if body.roles is None else _asked(body.roles)
    view = service.update_member(call.session, call.principal, member_id, MemberChanges(body.name, body.state, roles))
    return Reply(MemberOut.of(view), etag=view.row.version)


def _remove_member(call: Call, member_id: str) -> Reply:
    """
    The member is gone and its keys are refused within seconds; keys that it made for service accounts stay, and each names its maker.
    With a key of a project, only the member's roles and keys in that project are gone.
    """
    call.audit_target = member_id
    service.remove_member(call.session, call.principal, member_id)
    return Reply(None)


def _asked(roles: list[RoleIn]) -> tuple[RoleAsk, ...]:
    return tuple(RoleAsk(one.role, one.project_id) for one in roles)


MEMBER_ROUTES: tuple[Shared, ...] = (
    Shared(_list_members, "GET", "list_{}s", "", "members:read", "List members", ListOf[MemberOut]),
    Shared(_create_member, "POST", "create_{}", "", "members:write", "Add a member", MemberOut, status=201, problems=(404, 409)),
    Shared(_get_member, "GET", "get_{}", "/{member_id}", "members:read", "Show a member", MemberOut),
    Shared(_update_member, "PATCH", "update_{}", "/{member_id}", "members:write", "Change a member", MemberOut, problems=(409,)),
    Shared(_remove_member, "DELETE", "remove_{}", "/{member_id}", "members:write", "Remove a member", status=204, problems=(409,)),
)
add_shared(router, "/v1/members", "tenant", "member", MEMBER_ROUTES)
add_shared(router, "/v1/reseller/members", "reseller", "reseller_member", MEMBER_ROUTES)
add_shared(router, "/v1/admin/members", "operator", "operator_member", MEMBER_ROUTES)
