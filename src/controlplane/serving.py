"""
The API as a server process loads and serves it: `python -m controlplane.serving`.
"""

import argparse
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from controlplane.kit.loading import load

if TYPE_CHECKING:
    from fastapi import FastAPI

KEEP_ALIVE_S = 75
GRACEFUL_STOP_S = 5
FAILED_TO_START = 3
APP = "controlplane.serving:create_app"


def create_app() -> "FastAPI":
    """
    The application of this process's settings.
    """
    app: FastAPI = load("controlplane.app").create_app()
    return app


class Listening(uvicorn.Config):
    """
    How the API is served, whatever the number of processes.
    """

    def __init__(self, app: Any, *, host: str, port: int, **more: Any) -> None:
        super().__init__(
            app,
            host=host,
            port=port,
            # The edge writes its own request lines and decides itself whom it believes about client addresses; nothing names the server.
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            # Longer than load balancers keep an idle line (60 s is usual): the side that may send must be the side that closes.
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACEFUL_STOP_S,
            **more,
        )

    def bind_socket(self) -> socket.socket:
        """
        The socket that all processes accept from. What it accepts sends at once: otherwise the body of an answer waits until the client has
        acknowledged its head, 40 ms on Linux. asyncio sees to that only for sockets that were made with their protocol named.
        """
        listener = super().bind_socket()
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener


def serve(app: str, *, host: str, port: int, processes: int) -> int:
    """
    Serves until a signal ends it; answers the exit code.
    """
    config = Listening(app, host=host, port=port, factory=app == APP, workers=processes, log_level="info")
    if processes > 1:
        Multiprocess(config, sockets=[config.bind_socket()]).run()
        return 0
    server = uvicorn.Server(config)
    try:
        server.run()
    except KeyboardInterrupt:
        return 0
    return 0 if server.started else FAILED_TO_START


def main(given: list[str]) -> int:
    """
    Serves as the command line says.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--app", default=APP, help="another application, served in the same way: what a benchmark compares with")
    asked = parser.parse_args(given)
    return serve(asked.app, host=asked.host, port=asked.port, processes=asked.processes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
