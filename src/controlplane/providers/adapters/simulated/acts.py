"""
One call at the simulated peer: its moment, and what a fault makes of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.providers.adapters.simulated.durations import MICROS, duration_us

OUR_PREFIX = "controlplane:"
"""How the reason of a drain of ours begins; other drains belong to an administrator."""


@dataclass(slots=True)
class Act:
    """
    What an effect needs to know and may say.
    """

    db: sqlite3.Connection
    """The open transaction."""
    now: int
    """When the peer got the call."""
    seq: int
    """The call's place in the ledger; rows that the call makes are numbered by it, so that ids tell the order."""
    seed: int
    """The world's seed."""
    profile: str
    """The latency profile."""
    deployment: str
    """Which installation asks: its marks."""
    requeue: bool = True
    """Whether jobs that lose a node are queued again."""
    need_deployment: bool = True
    """Whether members must be deployed to be up."""
    fault: str = ""
    """The fault that is played on this call, by name."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The fault's numbers."""
    changed: bool = False
    """Set by an effect that changed the world."""

    @property
    def start(self) -> int:
        """
        When the work begins: at once, or later when the peer is slow.
        """
        return self.now + (self.wait_us("seconds") if self.fault == "delay" else 0)

    def wait_us(self, name: str) -> int:
        """
        A number of seconds of the fault, in microseconds.
        """
        return round(float(self.params[name]) * MICROS)

    def takes(self, operation: str, target: str, token: str) -> int:
        """
        Microseconds the operation takes.
        """
        return duration_us(self.profile, operation, seed=self.seed, target=target, token=token)
