"""
Deployments that a provider has, or has again, after we saw their machines given back.

A machine on which one is found is not as clean as its wipe left it. So the node is out of use before the provider is told to end the
deployment, and comes back only as every node does that was put aside: inspected, checked and wiped. Nothing is wiped by a guess.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, text
from sqlalchemy.orm import Session

from controlplane.kit.clock import CpClock
from controlplane.kit.events import Event, Move, record
from controlplane.kit.orphans import OLD_ENOUGH_S, Look
from controlplane.nodes.states import NODE_STATES, Deployed, ProviderRef

AT_REST = frozenset({"available", "quarantined"})
"""States of a node in which neither a step of its own nor a person is at it."""
MOVING = frozenset(one.name for one in NODE_STATES.states if one.nature == "moving") | {"checking"}
"""States in which its own steps are at it: what they find, they deal with."""
WORDS = "Its provider had a deployment on it that had ended: it has to be wiped anew."
LEFT = "unknown_deployment"
NOT_FREE = "node_not_free"
"""Why a deployment is left alone that has ended: its node is another tenant's, or with a person."""
KNOWN = text(
    """
    SELECT s.ref, s.token, a.state = 'ended' AS ended, n.state,
      CAST(extract(epoch FROM cp_clock() - coalesce(upper(a.during), cp_clock())) AS double precision) AS age_s
    FROM unnest(CAST(:refs AS text[]), CAST(:tokens AS text[])) AS s (ref, token)
    JOIN nodes n ON n.provider_id = :provider AND n.ref = s.ref
    JOIN allocations a ON a.id = s.token AND a.node_id = n.id
    """
)
ASIDE = text(
    """
    WITH mine AS MATERIALIZED (
      SELECT n.id, n.state, a.release_accepted_at FROM nodes n JOIN allocations a ON a.node_id = n.id
      WHERE n.provider_id = :provider AND n.ref = :ref AND n.allocation_id IS NULL AND n.state = ANY(:resting)
        AND a.id = :token AND a.state = 'ended'
      FOR UPDATE OF n),
    moved AS (
      UPDATE nodes n SET state = 'quarantined', step = '', reason = :words, state_since = cp_clock(), deadline_at = NULL, due_at = NULL,
        attempts = 0, version = version + 1, updated_at = cp_clock()
      FROM mine WHERE n.id = mine.id AND mine.state = 'available')
    SELECT id, state AS before, release_accepted_at FROM mine
    """
)


def name_of(ref: str, token: str) -> str:
    """
    What one deployment on one machine is called among others.
    """
    return f"{token} {ref}"


def compare(session: Session, provider_id: str, deployed: Collection[tuple[str, str]], *, complete: bool) -> tuple[Look, datetime]:
    """
    The deployments that the provider listed beside what our rows say of them now, and when that is. No row speaks of one on another machine
    than its allocation's, nor of one whose node is with a person.
    """
    rows = _known(session, provider_id, deployed)
    ended = {name_of(row.ref, row.token): row.age_s for row in rows if row.ended and row.state in AT_REST}
    living = {name_of(row.ref, row.token) for row in rows if not row.ended or row.state in MOVING}
    at = session.execute(select(CpClock())).scalar_one()
    return Look([name_of(*one) for one in deployed], complete, ended, living), at


def put_aside(session: Session, provider: ProviderRef, ref: str, token: str) -> Deployed | None:
    """
    The node is out of use, so that nobody is given it, and the deployment may be ended; None where the node is not at rest any more.
    """
    given = {"provider": provider.id, "ref": ref, "token": token, "resting": sorted(AT_REST), "words": WORDS}
    row = session.execute(ASIDE, given).one_or_none()
    if row is None:
        return None
    if row.before == "available":
        data = {"state": "quarantined", "before": row.before, "reason": WORDS}
        moved = Event("node.quarantined", "node", row.id, data=data)
        record(session, [moved], [Move("node", row.id, row.before, "quarantined", WORDS)])
    return Deployed(provider, ref, token, row.release_accepted_at)


def note(session: Session, provider_id: str, removed: Sequence[str], findings: Mapping[str, str]) -> None:
    """
    Operators can read which deployments were ended again, and which were found and left alone, with the reason.
    """
    asked = [(ref, token) for token, _, ref in (one.partition(" ") for one in findings)]
    known = {name_of(row.ref, row.token) for row in _known(session, provider_id, asked)}
    whys = {one: NOT_FREE if why == LEFT and one in known else why for one, why in findings.items()}
    told = [Event("provider.deployment_reaped", "provider", provider_id, data=_place(one)) for one in removed]
    left = [
        Event("provider.orphan_deployment", "provider", provider_id, data={**_place(one), "why": why}) for one, why in whys.items()
    ]
    record(session, [*told, *left])


def find_orphans(session: Session, provider_id: str, deployed: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """
    (code, machine, words) of each deployment that no allocation wants, by machine.
    """
    known = {(row.ref, row.token): row for row in _known(session, provider_id, deployed)}
    found = []
    for ref, token in sorted(deployed):
        row = known.get((ref, token))
        if row is None:
            words = f"The provider has {token} deployed on it, and we have no record of that there."
            found.append((LEFT, ref, words))
        elif row.ended and row.age_s > OLD_ENOUGH_S and row.state not in MOVING:
            found.append(("orphan_deployment", ref, f"The provider has {token} deployed on it, which has ended."))
    return found


def _known(session: Session, provider_id: str, deployed: Collection[tuple[str, str]]) -> Sequence[Row[Any]]:
    if not deployed:
        return []
    given = {"provider": provider_id, "refs": [ref for ref, _ in deployed], "tokens": [token for _, token in deployed]}
    return session.execute(KNOWN, given).all()


def _place(name: str) -> dict[str, str]:
    token, _, ref = name.partition(" ")
    return {"ref": ref, "allocation_id": token}
