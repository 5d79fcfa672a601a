"""
What happens at the same instant: orders against deletes, owners against each other, names against names.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.identity import service
from controlplane.identity.errors import LastOwner, StillInUse
from controlplane.identity.service import Described
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.kit.errors import DomainError, NameTaken, QuotaExceeded
from controlplane.quotas.service import Chain, Need, recount, take
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree, principal_of, work

Job = Callable[[Session], Any]
WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


@pytest.fixture
def tree(database: Database) -> Tree:
    """
    Two resellers with a tenant each.
    """
    return make_tree(database.engine)


def second_waits_for_first(database: Database, first: Job, second: Job) -> Future[Any]:
    """
    The second job's outcome when the first one commits only after the second is seen waiting for a lock of it.
    """
    with ThreadPoolExecutor(1) as pool, Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        first(session)
        outcome = pool.submit(work, database.engine, second)
        with database.owner.connect() as watcher:
            while not outcome.done() and not watcher.execute(WAITING).scalar_one():
                watcher.rollback()
        assert not outcome.done(), "the second did not wait"
        session.commit()
        outcome.exception(timeout=30)
    return outcome


@pytest.mark.parametrize("what", ["tenant", "project"])
@pytest.mark.parametrize("order_first", [True, False])
def test_no_order_lands_in_what_is_being_deleted(database: Database, tree: Tree, what: str, order_first: bool) -> None:  # noqa: FBT001 - pytest passes it
    """
    Of an order and a delete at the same instant one is refused: whichever comes second.
    """
    seller, owner = (principal_of(database.engine, key) for key in (tree.left.reseller_key, tree.left.owner_key))
    chain = Chain(tree.left.reseller_id, tree.left.tenant_id, tree.left.project_id)

    def order(session: Session) -> None:
        take(session, chain, [Need("clusters", 1)])

    def delete(session: Session) -> None:
        if what == "tenant":
            service.delete_tenant(session, seller, tree.left.tenant_id, lambda _: None)
        else:
            service.delete_project(session, owner, tree.left.project_id, lambda _: None)

    if order_first:
        assert isinstance(second_waits_for_first(database, order, delete).exception(), StillInUse)
    else:
        assert isinstance(second_waits_for_first(database, delete, order).exception(), QuotaExceeded)


@pytest.mark.parametrize("what", ["tenant", "project"])
def test_a_key_made_during_the_delete_is_counted_no_more(database: Database, tree: Tree, what: str) -> None:
    """
    A delete waits for a key that is being made below it, and ends it with the others: the counters of keys are as if it never was.
    """
    seller, owner = (principal_of(database.engine, key) for key in (tree.left.reseller_key, tree.left.owner_key))

    def make(session: Session) -> None:
        scope = service.hold_project(session, owner, tree.left.project_id) if what == "project" else None
        service.create_key(session, owner, service.NewKey("late", service.KeyLimits(), scope=scope))

    def delete(session: Session) -> None:
        if what == "tenant":
            service.delete_tenant(session, seller, tree.left.tenant_id, lambda _: None)
        else:
            service.delete_project(session, owner, tree.left.project_id, lambda _: None)

    assert second_waits_for_first(database, make, delete).exception() is None
    drift = work(database.engine, lambda s: recount(s, service.held_keys(s)))
    assert [one for one in drift if one.resource == "keys"] == []


def test_two_owners_cannot_remove_each_other(database: Database, tree: Tree) -> None:
    """
    When two owners remove each other at the same instant, one stays.
    """
    seller, first = (principal_of(database.engine, key) for key in (tree.left.reseller_key, tree.left.owner_key))
    row, made = work(
        database.engine, lambda s: service.create_owner(s, seller, tree.left.tenant_id, name="Bo", email="bo@acme.example")
    )
    second = principal_of(database.engine, made.text)
    outcome = second_waits_for_first(
        database, lambda s: service.remove_member(s, first, row.id), lambda s: service.remove_member(s, second, first.id)
    )
    assert isinstance(outcome.exception(), LastOwner)


def test_one_of_twenty_gets_the_name(database: Database, tree: Tree) -> None:
    """
    Twenty creates of one tenant name at once make one tenant; the others are told that the name is taken.
    """
    seller = principal_of(database.engine, tree.left.reseller_key)

    def create(_number: int) -> type[DomainError] | None:
        try:
            work(database.engine, lambda s: service.create_tenant(s, seller, Described("gamma"), limits={}), seller.wall)
        except DomainError as error:
            return type(error)
        return None

    with ThreadPoolExecutor(10) as pool:
        outcomes = list(pool.map(create, range(20)))
    assert outcomes.count(None) == 1
    assert outcomes.count(NameTaken) == 19


def test_nothing_is_made_below_what_is_gone(database: Database, tree: Tree) -> None:
    """
    A principal that was let in just before the delete makes neither project nor member nor key in a deleted tenant.
    """
    seller, owner = (principal_of(database.engine, key) for key in (tree.left.reseller_key, tree.left.owner_key))
    work(database.engine, lambda s: service.delete_tenant(s, seller, tree.left.tenant_id, lambda _: None))
    new = service.NewMember("service_account", "x", "")
    late: list[Job] = [
        lambda s: service.create_project(s, owner, Described("late")),
        lambda s: service.create_member(s, owner, new),
        lambda s: service.create_key(s, owner, service.NewKey("late", service.KeyLimits())),
        lambda s: service.create_owner(s, seller, tree.left.tenant_id, name="E", email="e@e.example"),
    ]
    for job in late:
        with pytest.raises(DomainError):
            work(database.engine, job)
