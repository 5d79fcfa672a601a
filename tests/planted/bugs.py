"""
Each bug as a context manager that changes the test database or the objects of one world, and puts back what it changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.clusters.states import ClusterFacts
from controlplane.kit.db import EVERYTHING, in_transaction
from controlplane.kit.lifecycle import Driver, Kind, Result, Tempo
from controlplane.kit.outcome import Advance, Fail, Outcome, Wait
from controlplane.nodes import allocating
from controlplane.nodes.states import NodeFacts, NodeSnapshot
from controlplane.providers.errors import NotFound
from controlplane.providers.toolbox import Toolbox
from controlplane.quotas import service as quotas
from tests.conftest import CLOCK, Database
from tests.factories.world import World

CONSTRAINTS = (
    (
        "DROP INDEX uq_allocations_active",
        "CREATE UNIQUE INDEX uq_allocations_active ON allocations (node_id) WHERE state <> 'ended'",
    ),
    (
        "ALTER TABLE allocations DROP CONSTRAINT ex_allocations_one_tenant",
        "ALTER TABLE allocations ADD CONSTRAINT ex_allocations_one_tenant EXCLUDE USING gist (node_id WITH =, during WITH &&)",
    ),
)


@contextmanager
def _sql(database: Database, *changes: tuple[str, str]) -> Iterator[None]:
    with database.owner.begin() as connection:
        for change, _ in changes:
            connection.exec_driver_sql(change)
    try:
        yield
    finally:
        database.reset()
        with database.owner.begin() as connection:
            for _, back in changes:
                connection.exec_driver_sql(back)


@contextmanager
def no_allocation_constraints(database: Database) -> Iterator[None]:
    """
    The unique index and the exclusion constraint of active allocations are dropped.
    """
    with _sql(database, *CONSTRAINTS):
        yield


@contextmanager
def transaction_time(database: Database) -> Iterator[None]:
    """
    `now()` for `clock_timestamp()`.
    """
    with _sql(database, (CLOCK.format(body="now()"), CLOCK.format(body="clock_timestamp()"))):
        yield


@contextmanager
def no_wipe_trigger(database: Database) -> Iterator[None]:
    """
    Nothing in the database asks for a verified wipe newer than the last tenancy.
    """
    off, on = (f"ALTER TABLE nodes {word} TRIGGER wiped_before_available" for word in ("DISABLE", "ENABLE"))
    with _sql(database, (off, on)):
        yield


@contextmanager
def no_tenant_wall(database: Database) -> Iterator[None]:
    """
    The filter on tenants is gone from clusters.
    """
    off, on = (f"ALTER TABLE clusters {word} ROW LEVEL SECURITY" for word in ("DISABLE", "ENABLE"))
    with _sql(database, (off, on)):
        yield


def _driven(world: World, name: str, change: Callable[[Kind], Kind]) -> None:
    world.drivers[name] = Driver(world.engine, change(world.drivers[name].kind), Tempo())


@contextmanager
def _driver(world: World, name: str, change: Callable[[Kind], Kind]) -> Iterator[None]:
    before = world.drivers[name]
    _driven(world, name, change)
    try:
        yield
    finally:
        world.drivers[name] = before


@contextmanager
def meter_skipped(world: World) -> Iterator[None]:
    """
    Clusters come to run without their meters: the outcome's facts are dropped.
    """

    def change(kind: Kind) -> Kind:
        def apply(session: Session, results: Sequence[Result]) -> None:
            kind.apply(session, [_without_usable(one) for one in results])

        return replace(kind, apply=apply)

    with _driver(world, "cluster", change):
        yield


def _without_usable(result: Result) -> Result:
    outcome = result.outcome
    if not isinstance(outcome.facts, ClusterFacts):
        return result
    return replace(result, outcome=replace(outcome, facts=replace(outcome.facts, usable_at={})))


@contextmanager
def wipe_failure_swallowed(world: World) -> Iterator[None]:
    """
    A failed wipe is reported as a verified one.
    """

    def change(kind: Kind) -> Kind:
        def clean(node: NodeSnapshot, tools: Toolbox) -> Outcome:
            outcome = kind.steps["cleaning"](node, tools)
            if not isinstance(outcome, Fail):
                return outcome
            facts = NodeFacts(wipe_id=node.task_id, wipe_finished_at=world.clock(), wipe_verified=True)
            return Advance("available", "Wiped.", facts=facts)

        return replace(kind, steps={**kind.steps, "cleaning": clean})

    with _driver(world, "node", change):
        yield


@contextmanager
def absence_is_an_error(world: World) -> Iterator[None]:
    """
    A cluster that is not found when it is to be deleted is taken for a failure, and asked for again.
    """

    def change(kind: Kind) -> Kind:
        def delete(cluster: Any, tools: Toolbox) -> Outcome:
            try:
                tools.clusters(cluster.provider).observe_cluster(cluster.id)
            except NotFound:
                return Wait("The provider fails.", 1.0)
            return kind.steps["deleting"](cluster, tools)

        return replace(kind, steps={**kind.steps, "deleting": delete})

    with _driver(world, "cluster", change):
        yield


class Fenceless(Driver):
    """
    A driver that believes every claim to be the latest.
    """

    def _apply(self, session: Session, results: Sequence[Result]) -> int:
        found = {row.id: row for row in session.execute(self._lock_sql, {"ids": [one.claim.id for one in results]}).all()}
        trusted = [
            replace(one, claim=replace(one.claim, fence=found[one.claim.id].fence, state=found[one.claim.id].state))
            if found[one.claim.id].state == one.claim.state
            else one
            for one in results
        ]
        return super()._apply(session, trusted)


@contextmanager
def no_fence(world: World) -> Iterator[None]:
    """
    The fence is not compared.
    """
    before = dict(world.drivers)
    for name, driver in before.items():
        world.drivers[name] = Fenceless(world.engine, driver.kind, Tempo())
    try:
        yield
    finally:
        world.drivers.update(before)


class _Renaming:
    """
    An adapter that is told another name at every call.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    def submit(self, job: Any, *more: Any, **named: Any) -> Any:
        """
        Submits under a token of its own.
        """
        return self._adapter.submit(replace(job, token=f"{job.token}-{secrets.token_hex(3)}"), *more, **named)

    def apply_cluster(self, spec: Any) -> Any:
        """
        Makes the cluster under one more name.
        """
        self._adapter.apply_cluster(replace(spec, cluster_id=f"{spec.cluster_id}-{secrets.token_hex(3)}", members=()))
        return self._adapter.apply_cluster(spec)


class _Careless(Toolbox):
    def adapter(self, provider: Any) -> Any:
        return _Renaming(super().adapter(provider))


@contextmanager
def random_names(world: World) -> Iterator[None]:
    """
    Names at the provider are not functions of our ids.
    """
    plain = world.toolbox

    def careless(skew_s: float = 0.0) -> Toolbox:
        made = plain(skew_s)
        made.__class__ = _Careless
        return made

    with mock.patch.object(world, "toolbox", careless):
        yield


@contextmanager
def unlocked_hold() -> Iterator[None]:
    """
    Nodes are taken whatever their state, and whoever has them.
    """
    careless = str(allocating.TAKE.text).replace("AND n.state = 'available' AND n.allocation_id IS NULL", "")
    with mock.patch.object(allocating, "TAKE", text(careless)):
        yield


@contextmanager
def quota_in_its_own_transaction(database: Database) -> Iterator[None]:
    """
    Quota is taken and committed before the order is.
    """
    plain = quotas.take

    def take(session: Session, chain: Any, needs: Any, **more: Any) -> None:
        del session
        wanted = list(needs)
        in_transaction(database.engine, EVERYTHING, lambda own: plain(own, chain, wanted, **more))

    with mock.patch.object(quotas, "take", take):
        yield


@contextmanager
def quota_kept() -> Iterator[None]:
    """
    What was held is not given back.
    """
    with mock.patch.object(quotas, "give_back", return_value=None):
        yield
