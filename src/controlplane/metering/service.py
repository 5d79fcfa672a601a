"""
Meters and prices: intervals open and close in the transaction of the state change, usage comes from them, cost from dated lists.

A billable second is `[usable, release accepted)`. An allocation is metered once: repeats, in any order, change nothing. An interval
that would be empty is kept as an empty one, so that it bills nothing and still stops a late repeat of its start.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, decode_token, encode_token
from controlplane.metering import repository
from controlplane.metering.errors import PriceInPast
from controlplane.metering.models import IntervalRow, PriceBookRow, PriceRow
from controlplane.metering.states import (
    GROUP_KEYS,
    Amount,
    Cost,
    CurrentPrice,
    GroupKey,
    Interval,
    Mode,
    Opening,
    Price,
    PriceBook,
    SliceTime,
    UsageRow,
    Window,
    Work,
    WorkLine,
    gpu_microseconds,
)

__all__ = [
    "Amount",
    "Cost",
    "CurrentPrice",
    "GroupKey",
    "Interval",
    "Mode",
    "Opening",
    "Price",
    "PriceBook",
    "UsageRow",
    "Window",
    "Work",
    "WorkLine",
    "close_intervals",
    "create_price_book",
    "current_prices",
    "end_runs",
    "estimate",
    "group_keys",
    "list_intervals",
    "list_price_books",
    "note_runs",
    "note_spans",
    "open_intervals",
    "usage",
    "window",
    "work",
]

LONGEST_BY_DAY = timedelta(days=400)
MOST_ROWS = 20_000


def open_intervals(session: Session, openings: Iterable[Opening]) -> list[str]:
    """
    Each allocation is billed from the moment it became usable, but not from before its own start nor from the future; the ids of
    those that were not metered before are returned. Call it in the transaction of the state change, under the allocation's lock.
    """
    by_allocation: dict[str, Opening] = {}
    for one in openings:
        by_allocation.setdefault(one.allocation_id, one)
    return repository.open_intervals(session, list(by_allocation.values())) if by_allocation else []


def close_intervals(session: Session, allocation_ids: Iterable[str], *, at: datetime, evidence: str) -> list[str]:
    """
    Each allocation is billed up to `at` and no longer; the ids of those whose interval was open are returned. Read `at` from
    `cp_clock()` in the transaction of the state change, under the allocation's row lock. Closing twice changes nothing.
    """
    ids = sorted(set(allocation_ids))
    return repository.close_intervals(session, ids, at, evidence) if ids else []


def usage(
    session: Session,
    tenant_id: str | None,
    *,
    from_: datetime,
    to: datetime,
    group_by: Iterable[GroupKey] = (),
    project_id: str | None = None,
    reseller_id: str | None = None,
) -> list[UsageRow]:
    """
    What was held in `[from_, to)` per group, in the order of the groups; open intervals count up to the present. Without groups one
    row. No tenant means all tenants (of the reseller, when one is named). Raises Invalid for an empty window.
    """
    asked = set(group_by)
    _check_window(from_, to, by_day="day" in asked)
    keys = [one for one in GROUP_KEYS if one in asked]
    columns = [repository.COLUMNS[one] for one in keys]
    rows = repository.usage(
        session,
        keys,
        from_=from_,
        to=to,
        tenant_id=tenant_id,
        reseller_id=reseller_id,
        project_id=project_id,
        most=MOST_ROWS + 1,
    )
    if len(rows) > MOST_ROWS:
        refusal = FieldError("query.group_by", "too_many_groups", f"There are more than {MOST_ROWS} groups.")
        raise Invalid("That many groups are not answered at once: ask for a shorter window or fewer keys.", errors=[refusal])
    groups: dict[tuple[object, ...], dict[str | None, tuple[int, int, Decimal]]] = {}
    if not keys:
        groups[()] = {}
    for row in rows:
        group = groups.setdefault(tuple(getattr(row, one) for one in columns), {})
        group[row.currency] = (int(row.node_us), int(row.gpu_us), row.gpu_us_price)
    return [
        UsageRow(
            gpu_us=sum(gpu_us for _, gpu_us, _ in parts.values()),
            node_us=sum(node_us for node_us, _, _ in parts.values()),
            unpriced_gpu_us=parts[None][1] if None in parts else 0,
            costs=tuple(Cost(currency, parts[currency][2]) for currency in sorted(one for one in parts if one is not None)),
            **dict(zip(columns, group, strict=True)),  # type: ignore[arg-type]
        )
        for group, parts in groups.items()
    ]


def note_runs(session: Session, works: Iterable[Work]) -> None:
    """
    Runs of jobs are known as given: what was told before of a run with the same start is replaced, and an older one that was open has
    ended. Evidence of use beside the meter; nothing of it is billed.
    """
    held = [one for one in works if one.gpus > 0]
    if held:
        repository.note_runs(session, held)


def end_runs(session: Session, work_ids: Iterable[str]) -> None:
    """
    What was open of these has ended now. Repeats change nothing.
    """
    ids = sorted(set(work_ids))
    if ids:
        repository.end_runs(session, ids)


def note_spans(session: Session, works: Iterable[Work]) -> None:
    """
    A service held so many GPUs from one look to the next. Evidence of use beside the meter; nothing of it is billed.
    """
    held = [one for one in works if one.gpus > 0 and one.until is not None and one.until > one.since]
    if held:
        repository.note_spans(session, held)


def work(
    session: Session, ask: PageAsk, within: Window, *, tenant_id: str, project_id: str | None, cluster_id: str | None
) -> Page[WorkLine]:
    """
    A page of what the tenant's jobs and services used in the window, by id, each beside what was metered for its cluster.
    """
    after = "" if ask.token is None else decode_token(ask.token)
    rows = repository.work(
        session,
        from_=within.from_,
        to=within.to,
        tenant_id=tenant_id,
        project_id=project_id,
        cluster_id=cluster_id,
        after=after,
        most=ask.limit + 1,
    )
    kept = rows[: ask.limit]
    metered = (
        usage(session, tenant_id, from_=within.from_, to=within.to, group_by=["cluster"], project_id=project_id) if kept else []
    )
    of_cluster = {one.cluster_id: one.gpu_us for one in metered}
    lines = tuple(
        WorkLine(
            row.kind,
            row.work_id,
            row.project_id,
            row.cluster_id,
            gpu_microseconds(row.held),
            of_cluster.get(row.cluster_id, 0),
            tuple(SliceTime(one["profile"], int(one["us"])) for one in row.held if one["profile"]),
        )
        for row in kept
    )
    return Page(lines, encode_token(kept[-1].work_id) if len(rows) > len(kept) else None)


def window(session: Session, from_: datetime | None, to: datetime | None) -> Window:
    """
    The window asked for: from the start of this month in UTC, up to now, where nothing else is said. Raises Invalid when it is empty.
    """
    present = repository.now(session).astimezone(UTC)
    start = from_ if from_ is not None else present.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = to if to is not None else present
    if from_ is None and to is None:
        end = max(end, start + timedelta(microseconds=1))  # the very first moment of a month
    _check_window(start, end)
    return Window(start, end, present)


def group_keys(text: str, *, per_tenant: bool = False) -> list[GroupKey]:
    """
    The groups named in a comma-separated text, in our order, each once.
    """
    named = set(text.split(",")) | ({"tenant"} if per_tenant else set())
    return [one for one in GROUP_KEYS if one in named]


def _check_window(from_: datetime, to: datetime, *, by_day: bool = False) -> None:
    if from_ >= to:
        refusal = FieldError("query.to", "empty_window", "`to` must be later than `from`.")
        raise Invalid("The window is empty: `to` must be later than `from`.", errors=[refusal])
    if by_day and to - from_ > LONGEST_BY_DAY:
        refusal = FieldError("query.to", "window_too_long", f"By day a window has at most {LONGEST_BY_DAY.days} days.")
        raise Invalid(f"By day a window has at most {LONGEST_BY_DAY.days} days.", errors=[refusal])


def list_intervals(
    session: Session,
    ask: PageAsk,
    within: Window,
    *,
    tenant_id: str | None = None,
    reseller_id: str | None = None,
    project_id: str | None = None,
    cluster_id: str | None = None,
) -> Page[Interval]:
    """
    A page of the intervals that touch the window, whole: the evidence a bill can be walked back to.
    """
    page = repository.intervals(
        session,
        ask,
        from_=within.from_,
        to=within.to,
        tenant_id=tenant_id,
        reseller_id=reseller_id,
        project_id=project_id,
        cluster_id=cluster_id,
    )
    return page.map(_interval)


def _interval(row: IntervalRow) -> Interval:
    assert row.during.lower is not None
    return Interval(
        id=row.id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        cluster_id=row.cluster_id,
        allocation_id=row.allocation_id,
        instance_id=row.instance_id,
        instance_type=row.instance_type,
        site=row.site,
        gpus=row.gpus,
        mode=row.mode,
        started_at=row.during.lower,
        ended_at=row.during.upper,
        opened_by=row.opened_by,
        closed_by=row.closed_by,
    )


def create_price_book(
    session: Session, reseller_id: str | None, currency: str, valid_from: datetime | None, prices: Sequence[Price]
) -> PriceBook:
    """
    The reseller's list (none: the platform's) has one more version that holds from the moment on (none: now). Only the first one
    may start in the past; of two that start together the later one holds. Raises NotFound, Invalid, PriceInPast.
    """
    seller = reseller_id if reseller_id is not None else repository.platform_id(session)
    is_base = repository.is_platform(session, seller) if seller is not None else None
    if seller is None or is_base is None:
        raise NotFound
    _check_lines(prices, catalog.instance_type_names(session))
    repository.lock_books(session, seller)
    number, present = repository.last_number(session, seller) + 1, repository.now(session)
    start = valid_from if valid_from is not None else present
    if number > 1 and start < present:
        raise PriceInPast("Usage in the past was shown at the prices of that time; choose a moment from now on.", now=present)
    row = PriceBookRow(id=new_id("prb"), reseller_id=seller, is_base=is_base, number=number, currency=currency, valid_from=start)
    repository.add_book(session, row, prices)
    return _book(row, repository.lines_of(session, [row.id]))


def _check_lines(prices: Sequence[Price], known: set[str]) -> None:
    seen = set()
    for position, one in enumerate(prices):
        if one.instance_type not in known:
            refusal = FieldError(f"body.prices.{position}.instance_type", "unknown_instance_type", "It is not in the catalog.")
            raise Invalid(f"There is no instance type {one.instance_type}.", errors=[refusal])
        key = (one.instance_type, one.mode)
        if key in seen:
            refusal = FieldError(f"body.prices.{position}", "duplicate", "This instance type and mode have a price already.")
            raise Invalid("A price is given twice.", errors=[refusal])
        seen.add(key)


def _book(row: PriceBookRow, lines: Iterable[PriceRow]) -> PriceBook:
    return PriceBook(
        id=row.id,
        reseller_id=row.reseller_id,
        is_base=row.is_base,
        number=row.number,
        currency=row.currency,
        valid_from=row.valid_from,
        created_at=row.created_at,
        prices=tuple(Price(one.instance_type, one.mode, one.per_gpu_hour) for one in lines),  # type: ignore[arg-type]
    )


def list_price_books(session: Session, ask: PageAsk, *, reseller_id: str | None = None) -> Page[PriceBook]:
    """
    A page of price lists, oldest version first; of one reseller only when one is named.
    """
    page = repository.books(session, ask, reseller_id)
    lines: dict[str, list[PriceRow]] = {one.id: [] for one in page.items}
    for line in repository.lines_of(session, list(lines)):
        lines[line.price_book_id].append(line)
    return page.map(lambda row: _book(row, lines[row.id]))


def current_prices(session: Session, reseller_id: str, *, at: datetime | None = None) -> list[CurrentPrice]:
    """
    What the reseller's customers pay at the moment (none: now): its own line where it has one, else the platform's.
    """
    return [
        CurrentPrice(row.instance_type, row.mode, row.per_gpu_hour, row.currency, row.valid_from)
        for row in repository.current_prices(session, reseller_id, at)
    ]


def estimate(
    session: Session, tenant_id: str, *, instance_type: str, gpus: int, hours: Decimal = Decimal(1), mode: Mode = "on_demand"
) -> Amount | None:
    """
    What the tenant would pay for so many GPUs (of all nodes together) for so long at today's prices; none when there is no price.
    """
    seller = repository.seller_of(session, tenant_id)
    rows = repository.current_prices(session, seller, None, instance_type) if seller is not None else []
    found = next((one for one in rows if one.mode == mode), None)
    return Amount(found.per_gpu_hour * gpus * hours, found.currency) if found is not None else None
