"""
Limits under parallel takes, on a real Postgres, without retries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy.orm import Session

from controlplane.kit.db import EVERYTHING, Wall, make_engine, raise_wall
from controlplane.kit.errors import QuotaExceeded
from controlplane.quotas import service as quotas
from controlplane.quotas.service import Chain, Need
from tests.conftest import Database
from tests.factories.quotas import chain

THREADS = 16


def committed(database: Database, wall: Wall, work: Callable[[Session], object]) -> None:
    """
    The work is committed; a deadlock is an error here.
    """
    with Session(database.engine) as session, session.begin():
        raise_wall(session, wall)
        work(session)


def take_all(database: Database, asks: Sequence[tuple[Chain, Sequence[Need]]]) -> int:
    """
    How many of the parallel takes were granted.
    """

    def one(ask: tuple[Chain, Sequence[Need]]) -> int:
        path, needs = ask
        try:
            committed(database, Wall(tenant_id=path.tenant_id or ""), lambda session: quotas.take(session, path, needs))
        except QuotaExceeded:
            return 0
        return 1

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(one, asks))


def drifts(database: Database, held: Sequence[tuple[Chain, Need]]) -> list[quotas.Drift]:
    """
    The drift of all counters.
    """
    with Session(database.engine) as session:
        raise_wall(session, EVERYTHING)
        return quotas.recount(session, held)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_500_takes_of_10_leave_exactly_10(database: Database, level: int) -> None:
    """BR-061: whichever level limits, over several tenants where it is a seller's or the platform's, exactly 10 are granted."""
    first = chain()
    paths = [first] + [chain(first.reseller_id) for _ in range(4)] if level < 2 else [first]
    committed(database, EVERYTHING, lambda session: quotas.open_counters(session, first.scopes()[level], {"clusters": 10}))
    asks = [(paths[number % len(paths)], [Need("clusters", 1), Need("gpus", 8, "H100", "osl1")]) for number in range(500)]
    assert take_all(database, asks) == 10
    with Session(database.engine) as session:
        raise_wall(session, EVERYTHING)
        held = quotas.get_scoped(session, first.scopes()[level].id)
        assert {(one.resource, one.gpu_model): one.used for one in held.counters if one.used} == {
            ("clusters", ""): 10,
            ("gpus", ""): 80,
            ("gpus", "H100"): 80,
        }


def test_of_two_that_race_for_the_last_one_wins_each_time(database: Database) -> None:
    """BR-064: with 9 of 10 used exactly one of two is granted, never none, and the loser leaves nothing."""
    path = chain()
    committed(database, EVERYTHING, lambda session: quotas.open_counters(session, path.scopes()[2], {"gpus": 10}))
    assert take_all(database, [(path, [Need("gpus", 9, "H100", "osl1")])]) == 1
    for _ in range(60):
        assert take_all(database, [(path, [Need("gpus", 1, "H100", "osl1")])] * 2) == 1
        committed(database, EVERYTHING, lambda session: quotas.give_back(session, path, [Need("gpus", 1, "H100", "osl1")]))
    assert drifts(database, [(path, Need("gpus", 9, "H100", "osl1"))]) == []


def test_no_parallel_take_is_refused_for_being_parallel(database: Database) -> None:
    """BR-065: 64 parallel takes of 64 all succeed."""
    path = chain()
    committed(database, EVERYTHING, lambda session: quotas.open_counters(session, path.scopes()[3], {"clusters": 64}))
    assert take_all(database, [(path, [Need("clusters", 1)])] * 64) == 64


def test_counters_that_are_born_in_a_race_do_not_deadlock(database: Database) -> None:
    """Scopes without rows, asked for in every order of needs, at once."""
    seller = chain().reseller_id
    paths = [chain(seller) for _ in range(8)]
    needs = [Need("gpus", 8, "H100", "osl1"), Need("gpus", 4, "A100", "hel1"), Need("operations", 1), Need("clusters", 1)]
    asks = [(paths[number % 8], random.Random(number).sample(needs, 3)) for number in range(160)]
    assert take_all(database, asks) == 160
    assert drifts(database, [(path, need) for path, some in asks for need in some]) == []


def test_takes_and_returns_in_any_mix_come_back_to_the_start(database: Database) -> None:
    """I4: after everything is given back every counter is zero, with limits changing on the way and no deadlock."""
    first = chain()
    paths = [first, chain(first.reseller_id), chain(first.reseller_id, first.tenant_id), chain()]
    for path in paths:
        committed(database, EVERYTHING, partial(quotas.open_counters, scope=path.scopes()[2], limits={"gpus": 40}))

    def worker(seed: int) -> int:
        dice = random.Random(seed)
        refused = 0
        for turn in range(12):
            path = dice.choice(paths)
            needs = [Need("gpus", dice.choice([4, 8, 16]), dice.choice(["H100", "A100"]), "osl1"), Need("clusters", 1)]
            try:
                committed(database, Wall(tenant_id=path.tenant_id or ""), partial(quotas.take, chain=path, needs=needs))
            except QuotaExceeded:
                refused += 1
                continue
            if turn % 4 == 0:
                scope, model = dice.choice(path.scopes()), dice.choice(["H100", "A100"])
                committed(
                    database,
                    EVERYTHING,
                    partial(quotas.set_limit, scope=scope, resource="gpus", ceiling=400, gpu_model=model),
                )
            committed(database, EVERYTHING, partial(quotas.give_back, chain=path, needs=needs))
        return refused

    with ThreadPoolExecutor(THREADS) as pool:
        refusals = sum(pool.map(worker, range(THREADS)))
    assert drifts(database, []) == []
    assert refusals < THREADS * 12


def test_a_take_that_is_rolled_back_costs_nothing(database: Database) -> None:
    """BR-062: whatever fails after the take, the counter is where it was."""
    path = chain()
    committed(database, EVERYTHING, lambda session: quotas.open_counters(session, path.scopes()[2], {"gpus": 8}))
    for _ in range(20):
        with Session(database.engine) as session:
            raise_wall(session, EVERYTHING)
            quotas.take(session, path, [Need("gpus", 8, "H100", "osl1")])
            session.rollback()
    assert drifts(database, []) == []


def test_a_full_quota_is_still_full_after_a_restart(database: Database) -> None:
    """BR-055: nothing is held in memory: a new process admits none of 100."""
    path = chain()
    committed(database, EVERYTHING, lambda session: quotas.open_counters(session, path.scopes()[2], {"clusters": 10}))
    assert take_all(database, [(path, [Need("clusters", 1)])] * 10) == 10
    database.engine.dispose()
    fresh = make_engine(database.app_url)
    granted = 0
    for _ in range(100):
        with Session(fresh) as session:
            raise_wall(session, Wall(tenant_id=path.tenant_id or ""))
            try:
                quotas.take(session, path, [Need("clusters", 1)])
                granted += 1
            except QuotaExceeded:
                session.rollback()
    fresh.dispose()
    assert granted == 0
