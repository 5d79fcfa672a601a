"""
Every query of the fabric checks room. All of it is the operators': checks belong to no tenant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, select, text, update
from sqlalchemy.orm import Session

from controlplane.fabric_checks.models import FabricCheckNodeRow, FabricCheckRow
from controlplane.fabric_checks.states import CheckSnapshot, Run
from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.nodes import service as nodes


@dataclass(frozen=True, slots=True)
class CheckFilter:
    """
    Which checks are asked for; None: any.
    """

    state: str | None = None
    """In this state."""
    site: str | None = None
    """In this site."""
    leaf: str | None = None
    """Of this leaf or a rail of it."""
    node_id: str | None = None
    """With this node."""
    verdict: str | None = None
    """With this verdict."""


def list_checks(session: Session, which: CheckFilter, ask: PageAsk) -> Page[FabricCheckRow]:
    """
    A page of checks, oldest first.
    """
    query = select(FabricCheckRow)
    for column in ("state", "site", "leaf", "verdict"):
        value = getattr(which, column)
        if value is not None:
            query = query.where(getattr(FabricCheckRow, column) == value)
    if which.node_id is not None:
        mine = select(FabricCheckNodeRow.check_id).where(FabricCheckNodeRow.node_id == which.node_id)
        query = query.where(FabricCheckRow.id.in_(mine))
    return fetch_page(session, query, FabricCheckRow.id, ask)


def lock_check(session: Session, check_id: str) -> FabricCheckRow | None:
    """
    The check as it is now, locked until the transaction ends.
    """
    query = select(FabricCheckRow).where(FabricCheckRow.id == check_id).with_for_update()
    return session.execute(query, execution_options={"populate_existing": True}).scalar_one_or_none()


def members_of(session: Session, check_ids: Sequence[str]) -> dict[str, list[FabricCheckNodeRow]]:
    """
    The nodes of these checks, by check.
    """
    found: dict[str, list[FabricCheckNodeRow]] = {}
    query = select(FabricCheckNodeRow).where(FabricCheckNodeRow.check_id.in_(check_ids)).order_by(FabricCheckNodeRow.node_id)
    for one in session.execute(query).scalars():
        found.setdefault(one.check_id, []).append(one)
    return found


def read_snapshots(session: Session, rows: Sequence[RowMapping]) -> dict[str, CheckSnapshot]:
    """
    What the steps of these checks need; two queries.
    """
    providers = nodes.read_providers(session, [row["provider_id"] for row in rows])
    members = members_of(session, [row["id"] for row in rows])
    return {row["id"]: _snapshot(row, providers[row["provider_id"]], members.get(row["id"], [])) for row in rows}


def _snapshot(row: RowMapping, provider: nodes.ProviderRef, members: Sequence[FabricCheckNodeRow]) -> CheckSnapshot:
    return CheckSnapshot(
        id=row["id"],
        step=row["step"],
        provider=provider,
        tool=row["tool"],
        rounds=tuple(tuple(map(Run.of, some)) for some in row["rounds"]),
        refs=tuple(sorted(one.ref for one in members)),
        cancel=row["cancel_requested_at"] is not None,
        overdue=row["overdue"],
        end=row["ending"],
    )


def put_returned(session: Session, check_ids: Sequence[str]) -> None:
    """
    These checks hold no node any more.
    """
    held = FabricCheckNodeRow.returned_at.is_(None)
    session.execute(
        update(FabricCheckNodeRow).where(FabricCheckNodeRow.check_id.in_(check_ids), held).values(returned_at=CpClock())
    )
    session.execute(update(FabricCheckRow).where(FabricCheckRow.id.in_(check_ids)).values(ended_at=CpClock()))


REPAIRED = text(
    """
    SELECT DISTINCT n.site, n.leaf FROM repair_tickets t JOIN nodes n ON n.id = t.node_id
    WHERE t.closed_at > cp_clock() - interval '1 day' AND n.state = 'available'
      AND NOT EXISTS (
        SELECT 1 FROM fabric_checks c WHERE c.scope = 'leaf' AND c.site = n.site AND c.leaf = n.leaf AND c.created_at >= t.closed_at)
      AND 2 <= (SELECT count(*) FROM nodes o WHERE o.site = n.site AND o.leaf = n.leaf AND o.state = 'available')
    ORDER BY n.site, n.leaf LIMIT :limit
    """
)


def repaired_leaves(session: Session, limit: int) -> Sequence[Any]:
    """
    (site, leaf) of leaves to which a node came back from repair within a day and which were not checked since.
    """
    return session.execute(REPAIRED, {"limit": limit}).all()
