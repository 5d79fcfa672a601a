"""
What is said of nodes' health, and what follows by itself: sick nodes that nobody holds are put aside, a repair is asked for, and when
too many fall ill at once nothing follows by itself until a person has looked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.health.classes import CLASSES, SICK
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import Conflict, FieldError, Invalid, NotFound
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.nodes.models import FreezeRow, HealthReportRow, TicketRow

MASS_SHARE = 0.3
MASS_LEAST = 3
MASS_WITHIN_S = 60.0
SETTLED_S = 60.0
"""How long a node is sick before anything follows by itself: time for a burst to be seen as one, and for a slip to be taken back."""


@dataclass(frozen=True, slots=True)
class Report:
    """
    What one source says of one check of one node.
    """

    node_id: str
    """Which node."""
    source: str
    """bmc, fabric, scheduler, agent, test or person."""
    check: str
    """What was looked at."""
    health: str
    """ok, info, block_allocation, drain or quarantine."""
    message: str = ""
    """For operators."""


WORST = text(
    """
    WITH said AS (
      SELECT r.node_id, max(array_position(CAST(:classes AS text[]), r.class)) AS place
      FROM health_reports r WHERE r.node_id = ANY(:nodes) GROUP BY r.node_id),
    old AS (SELECT n.id, n.health FROM nodes n WHERE n.id = ANY(:nodes) ORDER BY n.id FOR UPDATE)
    UPDATE nodes n SET health = (CAST(:classes AS text[]))[said.place], health_since = cp_clock(), version = n.version + 1,
      updated_at = cp_clock()
    FROM said JOIN old ON old.id = said.node_id
    WHERE n.id = said.node_id AND n.health <> (CAST(:classes AS text[]))[said.place]
    RETURNING n.id, n.site, n.block, n.state, n.health, old.health AS before
    """
)
BLOCK = text(
    """
    SELECT count(*) AS total, count(*) FILTER (
      WHERE health = ANY(:sick) AND health_since > cp_clock() - make_interval(secs => :within)) AS fallen
    FROM nodes WHERE site = :site AND block = :block AND state <> 'retired'
    """
)


def report(session: Session, reports: Sequence[Report]) -> list[str]:
    """
    Each source's latest word on each check stands, and each node's health is the worst of all; ids of nodes whose health changed.

    Unknown nodes are passed over by the caller: a report on one raises NotFound.
    """
    if not reports:
        return []
    latest = {(one.node_id, one.source, one.check): one for one in reports}
    rows = [
        {"node_id": key[0], "source": key[1], "check_name": key[2], "class": one.health, "message": one.message}
        for key, one in sorted(latest.items())
    ]
    nodes = sorted({row["node_id"] for row in rows})
    known = session.execute(text("SELECT count(*) FROM nodes WHERE id = ANY(:nodes)"), {"nodes": nodes}).scalar_one()
    if known != len(nodes):
        raise NotFound
    statement = upsert(HealthReportRow.__table__)  # type: ignore[arg-type]
    newest = {"class": statement.excluded["class"], "message": statement.excluded.message, "at": CpClock()}
    session.execute(statement.on_conflict_do_update(index_elements=["node_id", "source", "check_name"], set_=newest), rows)
    changed = session.execute(WORST, {"nodes": nodes, "classes": list(CLASSES)}).all()
    record(
        session,
        [Event("node.health", "node", row.id, data={"health": row.health, "before": row.before}) for row in changed],
    )
    fallen = {(row.site, row.block) for row in changed if row.health in SICK and row.before not in SICK}
    for site, block in sorted(fallen):
        _freeze_if_many(session, site, block)
    return [row.id for row in changed]


def _freeze_if_many(session: Session, site: str, block: str) -> None:
    """
    When a third of a block falls ill within a minute it is not the nodes: nothing follows by itself there until a person lifts the freeze.
    """
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), {"name": f"health {site}/{block}"})
    given = {"site": site, "block": block, "sick": sorted(SICK), "within": MASS_WITHIN_S}
    total, fallen = session.execute(BLOCK, given).one()
    if fallen < MASS_LEAST or fallen < MASS_SHARE * total:
        return
    words = f"{fallen} of {total} nodes fell ill within {MASS_WITHIN_S:g} s."
    freeze(session, site, block, reason=words, by="system", quiet=True)


def freeze(session: Session, site: str, block: str, *, reason: str, by: str, quiet: bool = False) -> FreezeRow | None:
    """
    Nothing follows by itself in the block until the freeze is lifted. Where it is frozen already: Conflict, or None when `quiet`.

    Raises Invalid for an unknown site.
    """
    if site not in catalog.site_names(session):
        words = f"There is no site {site[:60]}."
        raise Invalid(words, errors=[FieldError("body.site", "unknown_site", words)])
    values = {"id": new_id("frz"), "site": site, "block": block, "reason": reason, "made_by": by}
    statement = upsert(FreezeRow).values(values)
    once = statement.on_conflict_do_nothing(index_elements=["site", "block"], index_where=text("lifted_at IS NULL"))
    made = session.execute(once.returning(FreezeRow)).scalar_one_or_none()
    if made is None:
        if quiet:
            return None
        raise Conflict(f"Automation is frozen in {site}/{block} already.", code="already_frozen")
    record(session, [Event("automation.frozen", "freeze", made.id, data={"site": site, "block": block, "reason": reason})])
    return made


def lift_freeze(session: Session, freeze_id: str, *, by: str) -> FreezeRow:
    """
    What follows by itself follows again; lifting twice changes nothing. Raises NotFound.
    """
    row = session.execute(select(FreezeRow).where(FreezeRow.id == freeze_id).with_for_update()).scalar_one_or_none()
    if row is None:
        raise NotFound
    if row.lifted_at is None:
        row.lifted_at, row.lifted_by = session.execute(select(CpClock())).scalar_one(), by
        record(session, [Event("automation.unfrozen", "freeze", row.id, data={"site": row.site, "block": row.block})])
        session.flush()
    return row


def list_freezes(session: Session, ask: PageAsk, *, in_force: bool | None) -> Page[FreezeRow]:
    """
    A page of freezes, oldest first; only those in force, only the others, or all.
    """
    query = select(FreezeRow)
    if in_force is not None:
        query = query.where(FreezeRow.lifted_at.is_(None) if in_force else FreezeRow.lifted_at.is_not(None))
    return fetch_page(session, query, FreezeRow.id, ask)


def reports_of(session: Session, node_id: str) -> Sequence[HealthReportRow]:
    """
    The latest word of every source on every check of the node.
    """
    query = select(HealthReportRow).where(HealthReportRow.node_id == node_id)
    return session.execute(query.order_by(HealthReportRow.source, HealthReportRow.check_name)).scalars().all()


def begin_anew(session: Session, node_ids: Sequence[str]) -> None:
    """
    What was said of the nodes before is information only: their requalification judges them anew.
    """
    if not node_ids:
        return
    table = HealthReportRow.__table__
    bad = table.c["class"].in_(("block_allocation", "drain", "quarantine"))
    session.execute(update(table).where(table.c.node_id.in_(node_ids), bad).values({"class": "info"}))  # type: ignore[arg-type]
    session.execute(WORST, {"nodes": sorted(node_ids), "classes": list(CLASSES)})


ASIDE = text(
    """
    UPDATE nodes SET state = 'quarantined', step = '', reason = 'It is sick and waits for repair.', state_since = cp_clock(),
      deadline_at = NULL, due_at = NULL, attempts = 0, version = version + 1, updated_at = cp_clock()
    WHERE id IN (
      SELECT n.id FROM nodes n
      WHERE n.state = 'available' AND n.allocation_id IS NULL AND n.health = ANY(:sick)
        AND n.health_since < cp_clock() - make_interval(secs => :settled)
        AND NOT EXISTS (SELECT 1 FROM automation_freezes f WHERE f.site = n.site AND f.block = n.block AND f.lifted_at IS NULL)
      ORDER BY n.id LIMIT 100 FOR UPDATE SKIP LOCKED)
    RETURNING id, health
    """
)


def put_sick_aside(session: Session) -> int:
    """
    Sick nodes that nobody holds are quarantined and a repair is asked for; how many is returned.
    """
    rows = session.execute(ASIDE, {"sick": sorted(SICK), "settled": SETTLED_S}).all()
    words = "It is sick and waits for repair."
    record(
        session,
        [
            Event("node.quarantined", "node", row.id, data={"state": "quarantined", "before": "available", "reason": words})
            for row in rows
        ],
        [Move("node", row.id, "available", "quarantined", words) for row in rows],
    )
    open_tickets(session, [row.id for row in rows])
    return len(rows)


def open_tickets(session: Session, node_ids: Sequence[str]) -> None:
    """
    A repair of each sick node among these is asked for, once; the ticket tells what is said of it.
    """
    if not node_ids:
        return
    said: dict[str, list[dict[str, Any]]] = {}
    sick = select(HealthReportRow).where(HealthReportRow.node_id.in_(node_ids), HealthReportRow.class_.in_(sorted(SICK)))
    for one in session.execute(sick.order_by(HealthReportRow.node_id, HealthReportRow.source)).scalars():
        entry = {"source": one.source, "check": one.check_name, "class": one.class_, "message": one.message}
        said.setdefault(one.node_id, []).append(entry)
    if not said:
        return
    rows = [{"id": new_id("tkt"), "node_id": node_id, "reports": entries} for node_id, entries in said.items()]
    statement = upsert(TicketRow).on_conflict_do_nothing(index_elements=["node_id"], index_where=text("closed_at IS NULL"))
    made = session.execute(statement.returning(TicketRow.id, TicketRow.node_id), rows).all()
    record(session, [Event("node.repair_wanted", "node", row.node_id, data={"ticket_id": row.id}) for row in made])


def close_tickets(session: Session, node_ids: Sequence[str]) -> None:
    """
    The repairs of these nodes are over: they are in use again, or gone.
    """
    if node_ids:
        session.execute(
            update(TicketRow).where(TicketRow.node_id.in_(node_ids), TicketRow.closed_at.is_(None)).values(closed_at=CpClock())
        )


def list_tickets(session: Session, ask: PageAsk, *, is_open: bool | None) -> Page[TicketRow]:
    """
    A page of repair tickets, oldest first; only open ones, only closed ones, or all.
    """
    query = select(TicketRow)
    if is_open is not None:
        query = query.where(TicketRow.closed_at.is_(None) if is_open else TicketRow.closed_at.is_not(None))
    return fetch_page(session, query, TicketRow.id, ask)


TAKE = text(
    """
    UPDATE repair_tickets SET attempts = attempts + 1,
      due_at = cp_clock() + make_interval(secs => least(3600, 10 * 2 ^ least(attempts, 9)))
    WHERE id IN (
      SELECT id FROM repair_tickets WHERE delivered_at IS NULL AND due_at <= cp_clock()
      ORDER BY due_at LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id, node_id, opened_at, reports
    """
)


def take_undelivered(session: Session, limit: int) -> list[dict[str, Any]]:
    """
    Tickets nobody has been told of yet, as the webhook carries them; each is due again later unless it is marked as delivered.
    """
    rows = session.execute(TAKE, {"limit": limit}).all()
    if not rows:
        return []
    places = text("SELECT id, ref, site, block, leaf, rack, inventory->>'serial' AS serial FROM nodes WHERE id = ANY(:nodes)")
    nodes = {row.id: row for row in session.execute(places, {"nodes": [row.node_id for row in rows]})}
    return [
        {
            "id": row.id,
            "type": "node.repair_wanted",
            "opened_at": row.opened_at,
            "node": {name: getattr(nodes[row.node_id], name) for name in ("id", "ref", "site", "block", "leaf", "rack", "serial")},
            "reports": row.reports,
        }
        for row in rows
    ]


def mark_delivered(session: Session, ticket_ids: Sequence[str]) -> None:
    """
    Whoever repairs has taken note of these.
    """
    if ticket_ids:
        session.execute(update(TicketRow).where(TicketRow.id.in_(ticket_ids)).values(delivered_at=CpClock()))
