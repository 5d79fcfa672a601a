"""
What a caller is told when the database refuses, is overtaken, or goes away in the middle.
"""

import pytest
from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from controlplane.kit import crashpoints
from controlplane.web.call import Call
from controlplane.web.endpoint import endpoint
from controlplane.web.schemas import Body, Out
from tests.conftest import Database
from tests.factories.identity import Caller, Tree, make_tree, small_app

HALTED = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename = :role")
router = APIRouter()


class Statement(Body):
    """
    What the test's handler runs.
    """

    sql: str = Field(description="A statement.", examples=["SELECT 1"])


class Ran(Out):
    """
    It ran.
    """

    ok: bool = Field(description="True.", examples=[True])


@endpoint(router, "POST", "/v1/run", permission="", answer=Ran, summary="Run a statement")
def run_statement(call: Call, body: Statement) -> Ran:
    """
    The statement has run.
    """
    call.session.execute(text(body.sql))
    return Ran(ok=True)


@pytest.fixture(scope="module")
def tree(migrated: Database) -> Tree:
    """Two resellers with a tenant each."""
    migrated.reset()
    return make_tree(migrated.engine)


@pytest.fixture
def caller(migrated: Database, tree: Tree) -> Caller:
    """A tenant's owner before an application with one route."""
    return Caller(small_app(migrated.engine, router), tree.left.owner_key)


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("SELECT 9223372036854775807::bigint + 1", 422, "invalid_request"),
        ("SELECT '10000-13-45'::timestamptz", 422, "invalid_request"),
        ("SELECT '294277-01-01'::timestamptz", 422, "invalid_request"),
        ("DO $$ BEGIN RAISE unique_violation; END $$", 409, "changed_meanwhile"),
        ("DO $$ BEGIN RAISE exclusion_violation; END $$", 409, "changed_meanwhile"),
        ("DO $$ BEGIN RAISE lock_not_available; END $$", 503, "unavailable"),
        ("DO $$ BEGIN RAISE serialization_failure; END $$", 503, "unavailable"),
        ("DO $$ BEGIN RAISE read_only_sql_transaction; END $$", 503, "unavailable"),
        ("DO $$ BEGIN RAISE admin_shutdown; END $$", 503, "unavailable"),
    ],
)
def test_refusals_of_the_database_have_words(caller: Caller, sql: str, status: int, code: str) -> None:
    """Each kind of refusal is told under its own code; none shows the database's own words."""
    answer = caller("POST", "/v1/run", {"sql": sql})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "SELECT" not in answer.text
    assert "psycopg" not in answer.text


def test_faults_of_ours_are_not_dressed_up(caller: Caller) -> None:
    """What only a fault in our code can cause is not told as the caller's: it goes up to the edge, which answers 500."""
    with pytest.raises(DBAPIError, match="division by zero"):
        caller("POST", "/v1/run", {"sql": "SELECT 1/0"})


def test_a_commit_that_breaks_leaves_the_outcome_open(caller: Caller, migrated: Database) -> None:
    """A connection that dies before the commit is acknowledged is told as an open outcome, not as nothing done; the next call works."""

    def halt(point: str) -> None:
        if point == "request.before_commit":
            with migrated.owner.connect() as connection:
                connection.execute(HALTED, {"role": migrated.role})

    remove = crashpoints.install(halt)
    try:
        lost = caller("POST", "/v1/run", {"sql": "SELECT 1"})
    finally:
        remove()
    assert (lost.status_code, lost.json()["code"]) == (503, "outcome_unknown")
    assert lost.json()["retry"]["retryable"] is True
    assert caller("POST", "/v1/run", {"sql": "SELECT 1"}).json() == {"ok": True}
