"""
Nodes whose machines are in a cluster already that is being taken over: held as they are, then its tenant's, or put back.

Nothing is done to such a machine: it is not inspected, deployed, switched or wiped. It was never seen clean either, so if its cluster stays
somebody else's it goes back to where it was put aside, and never to the free ones.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.nodes.allocating import Hold, allocation_of, end_allocations, network_of
from controlplane.nodes.models import AllocationRow, NetworkRow
from controlplane.nodes.reporting import close_tickets

AT_REST = ("available", "maintenance", "quarantined")
"""States of a node in which nothing of ours is at it, so that it can be taken over with its cluster."""
WORDS = "Its cluster is being taken over; nothing is done to it."


@dataclass(frozen=True, slots=True)
class Housed:
    """
    A node by its name at its provider, as far as it matters for taking over the cluster that its machine is in.
    """

    id: str
    """`nod_…`."""
    ref: str
    """Its name at the provider."""
    state: str
    """Where it stands."""
    instance_type: str
    """What it is sold as."""
    health: str
    """Worst class of its open reports."""
    held_by: str
    """The cluster of ours that holds it; empty for none."""
    wired: bool
    """Whether we keep network ports of it."""
    gpus: int = 0
    """How many it should have."""
    address: str = ""
    """Its own address; empty where it is not known."""


HOUSED = text(
    """
    SELECT n.id, n.ref, n.state, n.instance_type, n.health, coalesce(a.cluster_id, '') AS held_by,
      EXISTS (SELECT 1 FROM node_ports w WHERE w.node_id = n.id) AS wired, n.gpus, coalesce(n.address, '') AS address
    FROM nodes n LEFT JOIN allocations a ON a.node_id = n.id AND a.state <> 'ended'
    WHERE n.provider_id = :provider AND n.ref = ANY(:refs) AND n.state <> 'retired'
    """
)
KNOWN_AS = text(
    """
    SELECT n.ref, lower(u.uuid) AS uuid FROM nodes n
    LEFT JOIN discovered_machines d ON d.provider_id = n.provider_id AND d.controller_url = n.access->>'url'
      AND d.controller_system = coalesce(n.access->>'system', '') AND d.controller_url <> ''
    CROSS JOIN LATERAL (
      SELECT DISTINCT s.uuid FROM unnest(ARRAY[n.inventory->'hardware'->>'uuid', n.inventory->>'uuid', d.inventory->>'uuid']) AS s(uuid)
      WHERE lower(s.uuid) = ANY(:uuids)) u
    WHERE n.provider_id = :provider AND n.state <> 'retired'
    """
)
TAKE = text(
    """
    UPDATE nodes n SET state = 'adopting', step = w.before, reason = :words, state_since = cp_clock(), deadline_at = NULL,
      due_at = NULL, attempts = 0, attention = '', allocation_id = u.allocation_id, version = version + 1, updated_at = cp_clock()
    FROM unnest(CAST(:nodes AS text[]), CAST(:allocations AS text[])) AS u (id, allocation_id),
      (SELECT id, state AS before FROM nodes WHERE id = ANY(:nodes) AND state = ANY(:rest) AND allocation_id IS NULL ORDER BY id
       FOR UPDATE) w
    WHERE n.id = u.id AND w.id = n.id
    RETURNING n.id, n.instance_type, n.site, n.gpus, n.allocation_id, n.step AS before, cp_clock() AS held_at
    """
)
SETTLE = text(
    """
    UPDATE nodes n SET state = :state, step = '', reason = :words, state_since = cp_clock(), version = version + 1,
      updated_at = cp_clock()
    FROM allocations a WHERE a.id = n.allocation_id AND a.cluster_id = ANY(:clusters) AND n.state = 'adopting' RETURNING n.id
    """
)
PART = text(
    """
    UPDATE nodes n SET state = 'adopting', step = 'maintenance', reason = :words, state_since = cp_clock(), deadline_at = NULL,
      due_at = NULL, version = version + 1, updated_at = cp_clock()
    FROM allocations a WHERE a.id = n.allocation_id AND a.cluster_id = :cluster AND n.state = 'active' RETURNING n.id
    """
)
BACK = text(
    """
    UPDATE nodes SET state = CASE WHEN step = 'maintenance' THEN step ELSE 'quarantined' END, step = '', reason = :words,
      state_since = cp_clock(), version = version + 1, updated_at = cp_clock()
    WHERE allocation_id = ANY(:allocations) AND state = 'adopting' RETURNING id, state, allocation_id
    """
)


def find_housed(session: Session, provider_id: str, refs: Collection[str]) -> Mapping[str, Housed]:
    """
    The nodes of the provider by these names there; one query.
    """
    rows = session.execute(HOUSED, {"provider": provider_id, "refs": sorted(set(refs))}).all()
    return {row.ref: Housed(*row) for row in rows}


def find_refs(session: Session, provider_id: str, uuids: Collection[str]) -> Mapping[str, frozenset[str]]:
    """
    By what firmware calls machines, lower case: the names of the provider's nodes that were inspected, or found, to be called so. Some
    controllers tell the first three parts of such a name in the other order of bytes; both are the same name. One query.
    """
    spelled = {form: one for one in uuids for form in (one, swapped(one)) if form}
    rows = session.execute(KNOWN_AS, {"provider": provider_id, "uuids": sorted(spelled)}).all()
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(spelled[row.uuid], set()).add(row.ref)
    return {uuid: frozenset(refs) for uuid, refs in found.items()}


def swapped(uuid: str) -> str:
    """
    The name with the first three parts in the other order of bytes; empty for what is none. Pure.

    Source: SMBIOS (DSP0134), "System — UUID": they are told in the order of the wire or of little-endian machines.
    """
    parts = uuid.split("-")
    if [len(one) for one in parts] != [8, 4, 4, 4, 12]:
        return ""
    turned = ["".join(reversed([one[at : at + 2] for at in range(0, len(one), 2)])) for one in parts[:3]]
    return "-".join([*turned, *parts[3:]])


def adopt(session: Session, wanted: Sequence[Hold]) -> bool:
    """
    All the nodes are their clusters' as they are, or none is and False is returned: one of them is not at rest any more.
    """
    ordered = sorted(wanted, key=lambda one: one.node_id)
    tokens = [new_id("alc") for _ in ordered]
    with session.begin_nested() as savepoint:
        given = {"nodes": [one.node_id for one in ordered], "allocations": tokens, "rest": list(AT_REST), "words": WORDS}
        rows = session.execute(TAKE, given).all()
        if len(rows) != len(ordered):
            savepoint.rollback()
            return False
        taken = {row.id: row for row in rows}
        networks = [{"name": network_of(one), "tenant_id": one} for one in sorted({one.tenant_id for one in ordered})]
        session.execute(upsert(NetworkRow).on_conflict_do_nothing(), networks)
        session.execute(insert(AllocationRow), [allocation_of(one, taken[one.node_id]) | {"state": "active"} for one in ordered])
        _tell(session, [(row.id, row.before, "adopting") for row in rows], WORDS)
    return True


def settle(session: Session, cluster_ids: Sequence[str]) -> None:
    """
    The nodes that these clusters brought with them are their tenants' like any other. Doing it twice changes nothing.
    """
    words = "Taken over with its cluster."
    done = session.execute(SETTLE, {"clusters": list(cluster_ids), "state": "active", "words": words}).scalars().all()
    close_tickets(session, done)
    _tell(session, [(one, "adopting", "active") for one in done], words)


def part(session: Session, cluster_id: str) -> int:
    """
    The cluster's nodes that are in use are on their way back to whoever had them, as they are; how many is returned.
    """
    words = "Its cluster is being let go; nothing is done to it."
    done = session.execute(PART, {"cluster": cluster_id, "words": words}).scalars().all()
    _tell(session, [(one, "active", "adopting") for one in done], words)
    return len(done)


def hand_back(session: Session, allocation_ids: Sequence[str]) -> None:
    """
    The nodes are put aside again, as what is on their machines is not ours, and their allocations are over.
    """
    words = "Its cluster is not ours: what runs on it is somebody else's."
    rows: Sequence[Any] = session.execute(BACK, {"allocations": list(allocation_ids), "words": words}).all()
    _tell(session, [(row.id, "adopting", row.state) for row in rows], words)
    end_allocations(session, {row.allocation_id: row.id for row in rows})


def _tell(session: Session, moved: Sequence[tuple[str, str, str]], words: str) -> None:
    events = [
        Event(f"node.{after}", "node", one, data={"state": after, "before": before, "reason": words})
        for one, before, after in moved
    ]
    record(session, events, [Move("node", one, before, after, words) for one, before, after in moved])
