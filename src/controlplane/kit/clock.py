"""
Time. Rows are stamped by the database (`cp_clock()`); processes use a `Clock` only for durations and for adapters.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import DateTime
from sqlalchemy.sql.functions import GenericFunction

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """
    This process's idea of the present, in UTC; never stored as a fact about a resource.
    """
    return datetime.now(UTC)


class CpClock(GenericFunction[datetime]):
    """
    The database's clock inside a statement: `clock_timestamp()` in production, a virtual one where a test replaces the function.
    """

    type = DateTime(timezone=True)
    name = "cp_clock"
    inherit_cache = True


def rfc3339(moment: datetime) -> str:
    """
    The moment in UTC with `Z`, microseconds kept when there are any.
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
