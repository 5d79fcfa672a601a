"""
Statements that are a transaction of their own, sent in one round trip.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, Errand, Wall, run_errand
from tests.conftest import Database

SCOPE = Errand.of(text("SELECT current_setting('cp.scope') AS scope, current_setting('cp.tenant') AS tenant, CAST(:n AS int) AS n"))


def test_an_errand_sees_its_wall_and_leaves_nothing_of_it(database: Database) -> None:
    """Rows come by name from behind the wall that was asked for, and the connection's next transaction has none."""
    (row,) = run_errand(database.engine, EVERYTHING, SCOPE, {"n": 7})
    assert (row.scope, row.tenant, row.n) == ("all", "", 7)
    (row,) = run_errand(database.engine, Wall(tenant_id="ten_1"), SCOPE, {"n": 8})
    assert (row.scope, row.tenant, row.n) == ("", "ten_1", 8)
    with Session(database.engine) as session:
        left = session.execute(text("SELECT current_setting('cp.scope', true), current_setting('cp.tenant', true)")).one()
    assert set(left) <= {"", None}


def test_an_errand_that_fails_changes_nothing_and_the_next_one_is_answered(database: Database) -> None:
    """A statement that the database refuses raises, and no half of it is left on the connection."""
    refused = Errand.of(text("SELECT 1 / CAST(:n AS int) AS n"))
    for _ in range(database.engine.pool.size() + 1):  # type: ignore[attr-defined]
        with pytest.raises(OperationalError):
            run_errand(database.engine, EVERYTHING, refused, {"n": 0})
    assert [row.n for row in run_errand(database.engine, EVERYTHING, refused, {"n": 1})] == [1]


def test_an_errand_is_committed(database: Database) -> None:
    """What it wrote is there for everybody when it returns."""
    made = Errand.of(text("SELECT txid_current() AS id"))
    (row,) = run_errand(database.engine, EVERYTHING, made, {})
    status = Errand.of(text("SELECT txid_status(CAST(:id AS bigint)) AS status"))
    assert [one.status for one in run_errand(database.engine, EVERYTHING, status, {"id": row.id})] == ["committed"]
