"""
A worker as the product runs it. SIGUSR1 is the hint that else comes by the broker: a job is due.
"""

from __future__ import annotations

import signal
import threading

from controlplane.kit.logging import configure
from controlplane.settings import Settings
from workers.engine import Engine


def main() -> None:
    """
    Runs until SIGTERM.
    """
    configure("WARNING")
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    engine = Engine(Settings())
    signal.signal(signal.SIGUSR1, lambda *_: engine.wake("job"))
    engine.start()
    told.wait()
    engine.stop()


if __name__ == "__main__":
    main()
