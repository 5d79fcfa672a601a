"""
Machines that are found: who is asked next, what becomes of the answers, what differs from what is enrolled, and adoption.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, text, update
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import FieldError, Invalid, NotFound
from controlplane.kit.events import Event, record
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, decode_token, encode_token, fetch_page
from controlplane.kit.secrets import Sealer
from controlplane.nodes import powering, repository
from controlplane.nodes.errors import AlreadyEnrolled
from controlplane.nodes.finding import Finding, Known, Seen, find_mismatches
from controlplane.nodes.models import DiscoveredMachineRow, DiscoveryTargetRow, NodeRow, ProviderRow
from controlplane.nodes.registering import NewController, NewNode, enroll, get_provider
from controlplane.nodes.sightings import Answer, Listing, Sighting, Target
from controlplane.nodes.states import Access, ProviderRef

EVERY_S = 600.0
MOST_TARGETS = 8192
PLACE = ("block", "leaf", "rack", "instance_type")
DUE_TARGETS = text(
    """
    UPDATE discovery_targets SET asked_at = cp_clock() WHERE id IN (
      SELECT t.id FROM discovery_targets t JOIN providers p ON p.id = t.provider_id AND p.state <> 'deleted'
      WHERE t.asked_at IS NULL OR t.asked_at < cp_clock() - make_interval(secs => :every)
      ORDER BY t.asked_at NULLS FIRST, t.id LIMIT :limit FOR UPDATE OF t SKIP LOCKED)
    RETURNING id, provider_id, url, system
    """
)
SIGHT = text(
    """
    INSERT INTO discovered_machines (id, provider_id, ref, serial, controller_url, controller_system, place, inventory)
    SELECT s.id, s.provider_id, s.ref, s.serial, s.controller_url, s.controller_system, s.place, s.inventory
    FROM jsonb_to_recordset(CAST(:seen AS jsonb)) AS s(id text, provider_id text, ref text, serial text, controller_url text,
      controller_system text, place jsonb, inventory jsonb)
    ORDER BY s.provider_id, s.ref
    ON CONFLICT (provider_id, ref) DO UPDATE SET seen_at = cp_clock(), gone_at = NULL, controller_url = excluded.controller_url,
      controller_system = excluded.controller_system, place = excluded.place,
      serial = CASE WHEN excluded.serial = '' THEN discovered_machines.serial ELSE excluded.serial END,
      inventory = discovered_machines.inventory || excluded.inventory
    """
)
ANSWERED = text(
    """
    UPDATE discovery_targets t SET problem = a.problem, seen_at = CASE WHEN a.problem = '' THEN cp_clock() ELSE t.seen_at END
    FROM jsonb_to_recordset(CAST(:answers AS jsonb)) AS a(id text, problem text) WHERE t.id = a.id
    """
)


@dataclass(frozen=True, slots=True)
class Adoption:
    """
    What a person says of a machine that was found; None: as the provider knows it.
    """

    name: str | None = None
    """What a machine with a controller shall be called; None: its serial number."""
    block: str | None = None
    """Spine group."""
    leaf: str | None = None
    """Where its rails meet."""
    rack: str | None = None
    """Which rack."""
    unit: int | None = None
    """Lowest rack unit."""
    instance_type: str | None = None
    """What it is sold as."""
    gpus: int | None = None
    """How many were bought; None: as many as the type has."""
    username: str | None = None
    """Account of its controller; None: the provider's."""
    password: str | None = None
    """Of that account."""
    address: str | None = None
    """The machine's own address."""
    in_use: bool = False
    """Whether something runs on it that is to go on."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """
    How far discovery at one provider has come.
    """

    provider_id: str
    """Which provider."""
    discovered_at: datetime | None
    """When it was last asked for its machines; None: never, or it is due."""
    listed_at: datetime | None
    """When it last gave a whole list; None: never."""
    targets: int
    """Controllers that are looked at."""
    answered: int
    """Those that told their machine the last time."""
    silent: int
    """Those that did not."""


def due_providers(session: Session, limit: int) -> list[ProviderRef]:
    """
    Up to `limit` providers that answer and were not asked for their machines lately; they count as asked, so nobody else asks them.
    """
    late = ProviderRow.discovered_at < CpClock() - func.make_interval(0, 0, 0, 0, 0, 0, EVERY_S)
    chosen = (
        select(ProviderRow.id)
        .where(ProviderRow.state != "deleted", ProviderRow.cluster_id.is_(None), ProviderRow.seen_at.is_not(None))
        .where(or_(ProviderRow.discovered_at.is_(None), late))
        .order_by(ProviderRow.discovered_at.nulls_first(), ProviderRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    ids = list(session.execute(chosen).scalars())
    session.execute(update(ProviderRow).where(ProviderRow.id.in_(ids)).values(discovered_at=CpClock()))
    found = repository.read_providers(session, ids)
    return [found[one] for one in ids]


def store_listing(session: Session, provider_id: str, listing: Listing) -> None:
    """
    What was listed stands in rows, each machine's power among it. Only a whole list says that a machine is gone, and only of machines that
    nobody has seen since somebody last asked: an answer may be older than what another has told meanwhile. One that is there again is
    there.
    """
    _sight(session, [(provider_id, one) for one in listing.sightings])
    said = {one.ref: one.power for one in listing.sightings}
    enrolled = session.execute(select(NodeRow.id, NodeRow.ref).where(NodeRow.provider_id == provider_id))
    powering.store_power(session, {row.id: said[row.ref] for row in enrolled if row.ref in said})
    if not listing.complete:
        return
    session.execute(
        update(DiscoveredMachineRow)
        .where(
            DiscoveredMachineRow.provider_id == provider_id,
            DiscoveredMachineRow.controller_url == "",
            DiscoveredMachineRow.gone_at.is_(None),
            DiscoveredMachineRow.ref.not_in([one.ref for one in listing.sightings]),
            DiscoveredMachineRow.seen_at < select(ProviderRow.discovered_at).where(ProviderRow.id == provider_id).scalar_subquery(),
        )
        .values(gone_at=CpClock())
    )
    session.execute(update(ProviderRow).where(ProviderRow.id == provider_id).values(listed_at=CpClock()))


def due_targets(session: Session, limit: int) -> list[Target]:
    """
    Up to `limit` controllers that were not looked at lately; they count as looked at. One whose machine is enrolled is asked with that
    node's account: a wrong one locks many controllers.
    """
    rows = session.execute(DUE_TARGETS, {"every": EVERY_S, "limit": limit}).all()
    providers = repository.read_providers(session, [row.provider_id for row in rows])
    query = select(NodeRow.id, NodeRow.provider_id, NodeRow.access, NodeRow.sealed)
    enrolled = query.where(NodeRow.access["url"].astext.in_({row.url for row in rows}), NodeRow.state != "retired")
    nodes = {(one.provider_id, one.access["url"], one.access.get("system", "")): one for one in session.execute(enrolled)}
    found = []
    for row in rows:
        node = nodes.get((row.provider_id, row.url, row.system))
        access = Access(row.url, row.system)
        if node is not None:
            access = replace(access, username=node.access.get("username", ""), sealed=node.sealed)
        found.append(Target(row.id, providers[row.provider_id], row.id if node is None else node.id, access))
    return found


def store_answers(session: Session, answers: Sequence[Answer]) -> None:
    """
    Machines whose controllers answered stand in rows; why the others did not, at their targets.
    """
    rows = [{"id": one.target_id, "problem": one.problem} for one in answers]
    session.execute(ANSWERED, {"answers": json.dumps(rows)})
    _sight(session, [(one.provider_id, one.sighting) for one in answers if one.sighting is not None])


def _sight(session: Session, seen: Sequence[tuple[str, Sighting]]) -> None:
    rows = {(provider_id, one.ref): {"id": new_id("dsc"), "provider_id": provider_id, **asdict(one)} for provider_id, one in seen}
    if rows:
        session.execute(SIGHT, {"seen": json.dumps(list(rows.values()))})


def put_targets(
    session: Session, provider_id: str, urls: Iterable[str], ranges: Iterable[tuple[IPv4Network | IPv6Network, int]]
) -> Coverage:
    """
    These controllers, and one at each address of the ranges at the port, are looked at from now on, and no others. Raises NotFound, Invalid
    for too many.
    """
    get_provider(session, provider_id, lock=True)
    wanted = {url.rstrip("/") for url in urls}
    for network, port in ranges:
        if network.num_addresses > MOST_TARGETS:
            raise _too_many()
        wanted |= {_url(str(host), port) for host in network.hosts()}
    if len(wanted) > MOST_TARGETS:
        raise _too_many()
    mine = select(DiscoveryTargetRow).where(DiscoveryTargetRow.provider_id == provider_id)
    known = {one.url: one.id for one in session.execute(mine).scalars()}
    left = [one for url, one in known.items() if url not in wanted]
    session.execute(delete(DiscoveryTargetRow).where(DiscoveryTargetRow.id.in_(left)))
    gone = update(DiscoveredMachineRow).where(
        DiscoveredMachineRow.provider_id == provider_id, DiscoveredMachineRow.controller_url.in_(set(known) - wanted)
    )
    session.execute(gone.values(gone_at=CpClock()))
    fresh = [{"id": new_id("dtg"), "provider_id": provider_id, "url": url} for url in sorted(wanted - set(known))]
    if fresh:
        session.execute(insert(DiscoveryTargetRow), fresh)
    return coverage(session, provider_id)


def _url(host: str, port: int) -> str:
    place = f"[{host}]" if ":" in host else host
    return f"https://{place}" if port == 443 else f"https://{place}:{port}"  # noqa: PLR2004 - the port of https


def _too_many() -> Invalid:
    words = f"At most {MOST_TARGETS} controllers for one provider."
    return Invalid(words, errors=[FieldError("body.ranges", "too_many_targets", words)])


def ask_again(session: Session, provider_id: str) -> Coverage:
    """
    The provider and its controllers are asked within seconds. Raises NotFound.
    """
    row = get_provider(session, provider_id, lock=True)
    row.discovered_at = None
    session.flush()
    session.execute(update(DiscoveryTargetRow).where(DiscoveryTargetRow.provider_id == provider_id).values(asked_at=None))
    return coverage(session, provider_id)


def coverage(session: Session, provider_id: str) -> Coverage:
    """
    How far discovery has come. Raises NotFound.
    """
    row = get_provider(session, provider_id)
    told = DiscoveryTargetRow.problem == ""
    asked = DiscoveryTargetRow.asked_at.is_not(None)
    query = select(
        func.count(),
        func.count().filter(asked & told & DiscoveryTargetRow.seen_at.is_not(None)),
        func.count().filter(DiscoveryTargetRow.problem != ""),
    ).where(DiscoveryTargetRow.provider_id == provider_id)
    targets, answered, silent = session.execute(query).one()
    return Coverage(provider_id, row.discovered_at, row.listed_at, targets, answered, silent)


def list_targets(session: Session, provider_id: str, ask: PageAsk) -> Page[DiscoveryTargetRow]:
    """
    A page of the controllers that are looked at. Raises NotFound.
    """
    get_provider(session, provider_id)
    return fetch_page(
        session, select(DiscoveryTargetRow).where(DiscoveryTargetRow.provider_id == provider_id), DiscoveryTargetRow.id, ask
    )


def list_discovered(session: Session, provider_id: str | None, ask: PageAsk) -> Page[DiscoveredMachineRow]:
    """
    A page of the machines that were found, those that are gone too.
    """
    query = select(DiscoveredMachineRow)
    if provider_id is not None:
        query = query.where(DiscoveredMachineRow.provider_id == provider_id)
    return fetch_page(session, query, DiscoveredMachineRow.id, ask)


def get_discovered(session: Session, machine_id: str) -> DiscoveredMachineRow:
    """
    The machine that was found. Raises NotFound.
    """
    row = session.get(DiscoveredMachineRow, machine_id)
    if row is None:
        raise NotFound
    return row


def list_findings(session: Session, provider_id: str | None, code: str | None, ask: PageAsk) -> Page[Finding]:
    """
    A page of what differs between enrolled and found machines, as of now, by provider and name. Raises Invalid for a token of others.
    """
    found = [
        one
        for one in find_mismatches(_known(session), _seen(session), _listed(session))
        if provider_id in {None, one.provider_id} and code in {None, one.code}
    ]
    start = 0
    if ask.token is not None:
        position = decode_token(ask.token)
        if not (position.isascii() and position.isdigit()) or int(position) > len(found):
            wrong = FieldError("query.page_token", "invalid_token", "Use a next_page_token.")
            raise Invalid("The page token is not one of ours.", errors=[wrong])
        start = int(position)
    end = start + ask.limit
    return Page(tuple(found[start:end]), encode_token(str(end)) if end < len(found) else None)


def _known(session: Session) -> list[Known]:
    columns = ("id", "provider_id", "ref", "serial", "access", "created_at", "site", "nvlink_domain", "gpus", *PLACE)
    found = NodeRow.inventory["serial"].astext.label("found")
    rows = session.execute(select(*(getattr(NodeRow, name) for name in columns), found).where(NodeRow.state != "retired"))
    return [
        Known(
            node_id=row.id,
            provider_id=row.provider_id,
            ref=row.ref,
            serial=row.serial or row.found or "",
            controller=(row.access["url"], row.access.get("system", "")) if row.access else None,
            place={name: getattr(row, name) for name in ("site", "nvlink_domain", "gpus", *PLACE)},
            since=row.created_at,
        )
        for row in rows
    ]


def _seen(session: Session) -> list[Seen]:
    rows = session.execute(select(DiscoveredMachineRow).where(DiscoveredMachineRow.gone_at.is_(None))).scalars()
    return [
        Seen(
            row.id,
            row.provider_id,
            row.ref,
            row.serial,
            (row.controller_url, row.controller_system) if row.controller_url else None,
            row.place,
        )
        for row in rows
    ]


def _listed(session: Session) -> dict[str, datetime]:
    query = select(ProviderRow.id, ProviderRow.listed_at).where(ProviderRow.listed_at.is_not(None))
    return {row.id: row.listed_at for row in session.execute(query) if row.listed_at is not None}


def adopt(session: Session, machine_id: str, said: Adoption, sealer: Sealer | None) -> str:
    """
    The machine is a node, to be inspected, checked and wiped like any other; the node's id is returned. Nothing is done to it before that.

    Raises NotFound for a machine that is not there any more either, Invalid for what is neither said nor known, AlreadyEnrolled.
    """
    seen = get_discovered(session, machine_id)
    if seen.gone_at is not None:
        raise NotFound("The machine is not there any more.")
    provider = get_provider(session, seen.provider_id)
    place = {name: getattr(said, name) or seen.place.get(name) for name in PLACE}
    wrong = [FieldError(f"body.{name}", "missing", f"{name} is not known: say it.") for name, one in place.items() if not one]
    kind = catalog.instance_facts(session).get(str(place["instance_type"]))
    if kind is None and place["instance_type"]:
        wrong.append(FieldError("body.instance_type", "unknown_instance_type", f"There is no type {place['instance_type']}."))
    if seen.place.get("site") not in {None, provider.site}:
        words = f"It stands in {seen.place['site']}; this provider's machines stand in {provider.site}."
        wrong.append(FieldError("body", "other_site", words))
    bare = bool(seen.controller_url)
    if not bare and said.name not in {None, seen.ref}:
        wrong.append(FieldError("body.name", "other_name", f"The provider calls it {seen.ref}; it keeps that name."))
    if not bare and (said.username or said.password):
        wrong.append(
            FieldError("body.username", "controller_missing", "The provider drives it; it has no controller of its own here.")
        )
    if wrong or kind is None:
        raise Invalid(wrong[0].message, errors=wrong)
    _refuse_known(session, seen)
    new = NewNode(
        ref=(said.name or seen.serial or seen.ref) if bare else seen.ref,
        block=str(place["block"]),
        leaf=str(place["leaf"]),
        rack=str(place["rack"]),
        instance_type=str(place["instance_type"]),
        nvlink_domain=seen.place.get("nvlink_domain"),
        gpus=said.gpus or seen.place.get("gpus") or kind.gpus,
        controller=_controller(seen, said) if bare else None,
        address=said.address,
        serial=seen.serial or None,
        unit=said.unit,
        in_use=said.in_use,
    )
    made = enroll(session, provider.id, provider.site, [new], sealer)
    if not made:
        raise AlreadyEnrolled(f"The provider has a node called {new.ref} already, in use or retired.")
    record(session, [Event("node.adopted", "node", made[0], data={"discovered_id": seen.id})])
    return made[0]


def _controller(seen: DiscoveredMachineRow, said: Adoption) -> NewController:
    return NewController(seen.controller_url, seen.controller_system, said.username or "", said.password or "")


def _refuse_known(session: Session, seen: DiscoveredMachineRow) -> None:
    """
    Raises AlreadyEnrolled where a node has the machine's name, controller or serial number.
    """
    same: list[ColumnElement[bool]] = [(NodeRow.provider_id == seen.provider_id) & (NodeRow.ref == seen.ref)]
    if seen.serial:
        same.append(func.lower(NodeRow.serial) == seen.serial.lower())
    if seen.controller_url:
        own = NodeRow.access["url"].astext == seen.controller_url
        same.append(own & (func.coalesce(NodeRow.access["system"].astext, "") == seen.controller_system))
    node_id = session.execute(select(NodeRow.id).where(or_(*same), NodeRow.state != "retired").limit(1)).scalar_one_or_none()
    if node_id is not None:
        raise AlreadyEnrolled(f"It is enrolled as {node_id}.", node_id=node_id)
