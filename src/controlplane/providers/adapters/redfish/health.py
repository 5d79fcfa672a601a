"""
How the machine's parts are, as far as its controller tells: GPUs with their links and memory, processors, memory, drives, chassis.

A fact is ok only on the word of the controller. What could not be read is a fact of its own, `unread:…`, and unknown.

Source: DMTF `Processor`, `Port`, `MemoryMetrics`, `ProcessorMetrics`, `Drive`; NVIDIA's OEM properties as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.providers.adapters.redfish.inventory import drive_health, list_dimms, list_drives, list_simple_drives
from controlplane.providers.adapters.redfish.processors import Card, list_cards, list_cpus, memories_of
from controlplane.providers.adapters.redfish.reading import Machine, Part, Read, Tree, open_machine
from controlplane.providers.adapters.redfish.sensors import list_chassis_facts
from controlplane.providers.adapters.redfish.values import (
    Json,
    complaint,
    health_of,
    natural,
    record,
    text,
    whole,
    worst,
)
from controlplane.providers.hardware import Fact, Health

_TRAINING = frozenset({"starting", "training"})
_LINK_ERRORS = ("RuntimeError", "TrainingError")
_DOWN = frozenset({"linkdown", "nolink"})


def read_health(read: Read, system_path: str) -> tuple[Fact, ...]:
    """
    Facts of the machine's parts in order of name, each name once: of two parts with one name the worse is told.

    Raises what reading the system itself raises, and AuthFailed.
    """
    tree = Tree(read)
    machine = open_machine(tree, system_path)
    found = [_status_fact("system", system) for system in machine.systems]
    for card in list_cards(tree, machine):
        found.extend(_card_facts(tree, machine, card))
    found.extend(_status_fact("cpu", cpu) for cpu in list_cpus(tree, machine))
    for dimm in list_dimms(tree, machine):
        found.extend(_dimm_facts(tree, dimm))
    found.extend(_drive_facts(tree, machine))
    for fabric in tree.members(machine.root, "Fabrics") if machine.root and machine.alone else ():
        found.extend(_status_fact("switch", switch) for switch in tree.members(fabric, "Switches"))
    for chassis in machine.chassis:
        found.extend(list_chassis_facts(tree, chassis))
    found.extend(Fact(f"unread:{what}", "unknown", why) for what, why in tree.unread.items())
    return _once(found)


def _once(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    found: dict[str, Fact] = {}
    for fact in facts:
        known = found.get(fact.name)
        if known is None or worst([known.health, fact.health]) != known.health:
            found[fact.name] = fact
    return tuple(sorted(found.values(), key=lambda fact: natural(fact.name)))


def _status_fact(kind: str, part: Part) -> Fact:
    return Fact(f"{kind}:{part.name}", health_of(part.body), complaint(part.body))


def _card_facts(tree: Tree, machine: Machine, card: Card) -> list[Fact]:
    said = dict.fromkeys(filter(None, (complaint(view.body) for view in card.views)))
    found = [Fact(f"gpu_health:{card.slot}", card.health, "; ".join(said))]
    found.extend(_gpu_memory_facts(tree, card))
    found.extend(_sram_facts(tree, card))
    for view in card.views:
        if "Ports" in view.body:
            found.extend(_nvlink_facts(tree, machine, card, view))
    return found


def _gpu_memory_facts(tree: Tree, card: Card) -> list[Fact]:
    # What one module tells, all of a GPU must: of a silent one it is unknown.
    memories = memories_of(tree, card)
    metrics = [tree.linked(memory, "Metrics", optional=True) for memory in memories.parts]
    if not memories.parts:
        summaries = [Part(view.path, record(view.body.get("MemorySummary"))) for view in card.views]
        metrics = [part for summary in summaries if (part := tree.linked(summary, "Metrics", optional=True))]
    counters = [part.body if part else {} for part in metrics]
    found = [Fact(f"gpu_memory:{card.slot}", health_of(memory.body), complaint(memory.body)) for memory in memories.parts]
    vendors = [record(record(memory.body.get("Oem")).get("Nvidia")) for memory in memories.parts]
    if any("RowRemappingFailed" in vendor or "RowRemappingPending" in vendor for vendor in vendors):
        found.extend(Fact(f"gpu_row_remap:{card.slot}", *_row_remapping(vendor)) for vendor in vendors)
    if any("LifeTime" in body or "CurrentPeriod" in body for body in counters):
        found.extend(Fact(f"gpu_memory_ecc:{card.slot}", *_ecc(body)) for body in counters)
    if any("NoAvailabilityBankCount" in _rows(body) for body in counters):
        found.extend(Fact(f"gpu_spare_rows:{card.slot}", *_spare_rows(_rows(body))) for body in counters)
    missing = [] if memories.complete else [Fact(fact.name, "unknown", "not all memory could be read") for fact in found]
    return found + missing


def _row_remapping(vendor: Json) -> tuple[Health, str]:
    failed, pending = vendor.get("RowRemappingFailed"), vendor.get("RowRemappingPending")
    if failed is True:
        return "critical", "a row of memory could not be remapped"
    if pending is True:
        return ("warning" if failed is False else "unknown"), "a row of memory is remapped at the next reset of the GPU"
    return ("ok" if failed is False and pending is False else "unknown"), ""


def _spare_rows(rows: Json) -> tuple[Health, str]:
    spent = whole(rows.get("NoAvailabilityBankCount"))
    if spent:
        return "warning", f"{spent} banks of memory have no spare rows left"
    return ("unknown" if spent is None else "ok"), ""


def _rows(metrics: Json) -> Json:
    return record(record(record(metrics.get("Oem")).get("Nvidia")).get("RowRemapping"))


def _ecc(metrics: Json) -> tuple[Health, str, float | None]:
    # A lifetime count never falls again: it is a warning. The one since the last reset is of now.
    lifetime, period = record(metrics.get("LifeTime")), record(metrics.get("CurrentPeriod"))
    ever, now = whole(lifetime.get("UncorrectableECCErrorCount")), whole(period.get("UncorrectableECCErrorCount"))
    corrected = whole(lifetime.get("CorrectableECCErrorCount"))
    value = None if corrected is None else float(corrected)
    if now:
        return "critical", f"{now} uncorrectable memory errors since the last reset", value
    if ever:
        return "warning", f"{ever} uncorrectable memory errors in its life", value
    known = ever == 0 and ("CurrentPeriod" not in metrics or now == 0)
    return ("ok" if known else "unknown"), (f"{corrected} corrected memory errors in its life" if corrected else ""), value


def _sram_facts(tree: Tree, card: Card) -> list[Fact]:
    found = []
    for view in card.views:
        metrics = tree.linked(view, "Metrics", optional=True)
        if metrics is None:
            continue
        cache = record(metrics.body.get("CacheMetricsTotal"))
        if "LifeTime" in cache or "CurrentPeriod" in cache:
            found.append(Fact(f"gpu_cache_ecc:{card.slot}", *_ecc(cache)))
        vendor = record(record(metrics.body.get("Oem")).get("Nvidia"))
        if "SRAMECCErrorThresholdExceeded" in vendor:
            exceeded = vendor["SRAMECCErrorThresholdExceeded"]
            told: Health = "critical" if exceeded is True else "ok" if exceeded is False else "unknown"
            message = "uncorrectable errors of on-chip memory exceed the vendor's threshold" if exceeded is True else ""
            found.append(Fact(f"gpu_sram_threshold:{card.slot}", told, message))
    return found


def _nvlink_facts(tree: Tree, machine: Machine, card: Card, view: Part) -> list[Fact]:
    ports = [port for port in tree.members(view, "Ports", levels=2) if _is_nvlink(port)]
    partial = tree.is_partial(view, "Ports")
    if not ports and not partial:
        return []
    errors = [fact] if (fact := _nvlink_error_fact(card, ports, partial=partial)) else []
    on = text(machine.host.body.get("PowerState")).lower() == "on"
    told = [(port, *_link(port.body, on=on)) for port in ports]
    up = sum(text(port.body.get("LinkStatus")).lower() == "linkup" for port in ports)
    bad = [f"{port.name} {words}" for port, health, words in told if health != "ok"]
    health = worst([health for _, health, _ in told])
    if partial:
        message = "; ".join(["not all ports could be read", *bad])
        return [Fact(f"nvlink:{card.slot}", worst([health, "unknown"]), message), *errors]
    return [Fact(f"nvlink:{card.slot}", health, "; ".join([f"{up} of {len(ports)} links are up", *bad]), float(up)), *errors]


def _is_nvlink(port: Part) -> bool:
    return text(port.body.get("PortProtocol")).lower() == "nvlink" or "nvlink" in port.name.lower()


def _link(port: Json, *, on: bool) -> tuple[Health, str]:
    status = text(port.get("LinkStatus")).lower()
    if status in _DOWN:
        return ("critical", "is down") if on else ("unknown", "is down, and the host is not known to be on")
    if status in _TRAINING:
        return "warning", f"is {status}"
    if status != "linkup":
        return worst([health_of(port), "unknown"]), "does not tell its state"
    return health_of(port), complaint(port)


def _nvlink_error_fact(card: Card, ports: list[Part], *, partial: bool) -> Fact | None:
    # The counters are one resource a port: they are looked at where they came with the ports, and not asked for one by one.
    told = {
        port.name: record(record(record(record(port.body.get("Metrics")).get("Oem")).get("Nvidia")).get("NVLinkErrors"))
        for port in ports
    }
    raised = [f"{port} {name}" for port, errors in told.items() for name in _LINK_ERRORS if errors.get(name) is True]
    known = not partial and all(isinstance(errors.get(name), bool) for errors in told.values() for name in _LINK_ERRORS)
    if not any(told.values()):
        return None
    return Fact(f"nvlink_errors:{card.slot}", "warning" if raised else "ok" if known else "unknown", "; ".join(raised))


def _drive_facts(tree: Tree, machine: Machine) -> list[Fact]:
    found = []
    for storage, drive in list_drives(tree, machine):
        predicted = "failure predicted" if drive.body.get("FailurePredicted") is True else ""
        message = "; ".join(filter(None, (predicted, complaint(drive.body))))
        found.append(Fact(f"drive:{storage.name}/{drive.name}", drive_health(drive.body), message))
    return found or [Fact(f"drive:{drive.name}", drive.health) for drive in list_simple_drives(tree, machine)]


def _dimm_facts(tree: Tree, dimm: Part) -> list[Fact]:
    found = [_status_fact("memory", dimm)]
    metrics = tree.linked(dimm, "Metrics", optional=True)
    if metrics is None:
        return found
    if "LifeTime" in metrics.body or "CurrentPeriod" in metrics.body:
        found.append(Fact(f"memory_ecc:{dimm.name}", *_ecc(metrics.body)))
    if "HealthData" in metrics.body and "AlarmTrips" in record(metrics.body["HealthData"]):
        found.append(_alarm_fact(dimm, metrics.body["HealthData"]["AlarmTrips"]))
    return found


def _alarm_fact(dimm: Part, trips: object) -> Fact:
    raised = [name for name, tripped in record(trips).items() if tripped is True]
    odd = not record(trips) or any(not isinstance(tripped, bool) for tripped in record(trips).values())
    health: Health = "critical" if "UncorrectableECCError" in raised else "warning" if raised else "unknown" if odd else "ok"
    return Fact(f"memory_alarm:{dimm.name}", health, ", ".join(raised))
