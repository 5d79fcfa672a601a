"""
Passwords of controllers as rows: when a new one is due, which one counts, and what steps learnt of controllers.

A password that a controller may have is never forgotten: `sealed_next` is written only where there is none, and goes only by becoming
`sealed`, or when the controller was seen to take the present one still.
"""

import json
from collections.abc import Callable, Sequence

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import NotFound
from controlplane.kit.events import Event, record
from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.kit.secrets import Sealer
from controlplane.nodes import repository
from controlplane.nodes.errors import NoController, PasswordsElsewhere
from controlplane.nodes.models import NodeRow, ProviderRow
from controlplane.nodes.registering import seal_password
from controlplane.nodes.states import NODE_STATES, NodeFacts, NodeSnapshot

LEASE_S = 120.0
GRACE_S = 10.0
AGAIN_S = 180.0
"""When a rotation that was begun is taken up again where no state of the node does it: longer than a lease and its grace."""
RESTING = NODE_STATES.names("settled")
NEWS = {"rotated": "controller_rotated", "refused": "controller_not_rotated", "not_supported": "controller_not_rotated"}

LEARNT = text(
    """
    UPDATE nodes n SET
      sealed = CASE WHEN c.rotation = 'rotated' THEN n.sealed_next ELSE n.sealed END,
      sealed_next = CASE WHEN c.rotation IS NULL OR c.rotation = 'told' THEN n.sealed_next
        WHEN c.rotation = 'prepared' THEN coalesce(n.sealed_next, decode(c.next, 'hex')) END,
      rotated_at = CASE WHEN c.rotation = 'rotated' THEN cp_clock() ELSE n.rotated_at END,
      refusals = CASE WHEN c.rotation IS NULL THEN n.refusals WHEN c.refused THEN n.refusals + 1
        WHEN c.rotation IN ('prepared', 'told') THEN n.refusals ELSE 0 END,
      rotate_at = CASE WHEN c.rotation IS NULL THEN n.rotate_at
        WHEN c.refused THEN cp_clock() + make_interval(secs => c.pause_s)
        WHEN c.rotation IN ('prepared', 'told') THEN cp_clock() + make_interval(secs => :again) END,
      rotation = coalesce(c.rotation, n.rotation), door = coalesce(c.door, n.door),
      restarted_at = CASE WHEN c.restarted THEN cp_clock() ELSE n.restarted_at END,
      version = n.version + 1, updated_at = cp_clock()
    FROM jsonb_to_recordset(CAST(:learnt AS jsonb)) AS c(
      id text, rotation text, next text, refused boolean, pause_s double precision, door text, restarted boolean)
    WHERE n.id = c.id AND (c.rotation IS DISTINCT FROM 'rotated' AND c.rotation IS DISTINCT FROM 'told' OR n.sealed_next IS NOT NULL)
    """
)


def store_learnt(session: Session, learnt: Sequence[tuple[str, Outcome]]) -> None:
    """
    What steps learnt of these nodes' controllers stands on their rows. The caller holds the rows' locks and has checked the fences.
    """
    found = [(node_id, one, one.facts) for node_id, one in learnt if isinstance(one.facts, NodeFacts)]
    rows = [
        {
            "id": node_id,
            "rotation": facts.rotation,
            "next": facts.sealed_next.hex() if facts.sealed_next is not None else None,
            "refused": facts.refused,
            "pause_s": outcome.retry_in_s if isinstance(outcome, Wait) else None,
            "door": facts.door,
            "restarted": facts.restarted,
        }
        for node_id, outcome, facts in found
        if facts.rotation is not None or facts.door is not None or facts.restarted
    ]
    if not rows:
        return
    session.execute(LEARNT, {"learnt": json.dumps(rows), "again": AGAIN_S})
    news = [(node_id, NEWS[facts.rotation]) for node_id, _, facts in found if facts.rotation in NEWS]
    news += [(node_id, "controller_refuses") for node_id, outcome, facts in found if facts.refused and isinstance(outcome, Fail)]
    record(session, [Event(f"node.{verb}", "node", node_id) for node_id, verb in news])


DUE = text(
    """
    UPDATE nodes SET rotation = 'due', refusals = 0 WHERE id = ANY(:ids) AND access <> '{}'::jsonb AND sealed_next IS NULL
    """
)


def make_due(session: Session, node_ids: Sequence[str]) -> None:
    """
    The controllers of these nodes get a new password when they are inspected or wiped next; rotations under way go on.
    """
    if node_ids:
        session.execute(DUE, {"ids": list(node_ids)})


def ask_rotation(
    session: Session,
    node_id: str,
    sealer: Sealer | None,
    *,
    password: str,
    check: Callable[[int], None],
) -> NodeRow:
    """
    The node's controller gets a new password as soon as nothing else is done with the node. With `password`, that is the one that it has
    now, whatever we had. Raises NotFound, what `check` raises of the version, NoController, PasswordsElsewhere, and Unavailable where
    there is nothing to seal it with.
    """
    row = session.execute(select(NodeRow).where(NodeRow.id == node_id).with_for_update()).scalar_one_or_none()
    if row is None:
        raise NotFound
    check(row.version)
    if not row.access or row.state == "retired":
        raise NoController("This node has no management controller that the control plane uses.")
    provider = session.get_one(ProviderRow, row.provider_id)
    if provider.config.get("rotate_passwords") is False and not password:
        raise PasswordsElsewhere("The provider's settings leave the passwords of its controllers to somebody else.")
    now = session.execute(select(CpClock())).scalar_one()
    if password:
        row.sealed = seal_password(sealer, node_id, password)
    if row.sealed_next is None:
        row.rotation = "due"
    row.rotate_at, row.refusals, row.updated_at = now, 0, now
    row.version += 1
    session.flush()
    record(session, [Event("node.rotation_asked", "node", node_id, data={"rotation": row.rotation})])
    session.refresh(row)
    return row


CLAIM = text(
    """
    UPDATE nodes SET fence = fence + 1, lease_until = cp_clock() + make_interval(secs => :lease),
      rotate_at = cp_clock() + make_interval(secs => :again)
    WHERE id IN (
      SELECT id FROM nodes WHERE rotate_at <= cp_clock() AND state = ANY(:resting) AND access <> '{}'::jsonb
        AND (lease_until IS NULL OR lease_until + make_interval(secs => :grace) < cp_clock())
      ORDER BY rotate_at, id LIMIT :limit FOR UPDATE SKIP LOCKED)
    RETURNING *
    """
)


def claim_rotations(session: Session, limit: int) -> list[tuple[NodeSnapshot, int]]:
    """
    Up to `limit` nodes at rest whose rotation is to be taken up, each with the fence of this claim: until its lease ends, nobody drives
    the node, so no state begins in between.
    """
    given = {"lease": LEASE_S, "again": AGAIN_S, "grace": GRACE_S, "limit": limit, "resting": list(RESTING)}
    rows = session.execute(CLAIM, given).mappings().all()
    if not rows:
        return []
    seen = repository.read_snapshots(session, rows, catalog.instance_facts(session))
    return [(seen[row["id"]], row["fence"]) for row in rows]


LOCK = text("SELECT rotate_at FROM nodes WHERE id = :id AND fence = :fence FOR UPDATE")
FREE = text(
    """
    UPDATE nodes SET lease_until = NULL, rotate_at = CASE
      WHEN rotation IN ('due', 'prepared', 'told') THEN cp_clock() + make_interval(secs => :pause) END
    WHERE id = :id
    """
)


def store_rotation(session: Session, node_id: str, fence: int, outcome: Outcome) -> bool:
    """
    What came of one part of a rotation has taken effect, if the claim still holds, and the node may be driven again. Whether it did.
    """
    if session.execute(LOCK, {"id": node_id, "fence": fence}).one_or_none() is None:
        return False
    store_learnt(session, [(node_id, outcome)])
    pause_s = outcome.retry_in_s if isinstance(outcome, Wait) else None
    session.execute(FREE, {"id": node_id, "pause": pause_s})
    return True
