"""
Asking providers how they are: what they can do, whether they answer, and whether their machines are the ones we know.
"""

from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from controlplane.kit.clock import CpClock
from controlplane.kit.events import Event, record
from controlplane.nodes import reaping, repository
from controlplane.nodes.models import NodeRow, ProviderRow
from controlplane.nodes.states import ProviderCheck, ProviderRef

EVERY_S = 60.0
FIRST_EVERY_S = 5.0
"""How often a provider that has never answered is asked."""
MOST_FINDINGS = 200


def due_providers(session: Session, limit: int) -> list[ProviderRef]:
    """
    Up to `limit` providers that were not asked lately; they count as asked from now on, so no other worker asks them too.
    """
    now = CpClock()
    due = or_(
        ProviderRow.checked_at.is_(None),
        ProviderRow.checked_at < now - func.make_interval(0, 0, 0, 0, 0, 0, EVERY_S),
        ProviderRow.seen_at.is_(None) & (ProviderRow.checked_at < now - func.make_interval(0, 0, 0, 0, 0, 0, FIRST_EVERY_S)),
    )
    chosen = (
        select(ProviderRow.id)
        .where(ProviderRow.state != "deleted", ProviderRow.cluster_id.is_(None), due)
        .order_by(ProviderRow.checked_at.nulls_first(), ProviderRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    ids = list(session.execute(chosen).scalars())
    session.execute(update(ProviderRow).where(ProviderRow.id.in_(ids)).values(checked_at=CpClock()))
    refs = repository.read_providers(session, ids)
    return [refs[one] for one in ids]


def store(session: Session, provider_id: str, seen: ProviderCheck) -> None:
    """
    What the provider said stands on its row; silence changes nothing of what was known, and is shown.
    """
    row = session.execute(select(ProviderRow).where(ProviderRow.id == provider_id).with_for_update()).scalar_one()
    if row.state == "deleted":
        return
    if seen.problem != row.problem and bool(seen.problem) != bool(row.problem):
        verb = "silent" if seen.problem else "answers"
        record(session, [Event(f"provider.{verb}", "provider", provider_id, data={"problem": seen.problem})])
    row.problem = seen.problem
    if seen.capabilities is not None:
        row.seen_at = session.execute(select(CpClock())).scalar_one()
        _store_capabilities(row, seen.capabilities)
    if seen.refs is not None:
        machines = _findings(session, provider_id, seen.refs, complete=seen.complete)
        orphans = [_finding(*one) for one in reaping.find_orphans(session, provider_id, seen.deployed)]
        row.findings = [*_unknown_clusters(session, seen.cluster_ids), *orphans, *machines][:MOST_FINDINGS]
    session.flush()


def _store_capabilities(row: ProviderRow, said: dict[str, Any]) -> None:
    shared = row.shared and bool(said.get("scrub", False))
    if row.capabilities != said or row.shared != shared:
        row.capabilities, row.shared = said, shared
        row.version += 1
        row.updated_at = CpClock()


def _findings(session: Session, provider_id: str, refs: tuple[str, ...], *, complete: bool) -> list[dict[str, str]]:
    """
    Machines that only one side knows. An incomplete listing proves no absence.
    """
    query = select(NodeRow.ref).where(NodeRow.provider_id == provider_id, NodeRow.state != "retired")
    known, there = set(session.execute(query).scalars()), set(refs)
    found = [_finding("not_enrolled", ref, "The provider has this machine; it is not enrolled.") for ref in sorted(there - known)]
    if complete:
        found += [_finding("missing", ref, "Enrolled, and the provider does not have it.") for ref in sorted(known - there)]
    return found


def _unknown_clusters(session: Session, seen: tuple[str, ...]) -> list[dict[str, str]]:
    """
    Clusters with our marks that no row of ours speaks of. Our database may be the one that is wrong, so nobody but a person decides.
    """
    unknown = repository.unknown_clusters(session, seen)
    return [
        _finding("unknown_cluster", one, "The provider has this cluster of ours, and we have no record of it.") for one in unknown
    ]


def _finding(code: str, ref: str, message: str) -> dict[str, str]:
    return {"code": code, "ref": ref, "message": message}
