"""
Ports on the loopback address, and the URLs of databases.
"""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import quote, unquote, urlsplit, urlunsplit

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


def with_credentials(url: str, user: str, password: str) -> str:
    """
    Answers the same database's URL for another user.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{host}"))


def url_user(url: str) -> tuple[str, str]:
    """
    Answers user and password of a database's URL.
    """
    parts = urlsplit(url)
    return unquote(parts.username or ""), unquote(parts.password or "")
