"""
A worker process: the loops, and Celery's consumer beside them in a thread of its own for as long as there is a broker to listen to.

The process belongs to the loops and not to Celery. A consumer may give up for good (closing the connection to a broker that died can
itself fail, and Celery takes that for the end), and is then started anew; and while it tries to reach a broker it hears no signal for up
to half a minute, so that signals are ours.
"""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import threading
from collections.abc import Sequence

from celery.worker import state

from controlplane.kit.logging import configure
from workers.app import app, running, settings
from workers.engine import Engine

log = logging.getLogger(__name__)
AGAIN_S = 2.0
LAST_S = 5.0
"""How long the consumer may take to end; nothing is lost with it."""
QUIET = {"quiet": True, "without_gossip": True, "without_mingle": True, "without_heartbeat": True}
"""Workers find their work in the database and need not know of each other."""


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Returns 0 after SIGTERM or SIGINT, when steps under way are finished and claims given back.
    """
    given = _parse(arguments)
    configure(settings.log_level)
    told = threading.Event()

    def stop(*_: object) -> None:
        state.should_stop = 0  # type: ignore[assignment]
        told.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
    engine = Engine(settings)
    running.append(engine)
    engine.start()
    log.info("the loops run", extra={"worker": given.name})
    listener = threading.Thread(target=_listen, args=(given, told), name="listener", daemon=True)
    listener.start()
    told.wait()
    running.remove(engine)
    engine.stop()
    listener.join(LAST_S)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("workers")
    parser.add_argument("--name", required=True)
    parser.add_argument("--threads", type=int, required=True)
    return parser.parse_args(arguments)


def _listen(given: argparse.Namespace, told: threading.Event) -> None:
    """
    Hints are heard until we are told to stop, with a pause whenever Celery's consumer gave up, or could not even be made.
    """
    name = f"{given.name}@{socket.gethostname()}"
    while not told.is_set():
        try:
            app.Worker(hostname=name, pool_cls="threads", concurrency=given.threads, **QUIET).start()
        except Exception:
            log.exception("the consumer of hints failed")
        if not told.is_set():
            log.error("hints are not heard; the loops go on", extra={"again_s": AGAIN_S})
            told.wait(AGAIN_S)
