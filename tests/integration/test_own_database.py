"""
The tests' own database leaves nothing behind on a server that others use too.
"""

import secrets

from sqlalchemy import text

from controlplane.kit.db import make_engine
from tests.conftest import Database


def test_a_database_leaves_nothing_behind(postgres_url: str) -> None:
    """It goes with its role, though somebody is still connected."""
    one = Database(postgres_url, f"t{secrets.token_hex(5)}")
    server = make_engine(postgres_url.rsplit("/", 1)[0] + "/postgres", pool_size=1)
    lingering = make_engine(one.owner_url, pool_size=1)
    found = text(
        "SELECT (SELECT count(*) FROM pg_database WHERE datname = :name) + (SELECT count(*) FROM pg_roles WHERE rolname = :role)"
    )
    try:
        with lingering.connect():
            for left in (2, 0):
                with server.connect() as connection:
                    assert connection.execute(found, {"name": one.name, "role": one.role}).scalar_one() == left
                if left:
                    one.close()
    finally:
        lingering.dispose()
        server.dispose()
