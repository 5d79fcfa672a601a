"""
What every benchmark that needs a running product stands on: a real PostgreSQL, a seeded region, processes, and what they use.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Engine, text

from controlplane import migrations, seeding
from controlplane.kit.db import make_engine
from controlplane.local.addresses import LOOPBACK
from controlplane.local.postgres import EmbeddedPostgres
from controlplane.local.spawn import end, spawn

ROOT = Path(__file__).resolve().parents[1]
MASTER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = resource.getpagesize()
READY_S = 90.0


@dataclass
class Stage:
    """
    A seeded database and where its server is.
    """

    owner_url: str
    """Connects as the owner, past every wall."""
    app_url: str
    """Connects as the product does."""
    owner: Engine
    """The owner's engine."""
    folder: Path
    """Scratch space; gone afterwards."""
    postmaster: int
    """Process id of the database server."""
    keys: seeding.DemoKeys
    """Keys of the region's people."""

    def environment(self, **settings: object) -> dict[str, str]:
        """
        What a process of the product is told; limits of requests are out of the way.
        """
        told = {
            "database_url": self.app_url,
            "master_key": MASTER_KEY,
            "data_dir": str(self.folder),
            "rate_limit_per_s": "1000000",
            "rate_limit_burst": "1000000",
            **{name: str(value) for name, value in settings.items()},
        }
        return plain_environment() | {f"CONTROLPLANE_{name.upper()}": value for name, value in told.items()}

    def rows(self, sql: str, **given: Any) -> list[Any]:
        """
        The rows of a query.
        """
        with self.owner.connect() as connection:
            return list(connection.execute(text(sql), given).all())

    def run(self, sql: str, **given: Any) -> None:
        """
        The statement is committed; no trigger and no foreign key was looked at.
        """
        with self.owner.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.execute(text(sql), given)


def plain_environment() -> dict[str, str]:
    """
    Nothing of the caller's environment but the path.
    """
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


@contextmanager
def staged(*, fleet: str = "cloud-10k", profile: str = "instant", durable: bool = True) -> Iterator[Stage]:
    """
    A database of its own with the region in it, its people without limits, and its nodes free; all of it is gone afterwards.
    """
    folder = Path(tempfile.mkdtemp(prefix="cpbench-", dir="/var/tmp"))  # the server's account must reach it
    folder.chmod(0o711)
    server = EmbeddedPostgres(folder / "pg", password=secrets.token_hex(8), log_path=folder / "postgres.log", durable=durable)
    try:
        server.prepare()
        owner_url, password = server.start(), secrets.token_hex(8)
        migrations.upgrade(owner_url)
        migrations.ensure_app_role(owner_url, "controlplane_app", password)
        app_url = f"postgresql://controlplane_app:{password}@{owner_url.rsplit('@', 1)[1]}"
        engine = make_engine(app_url, pool_size=2)
        region = seeding.Region(folder / "region.sqlite", fleet=fleet, profile=profile)
        keys = seeding.sow(engine, region, "USD", {})
        engine.dispose()
        owner = make_engine(owner_url, pool_size=2)
        postmaster = int((server.data / "postmaster.pid").read_text().split("\n", 1)[0])
        stage = Stage(owner_url, app_url, owner, folder, postmaster, keys)
        stage.run("UPDATE quotas SET ceiling = NULL")
        yield stage
        owner.dispose()
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)


def free_nodes(stage: Stage) -> None:
    """
    Every node is available: the shortcut past inspection, checks and wipe.
    """
    stage.run(
        "UPDATE nodes SET state = 'available', due_at = NULL, deadline_at = NULL, reason = 'Wiped and verified.', task_id = 'seed'"
    )
    stage.run(
        "INSERT INTO wipes (id, node_id, requested_at, finished_at, verified) "
        "SELECT 'wip_' || id, id, cp_clock() - interval '1 hour', cp_clock(), true FROM nodes"
    )
    analyze(stage)


def analyze(stage: Stage) -> None:
    """
    The planner knows the tables' sizes, as it would on a database that lives.
    """
    with stage.owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")


@contextmanager
def started(name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """
    The process runs until the end of the block.
    """
    child = spawn(command, log_path=folder / f"{name}.log", environment=environment, directory=ROOT)
    try:
        yield child
    finally:
        end(child, stop_signal=15, grace_s=20.0)


def wait_for(url: str, child: subprocess.Popen[bytes], log_path: Path) -> None:
    """
    The URL answers. Raises RuntimeError with the process's last words when it does not.
    """
    end_at = time.monotonic() + READY_S
    while time.monotonic() < end_at and child.poll() is None:
        try:
            if httpx.get(url, timeout=2).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} does not answer: {log_path.read_text()[-2000:]}")


def cpu_s(pid: int) -> float:
    """
    Processor seconds that the process has used, all its threads together: what `getrusage` would tell it.
    """
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def postgres_cpu_s(postmaster: int) -> float:
    """
    Processor seconds of the database server and of every backend, those that ended among them.
    """
    ended = _stat(postmaster)
    total = cpu_s(postmaster) + (int(ended[13]) + int(ended[14])) / TICKS_PER_S
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            try:
                if int(_stat(int(one.name))[1]) == postmaster:
                    total += cpu_s(int(one.name))
            except (OSError, IndexError):
                continue
    return total


def resident_mib(pid: int) -> float:
    """
    Memory of the process that is in use now.
    """
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def request(method: str, path: str, *, key: str = "", body: object = None, **headers: str) -> bytes:
    """
    One HTTP/1.1 request on a connection that stays open.
    """
    sent = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: bench.example"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += ["Content-Type: application/json", f"Content-Length: {len(sent)}"] if sent else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + sent


class Line:
    """
    One connection that asks and waits for the answer, with next to no work of its own.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, sent: bytes) -> tuple[int, bytes]:
        """
        Status and body.
        """
        self._socket.sendall(sent)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += self._more()
        return int(head[9:12]), body

    def close(self) -> None:
        """
        The connection is gone.
        """
        self._socket.close()

    def _more(self) -> bytes:
        piece = self._socket.recv(262_144)
        if not piece:
            raise ConnectionError("the server closed the connection")
        return piece


def ask_all(port: int, sent: Sequence[bytes], *, expected: int, connections: int = 4) -> None:
    """
    Every request was answered with the expected status, over so many connections at once. Raises AssertionError for another one.
    """
    waiting, lock, wrong = iter(sent), threading.Lock(), []

    def drive() -> None:
        line = Line(port)
        while not wrong:
            with lock:
                one = next(waiting, None)
            if one is None:
                break
            status, body = line.ask(one)
            if status != expected:
                wrong.append((status, body))
        line.close()

    threads = [threading.Thread(target=drive) for _ in range(connections)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong, wrong[0]


def circumstances(seed: int | None = None) -> dict[str, object]:
    """
    Where and when this was measured.
    """
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ""
    )
    return {
        "commit": commit.stdout.strip(),
        "seed": seed,
        "machine": f"{os.cpu_count()} cores {model or platform.machine()}",
        "load": round(os.getloadavg()[0], 1),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
    }


def report(result: Mapping[str, object]) -> None:
    """
    One line of JSON is printed.
    """
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
