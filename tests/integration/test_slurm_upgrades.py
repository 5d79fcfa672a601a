"""
Upgrades of a Slurm of one's own, as rows: workers are installed anew a few at a time, jobs end first, what fails stops and waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.activity import service as activity
from controlplane.clusters import service as clusters
from controlplane.clusters import upgrading
from controlplane.clusters.errors import NotChangeable
from controlplane.kit.errors import Invalid, OperationActive
from tests.factories.world import World
from tests.integration.test_bare_nodes import Rack, only_bare
from tests.integration.test_bare_nodes import order as order_bare
from tests.integration.test_dedicated_slurm import OwnRack, members, order, wanted


class Seen(OwnRack):
    """A rack that notes what was out of use at once, and what was cut off."""

    most_out = 0
    cut: set[str]

    def note(self) -> None:
        """What is being installed now is out of use; nothing on it may run."""
        query = """
            SELECT replace(a.instance_id, '_', '-') AS name, n.state, n.id FROM nodes n JOIN allocations a ON a.id = n.allocation_id
            WHERE a.state = 'active' AND n.state IN ('reinstalling', 'stopped')"""
        out = {row.name for row in self.world.rows(query)}
        self.most_out = max(self.most_out, len(out), len(self.leaving()))
        self.cut |= out & self.head.busy

    def leaving(self) -> list[str]:
        """Whom the head gives no jobs."""
        return self.head.files["/etc/slurm/leaving"].split() if self.head.files else []

    def _report(self, session: Any, row: Any) -> None:
        if row.purpose == "deploy" and row.node_id in self.broken:
            Rack._report(self, session, row)
        else:
            super()._report(session, row)

    def _speak(self) -> int:
        spoke = super()._speak()
        self.note()
        return spoke


@pytest.fixture
def rack(world: World) -> Iterator[Seen]:
    """Five bare machines, and a Slurm of one's own on four of them: a head and three workers."""
    made = Seen(world, 5)
    made.cut = set()
    only_bare(world)
    made.settle()
    order(world, wanted(world, 3))
    made.settle()
    made.most_out = 0
    yield made
    assert made.cut == set()


def cluster_of(world: World) -> str:
    """Its id."""
    return str(world.rows("SELECT id FROM clusters")[0].id)


def upgrade(world: World, **wish: Any) -> str:
    """The id of the operation that was just begun."""
    at = (world.tenant, world.keys.project_id, cluster_of(world), lambda version: None)
    return str(world.do(lambda s: upgrading.upgrade_workers(s, *at, upgrading.Wish(**wish)))[1])


def operation(world: World, operation_id: str) -> Any:
    """Where it stands."""
    return world.rows("SELECT state, reason, error FROM operations WHERE id = :id", id=operation_id)[0]


def ends(rack: Seen, operation_id: str, most: int = 400) -> Any:
    """Where the operation stands once it does not go on by itself."""
    for _ in range(0, most, 5):
        rack.settle(5)
        seen = operation(rack.world, operation_id)
        if seen.state not in {"pending", "running"}:
            return seen
    raise AssertionError(seen)


def deployed(world: World) -> dict[str, int]:
    """By instance: how often it was deployed."""
    query = """
        SELECT replace(a.instance_id, '_', '-') AS name, count(*) AS n FROM boots b JOIN allocations a ON a.id = b.allocation_id
        WHERE b.purpose = 'deploy' GROUP BY 1"""
    return {row.name: row.n for row in world.rows(query)}


@pytest.mark.parametrize("at_once", [1, 2])
def test_workers_are_installed_anew_a_few_at_a_time(world: World, rack: Seen, at_once: int) -> None:
    """Each worker is deployed once more under its name, the head is not; never are more out than was said; all are in use after."""
    begun = upgrade(world, at_once=at_once)
    ends(rack, begun)
    rack.settle(20)
    assert operation(world, begun).state == "succeeded"
    assert deployed(world) == {**dict.fromkeys(members(world, "worker"), 2), members(world, "head")[0]: 1}
    assert rack.most_out == at_once
    assert rack.leaving() == []
    assert world.rows("SELECT state, reason FROM clusters") == [("running", "All 3 nodes answer.")]
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(4,)]
    (kept,) = world.rows("SELECT upgrade->'done' AS done, upgrade->'batch' AS batch FROM clusters")
    assert (len(kept.done), kept.batch) == (3, [])


def test_running_jobs_end_first(world: World, rack: Seen) -> None:
    """While a job runs on the drained worker nothing is installed; when it has ended the upgrade goes on by itself."""
    rack.head.busy = set(members(world, "worker"))
    begun = upgrade(world)
    rack.settle(100)
    assert len(rack.leaving()) == 1
    assert set(deployed(world).values()) == {1}
    assert world.rows("SELECT state, reason FROM clusters") == [("upgrading", "Waits for running jobs on 1 of 1 workers.")]
    rack.head.busy = set()
    assert ends(rack, begun).state == "succeeded"


def test_jobs_are_waited_for_as_long_as_was_said(world: World, rack: Seen) -> None:
    """A moment before the limit the job still runs; after it the worker is installed all the same."""
    (busy, *_) = members(world, "worker")
    rack.head.busy = {busy}
    begun = upgrade(world, at_once=3, drain_limit_s=1000.0)
    started = world.clock()
    while (world.clock() - started).total_seconds() < 990:
        rack.settle(5)
        assert busy in rack.leaving()
        assert set(deployed(world).values()) == {1}
    rack.head.busy = set()  # what the scheduler does with a job whose node is gone
    assert ends(rack, begun).state == "succeeded"


def test_a_worker_that_fails_stops_the_upgrade_until_a_person_lets_it_go_on(world: World, rack: Seen) -> None:
    """The others keep their work, nothing else is taken out, a person sees which one; resumed, the same worker is tried again."""
    (first,) = world.rows(
        "SELECT a.node_id FROM allocations a JOIN node_sets s ON s.id = a.node_set_id WHERE s.role = 'worker' ORDER BY a.id LIMIT 1"
    )
    rack.broken = {first.node_id}
    begun = upgrade(world)
    seen = ends(rack, begun)
    assert (seen.state, seen.error["code"]) == ("needs_attention", "upgrade_worker_failed")
    assert len(rack.leaving()) == 1
    assert sorted(deployed(world).values()) == [1, 1, 1, 2]
    rack.broken = set()
    world.do(lambda s: activity.resolve_resource(s, cluster_of(world), "resume"))
    assert ends(rack, begun).state == "succeeded"
    assert rack.leaving() == []


def test_a_worker_that_does_not_come_back_stops_the_upgrade(world: World, rack: Seen) -> None:
    """One that the scheduler never sees again is shown to a person; when it is back the upgrade goes on."""
    (first, *_) = members(world, "worker")
    rack.head.dead = {first}
    begun = upgrade(world)
    seen = ends(rack, begun, 2000)
    assert (seen.state, seen.error["code"]) == ("needs_attention", "upgrade_worker_not_back")
    assert rack.leaving() == [first]
    rack.head.dead = set()
    world.do(lambda s: activity.resolve_resource(s, cluster_of(world), "resume"))
    assert ends(rack, begun).state == "succeeded"


def test_an_upgrade_is_stopped_between_workers(world: World, rack: Seen) -> None:
    """Asked to stop while a worker drains, it installs nothing more and gives the worker jobs again; a new one may follow."""
    rack.head.busy = set(members(world, "worker"))
    begun = upgrade(world)
    rack.settle(100)
    world.do(lambda s: activity.cancel_operation(s, world.tenant, begun))
    assert ends(rack, begun).state == "cancelled"
    rack.settle(20)
    assert rack.leaving() == []
    assert set(deployed(world).values()) == {1}
    rack.head.busy = set()
    again = upgrade(world)
    assert ends(rack, again).state == "succeeded"


def test_what_cannot_be_upgraded_is_refused(world: World, rack: Seen) -> None:
    """Unknown sets, heads, a second upgrade, and clusters whose owner has no Slurm of its own."""
    for name in ("nobody", "head"):
        with pytest.raises(Invalid, match="no workers"):
            upgrade(world, node_sets=(name,))
    upgrade(world)
    with pytest.raises(OperationActive):
        upgrade(world)
    at = (world.tenant, world.keys.project_id)
    other = order_bare(world, 1)
    with pytest.raises(NotChangeable, match="Only a Slurm"):
        world.do(lambda s: upgrading.upgrade_workers(s, *at, other, lambda version: None, upgrading.Wish()))
    view = world.do(lambda s: clusters.get_cluster(s, *at, other))
    assert clusters.allowed_actions(view)["upgrade"].startswith("Only a Slurm")
    assert world.do(lambda s: s.execute(text("SELECT count(*) FROM clusters WHERE upgrade IS NOT NULL")).scalar_one()) == 1
