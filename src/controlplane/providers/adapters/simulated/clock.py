"""
The simulated peer's clock: the caller's, or one kept in the world's file that tests can freeze and move.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from controlplane.providers.adapters.simulated.durations import MICROS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(instant: datetime) -> int:
    """
    Whole microseconds since 1970 UTC.
    """
    return (instant - EPOCH) // _MICROSECOND


def from_us(micros: int) -> datetime:
    """
    The instant in UTC.
    """
    return EPOCH + timedelta(microseconds=micros)


def instant_or_none(micros: int | None) -> datetime | None:
    """
    The instant in UTC, or None for none.
    """
    return None if micros is None else from_us(micros)


def real_now_us() -> int:
    """
    This machine's own clock.
    """
    return to_us(datetime.now(UTC))


class Clock:
    """
    Tells what time it is in the world.
    """

    def __init__(self, *, kind: str, now: Callable[[], datetime]) -> None:
        self._kind = kind
        self._now = now

    def now_us(self, db: sqlite3.Connection) -> int:
        """
        The world's time: `input` asks the caller, `file` asks the file.
        """
        return to_us(self._now()) if self._kind == "input" else file_now_us(db)


def file_now_us(db: sqlite3.Connection) -> int:
    """
    The time by the file's own clock: it runs at `rate` from the instant it was last set; rate 0 is frozen.
    """
    row = db.execute("SELECT real_at, virtual_at, rate FROM clock").fetchone()
    if row["rate"] == 0:
        return int(row["virtual_at"])
    return int(row["virtual_at"] + (real_now_us() - row["real_at"]) * row["rate"])


def set_file_clock(db: sqlite3.Connection, *, virtual_us: int, rate: float) -> None:
    """
    The file's clock stands at the given instant and runs at `rate` from now on.
    """
    db.execute(
        "INSERT INTO clock (id, real_at, virtual_at, rate) VALUES (1, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
        " SET real_at = excluded.real_at, virtual_at = excluded.virtual_at, rate = excluded.rate",
        (real_now_us(), virtual_us, rate),
    )


def advance_file_clock(db: sqlite3.Connection, seconds: float) -> int:
    """
    The file's clock has moved on by the seconds, at its present rate; the new time is returned.
    """
    rate = float(db.execute("SELECT rate FROM clock").fetchone()["rate"])
    later = file_now_us(db) + round(seconds * MICROS)
    set_file_clock(db, virtual_us=later, rate=rate)
    return later
