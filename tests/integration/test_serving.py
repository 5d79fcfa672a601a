"""
How the API listens: one process or several on one port.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import httpx

from controlplane.serving import Listening
from tests.conftest import Database
from tests.factories.processes import environment_for, start_api, until

PATIENCE_S = 60.0
SERVERS = re.compile(r"Started server process \[(\d+)\]")


def test_what_is_accepted_sends_at_once() -> None:
    """An answer's body does not wait until the client has acknowledged its head: what the shared socket accepts has no delay."""
    with Listening("nobody:app", host="127.0.0.1", port=0).bind_socket() as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_several_processes_serve_one_port_and_end_together(database: Database, tmp_path: Path) -> None:
    """Two servers answer on one port; one that is killed is replaced; a signal ends all."""
    api = start_api(environment_for(database, tmp_path), tmp_path, processes=2)
    try:
        api.wait_ready()
        until(lambda: len(set(SERVERS.findall(api.log()))) == 2, "both serve", within_s=PATIENCE_S)
        victim = int(SERVERS.findall(api.log())[0])
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(set(SERVERS.findall(api.log()))) == 3, "another came", within_s=PATIENCE_S)
        with api.client() as client:
            assert client.get("/readyz").status_code == httpx.codes.OK
    finally:
        api.stop()
    assert api.child.returncode == 0
