"""
How API and workers are started: here, in the containers and by hand alike.
"""

from __future__ import annotations

import sys

from controlplane.local.addresses import LOOPBACK

KEEP_ALIVE_S = 75
GRACEFUL_STOP_S = 5
THREADS = 4


def api_command(*, host: str = LOOPBACK, port: int = 8080, processes: int = 1) -> list[str]:
    """
    Answers the command that serves the API.
    """
    listening = ["--host", host, "--port", str(port), "--workers", str(processes)]
    # Longer than load balancers keep an idle line (60 s is usual): the side that may send must be the side that closes.
    ending = ["--timeout-graceful-shutdown", str(GRACEFUL_STOP_S), "--timeout-keep-alive", str(KEEP_ALIVE_S)]
    # The edge writes its own request lines and decides itself whom it believes about client addresses; nothing names the server.
    quiet = ["--no-access-log", "--no-server-header", "--no-proxy-headers", "--log-level", "info"]
    return [sys.executable, "-m", "uvicorn", "--factory", "controlplane.serving:create_app", *listening, *ending, *quiet]


def worker_command(*, name: str = "worker", threads: int = THREADS) -> list[str]:
    """
    Answers the command that drives operations.
    """
    return [sys.executable, "-m", "workers", "--name", name, "--threads", str(threads)]
