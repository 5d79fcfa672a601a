"""
Walking a controller's tree: links, collections, and which of its systems is the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from controlplane.providers.adapters.redfish.answers import Reply
from controlplane.providers.adapters.redfish.client import ROOT, Bmc
from controlplane.providers.adapters.redfish.quirks import Facts, Make, asks_manager, facts_of
from controlplane.providers.errors import NotFound, Permanent, Unsupported

PAGES = 64
SYSTEMS_ASKED = 16
RESET = "#ComputerSystem.Reset"
PHYSICAL = frozenset({"", "Physical"})


def inside(body: Mapping[str, Any] | None, *names: str) -> Any:
    """
    The value under the names, one in the other; None where there is none, or something else on the way.
    """
    value: Any = body
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def text(body: Mapping[str, Any] | None, *names: str) -> str:
    """
    The same as text; empty where it is none.
    """
    value = inside(body, *names)
    return value.strip() if isinstance(value, str) else ""


def link(body: Mapping[str, Any] | None, *names: str) -> str:
    """
    The path that the named reference leads to; empty where there is none.
    """
    return text(body, *names, "@odata.id")


def links(body: Mapping[str, Any] | None, *names: str) -> tuple[str, ...]:
    """
    The paths that the named list of references leads to.
    """
    rows = inside(body, *names)
    return tuple(path for row in rows if (path := link(row))) if isinstance(rows, list) else ()


def members(bmc: Bmc, path: str) -> tuple[str, ...]:
    """
    The paths of a collection's members, all pages of it.
    """
    found: list[str] = []
    for _ in range(PAGES):
        body = bmc.read(path)
        found += links(body, "Members")
        path = text(body, "Members@odata.nextLink")
        if not path:
            return tuple(dict.fromkeys(found))
    raise Unsupported(f"a collection has more than {PAGES} pages")


def service(bmc: Bmc, name: str) -> str:
    """
    Where the root says that the service is; its usual place when the root does not say.
    """
    if not bmc.root:
        bmc.root = bmc.read(ROOT)
    return link(bmc.root, name) or f"{ROOT}{name}"


def machine(bmc: Bmc, wanted: str) -> Reply:
    """
    The machine's system, as it is now. Raises NotFound when the controller has none such, Permanent when it has several and none is named.
    """
    known = bmc.known.get("system")
    if isinstance(known, tuple) and known[0] == wanted:
        reply = bmc.look(known[1])
        if reply.good:
            return reply
        if not isinstance(reply.problem(), NotFound):
            return reply.checked()
    bmc.known.clear()
    reply = _named(bmc, wanted) if wanted else _only(bmc)
    bmc.known["system"] = (wanted, path_of(reply))
    return reply


def path_of(reply: Reply) -> str:
    """
    Where the resource says that it is.
    """
    return link(reply.body) or reply.path


def _named(bmc: Bmc, wanted: str) -> Reply:
    systems = service(bmc, "Systems")
    paths = members(bmc, systems)
    for path in paths:
        if path.rstrip("/").rpartition("/")[2].lower() == wanted.lower():
            return bmc.get(path)
    for path in paths if len(paths) <= SYSTEMS_ASKED else ():
        reply = bmc.get(path)
        if text(reply.body, "UUID").lower() == wanted.lower():
            return reply
    # Some resolve other names than they list: sushy-tools redirects a system's name to its UUID.
    return bmc.get(f"{systems.rstrip('/')}/{quote(wanted, safe='')}")


def _only(bmc: Bmc) -> Reply:
    """
    The one system that can be switched on: an HGX baseboard and a DPU are systems of the same controller and are not the machine.
    """
    paths = members(bmc, service(bmc, "Systems"))
    if len(paths) > SYSTEMS_ASKED:
        raise Permanent(f"the controller has {len(paths)} systems: name the machine's", code="provider_system_ambiguous")
    found = [reply for reply in (bmc.get(path) for path in paths) if _is_machine(reply)]
    if not found:
        raise NotFound("the controller has no system that can be switched on")
    if len(found) > 1:
        names = ", ".join(text(reply.body, "Id") for reply in found)
        raise Permanent(f"the controller has several systems ({names}): name the machine's", code="provider_system_ambiguous")
    return found[0]


def _is_machine(reply: Reply) -> bool:
    kind, name = text(reply.body, "SystemType"), text(reply.body, "Id")
    return inside(reply.body, "Actions", RESET) is not None and kind in PHYSICAL and not name.startswith("HGX_")


def managers(bmc: Bmc, system: Reply) -> tuple[str, ...]:
    """
    The paths of the managers in charge of the machine.
    """
    linked = links(system.body, "Links", "ManagedBy")
    return linked or members(bmc, service(bmc, "Managers"))


def manager(bmc: Bmc, system: Reply) -> Reply:
    """
    The machine's first manager. Raises Unsupported when it has none.
    """
    for path in managers(bmc, system):
        return bmc.get(path)
    raise Unsupported("the controller shows no manager of the machine")


def facts(bmc: Bmc, system: Reply, vendor: str) -> Facts:
    """
    How this machine wants to be spoken to; asked once.
    """
    known = bmc.known.get("facts")
    if isinstance(known, Facts):
        return known
    make = Make(vendor or text(system.body, "Manufacturer"), text(system.body, "Model"))
    if asks_manager(make):
        body = manager(bmc, system).body
        make = Make(make.vendor, make.model, text(body, "Model"), text(body, "FirmwareVersion"))
    found = facts_of(make)
    bmc.known["facts"] = found
    return found


def action(body: Mapping[str, Any] | None, name: str) -> str:
    """
    Where the named action is POSTed; empty where the resource has none.
    """
    return text(body, "Actions", name, "target")


def allowed(bmc: Bmc, body: Mapping[str, Any] | None, name: str, parameter: str) -> tuple[str, ...] | None:
    """
    The values that the action's parameter may have; None where the controller does not tell.

    Source: DSP0266 1.20, "Allowable values" and "Action info annotation".
    """
    said = inside(body, "Actions", name, f"{parameter}@Redfish.AllowableValues")
    if isinstance(said, list):
        return tuple(_flat(said))
    info = text(body, "Actions", name, "@Redfish.ActionInfo")
    if not info:
        return None
    return next(_values(bmc.read(info), parameter), None)


def _flat(values: list[Any]) -> Iterator[str]:
    """
    The values; a list in the list, as BlueField's controller has it, counts by what is in it.
    """
    for one in values:
        if isinstance(one, list):
            yield from _flat(one)
        else:
            yield str(one)


def _values(info: Mapping[str, Any], parameter: str) -> Iterator[tuple[str, ...]]:
    rows = info.get("Parameters")
    for row in rows if isinstance(rows, list) else []:
        values = inside(row, "AllowableValues")
        if text(row, "Name") == parameter and isinstance(values, list):
            yield tuple(_flat(values))
