"""
In place of containerd: its socket is there, and nobody is served at it.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from tests.stand_ins.machine import ready

SOCKET = Path("/run/containerd/containerd.sock")


def main(arguments: list[str]) -> None:
    """
    Whoever connects is let go again.
    """
    del arguments
    SOCKET.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        SOCKET.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(SOCKET))
        SOCKET.chmod(0o600)
        listener.listen()
        ready()
        while True:
            listener.accept()[0].close()
