"""
What a step or a decision says about one resource. Pure: steps import this, never the driver that opens transactions.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Advance:
    """
    The resource moves on to another state.
    """

    to: str
    """The next state; the table must allow the move."""
    reason: str = ""
    """Why, in words a tenant may read."""
    facts: Any = None
    """A frozen value of the room's own that its `apply` stores in the same transaction."""


@dataclass(frozen=True, slots=True)
class Wait:
    """
    The resource stays where it is and is looked at again.
    """

    reason: str
    """What it waits for, in words a tenant may read."""
    retry_in_s: float
    """Earliest next look, in seconds; infinity: not until somebody asks."""
    step: str | None = None
    """The part of the state it has reached; None keeps the present one."""
    facts: Any = None
    """As in Advance."""
    detail: str = ""
    """For operators only: the peer's own words."""


@dataclass(frozen=True, slots=True)
class Fail:
    """
    The resource cannot go on; it moves to `to`, or to the failure state its table names for the present one.
    """

    code: str
    """Stable code, shown as an issue."""
    message: str
    """In words a tenant may read."""
    facts: Any = None
    """As in Advance."""
    detail: str = ""
    """For operators only."""
    to: str = ""
    """Where it leads when what was asked for failed and the resource is as it was; empty: where the table says."""


@dataclass(frozen=True, slots=True)
class Gone:
    """
    The provider was seen without it: the resource moves to its table's last state.
    """

    facts: Any = None
    """As in Advance."""


Outcome = Advance | Wait | Fail | Gone
