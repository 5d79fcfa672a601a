"""
Arrays of jobs: a task for each index, so many under way at once, and where they stand added up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.jobs.states import folded
from tests.conftest import ROOT, Database
from tests.factories.jobs import JobApi, JobWorld, job_api, job_world

GUIDE = (ROOT / "docs" / "guides" / "job-arrays.md").read_text(encoding="utf-8")
TELLS = "#!/bin/bash\nsleep 20\necho task $ARRAY_INDEX\n"
BUSY = ("admitted", "starting", "running", "completing", "unknown")


@dataclass
class Setting:
    """
    Two tenants and the API of the first one's project.
    """

    world: JobWorld
    """Everything below."""
    api: JobApi
    """The first customer's key is `one`, the second's `two`."""

    def call(self, method: str, path: str, body: Any = None, *, key: str = "one") -> tuple[int, Any]:
        """
        Status and body of an answer below the first customer's project.
        """
        answer = self.api.call(key, method, f"/v1/projects/{self.world.customer.project}{path}", body)
        return answer.status_code, answer.json() if answer.content else None

    def submit(self, array: dict[str, Any], **spec: Any) -> Any:
        """
        The answer to an order of an array.
        """
        asked = {"cluster_id": self.world.customer.cluster, "script": TELLS, "restart": {"max_restarts": 1}, **spec}
        return self.call("POST", "/job-arrays", {"name": "sweep", "labels": {"team": "vision"}, "array": array, "spec": asked})

    def tasks(self, array: Any) -> dict[int, Any]:
        """
        The array's tasks by index, in the order they are listed.
        """
        items = self.call("GET", f"/jobs?array_id={array['id']}&limit=200")[1]["items"]
        return {one["array"]["index"]: one for one in items}

    def status(self, array: Any) -> Any:
        """
        Where it stands.
        """
        return self.call("GET", f"/job-arrays/{array['id']}")[1]["status"]

    def busy(self, array: Any) -> int:
        """
        How many of its tasks are under way.
        """
        return sum(number for state, number in self.status(array)["tasks"].items() if state in BUSY)


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """
    Two tenants with a cluster each.
    """
    with job_world(database, tmp_path) as world:
        world.add_customer(world.spare_refs[:1])
        api = job_api(database.engine)
        for key, customer in zip(("one", "two"), world.customers, strict=True):
            api.keys.known[key] = customer.principal()
        yield Setting(world, api)


def test_every_index_is_a_job_of_its_own(setting: Setting) -> None:
    """It knows its index, has its own output and end, and the array adds up; one that fails takes no other with it."""
    status, made = setting.submit({"first": 3, "last": 9, "step": 3}, script=TELLS + "exit $FAIL\n", env={"FAIL": "0"})
    assert (status, made["status"]["state"], made["status"]["total"]) == (202, "queued", 3), made
    tasks = setting.tasks(made)
    assert list(tasks) == [3, 6, 9]
    assert {one["labels"]["team"] for one in tasks.values()} == {"vision"}
    setting.world.until(lambda: setting.status(made)["state"] == "succeeded", within_s=120)
    assert {index: setting.world.output(one["id"]) for index, one in tasks.items()} == {n: f"task {n}\n" for n in (3, 6, 9)}
    assert setting.status(made)["tasks"] == {"succeeded": 3}


def test_no_more_than_so_many_are_under_way_at_once(setting: Setting) -> None:
    """At no instant, in the order of the indexes, and a place that is left is taken at once."""
    made = setting.submit({"last": 4, "max_parallel": 2})[1]
    most = 0
    for _ in range(200):
        setting.world.once()
        most = max(most, setting.busy(made))
        if setting.status(made)["state"] == "succeeded":
            break
        setting.world.clock.advance(2)
    assert (most, setting.status(made)["tasks"]) == (2, {"succeeded": 5})
    rows = [setting.world.job(one["id"]) for one in setting.tasks(made).values()]
    starts = [one.started_at for one in rows]
    assert starts == sorted(starts, key=str)
    # five tasks of twenty seconds, two at a time: nobody waited for a look that comes once a minute
    assert rows[-1].ended_at is not None
    assert starts[0] is not None
    assert (rows[-1].ended_at - starts[0]).total_seconds() < 110


def test_two_workers_give_no_place_away_twice(setting: Setting) -> None:
    """One has given all places away and not committed; the other, with tasks of its own in hand, waits for that before it counts."""
    made = setting.submit({"last": 5, "max_parallel": 3})[1]
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    with ThreadPoolExecutor(1) as pool, setting.world.database.owner.connect() as first, first.begin() as transaction:
        first.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        first.execute(text("SELECT 1 FROM job_arrays WHERE id = :id FOR NO KEY UPDATE"), {"id": made["id"]})
        first.execute(
            text("UPDATE jobs SET state = 'admitted', due_at = NULL WHERE array_id = :id AND array_index < 3"), {"id": made["id"]}
        )
        second = pool.submit(setting.world.driver.decide, 10)
        while not second.done() and not first.execute(waiting).scalar_one():
            pass
        transaction.commit()
        assert second.result() == 3
    assert setting.status(made)["tasks"] == {"admitted": 3, "queued": 3}


def test_a_task_that_pauses_before_its_restart_holds_no_place(setting: Setting) -> None:
    """Another takes it; the task starts again when one is free, and the array ends well."""
    setting.world.sim.play("job_fabric_fault", "submit", count=1)
    made = setting.submit({"last": 1, "max_parallel": 1})[1]
    first, second = setting.tasks(made).values()
    setting.world.until(lambda: setting.world.job(first["id"]).attempt == 2, every_s=1)
    assert setting.busy(made) <= 1
    setting.world.until(lambda: setting.status(made)["state"] == "succeeded", within_s=300)
    assert [setting.world.job(one["id"]).attempt for one in (first, second)] == [2, 1]


def test_an_array_is_cancelled_as_a_whole(setting: Setting) -> None:
    """What runs is stopped, what waits never starts, what has ended stays; again is refused with the state."""
    made = setting.submit({"last": 4, "max_parallel": 2})[1]
    setting.world.until(lambda: setting.status(made)["tasks"].get("succeeded", 0) == 2)
    status, told = setting.call("POST", f"/job-arrays/{made['id']}/actions/cancel")
    assert (status, told["status"]["cancel_requested_at"] is None) == (202, False)
    setting.world.until(lambda: setting.status(made)["state"] == "cancelled", within_s=60)
    assert setting.status(made)["tasks"] == {"succeeded": 2, "cancelled": 3}
    status, problem = setting.call("POST", f"/job-arrays/{made['id']}/actions/cancel")
    assert (status, problem["code"], problem["state"]) == (409, "job_array_ended", "cancelled")


def test_tasks_wait_for_the_jobs_that_the_array_waits_for(setting: Setting) -> None:
    """None starts before; when it never can, all are cancelled."""
    parent = setting.world.order("#!/bin/bash\nsleep 30\nexit 1\n")
    made = setting.submit({"last": 2}, depends_on=[{"job_id": parent}])[1]
    setting.world.until_state(parent, "running")
    assert setting.status(made)["state"] == "queued"
    setting.world.until_state(parent, "failed")
    setting.world.until(lambda: setting.status(made)["state"] == "cancelled", within_s=20)
    assert [token for token, _ in setting.world.submissions()] == [f"{parent}-1"]


@pytest.mark.parametrize(
    "array",
    [
        {"first": 3, "last": 2},
        {"last": 1000},
        {"first": -1, "last": 2},
        {"last": 2, "step": 0},
        {"last": 2, "max_parallel": 0},
        {"last": 2, "most": 1},
        {},
    ],
)
def test_ranges_that_are_none_are_refused(setting: Setting, array: dict[str, Any]) -> None:
    """Empty, too many, wrong numbers: 422, and no job."""
    assert setting.submit(array)[0] == 422
    assert setting.call("GET", "/jobs")[1]["items"] == []


def test_so_much_script_so_often_is_refused(setting: Setting) -> None:
    """A thousand times sixty kilobytes are not stored."""
    assert setting.submit({"last": 999}, script="#!/bin/sh\n" + "true\n" * 12_000)[0] == 422


def test_other_tenants_arrays_are_as_if_they_were_not(setting: Setting) -> None:
    """To read, to stop and as a filter; and nothing is ordered on their clusters."""
    made = setting.submit({"last": 1})[1]
    own = setting.world.customers[1].project
    for project in (setting.world.customer.project, own):
        path = f"/v1/projects/{project}/job-arrays/{made['id']}"
        assert setting.api.call("two", "GET", path).status_code == 404
        assert setting.api.call("two", "POST", f"{path}/actions/cancel").status_code == 404
    assert setting.api.call("two", "GET", f"/v1/projects/{own}/jobs?array_id={made['id']}").json()["items"] == []
    assert setting.api.call("two", "GET", f"/v1/projects/{own}/job-arrays").json()["items"] == []
    assert setting.submit({"last": 1}, cluster_id=setting.world.customers[1].cluster)[0] == 404
    assert [one["id"] for one in setting.call("GET", "/job-arrays")[1]["items"]] == [made["id"]]


def test_what_states_come_to() -> None:
    """Queued, running, and then the worst end."""
    assert folded({"queued": 2}) == "queued"
    assert folded({"queued": 2, "succeeded": 1}) == "running"
    assert folded({"unknown": 1, "failed": 1}) == "running"
    assert folded({"failed": 1, "cancelled": 1, "succeeded": 9}) == "failed"
    assert folded({"cancelled": 1, "succeeded": 9}) == "cancelled"
    assert folded({"succeeded": 9, "failed": 0}) == "succeeded"


def test_the_guides_example_works(setting: Setting) -> None:
    """What the guide tells tenants to send is taken as it stands, but for the cluster's id."""
    part = GUIDE.partition("## Arrays")[2].partition("\n## ")[0]
    (body,) = (json.loads(one) for one in re.findall(r"```json\n(.*?)```", part, re.DOTALL))
    body["spec"]["cluster_id"] = setting.world.customer.cluster
    status, made = setting.call("POST", "/job-arrays", body)
    assert (status, made["status"]["total"], made["array"]["max_parallel"]) == (202, 100, 8), made
