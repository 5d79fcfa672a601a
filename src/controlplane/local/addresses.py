"""
Ports on the loopback address.
"""

from __future__ import annotations

import contextlib
import socket

LOOPBACK = "127.0.0.1"
CONNECT_TIMEOUT_S = 1.0


def port_is_free(port: int, host: str = LOOPBACK) -> bool:
    """
    Tells whether a server could listen on the port now.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port(preferred: int | None = None) -> int:
    """
    Answers a loopback port that is free now: the preferred one if it can be had.
    """
    if preferred and port_is_free(preferred):
        return preferred
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def answers(port: int, host: str = LOOPBACK) -> bool:
    """
    Tells whether something accepts connections on the port.
    """
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S):
        return True
    return False
