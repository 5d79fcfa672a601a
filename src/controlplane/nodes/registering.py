"""
Providers as operators register them, their secrets, and the machines that are enrolled from them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.kit.clock import CpClock
from controlplane.kit.errors import Conflict, FieldError, Invalid, NameTaken, NotFound, Unavailable
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk, fetch_page
from controlplane.kit.secrets import Sealer
from controlplane.nodes import repository
from controlplane.nodes.errors import ProviderInUse, UnknownAdapter
from controlplane.nodes.models import NodeRow, ProviderRow
from controlplane.nodes.states import NODE_STATES
from controlplane.rendering.kubernetes import offer as kubernetes
from controlplane.rendering.kubernetes.checking import BadPlan as BadKubernetes
from controlplane.rendering.slurm import offer as slurm
from controlplane.rendering.slurm.words import BadPlan as BadSlurm

ADAPTERS = "controlplane.providers"  # the entry point group
IN_USE, IN_USE_WORDS = "maintenance", "Enrolled while in use; nothing is done to it."
CheckVersion = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class NewProvider:
    """
    A provider to be registered.
    """

    name: str
    """Unique, for operators."""
    adapter: str
    """Entry point name."""
    site: str
    """Where its machines stand."""
    config: dict[str, Any]
    """Plain settings."""
    sealed: bytes | None
    """Sealed secrets, under `provider_id`."""
    capabilities: dict[str, Any]
    """What the peer said it can do."""
    shared: bool
    """Whether several tenants may hold its nodes at once."""
    provider_id: str
    """`prv_…`, made by the caller because secrets are sealed under it."""


@dataclass(frozen=True, slots=True)
class NewController:
    """
    How a machine that we drive ourselves is reached.
    """

    url: str
    """Root of its management controller."""
    system: str = ""
    """The machine among the controller's systems; empty where there is one."""
    username: str = ""
    """Account; empty: the provider's."""
    password: str = field(default="", repr=False)
    """Sealed at once; empty: the provider's."""


@dataclass(frozen=True, slots=True)
class NewPort:
    """
    Where one network port of a machine ends.
    """

    name: str
    """The machine's name of it."""
    fabric_id: str
    """The provider that is the fabric."""
    switch: str
    """The switch by the fabric's name."""
    port: str
    """The port by the switch's name."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """
    A node to be enrolled.
    """

    ref: str
    """Its name at the provider."""
    block: str
    """Spine group."""
    leaf: str
    """Where its rails meet."""
    rack: str
    """Which rack."""
    nvlink_domain: str | None
    """The rack-wide NVLink domain, if any."""
    instance_type: str
    """What it is sold as."""
    gpus: int
    """How many it should have; 0: as many as its type."""
    controller: NewController | None = None
    """Where we drive the machine ourselves."""
    address: str | None = None
    """The machine's own address; None when unknown."""
    ports: tuple[NewPort, ...] = ()
    """Its wiring, where it is known."""
    serial: str | None = None
    """The serial number that is expected."""
    unit: int | None = None
    """Lowest rack unit."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free pairs."""
    in_use: bool = False
    """Whether something runs on it that is to go on: it is put in maintenance, and nothing is done to it."""


def seal_secrets(sealer: Sealer | None, provider_id: str, secrets: Mapping[str, str]) -> bytes | None:
    """
    The secrets as the provider's row keeps them; None for none. Raises Unavailable where there is nothing to seal them with.
    """
    if not secrets:
        return None
    if sealer is None:
        raise Unavailable("This installation has no master key, so it takes no secrets.", code="no_master_key")
    return sealer.seal(json.dumps(dict(secrets)).encode(), table="providers", column="sealed", row=provider_id)


def register_provider(session: Session, new: NewProvider) -> ProviderRow:
    """
    The provider is registered. Raises Invalid for an unknown site, UnknownAdapter, NameTaken.
    """
    _check_offer(new.config)
    if new.site not in catalog.site_names(session):
        raise _invalid("body.site", "unknown_site", f"There is no site {new.site[:60]}.")
    installed = sorted({point.name for point in entry_points(group=ADAPTERS)})
    if new.adapter not in installed:
        words = f"There is no adapter {new.adapter[:60]}; installed are {', '.join(installed)}."
        raise UnknownAdapter(words, errors=[FieldError("body.adapter", "adapter_unknown", words)])
    row = ProviderRow(
        id=new.provider_id,
        name=new.name,
        adapter=new.adapter,
        site=new.site,
        config=new.config,
        sealed=new.sealed,
        capabilities=new.capabilities,
        shared=new.shared,
        seen_at=None,
    )
    try:
        with session.begin_nested():
            session.add(row)
            session.flush()
    except IntegrityError:
        raise NameTaken(f"A provider named {new.name} is registered already.", name=new.name) from None
    session.refresh(row)
    record(session, [Event("provider.registered", "provider", row.id, data={"name": row.name, "adapter": row.adapter})])
    return row


def _check_offer(config: Mapping[str, Any]) -> None:
    """
    Raises Invalid where the settings offer dedicated clusters that could never be built.
    """
    try:
        slurm.read_offer(config)
        kubernetes.read_offer(config)
    except (BadSlurm, BadKubernetes) as error:
        wrong = [FieldError(f"body.config.{_within(one.field, error)}", one.code, one.message) for one in error.errors]
        raise Invalid(error.detail, errors=wrong) from None


def _within(field: str, error: BadSlurm | BadKubernetes) -> str:
    """
    The field among the settings: what a Kubernetes plan says is wrong with itself comes from the offer.
    """
    inside = isinstance(error, BadSlurm) or field.startswith(f"{kubernetes.SETTING}.")
    return field if inside else f"{kubernetes.SETTING}.{field}"


def find_provider(session: Session, name: str) -> ProviderRow | None:
    """
    The provider of this name, or None.
    """
    return session.execute(select(ProviderRow).where(ProviderRow.name == name)).scalar_one_or_none()


def get_provider(session: Session, provider_id: str, *, lock: bool = False) -> ProviderRow:
    """
    The provider. Raises NotFound.
    """
    query = select(ProviderRow).where(ProviderRow.id == provider_id, ProviderRow.state != "deleted")
    row = session.execute(query.with_for_update() if lock else query).scalar_one_or_none()
    if row is None:
        raise NotFound
    return row


def list_providers(session: Session, ask: PageAsk) -> Page[ProviderRow]:
    """
    A page of the providers that operators registered.
    """
    known = select(ProviderRow).where(ProviderRow.state != "deleted", ProviderRow.cluster_id.is_(None))
    return fetch_page(session, known, ProviderRow.id, ask)


@dataclass(frozen=True, slots=True)
class ProviderChange:
    """
    What of a provider is replaced; None leaves it as it is.
    """

    config: dict[str, Any] | None
    """All of its plain settings."""
    secrets: Mapping[str, str] | None
    """All of its secrets; an empty mapping forgets them."""


def change_provider(
    session: Session, provider_id: str, change: ProviderChange, sealer: Sealer | None, check: CheckVersion
) -> ProviderRow:
    """
    The settings are replaced, adapters are built anew from them, and the provider is due to be asked. Raises NotFound, what `check`
    raises, and Unavailable for secrets where there is nothing to seal them with.
    """
    row = get_provider(session, provider_id, lock=True)
    check(row.version)
    replaced = []
    if change.config is not None and change.config != row.config:
        _check_offer(change.config)
        row.config = change.config
        replaced.append("config")
    if change.secrets is not None:
        row.sealed = seal_secrets(sealer, provider_id, change.secrets)
        replaced.append("secrets")
    if replaced:
        row.checked_at = None
        row.version += 1
        row.updated_at = session.execute(select(CpClock())).scalar_one()
        session.flush()
        record(session, [Event("provider.changed", "provider", row.id, data={"replaced": replaced})])
    return row


def set_provider_state(session: Session, provider_id: str, state: str, check: CheckVersion | None = None) -> ProviderRow:
    """
    The provider takes part in placement, or does not; what stands on it is not touched. Raises NotFound and what `check` raises.
    """
    row = get_provider(session, provider_id, lock=True)
    if check is not None:
        check(row.version)
    if row.state != state:
        _change(session, row, state)
    return row


def delete_provider(session: Session, provider_id: str, check: CheckVersion) -> ProviderRow:
    """
    The provider and its secrets are forgotten and its name is free. Raises NotFound, what `check` raises, and ProviderInUse while
    nodes that are not retired or clusters that are not deleted stand on it.
    """
    row = get_provider(session, provider_id, lock=True)
    check(row.version)
    nodes, clusters = repository.count_dependents(session, provider_id)
    if nodes or clusters:
        words = f"{nodes} nodes must be retired and {clusters} clusters deleted first."
        raise ProviderInUse(words, nodes=nodes, clusters=clusters)
    row.name, row.sealed = f"{row.name} ({row.id})", None
    _change(session, row, "deleted")
    return row


def _change(session: Session, row: ProviderRow, state: str) -> None:
    before, row.state = row.state, state
    row.version += 1
    row.updated_at = session.execute(select(CpClock())).scalar_one()
    session.flush()
    record(session, [Event(f"provider.{state}", "provider", row.id, data={"state": state, "before": before})])


def enroll_from(session: Session, provider_id: str, nodes: Iterable[NewNode], sealer: Sealer | None = None) -> list[str]:
    """
    As `enroll`, at the provider's site, after every type and fabric was found. Raises Invalid, and for an unknown provider too.
    """
    try:
        provider = get_provider(session, provider_id)
    except NotFound:
        raise _invalid("body.provider_id", "unknown_provider", "There is no such provider.") from None
    facts, checked, wrong = catalog.instance_facts(session), [], []
    wanted = list(nodes)
    fabrics = repository.read_providers(session, [port.fabric_id for one in wanted for port in one.ports])
    for place, one in enumerate(wanted):
        kind = facts.get(one.instance_type)
        if kind is None:
            words = f"There is no type {one.instance_type[:60]}."
            wrong.append(FieldError(f"body.nodes.{place}.instance_type", "unknown_instance_type", words))
            continue
        for number, port in enumerate(one.ports):
            if port.fabric_id not in fabrics:
                where = f"body.nodes.{place}.ports.{number}.fabric_id"
                wrong.append(FieldError(where, "unknown_provider", "There is no such provider."))
        checked.append(replace(one, gpus=one.gpus or kind.gpus))
    if wrong:
        raise Invalid(wrong[0].message, errors=wrong[:50])
    return enroll(session, provider_id, provider.site, checked, sealer)


def enroll(session: Session, provider_id: str, site: str, nodes: Iterable[NewNode], sealer: Sealer | None = None) -> list[str]:
    """
    Nodes that were not known are enrolled and go through inspection, checks and a wipe before they are available, those in use once a
    person lets them; their ids are returned.

    Raises Unavailable for a password where there is nothing to seal it with, Conflict for a switch port that another node has.
    """
    rows = [_enrolled(one, provider_id, site, sealer) for one in nodes]
    if not rows:
        return []
    ports = {row["id"]: row.pop("ports") for row in rows}
    statement = upsert(NodeRow).on_conflict_do_nothing(index_elements=["provider_id", "ref"]).returning(NodeRow.id)
    ids = list(session.execute(statement, rows).scalars())
    wire(session, {one: ports[one] for one in ids})
    stay = NODE_STATES.by_name[NODE_STATES.initial].longest_stay_s
    kept = {row["id"] for row in rows if row["state"] != NODE_STATES.initial}
    moving = [one for one in ids if one not in kept]
    session.execute(
        update(NodeRow).where(NodeRow.id.in_(moving)).values(deadline_at=CpClock() + func.make_interval(0, 0, 0, 0, 0, 0, stay))
    )
    if kept:
        session.execute(update(NodeRow).where(NodeRow.id.in_(kept)).values(due_at=None))
    moves = [Move("node", one, "", NODE_STATES.initial, "enrolled") for one in ids]
    moves += [Move("node", one, NODE_STATES.initial, IN_USE, IN_USE_WORDS) for one in ids if one in kept]
    record(session, [Event("node.enrolled", "node", one) for one in ids], moves)
    return ids


def _enrolled(one: NewNode, provider_id: str, site: str, sealer: Sealer | None) -> dict[str, Any]:
    node_id = new_id("nod")
    access, sealed = {}, None
    if one.controller is not None:
        access = {"url": one.controller.url, "system": one.controller.system, "username": one.controller.username}
        sealed = seal_password(sealer, node_id, one.controller.password)
    return {
        "id": node_id,
        "provider_id": provider_id,
        "ref": one.ref,
        "site": site,
        "block": one.block,
        "leaf": one.leaf,
        "rack": one.rack,
        "nvlink_domain": one.nvlink_domain,
        "instance_type": one.instance_type,
        "gpus": one.gpus,
        "state": IN_USE if one.in_use else NODE_STATES.initial,
        "reason": IN_USE_WORDS if one.in_use else "",
        "access": access,
        "sealed": sealed,
        "rotation": "due" if access else "",
        "address": one.address,
        "serial": one.serial,
        "unit": one.unit,
        "labels": dict(one.labels),
        "ports": one.ports,
    }


def seal_password(sealer: Sealer | None, node_id: str, password: str) -> bytes | None:
    """
    The password of the node's controller as its row keeps it; None for none. Raises Unavailable where there is nothing to seal it with.
    """
    if not password:
        return None
    if sealer is None:
        raise Unavailable("This installation has no master key, so it takes no secrets.", code="no_master_key")
    return sealer.seal(password.encode(), table="nodes", column="sealed", row=node_id)


WIRE = text(
    """
    INSERT INTO node_ports (node_id, name, provider_id, switch, port)
    SELECT node_id, name, provider_id, switch, port
    FROM jsonb_to_recordset(CAST(:ports AS jsonb)) AS p(node_id text, name text, provider_id text, switch text, port text)
    """
)


def wire(session: Session, ports: Mapping[str, Iterable[NewPort]]) -> None:
    """
    The nodes have these ports, in one statement. Raises Conflict for a switch port that another node has, or a name that stands twice.
    """
    rows = [
        {"node_id": node_id, "name": one.name, "provider_id": one.fabric_id, "switch": one.switch, "port": one.port}
        for node_id, some in ports.items()
        for one in some
    ]
    if not rows:
        return
    try:
        with session.begin_nested():
            session.execute(WIRE, {"ports": json.dumps(rows)})
    except IntegrityError:
        raise Conflict("A switch port, or a port's name, is named twice or belongs to another node.", code="port_taken") from None


def _invalid(field: str, code: str, words: str) -> Invalid:
    return Invalid(words, errors=[FieldError(field, code, words)])
