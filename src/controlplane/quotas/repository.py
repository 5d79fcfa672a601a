"""
Every statement on the counters.

The base row (no model, no site) of a scope and resource is the lock of all its counters. Whoever changes one holds the base
row first, and base rows are locked in the order depth, scope, resource. So no two takes can wait for each other, and a counter
that is added while others take starts at what is really held.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, literal, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from controlplane.kit.ids import new_id
from controlplane.quotas.models import QuotaRow
from controlplane.quotas.states import Need, ScopeRef

NEEDS = """
WITH level AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:scopes AS text[]), CAST(:depths AS bigint[]),
                       CAST(:resellers AS text[]), CAST(:tenants AS text[])) AS l (kind, id, depth, reseller_id, tenant_id)
), need AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:resources AS text[]), CAST(:models AS text[]), CAST(:sites AS text[]), CAST(:amounts AS bigint[]))
    AS n (resource, gpu_model, site, amount)
)"""

ASKED = """, asked AS MATERIALIZED (
  SELECT q.id, q.depth, q.scope_kind, q.resource, q.gpu_model, q.site, q.ceiling, q.used, sum(n.amount)::bigint AS amount
  FROM quotas q JOIN level l ON l.id = q.scope_id JOIN need n
    ON n.resource = q.resource AND q.gpu_model IN ('', n.gpu_model) AND q.site IN ('', n.site)
  GROUP BY q.id
)"""

# Nothing is locked while a base row is missing, so that rows added in between cannot upset the order of the locks.
LOCK = text(
    NEEDS
    + """, base AS MATERIALIZED (
  SELECT l.id AS scope_id, l.depth, n.resource, q.id
  FROM level l CROSS JOIN (SELECT DISTINCT resource FROM need) n
  LEFT JOIN quotas q ON q.scope_id = l.id AND q.resource = n.resource AND q.gpu_model = '' AND q.site = ''
), locked AS MATERIALIZED (
  SELECT q.id FROM quotas q
  WHERE q.id IN (SELECT id FROM base) AND NOT EXISTS (SELECT 1 FROM base WHERE id IS NULL)
  ORDER BY q.depth, q.scope_id, q.resource FOR NO KEY UPDATE
)
SELECT (SELECT count(*) FROM locked) AS locked, b.scope_id, b.resource
FROM (VALUES (1)) AS one LEFT JOIN base b ON b.id IS NULL
ORDER BY b.depth, b.scope_id, b.resource"""
)

# Runs in a newer snapshot than LOCK and under its locks: it sees every counter. The UPDATE decides; all of it happens or nothing.
TAKE = text(
    NEEDS
    + ASKED
    + """, refused AS MATERIALIZED (SELECT * FROM asked WHERE used + amount > ceiling)
, taken AS (
  UPDATE quotas q SET used = q.used + a.amount FROM asked a
  WHERE q.id = a.id AND (q.ceiling IS NULL OR q.used + a.amount <= q.ceiling) AND NOT EXISTS (SELECT 1 FROM refused)
  RETURNING q.id
), first AS (
  INSERT INTO quotas (id, scope_kind, scope_id, depth, reseller_id, tenant_id, resource, gpu_model, site, used)
  SELECT i.id, l.kind, l.id, l.depth, l.reseller_id, l.tenant_id, n.resource, n.gpu_model, n.site, n.amount
  FROM unnest(CAST(:ids AS text[]), CAST(:id_levels AS bigint[]), CAST(:id_needs AS bigint[])) AS i (id, level, need)
  JOIN (SELECT *, row_number() OVER (ORDER BY depth) AS position FROM level) l ON l.position = i.level
  JOIN (SELECT *, row_number() OVER (ORDER BY resource, gpu_model, site) AS position FROM need) n ON n.position = i.need
  WHERE NOT EXISTS (SELECT 1 FROM refused) AND NOT EXISTS (
    SELECT 1 FROM quotas q
    WHERE q.scope_id = l.id AND q.resource = n.resource AND q.gpu_model = n.gpu_model AND q.site = n.site)
  RETURNING id
)
SELECT (SELECT count(*) FROM asked) AS asked, (SELECT count(*) FROM taken) AS taken,
  r.scope_kind, r.resource, r.gpu_model, r.site, r.ceiling, r.used, r.amount
FROM (VALUES (1)) AS one LEFT JOIN refused r ON true ORDER BY r.depth DESC, r.resource, r.gpu_model, r.site"""
)

GIVE_BACK = text(
    NEEDS
    + ASKED
    + """, exact AS (SELECT count(*) AS wanted FROM level CROSS JOIN need)
, found AS (SELECT count(*) AS there FROM quotas q JOIN level l ON l.id = q.scope_id JOIN need n
    ON n.resource = q.resource AND q.gpu_model = n.gpu_model AND q.site = n.site)
, given AS (UPDATE quotas q SET used = q.used - a.amount FROM asked a WHERE q.id = a.id RETURNING q.id)
SELECT wanted - there AS missing, (SELECT count(*) FROM given) AS given FROM exact, found"""
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    A counter that has no room.
    """

    scope_kind: str
    """Level of the counter."""
    resource: str
    """Of what."""
    gpu_model: str
    """Of which model; empty: all."""
    site: str
    """In which site; empty: everywhere."""
    ceiling: int
    """The limit."""
    used: int
    """Held now."""
    amount: int
    """Asked."""


def _parameters(levels: Sequence[ScopeRef], needs: Sequence[Need]) -> dict[str, Any]:
    return {
        "kinds": [one.kind for one in levels],
        "scopes": [one.id for one in levels],
        "depths": [one.depth for one in levels],
        "resellers": [one.reseller_id for one in levels],
        "tenants": [one.tenant_id for one in levels],
        "resources": [one.resource for one in needs],
        "models": [one.gpu_model for one in needs],
        "sites": [one.site for one in needs],
        "amounts": [one.amount for one in needs],
    }


def lock(session: Session, levels: Sequence[ScopeRef], needs: Sequence[Need]) -> None:
    """
    This transaction alone may change the counters of these scopes for these resources; base rows that were missing are there.
    """
    parameters = _parameters(levels, needs)
    missing = [row for row in session.execute(LOCK, parameters) if row.scope_id is not None]
    if missing:
        by_id = {one.id: one for one in levels}
        add(session, [_row(by_id[row.scope_id], row.resource) for row in missing])
        session.execute(LOCK, parameters)


def take(session: Session, levels: Sequence[ScopeRef], needs: Sequence[Need]) -> list[Refusal]:
    """
    Every counter has risen, or none has and the full ones are returned, the lowest level first. Call `lock` first.
    """
    pairs = [(level, need) for level in range(1, len(levels) + 1) for need in range(1, len(needs) + 1)]
    parameters = _parameters(levels, needs) | {
        "ids": [new_id("quo") for _ in pairs],
        "id_levels": [level for level, _ in pairs],
        "id_needs": [need for _, need in pairs],
    }
    rows = session.execute(TAKE, parameters).all()
    refusals = [
        Refusal(row.scope_kind, row.resource, row.gpu_model, row.site, row.ceiling, row.used, row.amount)
        for row in rows
        if row.scope_kind is not None
    ]
    if not refusals and rows[0].taken != rows[0].asked:
        raise AssertionError(f"{rows[0].taken} of {rows[0].asked} counters rose")
    return refusals


def give_back(session: Session, levels: Sequence[ScopeRef], needs: Sequence[Need]) -> int:
    """
    Every counter has fallen; the number of counters that should exist and do not is returned. Call `lock` first.
    """
    return int(session.execute(GIVE_BACK, _parameters(levels, needs)).one().missing)


def _row(scope: ScopeRef, resource: str, *, ceiling: int | None = None) -> dict[str, Any]:
    return {
        "id": new_id("quo"),
        "scope_kind": scope.kind,
        "scope_id": scope.id,
        "depth": scope.depth,
        "reseller_id": scope.reseller_id,
        "tenant_id": scope.tenant_id,
        "resource": resource,
        "ceiling": ceiling,
    }


def add_base(session: Session, scope: ScopeRef, ceilings: Iterable[tuple[str, int | None]]) -> None:
    """
    The scope has a base row per resource; rows that were there keep their limit.
    """
    add(session, [_row(scope, resource, ceiling=ceiling) for resource, ceiling in ceilings])


def add(session: Session, rows: Sequence[dict[str, Any]]) -> None:
    """
    The rows are there, these or earlier ones.
    """
    session.execute(
        upsert(QuotaRow)
        .values(list(rows))
        .on_conflict_do_nothing(index_elements=[QuotaRow.scope_id, QuotaRow.resource, QuotaRow.gpu_model, QuotaRow.site])
    )


def lock_scope(session: Session, scope: ScopeRef, resources: Sequence[str]) -> None:
    """
    This transaction alone may change the scope's counters.
    """
    add_base(session, scope, [(resource, None) for resource in sorted(resources)])
    session.execute(
        select(QuotaRow.id)
        .where(QuotaRow.scope_id == scope.id, QuotaRow.gpu_model == "", QuotaRow.site == "", QuotaRow.resource.in_(resources))
        .order_by(QuotaRow.resource)
        .with_for_update(key_share=True)
    )


def rows_of(session: Session, scope_ids: Sequence[str]) -> list[QuotaRow]:
    """
    All counters of the scopes, as they are now, in order.
    """
    query = (
        select(QuotaRow)
        .where(QuotaRow.scope_id.in_(scope_ids))
        .order_by(QuotaRow.depth, QuotaRow.scope_id, QuotaRow.resource, QuotaRow.gpu_model, QuotaRow.site)
        .execution_options(populate_existing=True)
    )
    return list(session.scalars(query))


def set_ceiling(session: Session, scope: ScopeRef, resource: str, gpu_model: str, site: str, ceiling: int | None) -> None:
    """
    The counter has this limit; a counter that is new starts at what is held. Call `lock_scope` first.
    """
    mine = [row for row in rows_of(session, [scope.id]) if row.resource == resource]
    row = next((one for one in mine if (one.gpu_model, one.site) == (gpu_model, site)), None)
    if row is None:
        held = sum(one.used for one in mine if _counted_in(one, gpu_model, site))
        values = _row(scope, resource, ceiling=ceiling) | {"gpu_model": gpu_model, "site": site, "used": held, "version": 2}
        session.execute(insert(QuotaRow).values(**values))
    elif row.ceiling != ceiling:
        session.execute(
            text("UPDATE quotas SET ceiling = :ceiling, version = version + 1, updated_at = cp_clock() WHERE id = :id"),
            {"ceiling": ceiling, "id": row.id},
        )


def _counted_in(row: QuotaRow, gpu_model: str, site: str) -> bool:
    """
    Every need with a model and a site has a row of exactly these: what is held under a wider limit is the sum of them.
    """
    return row.gpu_model != "" and row.site != "" and gpu_model in {"", row.gpu_model} and site in {"", row.site}


def all_rows(session: Session) -> list[QuotaRow]:
    """
    Every counter that the transaction's wall shows.
    """
    return list(session.scalars(select(QuotaRow).execution_options(populate_existing=True)))


def page_of_scopes(
    session: Session, tenant_id: str | None, after: tuple[int, str] | None, limit: int, *, project_id: str | None = None
) -> list[tuple[int, str]]:
    """
    (depth, scope id) of the tenant and its projects (none: of all) after a position; of one project only when one is named.
    """
    place = tuple_(QuotaRow.depth, QuotaRow.scope_id)
    query = select(QuotaRow.depth, QuotaRow.scope_id).distinct()
    if tenant_id is not None:
        query = query.where(QuotaRow.tenant_id == tenant_id)
    if project_id is not None:
        query = query.where(QuotaRow.scope_id == project_id)
    if after is not None:
        query = query.where(place > tuple_(literal(after[0]), literal(after[1])))
    rows = session.execute(query.order_by(QuotaRow.depth, QuotaRow.scope_id).limit(limit))
    return [(row.depth, row.scope_id) for row in rows]
