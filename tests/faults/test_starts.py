"""
Migrations: many at once, killed half-way, and behind readers that hold on to their tables.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from controlplane import migrations
from controlplane.local.postgres import throwaway_postgres
from tests.conftest import ROOT
from tests.factories.processes import until

STARTS, KILLS = 8, 5
ADVISORY = """
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
MIGRATE = "import sys; from controlplane import migrations; migrations.upgrade(sys.argv[1])"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """
    The owner's way into a server of this file's own.
    """
    with throwaway_postgres() as url:
        yield url


@pytest.fixture
def empty(server: str, request: pytest.FixtureRequest) -> str:
    """
    The owner's way into an empty database.
    """
    name = "m" + str(abs(hash(request.node.name)))[:12]
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    return server.rsplit("/", 1)[0] + f"/{name}"


def start(url: str) -> subprocess.Popen[bytes]:
    """
    A process that migrates.
    """
    return subprocess.Popen([sys.executable, "-c", MIGRATE, url], cwd=ROOT, stderr=subprocess.PIPE)


def at_rest(url: str) -> int:
    """
    How many advisory locks are held while nobody works.
    """
    with psycopg.connect(url) as connection:
        row = connection.execute(ADVISORY).fetchone()
        assert row is not None
        return int(row[0])


def waiters(url: str) -> int:
    """
    How many locks on tables are waited for.
    """
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND NOT granted").fetchone()
        assert row is not None
        return int(row[0])


def test_many_processes_that_start_at_once_migrate_once(empty: str) -> None:
    """BR-131: eight processes on an empty database: all succeed, the schema is there once, no lock stays."""
    children = [start(empty) for _ in range(STARTS)]
    ends = [child.communicate(timeout=200)[1].decode() for child in children]
    assert [child.returncode for child in children] == [0] * STARTS, ends
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(migrations.head(),)]
    assert at_rest(empty) == 0


def test_a_start_that_was_killed_blocks_no_other(empty: str) -> None:
    """BR-128: killed anywhere in its migration, a process leaves no lock and no half of a schema; the next start succeeds soon."""
    for number in range(KILLS):
        child = start(empty)
        time.sleep(0.6 + 0.5 * number)  # at a moment that nobody chose
        child.kill()
        child.communicate()
    begun = time.monotonic()
    migrations.upgrade(empty)
    assert time.monotonic() - begun < 30
    assert at_rest(empty) == 0


def test_a_migration_gives_way_to_readers(empty: str) -> None:
    """BR-130: behind somebody who holds a table, a migration steps back again and again instead of blocking all who come, then goes on."""
    migrations.upgrade(empty)
    failures: list[Exception] = []

    def again() -> None:
        try:
            migrations.upgrade(empty)
        except Exception as error:  # noqa: BLE001 - told to the test's own thread
            failures.append(error)

    thread = threading.Thread(target=again)
    with psycopg.connect(empty) as holder:
        holder.execute("LOCK TABLE state_moves IN SHARE MODE")
        thread.start()
        until(lambda: waiters(empty) == 1, "the migration waits for the table", within_s=20)
        until(lambda: waiters(empty) == 0, "it has given way", within_s=5)
        until(lambda: waiters(empty) == 1, "it waits again", within_s=5)
    thread.join(60)
    assert failures == []
    assert at_rest(empty) == 0
