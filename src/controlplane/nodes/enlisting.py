"""
A file of expected machines becomes nodes: all of it or nothing, in one transaction, with a number of statements that does not grow with it.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

from sqlalchemy import ColumnElement, delete, func, literal, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session
from sqlalchemy.types import Text

from controlplane.catalog import service as catalog
from controlplane.kit.errors import Conflict, FieldError
from controlplane.kit.events import Event, record
from controlplane.kit.secrets import NotOpened, Sealer
from controlplane.nodes.documents import Refusal
from controlplane.nodes.errors import EnrolmentConflict, FileRefused
from controlplane.nodes.files import Entry, Form, Machine, read_file
from controlplane.nodes.models import NodePortRow, NodeRow, ProviderRow
from controlplane.nodes.registering import NewController, NewNode, NewPort, enroll, seal_password, wire

MOST_ERRORS = 1000
"""Named in one answer; `lines` counts them all."""
OUT_OF_USE = frozenset({"enrolled", "quarantined", "maintenance", "repairing"})
"""States in which what the machine itself is may be corrected: it is inspected again before anybody gets it."""
ALONE = text("SELECT pg_advisory_xact_lock(hashtextextended('enrolment', 0))")
OF_THE_MACHINE = frozenset({"instance_type", "gpus", "controller_url", "controller_system", "ports"})
OF_THE_PLACE = frozenset({"block", "leaf", "nvlink_domain"})
"""What placement counted on when it chose the machine for a tenant."""
PLAIN = ("block", "leaf", "rack", "unit", "nvlink_domain", "instance_type", "gpus", "serial", "address")
"""Columns of the file that are columns of the row."""
CHANGE = text(
    """
    UPDATE nodes n SET block = c.block, leaf = c.leaf, rack = c.rack, unit = c.unit, nvlink_domain = c.nvlink_domain,
      instance_type = c.instance_type, gpus = c.gpus, serial = c.serial, address = c.address, labels = c.labels, access = c.access,
      sealed = decode(c.sealed, 'base64'), version = n.version + 1, updated_at = cp_clock()
    FROM jsonb_to_recordset(CAST(:changes AS jsonb)) AS c(id text, block text, leaf text, rack text, unit bigint, nvlink_domain text,
      instance_type text, gpus bigint, serial text, address text, labels jsonb, access jsonb, sealed text)
    WHERE n.id = c.id
    """
)


@dataclass(frozen=True, slots=True)
class Difference:
    """
    One value that a file changed.
    """

    column: str
    """Which column of the file."""
    before: str
    """As it was; empty for none, and always for a password."""
    after: str
    """As it is; empty always for a password."""


@dataclass(frozen=True, slots=True)
class Enlisted:
    """
    What became of one line.
    """

    line: int
    """Counted from 1."""
    name: str
    """The machine's name at its provider."""
    node_id: str
    """`nod_…`."""
    differences: tuple[Difference, ...] = ()
    """What changed; empty for a machine that is new or as it was."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """
    What became of a file.
    """

    created: tuple[Enlisted, ...]
    """Machines that were not known."""
    changed: tuple[Enlisted, ...]
    """Known ones with their changes."""
    unchanged: int
    """Known ones that were as the file says."""


@dataclass(slots=True)
class _Ground:
    """
    What is known of the machines that a file names.
    """

    providers: Mapping[str, Any]
    """By name."""
    types: Mapping[str, int]
    """GPUs of each instance type."""
    nodes: Mapping[tuple[str, str], NodeRow]
    """By (provider id, name there)."""
    ports: Mapping[str, Mapping[str, tuple[str, str, str]]]
    """Node to its ports: name to (fabric id, switch, port)."""
    serials: Mapping[str, str]
    """Serial number, case folded, to the node that has it."""
    controllers: Mapping[tuple[str, str], str]
    """(url, system), case folded, to the node that has it."""
    ends: Mapping[tuple[str, str, str], str]
    """(fabric id, switch, port) to the node that has it."""
    refusals: list[Refusal] = field(default_factory=list)
    """What is wrong with the file itself."""
    conflicts: list[Refusal] = field(default_factory=list)
    """What the present state does not allow."""


def enroll_file(session: Session, data: bytes, form: Form, sealer: Sealer | None) -> Enrolment:
    """
    Every machine of the file is known as the file says: new ones are enrolled, known ones changed where they may be. Reading the same file
    again changes nothing; what a file leaves out is left as it is.

    Raises FileRefused with every wrong line, EnrolmentConflict with every line that the present state does not allow, Unavailable for a
    password where there is nothing to seal it with. Then nothing is changed.
    """
    reading = read_file(data, form)
    session.execute(ALONE)
    ground = _survey(session, reading.entries)
    ground.refusals += reading.refusals
    fresh: list[tuple[Entry, NewNode]] = []
    known: list[tuple[Entry, NodeRow, tuple[Difference, ...]]] = []
    for entry in reading.entries:
        provider = _checked_provider(entry, ground)
        row = None if provider is None else ground.nodes.get((provider.id, entry.machine.name))
        _check_claims(entry, row, ground)
        if provider is None:
            continue
        if row is None:
            fresh.append((entry, _new_node(entry.machine, ground)))
        else:
            known.append((entry, row, _compare(entry, row, ground, sealer)))
    _refuse(ground)
    changed = [one for one in known if one[2]]
    _change(session, changed, ground, sealer)
    return Enrolment(
        created=tuple(_create(session, fresh, ground, sealer)),
        changed=tuple(Enlisted(entry.line, entry.machine.name, row.id, found) for entry, row, found in changed),
        unchanged=len(known) - len(changed),
    )


def _refuse(ground: _Ground) -> None:
    for kind, wrong in ((FileRefused, ground.refusals), (EnrolmentConflict, ground.conflicts)):
        if wrong:
            wrong.sort(key=lambda one: one.line)
            errors = [
                FieldError(f"body.line.{one.line}.{one.column}".rstrip("."), one.code, f"Line {one.line}: {one.message}")
                for one in wrong[:MOST_ERRORS]
            ]
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise kind(f"{errors[0].message}{more}. Nothing was changed.".replace("..", "."), errors=errors, lines=len(wrong))


def _survey(session: Session, entries: Sequence[Entry]) -> _Ground:
    machines = [one.machine for one in entries]
    query = select(ProviderRow.id, ProviderRow.name, ProviderRow.site).where(ProviderRow.state != "deleted")
    providers = {row.name: row for row in session.execute(query)}
    ids = {providers[one.provider].id for one in machines if one.provider in providers}
    named = select(NodeRow).where(NodeRow.provider_id.in_(ids), _among(NodeRow.ref, (one.name for one in machines)))
    rows = session.execute(named.with_for_update().execution_options(populate_existing=True)).scalars().all()
    ports: dict[str, dict[str, tuple[str, str, str]]] = {}
    ends: dict[tuple[str, str, str], str] = {}
    wanted = {providers[port.fabric].id for one in machines for port in one.ports if port.fabric in providers}
    wired = select(*NodePortRow.__table__.columns).where(
        NodePortRow.provider_id.in_(wanted) | _among(NodePortRow.node_id, [one.id for one in rows])
    )
    for port in session.execute(wired):
        ports.setdefault(port.node_id, {})[port.name] = (port.provider_id, port.switch, port.port)
        ends[port.provider_id, port.switch, port.port] = port.node_id
    return _Ground(
        providers=providers,
        types={name: one.gpus for name, one in catalog.instance_facts(session).items()},
        nodes={(one.provider_id, one.ref): one for one in rows},
        ports=ports,
        serials=dict(_serials(session, machines)),
        controllers=dict(_controllers(session, machines)),
        ends=ends,
    )


def _among(column: Any, values: Iterable[str]) -> ColumnElement[bool]:
    """
    Whether the column is one of the values, however many: a join with them, where a list would be gone through for every row.
    """
    return column.in_(select(func.unnest(literal(sorted(set(values)), ARRAY(Text)))))  # type: ignore[no-any-return]


def _serials(session: Session, machines: Sequence[Machine]) -> Iterator[tuple[str, str]]:
    wanted = {one.serial.casefold() for one in machines if one.serial is not None}
    if wanted:
        query = select(NodeRow.serial, NodeRow.id).where(_among(func.lower(NodeRow.serial), wanted), NodeRow.state != "retired")
        for serial, node_id in session.execute(query):
            yield str(serial).casefold(), node_id


def _controllers(session: Session, machines: Sequence[Machine]) -> Iterator[tuple[tuple[str, str], str]]:
    if any(one.controller_url is not None for one in machines):
        query = select(NodeRow.access, NodeRow.id).where(NodeRow.access != {}, NodeRow.state != "retired")
        for access, node_id in session.execute(query):
            yield (access["url"].rstrip("/").casefold(), access.get("system", "")), node_id


def _checked_provider(entry: Entry, ground: _Ground) -> Any:
    """
    The line's provider; None with a refusal when the line names something that is not there.
    """
    one, wrong = entry.machine, len(ground.refusals)
    provider = ground.providers.get(one.provider)
    if provider is None:
        ground.refusals.append(Refusal(entry.line, "provider", "unknown_provider", f"There is no provider {one.provider}."))
    elif provider.site != one.site:
        words = f"The provider {one.provider} stands in {provider.site}, not in {one.site}."
        ground.refusals.append(Refusal(entry.line, "site", "other_site", words))
    if one.instance_type not in ground.types:
        ground.refusals.append(
            Refusal(entry.line, "instance_type", "unknown_instance_type", f"There is no type {one.instance_type}.")
        )
    for name in sorted({port.fabric for port in one.ports} - set(ground.providers)):
        ground.refusals.append(Refusal(entry.line, "ports", "unknown_provider", f"There is no provider {name}."))
    return provider if len(ground.refusals) == wrong else None


def _check_claims(entry: Entry, row: NodeRow | None, ground: _Ground) -> None:
    """
    Nothing that the line claims belongs to another node.
    """
    one, own = entry.machine, None if row is None else row.id
    claims: list[tuple[str, str, str | None]] = []
    if one.serial is not None:
        claims.append(("serial", "serial_taken", ground.serials.get(one.serial.casefold())))
    if one.controller_url is not None:
        holder = ground.controllers.get((one.controller_url.casefold(), one.controller_system or ""))
        claims.append(("controller_url", "controller_taken", holder))
    for port in one.ports:
        fabric = ground.providers.get(port.fabric)
        holder = None if fabric is None else ground.ends.get((fabric.id, port.switch, port.port))
        claims.append(("ports", "port_taken", holder))
    for column, code, holder in claims:
        if holder is not None and holder != own:
            ground.conflicts.append(Refusal(entry.line, column, code, f"The node {holder} has it."))


def _new_node(one: Machine, ground: _Ground) -> NewNode:
    controller = None
    if one.controller_url is not None:
        controller = NewController(
            one.controller_url, one.controller_system or "", one.controller_username or "", one.controller_password or ""
        )
    return NewNode(
        ref=one.name,
        block=one.block,
        leaf=one.leaf,
        rack=one.rack,
        nvlink_domain=one.nvlink_domain,
        instance_type=one.instance_type,
        gpus=one.gpus or ground.types[one.instance_type],
        controller=controller,
        address=one.address,
        ports=_ports(one, ground),
        serial=one.serial,
        unit=one.unit,
        labels=dict(one.tags),
    )


def _create(session: Session, fresh: Sequence[tuple[Entry, NewNode]], ground: _Ground, sealer: Sealer | None) -> Iterator[Enlisted]:
    by_provider: dict[str, list[tuple[Entry, NewNode]]] = {}
    for one in fresh:
        by_provider.setdefault(one[0].machine.provider, []).append(one)
    for name, some in by_provider.items():
        provider = ground.providers[name]
        made = enroll(session, provider.id, provider.site, [new for _, new in some], sealer)
        if len(made) != len(some):
            raise Conflict("Some of the machines were enrolled by somebody else meanwhile; look again.", code="changed_meanwhile")
        refs = select(NodeRow.ref, NodeRow.id).where(_among(NodeRow.id, made))
        ids = {row.ref: row.id for row in session.execute(refs)}
        yield from (Enlisted(entry.line, new.ref, ids[new.ref]) for entry, new in some)


def _compare(entry: Entry, row: NodeRow, ground: _Ground, sealer: Sealer | None) -> tuple[Difference, ...]:
    """
    What the line changes of the node; what it may not change is noted as a conflict.
    """
    found = tuple(_differences(entry.machine, row, ground, sealer))
    for one in found:
        reason = _refusal(one, row)
        if reason:
            ground.conflicts.append(Refusal(entry.line, one.column, reason[0], reason[1]))
    return found


def _differences(one: Machine, row: NodeRow, ground: _Ground, sealer: Sealer | None) -> Iterator[Difference]:
    for name in PLAIN:
        wanted, have = getattr(one, name), getattr(row, name)
        same = wanted == have or (name == "serial" and _shown(wanted).casefold() == _shown(have).casefold())
        if wanted is not None and not same:
            yield Difference(name, _shown(have), _shown(wanted))
    for name, key in (("controller_url", "url"), ("controller_system", "system"), ("controller_username", "username")):
        wanted, have = getattr(one, name), row.access.get(key, "").rstrip("/" if key == "url" else "")
        if wanted is not None and wanted != have:
            yield Difference(name, have, wanted)
    if one.controller_password is not None and not _is_sealed(one.controller_password, row, sealer):
        yield Difference("controller_password", "", "")
    wired = {port.name: (ground.providers[port.fabric].id, port.switch, port.port) for port in one.ports}
    have_ports = ground.ports.get(row.id, {})
    if wired and wired != have_ports:
        yield Difference("ports", _wires(have_ports), _wires(wired))
    labels = {key: value for key, value in one.tags if row.labels.get(key) != value}
    if labels:
        before = {key: str(row.labels[key]) for key in labels if key in row.labels}
        yield Difference("tags", _pairs(before), _pairs(labels))


def _refusal(one: Difference, row: NodeRow) -> tuple[str, str] | None:
    """
    Code and words of why the node's column may not change now; None where it may.
    """
    if row.state == "retired":
        return "node_retired", f"The node {row.id} of this name is retired; give the machine another name."
    if one.column == "serial" and one.before:
        return "other_serial", "The node has another serial number: another machine needs a node of its own."
    if one.column in OF_THE_MACHINE and row.state not in OUT_OF_USE:
        return "node_in_use", f"{one.column} of a node in state {row.state} cannot change; take it into maintenance first."
    if one.column in OF_THE_PLACE and row.allocation_id is not None:
        return "node_held", f"{one.column} of a node that a tenant holds cannot change."
    return None


def _is_sealed(password: str, row: NodeRow, sealer: Sealer | None) -> bool:
    if row.sealed is None or sealer is None:
        return False
    try:
        have = sealer.open(row.sealed, table="nodes", column="sealed", row=row.id)
    except NotOpened:
        return False
    return compare_digest(have, password.encode())


def _change(
    session: Session,
    changed: Sequence[tuple[Entry, NodeRow, tuple[Difference, ...]]],
    ground: _Ground,
    sealer: Sealer | None,
) -> None:
    if not changed:
        return
    rows = [_changed_row(entry.machine, row, found, sealer) for entry, row, found in changed]
    session.execute(CHANGE, {"changes": json.dumps(rows)})
    _rewire(session, [(row.id, entry.machine) for entry, row, found in changed if _has(found, "ports")], ground)
    record(
        session,
        [Event("node.changed", "node", row.id, data={"columns": [one.column for one in found]}) for _, row, found in changed],
    )


def _has(found: Iterable[Difference], column: str) -> bool:
    return any(one.column == column for one in found)


def _changed_row(one: Machine, row: NodeRow, found: tuple[Difference, ...], sealer: Sealer | None) -> dict[str, Any]:
    given = {name: getattr(one, name) for name in PLAIN}
    access = dict(row.access)
    if one.controller_url is not None:
        said = {"url": one.controller_url, "system": one.controller_system, "username": one.controller_username}
        access = {"system": "", "username": "", **access, **{key: value for key, value in said.items() if value is not None}}
    sealed = row.sealed
    if _has(found, "controller_password"):
        sealed = seal_password(sealer, row.id, one.controller_password or "")
    return {
        "id": row.id,
        **{name: getattr(row, name) if value is None else value for name, value in given.items()},
        "labels": {**row.labels, **dict(one.tags)},
        "access": access,
        "sealed": None if sealed is None else base64.b64encode(sealed).decode(),
    }


def _rewire(session: Session, wired: Sequence[tuple[str, Machine]], ground: _Ground) -> None:
    if not wired:
        return
    session.execute(delete(NodePortRow).where(_among(NodePortRow.node_id, (node_id for node_id, _ in wired))))
    wire(session, {node_id: _ports(one, ground) for node_id, one in wired})


def _ports(one: Machine, ground: _Ground) -> tuple[NewPort, ...]:
    return tuple(NewPort(port.name, ground.providers[port.fabric].id, port.switch, port.port) for port in one.ports)


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _wires(ports: Mapping[str, tuple[str, str, str]]) -> str:
    return ";".join(f"{name}={'|'.join(ports[name])}" for name in sorted(ports))


def _pairs(labels: Mapping[str, str]) -> str:
    return ";".join(f"{key}={labels[key]}" for key in sorted(labels))
