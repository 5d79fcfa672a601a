"""
The one statement that changes many driven rows at once.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True)
class RowChange:
    """
    What becomes of one driven row.
    """

    id: str
    """Which row."""
    state: str
    """State after."""
    step: str
    """Part of the state."""
    reason: str
    """In words a tenant may read."""
    detail: str
    """For operators."""
    due_in_s: float | None
    """When it is looked at next; None: not until somebody asks."""
    attention: str
    """Why a person is needed."""
    attempts: int
    """Claims that stay counted."""
    longest_stay_s: float | None = None
    """Of the new state; only read when the state changes."""


def write_changes(session: Session, rows: str, changes: Sequence[RowChange]) -> None:
    """
    The rows have changed and their leases are free; the caller holds their locks and has checked the fences.
    """
    statement = text(
        f"""
        UPDATE {rows} t SET
          state = c.state, step = c.step, reason = c.reason, detail = c.detail,
          attention = c.attention, attempts = c.attempts,
          state_since = CASE WHEN t.state <> c.state THEN cp_clock() ELSE t.state_since END,
          deadline_at = CASE WHEN t.state <> c.state
            THEN cp_clock() + make_interval(secs => c.longest_stay_s) ELSE t.deadline_at END,
          due_at = cp_clock() + make_interval(secs => c.due_in_s), lease_until = NULL,
          version = t.version + CASE WHEN t.state <> c.state OR t.reason <> c.reason OR t.attention <> c.attention THEN 1 ELSE 0 END,
          updated_at = cp_clock()
        FROM jsonb_to_recordset(CAST(:changes AS jsonb)) AS c(
          id text, state text, step text, reason text, detail text, attention text, attempts bigint,
          due_in_s double precision, longest_stay_s double precision)
        WHERE t.id = c.id
        """
    )
    session.execute(statement, {"changes": json.dumps([asdict(change) for change in changes])})
