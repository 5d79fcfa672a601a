"""
Files of expected machines: CSV and YAML of the same columns, read strictly and whole. Pure.

Every value is text until its column says what it means: YAML's guesses (`no`, `0012`, `1e3`) never change a name or a serial number.
What is wrong is collected with its line; a file with one wrong line is a wrong file.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from controlplane.nodes.documents import Listed, Refusal, Scalar, read_document

Form = Literal["csv", "yaml"]
MOST_MACHINES = 20_000
MOST_PORTS = 32
MOST_TAGS = 32
LONGEST = 120
LONGEST_SECRET = 4096
LARGEST_UNIT = 100
LARGEST_GPUS = 1024
URL = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+/?")
TAG = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9._/-]{0,61}[a-zA-Z0-9])?")
SEPARATORS = frozenset(";|=")


@dataclass(frozen=True, slots=True)
class Wiring:
    """
    Where one network port of a machine should end.
    """

    name: str
    """The machine's name of it."""
    fabric: str
    """Name of the provider that is the fabric."""
    switch: str
    """The switch by the fabric's name."""
    port: str
    """The port by the switch's name."""


@dataclass(frozen=True, slots=True)
class Machine:
    """
    One expected machine as the file names it; None: the file says nothing.
    """

    name: str
    """Its name at the provider."""
    provider: str
    """The provider's name."""
    site: str
    """Where it stands: the provider's site."""
    block: str
    """Spine group."""
    leaf: str
    """Where its rails meet."""
    rack: str
    """Which rack."""
    instance_type: str
    """What it is sold as."""
    unit: int | None = None
    """Lowest rack unit."""
    serial: str | None = None
    """Serial number."""
    gpus: int | None = None
    """How many were bought; None: as many as the type has."""
    nvlink_domain: str | None = None
    """The rack-wide NVLink domain."""
    controller_url: str | None = None
    """Root of its management controller."""
    controller_system: str | None = None
    """The machine among the controller's systems."""
    controller_username: str | None = None
    """Account; None: the provider's."""
    controller_password: str | None = field(default=None, repr=False)
    """Never logged; None: the provider's."""
    address: str | None = None
    """The machine's own address."""
    ports: tuple[Wiring, ...] = ()
    """Its wiring."""
    tags: tuple[tuple[str, str], ...] = ()
    """Free pairs, sorted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """
    A machine and the line that its entry begins at.
    """

    line: int
    """Counted from 1."""
    machine: Machine
    """What the line says."""


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What a file says, and everything that is wrong with it.
    """

    entries: tuple[Entry, ...]
    """The lines that can be understood, in the file's order."""
    refusals: tuple[Refusal, ...]
    """In the order of lines; empty for a good file."""


COLUMNS = tuple(one.name for one in fields(Machine))
REQUIRED = ("name", "provider", "site", "block", "leaf", "rack", "instance_type")
Cell = Scalar | Listed
Cells = Mapping[str, Cell]


class _Wrong(ValueError):
    """
    A value that its column does not take: `code` and words, which never repeat a secret.
    """

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def read_file(data: bytes, form: Form) -> Reading:
    """
    The file's machines and everything that is wrong with it, duplicates within it included. Never raises for what a file may hold.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        return Reading((), (Refusal(line, "", "invalid_utf8", "The file is not UTF-8."),))
    refusals: list[Refusal] = []
    rows = _csv_rows(text, refusals) if form == "csv" else _yaml_rows(text, refusals)
    entries: list[Entry] = []
    for line, cells in rows:
        if len(entries) >= MOST_MACHINES:
            refusals.append(Refusal(line, "", "too_many_machines", f"A file holds at most {MOST_MACHINES} machines."))
            break
        machine = _machine(line, cells, refusals)
        if machine is not None:
            entries.append(Entry(line, machine))
    if not entries and not refusals:
        refusals.append(Refusal(1, "", "no_machines", "The file names no machine."))
    refusals += _twice(entries)
    return Reading(tuple(entries), tuple(sorted(refusals, key=lambda one: one.line)))


def render_csv(machines: Sequence[Machine]) -> str:
    """
    A file that reads as these machines.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in machines:
        plain = {name: getattr(one, name) for name in COLUMNS}
        plain["ports"] = ";".join(f"{port.name}={port.fabric}|{port.switch}|{port.port}" for port in one.ports)
        plain["tags"] = ";".join(f"{key}={value}" for key, value in one.tags)
        writer.writerow(["" if plain[name] is None else str(plain[name]) for name in COLUMNS])
    return out.getvalue()


def _csv_rows(text: str, refusals: list[Refusal]) -> Iterator[tuple[int, Cells]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    before = 0
    header: list[str] | None = None
    try:
        for row in reader:
            line, before = before + 1, reader.line_num
            if not any(cell.strip() for cell in row):
                continue
            if header is None:
                header = [cell.strip() for cell in row]
                refusals += _header_refusals(header, line)
                if len(header) != len(set(header)) or not set(REQUIRED) <= set(header):
                    return
                continue
            if len(row) != len(header):
                words = f"{len(row)} values; the header names {len(header)} columns."
                refusals.append(Refusal(line, "", "wrong_number_of_values", words))
                continue
            cells = {name: Scalar(line, cell) for name, cell in zip(header, row, strict=True) if name in COLUMNS}
            yield line, cells
    except csv.Error as error:
        refusals.append(Refusal(max(1, reader.line_num), "", "invalid_csv", f"This is not CSV: {error}."))


def _header_refusals(header: Sequence[str], line: int) -> Iterator[Refusal]:
    seen: set[str] = set()
    for name in header:
        if name not in COLUMNS:
            yield Refusal(line, name[:60], "unknown_column", f"There is no column {name[:60]!r}; known are {', '.join(COLUMNS)}.")
        elif name in seen:
            yield Refusal(line, name, "doubled_column", f"The column {name} stands twice.")
        seen.add(name)
    for name in REQUIRED:
        if name not in seen:
            yield Refusal(line, name, "missing_column", f"The column {name} is missing.")


def _yaml_rows(text: str, refusals: list[Refusal]) -> Iterator[tuple[int, Cells]]:
    """
    `machines` is a list of mappings; `defaults` holds for every machine that does not say otherwise.
    """
    document = read_document(text, refusals)
    if document is None:
        return
    top = document.pairs or {}
    for name, value in top.items():
        if name not in {"machines", "defaults"}:
            refusals.append(Refusal(value.line, name[:60], "unknown_column", f"{name[:60]!r} is not known here."))
    defaults, machines = top.get("defaults"), top.get("machines")
    if isinstance(defaults, Scalar) and defaults.text:
        refusals.append(Refusal(defaults.line, "defaults", "wrong_kind", "`defaults` is a mapping of columns."))
    if not isinstance(machines, Listed) or machines.items is None:
        refusals.append(Refusal(document.line, "machines", "missing_column", "`machines` is a list of machines."))
        return
    given = defaults.pairs or {} if isinstance(defaults, Listed) else {}
    refusals += _unknown(given)
    for one in machines.items:
        if not isinstance(one, Listed) or one.pairs is None:
            refusals.append(Refusal(one.line, "", "wrong_kind", "A machine is a mapping of columns."))
            continue
        refusals += _unknown(one.pairs)
        yield one.line, {**given, **one.pairs}


def _unknown(pairs: Cells) -> list[Refusal]:
    return [
        Refusal(value.line, name[:60], "unknown_column", f"There is no column {name[:60]!r}; known are {', '.join(COLUMNS)}.")
        for name, value in pairs.items()
        if name not in COLUMNS
    ]


def _machine(line: int, cells: Cells, refusals: list[Refusal]) -> Machine | None:
    """
    The machine of the line; None when a value is refused, with all of the line's refusals noted.
    """
    found: dict[str, object] = {}
    wrong = len(refusals)
    for name, read in READERS.items():
        cell = cells.get(name)
        try:
            value = None if cell is None else read(cell)
        except _Wrong as error:
            # A default stands elsewhere in the file; the machine's own line is the one that cannot be used.
            refusals.append(Refusal(line if cell is None else max(line, cell.line), name, error.code, str(error)))
            continue
        if value is not None:
            found[name] = value
        elif name in REQUIRED:
            refusals.append(Refusal(line, name, "missing", f"{name} must be given."))
    if "controller_url" not in found:
        refusals += [
            Refusal(line, name, "controller_missing", f"{name} needs a controller_url.")
            for name in ("controller_system", "controller_username", "controller_password")
            if name in found
        ]
    return Machine(**found) if len(refusals) == wrong else None  # type: ignore[arg-type]


def _plain(cell: Cell) -> str:
    if not isinstance(cell, Scalar):
        raise _Wrong("wrong_kind", "One value is wanted here, not a list or a mapping.")
    return cell.text


def _text(cell: Cell) -> str | None:
    return _checked(_plain(cell).strip()) or None


def _checked(text: str) -> str:
    if len(text) > LONGEST:
        raise _Wrong("too_long", f"At most {LONGEST} characters.")
    if not text.isprintable():
        raise _Wrong("invalid_text", "Control characters and line breaks are not allowed.")
    return text


def _secret(cell: Cell) -> str | None:
    text = _plain(cell)
    if len(text) > LONGEST_SECRET or "\0" in text:
        raise _Wrong("invalid_secret", f"At most {LONGEST_SECRET} characters, none of them NUL.")
    return text or None


def _url(cell: Cell) -> str | None:
    text = _text(cell)
    if text is not None and not URL.fullmatch(text):
        raise _Wrong("invalid_url", "Scheme, host and port of the controller, for example https://10.0.7.41.")
    return None if text is None else text.rstrip("/")


def _number(least: int, most: int) -> Callable[[Cell], int | None]:
    def read(cell: Cell) -> int | None:
        text = _text(cell)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)) or not least <= int(text) <= most:
            raise _Wrong("invalid_number", f"A whole number from {least} to {most}.")
        return int(text)

    return read


def _part(text: str) -> str:
    text = _checked(text.strip())
    if not text or SEPARATORS.intersection(text):
        raise _Wrong("invalid_ports", "Ports are written name=fabric|switch|port; none of the four may be empty or hold ; | or =.")
    return text


def _ports(cell: Cell) -> tuple[Wiring, ...] | None:
    """
    `name=fabric|switch|port` joined by semicolons, or in YAML a list of {name, fabric, switch, port}.
    """
    rows = _port_cells(cell) if isinstance(cell, Listed) else _port_texts(cell.text)
    if len(rows) > MOST_PORTS:
        raise _Wrong("too_many_ports", f"At most {MOST_PORTS} ports.")
    ports = tuple(Wiring(*(_part(one) for one in row)) for row in rows)
    if len({one.name for one in ports}) != len(ports):
        raise _Wrong("doubled_port", "A port is named twice.")
    return ports or None


def _port_texts(text: str) -> list[tuple[str, str, str, str]]:
    rows = []
    for one in filter(None, (part.strip() for part in text.split(";"))):
        name, _, place = one.partition("=")
        parts = place.split("|")
        if len(parts) != 3:  # noqa: PLR2004 - fabric, switch, port
            raise _Wrong("invalid_ports", "Ports are written name=fabric|switch|port, joined by semicolons.")
        rows.append((name, parts[0], parts[1], parts[2]))
    return rows


def _port_cells(cell: Listed) -> list[tuple[str, str, str, str]]:
    keys = ("name", "fabric", "switch", "port")
    rows = []
    for one in cell.items or ():
        pairs = one.pairs if isinstance(one, Listed) else None
        if pairs is None or set(pairs) != set(keys):
            raise _Wrong("invalid_ports", "A port is a mapping of name, fabric, switch and port.")
        name, fabric, switch, port = (_plain(pairs[key]) for key in keys)
        rows.append((name, fabric, switch, port))
    if cell.items is None:
        raise _Wrong("invalid_ports", "Ports are a list of mappings of name, fabric, switch and port.")
    return rows


def _tags(cell: Cell) -> tuple[tuple[str, str], ...] | None:
    """
    `key=value` joined by semicolons, or in YAML a mapping.
    """
    if isinstance(cell, Listed):
        if cell.pairs is None:
            raise _Wrong("invalid_tags", "Tags are a mapping of keys to values.")
        pairs = [(key, _plain(value)) for key, value in cell.pairs.items()]
    else:
        parts = [one.strip() for one in cell.text.split(";") if one.strip()]
        if any("=" not in one for one in parts):
            raise _Wrong("invalid_tags", "Tags are written key=value, joined by semicolons.")
        pairs = [(key, value) for key, _, value in (one.partition("=") for one in parts)]
    tags = [(key.strip(), _checked(value.strip())) for key, value in pairs]
    if len(tags) > MOST_TAGS or len({key for key, _ in tags}) != len(tags):
        raise _Wrong("invalid_tags", f"At most {MOST_TAGS} tags, each key once.")
    if any(not TAG.fullmatch(key) or ";" in value for key, value in tags):
        raise _Wrong(
            "invalid_tags", "A tag's key holds letters, digits, dots, dashes, underscores and slashes; its value no semicolon."
        )
    return tuple(sorted(tags)) or None


READERS: Mapping[str, Callable[[Cell], object | None]] = {
    **dict.fromkeys(COLUMNS, _text),
    "unit": _number(1, LARGEST_UNIT),
    "gpus": _number(1, LARGEST_GPUS),
    "controller_url": _url,
    "controller_password": _secret,
    "ports": _ports,
    "tags": _tags,
}


def _keys(one: Machine) -> Iterator[tuple[str, str, tuple[object, ...]]]:
    """
    (column, code, value) of everything that only one machine may have.
    """
    yield "name", "doubled_name", (one.provider, one.name)
    if one.serial is not None:
        yield "serial", "doubled_serial", (one.serial.casefold(),)
    if one.controller_url is not None:
        yield "controller_url", "doubled_controller", (one.controller_url.casefold(), one.controller_system or "")
    if one.address is not None:
        yield "address", "doubled_address", (one.site, one.address)
    if one.unit is not None:
        yield "unit", "doubled_unit", (one.site, one.rack, one.unit)
    for port in one.ports:
        yield "ports", "doubled_port", (port.fabric, port.switch, port.port)


def _twice(entries: Sequence[Entry]) -> Iterator[Refusal]:
    first: dict[tuple[str, tuple[object, ...]], int] = {}
    for entry in entries:
        for column, code, value in _keys(entry.machine):
            known = first.setdefault((code, value), entry.line)
            if known != entry.line:
                yield Refusal(entry.line, column, code, f"Line {known} has the same.")
