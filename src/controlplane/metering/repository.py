"""
Every statement on intervals and price lists.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, Select, column, func, insert, select, table, text
from sqlalchemy.dialects.postgresql import Range
from sqlalchemy.orm import Session

from controlplane.kit.clock import CpClock
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.metering.models import IntervalRow, PriceBookRow, PriceRow
from controlplane.metering.states import GroupKey, Opening, Price, Work

# The seller of a tenant is a fact of another room's rows, which foreign keys and walls already lean on.
TENANTS = table("tenants", column("id"), column("reseller_id"))
RESELLERS = table("resellers", column("id"), column("is_platform"))

OPEN = text("""
WITH clock AS MATERIALIZED (SELECT cp_clock() AS now)
INSERT INTO meter_intervals
  (id, tenant_id, project_id, cluster_id, allocation_id, instance_id, instance_type, site, gpus, mode, opened_by, during)
SELECT o.id, o.tenant_id, o.project_id, o.cluster_id, o.allocation_id, o.instance_id, o.instance_type, o.site, o.gpus, o.mode,
  o.evidence, tstzrange(least(greatest(coalesce(o.usable_at, clock.now), o.not_before), clock.now), NULL, '[)')
FROM clock, unnest(CAST(:ids AS text[]), CAST(:tenants AS text[]), CAST(:projects AS text[]), CAST(:clusters AS text[]),
  CAST(:allocations AS text[]), CAST(:instances AS text[]), CAST(:types AS text[]), CAST(:sites AS text[]), CAST(:gpus AS bigint[]),
  CAST(:modes AS text[]), CAST(:evidences AS text[]), CAST(:usables AS timestamptz[]), CAST(:not_befores AS timestamptz[]))
  AS o (id, tenant_id, project_id, cluster_id, allocation_id, instance_id, instance_type, site, gpus, mode, evidence,
        usable_at, not_before)
WHERE NOT EXISTS (SELECT 1 FROM meter_intervals m WHERE m.allocation_id = o.allocation_id)
ON CONFLICT DO NOTHING RETURNING allocation_id""")

CLOSE = text("""
UPDATE meter_intervals
SET during = tstzrange(lower(during), greatest(lower(during), CAST(:at AS timestamptz)), '[)'), closed_by = :evidence
WHERE allocation_id = ANY(CAST(:allocations AS text[])) AND upper_inf(during)
RETURNING allocation_id""")

GIVEN = """
WITH given AS (SELECT * FROM jsonb_to_recordset(CAST(:works AS jsonb)) AS g(kind text, work_id text, part text, tenant_id text,
  project_id text, cluster_id text, gpus bigint, since timestamptz, until timestamptz, profile text, slices bigint, of_slices bigint)
  WHERE gpus > 0), """
RANGE = "tstzrange(g.since, CASE WHEN g.until IS NOT NULL THEN greatest(g.since, g.until) END, '[)')"
WORK_COLUMNS = "work_id, part, kind, tenant_id, project_id, cluster_id, gpus, profile, slices, of_slices"
# A run that nobody saw end has ended when the next one began.
RUNS = text(f"""{GIVEN} ended AS (
  UPDATE work_intervals w SET during = tstzrange(lower(w.during), greatest(lower(w.during), least(g.since, cp_clock())), '[)')
  FROM given g WHERE w.work_id = g.work_id AND w.part <> g.part AND upper_inf(w.during))
INSERT INTO work_intervals ({WORK_COLUMNS}, during) SELECT {WORK_COLUMNS}, {RANGE} FROM given g
ON CONFLICT (work_id, part) DO UPDATE SET during = EXCLUDED.during, gpus = EXCLUDED.gpus
  WHERE work_intervals.during <> EXCLUDED.during OR work_intervals.gpus <> EXCLUDED.gpus""")
END_RUNS = text("""
UPDATE work_intervals SET during = tstzrange(lower(during), greatest(lower(during), cp_clock()), '[)')
WHERE work_id = ANY(CAST(:works AS text[])) AND upper_inf(during)""")
SPANS = text(f"""{GIVEN} grown AS (
  UPDATE work_intervals w SET during = tstzrange(lower(w.during), g.until, '[)')
  FROM given g WHERE w.work_id = g.work_id AND w.gpus = g.gpus AND w.profile = g.profile AND w.slices = g.slices
    AND w.of_slices = g.of_slices AND upper(w.during) = g.since AND g.until > g.since RETURNING w.work_id, w.profile)
INSERT INTO work_intervals ({WORK_COLUMNS}, during) SELECT {WORK_COLUMNS}, {RANGE} FROM given g
WHERE g.until > g.since AND (g.work_id, g.profile) NOT IN (SELECT work_id, profile FROM grown)
  AND NOT EXISTS (SELECT 1 FROM work_intervals w WHERE w.work_id = g.work_id AND w.profile = g.profile AND w.during && {RANGE})
ON CONFLICT DO NOTHING""")

# A seller's time is cut where its own list or the platform's changes; in each piece both are fixed, and the seller's row wins.
PRICING = """
books AS MATERIALIZED (
  SELECT id, reseller_id, is_base, currency, valid_from,
    tstzrange(valid_from, lead(valid_from) OVER (PARTITION BY reseller_id ORDER BY valid_from, number), '[)') AS held
  FROM price_books
), cuts AS (
  SELECT s.reseller_id, b.valid_from AS at FROM sellers s JOIN books b ON b.reseller_id = s.reseller_id OR b.is_base
  UNION SELECT s.reseller_id, '-infinity'::timestamptz FROM sellers s
), pieces AS (
  SELECT reseller_id, at, tstzrange(at, lead(at) OVER (PARTITION BY reseller_id ORDER BY at), '[)') AS held FROM cuts
), pricing AS MATERIALIZED (
  SELECT p.reseller_id, p.held, own.id AS own_id, own.currency AS own_currency, own.valid_from AS own_from,
    base.id AS base_id, base.currency AS base_currency, base.valid_from AS base_from
  FROM pieces p
  LEFT JOIN books own ON own.reseller_id = p.reseller_id AND own.held @> p.at
  LEFT JOIN books base ON base.is_base AND base.held @> p.at
)"""

COLUMNS: dict[GroupKey, str] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "cluster": "cluster_id",
    "instance_type": "instance_type",
    "day": "day",
    "site": "site",
}
DAYS = """
  CROSS JOIN LATERAL generate_series(
    date_trunc('day', lower(c.span) AT TIME ZONE 'UTC'), upper(c.span) AT TIME ZONE 'UTC', interval '1 day') AS d (local)
  CROSS JOIN LATERAL (SELECT d.local::date AS day,
    tstzrange(d.local AT TIME ZONE 'UTC', (d.local + interval '1 day') AT TIME ZONE 'UTC', '[)') AS all_day) AS cut"""


def open_intervals(session: Session, openings: Sequence[Opening]) -> list[str]:
    """
    Allocations that were never metered are metered from now on; their ids are returned.
    """
    parameters = {
        "ids": [new_id("mtr") for _ in openings],
        "tenants": [one.tenant_id for one in openings],
        "projects": [one.project_id for one in openings],
        "clusters": [one.cluster_id for one in openings],
        "allocations": [one.allocation_id for one in openings],
        "instances": [one.instance_id for one in openings],
        "types": [one.instance_type for one in openings],
        "sites": [one.site for one in openings],
        "gpus": [one.gpus for one in openings],
        "modes": [one.mode for one in openings],
        "evidences": [one.evidence for one in openings],
        "usables": [one.usable_at for one in openings],
        "not_befores": [one.not_before for one in openings],
    }
    return list(session.scalars(OPEN, parameters))


def close_intervals(session: Session, allocation_ids: Sequence[str], at: datetime, evidence: str) -> list[str]:
    """
    The open intervals of these allocations end at the moment, or are empty when they began later; returns the allocations' ids.
    """
    return list(session.scalars(CLOSE, {"allocations": list(allocation_ids), "at": at, "evidence": evidence}))


def usage(
    session: Session,
    group_by: Sequence[GroupKey],
    *,
    from_: datetime,
    to: datetime,
    tenant_id: str | None,
    reseller_id: str | None,
    project_id: str | None,
    most: int,
) -> Sequence[Row[Any]]:
    """
    Sums per group and currency (none where unpriced), `most` at most: node_us, gpu_us, gpu_us_price. Open intervals count up to now.
    """
    filters = "".join(
        f" AND {clause}"
        for clause, value in (
            ("i.tenant_id = :tenant_id", tenant_id),
            ("t.reseller_id = :reseller_id", reseller_id),
            ("i.project_id = :project_id", project_id),
        )
        if value is not None
    )
    parameters = {
        "from_": from_,
        "to": to,
        "tenant_id": tenant_id,
        "reseller_id": reseller_id,
        "project_id": project_id,
        "most": most,
    }
    return session.execute(text(_usage_query(group_by, filters)), parameters).all()


def _usage_query(group_by: Sequence[GroupKey], filters: str) -> str:
    selected = "".join(f"{COLUMNS[one]}, " for one in group_by)
    by_day = "day" in group_by
    return f"""
WITH clock AS MATERIALIZED (SELECT cp_clock() AS now),
clipped AS MATERIALIZED (
  SELECT i.tenant_id, t.reseller_id, i.project_id, i.cluster_id, i.instance_type, i.site, i.mode, i.gpus,
    tstzrange(lower(i.during), coalesce(upper(i.during), greatest(lower(i.during), clock.now)), '[)')
      * tstzrange(:from_, :to, '[)') AS span
  FROM clock, meter_intervals i JOIN tenants t ON t.id = i.tenant_id
  WHERE i.during && tstzrange(:from_, :to, '[)'){filters}
), sellers AS (SELECT DISTINCT reseller_id FROM clipped), {PRICING},
parts AS (
  SELECT c.*, {"cut.day, c.span * cut.all_day" if by_day else "c.span"} AS part
  FROM clipped c {DAYS if by_day else ""} WHERE NOT isempty(c.span)
), priced AS (
  SELECT c.*, c.part * p.held AS piece, coalesce(own.per_gpu_hour, base.per_gpu_hour) AS price,
    CASE WHEN own.per_gpu_hour IS NOT NULL THEN p.own_currency
         WHEN base.per_gpu_hour IS NOT NULL THEN p.base_currency END AS currency
  FROM parts c JOIN pricing p ON p.reseller_id = c.reseller_id AND p.held && c.part
  LEFT JOIN prices own ON own.price_book_id = p.own_id AND own.instance_type = c.instance_type AND own.mode = c.mode
  LEFT JOIN prices base ON base.price_book_id = p.base_id AND base.instance_type = c.instance_type AND base.mode = c.mode
), timed AS (
  SELECT p.*, (extract(epoch FROM upper(piece) - lower(piece)) * 1000000)::bigint AS us FROM priced p
)
SELECT {selected}currency, sum(us) AS node_us, sum(us * gpus) AS gpu_us, sum(us * gpus * price) AS gpu_us_price
FROM timed GROUP BY {selected}currency ORDER BY {selected}currency LIMIT :most"""


def note_runs(session: Session, works: Sequence[Work]) -> None:
    """
    The runs of jobs stand as given; a run that was open before another one has ended.
    """
    session.execute(RUNS, {"works": json.dumps([one.document() for one in works])})


def end_runs(session: Session, work_ids: Sequence[str]) -> None:
    """
    No run of these is open any more: what was, has ended now.
    """
    session.execute(END_RUNS, {"works": list(work_ids)})


def note_spans(session: Session, works: Sequence[Work]) -> None:
    """
    The times of services are kept, those of each profile by themselves; one that goes on where the last ended, with as many GPUs or
    slices, makes it longer. A time that was told before, whole or in part, is not counted again.
    """
    session.execute(SPANS, {"works": json.dumps([one.document() for one in works])})


def work(
    session: Session,
    *,
    from_: datetime,
    to: datetime,
    tenant_id: str,
    project_id: str | None,
    cluster_id: str | None,
    after: str,
    most: int,
) -> Sequence[Row[Any]]:
    """
    What each job and service held in the window, by id, `most` at most; open runs count up to now. `held` is one document for each profile:
    how many GPUs or slices times how long, in microseconds, and the share of a GPU that one of them is.
    """
    filters = "".join(
        f" AND w.{name} = :{name}" for name, value in (("project_id", project_id), ("cluster_id", cluster_id)) if value is not None
    )
    query = f"""
WITH clock AS MATERIALIZED (SELECT cp_clock() AS now), clipped AS (
  SELECT w.kind, w.work_id, w.project_id, w.cluster_id, w.gpus, w.profile, w.slices, w.of_slices,
    tstzrange(lower(w.during), coalesce(upper(w.during), greatest(lower(w.during), clock.now)), '[)')
      * tstzrange(:from_, :to, '[)') AS span
  FROM clock, work_intervals w
  WHERE w.tenant_id = :tenant_id AND w.work_id > :after AND w.during && tstzrange(:from_, :to, '[)'){filters}
)
, kept AS (
  SELECT kind, work_id, project_id, cluster_id, profile, slices, of_slices,
    sum(gpus * (extract(epoch FROM upper(span) - lower(span)) * 1000000)::bigint) AS us
  FROM clipped WHERE NOT isempty(span) GROUP BY kind, work_id, project_id, cluster_id, profile, slices, of_slices
)
SELECT kind, work_id, project_id, cluster_id,
  jsonb_agg(jsonb_build_object('profile', profile, 'slices', slices, 'of', of_slices, 'us', us) ORDER BY profile) AS held
FROM kept GROUP BY kind, work_id, project_id, cluster_id ORDER BY work_id LIMIT :most"""
    given = {"from_": from_, "to": to, "tenant_id": tenant_id, "project_id": project_id, "cluster_id": cluster_id}
    return session.execute(text(query), given | {"after": after, "most": most}).all()


def intervals(
    session: Session,
    ask: PageAsk,
    *,
    from_: datetime,
    to: datetime,
    tenant_id: str | None,
    reseller_id: str | None,
    project_id: str | None,
    cluster_id: str | None,
) -> Page[IntervalRow]:
    """
    A page of the intervals that touch the window.
    """
    query: Select[Any] = select(IntervalRow).where(IntervalRow.during.overlaps(Range(from_, to, bounds="[)")))
    if tenant_id is not None:
        query = query.where(IntervalRow.tenant_id == tenant_id)
    if reseller_id is not None:
        query = query.where(IntervalRow.tenant_id.in_(select(TENANTS.c.id).where(TENANTS.c.reseller_id == reseller_id)))
    if project_id is not None:
        query = query.where(IntervalRow.project_id == project_id)
    if cluster_id is not None:
        query = query.where(IntervalRow.cluster_id == cluster_id)
    return fetch_page(session, query, IntervalRow.id.expression, ask)


def now(session: Session) -> datetime:
    """
    The database's clock.
    """
    return session.execute(select(CpClock())).scalar_one()


def seller_of(session: Session, tenant_id: str) -> str | None:
    """
    The reseller of the tenant, when the tenant may be seen.
    """
    return session.execute(select(TENANTS.c.reseller_id).where(TENANTS.c.id == tenant_id)).scalar_one_or_none()


def is_platform(session: Session, reseller_id: str) -> bool | None:
    """
    Whether the reseller is the platform itself; none when there is no such reseller to be seen.
    """
    return session.execute(select(RESELLERS.c.is_platform).where(RESELLERS.c.id == reseller_id)).scalar_one_or_none()


def platform_id(session: Session) -> str | None:
    """
    The platform's own reseller.
    """
    return session.execute(select(RESELLERS.c.id).where(RESELLERS.c.is_platform)).scalar_one_or_none()


def lock_books(session: Session, reseller_id: str) -> None:
    """
    This transaction alone may add a version to the reseller's list.
    """
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"price-books:{reseller_id}"})


def last_number(session: Session, reseller_id: str) -> int:
    """
    The number of the reseller's newest version; 0 without one.
    """
    query = select(func.coalesce(func.max(PriceBookRow.number), 0)).where(PriceBookRow.reseller_id == reseller_id)
    return int(session.execute(query).scalar_one())


def add_book(session: Session, row: PriceBookRow, prices: Sequence[Price]) -> None:
    """
    The version is stored with its lines.
    """
    session.add(row)
    session.flush()
    if prices:
        session.execute(
            insert(PriceRow),
            [
                {"price_book_id": row.id, "instance_type": one.instance_type, "mode": one.mode, "per_gpu_hour": one.per_gpu_hour}
                for one in prices
            ],
        )
    session.refresh(row)


def books(session: Session, ask: PageAsk, reseller_id: str | None) -> Page[PriceBookRow]:
    """
    A page of price lists; of one reseller only when one is named.
    """
    query: Select[Any] = select(PriceBookRow)
    if reseller_id is not None:
        query = query.where(PriceBookRow.reseller_id == reseller_id)
    return fetch_page(session, query, PriceBookRow.id.expression, ask)


def lines_of(session: Session, book_ids: Sequence[str]) -> list[PriceRow]:
    """
    The lines of the lists in order.
    """
    query = select(PriceRow).where(PriceRow.price_book_id.in_(book_ids))
    return list(session.scalars(query.order_by(PriceRow.price_book_id, PriceRow.instance_type, PriceRow.mode)))


def current_prices(session: Session, reseller_id: str, at: datetime | None, instance_type: str | None = None) -> Sequence[Row[Any]]:
    """
    What the reseller's customers pay at a moment (none: now), one row per instance type and mode.
    """
    query = f"""
WITH clock AS MATERIALIZED (SELECT coalesce(CAST(:at AS timestamptz), cp_clock()) AS now),
sellers AS (SELECT CAST(:reseller_id AS text) AS reseller_id), {PRICING}
SELECT x.instance_type, x.mode, coalesce(own.per_gpu_hour, base.per_gpu_hour) AS per_gpu_hour,
  CASE WHEN own.per_gpu_hour IS NOT NULL THEN p.own_currency ELSE p.base_currency END AS currency,
  CASE WHEN own.per_gpu_hour IS NOT NULL THEN p.own_from ELSE p.base_from END AS valid_from
FROM clock JOIN pricing p ON p.held @> clock.now
JOIN LATERAL (SELECT DISTINCT instance_type, mode FROM prices WHERE price_book_id IN (p.own_id, p.base_id)) x ON true
LEFT JOIN prices own ON own.price_book_id = p.own_id AND own.instance_type = x.instance_type AND own.mode = x.mode
LEFT JOIN prices base ON base.price_book_id = p.base_id AND base.instance_type = x.instance_type AND base.mode = x.mode
WHERE CAST(:instance_type AS text) IS NULL OR x.instance_type = :instance_type
ORDER BY x.instance_type, x.mode"""
    return session.execute(text(query), {"reseller_id": reseller_id, "at": at, "instance_type": instance_type}).all()
