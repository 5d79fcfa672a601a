"""
Who could reach whom through the simulated fabric, and what of it no promise allows. Pure, like `judge`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations

from controlplane.providers.adapters.simulated.fabric import RESERVED_ENDS
from controlplane.providers.adapters.simulated.finding import Finding
from controlplane.providers.adapters.simulated.ledger import Ledger, Link


@dataclass(frozen=True, slots=True)
class Reach:
    """
    Two ports that could reach each other: the half-open interval [since, until).
    """

    segment: int
    """Where they met."""
    one: Link
    """The link that was made first."""
    other: Link
    """The other."""
    since: datetime
    """When the later of them came."""
    until: datetime | None
    """When the first of them went; None: they still can."""


def reaches(ledger: Ledger) -> list[Reach]:
    """
    Every pair of ports that were in one segment at once, in the order of segments.
    """
    met: defaultdict[int, list[Link]] = defaultdict(list)
    for link in ledger.links:
        if link.carries:
            met[link.segment].append(link)
    return [
        Reach(segment, one, other, max(one.since, other.since), _earlier(one.until, other.until))
        for segment in sorted(met)
        for one, other in combinations(met[segment], 2)
        if _overlap(one, other) and (one.switch, one.port) != (other.switch, other.port)
    ]


def fabric_findings(ledger: Ledger) -> list[Finding]:
    """
    I1 on the wire: tenants that met, ports in two networks at once, reserved ports in any, and a tenant's machine in another's network.
    """
    return [
        *_strangers_met(ledger),
        *_two_at_once(ledger.links),
        *_reserved_reached(ledger.links),
        *_in_anothers_network(ledger),
    ]


def _strangers_met(ledger: Ledger) -> Iterator[Finding]:
    for one in reaches(ledger):
        if one.one.tenant_id != one.other.tenant_id:
            words = (
                f"{one.one.port} of {one.one.tenant_id} and {one.other.port} of {one.other.tenant_id} meet in segment {one.segment}"
            )
            yield Finding("I1", one.one.ref, f"{words} from {one.since.isoformat()}")


def _two_at_once(links: Iterable[Link]) -> Iterator[Finding]:
    per_port: defaultdict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in links:
        per_port[link.switch, link.port].append(link)
    for (_, port), held in per_port.items():
        for one, other in combinations(held, 2):
            if _overlap(one, other):
                yield Finding("I1", one.ref, f"{port} is in the segments {one.segment} and {other.segment} at once")


def _reserved_reached(links: Iterable[Link]) -> Iterator[Finding]:
    for link in links:
        if link.port.rpartition(".")[2] in RESERVED_ENDS:
            yield Finding("I1", link.ref, f"{link.port} is reserved and was in segment {link.segment} of {link.tenant_id}")


def _in_anothers_network(ledger: Ledger) -> Iterator[Finding]:
    for tenancy in ledger.tenancies:
        if tenancy.reachable_from is None:
            continue
        for link in ledger.links:
            if link.ref != tenancy.ref or link.tenant_id == tenancy.tenant_id or not link.carries:
                continue
            if _before(tenancy.reachable_from, link.until) and _before(link.since, tenancy.powered_off_at):
                words = (
                    f"{tenancy.token} of {tenancy.tenant_id} ran on it while {link.port} was in {link.network} of {link.tenant_id}"
                )
                yield Finding("I1", tenancy.ref, words)


def _overlap(one: Link, other: Link) -> bool:
    return _before(one.since, other.until) and _before(other.since, one.until)


def _before(since: datetime, until: datetime | None) -> bool:
    return until is None or since < until


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((end for end in (one, other) if end is not None), default=None)
