"""
What a judge finds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One broken promise.
    """

    promise: str
    """`I1` to `I7`."""
    subject: str
    """The machine, token or id it is about."""
    words: str
    """What is wrong."""
