"""
The whole API on a real socket, as `controlplane api` serves it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from controlplane.app import create_app
from controlplane.serving import Listening
from controlplane.settings import Settings
from tests.conftest import Database

MASTER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
BACKLOG = 512
GENEROUS: dict[str, Any] = {"rate_limit_per_s": 1e6, "rate_limit_burst": 1_000_000}


class Served:
    """
    A serving application.
    """

    def __init__(self, app: FastAPI, port: int) -> None:
        self.app = app
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key: str = "", *, host: str = "", **more: str) -> httpx.Client:
        """
        A client that sends the key, and the host name it is told.
        """
        headers = dict(more)
        if key:
            headers["Authorization"] = f"Bearer {key}"
        if host:
            headers["Host"] = host
        # Loopback without TLS: the authorities that a client reads all the same would take 60 ms of each test.
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)

    def raw(self, sent: bytes) -> bytes:
        """
        What comes back until the connection is closed, for bytes no client would send.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            received = b""
            with suppress(ConnectionError):  # the other side may have heard enough
                line.sendall(sent)
            while True:
                try:
                    piece = line.recv(65536)
                except ConnectionResetError:
                    return received
                if not piece:
                    return received
                received += piece


def settings_for(database: Database, **given: Any) -> Settings:
    """
    Settings on a test database.
    """
    values = {"database_url": SecretStr(database.app_url), "master_key": SecretStr(MASTER_KEY), **GENEROUS, **given}
    return Settings(**values)


@contextmanager
def serving(database: Database, *, at: tuple[str, int] = ("127.0.0.1", 0), **given: Any) -> Iterator[Served]:
    """
    The application serves at the address, or on a port of its own, until the end of the block; the test run's logging stays as it was.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    app = create_app(settings_for(database, **given))
    config = Listening(app, host=at[0], port=at[1], log_config=None, lifespan="on")
    server = uvicorn.Server(config)
    with config.bind_socket() as listener:
        listener.listen(BACKLOG)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Served(app, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            root.handlers[:] = handlers
            root.setLevel(level)
