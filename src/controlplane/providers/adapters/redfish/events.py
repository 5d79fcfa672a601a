"""
What the controllers of a machine have logged: system, boards, managers and chassis, as one listing.

Each log counts its entries for itself and by its own clock, which may stand at 1970 after every start, so one entry is a place in
its own log only. A listing after it repeats what other logs noted shortly before, and the newest of logs without a clock: an entry
may be told twice (its id is the same), and none is left out.

Source: DMTF `LogService`, `LogEntry`; UEFI specification, appendix N, for the severities of CPER records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

from controlplane.providers.adapters.redfish.reading import ROOT, Machine, Part, Read, Tree, managers, open_machine
from controlplane.providers.adapters.redfish.values import Json, items, path_in, record, severity, text
from controlplane.providers.hardware import Health, LogEntry, Logs

PAGES_NEWEST_FIRST = 20
"""Pages read of a log that lists its newest entries first."""
PAGES_OLDEST_FIRST = 100
"""Pages read of a log whose newest entries come last."""
OVERLAP = timedelta(minutes=15)
"""By how much the clocks of two logs may differ before an entry could be left out."""
CLOCKLESS_ENTRIES = 100
"""Newest entries that are repeated of another log that has no clock, or lost it."""
MESSAGE_LENGTH = 1024
"""Characters kept of a message."""
_NOT_EVENTS = frozenset({"dump", "journal", "postcodes", "debugtokenservice", "fdr", "hostlogger", "auditlog"})
_CPER_SEVERITIES: dict[str, Health] = {"informational": "ok", "corrected": "ok", "recoverable": "warning", "fatal": "critical"}
_BEFORE_CLOCKS = datetime(2000, 1, 1, tzinfo=UTC)
_DAWN = datetime(1, 1, 1, tzinfo=UTC)
_FUTURE = timedelta(days=1)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9})\d*)?\s*(Z|[+-]\d\d:?(?:\d\d)?)?", re.IGNORECASE)
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?")


@dataclass(frozen=True, slots=True)
class _Log:
    """
    The entries of one log, oldest first.
    """

    entries: tuple[LogEntry, ...]
    """In the log's own order."""
    times: tuple[datetime, ...]
    """Of each entry, never falling; the year 1 where the log had no clock yet."""
    clockless_from: int
    """Where the entries begin after which the log had no clock any more."""


def read_log(read: Read, system_path: str, after: str) -> Logs:
    """
    Entries after the one with this id, oldest first; all that are kept when it is empty or gone. Dumps and audits are no events.

    Raises what reading the system itself raises, and AuthFailed.
    """
    tree = Tree(read)
    machine = open_machine(tree, system_path)
    keepers = managers(tree, machine)
    now = next((at for keeper in keepers if (at := moment(keeper.body.get("DateTime")))), None)
    logs = [_log(tree, service, after, now) for service in _services(tree, machine, keepers)]
    chosen = sorted(
        ((time, which, at, log.entries[at]) for which, log in enumerate(logs) for at, time in _after(logs, log, after)),
        key=lambda entry: entry[:3],
    )
    return Logs(entries=tuple(entry[3] for entry in chosen), complete=not tree.unread)


def moment(value: object, offset: object = None) -> datetime | None:
    """
    A time in UTC; one without a zone is taken at the offset (`-05:00`), else as UTC. None for no time, and before 2000: no clock.
    """
    found = _TIME.fullmatch(text(value))
    if not found:
        return None
    day, clock, fraction, zone = found.groups()
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        at = datetime.fromisoformat(f"{day}T{clock}").replace(microsecond=micros, tzinfo=_zone(zone or text(offset)))
        at = at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return at if at >= _BEFORE_CLOCKS else None


def _zone(said: str) -> timezone:
    found = _OFFSET.fullmatch(said)
    if not found:
        return UTC
    offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    return timezone(-offset if found[1] == "-" else offset)


def _services(tree: Tree, machine: Machine, keepers: tuple[Part, ...]) -> list[Part]:
    found: dict[str, Part] = {}
    for owner in (machine.host, *machine.boards, *keepers, *machine.chassis):
        found |= {log.path: log for log in tree.members(owner, "LogServices") if log.name.lower() not in _NOT_EVENTS}
    return list(found.values())


def _log(tree: Tree, service: Part, after: str, now: datetime | None) -> _Log:
    prefix = service.path.removeprefix(ROOT + "/").replace("/LogServices/", "/")
    offset = service.body.get("DateTimeLocalOffset")
    found: dict[str, LogEntry] = {}
    for body in _bodies(tree, service, after.removeprefix(prefix + "/") if after.startswith(prefix + "/") else ""):
        entry = _entry(prefix, body, offset)
        if entry is not None:
            found.setdefault(entry.id, entry)
    entries = _oldest_first(list(found.values()))
    times, time, clockless_from = [], _DAWN, 0
    for count, entry in enumerate(entries, start=1):
        if entry.at is not None and (now is None or entry.at <= now + _FUTURE):
            time, clockless_from = max(time, entry.at), count
        times.append(time)
    return _Log(tuple(entries), tuple(times), clockless_from)


def _bodies(tree: Tree, service: Part, wanted: str) -> Iterator[Json]:
    path = path_in(service.body.get("Entries"))
    if not path:
        tree.note(f"{service.path}#Entries", "leads nowhere")
        return
    newest_first: bool | None = None
    for at, page in enumerate(tree.pages(path, levels=0), start=1):
        bodies = [body for link in items(page.get("Members")) if (body := _body(tree, path, link)) is not None]
        yield from bodies
        newest_first = _falls(bodies) if newest_first is None else newest_first
        ended = "Members@odata.nextLink" not in page
        if newest_first and any(_id(body) == wanted for body in bodies if wanted):
            return
        if not ended and at >= (PAGES_NEWEST_FIRST if newest_first else PAGES_OLDEST_FIRST):
            if wanted or not newest_first:
                tree.note(path, f"has more than {at} pages")
            return


def _body(tree: Tree, path: str, link: object) -> Json | None:
    if isinstance(link, dict) and ("Id" in link or "Message" in link):
        return link
    part = tree.get(link if link is not None else "", of=f"{path}#Members")
    return None if part is None else part.body


def _id(body: Json) -> str:
    return text(body.get("Id")) or path_in(body).rsplit("/", 1)[-1]


def _entry(prefix: str, body: Json, offset: object) -> LogEntry | None:
    own = _id(body)
    if not own or any(text(record(vendor).get("Category")).lower() == "audit" for vendor in record(body.get("Oem")).values()):
        return None
    cper = record(record(record(body.get("CPER")).get("Oem")).get("Nvidia"))
    told = severity(body.get("Severity"))
    if "Severity" not in body:
        told = _CPER_SEVERITIES.get(text(cper.get("Severity")).lower(), "unknown")
    signature = " ".join(filter(None, (text(cper.get("SectionType")), text(cper.get("NvIpSignature")))))
    message = text(body.get("Message"), most=MESSAGE_LENGTH) or signature or text(body.get("Name"))
    code = text(body.get("MessageId")) or text(body.get("OemLogEntryCode")) or text(body.get("EventId"))
    at = moment(body.get("Created"), offset) or moment(body.get("EventTimestamp"), offset)
    return LogEntry(id=f"{prefix}/{own}", at=at, severity=told, message=message, code=code)


def _falls(bodies: list[Json]) -> bool:
    ids = [int(own) for body in bodies if (own := _id(body)).isdecimal()]
    if len(ids) == len(bodies) > 1:
        return ids[0] > ids[-1]
    times = [at for body in bodies if (at := moment(body.get("Created")))]
    return len(times) > 1 and times[0] > times[-1]


def _oldest_first(entries: list[LogEntry]) -> list[LogEntry]:
    numbers = [entry.id.rsplit("/", 1)[-1] for entry in entries]
    if all(one.isdecimal() for one in numbers):
        return sorted(entries, key=lambda entry: int(entry.id.rsplit("/", 1)[-1]))
    times = [entry.at for entry in entries if entry.at is not None]
    return entries[::-1] if len(times) > 1 and times[0] > times[-1] else entries


def _after(logs: list[_Log], log: _Log, after: str) -> Iterator[tuple[int, datetime]]:
    place = next(((home, at) for home in logs for at, entry in enumerate(home.entries) if after and entry.id == after), None)
    since, told_again = _DAWN, len(log.entries)
    start = 0
    if place is not None and place[0] is log:
        start = place[1] + 1
    elif place is not None and place[0].times[place[1]] > _DAWN:
        since = place[0].times[place[1]] - OVERLAP
        told_again = max(log.clockless_from, len(log.entries) - CLOCKLESS_ENTRIES)
    for at in range(start, len(log.entries)):
        if log.times[at] >= since or at >= told_again:
            yield at, log.times[at]
