"""
Clusters that a provider still has, or has again, after we saw it without them.

A call of ours may take effect long after we gave it up. What is reaped is only what our own rows say is deleted, by the rule of
`kit.orphans`: an object without any row is never touched, because our database may be the one that is wrong.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from controlplane.kit.clock import CpClock
from controlplane.kit.events import Event, record
from controlplane.kit.orphans import Look
from controlplane.nodes import service as nodes
from controlplane.nodes.states import ProviderRef

UNKNOWN = "unknown_cluster"
"""What no row of ours speaks of; shown at its provider besides."""
KNOWN = text(
    """
    SELECT id, state = 'deleted' AND coalesce(:provider IN (provider_id, peer_id), false) AS ended,
      CAST(extract(epoch FROM cp_clock() - state_since) AS double precision) AS age_s
    FROM clusters WHERE id = ANY(:seen)
    """
)
PROVIDERS = text(
    """
    SELECT provider_id FROM clusters WHERE provider_id IS NOT NULL AND state <> 'failed'
    UNION SELECT peer_id FROM clusters c WHERE adopted IS NOT NULL AND EXISTS (
      SELECT 1 FROM providers p WHERE p.id = c.peer_id AND p.state <> 'deleted')
    """
)


def watched_providers(session: Session) -> list[ProviderRef]:
    """
    The providers that made clusters for us.
    """
    ids = list(session.execute(PROVIDERS).scalars())
    return list(nodes.read_providers(session, ids).values())


def compare(session: Session, provider_id: str, seen: Collection[str], *, complete: bool) -> tuple[Look, datetime]:
    """
    The provider's list beside what our rows say of it now, and when that is. A cluster that we had at another provider counts as wanted:
    where it is, no row says that it has ended.
    """
    rows = session.execute(KNOWN, {"seen": sorted(seen), "provider": provider_id}).all()
    ended = {row.id: row.age_s for row in rows if row.ended}
    living = {row.id for row in rows if not row.ended}
    return Look(seen, complete, ended, living), session.execute(select(CpClock())).scalar_one()


def note(session: Session, provider_id: str, removed: Sequence[str], findings: Mapping[str, str]) -> None:
    """
    Operators can read which clusters were removed again, and which were found and left alone, with the reason.
    """
    told = [Event("cluster.reaped", "cluster", one, data={"provider_id": provider_id}) for one in removed]
    left = [Event("cluster.orphan", "cluster", one, data={"provider_id": provider_id, "why": why}) for one, why in findings.items()]
    record(session, [*told, *left])
