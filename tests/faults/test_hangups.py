"""
Callers that hang up, callers that fail, and callers that take turns on one connection: none leaves anything behind.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import text

from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.processes import until
from tests.factories.serving import Served, serving

POOL = 4
HANG_UPS = 600
LEFT_OPEN = text("SELECT count(*) FROM pg_stat_activity WHERE usename = :role AND state LIKE 'idle in transaction%'")


@pytest.fixture
def tree(database: Database) -> Tree:
    """
    Two resellers with a tenant each.
    """
    return make_tree(database.engine)


@pytest.fixture
def served(database: Database) -> Iterator[Served]:
    """
    The API on a few connections.
    """
    with serving(database, db_pool_size=POOL, http_threads=POOL) as one:
        yield one


def hang_up(served: Served, key: str, number: int) -> None:
    """
    A request was sent, whole or in part, and its caller is gone before the answer.
    """
    dice = random.Random(number)
    body = b'{"name": "p%d", "labels": {}}' % number
    head = (
        b"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        if number % 2
        else b"GET /v1/projects HTTP/1.1\r\nHost: x\r\n"
    )
    sent = head + b"Authorization: Bearer " + key.encode() + b"\r\n"
    sent += b"Content-Length: %d\r\n\r\n%s" % (len(body), body[: len(body) // (1 + number % 3)]) if number % 2 else b"\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as line, suppress(ConnectionError):
        line.sendall(sent)
        line.settimeout(dice.uniform(0.001, 0.05))
        with suppress(TimeoutError):
            line.recv(1)


def test_callers_that_hang_up_leave_every_connection(database: Database, served: Served, tree: Tree) -> None:
    """BR-092: after hundreds of callers that went away within 50 ms all connections serve, and no transaction is open."""
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: hang_up(served, tree.left.owner_key, number), range(HANG_UPS)))

    def none_open() -> bool:
        with database.owner.connect() as connection:
            return bool(connection.execute(LEFT_OPEN, {"role": database.role}).scalar_one() == 0)

    until(none_open, "no transaction is left open", within_s=20)
    with served.client(tree.left.owner_key) as client, ThreadPoolExecutor(POOL * 3) as pool:
        begun = time.monotonic()
        answers = list(pool.map(lambda _: client.get("/v1/projects").status_code, range(POOL * 3)))
    assert answers == [200] * POOL * 3
    assert time.monotonic() - begun < 20


def test_taking_turns_on_few_connections_shows_nobody_anothers(served: Served, tree: Tree) -> None:
    """BR-115: two tenants by turns, every third request refused or broken off: each sees its own project and no other."""
    branches = (tree.left, tree.right)

    def turn(number: int) -> tuple[str, list[str]]:
        mine, other = branches[number % 2], branches[1 - number % 2]
        with served.client(mine.owner_key) as client:
            if number % 3 == 0:
                assert client.get(f"/v1/projects/{other.project_id}").status_code == 404
                hang_up(served, other.owner_key, number * 2)
            return mine.project_id, [one["id"] for one in client.get("/v1/projects").json()["items"]]

    with ThreadPoolExecutor(8) as pool:
        for mine, seen in pool.map(turn, itertools.islice(itertools.count(), 300)):
            assert seen == [mine]
