"""
The embedded servers: made once, kept over crashes, closed to strangers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from controlplane.local import addresses, confinement, spawn
from controlplane.local.errors import LocalError
from controlplane.local.keepsakes import Keepsakes
from controlplane.local.postgres import OWNER, EmbeddedPostgres, release
from controlplane.local.supervisor import ChildSpec, Supervisor
from controlplane.local.valkey import EmbeddedValkey

PASSWORD = "p ss/w@rd"
PATIENCE_S = 20.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the servers' user can reach: pytest's own are closed to others."""
    made = Path(tempfile.mkdtemp(prefix="controlplane-test-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    """A database cluster that nobody has started yet."""
    made = EmbeddedPostgres(folder / "postgres", password=PASSWORD, log_path=folder / "log")
    yield made
    made.remove()


def test_postgres_keeps_what_was_committed_over_a_crash(postgres: EmbeddedPostgres) -> None:
    """It is made once; after kill -9 the next start finds the rows and no stale lock file in its way."""
    assert postgres.prepare()
    with psycopg.connect(postgres.start()) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
    lock = postgres.data / "postmaster.pid"
    number = int(lock.read_text().split()[0])
    os.kill(number, signal.SIGKILL)
    assert spawn.wait_for_exit(number, deadline_s=PATIENCE_S)
    postgres.stop()
    assert lock.exists()
    assert not postgres.prepare()
    with psycopg.connect(postgres.start()) as connection:
        assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_postgres_never_runs_as_root_nor_lets_in_without_password(postgres: EmbeddedPostgres) -> None:
    """The server belongs to an unprivileged user and asks everybody for the password."""
    postgres.prepare()
    postgres.start()
    number = int((postgres.data / "postmaster.pid").read_text().split()[0])
    assert Path(f"/proc/{number}").stat().st_uid != 0
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://{OWNER}@{addresses.LOOPBACK}:{postgres.port}/controlplane", connect_timeout=5)


def test_postgres_says_when_the_password_was_lost(postgres: EmbeddedPostgres, folder: Path) -> None:
    """Data whose password is gone leads to advice, not to a wait."""
    postgres.prepare()
    stranger = EmbeddedPostgres(folder / "postgres", password="another", log_path=folder / "log")
    stranger.prepare()
    with pytest.raises(LocalError, match="another password"):
        stranger.start()
    stranger.stop()


def test_postgres_refuses_data_of_another_version(postgres: EmbeddedPostgres) -> None:
    """Data that an older server wrote is named and left alone."""
    postgres.prepare()
    (postgres.data / "PG_VERSION").write_text("15\n")
    with pytest.raises(LocalError, match="PostgreSQL 15"):
        postgres.prepare()


def test_half_made_data_is_made_again(postgres: EmbeddedPostgres, folder: Path) -> None:
    """A first start that was cut short leaves nothing in the way of the second."""
    home = confinement.home_for(folder / "postgres", postgres.account)
    (home / "data.new").mkdir()
    (home / "data.new" / "PG_VERSION").write_text("18\n")
    assert postgres.prepare()


def test_lock_file_with_the_number_of_a_stranger_is_stale(folder: Path) -> None:
    """A number that now belongs to another process keeps nobody out, and that process is left in peace."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        (folder / "postmaster.pid").write_text(f"{stranger.pid}\n{folder}\n")
        release(folder)
        assert not (folder / "postmaster.pid").exists()
        assert stranger.poll() is None
        stranger.kill()


def test_server_left_by_a_killed_supervisor_is_stopped_first(postgres: EmbeddedPostgres) -> None:
    """A server that still runs on the data is ended before the next one starts."""
    postgres.prepare()
    postgres.start()
    number = int((postgres.data / "postmaster.pid").read_text().split()[0])
    release(postgres.data)
    assert not spawn.is_alive(number)


def test_killed_postgres_is_started_again_under_the_supervisor(postgres: EmbeddedPostgres) -> None:
    """The supervisor brings the database back on the same address."""
    postgres.prepare()
    lines: list[str] = []
    supervisor = Supervisor(report=lines.append)
    supervisor.start(
        ChildSpec(
            name="PostgreSQL",
            command=postgres.command(),
            environment=postgres.environment,
            directory=postgres.directory,
            log_path=postgres.log_path,
            account=postgres.account,
            is_ready=postgres.is_ready,
            before_restart=lambda: release(postgres.data),
            stop_signal=signal.SIGINT,
            orphan_signal=signal.SIGINT,
        )
    )
    try:
        number = supervisor.pid("PostgreSQL")
        assert number is not None
        os.kill(number, signal.SIGKILL)
        assert spawn.wait_for_exit(number, deadline_s=PATIENCE_S)
        while supervisor.pid("PostgreSQL") in {None, number} or not postgres.is_ready():
            supervisor.tend()
        assert "PostgreSQL was killed by SIGKILL" in lines[0]
    finally:
        supervisor.stop()
    assert not (postgres.data / "postmaster.pid").exists()


def test_server_files_are_copied_where_its_user_cannot_reach_them(folder: Path) -> None:
    """Below a closed folder both the data and the files go elsewhere; the user of this process needs neither."""
    nobody = spawn.Account(user="nobody", uid=65534, gid=65534)
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    assert not confinement.can_reach(closed / "postgres", nobody)
    assert confinement.can_reach(folder / "postgres", nobody)
    assert confinement.can_reach(closed / "postgres", None)
    assert confinement.reachable_copy(closed, ["."], "unused", None) == closed


def test_valkey_asks_for_its_password_and_forgets_nothing_when_full(folder: Path) -> None:
    """Strangers are refused, and a full server refuses instead of dropping messages."""
    server = EmbeddedValkey(folder / "valkey", password=PASSWORD, log_path=folder / "log")
    server.prepare()
    supervisor = Supervisor(report=print)
    try:
        supervisor.start(
            ChildSpec(
                name="Valkey",
                command=server.command(),
                environment=server.environment,
                directory=server.directory,
                log_path=server.log_path,
                is_ready=server.is_ready,
            )
        )
        with redis.Redis.from_url(server.url()) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with (
            redis.Redis(host=addresses.LOOPBACK, port=server.port) as stranger,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            stranger.ping()
        assert PASSWORD not in Path(f"/proc/{supervisor.pid('Valkey')}/cmdline").read_text()
    finally:
        supervisor.stop()


def test_keepsakes_are_private_and_made_once(tmp_path: Path) -> None:
    """Passwords and keys survive the process and can be read by their owner only."""
    path = tmp_path / "secrets.json"
    first = Keepsakes(path)
    password, key = first.password("app"), first.master_key()
    assert path.stat().st_mode & 0o777 == 0o600
    again = Keepsakes(path)
    assert (again.password("app"), again.master_key()) == (password, key)
    assert again.password("owner") != password


def test_damaged_keepsakes_are_never_overwritten(tmp_path: Path) -> None:
    """A file that cannot be read stops the start: a new master key would make all data unreadable."""
    path = tmp_path / "secrets.json"
    path.write_text("{")
    with pytest.raises(LocalError, match="damaged"):
        Keepsakes(path)
    assert path.read_text() == "{"
