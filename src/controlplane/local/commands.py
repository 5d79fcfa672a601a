"""
How API and workers are started: here, in the containers and by hand alike.
"""

from __future__ import annotations

import sys

from controlplane.local.addresses import LOOPBACK

GRACEFUL_STOP_S = 5
THREADS = 4


def api_command(*, host: str = LOOPBACK, port: int = 8080, processes: int = 1) -> list[str]:
    """
    Answers the command that serves the API.
    """
    listening = ["--host", host, "--port", str(port), "--workers", str(processes)]
    ending = ["--timeout-graceful-shutdown", str(GRACEFUL_STOP_S)]
    # The edge writes its own request lines and decides itself whom it believes about client addresses; nothing names the server.
    quiet = ["--no-access-log", "--no-server-header", "--no-proxy-headers", "--log-level", "info"]
    return [sys.executable, "-m", "uvicorn", "--factory", "controlplane.app:create_app", *listening, *ending, *quiet]


def worker_command(*, name: str = "worker", threads: int = THREADS, log_level: str = "INFO") -> list[str]:
    """
    Answers the command that drives operations.
    """
    working = ["--pool", "threads", "--concurrency", str(threads), "--hostname", f"{name}@%h"]
    # Workers find their work in the database and need not know of each other.
    quiet = ["--loglevel", log_level, "--without-gossip", "--without-mingle", "--without-heartbeat"]
    return [sys.executable, "-m", "celery", "-A", "workers.app:app", "worker", *working, *quiet]
