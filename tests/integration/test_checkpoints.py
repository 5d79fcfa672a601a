"""
Checkpoints: registered, completed, rejected, moved and deleted by their job; what a restart goes on from; what a policy wants done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.jobs import checkpointing
from controlplane.jobs.states import NewCheckpoint
from controlplane.kit.db import raise_wall
from tests.conftest import Database
from tests.factories.jobs import JobApi, JobWorld, job_api, job_world

LONG = "#!/bin/bash\necho begun\nsleep 20\necho done\n"
TELLS = "#!/bin/bash\necho from $RESUME_STEP at $RESUME_LOCATION\nsleep 20\n"


@dataclass
class Setting:
    """
    A world with a job, and its API.
    """

    world: JobWorld
    """Everything below."""
    api: JobApi
    """The first customer's key is `one`, the second's `two`."""
    job_id: str
    """A job of the first customer."""

    @property
    def project(self) -> str:
        """
        The path of the first customer's project.
        """
        return f"/v1/projects/{self.world.customer.project}"

    @property
    def path(self) -> str:
        """
        The path of the job's checkpoints.
        """
        return f"{self.project}/jobs/{self.job_id}/checkpoints"

    def call(self, method: str, path: str, body: Any = None, *, key: str = "one") -> tuple[int, Any]:
        """
        Status and body of an answer.
        """
        answer = self.api.call(key, method, path, body)
        return answer.status_code, answer.json()

    def register(self, step: int, **body: Any) -> str:
        """
        The id of a checkpoint that was registered so.
        """
        status, answer = self.call("POST", self.path, {"step": step, "location": f"/data/{step}", "size_bytes": 10, **body})
        assert status == 201, answer
        return str(answer["id"])

    def last(self) -> int | None:
        """
        The step that the job says a restart goes on from.
        """
        shown = self.call("GET", f"{self.project}/jobs/{self.job_id}")[1]["status"]["last_checkpoint"]
        return None if shown is None else shown["step"]

    def wanted(self) -> dict[int, str | None]:
        """
        What the policy wants of each checkpoint, by step.
        """
        items = self.call("GET", f"{self.path}?limit=200")[1]["items"]
        return {one["spec"]["step"]: one["status"]["wanted"] for one in items}


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """
    Two tenants with a cluster each, the first with a job.
    """
    with job_world(database, tmp_path) as world:
        world.add_customer(world.spare_refs[:1])
        api = job_api(database.engine)
        api.keys.known["one"] = world.customers[0].principal()
        api.keys.known["two"] = world.customers[1].principal()
        yield Setting(world, api, world.order(LONG))


def test_a_checkpoint_from_writing_to_deleted(setting: Setting) -> None:
    """It is good once its size is told; the job names it; deleted it stays on record and the job names none."""
    status, made = setting.call("POST", setting.path, {"step": 100, "kind": "sharded", "location": "s3://runs/a/100"})
    assert (status, made["status"]["state"], made["spec"]["size_bytes"], made["status"]["wanted"]) == (201, "writing", None, None)
    assert setting.last() is None
    one = f"{setting.path}/{made['id']}"
    status, done = setting.call("POST", f"{one}/actions/complete", {"size_bytes": 4096})
    assert (status, done["status"]["state"], done["spec"]["size_bytes"], done["version"]) == (200, "good", 4096, 2)
    assert done["status"]["wanted"] == "hot"
    assert setting.last() == 100
    assert setting.call("POST", f"{one}/actions/complete", {"size_bytes": 1})[1]["code"] == "checkpoint_settled"
    assert setting.call("DELETE", one)[1]["status"]["state"] == "deleted"
    assert setting.call("DELETE", one)[0] == 200
    assert setting.last() is None
    assert setting.call("GET", setting.path)[1]["items"] == []
    assert [one["id"] for one in setting.call("GET", f"{setting.path}?state=deleted")[1]["items"]] == [made["id"]]
    assert setting.world.history(made["id"]) == ["writing", "good", "deleted"]
    assert setting.world.events(made["id"]) == ["checkpoint.writing", "checkpoint.good", "checkpoint.deleted"]


def test_the_last_good_one_is_the_highest_step_that_can_be_gone_on_from(setting: Setting) -> None:
    """Order of registering does not matter; weights alone and bad ones do not count."""
    setting.register(200)
    setting.register(100)
    setting.register(300, kind="weights")
    bad = setting.register(250)
    assert setting.last() == 250
    status, answer = setting.call("POST", f"{setting.path}/{bad}/actions/reject", {"reason": "Shard 17 is cut off."})
    assert (status, answer["status"]["reason"], answer["status"]["wanted"]) == (200, "Shard 17 is cut off.", "drop")
    assert setting.last() == 200
    assert setting.call("POST", f"{setting.path}/{bad}/actions/relocate", {"tier": "cold"})[0] == 409


def test_a_restart_is_told_where_to_go_on(setting: Setting) -> None:
    """The new attempt's environment names the last good checkpoint, the event and the reason too; the first attempt had none."""
    world = setting.world
    world.until_state(setting.job_id, "running")
    world.sim.play("job_fabric_fault", "submit", count=1)
    setting.job_id = world.order(TELLS)
    world.until_state(setting.job_id, "running")
    setting.register(700)
    world.until(lambda: world.job(setting.job_id).attempt == 2)
    assert "It can go on from step 700." in world.job(setting.job_id).reason
    world.until_state(setting.job_id, "succeeded")
    assert world.output(setting.job_id, attempt=2) == "from 700 at /data/700\n"
    assert "700" not in world.output(setting.job_id, attempt=1)
    assert world.events(setting.job_id).count("job.restarted") == 1


def test_what_a_job_sets_itself_is_not_overruled(setting: Setting) -> None:
    """A job that was given RESUME_STEP keeps it."""
    world = setting.world
    world.set_cluster_state("provisioning")
    setting.job_id = world.order(TELLS, env={"RESUME_STEP": "5"})
    setting.register(9)
    world.set_cluster_state("running")
    world.until_state(setting.job_id, "succeeded")
    assert world.output(setting.job_id) == "from 5 at /data/9\n"


def test_the_same_place_is_registered_once(setting: Setting) -> None:
    """The answer names the one that is there; once it is bad the place can be used again."""
    first = setting.register(1)
    status, answer = setting.call("POST", setting.path, {"step": 1, "location": "/data/1", "size_bytes": 3})
    assert (status, answer["code"], answer["checkpoint_id"]) == (409, "checkpoint_exists", first)
    other = setting.register(1, location="/other/1")
    answer = setting.call("POST", f"{setting.path}/{other}/actions/relocate", {"tier": "warm", "location": "/data/1"})[1]
    assert answer["code"] == "checkpoint_exists"
    setting.call("POST", f"{setting.path}/{first}/actions/reject", {"reason": "no"})
    answer = setting.call("POST", f"{setting.path}/{other}/actions/relocate", {"tier": "warm", "location": "/data/1"})[1]
    assert (answer["status"]["tier"], answer["spec"]["location"]) == ("warm", "/data/1")
    assert setting.call("GET", f"{setting.project}/jobs/{setting.job_id}")[1]["status"]["last_checkpoint"]["location"] == "/data/1"


def test_many_at_once_leave_one_last(setting: Setting) -> None:
    """Ranks that register at the same time never leave the job with an older last checkpoint."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(setting.register, range(24)))
    assert setting.last() == 23


def test_an_earlier_step_that_is_registered_meanwhile_does_not_become_the_last(setting: Setting) -> None:
    """One registers step 2 and has not committed; another registers step 1 and waits for it: the job names step 2 in the end."""
    world, customer = setting.world, setting.world.customer

    def register(session: Session, step: int) -> None:
        raise_wall(session, customer.principal().wall)
        new = NewCheckpoint(step, "full", f"/data/{step}", 1)
        checkpointing.register(session, customer.principal(), customer.project, setting.job_id, new)

    def other() -> None:
        with Session(world.database.engine) as session:
            register(session, 1)
            session.commit()

    waits = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    with ThreadPoolExecutor(1) as pool, Session(world.database.engine) as session:
        register(session, 2)
        second = pool.submit(other)
        with world.database.at_once.connect() as connection:
            while not second.done() and not connection.execute(waits).scalar_one():
                pass
        session.commit()
        second.result(timeout=30)
    assert setting.last() == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"location": "relative/path"}, "body.location"),
        ({"location": "s3://user:secret@bucket/x"}, "body.location"),
        ({"location": "https://x/y?X-Amz-Signature=abc"}, "body.location"),
        ({"location": "/with blank"}, "body.location"),
        ({"step": -1}, "body.step"),
        ({"step": 2**63}, "body.step"),
        ({"kind": "half"}, "body.kind"),
        ({"size_bytes": 1.5}, "body.size_bytes"),
        ({"attempt": 2}, "body.attempt"),
        ({"other": 1}, "body.other"),
    ],
)
def test_bad_input_is_named(setting: Setting, change: dict[str, Any], field: str) -> None:
    """422 with the field, and nothing is on record."""
    status, answer = setting.call("POST", setting.path, {"step": 1, "location": "/data/1", **change})
    assert (status, [one["field"] for one in answer["errors"]]) == (422, [field])
    assert setting.call("GET", setting.path)[1]["items"] == []


def test_nobody_else_sees_or_writes_them(setting: Setting) -> None:
    """Another tenant gets 404 for everything, as for what never was."""
    checkpoint = setting.register(1)
    for method, path, body in (
        ("GET", setting.path, None),
        ("POST", setting.path, {"step": 2, "location": "/x", "size_bytes": 1}),
        ("GET", f"{setting.path}/{checkpoint}", None),
        ("DELETE", f"{setting.path}/{checkpoint}", None),
        ("GET", f"{setting.project}/checkpoints", None),
        ("GET", f"{setting.project}/checkpoint-policy", None),
        ("PUT", f"{setting.project}/checkpoint-policy", {}),
    ):
        assert setting.call(method, path, body, key="two")[0] == 404, (method, path)
    other = setting.world.order(LONG)
    path = f"{setting.project}/jobs/{other}/checkpoints/{checkpoint}"
    assert setting.call("GET", path)[0] == 404


def test_a_policy_is_default_until_set(setting: Setting) -> None:
    """Without one everything is kept; what is set is shown with a rising version; 0 and negative numbers are refused."""
    path = f"{setting.project}/checkpoint-policy"
    none = {"hot_last": 3, "warm_last": 5, "cold_every_steps": None, "cold_days": None, "version": 0}
    assert setting.call("GET", path) == (200, none)
    for step in range(10):
        setting.register(step)
    assert set(setting.wanted().values()) == {"hot", "warm", "cold"}
    wanted = {"hot_last": 1, "warm_last": 1, "cold_every_steps": 4, "cold_days": 30}
    assert setting.call("PUT", path, wanted) == (200, wanted | {"version": 1})
    assert setting.call("PUT", path, wanted)[1]["version"] == 2
    assert setting.wanted() == {9: "hot", 8: "warm", **{step: "cold" if step % 4 == 0 else "drop" for step in range(8)}}
    assert setting.call("PUT", path, {"hot_last": 0})[0] == 422


def test_due_is_the_work_list_of_whoever_moves_the_data(setting: Setting) -> None:
    """What lies elsewhere than wanted is listed until it was moved or deleted, over all jobs and in pages."""
    setting.call("PUT", f"{setting.project}/checkpoint-policy", {"hot_last": 1, "warm_last": 1, "cold_every_steps": 10**6})
    ids = {step: setting.register(step) for step in (1, 2, 3)}
    due = f"{setting.project}/checkpoints?due=true"

    def listed() -> dict[int, str]:
        found, token = {}, ""
        while True:
            answer = setting.call("GET", f"{due}&limit=1{token}")[1]
            found |= {one["spec"]["step"]: one["status"]["wanted"] for one in answer["items"]}
            if answer["next_page_token"] is None:
                return found
            token = f"&page_token={answer['next_page_token']}"

    assert listed() == {1: "drop", 2: "warm"}
    setting.call("POST", f"{setting.path}/{ids[2]}/actions/relocate", {"tier": "warm"})
    setting.call("DELETE", f"{setting.path}/{ids[1]}")
    assert listed() == {}
    assert [one["id"] for one in setting.call("GET", f"{setting.path}?due=false")[1]["items"]] == [ids[2], ids[3]]


def test_old_ones_can_go_by_age(setting: Setting) -> None:
    """Cold ones can go when they are older than the policy says, and not the last good one, however old it is."""
    setting.call("PUT", f"{setting.project}/checkpoint-policy", {"hot_last": 1, "warm_last": 0, "cold_days": 7})
    setting.register(1)
    setting.register(2)
    assert setting.wanted() == {1: "cold", 2: "hot"}
    setting.world.clock.advance(8 * 86_400)
    assert setting.wanted() == {1: "drop", 2: "hot"}


Steps = st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=12, unique_by=lambda one: one[0])


def _by_hand(steps: list[tuple[int, bool]], hot: int, warm: int, every: int | None) -> dict[int, str]:
    good = sorted((step for step, bad in steps if not bad), reverse=True)
    told = {step: "drop" for step, bad in steps if bad}
    for rank, step in enumerate(good):
        old = "drop" if every is not None and step % every else "cold"
        told[step] = "hot" if rank < hot else "warm" if rank < hot + warm else old
    return told


@pytest.fixture
def judged(setting: Setting) -> Callable[..., dict[int, str | None]]:
    """
    What the policy wants of checkpoints that were registered in this order, in a job of their own.
    """

    def judge(steps: list[tuple[int, bool]], policy: dict[str, Any]) -> dict[int, str | None]:
        setting.job_id = setting.world.order(LONG)
        assert setting.call("PUT", f"{setting.project}/checkpoint-policy", policy)[0] == 200
        for step, bad in steps:
            made = setting.register(step)
            if bad:
                assert setting.call("POST", f"{setting.path}/{made}/actions/reject", {"reason": "bad"})[0] == 200
        assert setting.last() == max((step for step, bad in steps if not bad), default=None)
        return setting.wanted()

    return judge


def test_retention_is_the_same_whatever_the_order(judged: Callable[..., dict[int, str | None]]) -> None:
    """The law: tiers follow from the steps of the good ones alone, and the last good one is hot under every policy."""

    @settings(max_examples=15, deadline=None)
    @given(Steps, st.integers(1, 4), st.integers(0, 4), st.none() | st.integers(1, 7))
    def law(steps: list[tuple[int, bool]], hot: int, warm: int, every: int | None) -> None:
        wanted = judged(steps, {"hot_last": hot, "warm_last": warm, "cold_every_steps": every})
        assert wanted == _by_hand(steps, hot, warm, every)

    law()
