"""
Every query of the activity room.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import LargeBinary, RowMapping, Select, bindparam, column, literal, select, table, text, tuple_
from sqlalchemy.orm import Session

from controlplane.kit.access import Principal
from controlplane.kit.audit import AuditEntryRow, AuditHeadRow
from controlplane.kit.events import EventRow
from controlplane.kit.operations import OperationRow
from controlplane.kit.paging import Page, PageAsk, fetch_page

ROWS = {"node": "nodes", "cluster": "clusters", "job": "jobs", "service": "services", "fabric_check": "fabric_checks"}
"""Driven kinds and their tables."""
XACT_DIGITS = 20


def _within(query: Select[Any], rows: Any, principal: Principal) -> Select[Any]:
    """
    The query narrowed to what the principal may see; row-level security stands behind it.
    """
    if principal.scope_kind == "project":
        return query.where(rows.project_id == principal.project_id, rows.tenant_id == principal.tenant_id)
    if principal.scope_kind == "tenant":
        return query.where(rows.tenant_id == principal.tenant_id)
    if principal.scope_kind == "reseller":
        tenants = table("tenants", column("id"), column("reseller_id"))
        return query.where(rows.tenant_id.in_(select(tenants.c.id).where(tenants.c.reseller_id == principal.reseller_id)))
    return query


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """
    Which operations are asked for; None: any.
    """

    state: str | None = None
    """State."""
    type: str | None = None
    """`cluster.create`, …"""
    resource_id: str | None = None
    """Of this resource."""
    tenant_id: str | None = None
    """Of this tenant."""


def list_operations(session: Session, principal: Principal, which: OperationFilter, ask: PageAsk) -> Page[OperationRow]:
    """
    A page of operations that the principal may see.
    """
    query = _within(select(OperationRow), OperationRow, principal)
    for one, value in (
        (OperationRow.state, which.state),
        (OperationRow.type, which.type),
        (OperationRow.resource_id, which.resource_id),
        (OperationRow.tenant_id, which.tenant_id),
    ):
        if value is not None:
            query = query.where(one == value)
    return fetch_page(session, query, OperationRow.id, ask)


def find_operation(session: Session, principal: Principal, operation_id: str) -> OperationRow | None:
    """
    The operation as it is now, when the principal may see it.
    """
    query = _within(select(OperationRow).where(OperationRow.id == operation_id), OperationRow, principal)
    return session.execute(query, execution_options={"populate_existing": True}).scalar_one_or_none()


def lock_row(session: Session, kind: str, resource_id: str) -> RowMapping | None:
    """
    All columns of the driven row, locked until the transaction ends, and whether it is past its deadline.
    """
    statement = text(f"SELECT *, coalesce(deadline_at < cp_clock(), false) AS overdue FROM {ROWS[kind]} WHERE id = :id FOR UPDATE")
    return session.execute(statement, {"id": resource_id}).mappings().one_or_none()


def find_acting(session: Session, instance_id: str) -> str | None:
    """
    The id of the node on which an action of the instance's tenant is under way.
    """
    return session.execute(text("SELECT id FROM nodes WHERE acting_for = :id"), {"id": instance_id}).scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class Standing:
    """
    Where a driven row shall stand after a person has decided.
    """

    state: str
    """State."""
    step: str
    """Part of it."""
    reason: str
    """In words a tenant may read."""
    longest_stay_s: float | None
    """A new deadline; None: none."""
    driven: bool
    """Whether it is looked at at once."""


def put(session: Session, kind: str, resource_id: str, to: Standing) -> None:
    """
    The row stands there with no attempt counted and nobody needed. Its fence has risen: what a claim under way says comes too late.
    """
    statement = text(
        f"""
        UPDATE {ROWS[kind]} SET
          state_since = CASE WHEN state <> :state THEN cp_clock() ELSE state_since END,
          state = :state, step = :step, reason = :reason, attention = '', attempts = 0,
          deadline_at = cp_clock() + make_interval(secs => CAST(:stay AS double precision)),
          due_at = CASE WHEN :driven THEN cp_clock() END,
          lease_until = NULL, fence = fence + 1, wakes = wakes + 1, version = version + 1, updated_at = cp_clock()
        WHERE id = :id
        """
    )
    given = {
        "id": resource_id,
        "state": to.state,
        "step": to.step,
        "reason": to.reason,
        "stay": to.longest_stay_s,
        "driven": to.driven,
    }
    session.execute(statement, given)


UNCONFIRMED_S = 120  # a delete that takes longer is shown to operators, long before its deadline
ATTENTION = text(
    """
    SELECT a.*, o.id AS operation_id FROM (
      SELECT 'node' AS kind, id, ref AS name, state, reason, detail, CAST(NULL AS text) AS tenant_id, state_since AS since, deadline_at,
        coalesce(nullif(attention, ''), 'deadline') AS attention, acting_for
      FROM nodes WHERE attention <> '' OR deadline_at < cp_clock()
      UNION ALL
      SELECT 'cluster', id, name, state, reason, detail, tenant_id, state_since, deadline_at,
        CASE WHEN state = 'deleting' THEN 'unconfirmed_delete' ELSE coalesce(nullif(attention, ''), 'deadline') END, NULL
      FROM clusters WHERE attention <> '' OR deadline_at < cp_clock()
        OR (state = 'deleting' AND state_since < cp_clock() - make_interval(secs => :unconfirmed_s))
      UNION ALL
      SELECT 'job', id, name, state, reason, detail, tenant_id, state_since, deadline_at, coalesce(nullif(attention, ''), 'deadline'),
        NULL
      FROM jobs WHERE attention <> '' OR deadline_at < cp_clock()
      UNION ALL
      SELECT 'service', id, name, state, reason, detail, tenant_id, state_since, deadline_at,
        coalesce(nullif(attention, ''), 'deadline'), NULL
      FROM services WHERE attention <> '' OR deadline_at < cp_clock()
      UNION ALL
      SELECT 'fabric_check', id, scope || ' check of ' || coalesce(nullif(leaf, ''), nullif(block, ''), site), state, reason, detail,
        NULL, state_since, deadline_at, coalesce(nullif(attention, ''), 'deadline'), NULL
      FROM fabric_checks WHERE attention <> '' OR deadline_at < cp_clock()
      UNION ALL
      SELECT 'provider', id, name, state, CASE WHEN problem <> '' THEN 'It does not answer.' ELSE 'It was not heard of lately.' END,
        problem, NULL, coalesce(seen_at, created_at), NULL, 'provider_silent', NULL
      FROM providers WHERE state = 'active' AND cluster_id IS NULL
        AND coalesce(seen_at, created_at) < cp_clock() - make_interval(secs => :silent_s)
    ) a LEFT JOIN operations o ON o.resource_id IN (a.id, a.acting_for) AND o.state IN ('pending', 'running', 'needs_attention')
    WHERE (CAST(:kind AS text) IS NULL OR a.kind = :kind) AND (CAST(:after AS text) IS NULL OR a.id > :after)
    ORDER BY a.id LIMIT :limit
    """
)


def list_attention(session: Session, kind: str | None, after: str | None, limit: int, *, silent_s: float) -> Sequence[Any]:
    """
    Everything that needs a person, ordered by id; ids begin with their kind.
    """
    given = {"kind": kind, "after": after, "limit": limit, "silent_s": silent_s, "unconfirmed_s": UNCONFIRMED_S}
    return session.execute(ATTENTION, given).all()


@dataclass(frozen=True, slots=True)
class EventFilter:
    """
    Which events are asked for; None: any.
    """

    type: str | None = None
    """`cluster.running`, …"""
    resource_id: str | None = None
    """Of this resource."""


def event_horizon(session: Session) -> int:
    """
    Every transaction older than this one has ended, and what it wrote is seen by the next statement.
    """
    return int(session.execute(text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")).scalar_one())


def list_events(
    session: Session, principal: Principal, which: EventFilter, after: tuple[int, int], before: int, limit: int
) -> Sequence[EventRow]:
    """
    Events that the principal may see, in the order of positions: behind `after`, of transactions older than `before`.
    """
    query = _within(select(EventRow), EventRow, principal)
    position = tuple_(EventRow.xact, EventRow.id)
    behind = tuple_(literal(_padded(after[0])), literal(after[1]))
    query = query.where(position > behind, EventRow.xact < _padded(before))
    if which.type is not None:
        query = query.where(EventRow.type == which.type)
    if which.resource_id is not None:
        query = query.where(EventRow.resource_id == which.resource_id)
    return session.execute(query.order_by(EventRow.xact, EventRow.id).limit(limit)).scalars().all()


def _padded(xact: int) -> str:
    return str(xact).zfill(XACT_DIGITS)


def find_head(session: Session, chain: str) -> AuditHeadRow | None:
    """
    The end of the chain, when there is one that may be seen.
    """
    return session.execute(select(AuditHeadRow).where(AuditHeadRow.tenant_id == chain)).scalar_one_or_none()


def list_entries(session: Session, chain: str, marks: Sequence[bytes], since: Any, ask: PageAsk) -> Page[AuditEntryRow]:
    """
    A page of the chain's entries whose bytes hold all the marks.
    """
    query = select(AuditEntryRow).where(AuditEntryRow.tenant_id == chain)
    for number, mark in enumerate(marks):
        held = text(f"position(:mark{number} IN audit_entries.body) > 0").bindparams(
            bindparam(f"mark{number}", mark, LargeBinary())
        )
        query = query.where(held)
    if since is not None:
        query = query.where(AuditEntryRow.at > since)
    return fetch_page(session, query, AuditEntryRow.seq, ask)
