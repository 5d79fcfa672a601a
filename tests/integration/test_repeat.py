"""
Idempotency keys: the first answer is given again, to the same caller only, and only to the same request.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.images import declared
from tests.factories.serving import serving


@pytest.fixture
def tree(database: Database) -> Tree:
    """
    Two branches of tenants.
    """
    return make_tree(database.engine)


def test_keys_of_different_callers_never_meet(database: Database, tree: Tree) -> None:
    """Two tenants that happen to choose the same key each get their own resource; neither sees the other's answer."""
    with serving(database) as served, served.client(tree.left.owner_key) as left, served.client(tree.right.owner_key) as right:
        asked = {"json": {"name": "same"}, "headers": {"Idempotency-Key": "same-key"}}
        mine, theirs = left.post("/v1/projects", **asked), right.post("/v1/projects", **asked)
        assert (mine.status_code, theirs.status_code) == (201, 201)
        assert mine.json()["id"] != theirs.json()["id"]
        again = left.post("/v1/projects", **asked)
        assert (again.status_code, again.json()["id"], again.headers["Idempotent-Replayed"]) == (201, mine.json()["id"], "true")


def test_a_key_is_for_one_request_and_one_day(database: Database, tree: Tree) -> None:
    """Another body under the key is refused; after a day the key is free again."""
    with serving(database) as served, served.client(tree.left.owner_key) as left:
        headers = {"Idempotency-Key": "k"}
        assert left.post("/v1/projects", json={"name": "one"}, headers=headers).status_code == 201
        other = left.post("/v1/projects", json={"name": "two"}, headers=headers)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        with database.owner.begin() as connection:
            connection.execute(text("UPDATE idempotency_keys SET created_at = created_at - interval '25 hours'"))
        assert left.post("/v1/projects", json={"name": "two"}, headers=headers).status_code == 201


def test_a_dry_run_refuses_a_malformed_key_and_uses_none_up(database: Database, tree: Tree) -> None:
    """The key is looked at as in the real request, which may then be made under the same key."""
    with serving(database) as served, served.client(tree.left.owner_key) as left:
        asked = {"json": declared(b"x", "one"), "params": {"dry_run": True}}
        for more in ({}, {"params": {}}):
            answer = left.post("/v1/images", **asked | more, headers={"Idempotency-Key": "two words"})
            assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "invalid_key")
        assert left.post("/v1/images", **asked, headers={"Idempotency-Key": "k"}).status_code == 200
        made = left.post("/v1/images", json=asked["json"], headers={"Idempotency-Key": "k"})
        assert (made.status_code, "Idempotent-Replayed" in made.headers) == (201, False)
