"""
What every test may ask for: a real Postgres, migrated once per test process and emptied between tests that write.
"""

from __future__ import annotations

import gc
import os
import secrets
import tempfile
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from controlplane import migrations
from controlplane.kit.db import EVERYTHING, Errand, make_engine, raise_wall
from controlplane.local.postgres import EmbeddedPostgres

BEGINNING_US = 1_772_323_200_000_000  # 2026-03-01T00:00:00Z
STANDING = "to_timestamp(0) + pg_sequence_last_value('test_clock'::regclass) * interval '1 microsecond'"
ADVANCE = """
    SELECT to_timestamp(0) + interval '1 microsecond'
      * setval('test_clock', pg_sequence_last_value('test_clock'::regclass) + round(CAST(:s AS numeric) * 1000000)::bigint)
"""
CLOCK = "CREATE OR REPLACE FUNCTION cp_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT {body} $$"
BEGAN = time.monotonic()
"""When this process of the run began, within seconds of all others."""
ROOT = Path(__file__).resolve().parents[1]
KITS = ROOT.parent / "shared" / "kits"
DATA = ROOT.parent / "shared" / "data"
KEPT = {"alembic_version", "state_moves"}
LONG = ("e2e", "crash", "faults", "fuzz", "matrix", "races", "planted")
"""Rooms whose tests take seconds and more, the longest first."""
GROWN_BYTES = 256 * 1024
"""A table beyond this is cheaper to truncate than to keep."""


class Database:
    """
    One migrated database of this test process.
    """

    def __init__(self, server_url: str, name: str) -> None:
        self.name = name
        self.server_url = server_url
        base = server_url.rsplit("/", 1)[0]
        self._admin_url = f"{base}/postgres"
        self.owner_url = f"{base}/{name}"
        password = secrets.token_hex(8)
        self._administer(f"CREATE DATABASE {name}")
        migrations.upgrade(self.owner_url)
        self.role = f"app_{name}"
        migrations.ensure_app_role(self.owner_url, self.role, password)
        host = base.rsplit("@", 1)[1]
        self.app_url = f"postgresql://{self.role}:{password}@{host}/{name}"
        self.owner = make_engine(self.owner_url, pool_size=2)
        self.at_once = self.owner.execution_options(isolation_level="AUTOCOMMIT")
        self.engine: Engine = make_engine(self.app_url, pool_size=20)
        self._lines: list[psycopg.Connection[Any]] = []
        with self.owner.begin() as connection:
            names = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
            connection.exec_driver_sql(_emptying(sorted(set(names) - KEPT)))

    def reset(self) -> None:
        """
        No row is left but what migrations put there, once nobody writes any more.
        """
        with self.owner.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # no trigger, so that no order is needed
            connection.exec_driver_sql("SELECT test_empty()")

    def ask(self, sql: str, given: Mapping[str, Any]) -> list[Any]:
        """
        The rows of the owner's statement, which takes effect at once. Schedules ask some hundred thousand times; SQLAlchemy between
        would be half of what that costs.
        """
        for fresh in (False, True):
            try:
                return list(self._line(fresh).execute(_words(sql), given).fetchall())
            except psycopg.OperationalError:
                if fresh or not self._lines[-1].broken:
                    raise
        raise AssertionError("unreachable")

    def _line(self, fresh: bool) -> psycopg.Connection[Any]:  # noqa: FBT001 - one caller
        if fresh or not self._lines:
            self._lines.append(psycopg.connect(self.owner_url, autocommit=True, prepare_threshold=3, row_factory=_as_named))
        return self._lines[-1]

    def virtual_clock(self) -> VirtualClock:
        """
        From now on the database's clock stands still until it is told to go on.
        """
        return VirtualClock(self)

    def close(self) -> None:
        """
        Nothing of it is left on the server, whoever may still be connected.
        """
        for line in self._lines:
            line.close()
        self.engine.dispose()
        self.owner.dispose()
        self._administer(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)", f"DROP ROLE IF EXISTS {self.role}")

    def _administer(self, *statements: str) -> None:
        admin = make_engine(self._admin_url, pool_size=1).execution_options(isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        admin.dispose()


def _as_named(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Any]:
    """
    Rows by name, as far as Python can say the names: `count` twice, or `class`, are had by their place.
    """
    made: Callable[[Sequence[Any]], Any] = _named(*(one.name for one in cursor.description or ()))._make
    return made


@cache
def _named(*names: str) -> Any:
    return namedtuple("Row", names, rename=True)  # noqa: PYI024 - the names are known when it runs


@cache
def _words(sql: str) -> str:
    """
    The statement in the driver's notation.
    """
    return Errand.of(text(sql)).words


def _emptying(tables: Sequence[str]) -> str:
    """
    A function that empties the tables and starts their sequences again.

    A test writes to a few tables, and few rows: to truncate all of them makes a thousand new files, to delete those rows takes a
    twentieth of it. What has grown is truncated, so that no table keeps the dead rows of many tests.
    """
    each = "\n".join(
        f"IF EXISTS (SELECT FROM {one}) THEN "
        f"IF pg_relation_size('{one}') > {GROWN_BYTES} THEN TRUNCATE {one} CASCADE; ELSE DELETE FROM {one}; END IF; END IF;"
        for one in tables
    )
    return f"""
        CREATE FUNCTION test_empty() RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
          LOCK TABLE {", ".join(tables)} IN SHARE ROW EXCLUSIVE MODE;
          {each}
          PERFORM setval(format('%%I.%%I', schemaname, sequencename)::regclass, start_value, false)
            FROM pg_sequences WHERE schemaname = 'public' AND sequencename <> 'test_clock' AND last_value IS NOT NULL;
        END $$
    """


class VirtualClock:
    """
    The database's clock under a test's control.

    A sequence holds its microseconds: reading it is an expression that Postgres writes into the statement that asks, where a table
    would be a query within the query, a thousand times in a schedule.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._say(
            "CREATE SEQUENCE IF NOT EXISTS test_clock",
            "GRANT SELECT ON test_clock TO cp_application",
            f"SELECT setval('test_clock', {BEGINNING_US})",
            CLOCK.format(body=STANDING),
        )

    def advance(self, seconds: float) -> datetime:
        """
        The clock has gone on; what it shows now is returned.
        """
        shown: datetime = self._database.ask(ADVANCE, {"s": seconds})[0][0]
        return shown

    def now(self) -> datetime:
        """
        What the clock shows.
        """
        shown: datetime = self._database.ask(f"SELECT {STANDING}", {})[0][0]
        return shown

    def stop(self) -> None:
        """
        The database tells real time again.
        """
        self._say(CLOCK.format(body="clock_timestamp()"), "DROP SEQUENCE IF EXISTS test_clock")

    def _say(self, *statements: str) -> None:
        with self._database.owner.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)


settings.register_profile("house", deadline=None)  # how long an example takes says how busy the machine is, and nothing of the law
settings.load_profile("house")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Each process of a run begins with some of the long tests and ends with its share of the schedules. Those are many and alike, so that
    nobody has nothing to do while another ends a long test, and a run that is short of time knows by then how much is left.
    """
    rooms: dict[str, list[pytest.Item]] = {}
    for one in items:
        rooms.setdefault(one.path.relative_to(ROOT / "tests").parts[0], []).append(one)
    long, last = [rooms.pop(one, []) for one in LONG], rooms.pop("schedules", [])
    short = [one for each in rooms.values() for one in each]
    items[:] = _shared_out(long, short, last, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _shared_out(
    long: Sequence[list[pytest.Item]], short: Sequence[pytest.Item], last: Sequence[pytest.Item], processes: int
) -> list[pytest.Item]:
    """
    As many tests for each process, one process's after another's: so xdist's worksteal hands them out. A room's long tests stay together,
    for many of them want the same kit for themselves.
    """
    begins: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for number, tests in enumerate(long):
        place = number % (2 * processes)
        begins[min(place, 2 * processes - 1 - place)] += tests
    left, at, told = sum(map(len, begins)) + len(short) + len(last), 0, []
    for number, begin in enumerate(begins):
        count = left // (processes - number)
        left -= count
        end = last[number::processes]
        until = len(short) if number == processes - 1 else at + max(0, count - len(begin) - len(end))
        told += [*begin, *short[at:until], *end]
        at = until
    return told


def pytest_collection_finish() -> None:
    """
    All that is loaded by now stays to the end, so it is looked through for garbage once and never again; what tests make, more seldom.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """
    A superuser's URL of a server: CONTROLPLANE_TEST_DATABASE_URL when it is set, else an embedded one.
    """
    given = os.environ.get("CONTROLPLANE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="cptest", dir="/var/tmp") as folder:
        home = Path(folder)
        home.chmod(0o755)
        server = EmbeddedPostgres(home / "pg", password=secrets.token_hex(8), log_path=home / "postgres.log", durable=False)
        server.prepare()
        server.start()
        try:
            yield server.owner_url()
        finally:
            server.stop()


@pytest.fixture(scope="session")
def migrated(postgres_url: str) -> Iterator[Database]:
    """
    A database of this test process.
    """
    database = Database(postgres_url, f"t{secrets.token_hex(5)}")
    yield database
    database.close()


@pytest.fixture
def database(migrated: Database) -> Database:
    """
    The database, empty.
    """
    migrated.reset()
    return migrated


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """
    A transaction as the application role that sees everything and is rolled back.
    """
    with Session(database.engine, expire_on_commit=False) as one:
        raise_wall(one, EVERYTHING)
        yield one
        one.rollback()
