"""
Lending free nodes to fabric checks: while one is lent nobody can be given it, and it comes back as it went.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, select, text
from sqlalchemy.orm import Session

from controlplane.boots import service as boots
from controlplane.kit.events import Event, Move, record
from controlplane.kit.lifecycle import wake
from controlplane.nodes.driving import begin_task
from controlplane.nodes.models import NodeRow


@dataclass(frozen=True, slots=True)
class Place:
    """
    Which nodes a fabric check is about: those named, or all of one leaf or block.
    """

    node_ids: tuple[str, ...] = ()
    """Nodes by name; where there are any, nothing else counts."""
    site: str = ""
    """Where the leaf or the block is."""
    block: str = ""
    """Spine group; empty: not asked for."""
    leaf: str = ""
    """Where rails meet; empty: not asked for."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """
    A node of the place.
    """

    id: str
    """`nod_…`."""
    ref: str
    """Its name at the provider."""
    provider_id: str
    """Who drives it."""
    instance_type: str
    """What it is sold as."""
    site: str
    """Where it stands."""
    block: str
    """Spine group."""
    leaf: str
    """Where its rails meet."""
    state: str
    """Only `available` ones are lent."""


LEND = text(
    """
    UPDATE nodes SET state = 'checking', check_id = :check, reason = :reason, step = '', state_since = cp_clock(),
      due_at = CASE WHEN access <> '{}'::jsonb THEN cp_clock() END, attempts = 0, attention = '',
      deadline_at = NULL, version = version + 1, updated_at = cp_clock()
    WHERE id IN (SELECT id FROM nodes WHERE id IN :ids AND state = 'available' AND allocation_id IS NULL ORDER BY id FOR UPDATE)
    RETURNING id
    """
).bindparams(bindparam("ids", expanding=True))
TAKE_BACK = text(
    """
    UPDATE nodes SET state = 'available', check_id = NULL, reason = :reason, step = '', state_since = cp_clock(), due_at = NULL,
      attention = '', deadline_at = NULL, version = version + 1, updated_at = cp_clock()
    WHERE id IN (SELECT id FROM nodes WHERE check_id IN :checks AND state = 'checking' ORDER BY id FOR UPDATE)
    RETURNING id
    """
).bindparams(bindparam("checks", expanding=True))


def candidates(session: Session, place: Place, limit: int) -> list[Candidate]:
    """
    Up to so many nodes of the place that are in the fleet, free ones first, in a stable order.
    """
    query = select(*(getattr(NodeRow, name) for name in Candidate.__slots__)).where(NodeRow.state != "retired")
    if place.node_ids:
        query = query.where(NodeRow.id.in_(place.node_ids))
    else:
        query = query.where(NodeRow.site == place.site, NodeRow.leaf == place.leaf if place.leaf else NodeRow.block == place.block)
    rows = session.execute(query.order_by(NodeRow.state != "available", NodeRow.leaf, NodeRow.rack, NodeRow.ref).limit(limit))
    return [Candidate(*row) for row in rows]


def lend(session: Session, node_ids: Sequence[str], check_id: str) -> frozenset[str]:
    """
    Those of the nodes that were free are the check's; their ids are returned. Whoever was quicker keeps the others. Machines that boot
    through us are on their way into a boot of their own for it.
    """
    words = f"Lent to {check_id}."
    taken = sorted(session.execute(LEND, {"ids": sorted(set(node_ids)) or [""], "check": check_id, "reason": words}).scalars())
    _tell(session, taken, "available", "checking", words)
    begin_task(session, "checking", taken)
    return frozenset(taken)


@dataclass(frozen=True, slots=True)
class Lent:
    """
    A machine that boots through us, as the check sees it that it is lent to.
    """

    node_id: str
    """`nod_…`."""
    step: str
    """How far it is on its way there and back."""
    boot_state: str
    """made, fetched, reporting, ready, failed or ended."""
    failure: str
    """What the boot failed of, in words; empty where it has not."""


LENT = text("SELECT id, check_id, step, boot_id FROM nodes WHERE check_id = ANY(:checks) AND access <> '{}'::jsonb ORDER BY id")


def lent_to(session: Session, check_ids: Sequence[str]) -> dict[str, tuple[Lent, ...]]:
    """
    The machines of these checks that boot through us, by check; two queries.
    """
    rows = session.execute(LENT, {"checks": sorted(set(check_ids))}).all()
    views = boots.views(session, [row.boot_id for row in rows if row.boot_id]) if rows else {}
    found: dict[str, list[Lent]] = {}
    for row in rows:
        view = views.get(row.boot_id)
        lent = Lent(row.id, row.step, view.state if view else "ended", view.failure if view else "")
        found.setdefault(row.check_id, []).append(lent)
    return {check_id: tuple(some) for check_id, some in found.items()}


def recall(session: Session, check_ids: Sequence[str]) -> None:
    """
    The machines of these checks that boot through us are on their way back: their tokens open nothing any more, and they are switched off
    as soon as they are looked at. Recalling twice changes nothing.
    """
    rows = session.execute(LENT, {"checks": sorted(set(check_ids))}).all() if check_ids else ()
    wake(session, "nodes", [row.id for row in rows])
    boots.end(session, [row.boot_id for row in rows if row.boot_id])


def take_back(session: Session, check_ids: Sequence[str]) -> None:
    """
    The nodes of these checks are free again.
    """
    words = "Back from a fabric check."
    back = sorted(session.execute(TAKE_BACK, {"checks": sorted(set(check_ids)) or [""], "reason": words}).scalars())
    _tell(session, back, "checking", "available", words)


def _tell(session: Session, node_ids: Sequence[str], before: str, after: str, words: str) -> None:
    told = {"state": after, "before": before, "reason": words}
    record(
        session,
        [Event(f"node.{after}", "node", one, data=told) for one in node_ids],
        [Move("node", one, before, after, words) for one in node_ids],
    )
