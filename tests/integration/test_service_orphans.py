"""
Services that outlive what they belong to, on a simulated cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.providers.services import ServiceSpec
from tests.conftest import Database
from tests.factories.services import ServiceWorld, service_world
from workers.sweeps import Suspects, mend, reap_services


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[ServiceWorld]:
    """Two tenants with a Kubernetes cluster each."""
    with service_world(database, tmp_path) as made:
        yield made


def spec(world: ServiceWorld, service_id: str) -> ServiceSpec:
    """
    A service of the first customer as its cluster would be told of it.
    """
    where = (world.customer.cluster, world.customer.tenant)
    return ServiceSpec(service_id, *where, version=1, turn=1, image="example.org/echo:1", port=8000, replicas=1)


def arrive(world: ServiceWorld, service_id: str) -> None:
    """
    A create that was under way all the time reaches a cluster that keeps no memory of what it removed.
    """
    world.jobs.clock.advance(60.0)
    world.jobs.sim.play("deletion_forgotten", "apply_service")
    world.jobs.tools.services(world.jobs.provider).apply_service(spec(world, service_id))


def listed(world: ServiceWorld) -> tuple[str, ...]:
    """
    What the cluster really has.
    """
    return world.jobs.tools.services(world.jobs.provider).list_services(world.customer.cluster)


def deleted(world: ServiceWorld, name: str = "chat") -> str:
    """
    The id of a service that ran and is deleted.
    """
    path = world.start(world.body(name))
    made = world.until_state(path, "running")
    assert world.call("DELETE", path, If_Match="*")[0] == 202
    world.until_state(path, "deleted")
    return str(made["id"])


def look(world: ServiceWorld, suspects: Suspects, after_s: float = 60.0) -> int:
    """
    How many services the next look of the reaper removed.
    """
    world.jobs.clock.advance(after_s)
    return reap_services(world.jobs.database.engine, world.jobs.tools, suspects)


def test_a_create_that_arrives_after_the_delete_is_removed(world: ServiceWorld) -> None:
    """It arrives long after the cluster was seen without the service twice; two looks later it is gone, and no other service is."""
    path = world.start(world.body("stays"))
    stays = world.until_state(path, "running")["id"]
    late = deleted(world)
    suspects: Suspects = {}
    assert look(world, suspects) == 0
    world.jobs.clock.advance(600)
    arrive(world, late)
    assert set(listed(world)) == {stays, late}
    assert look(world, suspects) == 0
    world.jobs.sim.play("partial_list", "list_services", params={"share": 0.0})
    assert look(world, suspects) == 0
    world.jobs.sim.play("refuse_before_effect", "delete_service")
    assert look(world, suspects) == 0
    assert look(world, suspects) == 1
    world.until(lambda: set(listed(world)) == {stays})
    assert world.rows("SELECT resource_id FROM events WHERE type = 'service.reaped'") == [(late,)]
    assert look(world, suspects) == 0


def test_what_is_young_unknown_or_too_many_stays(world: ServiceWorld) -> None:
    """A service just deleted, one without a row and many at once are left alone; operators read of the last two."""
    gone = [deleted(world, f"s{number}") for number in range(4)]
    peer = world.jobs.tools.services(world.jobs.provider)
    peer.apply_service(spec(world, "svc_stranger"))
    suspects: Suspects = {}
    for one in gone:
        arrive(world, one)
    world.jobs.clock.advance(600)
    assert [look(world, suspects) for _ in range(3)] == [0, 0, 0]
    assert set(listed(world)) == {*gone, "svc_stranger"}
    told = world.rows("SELECT resource_id, data->>'why' AS why FROM events WHERE type = 'service.orphan'")
    assert sorted(told) == sorted([*((one, "too_many") for one in gone), ("svc_stranger", "unknown_service")])
    world.jobs.database.reset()
    assert look(world, suspects) == 0
    assert set(listed(world)) == {*gone, "svc_stranger"}


def test_suspects_are_forgotten_with_their_process(world: ServiceWorld) -> None:
    """A new process begins to count anew: it removes later, never sooner."""
    late = deleted(world)
    arrive(world, late)
    world.jobs.clock.advance(600)
    assert [look(world, {}), look(world, {})] == [0, 0]


@pytest.mark.parametrize("rest", ["suspended", "failed"])
def test_a_service_at_rest_goes_with_its_cluster(world: ServiceWorld, rest: str) -> None:
    """Nobody looks at it while it rests; it stays as long as its cluster does, and ends with it."""
    if rest == "failed":
        world.jobs.sim.play("refused_final", "apply_service")
    path = world.start()
    if rest == "suspended":
        world.until_state(path, "running")
        world.act(path, "suspend")
    world.until_state(path, rest)
    assert mend(world.jobs.database.engine) == 0
    world.jobs.set_cluster_state("deleting", world.customer)
    assert mend(world.jobs.database.engine) == 1
    assert world.get(path)["status"]["state"] == "deleting"
    assert mend(world.jobs.database.engine) == 0
    assert world.until_state(path, "deleted")["status"]["replicas"] == []
    moves = [row.after for row in world.rows("SELECT after FROM state_history WHERE kind = 'service' ORDER BY id")]
    assert moves[-3:] == [rest, "deleting", "deleted"]
