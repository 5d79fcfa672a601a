"""
Sending hints from the API: in the background, bounded, never in the way of a request.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from celery import Celery

log = logging.getLogger(__name__)
ROOM = 1000
STOP_S = 2.0


class Nudger:
    """
    A thread that publishes; when the broker is slow, hints are dropped and counted.
    """

    def __init__(self, broker_url: str) -> None:
        self.dropped = 0
        """Hints that found no room or no broker."""
        self._hints: queue.Queue[tuple[str, str] | None] = queue.Queue(ROOM)
        self._celery = Celery("controlplane", broker=broker_url)
        self._celery.conf.update(
            task_ignore_result=True,
            task_default_queue="control",
            broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 1, "max_retries": 0},
        )
        self._thread = threading.Thread(target=self._publish, name="nudger", daemon=True)
        self._thread.start()

    def __call__(self, hints: list[tuple[str, str]]) -> None:
        """
        The hints will be sent, or dropped.
        """
        for hint in hints:
            try:
                self._hints.put_nowait(hint)
            except queue.Full:
                self.dropped += 1

    def stop(self) -> None:
        """
        Nothing more is sent.
        """
        with contextlib.suppress(queue.Full):
            self._hints.put_nowait(None)
        self._thread.join(STOP_S)

    def _publish(self) -> None:
        while (hint := self._hints.get()) is not None:
            try:
                self._celery.send_task("look", args=hint, retry=False, ignore_result=True, expires=30)
            except Exception as error:  # noqa: BLE001 - whatever the broker does, the API goes on
                self.dropped += 1
                if self.dropped % 100 == 1:
                    log.warning("hints are not sent", extra={"error": type(error).__name__, "dropped": self.dropped})


def build(broker_url: str) -> tuple[Callable[[list[tuple[str, str]]], None], Callable[[], None]]:
    """
    A nudge and what stops it.
    """
    nudger = Nudger(broker_url)
    return nudger, nudger.stop
