"""
Schema changes: run once at a time under a lock that ends with its connection, then what the code knows as data is copied in.
"""

import importlib
import random
import time
from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from alembic import command
from controlplane.clusters.states import CLUSTER_STATES
from controlplane.fabric_checks.states import FABRIC_CHECK_STATES
from controlplane.images.states import IMAGE_STATES
from controlplane.jobs.states import CHECKPOINT_STATES, JOB_STATES
from controlplane.kit.db import make_engine, sqlstate
from controlplane.nodes.states import NODE_STATES
from controlplane.services.states import SERVICE_STATES

ROOMS = (
    "identity",
    "catalog",
    "images",
    "quotas",
    "metering",
    "qualification",
    "boots",
    "nodes",
    "fabric_checks",
    "clusters",
    "jobs",
    "services",
)
KIT_ROWS = ("audit", "events", "moving", "operations")
LOCK = 7306125091  # any constant: the name of the one advisory lock that migrations take
APP_ROLE = "controlplane_app"
LOCK_NOT_AVAILABLE = "55P03"
GIVES_WAY_AFTER_S = 1  # behind a migration that waits for a table, every new reader of that table waits too
TRIES = 120


def load_rows() -> None:
    """
    Every table of the product is in the metadata.
    """
    for room in ROOMS:
        importlib.import_module(f"controlplane.{room}.models")
    for part in KIT_ROWS:
        importlib.import_module(f"controlplane.kit.{part}")


def configuration() -> Config:
    """
    Alembic's settings, found beside the source tree or in the working directory.
    """
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (root / "alembic.ini").is_file():
            return Config(root / "alembic.ini")
    raise FileNotFoundError("alembic.ini was found neither beside the source nor in the working directory")


def head() -> str:
    """
    The newest revision that this code knows.
    """
    return ScriptDirectory.from_config(configuration()).get_current_head() or ""


def upgrade(owner_url: str, revision: str = "head") -> None:
    """
    The database is at the revision. Of several callers one works and the others wait; a killed one leaves no lock behind. Behind
    somebody who holds a table it gives way to the readers that come meanwhile, and begins again.
    """
    engine = make_engine(owner_url, pool_size=1, application="controlplane-migrate")
    try:
        with engine.connect() as holder:
            holder.execute(text("SET lock_timeout = '120s'"))
            holder.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
            holder.commit()
            try:
                _migrate(engine, revision)
            finally:
                holder.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": LOCK})
                holder.commit()
    finally:
        engine.dispose()


def _migrate(engine: Engine, revision: str) -> None:
    for tries_left in reversed(range(TRIES)):
        try:
            with engine.begin() as connection:
                connection.execute(text(f"SET LOCAL lock_timeout = '{GIVES_WAY_AFTER_S}s'"))
                settings = configuration()
                settings.attributes["connection"] = connection
                command.upgrade(settings, revision)
                copy_moves(connection)
        except DBAPIError as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE or not tries_left:
                raise
            time.sleep(random.uniform(0.2, 1.0))  # noqa: S311 - jitter, not a secret
        else:
            return


def copy_moves(connection: Connection) -> None:
    """
    The table that the database checks state changes against holds exactly the moves of the code's state tables.
    """
    connection.execute(text("DELETE FROM state_moves"))
    rows = [
        {"kind": table.kind, "before": before, "after": after}
        for table in (NODE_STATES, CLUSTER_STATES, JOB_STATES, IMAGE_STATES, CHECKPOINT_STATES, FABRIC_CHECK_STATES, SERVICE_STATES)
        for before, after in table.moves()
    ]
    connection.execute(text("INSERT INTO state_moves (kind, before, after) VALUES (:kind, :before, :after)"), rows)


def ensure_app_role(owner_url: str, role: str, password: str) -> None:
    """
    The application's role exists with this password, owns nothing, bypasses nothing and may use the tables as granted.
    """
    engine = make_engine(owner_url, pool_size=1, application="controlplane-migrate").execution_options(isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            quoted = connection.dialect.identifier_preparer.quote_identifier(role)
            exists = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).first()
            literal = connection.execute(text("SELECT quote_literal(CAST(:password AS text))"), {"password": password}).scalar_one()
            verb = "ALTER" if exists else "CREATE"
            flags = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS NOREPLICATION"
            connection.exec_driver_sql(f"{verb} ROLE {quoted} {flags} PASSWORD {literal}".replace("%", "%%"))
            connection.exec_driver_sql(f"GRANT cp_application TO {quoted}")
    finally:
        engine.dispose()
