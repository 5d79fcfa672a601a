"""
Clusters that exist at providers and are not ours: what was seen of them, what stands in the way of taking them over, what became of a try.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from controlplane.clusters.errors import AdoptionNotOffered
from controlplane.clusters.models import ClusterRow, FoundClusterRow
from controlplane.clusters.states import ClusterFacts
from controlplane.clusters.takeovers import Seen
from controlplane.health.classes import SICK
from controlplane.kit.clock import CpClock, rfc3339
from controlplane.kit.errors import NotFound
from controlplane.kit.events import Event, record
from controlplane.kit.ids import new_id
from controlplane.kit.lifecycle import Result
from controlplane.kit.outcome import Advance, Fail
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.nodes import service as nodes

STORE = text(
    """
    INSERT INTO found_clusters (id, provider_id, ref, uid, facts)
    SELECT s.id, :provider, s.ref, s.uid, s.facts
    FROM jsonb_to_recordset(CAST(:seen AS jsonb)) AS s(id text, ref text, uid text, facts jsonb) ORDER BY s.uid
    ON CONFLICT (provider_id, uid) DO UPDATE SET seen_at = cp_clock(), gone_at = NULL, ref = excluded.ref, facts = excluded.facts
    """
)
GONE = text(
    """
    UPDATE found_clusters SET gone_at = cp_clock()
    WHERE provider_id = :provider AND gone_at IS NULL AND NOT uid = ANY(:uids) AND seen_at <= :asked_at
    """
)
TAKEN = text(
    """
    SELECT adopted->>'uid' AS uid, id FROM clusters
    WHERE :provider IN (provider_id, peer_id) AND adopted IS NOT NULL AND state <> 'deleted' AND adopted->>'uid' = ANY(:uids)
    """
)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """
    Why a cluster cannot be taken over as it is.
    """

    code: str
    """Stable."""
    message: str
    """In words, for operators."""


@dataclass(frozen=True, slots=True)
class Firmware:
    """
    How a machine is recognised whose provider is another than its cluster's.
    """

    uuid: str
    """What its firmware calls it."""
    address: str
    """The address that it has there."""
    gpus: int | None
    """GPUs that work is given on it; None where that is not told."""
    nodes: int
    """How many of our nodes are called so."""


@dataclass(frozen=True, slots=True)
class FoundHost:
    """
    A machine of a cluster that was found, with our node of the same name.
    """

    ref: str
    """Its name at the provider."""
    node_set: str
    """Which set it is of."""
    ready: bool
    """Whether it was in use there."""
    node: nodes.Housed | None
    """Our node; None where none is enrolled, or more than one may be meant."""
    leads: bool = False
    """Whether it is a control plane that comes with the cluster."""
    known: Firmware | None = None
    """What is known of it beside its name, where nodes are found by that; None: they are found by name."""


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """
    A cluster that was found, as it stands to our inventory now.
    """

    row: FoundClusterRow
    """What was seen."""
    hosts: tuple[FoundHost, ...]
    """Its workers, by name."""
    obstacles: tuple[Obstacle, ...]
    """Everything that stands in the way; empty for nothing."""
    cluster_id: str
    """As what of ours it is being, or was, taken over; empty for nothing."""


def asked_now(session: Session) -> datetime:
    """
    The database's time, from before a provider is asked.
    """
    return session.execute(select(CpClock())).scalar_one()


def store(session: Session, provider_id: str, seen: Sequence[Seen], asked_at: datetime) -> None:
    """
    What the provider listed stands in rows; what it did not, and nobody has seen since it was asked, is gone.
    """
    rows = [{"id": new_id("fcl"), "ref": one.ref, "uid": one.uid, "facts": asdict(one)} for one in seen]
    if rows:
        session.execute(STORE, {"provider": provider_id, "seen": json.dumps(rows)})
    session.execute(GONE, {"provider": provider_id, "uids": [one.uid for one in seen], "asked_at": asked_at})


def list_found(session: Session, provider_id: str, ask: PageAsk) -> Page[FoundCluster]:
    """
    A page of the clusters that are at the provider and not ours. Raises NotFound, AdoptionNotOffered.
    """
    provider = nodes.get_provider(session, provider_id)
    if not provider.capabilities.get("adopts"):
        raise AdoptionNotOffered(
            f"{provider.name} hands over no clusters that exist already.",
            hint="Delete them there and order them anew, or register a provider whose capabilities name what it adopts.",
        )
    query = select(FoundClusterRow).where(FoundClusterRow.provider_id == provider_id, FoundClusterRow.gone_at.is_(None))
    page = fetch_page(session, query, FoundClusterRow.id, ask)
    views = {one.row.id: one for one in _views(session, provider_id, page.items)}
    return page.map(lambda row: views[row.id])


def get_found(session: Session, provider_id: str, found_id: str, *, lock: bool = False) -> FoundCluster:
    """
    One of them, also when it is gone. Raises NotFound.
    """
    query = select(FoundClusterRow).where(FoundClusterRow.id == found_id, FoundClusterRow.provider_id == provider_id)
    row = session.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if row is None:
        raise NotFound
    return _views(session, provider_id, [row])[0]


def _views(session: Session, provider_id: str, rows: Sequence[FoundClusterRow]) -> list[FoundCluster]:
    machines = machines_of(session, provider_id)
    if machines:
        hosts = _recognised(session, machines, [one for row in rows for one in row.facts["hosts"]])
    else:
        refs = {one["ref"] for row in rows for one in row.facts["hosts"]}
        known = nodes.find_housed(session, provider_id, refs)
        hosts = {ref: (known.get(ref), None) for ref in refs}
    given = {"provider": provider_id, "uids": [row.uid for row in rows]}
    taken = {row.uid: row.id for row in session.execute(TAKEN, given)}
    return [_view(row, hosts, taken.get(row.uid, "")) for row in rows]


def machines_of(session: Session, provider_id: str) -> str:
    """
    The provider that drives the machines which clusters there stand on; empty: the same.
    """
    return str(nodes.get_provider(session, provider_id).config.get("machines_of", ""))


def _recognised(
    session: Session, machines: str, told: Sequence[Mapping[str, Any]]
) -> Mapping[str, tuple[nodes.Housed | None, Firmware | None]]:
    """
    By name there: our node, by what its firmware calls it, and what else is known. Never by a name or an address alone.
    """
    found = nodes.find_refs(session, machines, {one["uuid"] for one in told if one.get("uuid")})
    housed = nodes.find_housed(session, machines, {ref for refs in found.values() for ref in refs})
    twice = {uuid for uuid, count in Counter(one.get("uuid", "") for one in told).items() if count > 1}
    hosts: dict[str, tuple[nodes.Housed | None, Firmware | None]] = {}
    for one in told:
        uuid = one.get("uuid", "")
        refs = found.get(uuid, frozenset())
        sure = len(refs) == 1 and uuid not in twice
        firmware = Firmware(uuid, one.get("address", ""), one.get("gpus"), max(len(refs), 2 if uuid in twice else 0))
        hosts[one["ref"]] = (housed.get(next(iter(refs))) if sure else None, firmware)
    return hosts


def _view(row: FoundClusterRow, known: Mapping[str, tuple[nodes.Housed | None, Firmware | None]], cluster_id: str) -> FoundCluster:
    hosts = tuple(
        FoundHost(one["ref"], one["node_set"], one["ready"], known[one["ref"]][0], one.get("leads", False), known[one["ref"]][1])
        for one in row.facts["hosts"]
    )
    told = [Obstacle(**one) for one in row.facts["obstacles"]]
    if row.gone_at is not None:
        told.append(Obstacle("gone", "It is not there any more."))
    if cluster_id:
        told.append(Obstacle("taken_already", f"It is taken over as {cluster_id}."))
    types = {one["name"]: one["instance_types"] for one in row.facts["sets"]}
    told += [wrong for one in hosts for wrong in obstacles_of(one, types.get(one.node_set, []), cluster_id)]
    for name in types:
        kinds = sorted({one.node.instance_type for one in hosts if one.node_set == name and one.node is not None})
        if len(kinds) > 1:
            told.append(Obstacle("mixed_instance_types", f"{name} has nodes of {' and '.join(kinds)}; a node set has one type."))
    return FoundCluster(row, hosts, tuple(told), cluster_id)


def obstacles_of(host: FoundHost, instance_types: Sequence[str], cluster_id: str = "") -> list[Obstacle]:
    """
    Why a node cannot be taken over with its cluster, besides being held by that cluster itself. Pure.
    """
    node, ref = host.node, host.ref
    if node is None:
        return [_unknown(host)]
    if node.held_by and node.held_by == cluster_id:
        return []
    wrong = []
    if node.held_by:
        wrong.append(Obstacle("host_held", f"{ref} ({node.id}) is held by {node.held_by}."))
    elif node.state not in nodes.AT_REST:
        words = f"{ref} ({node.id}) is {node.state}: put it in maintenance, so that nothing of ours is at it."
        wrong.append(Obstacle("host_busy", words))
    if node.instance_type not in instance_types and instance_types:
        words = f"{ref} ({node.id}) is enrolled as {node.instance_type}; its machine class makes {' or '.join(instance_types)}."
        wrong.append(Obstacle("other_instance_type", words))
    if node.health in SICK:
        words = f"{ref} ({node.id}) is not healthy ({node.health}), so it would be replaced at once."
        wrong.append(Obstacle("host_sick", words))
    if node.wired:
        words = f"Network ports of {ref} ({node.id}) are kept by us, and would be moved under what runs there."
        wrong.append(Obstacle("host_wired", words))
    return [*wrong, *_differences(host, node)]


def _unknown(host: FoundHost) -> Obstacle:
    ref, known = host.ref, host.known
    if known is None:
        return Obstacle("host_not_enrolled", f"{ref} is not enrolled: enroll it first, and put it in maintenance.")
    if known.nodes > 1:
        words = f"{ref}: its firmware's name {known.uuid} is that of several machines, so it is not known which one it is."
        return Obstacle("host_ambiguous", words)
    words = (
        f"{ref}: no machine that is enrolled at the provider of its machines is known by its firmware's name {known.uuid or '(none)'}. "
        "Have its controller looked at (discovery targets), which tells the name, and enroll it with in_use."
    )
    return Obstacle("host_not_enrolled", words)


def _differences(host: FoundHost, node: nodes.Housed) -> list[Obstacle]:
    """
    Where what is seen in the cluster is not what our inventory says of the machine.
    """
    wrong = []
    if host.known is None:
        return []
    if node.address and host.known.address and node.address != host.known.address:
        words = f"{host.ref} has the address {host.known.address}, and {node.id} is enrolled with {node.address}."
        wrong.append(Obstacle("host_address_differs", words))
    if not host.leads and host.known.gpus is not None and host.known.gpus != node.gpus:
        words = f"{host.ref} gives work {host.known.gpus} GPUs, and {node.id} is enrolled with {node.gpus}."
        wrong.append(Obstacle("host_gpus_differ", words))
    return wrong


def follow(session: Session, results: Sequence[Result]) -> None:
    """
    Nodes of clusters that were taken over are their tenants', those of clusters that were let go are put aside, and operators hear why a
    provider did not hand one over.
    """
    mine = [one for one in results if one.claim.row["adopted"]]
    nodes.settle(session, [one.claim.id for one in mine if one.claim.state == "adopting" and isinstance(one.outcome, Advance)])
    back = [each for one in mine if isinstance(one.outcome.facts, ClusterFacts) for each in one.outcome.facts.hand_back]
    nodes.hand_back(session, back)
    for one in mine:
        if one.claim.state == "adopting" and isinstance(one.outcome, Fail):
            _note_refusal(session, one, one.outcome)


def _note_refusal(session: Session, result: Result, failure: Fail) -> None:
    at = session.execute(select(CpClock())).scalar_one()
    told = {"code": failure.code, "message": failure.detail or failure.message}
    found_id = result.claim.row["adopted"]["found_id"]
    noted = update(FoundClusterRow).where(FoundClusterRow.id == found_id)
    session.execute(noted.values(refusal={**told, "at": rfc3339(at)}))
    record(session, [Event("cluster.adoption_refused", "cluster", result.claim.id, data={**told, "found_id": found_id})])


def was_let_go(session: Session, cluster_id: str) -> bool:
    """
    Whether the cluster was never ours whole, or was given back: then what is left of it at its provider is let go, and never removed.
    """
    never = ClusterRow.running_at.is_(None) | ClusterRow.adopted.has_key("let_go")
    query = select(ClusterRow.id).where(ClusterRow.id == cluster_id, ClusterRow.adopted.is_not(None), never)
    return session.execute(query).first() is not None
