"""
How API and workers are started: here, in the containers and by hand alike.
"""

from __future__ import annotations

import sys

from controlplane.local.addresses import LOOPBACK

THREADS = 4


def api_command(*, host: str = LOOPBACK, port: int = 8080, processes: int = 1) -> list[str]:
    """
    Answers the command that serves the API.
    """
    listening = ["--host", host, "--port", str(port), "--processes", str(processes)]
    return [sys.executable, "-m", "controlplane.serving", *listening]


def worker_command(*, name: str = "worker", threads: int = THREADS) -> list[str]:
    """
    Answers the command that drives operations.
    """
    return [sys.executable, "-m", "workers", "--name", name, "--threads", str(threads)]
