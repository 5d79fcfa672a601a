"""
Circuits: what does not answer is left alone for a while, so that it costs nobody else their turn.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from controlplane.providers.errors import Busy, NotSent

OPEN_AFTER = 5  # consecutive calls without an answer before the circuit opens
OPEN_FOR_S = 5.0
CAP = 16  # calls in flight per provider and process
CAP_WAIT_S = 5.0


@dataclass
class Circuit:
    """
    Whether a provider answers, and how many calls are under way.
    """

    slots: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(CAP))
    """Free places."""
    silent: int = 0
    """Calls in a row that got no answer."""
    closed_again_at: float = 0.0
    """Monotonic time until which nothing is sent."""
    wait_s: float = CAP_WAIT_S
    """How long a place is waited for."""

    def enter(self) -> None:
        """
        A place is taken. Raises NotSent while the circuit is open, Busy when no place comes free.
        """
        if self.silent >= OPEN_AFTER and time.monotonic() < self.closed_again_at:
            raise NotSent("the provider has not answered lately; waiting before the next call", retry_in_s=OPEN_FOR_S)
        if not self.slots.acquire(timeout=self.wait_s):
            raise Busy("too many calls to the provider are under way", retry_in_s=1.0)

    def leave(self, *, answered: bool) -> None:
        """
        The place is free again, and the answer, or its absence, is counted.
        """
        self.slots.release()
        self.silent = 0 if answered else self.silent + 1
        if self.silent >= OPEN_AFTER:
            self.closed_again_at = time.monotonic() + OPEN_FOR_S
