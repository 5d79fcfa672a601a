"""
The database: engine, declarative base, scope of a transaction, and transactions that are tried again when Postgres asks for it.
"""

import random
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from psycopg import Error as PsycopgError
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.rows import namedtuple_row
from sqlalchemy import BigInteger, DateTime, Engine, MetaData, Text, TextClause, create_engine, event, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.pool import PoolProxiedConnection

from controlplane.kit.wall import EVERYTHING, Wall

__all__ = [
    "DEADLOCK",
    "EVERYTHING",
    "SERIALIZATION_FAILURE",
    "Base",
    "Errand",
    "Wall",
    "constraint_name",
    "in_transaction",
    "make_engine",
    "raise_wall",
    "run_errand",
    "sqlstate",
]
T = TypeVar("T")

SERIALIZATION_FAILURE = "40001"
DEADLOCK = "40P01"
TRIES = 6
MOST_STATEMENTS = 400


class Base(DeclarativeBase):
    """
    Every row of every room; constraint names are functions of what they constrain.
    """

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads it as a class attribute
        str: Text(),
        int: BigInteger(),
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB(),
        list[Any]: JSONB(),
        list[str]: ARRAY(Text()),
    }


SET_WALL = text(
    "SELECT set_config('cp.scope', :scope, true), set_config('cp.reseller', :reseller, true), set_config('cp.tenant', :tenant, true)"
)


@dataclass(frozen=True, slots=True)
class Errand:
    """
    A statement that is a transaction of its own, and is made so often that its round trips count.
    """

    words: str
    """In the driver's notation."""

    @classmethod
    def of(cls, statement: TextClause) -> "Errand":
        """
        The statement as an errand.
        """
        return cls(str(statement.compile(dialect=PGDialect_psycopg())))  # type: ignore[no-untyped-call]


WALL_ERRAND = Errand.of(SET_WALL)


def make_engine(url: str, *, pool_size: int = 12, application: str = "controlplane") -> Engine:
    """
    An engine whose connections give up on locks and idle transactions in bounded time and are tested before use.
    """
    engine = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1),
        pool_size=pool_size,
        max_overflow=4,
        pool_timeout=10,
        pool_use_lifo=True,
        query_cache_size=1500,
        connect_args={
            "application_name": application,
            "connect_timeout": 5,
            "prepare_threshold": 3,
            "options": "-c timezone=UTC -c lock_timeout=15s -c idle_in_transaction_session_timeout=60s -c statement_timeout=60s",
        },
    )
    engine.dialect.do_rollback = _roll_back  # type: ignore[method-assign]
    event.listen(engine, "checkout", _refuse_dead)
    event.listen(engine, "connect", _keep_statements)
    return engine


def _keep_statements(connection: Any, record: object) -> None:
    """
    The connection remembers as many prepared statements as the product has; the driver's 100 would push each other out.
    """
    del record
    connection.prepared_max = MOST_STATEMENTS


def _roll_back(dbapi_connection: PoolProxiedConnection) -> None:
    """
    The transaction is undone. One in which no statement failed is undone past the driver, which would forget every prepared statement with
    it: the server keeps them, and a refused request must not cost the next ones the preparing of all they ask.
    """
    connection: Any = dbapi_connection
    server = connection.pgconn
    if server.transaction_status == TransactionStatus.INTRANS and server.exec_(b"ROLLBACK").status == ExecStatus.COMMAND_OK:
        return
    connection.rollback()


def _refuse_dead(connection: Any, record: object, proxy: object) -> None:
    """
    Returns when the connection may be used; the pool replaces it otherwise.

    A server that went away has said so: then something waits to be read on a connection that nobody asked anything. Only then is it
    worth a round trip to ask.
    """
    del record, proxy
    if connection.closed:
        raise DisconnectionError
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    if not waiting.poll(0):
        return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except PsycopgError:
        raise DisconnectionError from None


def raise_wall(session: Session, wall: Wall) -> None:
    """
    The rest of this transaction sees only what the wall allows; the setting ends with the transaction. Raises OperationalError.

    Every transaction begins with this, so it goes past SQLAlchemy, which costs more than the statement.
    """
    connection = session.connection()
    driver: Any = connection.connection.driver_connection
    try:
        driver.execute(WALL_ERRAND.words, _settings(wall))
    except PsycopgError as error:
        connection.invalidate(error)
        raise OperationalError(WALL_ERRAND.words, None, error) from error


def _settings(wall: Wall) -> dict[str, str]:
    return {"scope": "all" if wall.everything else "", "reseller": wall.reseller_id, "tenant": wall.tenant_id}


def in_transaction(engine: Engine, wall: Wall, work: Callable[[Session], T]) -> T:
    """
    `work` has run in one committed transaction behind the wall; serialization failures and deadlocks are tried again with jitter.
    """
    for attempt in range(TRIES):
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                raise_wall(session, wall)
                return work(session)
        except DBAPIError as error:
            if sqlstate(error) not in {SERIALIZATION_FAILURE, DEADLOCK} or attempt == TRIES - 1:
                raise
            time.sleep(random.uniform(0.005, 0.05) * (attempt + 1))  # noqa: S311 - jitter, not a secret
    raise AssertionError("unreachable")


def run_errand(engine: Engine, wall: Wall, question: Errand, given: Mapping[str, Any]) -> list[Any]:
    """
    The rows that the statement returned, by name, from a committed transaction behind the wall: all of it is one round trip, where
    `in_transaction` takes four. It is not tried again. Raises OperationalError, and TimeoutError of the pool.
    """
    pooled = None
    try:
        pooled = engine.raw_connection()
        connection: Any = pooled.driver_connection
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            with connection.pipeline():
                connection.execute(WALL_ERRAND.words, _settings(wall))
                cursor.execute(question.words, given)
                connection.commit()
            rows: list[Any] = cursor.fetchall()
            return rows
    except PsycopgError as error:
        if pooled is not None:
            pooled.invalidate(error)  # what was sent together may be answered in part; the connection is not asked again
        raise OperationalError(question.words, None, error) from error
    finally:
        if pooled is not None:
            pooled.close()


def sqlstate(error: DBAPIError) -> str:
    """
    The five-character code of a database error, or an empty string.
    """
    return str(getattr(error.orig, "sqlstate", None) or "")


def constraint_name(error: DBAPIError) -> str:
    """
    The constraint that was violated, or an empty string.
    """
    diagnostics = getattr(error.orig, "diag", None)
    return str(getattr(diagnostics, "constraint_name", None) or "")
