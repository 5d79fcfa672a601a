"""
A door before a server that can be closed, or go deaf: TCP passed on as it comes, until it is told otherwise.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LOOPBACK = "127.0.0.1"


class FaultDoor:
    """
    Where clients go instead of the server.
    """

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._watches: set[socket.socket] = set()
        self._muted: set[socket.socket] = set()
        self._away = False
        self._listener = socket.create_server((LOOPBACK, 0))
        self._listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # and so has whatever it accepts: small pieces go on at once
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{LOOPBACK}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def mute(self) -> None:
        """
        Watches that are open now stay open, and nothing of the server comes through them any more.
        """
        with self._lock:
            self._muted.update(self._watches)

    def leave(self) -> None:
        """
        Open connections are cut, and new ones are cut at once.
        """
        with self._lock:
            self._away = True
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                _close(one)

    def come_back(self) -> None:
        """
        New connections are let through.
        """
        with self._lock:
            self._away = False

    def close(self) -> None:
        """
        Nothing is listened to any more.
        """
        self.leave()
        _close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                away = self._away
            if away:
                _close(client)
                continue
            server = socket.create_connection((LOOPBACK, self._behind))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append((client, server))
            threading.Thread(target=self._pass, args=(client, server, client), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, client), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65_536):
                with self._lock:
                    if source is client and b"watch=true" in piece:
                        self._watches.add(client)
                    muted = client in self._muted
                if not (muted and source is not client):
                    sink.sendall(piece)
        with self._lock:
            muted = client in self._muted
        if not muted or source is client:
            _close(sink)
            _close(source)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def fault_door(behind: int) -> Iterator[FaultDoor]:
    """
    A door before the port of this machine.
    """
    door = FaultDoor(behind)
    try:
        yield door
    finally:
        door.close()
