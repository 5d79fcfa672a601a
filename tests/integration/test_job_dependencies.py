"""
Jobs that wait for others of their project: held until they may start, on whatever clusters these run, and cancelled when they never can.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from controlplane.kit.errors import NotFound
from tests.conftest import Database
from tests.factories.jobs import JobWorld, job_world

LONG = "#!/bin/bash\nsleep 50\n"
BAD = "#!/bin/bash\nsleep 50\nexit 3\n"
QUICK = "#!/bin/bash\necho done\n"


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[JobWorld]:
    """
    A tenant with a running cluster of four nodes.
    """
    with job_world(database, tmp_path) as one:
        yield one


def after(world: JobWorld, *parents: str, condition: str = "afterok") -> str:
    """
    A quick job that waits for the others.
    """
    return world.order(QUICK, depends_on=[{"job_id": one, "condition": condition} for one in parents])


def test_a_job_starts_when_those_it_waits_for_have_succeeded(world: JobWorld) -> None:
    """It is held by us, says for what, is never with the scheduler before, and starts at once when the last of them ends."""
    first, second = world.order(LONG), world.order("#!/bin/bash\nsleep 90\n")
    job_id = after(world, first, second)
    world.until_state(first, "running")
    assert world.job(job_id).reason == f"Waits for {first} to succeed and 1 other."
    world.until_state(first, "succeeded")
    world.settle()
    assert (world.job(job_id).state, world.job(job_id).reason) == ("queued", f"Waits for {second} to succeed.")
    assert f"{job_id}-1" not in dict(world.submissions())
    parent = world.until_state(second, "succeeded")
    child = world.until_state(job_id, "succeeded", within_s=20)
    assert parent.ended_at is not None
    assert child.started_at is not None
    assert child.started_at >= parent.ended_at


def test_a_job_waits_for_one_on_another_cluster(world: JobWorld) -> None:
    """Of the same project: it starts on its own cluster when the other has ended on the other."""
    other = world.add_cluster(world.customer, world.spare_refs[:1])
    parent = world.order(LONG, cluster_id=other)
    child = after(world, parent)
    lost = world.order(QUICK, cluster_id=other, depends_on=[{"job_id": world.order(BAD)}])
    world.until_state(parent, "running")
    assert world.job(child).reason == f"Waits for {parent} to succeed."
    done = world.until_state(child, "succeeded")
    ended = world.job(parent)
    assert (ended.cluster_id, done.cluster_id) == (other, world.customer.cluster)
    assert ended.ended_at is not None
    assert done.started_at is not None
    assert done.started_at >= ended.ended_at
    assert world.until_state(lost, "cancelled").issues[0]["code"] == "dependency_failed"


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_what_can_never_start_is_cancelled_with_the_reason(world: JobWorld, end: str) -> None:
    """And so is what waits for it in turn; whoever only waits for an end starts."""
    parent = world.order(BAD if end == "failed" else LONG)
    child, other = after(world, parent), after(world, parent, condition="afterany")
    grandchild = after(world, child)
    world.until_state(parent, "running")
    if end == "cancelled":
        world.cancel(parent)
    world.until_state(parent, end)
    job = world.until_state(child, "cancelled", within_s=10)
    assert job.issues[0]["code"] == "dependency_failed"
    assert parent in job.reason
    assert "failed" in job.reason if end == "failed" else "was cancelled" in job.reason
    assert child in world.until_state(grandchild, "cancelled", within_s=10).reason
    world.until_state(other, "succeeded")
    assert {token for token, _ in world.submissions()} == {f"{parent}-1", f"{other}-1"}


def test_a_restart_of_its_parent_is_not_its_end(world: JobWorld) -> None:
    """A parent that a node failed under starts again, and its child waits on."""
    world.sim.play("job_fabric_fault", "submit", count=1)
    parent = world.order(LONG)
    child = after(world, parent)
    world.until(lambda: world.job(parent).attempt == 2)
    assert world.job(child).state == "queued"
    world.until_state(child, "succeeded")
    assert world.job(parent).state == "succeeded"


def test_a_held_job_can_be_cancelled(world: JobWorld) -> None:
    """It ends at once; its parent runs on."""
    parent = world.order(LONG)
    child = after(world, parent)
    world.until_state(parent, "running")
    world.cancel(child)
    world.settle()
    assert world.job(child).state == "cancelled"
    assert world.job(parent).state == "running"


def test_another_tenants_job_is_no_job_to_wait_for(world: JobWorld) -> None:
    """NotFound, as for one that never was; nothing is stored."""
    other = world.add_customer(world.spare_refs[:1])
    foreign = world.order(QUICK, customer=other)
    for wrong in (foreign, "job_00000000000000000000000000"):
        with pytest.raises(NotFound):
            after(world, wrong)
    with world.database.owner.begin() as connection:
        connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        assert connection.execute(text("SELECT count(*) FROM jobs")).scalar_one() == 1
