"""
Boots over HTTP for operators.
"""

from fastapi import APIRouter

from controlplane.boots import service
from controlplane.boots.schemas import After, BootOut, ConsoleOut, PageLimit, PageToken
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["nodes"])


@endpoint(
    router,
    "GET",
    "/v1/admin/nodes/{node_id}/boots",
    permission="nodes:read",
    audience="operator",
    answer=ListOf[BootOut],
    summary="List a node's boots",
)
def list_node_boots(call: Call, node_id: str, limit: PageLimit = 50, page_token: PageToken = None) -> ListOf[BootOut]:
    """
    Every boot with what the machine reported of each stage and why it failed, oldest first.
    """
    page = service.list_boots(call.session, node_id, PageAsk(limit, page_token)).map(BootOut.of)
    return ListOf[BootOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/admin/boots/{boot_id}/console",
    permission="nodes:read",
    audience="operator",
    answer=ConsoleOut,
    summary="Show what a machine wrote while it booted",
)
def get_boot_console(call: Call, boot_id: str, after: After = 0) -> ConsoleOut:
    """
    The console of one boot, in pieces; the last MiB is kept, also after the boot has ended.
    """
    return ConsoleOut.of(service.console_of(call.session, boot_id, after))
