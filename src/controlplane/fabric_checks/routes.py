"""
Fabric checks over HTTP, for operators.
"""

from fastapi import APIRouter

from controlplane.fabric_checks import service
from controlplane.fabric_checks.schemas import (
    FabricCheckOut,
    FabricCheckPost,
    LeafFilter,
    NodeFilter,
    PageLimit,
    PageToken,
    SiteFilter,
    StateFilter,
    VerdictFilter,
)
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["qualification"])
CHECKS = "/v1/admin/fabric-checks"
CHECK = CHECKS + "/{check_id}"
READ, WRITE = "qualification:read", "qualification:write"


@endpoint(
    router,
    "POST",
    CHECKS,
    permission=WRITE,
    audience="operator",
    status=202,
    answer=FabricCheckOut,
    summary="Check the network between nodes",
    dry_run=True,
)
def create_fabric_check(call: Call, body: FabricCheckPost) -> Reply:
    """
    Free nodes of the place are held, tools run between them, what they print goes into the ledger, and the nodes are free again. A node
    that is not free is left out; of a pair both must be. With `dry_run=true` the answer tells nodes and runs, and nothing is held.
    """
    view = service.order_check(call.session, body.scope.scope(), body.tool, by=call.principal.id)
    call.audit_target = view.row.id
    call.audit_detail = {"scope": view.row.scope, "tool": body.tool, "nodes": len(view.members)}
    call.nudge("fabric_check", view.row.id)
    return Reply(FabricCheckOut.of(view), headers={"Location": f"/v1/operations/{view.operation_id}"}, etag=view.row.version)


@endpoint(router, "GET", CHECKS, permission=READ, audience="operator", answer=ListOf[FabricCheckOut], summary="List fabric checks")
def list_fabric_checks(
    call: Call,
    state: StateFilter = None,
    site: SiteFilter = None,
    leaf: LeafFilter = None,
    node_id: NodeFilter = None,
    verdict: VerdictFilter = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[FabricCheckOut]:
    """
    All checks there were, oldest first.
    """
    which = service.CheckFilter(state, site, leaf, node_id, verdict)
    page = service.list_checks(call.session, which, PageAsk(limit, page_token))
    shown = [FabricCheckOut.of(one) for one in service.views(call.session, page.items)]
    return ListOf(items=shown, next_page_token=page.next_page_token)


@endpoint(router, "GET", CHECK, permission=READ, audience="operator", answer=FabricCheckOut, summary="Show a fabric check")
def get_fabric_check(call: Call, check_id: str) -> Reply:
    """
    Where it stands, what ran, the verdict and whom its pairs point at. Its figures are the measurements whose `run_id` is its id.
    """
    view = service.get_check(call.session, check_id)
    return Reply(FabricCheckOut.of(view), etag=view.row.version)


@endpoint(
    router,
    "POST",
    CHECK + "/actions/cancel",
    permission=WRITE,
    audience="operator",
    status=202,
    answer=FabricCheckOut,
    summary="Stop a fabric check",
)
def cancel_fabric_check(call: Call, check_id: str) -> Reply:
    """
    The check goes no further than its next step. Its nodes are free once the provider was seen without it; what was measured stands.
    """
    call.audit_target, call.audit_detail = check_id, {"action": "cancel"}
    view = service.cancel(call.session, check_id)
    call.nudge("fabric_check", check_id)
    return Reply(FabricCheckOut.of(view), etag=view.row.version)
