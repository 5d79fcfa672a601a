"""
The columns of a row that is driven through states: the row is the queue.
"""

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class Moving:
    """
    Columns shared by everything the lifecycle engine drives.
    """

    state: Mapped[str]
    """As in the kind's state table."""
    step: Mapped[str] = mapped_column(server_default="")
    """The part of the state that was reached."""
    reason: Mapped[str] = mapped_column(server_default="")
    """Why it is here or what it waits for, in words a tenant may read."""
    detail: Mapped[str] = mapped_column(server_default="")
    """The provider's own words: operators only."""
    state_since: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it came to this state."""
    deadline_at: Mapped[datetime | None]
    """After this it needs attention; none for settled states."""
    due_at: Mapped[datetime | None] = mapped_column(server_default=CpClock())
    """When it is next looked at; none: not until somebody asks."""
    lease_until: Mapped[datetime | None]
    """Until when the present claim holds."""
    fence: Mapped[int] = mapped_column(server_default="0")
    """Raised by every claim; a write under an older fence changes nothing."""
    attempts: Mapped[int] = mapped_column(server_default="0")
    """Claims since the last answer."""
    wakes: Mapped[int] = mapped_column(server_default="0")
    """Raised by whoever wants it looked at soon, so that a step under way does not lose the call."""
    attention: Mapped[str] = mapped_column(server_default="")
    """Why a person is needed (`deadline`, `attempts`, a code); empty when none is."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag; rises with every change a caller can see."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class StateMoveRow(Base):
    """
    A legal move, copied from the code's state tables at every migration; a trigger refuses every other one.
    """

    __tablename__ = "state_moves"

    kind: Mapped[str] = mapped_column(primary_key=True)
    """The noun."""
    before: Mapped[str] = mapped_column(primary_key=True)
    """From."""
    after: Mapped[str] = mapped_column(primary_key=True)
    """To."""
