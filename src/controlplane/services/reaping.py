"""
Services that outlive what they belong to: those at rest whose clusters have gone, and those that a cluster has again after we saw it
without them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.clusters import service as clusters
from controlplane.clusters.states import HOME_READY
from controlplane.kit.events import Event, Move, record
from controlplane.kit.orphans import Look
from controlplane.nodes.states import ProviderRef
from controlplane.services import repository

MOST = 100
LONG_S = 86_400.0
"""After this nothing of ours that was sent before a deletion can still arrive."""
WORDS = "Its cluster is gone; it goes with it."
RESTING = text("SELECT DISTINCT cluster_id FROM services WHERE state IN ('suspended', 'failed') ORDER BY cluster_id")
BURY = text(
    """
    WITH old AS (
      SELECT id, state FROM services WHERE state IN ('suspended', 'failed') AND cluster_id = ANY(:lost)
      ORDER BY id LIMIT :most FOR UPDATE SKIP LOCKED)
    UPDATE services s SET state = 'deleting', step = '', reason = :words, detail = '', state_since = cp_clock(),
      deadline_at = cp_clock() + interval '1 hour', due_at = cp_clock(), lease_until = NULL, fence = s.fence + 1, wakes = s.wakes + 1,
      attention = '', attempts = 0, version = s.version + 1, updated_at = cp_clock()
    FROM old WHERE s.id = old.id
    RETURNING s.id, s.tenant_id, s.project_id, s.current_version, old.state AS before
    """
)
WATCHED = text(
    """
    SELECT cluster_id FROM services WHERE state = 'deleted' AND state_since > cp_clock() - make_interval(secs => :long)
    GROUP BY cluster_id ORDER BY max(state_since) DESC LIMIT :most
    """
)
KNOWN = text(
    """
    SELECT id, state, CAST(extract(epoch FROM cp_clock() - state_since) AS double precision) AS age_s
    FROM services WHERE id = ANY(:seen) AND cluster_id = :cluster
    """
)


@dataclass(frozen=True, slots=True)
class WatchedCluster:
    """
    A cluster from which services were deleted lately.
    """

    id: str
    """`clu_…`."""
    provider: ProviderRef
    """Who keeps its services up."""


def follow_clusters(session: Session) -> int:
    """
    Suspended and failed services whose clusters are gone are being deleted; how many is returned. Nobody looks at those otherwise.
    """
    homes = list(session.execute(RESTING).scalars())
    lost = clusters.lost(session, homes)
    if not lost:
        return 0
    rows = session.execute(BURY, {"lost": sorted(lost), "most": MOST, "words": WORDS}).all()
    events = [
        Event(
            "service.deleting",
            "service",
            row.id,
            row.tenant_id,
            row.project_id,
            {"state": "deleting", "before": row.before, "reason": WORDS, "version": row.current_version},
        )
        for row in rows
    ]
    record(session, events, [Move("service", row.id, row.before, "deleting", WORDS, row.tenant_id) for row in rows])
    return len(rows)


def watched_clusters(session: Session) -> list[WatchedCluster]:
    """
    Clusters that run and from which services were deleted within the last day.
    """
    ids = list(session.execute(WATCHED, {"long": LONG_S, "most": MOST}).scalars())
    homes = clusters.homes(session, ids) if ids else {}
    return [
        WatchedCluster(one.cluster_id, one.provider)
        for one in homes.values()
        if one.provider is not None and one.state in HOME_READY
    ]


def compare(session: Session, cluster_id: str, seen: Collection[str]) -> tuple[Look, datetime]:
    """
    The cluster's whole list beside what our rows say of it now, and when that is.
    """
    rows = session.execute(KNOWN, {"seen": sorted(seen), "cluster": cluster_id}).all()
    ended = {row.id: row.age_s for row in rows if row.state == "deleted"}
    living = {row.id for row in rows if row.state != "deleted"}
    return Look(seen, complete=True, ended_s=ended, living=living), repository.clock(session)


def note(session: Session, cluster_id: str, removed: Sequence[str], findings: Mapping[str, str]) -> None:
    """
    Operators can read which services were removed again, and which were found and left alone, with the reason.
    """
    told = [Event("service.reaped", "service", one, data={"cluster_id": cluster_id}) for one in removed]
    left = [Event("service.orphan", "service", one, data={"cluster_id": cluster_id, "why": why}) for one, why in findings.items()]
    record(session, [*told, *left])
