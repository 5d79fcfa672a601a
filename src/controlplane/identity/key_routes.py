"""
API keys over HTTP, alike at every level: a tenant's, a reseller's and the operator's.
"""

from fastapi import APIRouter

from controlplane.identity import service
from controlplane.identity.schemas import FreshKeyOut, KeyCreate, KeyOut, KeyRotate, TenantKeyCreate
from controlplane.identity.service import Filters, FreshKey, KeyLimits, NewKey
from controlplane.identity.shared_routes import Shared, add_shared
from controlplane.identity.wire import CreatedAfter, KeyState, Limit, PageToken
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter()
PATHS = {"platform": "/v1/admin/api-keys", "reseller": "/v1/reseller/api-keys", "tenant": "/v1/api-keys", "project": "/v1/api-keys"}


@endpoint(
    router,
    "POST",
    "/v1/api-keys",
    permission="keys:create",
    status=201,
    answer=FreshKeyOut,
    summary="Make an API key",
    problems=(404, 409),
)
def create_api_key(call: Call, body: TenantKeyCreate) -> Reply:
    """
    The key exists and its text is shown, this once. It can do no more than the key that made it, from nowhere else and no longer;
    for others than the caller only service accounts can be given one.
    """
    scope = service.hold_project(call.session, call.principal, body.project_id) if body.project_id else None
    new = NewKey(body.name, _limits(body), body.principal_id, scope)
    return _made(call, service.create_key(call.session, call.principal, new))


def _limits(body: KeyCreate) -> KeyLimits:
    return KeyLimits(
        None if body.permissions is None else frozenset(body.permissions),
        None if body.networks is None else tuple(body.networks),
        body.expires_at,
    )


def _made(call: Call, made: FreshKey) -> Reply:
    call.audit_target = made.view.row.id
    return Reply(
        FreshKeyOut.fresh(made),
        headers={"Location": f"{PATHS[made.view.row.scope_kind]}/{made.view.row.id}"},
        remembered=FreshKeyOut.fresh(made, shown=False),
    )


def _create_key(call: Call, body: KeyCreate) -> Reply:
    """
    The key exists and its text is shown, this once. It can do no more than the key that made it, from nowhere else and no longer;
    for others than the caller only service accounts can be given one.
    """
    made = service.create_key(call.session, call.principal, NewKey(body.name, _limits(body), body.principal_id))
    return _made(call, made)


def _list_keys(
    call: Call,
    limit: Limit = 50,
    page_token: PageToken = None,
    state: KeyState = None,
    created_after: CreatedAfter = None,
) -> ListOf[KeyOut]:
    """
    The keys that the caller's key covers, oldest first, revoked ones too; never their text.
    """
    filters = Filters(state, None, created_after)
    page = service.list_keys(call.session, call.principal, PageAsk(limit, page_token), filters).map(KeyOut.of)
    return ListOf[KeyOut](items=list(page.items), next_page_token=page.next_page_token)


def _get_key(call: Call, key_id: str) -> KeyOut:
    """
    The key, without its text.
    """
    return KeyOut.of(service.get_key(call.session, call.principal, key_id))


def _revoke_key(call: Call, key_id: str) -> Reply:
    """
    The key is refused everywhere within seconds. Somebody else's key with more rights than the caller's cannot be revoked.
    """
    call.audit_target = key_id
    service.revoke_key(call.session, call.principal, key_id)
    return Reply(None)


def _rotate_key(call: Call, key_id: str, body: KeyRotate) -> Reply:
    """
    A second key of the same kind exists and its text is shown, this once; the first is accepted until the overlap is over.
    """
    made = service.rotate_key(call.session, call.principal, key_id, overlap_s=body.overlap_s, expires_at=body.expires_at)
    return _made(call, made)


CREATE = Shared(
    _create_key, "POST", "create_{}", "", "keys:create", "Make an API key", FreshKeyOut, status=201, problems=(404, 409)
)
KEY_ROUTES: tuple[Shared, ...] = (
    Shared(_list_keys, "GET", "list_{}s", "", "keys:read", "List API keys", ListOf[KeyOut]),
    Shared(_get_key, "GET", "get_{}", "/{key_id}", "keys:read", "Show an API key", KeyOut),
    Shared(_revoke_key, "DELETE", "revoke_{}", "/{key_id}", "keys:delete", "Revoke an API key", status=204),
    Shared(
        _rotate_key,
        "POST",
        "rotate_{}",
        "/{key_id}/actions/rotate",
        "keys:create",
        "Replace an API key",
        FreshKeyOut,
        status=201,
        problems=(409,),
    ),
)
add_shared(router, "/v1/api-keys", "tenant", "api_key", KEY_ROUTES)
add_shared(router, "/v1/reseller/api-keys", "reseller", "reseller_api_key", (CREATE, *KEY_ROUTES))
add_shared(router, "/v1/admin/api-keys", "operator", "operator_api_key", (CREATE, *KEY_ROUTES))
