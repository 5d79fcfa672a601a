"""
Health, freezes and repairs over HTTP.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from controlplane.kit.paging import PageAsk
from controlplane.nodes import service
from controlplane.nodes.health_schemas import (
    FreezeIn,
    FreezeOut,
    HealthReportOut,
    HealthReports,
    ReportBatch,
    Reported,
    TicketOut,
)
from controlplane.nodes.schemas import HealthReport, NodeOut, PageLimit, PageToken
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["nodes"])
NODE = "/v1/admin/nodes/{node_id}"
FREEZES = "/v1/admin/freezes"


@endpoint(
    router,
    "GET",
    NODE + "/health",
    permission="nodes:read",
    audience="operator",
    answer=HealthReports,
    summary="Show a node's health",
)
def list_health_reports(call: Call, node_id: str) -> HealthReports:
    """
    The latest word of every source on every check.
    """
    service.get_node(call.session, node_id)
    return HealthReports(items=[HealthReportOut.of(one) for one in service.reports_of(call.session, node_id)])


@endpoint(
    router,
    "PUT",
    NODE + "/health",
    permission="nodes:write",
    audience="operator",
    answer=NodeOut,
    summary="Report on a node's health",
)
def report_node_health(call: Call, node_id: str, body: HealthReport) -> Reply:
    """
    The source's latest word on the check stands, and the node's health is the worst class of all checks.
    """
    service.report(call.session, [service.Report(node_id, body.source, body.check, body.health, body.message)])
    call.audit_target, call.audit_detail = node_id, {"source": body.source, "check": body.check, "class": body.health}
    view = service.get_node(call.session, node_id)
    return Reply(NodeOut.of(view), etag=view.row.version)


@endpoint(
    router,
    "POST",
    "/v1/admin/health-reports",
    permission="nodes:write",
    audience="operator",
    answer=Reported,
    summary="Report on the health of many nodes",
)
def report_health(call: Call, body: ReportBatch) -> Reported:
    """
    For agents and exporters, with a key narrowed to `nodes:write`. An Xid is classed by our table unless the report says otherwise. A node
    whose health stays `drain` or `quarantine` for a minute is replaced in its cluster, wiped, quarantined and given a repair ticket, unless
    so many of its block fell ill at once that automation is frozen there.
    """
    named = service.find_nodes(call.session, [(one.node_id, one.provider_id, one.ref) for one in body.reports])
    unknown = [place for place, found in enumerate(named) if found is None]
    reports = [one.report(found) for one, found in zip(body.reports, named, strict=True) if found is not None]
    changed = service.report(call.session, reports)
    call.audit_target = "health"
    call.audit_detail = {"reports": len(reports), "changed": len(changed), "unknown": len(unknown)}
    return Reported(changed=changed, unknown=unknown)


@endpoint(
    router, "GET", FREEZES, permission="nodes:read", audience="operator", answer=ListOf[FreezeOut], summary="List frozen blocks"
)
def list_freezes(
    call: Call,
    in_force: Annotated[bool | None, Query(description="Only those in force, or only the others.", examples=[True])] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[FreezeOut]:
    """
    Blocks where nothing follows from nodes' health by itself, oldest first.
    """
    page = service.list_freezes(call.session, PageAsk(limit, page_token), in_force=in_force).map(FreezeOut.of)
    return ListOf(items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "POST",
    FREEZES,
    permission="nodes:write",
    audience="operator",
    status=201,
    answer=FreezeOut,
    summary="Freeze automation in a block",
    problems=(409,),
)
def freeze_block(call: Call, body: FreezeIn) -> FreezeOut:
    """
    No node of the block is replaced or put aside by itself until the freeze is lifted; people still can.
    """
    row = service.freeze(call.session, body.site, body.block, reason=body.reason, by=call.principal.id)
    assert row is not None
    call.audit_target, call.audit_detail = row.id, {"site": body.site, "block": body.block, "reason": body.reason}
    return FreezeOut.of(row)


@endpoint(
    router,
    "POST",
    FREEZES + "/{freeze_id}/actions/lift",
    permission="nodes:write",
    audience="operator",
    answer=FreezeOut,
    summary="Lift a freeze",
)
def lift_freeze(call: Call, freeze_id: str) -> FreezeOut:
    """
    What follows by itself follows again; lifting it twice changes nothing.
    """
    row = service.lift_freeze(call.session, freeze_id, by=call.principal.id)
    call.audit_target = freeze_id
    return FreezeOut.of(row)


@endpoint(
    router,
    "GET",
    "/v1/admin/repair-tickets",
    permission="nodes:read",
    audience="operator",
    answer=ListOf[TicketOut],
    summary="List repair tickets",
)
def list_repair_tickets(
    call: Call,
    is_open: Annotated[bool | None, Query(description="Only open ones, or only closed ones.", examples=[True])] = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[TicketOut]:
    """
    Repairs that were asked for, oldest first, with what was said of each node.
    """
    page = service.list_tickets(call.session, PageAsk(limit, page_token), is_open=is_open).map(TicketOut.of)
    return ListOf(items=list(page.items), next_page_token=page.next_page_token)
