"""
Turns Ctrl-C, SIGTERM and SIGHUP into one exception in the main thread, at points where it does no harm.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """
    Somebody wants this process to end; not an error, so nothing that catches errors catches it.
    """


class Interrupts:
    """
    While entered, a signal raises StopRequested once; inside `held` it waits for the end of that block.
    """

    def __init__(self) -> None:
        self._holds = 0
        self._raised = False
        self.count = 0
        """Signals so far: a second one means that the person is in a hurry."""

    @contextlib.contextmanager
    def entered(self) -> Iterator[Interrupts]:
        """
        Signals are ours inside the block and what they were after it.
        """
        before = {each: signal.signal(each, self._note) for each in SIGNALS}
        try:
            yield self
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """
        No exception is raised by a signal inside the block, so that what is begun there is also recorded.
        """
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
        self._raise_if_due()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._raise_if_due()

    def _raise_if_due(self) -> None:
        if self.count and not self._holds and not self._raised:
            self._raised = True
            raise StopRequested
