"""
Operations: one long-running change of one resource, with steps, listable and cancellable. At most one is active per resource.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Index, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, Session, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base
from controlplane.kit.errors import OperationActive
from controlplane.kit.ids import new_id

ACTIVE = ("pending", "running", "needs_attention")
ENDED = ("succeeded", "failed", "cancelled")


class OperationRow(Base):
    """
    One change under way, or ended.
    """

    __tablename__ = "operations"
    __table_args__ = (
        CheckConstraint("state IN ('pending','running','needs_attention','succeeded','failed','cancelled')", name="state"),
        Index(
            "uq_operations_one_active",
            "resource_id",
            unique=True,
            postgresql_where=text("state IN ('pending','running','needs_attention')"),
        ),
        Index("ix_operations_tenant", "tenant_id", "id"),
        Index("ix_operations_open", "deadline_at", postgresql_where=text("state IN ('pending','running','needs_attention')")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`opr_…`."""
    tenant_id: Mapped[str | None]
    """Whose; none: the operators'."""
    project_id: Mapped[str | None]
    """The project, where there is one."""
    type: Mapped[str]
    """`cluster.create`, `node.requalify`, …"""
    resource_kind: Mapped[str]
    """The noun."""
    resource_id: Mapped[str]
    """Which one."""
    state: Mapped[str] = mapped_column(server_default="pending")
    """pending, running, needs_attention, succeeded, failed or cancelled."""
    reason: Mapped[str] = mapped_column(server_default="")
    """In words."""
    steps: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """What happened so far: [{name, at, reason}]."""
    error: Mapped[dict[str, Any] | None] = mapped_column(JSONB())
    """{code, message} when it failed."""
    principal_id: Mapped[str]
    """Who asked."""
    cancel_requested_at: Mapped[datetime | None]
    """When somebody asked to stop."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    deadline_at: Mapped[datetime | None]
    """After this it needs attention."""
    finished_at: Mapped[datetime | None]
    """When it ended."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Rises with every change."""


@dataclass(frozen=True, slots=True)
class NewOperation:
    """
    An operation to be started.
    """

    type: str
    """`cluster.create`, …"""
    resource_kind: str
    """The noun."""
    resource_id: str
    """Which one."""
    principal_id: str
    """Who asked."""
    tenant_id: str | None = None
    """Whose."""
    project_id: str | None = None
    """The project."""


STEP = """jsonb_build_object('name', {step}, 'reason', {reason},
                     'at', to_char(cp_clock() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))"""
START = text(
    f"""
    INSERT INTO operations (id, tenant_id, project_id, type, resource_kind, resource_id, principal_id, state, reason, steps)
    VALUES (:id, :tenant_id, :project_id, :type, :resource_kind, :resource_id, :principal_id,
      CASE WHEN CAST(:step AS text) = '' THEN 'pending' ELSE 'running' END, CAST(:reason AS text),
      CASE WHEN CAST(:step AS text) = '' THEN '[]'
           ELSE jsonb_build_array({STEP.format(step="CAST(:step AS text)", reason="CAST(:reason AS text)")}) END)
    """
)


def start_operation(session: Session, new: NewOperation, *, first: str = "", reason: str = "") -> str:
    """
    The operation is pending; its id is returned. Raises OperationActive naming the one that is active on the resource. With a `first`
    step it has taken that step already: this is for a resource that was made in this transaction, where nothing can be active.
    """
    active = None if first else find_active(session, new.resource_id)
    if active is not None:
        raise OperationActive(
            f"Operation {active} is active on {new.resource_id}; wait for it or cancel it.",
            operation_id=active,
            resource_id=new.resource_id,
        )
    operation_id = new_id("opr")
    named = {name: getattr(new, name) for name in new.__slots__}
    session.execute(START, named | {"id": operation_id, "step": first, "reason": reason})
    return operation_id


def find_active(session: Session, resource_id: str) -> str | None:
    """
    The id of the operation that is active on the resource, or None.
    """
    return session.execute(
        select(OperationRow.id).where(OperationRow.resource_id == resource_id, OperationRow.state.in_(ACTIVE))
    ).scalar_one_or_none()


def was_done(session: Session, resource_id: str, types: Collection[str]) -> bool:
    """
    Whether an operation of these types was ever begun on the resource.
    """
    query = select(OperationRow.id).where(OperationRow.resource_id == resource_id, OperationRow.type.in_(types)).limit(1)
    return session.execute(query).first() is not None


def active_on(session: Session, resource_ids: Sequence[str]) -> dict[str, str]:
    """
    The ids of the operations that are active on these resources, by resource.
    """
    query = select(OperationRow.resource_id, OperationRow.id)
    rows = session.execute(query.where(OperationRow.resource_id.in_(resource_ids), OperationRow.state.in_(ACTIVE)))
    return {row.resource_id: row.id for row in rows}


def supersede(session: Session, resource_id: str, reason: str) -> str | None:
    """
    The active operation on the resource, if any, has ended as cancelled; its id is returned.
    """
    now = CpClock()
    return session.execute(
        update(OperationRow)
        .where(OperationRow.resource_id == resource_id, OperationRow.state.in_(ACTIVE))
        .values(
            state="cancelled",
            reason=reason,
            cancel_requested_at=now,
            finished_at=now,
            updated_at=now,
            version=OperationRow.version + 1,
        )
        .returning(OperationRow.id)
    ).scalar_one_or_none()


def request_cancel(session: Session, resource_id: str) -> None:
    """
    The wish to stop is on record; it is honoured at the next step boundary.
    """
    session.execute(
        update(OperationRow)
        .where(OperationRow.resource_id == resource_id, OperationRow.state.in_(ACTIVE), OperationRow.cancel_requested_at.is_(None))
        .values(cancel_requested_at=CpClock(), updated_at=CpClock(), version=OperationRow.version + 1)
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """
    What the driver tells the operation of one resource.
    """

    resource_id: str
    """Which one."""
    step: str
    """The state that was reached, or the part of it."""
    reason: str = ""
    """In words."""
    end: str | None = None
    """`succeeded`, `failed`, `cancelled` or `needs_attention`; None: goes on."""
    code: str = ""
    """Stable code when it failed."""


ADVANCE = text(
    f"""
    UPDATE operations o SET
      state = coalesce(CASE
        WHEN p.end_state = 'succeeded' AND o.cancel_requested_at IS NOT NULL AND o.type LIKE '%.create' AND p.step = 'deleted'
        THEN 'cancelled' ELSE p.end_state END, 'running'),
      reason = p.reason,
      steps = CASE WHEN jsonb_array_length(o.steps) < 200
                   THEN o.steps || {STEP.format(step="p.step", reason="p.reason")}
                   ELSE o.steps END,
      error = CASE WHEN p.end_state IN ('failed','needs_attention')
                   THEN jsonb_build_object('code', p.code, 'message', p.reason) ELSE NULL END,
      finished_at = CASE WHEN p.end_state IN ('succeeded','failed','cancelled') THEN cp_clock() END,
      updated_at = cp_clock(), version = o.version + 1
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS p(resource_id text, step text, reason text, end_state text, code text)
    WHERE o.resource_id = p.resource_id AND o.state IN ('pending','running','needs_attention')
    """
)


def advance(session: Session, steps: Sequence[Progress]) -> None:
    """
    The active operations of these resources tell the step, and have ended where it says so; one statement for all.
    """
    if not steps:
        return
    rows = [
        {"resource_id": one.resource_id, "step": one.step, "reason": one.reason, "end_state": one.end, "code": one.code}
        for one in steps
    ]
    session.execute(ADVANCE, {"rows": json.dumps(rows)})
