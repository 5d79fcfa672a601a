"""
What the server has planned once stays planned.
"""

from __future__ import annotations

from sqlalchemy import text

from controlplane.identity.service import KeyAuthenticator
from controlplane.kit.db import Wall, in_transaction, make_engine
from tests.conftest import Database
from tests.factories.identity import make_tree


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
