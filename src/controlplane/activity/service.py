"""
What callers may learn of operations, events and the audit, and how an order is called off.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from controlplane.activity import repository
from controlplane.activity.errors import NotCancellable
from controlplane.activity.repository import EventFilter, OperationFilter
from controlplane.activity.resolving import KindName, list_attention, resolve_operation, resolve_resource
from controlplane.clusters import service as clusters
from controlplane.kit import audit
from controlplane.kit.access import Principal
from controlplane.kit.audit import AuditEntryRow, Break
from controlplane.kit.errors import FieldError, Forbidden, Invalid, NotFound
from controlplane.kit.events import EventRow
from controlplane.kit.operations import ACTIVE, OperationRow
from controlplane.kit.paging import Page, PageAsk, decode_token, encode_token

__all__ = [
    "EventFilter",
    "KindName",
    "OperationFilter",
    "cancel_operation",
    "follow_events",
    "get_operation",
    "list_attention",
    "list_entries",
    "list_events",
    "list_operations",
    "resolve_operation",
    "resolve_resource",
    "verify_chain",
]

XACT_DIGITS, ID_DIGITS = 20, 18
STREAM_BATCH = 200
MOST_VERIFIED = 100_000
MOST_BREAKS = 100


def list_operations(session: Session, principal: Principal, which: OperationFilter, ask: PageAsk) -> Page[OperationRow]:
    """
    A page of the operations that the principal may see, oldest first.
    """
    return repository.list_operations(session, principal, which, ask)


def get_operation(session: Session, principal: Principal, operation_id: str) -> OperationRow:
    """
    The operation. Raises NotFound, also for one that the principal may not see.
    """
    row = repository.find_operation(session, principal, operation_id)
    if row is None:
        raise NotFound
    return row


def cancel_operation(session: Session, principal: Principal, operation_id: str) -> OperationRow:
    """
    What the operation began is being undone, or goes no further. Raises NotFound, NotCancellable, and what the resource's room refuses.
    """
    row = get_operation(session, principal, operation_id)
    if row.state not in ACTIVE:
        raise NotCancellable(f"The operation has ended: it {row.state}.", state=row.state)
    if row.type == "cluster.upgrade":
        clusters.stop_upgrade(session, principal, row.resource_id)
        return get_operation(session, principal, operation_id)
    if row.type != "cluster.create":
        raise NotCancellable(f"A {row.type} operation is not undone half-way; wait for it.", state=row.state)
    clusters.cancel_order(session, principal, row.resource_id)
    return get_operation(session, principal, operation_id)


@dataclass(frozen=True, slots=True)
class Told:
    """
    An event and the position behind it.
    """

    position: str
    """Opaque; go on from here."""
    event: EventRow
    """What happened."""


@dataclass(frozen=True, slots=True)
class Feed:
    """
    Some events and where to go on.
    """

    items: tuple[Told, ...]
    """In the order of positions."""
    next_after: str
    """Everything before this position was told; what comes later comes behind it."""
    more: bool
    """Whether more is there already."""


def list_events(session: Session, principal: Principal, which: EventFilter, *, after: str | None, limit: int) -> Feed:
    """
    What happened behind the position, in an order that never changes: an event of a transaction that commits late is told late, and
    never left out.
    """
    horizon = repository.event_horizon(session)
    start = (0, 0) if after is None else read_position(after)
    rows = repository.list_events(session, principal, which, start, horizon, limit + 1)
    items = tuple(Told(_position(int(row.xact), row.id), row) for row in rows[:limit])
    more = len(rows) > limit
    # Nothing older than the horizon is left to tell, so a reader with rare events need not look there again.
    return Feed(items, items[-1].position if more else _position(*max(start, (horizon, 0))), more)


def follow_events(
    session: Session, principal: Principal, position: str, *, which: EventFilter
) -> tuple[list[tuple[str, str, dict[str, Any]]], bool]:
    """
    What is new for a stream since the position; a stream without one begins now and is told its position first.
    """
    if not position:
        return [(_position(repository.event_horizon(session), 0), "start", {})], False
    feed = list_events(session, principal, which, after=position, limit=STREAM_BATCH)
    return [(one.position, one.event.type, event_data(one.event)) for one in feed.items], False


def event_data(row: EventRow) -> dict[str, Any]:
    """
    The event as a stream tells it.
    """
    return {
        "type": row.type,
        "resource_kind": row.resource_kind,
        "resource_id": row.resource_id,
        "tenant_id": row.tenant_id,
        "project_id": row.project_id,
        "at": row.at,
        "data": row.data,
    }


def read_position(token: str) -> tuple[int, int]:
    """
    The position in a token. Raises Invalid for what was never handed out.
    """
    xact, _, number = decode_token(token, field="query.after").partition(".")
    digits = (xact + number).isascii() and xact.isdigit() and number.isdigit()
    if not digits or len(xact) > XACT_DIGITS or len(number) > ID_DIGITS:
        words = "The position is not one of ours."
        raise Invalid(words, errors=[FieldError("query.after", "invalid_token", "Use a position that was answered.")])
    return int(xact), int(number)


def _position(xact: int, number: int) -> str:
    return encode_token(f"{xact}.{number}")


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """
    Which audit entries are asked for; None: any.
    """

    actor: str | None = None
    """Who."""
    action: str | None = None
    """The permission or verb."""
    outcome: str | None = None
    """done, denied or failed."""
    created_after: datetime | None = None
    """Younger than this."""

    def marks(self) -> list[bytes]:
        """
        Byte strings that an entry of this kind holds: entries are canonical JSON, their keys in alphabetical order.
        """
        marks = []
        if self.action is not None:
            marks.append(f'{{"action":{json.dumps(self.action)},"actor":')
        if self.actor is not None:
            marks.append(f'"actor":{json.dumps(self.actor)},"at":')
        if self.outcome is not None:
            marks.append(f'"outcome":{json.dumps(self.outcome)},"request_id":')
        return [mark.encode() for mark in marks]


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An audit entry, read.
    """

    seq: int
    """Its number in the chain."""
    hash: str
    """In hexadecimal digits."""
    at: datetime
    """When it was stored."""
    body: dict[str, Any]
    """What it says; empty when its bytes cannot be read, which only an edit from outside can cause."""


def list_entries(session: Session, principal: Principal, chain: str | None, which: EntryFilter, ask: PageAsk) -> Page[Entry]:
    """
    A page of the chain, oldest first: the caller's own, or for operators the one that is named. Raises NotFound, Forbidden.
    """
    page = repository.list_entries(session, _chain(session, principal, chain), which.marks(), which.created_after, ask)
    return page.map(_entry)


def _entry(row: AuditEntryRow) -> Entry:
    try:
        body = json.loads(bytes(row.body))
    except ValueError:
        body = {}
    return Entry(row.seq, bytes(row.hash).hex(), row.at, body if isinstance(body, dict) else {})


@dataclass(frozen=True, slots=True)
class Verification:
    """
    Whether a chain holds.
    """

    chain: str
    """Which one."""
    entries: int
    """How many it has."""
    checked: int
    """How many of them were checked, from the first."""
    breaks: tuple[Break, ...]
    """Where it does not hold, the first of them."""

    @property
    def intact(self) -> bool:
        """
        Whether all that was checked holds.
        """
        return not self.breaks


def verify_chain(session: Session, principal: Principal, chain: str | None, *, most: int = MOST_VERIFIED) -> Verification:
    """
    Every hash of the chain was computed anew from the stored bytes; of a very long one only the first `most`. Raises as `list_entries`.
    """
    name = _chain(session, principal, chain)
    head = repository.find_head(session, name)
    entries = head.seq if head is not None else 0
    found = []
    for one in audit.verify(session, name, most=most if entries > most else None):
        found.append(one)
        if len(found) == MOST_BREAKS:
            break
    return Verification(name, entries, min(entries, most), tuple(found))


def _chain(session: Session, principal: Principal, asked: str | None) -> str:
    if principal.scope_kind == "project":
        raise Forbidden("The audit belongs to the tenant; use a key of the tenant.", code="wrong_audience")
    own = principal.audit_chain
    if asked is None or asked == own:
        return own
    if principal.scope_kind != "platform" or repository.find_head(session, asked) is None:
        raise NotFound
    return asked
