"""
Fleet files: YAML that describes a cloud's machines, written out compactly with templates and counts.

    fleet: demo
    region: sim-eu
    templates:
      h100: {instance_type: hgx-h100-8, gpu_model: H100-SXM5-80GB, gpus: 8, memory_gib: 2048, cpus: 192, nvme_gib: 30720,
             fabric_ports: 8, power_w: 10200, nvlink_domain: node, firmware: {bios: "2.4.1"}}
    sites:
      - name: ams1
        power_kw: 400
        blocks:
          - {template: h100, count: 2, leaves: 2, racks_per_leaf: 2, nodes_per_rack: 4, rack_power_kw: 44}

Every level is numbered from 1 inside its parent and named by its path: `ams1-b2-l1-r2-n03` is a machine and `ams1-b2-l1` its leaf.
The format is told in full in `docs/simulator.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml

from controlplane.providers.errors import Permanent

MAX_FILE_BYTES = 1 << 20
MAX_MACHINES = 250_000
_MAX_COUNT = 100_000
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_MAX_NAME = 40


class FleetError(Permanent):
    """
    A fleet file says something that cannot be; the message names the place.
    """

    code = "fleet_invalid"


@dataclass(frozen=True, slots=True)
class Template:
    """
    What one kind of machine has.
    """

    instance_type: str
    """The sellable shape, as in the catalog."""
    gpu_model: str
    """As in the catalog."""
    gpus: int
    """GPUs in the machine."""
    memory_gib: int
    """Main memory."""
    cpus: int
    """Logical CPUs."""
    power_w: int
    """Draw at full load."""
    nvme_gib: int = 0
    """Local disks together."""
    fabric_ports: int = 0
    """Ports on the compute fabric (rails)."""
    nvlink_domain: str = "node"
    """`node`: each machine is a domain; `rack`: all machines of a rack share one; `none`."""
    firmware: Mapping[str, str] = field(default_factory=dict)
    """Component to version: the recorded baseline."""


@dataclass(frozen=True, slots=True)
class Block:
    """
    One or more equal blocks of a site.
    """

    template: str
    """Which kind of machine stands in it."""
    leaves: int
    """Leaves in each block."""
    racks_per_leaf: int
    """Racks on each leaf."""
    nodes_per_rack: int
    """Machines in each rack."""
    count: int = 1
    """How many such blocks."""
    rack_power_kw: int | None = None
    """What each rack may draw; None: not limited."""


@dataclass(frozen=True, slots=True)
class Site:
    """
    One place with its own power and fabric.
    """

    name: str
    """Unique in the fleet; the first part of every name in the site."""
    blocks: tuple[Block, ...]
    """In the order they are numbered."""
    power_kw: int | None = None
    """What the site may draw; None: not limited."""


@dataclass(frozen=True, slots=True)
class FleetMachine:
    """
    One machine with its place and everything it is sold with, flat.
    """

    ref: str
    """Its name at the provider."""
    region: str
    """The fleet's region."""
    site: str
    """Site name."""
    block: str
    """Block name, unique in the fleet."""
    leaf: str
    """Leaf name, unique in the fleet."""
    rack: str
    """Rack name, unique in the fleet."""
    position: int
    """Place in the rack, from 1."""
    nvlink_domain: str
    """Name of the NVLink domain: the machine's own, the rack's, or empty for none."""
    instance_type: str
    """The sellable shape, as in the catalog."""
    gpu_model: str
    """As in the catalog."""
    gpus: int
    """GPUs in the machine."""
    memory_gib: int
    """Main memory."""
    cpus: int
    """Logical CPUs."""
    nvme_gib: int
    """Local disks together."""
    fabric_ports: int
    """Ports on the compute fabric."""
    power_w: int
    """Draw at full load."""
    rack_power_kw: int | None
    """What its rack may draw; None: not limited."""
    serial: str
    """Serial number: operators only."""
    bmc_address: str
    """Address of its management controller: operators only."""
    firmware: Mapping[str, str]
    """Component to version: the recorded baseline."""


@dataclass(frozen=True, slots=True)
class FleetFile:
    """
    A checked fleet file.
    """

    name: str
    """The fleet's name."""
    region: str
    """The region all its sites are in."""
    templates: Mapping[str, Template]
    """Kinds of machine by name."""
    sites: tuple[Site, ...]
    """In the order of the file."""

    def count(self) -> int:
        """
        Machines in the fleet.
        """
        return sum(one.count * one.leaves * one.racks_per_leaf * one.nodes_per_rack for site in self.sites for one in site.blocks)

    def machines(self) -> Iterator[FleetMachine]:
        """
        Every machine, in a fixed order: by site, block, leaf, rack and position.
        """
        number = 0
        for site in self.sites:
            block_number = 0
            for block in site.blocks:
                for _ in range(block.count):
                    block_number += 1
                    for made in self._machines_of(site, block, f"{site.name}-b{block_number}", number):
                        number += 1
                        yield made

    def _machines_of(self, site: Site, block: Block, block_name: str, number: int) -> Iterator[FleetMachine]:
        template = self.templates[block.template]
        for leaf in range(1, block.leaves + 1):
            for rack in range(1, block.racks_per_leaf + 1):
                rack_name = f"{block_name}-l{leaf}-r{rack}"
                for position in range(1, block.nodes_per_rack + 1):
                    ref = f"{rack_name}-n{position:02d}"
                    number += 1
                    yield FleetMachine(
                        ref=ref,
                        region=self.region,
                        site=site.name,
                        block=block_name,
                        leaf=f"{block_name}-l{leaf}",
                        rack=rack_name,
                        position=position,
                        nvlink_domain={"node": ref, "rack": rack_name}.get(template.nvlink_domain, ""),
                        instance_type=template.instance_type,
                        gpu_model=template.gpu_model,
                        gpus=template.gpus,
                        memory_gib=template.memory_gib,
                        cpus=template.cpus,
                        nvme_gib=template.nvme_gib,
                        fabric_ports=template.fabric_ports,
                        power_w=template.power_w,
                        rack_power_kw=block.rack_power_kw,
                        serial=f"SN{hashlib.blake2b(f'{self.name}/{ref}'.encode(), digest_size=6).hexdigest().upper()}",
                        bmc_address=f"10.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}",
                        firmware=template.firmware,
                    )


def load_fleet(name_or_path: str | Path) -> FleetFile:
    """
    The fleet of a shipped name (`demo`, `cloud-10k`) or of a file. Raises FleetError that names the bad place.
    """
    text = _read(str(name_or_path))
    try:
        given = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as wrong:
        raise FleetError(f"{name_or_path}: not YAML: {wrong}") from wrong
    return parse_fleet(given, where=str(name_or_path))


def shipped_fleets() -> tuple[str, ...]:
    """
    The names of the fleets that come with the package, sorted.
    """
    folder = resources.files(__package__) / "fleets"
    return tuple(sorted(one.name.removesuffix(".yaml") for one in folder.iterdir() if one.name.endswith(".yaml")))


def parse_fleet(given: object, *, where: str = "fleet") -> FleetFile:
    """
    The checked fleet of a parsed document. Raises FleetError that names the bad place.
    """
    top = _mapping(given, where, needed=("fleet", "region", "templates", "sites"), known=("fleet", "region", "templates", "sites"))
    templates = {
        _name(key, f"{where}.templates"): _template(value, f"{where}.templates.{key}")
        for key, value in _mapping(top["templates"], f"{where}.templates").items()
    }
    listed = _list(top["sites"], f"{where}.sites")
    sites = tuple(_site(one, f"{where}.sites[{index}]", templates) for index, one in enumerate(listed))
    names = [site.name for site in sites]
    if len(set(names)) != len(names):
        raise FleetError(f"{where}.sites: two sites have one name")
    made = FleetFile(
        name=_name(top["fleet"], f"{where}.fleet"), region=_name(top["region"], f"{where}.region"), templates=templates, sites=sites
    )
    if made.count() > MAX_MACHINES:
        raise FleetError(f"{where}: {made.count()} machines; at most {MAX_MACHINES}")
    return made


def _read(name: str) -> str:
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        if name not in shipped_fleets():
            raise FleetError(f"no shipped fleet is called {name!r}; there are {', '.join(shipped_fleets())}")
        return (resources.files(__package__) / "fleets" / f"{name}.yaml").read_text(encoding="utf-8")
    path = Path(name).expanduser()
    try:
        with path.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        raise FleetError(f"{name}: cannot be read: {wrong}") from wrong
    if len(raw) > MAX_FILE_BYTES:
        raise FleetError(f"{name}: larger than {MAX_FILE_BYTES} bytes")
    return text


def _template(given: object, where: str) -> Template:
    made = _build(Template, given, where)
    if made.nvlink_domain not in {"node", "rack", "none"}:
        raise FleetError(f"{where}.nvlink_domain: must be node, rack or none")
    return made


def _site(given: object, where: str, templates: Mapping[str, Template]) -> Site:
    found = _mapping(given, where, needed=("name", "blocks"), known=("name", "blocks", "power_kw"))
    listed = _list(found["blocks"], f"{where}.blocks")
    blocks = tuple(_build(Block, one, f"{where}.blocks[{index}]") for index, one in enumerate(listed))
    for index, block in enumerate(blocks):
        if block.template not in templates:
            raise FleetError(f"{where}.blocks[{index}].template: no template is called {block.template!r}")
    power_kw = _value(found["power_kw"], "int | None", f"{where}.power_kw") if "power_kw" in found else None
    return Site(name=_name(found["name"], f"{where}.name"), blocks=blocks, power_kw=power_kw)


_Made = TypeVar("_Made", Template, Block)


def _build(kind: type[_Made], given: object, where: str) -> _Made:
    known = {one.name: one for one in fields(kind)}
    needed = tuple(name for name, one in known.items() if one.default is MISSING and one.default_factory is MISSING)
    found = _mapping(given, where, needed=needed, known=tuple(known))
    return kind(**{key: _value(value, str(known[key].type), f"{where}.{key}") for key, value in found.items()})


def _value(value: object, kind: str, where: str) -> Any:
    if kind == "str":
        if isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable():
            return value
        raise FleetError(f"{where}: must be text of 1 to {_MAX_NAME} characters")
    if kind.startswith("Mapping"):
        return {str(key): _value(one, "str", f"{where}.{key}") for key, one in _mapping(value, where).items()}
    if value is None and kind.endswith("None"):
        return None
    least = 0 if where.endswith(("nvme_gib", "fabric_ports", "gpus", "power_w")) else 1
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MAX_COUNT:
        return value
    raise FleetError(f"{where}: must be a whole number from {least} to {_MAX_COUNT}")


def _mapping(given: object, where: str, *, needed: tuple[str, ...] = (), known: tuple[str, ...] | None = None) -> dict[str, Any]:
    if not isinstance(given, dict) or not all(isinstance(key, str) for key in given):
        raise FleetError(f"{where}: must be a mapping with text keys")
    for key in needed:
        if key not in given:
            raise FleetError(f"{where}: {key} is missing")
    for key in given:
        if known is not None and key not in known:
            raise FleetError(f"{where}: {key!r} is unknown; known: {', '.join(known)}")
    return given


def _list(given: object, where: str) -> list[object]:
    if not isinstance(given, list) or not given:
        raise FleetError(f"{where}: must be a list with at least one entry")
    return given


def _name(given: object, where: str) -> str:
    if isinstance(given, str) and 0 < len(given) <= _MAX_NAME and set(given) <= _NAME_CHARACTERS:
        return given
    raise FleetError(f"{where}: must be 1 to {_MAX_NAME} of a-z, 0-9 and -")
