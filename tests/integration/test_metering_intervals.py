"""
Intervals open and close once, whatever is repeated or arrives late.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, Wall, raise_wall
from controlplane.kit.paging import PageAsk
from controlplane.metering import service as metering
from tests.conftest import Database
from tests.factories.metering import START, held, opening, seller, tenant

HOUR = timedelta(hours=1)
US = 1_000_000
YEAR = START + timedelta(days=365)


def node_us(session: Session, tenant_id: str) -> int:
    """
    Everything that the tenant ever held.
    """
    return metering.usage(session, tenant_id, from_=START - timedelta(days=365), to=YEAR)[0].node_us


@pytest.fixture
def customer(session: Session) -> str:
    """A tenant of a seller."""
    return tenant(session, seller(session))


def test_a_closed_interval_is_what_was_held(session: Session, customer: str) -> None:
    """From usable to release accepted, with the evidence of both ends."""
    one = opening(customer)
    assert metering.open_intervals(session, [one]) == [one.allocation_id]
    assert metering.close_intervals(session, [one.allocation_id], at=START + HOUR, evidence="opr_end") == [one.allocation_id]
    assert node_us(session, customer) == 3600 * US
    window = metering.window(session, START, YEAR)
    (shown,) = metering.list_intervals(session, PageAsk(), window, tenant_id=customer).items
    assert (shown.started_at, shown.ended_at, shown.opened_by, shown.closed_by) == (START, START + HOUR, "opr_start", "opr_end")


def test_doubled_and_shuffled_calls_meter_once(session: Session, customer: str) -> None:
    """BR-097: two starts, two stops, a stop before the start and a start after the stop: one interval, never negative."""
    for seed in range(30):
        one = opening(customer)
        before = node_us(session, customer)
        calls = ["open", "open", "close", "close"]
        random.Random(seed).shuffle(calls)
        for call in calls:
            if call == "open":
                metering.open_intervals(session, [one, one])
            else:
                metering.close_intervals(session, [one.allocation_id] * 2, at=START + HOUR, evidence="opr_end")
        metering.close_intervals(session, [one.allocation_id], at=START + HOUR, evidence="opr_late")
        assert node_us(session, customer) - before == 3600 * US


@pytest.mark.parametrize("early", [timedelta(0), timedelta(microseconds=1), HOUR])
def test_a_release_before_the_start_bills_nothing(session: Session, customer: str, early: timedelta) -> None:
    """An empty interval is no interval, and a late repeat of the start cannot open another."""
    one = opening(customer)
    metering.open_intervals(session, [one])
    assert metering.close_intervals(session, [one.allocation_id], at=START - early, evidence="opr_end") == [one.allocation_id]
    assert metering.open_intervals(session, [one]) == []
    assert metering.close_intervals(session, [one.allocation_id], at=START + HOUR, evidence="opr_end") == []
    assert node_us(session, customer) == 0
    assert metering.list_intervals(session, PageAsk(), metering.window(session, START, YEAR), tenant_id=customer).items == ()


def test_a_start_is_never_before_the_allocation_nor_in_the_future(session: Session, customer: str) -> None:
    """The provider's word is taken between the allocation's own start and now."""
    now = session.execute(text("SELECT cp_clock()")).scalar_one()
    early = opening(customer, usable_at=START - HOUR)
    late = opening(customer, usable_at=now + timedelta(days=9))
    silent = opening(customer, usable_at=None)
    metering.open_intervals(session, [early, late, silent])
    after = session.execute(text("SELECT cp_clock()")).scalar_one()
    window = metering.window(session, START, after + HOUR)
    begun = {one.allocation_id: one.started_at for one in metering.list_intervals(session, PageAsk(), window).items}
    assert begun[early.allocation_id] == START
    assert now <= begun[late.allocation_id] <= after
    assert now <= begun[silent.allocation_id] <= after


def test_the_clock_is_the_statements_not_the_transactions(session: Session, customer: str) -> None:
    """R24: what opens late in a long transaction is not billed from its beginning."""
    began = session.execute(text("SELECT now()")).scalar_one()
    session.execute(text("SELECT pg_sleep(0.05)"))
    one = opening(customer, usable_at=None)
    metering.open_intervals(session, [one])
    (shown,) = metering.list_intervals(session, PageAsk(), metering.window(session, START, None)).items
    assert shown.started_at >= began + timedelta(milliseconds=50)


def test_an_open_interval_counts_up_to_now(session: Session, customer: str) -> None:
    """Nothing is billed that has not happened, however far the window reaches."""
    now = session.execute(text("SELECT cp_clock()")).scalar_one()
    metering.open_intervals(session, [opening(customer, usable_at=now - HOUR)])
    counted = metering.usage(session, customer, from_=START, to=now + timedelta(days=9))[0].node_us
    after = session.execute(text("SELECT cp_clock()")).scalar_one()
    assert 3600 * US <= counted <= 3600 * US + (after - now) / timedelta(microseconds=1)


def test_a_failed_write_leaves_the_retry_free(database: Database) -> None:
    """BR-094: the mark that it was done and the doing are one row."""
    with Session(database.engine) as session:
        raise_wall(session, EVERYTHING)
        customer = tenant(session, seller(session))
        session.commit()
        one = opening(customer)
        for _ in range(2):
            raise_wall(session, EVERYTHING)
            assert metering.open_intervals(session, [one]) == [one.allocation_id]
            session.rollback()
        raise_wall(session, EVERYTHING)
        assert metering.open_intervals(session, [one]) == [one.allocation_id]
        for _ in range(2):
            with session.begin_nested() as savepoint:
                metering.close_intervals(session, [one.allocation_id], at=START + HOUR, evidence="opr_end")
                savepoint.rollback()
        assert metering.close_intervals(session, [one.allocation_id], at=START + HOUR, evidence="opr_end") == [one.allocation_id]
        assert node_us(session, customer) == 3600 * US


def test_parallel_starts_of_one_allocation_are_one(database: Database) -> None:
    """The second of two that both saw it usable waits for the first, and then finds it done."""
    with Session(database.engine) as session, session.begin():
        raise_wall(session, EVERYTHING)
        customer = tenant(session, seller(session))
    one = opening(customer)

    def start() -> list[str]:
        with Session(database.engine) as session, session.begin():
            raise_wall(session, EVERYTHING)
            return metering.open_intervals(session, [one])

    with Session(database.engine) as first, ThreadPoolExecutor(1) as pool:
        raise_wall(first, EVERYTHING)
        assert metering.open_intervals(first, [one]) == [one.allocation_id]
        second = pool.submit(start)
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid IS NOT NULL")
        with database.owner.connect() as watcher:
            while not second.done() and not watcher.execute(waiting).scalar_one():
                watcher.rollback()
        first.commit()
        assert second.result() == []


@pytest.mark.parametrize("during", ["[2024-03-01,2024-03-02]", "(2024-03-01,2024-03-02)", "(,2024-03-02)"])
def test_other_than_half_open_ranges_cannot_be_stored(session: Session, customer: str, during: str) -> None:
    """R25: closed, open and endless-before ranges are refused by the database itself."""
    one = opening(customer)
    metering.open_intervals(session, [one])
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(text("UPDATE meter_intervals SET during = CAST(:during AS tstzrange)"), {"during": during})


def test_one_allocation_cannot_be_metered_twice_at_once(session: Session, customer: str) -> None:
    """The database refuses an overlapping interval, however it is written."""
    one = opening(customer)
    metering.open_intervals(session, [one])
    copy = text(
        "INSERT INTO meter_intervals SELECT 'mtr_copy', tenant_id, project_id, cluster_id, allocation_id, instance_id, instance_type,"
        " site, gpus, mode, tstzrange(lower(during) + interval '1 hour', NULL), opened_by, closed_by FROM meter_intervals"
    )
    with pytest.raises(IntegrityError), session.begin_nested():
        session.execute(copy)


def test_a_tenant_sees_its_own_intervals_only(session: Session) -> None:
    """The query names the tenant, and the wall hides the rest even where it does not."""
    home = seller(session)
    mine, foreign = tenant(session, home), tenant(session, home)
    held(session, opening(mine), START + HOUR)
    held(session, opening(foreign), START + 2 * HOUR)
    assert node_us(session, mine) == 3600 * US
    session.flush()
    raise_wall(session, Wall(tenant_id=mine))
    assert node_us(session, foreign) == 0
    assert metering.usage(session, None, from_=START, to=YEAR)[0].node_us == 3600 * US
    window = metering.window(session, START, YEAR)
    assert {one.tenant_id for one in metering.list_intervals(session, PageAsk(), window).items} == {mine}
