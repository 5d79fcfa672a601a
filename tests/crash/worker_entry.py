"""
A worker that dies whenever it is about to make a call for the resource whose id is in the file named by POISON: for tests only.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from pathlib import Path

from controlplane.kit import crashpoints
from workers.run import main


def die_for(poison: Path, point: str) -> None:
    """
    Returns unless the step under way is about the poisoned resource.
    """
    if point != "call.before" or not poison.exists():
        return
    wanted, frame = poison.read_text(encoding="ascii"), inspect.currentframe()
    while frame is not None:
        if getattr(frame.f_locals.get("snapshot"), "id", None) == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        frame = frame.f_back


if __name__ == "__main__":
    crashpoints.install(lambda point: die_for(Path(os.environ["POISON"]), point))
    sys.exit(main(sys.argv[1:]))
