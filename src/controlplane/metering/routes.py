"""
Usage and prices over HTTP.
"""

from datetime import datetime

from fastapi import APIRouter

from controlplane.kit.paging import PageAsk
from controlplane.metering import service
from controlplane.metering.schemas import (
    CurrentPriceOut,
    CurrentPrices,
    From,
    GroupBy,
    IdFilter,
    IntervalOut,
    PageLimit,
    PageToken,
    PriceBookCreate,
    PriceBookOut,
    SellerGroupBy,
    To,
    UsageOut,
    UsageReport,
    WorkOut,
)
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import ListOf

router = APIRouter(tags=["usage"])


@endpoint(
    router,
    "GET",
    "/v1/usage",
    permission="usage:read",
    answer=UsageReport,
    summary="Show what was held and what it costs",
    works_suspended=True,
)
def get_usage(call: Call, from_: From = None, to: To = None, group_by: GroupBy = "", project_id: IdFilter = None) -> UsageReport:
    """
    Sums over the tenant's metered intervals inside `[from, to)`; what is still held counts up to now. Sums of any grouping are exact.
    A key of a project sees its project only.
    """
    if project_id is not None:
        call.principal.check_project(project_id)
    mine = project_id or call.principal.project_id or None
    return _report(call, (from_, to), group_by, tenant_id=call.principal.tenant_id, project_id=mine)


@endpoint(
    router,
    "GET",
    "/v1/usage/intervals",
    permission="usage:read",
    answer=ListOf[IntervalOut],
    summary="List the metered intervals",
    works_suspended=True,
)
def list_usage_intervals(
    call: Call,
    from_: From = None,
    to: To = None,
    project_id: IdFilter = None,
    cluster_id: IdFilter = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[IntervalOut]:
    """
    Every interval that touches `[from, to)`, whole, with the evidence of both ends: what a bill can be walked back to.
    """
    if project_id is not None:
        call.principal.check_project(project_id)
    mine = project_id or call.principal.project_id or None
    window = service.window(call.session, from_, to)
    page = service.list_intervals(
        call.session, PageAsk(limit, page_token), window, tenant_id=call.principal.tenant_id, project_id=mine, cluster_id=cluster_id
    ).map(IntervalOut.of)
    return ListOf[IntervalOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/usage/work",
    permission="usage:read",
    answer=ListOf[WorkOut],
    summary="Show what jobs and services used",
    works_suspended=True,
)
def list_work(
    call: Call,
    from_: From = None,
    to: To = None,
    project_id: IdFilter = None,
    cluster_id: IdFilter = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[WorkOut]:
    """
    A line for each job and service that held GPUs inside `[from, to)`, beside what was metered for its cluster. Only the latter is
    billed. Runs that go on count up to now, services up to the last look at them.
    """
    if project_id is not None:
        call.principal.check_project(project_id)
    mine = project_id or call.principal.project_id or None
    window, ask = service.window(call.session, from_, to), PageAsk(limit, page_token)
    page = service.work(call.session, ask, window, tenant_id=call.principal.tenant_id, project_id=mine, cluster_id=cluster_id).map(
        WorkOut.of
    )
    return ListOf[WorkOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    "/v1/reseller/usage",
    permission="usage:read",
    audience="reseller",
    answer=UsageReport,
    summary="Show what the customers held and what they pay",
)
def get_reseller_usage(
    call: Call, from_: From = None, to: To = None, group_by: SellerGroupBy = "", tenant_id: IdFilter = None
) -> UsageReport:
    """
    Sums per customer of the seller, at the customers' prices.
    """
    seller = call.principal.reseller_id or None
    return _report(call, (from_, to), group_by, per_tenant=True, tenant_id=tenant_id, reseller_id=seller)


@endpoint(
    router,
    "GET",
    "/v1/admin/usage",
    permission="usage:read",
    audience="operator",
    answer=UsageReport,
    summary="Show what all tenants held and what they pay",
)
def get_platform_usage(
    call: Call,
    from_: From = None,
    to: To = None,
    group_by: SellerGroupBy = "",
    tenant_id: IdFilter = None,
    reseller_id: IdFilter = None,
) -> UsageReport:
    """
    Sums per tenant, at the tenants' prices.
    """
    return _report(call, (from_, to), group_by, per_tenant=True, tenant_id=tenant_id, reseller_id=reseller_id)


def _report(
    call: Call,
    asked: tuple[datetime | None, datetime | None],
    group_by: str,
    *,
    per_tenant: bool = False,
    tenant_id: str | None = None,
    reseller_id: str | None = None,
    project_id: str | None = None,
) -> UsageReport:
    window = service.window(call.session, *asked)
    keys = service.group_keys(group_by, per_tenant=per_tenant)
    rows = service.usage(
        call.session,
        tenant_id,
        from_=window.from_,
        to=window.to,
        group_by=keys,
        project_id=project_id,
        reseller_id=reseller_id,
    )
    items = [UsageOut.of(row) for row in rows]
    return UsageReport(from_=window.from_, to=window.to, group_by=list(keys), as_of=min(window.to, window.now), items=items)


@endpoint(
    router,
    "GET",
    "/v1/prices",
    permission="prices:read",
    answer=CurrentPrices,
    summary="Show the prices that hold now",
    tags=["prices"],
)
def list_prices(call: Call) -> CurrentPrices:
    """
    What the tenant pays now, per instance type and mode.
    """
    prices = service.current_prices(call.session, call.principal.reseller_id)
    return CurrentPrices(items=[CurrentPriceOut.of(one) for one in prices])


@endpoint(
    router,
    "POST",
    "/v1/admin/price-books",
    permission="prices:write",
    audience="operator",
    status=201,
    answer=PriceBookOut,
    summary="Add a version of a price list",
    problems=(404,),
    tags=["prices"],
)
def create_price_book(call: Call, body: PriceBookCreate) -> Reply:
    """
    The list has one more version; versions are never changed. Usage before `valid_from` keeps the prices of its time.
    """
    lines = [one.plain() for one in body.prices]
    book = service.create_price_book(call.session, body.reseller_id, body.currency, body.valid_from, lines)
    call.audit_target = book.id
    return Reply(PriceBookOut.of(book))


@endpoint(
    router,
    "GET",
    "/v1/admin/price-books",
    permission="prices:read",
    audience="operator",
    answer=ListOf[PriceBookOut],
    summary="List all versions of price lists",
    tags=["prices"],
)
def list_price_books(
    call: Call,
    reseller_id: IdFilter = None,
    limit: PageLimit = 50,
    page_token: PageToken = None,
) -> ListOf[PriceBookOut]:
    """
    Every version that was ever entered, oldest first.
    """
    page = service.list_price_books(call.session, PageAsk(limit, page_token), reseller_id=reseller_id).map(PriceBookOut.of)
    return ListOf[PriceBookOut](items=list(page.items), next_page_token=page.next_page_token)
