"""
Expected machines against those that were found. Pure.

What nobody has looked for is said to be unknown, never to be missing and never to be there.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

CODES = (
    "not_looked_for",
    "not_seen",
    "not_enrolled",
    "other_serial",
    "other_controller",
    "other_name",
    "other_place",
    "other_type",
    "seen_twice",
)
PLACE = ("site", "block", "leaf", "rack", "nvlink_domain")
TYPE = ("instance_type", "gpus")


@dataclass(frozen=True, slots=True)
class Known:
    """
    A machine that is enrolled.
    """

    node_id: str
    """`nod_…`."""
    provider_id: str
    """Who drives it."""
    ref: str
    """Its name there."""
    serial: str
    """As expected, or else as inspected; empty for neither."""
    controller: tuple[str, str] | None
    """(url, system) of its controller; None where its provider owns its life."""
    place: Mapping[str, Any]
    """{site, block, leaf, rack, nvlink_domain, instance_type, gpus}."""
    since: datetime
    """When it was enrolled."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    A machine that was found.
    """

    id: str
    """`dsc_…`."""
    provider_id: str
    """Where."""
    ref: str
    """Its name there."""
    serial: str
    """Empty: not told."""
    controller: tuple[str, str] | None
    """(url, system) of its controller; None where its provider owns its life."""
    place: Mapping[str, Any] = field(default_factory=dict)
    """As the provider knows it; what is not there is unknown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One difference between what is expected and what was found.
    """

    code: str
    """One of CODES."""
    severity: str
    """`warning`: a person should look; `info`: unknown, or to be decided."""
    provider_id: str
    """Where."""
    ref: str
    """The machine's name there."""
    node_id: str | None
    """The node; None where none is enrolled."""
    discovered_id: str | None
    """What was found; None where nothing was."""
    expected: str
    """In short; empty where nothing was."""
    seen: str
    """In short; empty where nothing was."""
    message: str
    """In words."""


def find_mismatches(known: Sequence[Known], seen: Sequence[Seen], listed: Mapping[str, datetime]) -> list[Finding]:
    """
    Every difference, in a stable order. `seen` are machines that are there; `listed` says when each provider last gave a whole list.
    """
    by_name = {(one.provider_id, one.ref): one for one in seen}
    by_controller = {_door(one.controller): one for one in seen if one.controller is not None}
    by_serial = {one.serial.casefold(): one for one in seen if one.serial}
    found: list[Finding] = []
    met: set[str] = set()
    for one in known:
        match = (
            by_name.get((one.provider_id, one.ref))
            or (by_controller.get(_door(one.controller)) if one.controller is not None else None)
            or (by_serial.get(one.serial.casefold()) if one.serial else None)
        )
        if match is None:
            found.append(_unseen(one, listed))
            continue
        met.add(match.id)
        found += _unlike(one, match)
    serials = {one.serial.casefold() for one in known if one.serial}
    found += [_stranger(one) for one in seen if one.id not in met and one.serial.casefold() not in serials]
    found += _twice(seen)
    return sorted(
        found, key=lambda one: (one.provider_id, one.ref, CODES.index(one.code), one.discovered_id or "", one.node_id or "")
    )


def _door(controller: tuple[str, str] | None) -> tuple[str, str]:
    url, system = controller or ("", "")
    return url.rstrip("/").casefold(), system


def _unseen(one: Known, listed: Mapping[str, datetime]) -> Finding:
    at = listed.get(one.provider_id)
    if one.controller is None and at is not None and at > one.since:
        words = "Enrolled, and the provider does not have it."
        return Finding("not_seen", "warning", one.provider_id, one.ref, one.node_id, None, one.ref, "", words)
    words = (
        "The provider has not told all its machines since it was enrolled."
        if one.controller is None
        else "Its controller was not looked at, or did not answer."
    )
    return Finding("not_looked_for", "info", one.provider_id, one.ref, one.node_id, None, one.ref, "", words)


def _stranger(one: Seen) -> Finding:
    words = "It is there and not enrolled: adopt it, or take it out."
    return Finding("not_enrolled", "info", one.provider_id, one.ref, None, one.id, "", one.serial or one.ref, words)


def _unlike(one: Known, seen: Seen) -> Iterator[Finding]:
    def differs(code: str, expected: object, there: object, words: str) -> Finding:
        return Finding(code, "warning", one.provider_id, one.ref, one.node_id, seen.id, str(expected), str(there), words)

    if one.serial and seen.serial and one.serial.casefold() != seen.serial.casefold():
        yield differs("other_serial", one.serial, seen.serial, "Another machine stands where this one is expected.")
    if one.controller is not None and seen.controller is not None and _door(one.controller) != _door(seen.controller):
        shown = "#".join(filter(None, one.controller)), "#".join(filter(None, seen.controller))
        yield differs("other_controller", *shown, "The machine answers at another controller than expected.")
    if one.controller is None and (one.provider_id, one.ref) != (seen.provider_id, seen.ref):
        there = f"{seen.ref} at {seen.provider_id}"
        yield differs("other_name", f"{one.ref} at {one.provider_id}", there, "The machine has another name than expected.")
    for code, names, words in (
        ("other_place", PLACE, "The machine stands in another place than expected."),
        ("other_type", TYPE, "The provider takes the machine for another type."),
    ):
        wrong = [name for name in names if name in seen.place and seen.place[name] != one.place.get(name)]
        if wrong:
            expected = ", ".join(f"{name} {one.place.get(name) or 'none'}" for name in wrong)
            yield differs(code, expected, ", ".join(f"{name} {seen.place[name]}" for name in wrong), words)


def _twice(seen: Sequence[Seen]) -> Iterator[Finding]:
    groups: dict[str, list[Seen]] = defaultdict(list)
    for one in seen:
        if one.serial:
            groups[one.serial.casefold()].append(one)
    for some in groups.values():
        for one in some if len(some) > 1 else ():
            others = ", ".join(other.ref for other in some if other.id != one.id)
            words = (
                "One serial number is told by several machines: one machine in two places, or a board that was never given its own."
            )
            yield Finding("seen_twice", "warning", one.provider_id, one.ref, None, one.id, one.serial, others, words)
