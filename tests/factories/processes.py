"""
Real processes of the product against a test database: API servers on ports of their own, workers, and a broker if one is wanted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from controlplane.local.addresses import LOOPBACK, free_port
from controlplane.local.commands import api_command, worker_command
from controlplane.local.spawn import end, has_ended, last_line, spawn
from controlplane.local.valkey import EmbeddedValkey
from tests.conftest import ROOT, Database

MASTER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
START_S = 90.0
GRACE_S = 20.0
LOOK_S = 0.05
GENEROUS = {"rate_limit_per_s": "1000000", "rate_limit_burst": "1000000"}


def until(holds: Callable[[], bool], words: str, *, within_s: float = START_S) -> None:
    """
    It holds. Raises AssertionError with the words when it did not within the time.
    """
    pause, end_at = threading.Event(), time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_at, f"not within {within_s:.0f} s: {words}"
        pause.wait(LOOK_S)


@dataclass
class Running:
    """
    One process.
    """

    name: str
    """For messages and the log's file."""
    command: Sequence[str]
    """How it is started."""
    environment: Mapping[str, str]
    """What it is told."""
    log_path: Path
    """Where it writes."""
    child: subprocess.Popen[bytes]
    """The process itself."""
    port: int = 0
    """Where it serves; 0: nowhere."""

    @property
    def url(self) -> str:
        """
        Where it serves.
        """
        return f"http://{LOOPBACK}:{self.port}"

    def client(self, key: str = "", *, host: str = "", timeout_s: float = 60.0) -> httpx.Client:
        """
        A client that sends the key, and the host name it is told.
        """
        headers = ({"Authorization": f"Bearer {key}"} if key else {}) | ({"Host": host} if host else {})
        # Idle lines are given up before the server does, for a request on a line that is being closed is lost.
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=200, keepalive_expiry=2.0)
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, limits=limits, verify=False)

    def kill(self) -> None:
        """
        It is gone without having been asked.
        """
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def stop(self) -> None:
        """
        It ended when asked, or was killed when the grace ran out.
        """
        end(self.child, stop_signal=signal.SIGTERM, grace_s=GRACE_S)

    def start_again(self) -> None:
        """
        A new process with the same port and log serves.
        """
        self.child = spawn(self.command, log_path=self.log_path, environment=self.environment, directory=ROOT)
        self.wait_ready()

    def wait_ready(self) -> None:
        """
        It serves. Raises AssertionError with its last words when it ended or did not come up.
        """
        until(lambda: has_ended(self.child) or self._is_ready(), f"{self.name} is up: {last_line(self.log_path)}")
        assert not has_ended(self.child), f"{self.name} ended: {last_line(self.log_path)}"

    def log(self) -> str:
        """
        All it wrote.
        """
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def _is_ready(self) -> bool:
        if not self.port:
            return "the loops run" in self.log()
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


@dataclass
class Processes:
    """
    Everything that runs.
    """

    apis: list[Running] = field(default_factory=list)
    """API servers."""
    workers: list[Running] = field(default_factory=list)
    """Workers."""
    broker_url: str = ""
    """The broker's; empty: none."""
    broker: subprocess.Popen[bytes] | None = None
    """The broker itself, if one was wanted."""

    def kill_broker(self) -> None:
        """
        The broker is gone without having been asked.
        """
        assert self.broker is not None
        end(self.broker, stop_signal=signal.SIGKILL, grace_s=GRACE_S)

    def logs(self) -> str:
        """
        All that all of them wrote.
        """
        return "".join(one.log() for one in (*self.apis, *self.workers))


def environment_for(database: Database, folder: Path, *, broker_url: str = "", **settings: object) -> dict[str, str]:
    """
    The environment of a process of the product: nothing of the test's but the path, and settings on the database.
    """
    told = {
        "database_url": database.app_url,
        "master_key": MASTER_KEY,
        "data_dir": str(folder),
        "broker_url": broker_url,
        "sweep_interval_s": "0.5",
        **GENEROUS,
        **{name: str(value) for name, value in settings.items()},
    }
    plain = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    return plain | {f"CONTROLPLANE_{name.upper()}": value for name, value in told.items()}


def start_api(environment: Mapping[str, str], folder: Path, name: str = "api", *, processes: int = 1) -> Running:
    """
    An API server has been started; it may not serve yet.
    """
    port = free_port()
    return _start(name, api_command(port=port, processes=processes), environment, folder, port)


def start_worker(environment: Mapping[str, str], folder: Path, name: str = "worker") -> Running:
    """
    A worker has been started; it may not sweep yet.
    """
    return _start(name, worker_command(name=name), environment, folder, 0)


def _start(name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path, port: int) -> Running:
    log_path = folder / f"{name}.log"
    child = spawn(command, log_path=log_path, environment=environment, directory=ROOT)
    return Running(name, command, environment, log_path, child, port)


@contextmanager
def processes(
    database: Database, folder: Path, *, apis: int = 2, workers: int = 2, broker: bool = False, **settings: object
) -> Iterator[Processes]:
    """
    So many API servers and workers serve the database until the end of the block; more settings by name.
    """
    running = Processes()
    with ExitStack() as stack:
        if broker:
            running.broker_url, running.broker = stack.enter_context(_broker(folder))
        environment = environment_for(database, folder, broker_url=running.broker_url, **settings)
        for number in range(apis):
            running.apis.append(start_api(environment, folder, f"api-{number}"))
            stack.callback(running.apis[-1].stop)
        for number in range(workers):
            running.workers.append(start_worker(environment, folder, f"worker-{number}"))
            stack.callback(running.workers[-1].stop)
        for one in (*running.apis, *running.workers):
            one.wait_ready()
        yield running


@contextmanager
def _broker(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    server = EmbeddedValkey(folder / "valkey", password="broker-secret-5b1e", log_path=folder / "valkey.log")
    server.prepare()
    child = spawn(server.command(), log_path=server.log_path, environment=server.environment, directory=server.directory)
    try:
        until(server.is_ready, "the broker is up")
        yield server.url(), child
    finally:
        end(child, stop_signal=signal.SIGTERM, grace_s=GRACE_S)
