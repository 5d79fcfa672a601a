"""
What every test may ask for: a real Postgres, migrated once per test process and emptied between tests that write.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from controlplane import migrations
from controlplane.kit.db import EVERYTHING, make_engine, raise_wall
from controlplane.local.postgres import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[1]
KITS = ROOT.parent / "shared" / "kits"
DATA = ROOT.parent / "shared" / "data"
KEPT = {"alembic_version", "state_moves"}


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
        self.engine: Engine = make_engine(self.app_url, pool_size=20)
        with self.owner.connect() as connection:
            names = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
        self._tables = ", ".join(sorted(set(names) - KEPT))

    def reset(self) -> None:
        """
        No row is left but what migrations put there.
        """
        with self.owner.begin() as connection:
            connection.exec_driver_sql(f"TRUNCATE {self._tables} RESTART IDENTITY CASCADE")

    def virtual_clock(self) -> VirtualClock:
        """
        From now on the database's clock stands still until it is told to go on.
        """
        return VirtualClock(self)

    def close(self) -> None:
        """
        Nothing of it is left on the server, whoever may still be connected.
        """
        self.engine.dispose()
        self.owner.dispose()
        self._administer(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)", f"DROP ROLE IF EXISTS {self.role}")

    def _administer(self, *statements: str) -> None:
        admin = make_engine(self._admin_url, pool_size=1).execution_options(isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        admin.dispose()


class VirtualClock:
    """
    The database's clock under a test's control.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.owner.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS test_clock (at timestamptz NOT NULL)")
            connection.exec_driver_sql("GRANT SELECT ON test_clock TO cp_application")
            connection.exec_driver_sql("DELETE FROM test_clock")
            connection.exec_driver_sql("INSERT INTO test_clock VALUES ('2026-03-01T00:00:00Z')")
            body = "SELECT at FROM test_clock"
            connection.exec_driver_sql(
                f"CREATE OR REPLACE FUNCTION cp_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS '{body}'"
            )

    def advance(self, seconds: float) -> None:
        """
        The clock has gone on.
        """
        with self._database.owner.begin() as connection:
            connection.execute(text("UPDATE test_clock SET at = at + make_interval(secs => :s)"), {"s": seconds})

    def now(self) -> object:
        """
        What the clock shows.
        """
        with self._database.owner.connect() as connection:
            return connection.execute(text("SELECT at FROM test_clock")).scalar_one()

    def stop(self) -> None:
        """
        The database tells real time again.
        """
        with self._database.owner.begin() as connection:
            body = "SELECT clock_timestamp()"
            connection.exec_driver_sql(
                f"CREATE OR REPLACE FUNCTION cp_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS '{body}'"
            )
            connection.exec_driver_sql("DROP TABLE IF EXISTS test_clock")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """
    The owner's URL of a server: CONTROLPLANE_TEST_DATABASE_URL when it is set, else an embedded one.
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
