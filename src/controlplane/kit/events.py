"""
Events and history: news travels up as rows, written in the transaction of the change they tell of.

A position is `(transaction id, event id)`: readers see only events of transactions older than every running one, in that order, so an
event that commits late can never appear before a position that was already handed out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Index, Text, text
from sqlalchemy.orm import Mapped, Session, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class EventRow(Base):
    """
    One change that somebody may want to hear of.
    """

    __tablename__ = "events"
    __table_args__ = (Index("ix_events_position", "xact", "id"), Index("ix_events_tenant", "tenant_id", "xact", "id"))

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    """Order within a transaction."""
    xact: Mapped[str] = mapped_column(Text(), server_default=text("lpad(pg_current_xact_id()::text, 20, '0')"))
    """The writing transaction, padded so that text order is number order."""
    tenant_id: Mapped[str | None] = mapped_column(index=False)
    """Whose event; none: operators only."""
    project_id: Mapped[str | None]
    """The project, where there is one."""
    type: Mapped[str]
    """`cluster.running`, `job.failed`, …: noun and state or verb."""
    resource_kind: Mapped[str]
    """The noun."""
    resource_id: Mapped[str]
    """The resource's id as its owner knows it."""
    data: Mapped[dict[str, Any]]
    """What the owner may read."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class HistoryRow(Base):
    """
    One move of one resource between two states.
    """

    __tablename__ = "state_history"
    __table_args__ = (Index("ix_state_history_resource", "resource_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    """Order."""
    kind: Mapped[str]
    """The noun."""
    resource_id: Mapped[str]
    """Which one."""
    tenant_id: Mapped[str | None]
    """Whose it was at that time."""
    before: Mapped[str]
    """State before; empty for the first."""
    after: Mapped[str]
    """State after."""
    reason: Mapped[str]
    """In words."""
    fence: Mapped[int]
    """The claim that did it; 0 for a request."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


@dataclass(frozen=True, slots=True)
class Event:
    """
    An event to be written.
    """

    type: str
    """Noun and state or verb."""
    resource_kind: str
    """The noun."""
    resource_id: str
    """Which one."""
    tenant_id: str | None = None
    """Whose; none: operators only."""
    project_id: str | None = None
    """The project, where there is one."""
    data: dict[str, Any] = field(default_factory=dict)
    """What the owner may read."""


@dataclass(frozen=True, slots=True)
class Move:
    """
    A state change to be written to the history.
    """

    kind: str
    """The noun."""
    resource_id: str
    """Which one."""
    before: str
    """State before; empty for the first."""
    after: str
    """State after."""
    reason: str = ""
    """In words."""
    tenant_id: str | None = None
    """Whose it is."""
    fence: int = 0
    """The claim that did it."""


RECORD = text(
    """
    WITH told AS (
      INSERT INTO events (type, resource_kind, resource_id, tenant_id, project_id, data)
      SELECT type, resource_kind, resource_id, tenant_id, project_id, data
      FROM ROWS FROM (jsonb_to_recordset(CAST(:events AS jsonb))
        AS (type text, resource_kind text, resource_id text, tenant_id text, project_id text, data jsonb))
        WITH ORDINALITY AS e (type, resource_kind, resource_id, tenant_id, project_id, data, place)
      ORDER BY place)
    INSERT INTO state_history (kind, resource_id, before, after, reason, tenant_id, fence)
    SELECT kind, resource_id, before, after, reason, tenant_id, fence
    FROM ROWS FROM (jsonb_to_recordset(CAST(:moves AS jsonb))
      AS (kind text, resource_id text, before text, after text, reason text, tenant_id text, fence bigint))
      WITH ORDINALITY AS m (kind, resource_id, before, after, reason, tenant_id, fence, place)
    ORDER BY place
    """
)


def record(session: Session, events: Sequence[Event] = (), moves: Sequence[Move] = ()) -> None:
    """
    Events and moves are part of this transaction; one statement, however many there are.
    """
    if events or moves:
        rows = {"events": json.dumps([_columns(one) for one in events]), "moves": json.dumps([_columns(one) for one in moves])}
        session.execute(RECORD, rows)


def _columns(one: Event | Move) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}
