"""
Which machines' controllers are looked at next, and what becomes of what they say.
"""

from collections.abc import Sequence

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from controlplane.nodes import powering, repository
from controlplane.nodes.models import HealthReportRow
from controlplane.nodes.reporting import Report, report
from controlplane.nodes.states import DARK, Look, Watched

EVERY_S = 60.0
SOURCE = "bmc"
DUE = text(
    """
    UPDATE nodes SET looked_at = cp_clock() WHERE id IN (
      SELECT id FROM nodes WHERE access <> '{}'::jsonb AND state <> 'retired' AND state <> ALL(:dark) AND sealed_next IS NULL
        AND (looked_at IS NULL OR looked_at < cp_clock() - make_interval(secs => :every))
      ORDER BY looked_at NULLS FIRST, id LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING id, provider_id, access, sealed
    """
)


def due_machines(session: Session, limit: int) -> list[Watched]:
    """
    Up to `limit` machines whose controllers were not looked at lately; they count as looked at, so nobody else looks too. Not those whose
    password is being changed: a look with the wrong one counts against the account; nor those that
    their tenant has switched off: they are looked at when they run again.
    """
    rows = session.execute(DUE, {"every": EVERY_S, "limit": limit, "dark": sorted(DARK)}).all()
    providers = repository.read_providers(session, [row.provider_id for row in rows])
    return [
        Watched(
            row.id,
            providers[row.provider_id],
            repository.access_of(row.access, row.sealed),
        )
        for row in rows
    ]


def store(session: Session, looks: Sequence[Look]) -> int:
    """
    Only what is news is written: a check that was never bad and is well is no news, nor is the power that was known. How many reports were
    is returned.
    """
    if not looks:
        return 0
    query = select(HealthReportRow.node_id, HealthReportRow.check_name, HealthReportRow.class_, HealthReportRow.message).where(
        HealthReportRow.source == SOURCE, HealthReportRow.node_id.in_([one.node_id for one in looks])
    )
    known = {(row.node_id, row.check_name): (row.class_, row.message) for row in session.execute(query)}
    news = [
        Report(look.node_id, SOURCE, check, found, words)
        for look in looks
        for check, found, words in look.said
        if known.get((look.node_id, check), ("ok", words)) != (found, words)
    ]
    report(session, news)
    lasting = powering.store_power(session, {one.node_id: one.power for one in looks})
    return len(news) + lasting
