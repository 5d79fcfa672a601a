"""
What the server has planned once stays planned.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from controlplane.identity.service import KeyAuthenticator
from controlplane.kit.db import EVERYTHING, Wall, in_transaction, make_engine
from controlplane.kit.errors import NotFound
from tests.conftest import Database
from tests.factories.identity import make_tree

COUNTED = text("SELECT count(*) FROM sites")
WRITTEN = text("INSERT INTO sites (name, region) VALUES ('osl1', 'no')")
PLANNED = text("SELECT count(*) FROM pg_prepared_statements WHERE statement = 'SELECT count(*) FROM sites'")


def test_looking_keys_up_keeps_prepared_statements(database: Database) -> None:
    """
    A connection that looks keys up again and again does so by statements the server has planned once.
    """
    tree = make_tree(database.engine)
    engine = make_engine(database.app_url, pool_size=1)
    prepared = text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%api_keys%'")
    try:
        for _ in range(6):
            authenticator = KeyAuthenticator(engine)
            authenticator.authenticate(f"Bearer {tree.left.owner_key}", None)
        assert in_transaction(engine, Wall(everything=True), lambda s: s.execute(prepared).scalar_one()) >= 1
    finally:
        engine.dispose()


def planned(session: Session) -> int:
    """
    How many of the counting statements this connection's server knows.
    """
    count: int = session.execute(PLANNED).scalar_one()
    return count


@pytest.fixture
def lonely(database: Database) -> Iterator[Engine]:
    """
    An engine of one connection, on which a statement has been made often enough to be planned once for all.
    """
    engine = make_engine(database.app_url, pool_size=1)
    for _ in range(6):
        in_transaction(engine, EVERYTHING, lambda s: s.execute(COUNTED))
    yield engine
    engine.dispose()


def test_a_refused_request_costs_no_prepared_statement(lonely: Engine) -> None:
    """What an error of the domain rolls back is undone, and what the server has planned stays planned."""

    def refuse(session: Session) -> None:
        session.execute(WRITTEN)
        raise NotFound

    with pytest.raises(NotFound):
        in_transaction(lonely, EVERYTHING, refuse)
    assert in_transaction(lonely, EVERYTHING, lambda s: s.execute(COUNTED).scalar_one()) == 0
    assert in_transaction(lonely, EVERYTHING, planned) == 1


def test_a_failed_statement_makes_the_connection_forget(lonely: Engine) -> None:
    """After an error of the database nothing prepared is trusted, and the connection goes on."""
    with pytest.raises(DBAPIError):
        in_transaction(lonely, EVERYTHING, lambda s: s.execute(text("SELECT 1 / 0")))
    assert in_transaction(lonely, EVERYTHING, planned) == 0
    assert in_transaction(lonely, EVERYTHING, lambda s: s.execute(COUNTED).scalar_one()) == 0


def test_a_connection_that_was_cut_is_not_rolled_back_in_silence(database: Database, lonely: Engine) -> None:
    """Whoever rolls back on a connection that the server has closed hears their own error, and the next transaction gets another one."""

    def cut(session: Session) -> None:
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with database.owner.begin() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        raise NotFound

    with pytest.raises((NotFound, DBAPIError)):
        in_transaction(lonely, EVERYTHING, cut)
    assert in_transaction(lonely, EVERYTHING, lambda s: s.execute(COUNTED).scalar_one()) == 0
