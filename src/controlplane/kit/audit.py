"""
The audit chain: append-only, one per tenant and one for the platform, each hash over the stored bytes and the hash before it.

The database function `cp_audit_append` locks the chain's head, so that two writers can never fork it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import LargeBinary, UniqueConstraint, select, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base

PLATFORM = "platform"
ZERO = bytes(32)


class AuditHeadRow(Base):
    """
    The end of one chain.
    """

    __tablename__ = "audit_heads"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    """The chain: a tenant's, a reseller's id, or `platform`."""
    seq: Mapped[int] = mapped_column(server_default="0")
    """Number of the last entry."""
    hash: Mapped[bytes] = mapped_column(LargeBinary(), server_default=text("decode(repeat('00', 32), 'hex')"))
    """Hash of the last entry."""


class AuditEntryRow(Base):
    """
    One mutation, denied attempt or override.
    """

    __tablename__ = "audit_entries"
    __table_args__ = (UniqueConstraint("tenant_id", "prev", name="uq_audit_entries_prev"),)

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    """The chain."""
    seq: Mapped[int] = mapped_column(primary_key=True)
    """1, 2, 3, … without a gap."""
    prev: Mapped[bytes] = mapped_column(LargeBinary())
    """Hash of the entry before."""
    hash: Mapped[bytes] = mapped_column(LargeBinary())
    """SHA-256 over prev, seq and body."""
    body: Mapped[bytes] = mapped_column(LargeBinary())
    """The entry as canonical JSON in UTF-8: what is hashed is what is stored."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """For filters; the hashed time stands in the body."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """
    An entry to be written.
    """

    actor: str
    """Principal id, or `anonymous`."""
    action: str
    """The permission or verb: `clusters:create`."""
    target: str
    """Id or path of what was touched."""
    outcome: str
    """`done`, `denied` or `failed`."""
    request_id: str
    """The request it came with."""
    detail: dict[str, Any]
    """Never a secret."""


APPEND = text("SELECT cp_audit_append(:chain, :body)")


def append(session: Session, chain: str, entry: AuditEntry, *, at: str) -> int:
    """
    The entry is the chain's next; its number is returned. The head stays locked until this transaction ends, so call it last.
    """
    body = json.dumps(
        {
            "actor": entry.actor,
            "action": entry.action,
            "target": entry.target,
            "outcome": entry.outcome,
            "request_id": entry.request_id,
            "detail": entry.detail,
            "at": at,
        },
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
    ).encode()
    return int(session.execute(APPEND, {"chain": chain, "body": body}).scalar_one())


@dataclass(frozen=True, slots=True)
class Break:
    """
    Where a chain does not hold.
    """

    chain: str
    """Which chain."""
    seq: int
    """At which entry."""
    problem: str
    """In words."""


def verify(session: Session, chain: str, *, most: int | None = None) -> Iterator[Break]:
    """
    Every place where the chain does not hold; nothing when it does. Reads the whole chain in order, in bounded memory; with `most`
    only so many entries from the first, and then the head is not compared.
    """
    seq, prev = 0, ZERO
    rows = session.execute(
        select(AuditEntryRow.seq, AuditEntryRow.prev, AuditEntryRow.hash, AuditEntryRow.body)
        .where(AuditEntryRow.tenant_id == chain)
        .order_by(AuditEntryRow.seq)
        .limit(most),
        execution_options={"yield_per": 1000},
    )
    for row in rows:
        if row.seq != seq + 1:
            yield Break(chain, row.seq, f"follows {seq}")
        if row.prev != prev:
            yield Break(chain, row.seq, "does not name the entry before it")
        if sha256(row.prev + row.seq.to_bytes(8, "big") + row.body).digest() != row.hash:
            yield Break(chain, row.seq, "its bytes do not match its hash")
        seq, prev = row.seq, row.hash
    if most is not None:
        return
    head = session.execute(select(AuditHeadRow.seq, AuditHeadRow.hash).where(AuditHeadRow.tenant_id == chain)).one_or_none()
    if head is None:
        if seq:
            yield Break(chain, seq, "the chain has no head")
    elif (head.seq, head.hash) != (seq, prev):
        yield Break(chain, head.seq, f"the head names entry {head.seq}, the chain ends at {seq}")
