"""
A worker as the product runs it, whose controllers are those of the rack in the file it is given. SIGUSR1 is the hint that else comes by the
broker: something is due.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from benchmarks.deploys.rack import Rack, rack_tools
from controlplane.kit.clock import utc_now
from controlplane.kit.logging import configure
from controlplane.settings import Settings
from workers.engine import Engine


def main(path: str, call_s: str) -> None:
    """
    Runs until SIGTERM.
    """
    settings = Settings()
    configure("WARNING")
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    engine = Engine(settings, rack_tools(Rack(Path(path), call_s=float(call_s)), now=utc_now))
    signal.signal(signal.SIGUSR1, lambda *_: engine.wake("node"))
    engine.start()
    told.wait()
    engine.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
