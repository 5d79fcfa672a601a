"""
GPU time of jobs and services, as lines of their own beside the meter of what their clusters hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from controlplane.metering import service as metering_service
from controlplane.metering.routes import router as metering
from controlplane.metering.states import Work, gpu_microseconds
from tests.conftest import Database
from tests.factories.jobs import JobApi, JobWorld, job_api
from tests.factories.services import ServiceWorld, service_world

SLEEPS = "#!/bin/bash\nsrun sleep 100\n"


@dataclass
class Setting:
    """
    A world and what it answers about usage.
    """

    world: ServiceWorld
    """The jobs' customer has a cluster of one node; the services' first one has another."""
    api: JobApi
    """Keys: `jobs` and `services` of these two, `other` of a third tenant, `project` of its project."""

    @property
    def jobs(self) -> JobWorld:
        """
        What runs jobs.
        """
        return self.world.jobs

    def lines(self, query: str = "", key: str = "jobs") -> list[Any]:
        """
        What the tenant is shown.
        """
        answer = self.api.call(key, "GET", f"/v1/usage/work{query}")
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    def open_runs(self) -> int:
        """
        Runs that go on.
        """
        return len(self.world.rows("SELECT 1 FROM work_intervals WHERE upper_inf(during)"))


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """Three tenants with a cluster each."""
    with service_world(database, tmp_path) as world:
        api = job_api(database.engine, None, metering)
        rights = frozenset({"usage:read"})
        for key, one in (("jobs", world.jobs.customer), ("services", world.customer), ("other", world.other)):
            api.keys.known[key] = one.principal(permissions=rights)
        api.keys.known["project"] = world.other.principal(permissions=rights, project=True)
        yield Setting(world, api)


def held(row: Any) -> Decimal:
    """GPU-seconds by the job's own times."""
    assert row.started_at is not None
    assert row.ended_at is not None
    return Decimal(str((row.ended_at - row.started_at).total_seconds()))


def at(moment: datetime) -> str:
    """In a query."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_a_jobs_run_is_counted_from_its_start_to_its_end(setting: Setting) -> None:
    """To the microsecond, by the scheduler's times; while it runs up to now; in a window only what lies inside."""
    job_id = setting.jobs.order(SLEEPS, nodes=1, gpus_per_node=8)
    setting.jobs.until_state(job_id, "running")
    setting.jobs.clock.advance(30)
    (line,) = setting.lines()
    assert (line["kind"], line["id"], line["cluster_id"]) == ("job", job_id, setting.jobs.customer.cluster)
    assert Decimal(line["gpu_seconds"]) >= 8 * 30
    row = setting.jobs.until_state(job_id, "succeeded")
    setting.jobs.clock.advance(500)
    (line,) = setting.lines()
    assert Decimal(line["gpu_seconds"]) == 8 * held(row)
    assert line["cluster_gpu_seconds"] == "0.000000"  # nothing was metered for this cluster, whose rows were put there
    assert row.started_at is not None
    (part,) = setting.lines(f"?from={at(row.started_at)}&to={at(row.started_at + timedelta(seconds=10))}")
    assert part["gpu_seconds"] == "80.000000"
    assert setting.lines(f"?from={at(setting.jobs.now() - timedelta(seconds=100))}") == []


def test_every_run_of_a_job_that_starts_again_is_counted_once(setting: Setting) -> None:
    """By the scheduler and by us: what it waits between them is no use, and nothing stays open behind its end."""
    setting.jobs.sim.play("job_requeue", "submit")
    job_id = setting.jobs.order(SLEEPS, nodes=1, gpus_per_node=8, restart={"max_restarts": 3})
    row = setting.jobs.until_state(job_id, "succeeded", within_s=4000)
    assert row.requeues == 1
    spans = setting.world.rows("SELECT during FROM work_intervals WHERE work_id = :id ORDER BY lower(during)", id=job_id)
    assert len(spans) == 2
    assert all(one.during.upper is not None for one in spans)
    assert spans[0].during.upper <= spans[1].during.lower
    (line,) = setting.lines()
    assert Decimal(line["gpu_seconds"]) < 8 * (held(row) + 60)


def test_a_cancelled_jobs_run_ends(setting: Setting) -> None:
    """Later looks add nothing."""
    job_id = setting.jobs.order(SLEEPS, nodes=1, gpus_per_node=1)
    setting.jobs.until_state(job_id, "running")
    setting.jobs.clock.advance(10)
    setting.jobs.cancel(job_id)
    setting.jobs.until_state(job_id, "cancelled")
    (before,) = setting.lines()
    setting.jobs.clock.advance(1000)
    assert setting.lines() == [before]
    assert setting.open_runs() == 0


def test_a_job_without_gpus_has_no_line(setting: Setting) -> None:
    """It used none."""
    job_id = setting.jobs.order("#!/bin/bash\nsleep 5\n", nodes=1, gpus_per_node=0)
    setting.jobs.until_state(job_id, "succeeded")
    assert setting.lines() == []


def test_slices_are_counted_by_their_share(setting: Setting) -> None:
    """Two of three sevenths for as long as the run was, to the microsecond and nothing above, with the profile and its own time beside."""
    with setting.jobs.database.owner.begin() as connection:
        connection.execute(text("UPDATE gpu_models SET mig_profiles = '{1g.10gb,3g.40gb,7g.80gb}'"))
        said = {"job_features": ["mig"], "mig": {"3g.40gb": 16}}
        connection.execute(text("UPDATE providers SET capabilities = CAST(:said AS jsonb)"), {"said": json.dumps(said)})
        connection.execute(text("UPDATE clusters SET kind = 'kubernetes' WHERE id = :id"), {"id": setting.jobs.customer.cluster})
    job_id = setting.jobs.order("#!/bin/bash\nsleep 100\n", mig={"profile": "3g.40gb", "per_node": 2})
    row = setting.jobs.until_state(job_id, "succeeded")
    (line,) = setting.lines()
    whole_us = int(held(row) * 1_000_000)
    assert Decimal(line["gpu_seconds"]) * 1_000_000 == whole_us * 6 // 7
    assert line["mig"] == [{"profile": "3g.40gb", "slice_seconds": str(2 * held(row).quantize(Decimal("0.000001")))}]
    (kept,) = setting.world.rows("SELECT gpus, profile, slices, of_slices FROM work_intervals")
    assert tuple(kept) == (2, "3g.40gb", 3, 7)


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 10**15)), max_size=8))
def test_parts_of_a_gpu_never_come_to_more_than_the_gpu(parts: list[tuple[int, int]]) -> None:
    """Whatever slices were held for how long, their time is exact but for less than a microsecond, and never rounded up."""
    told = [{"slices": slices, "of": 7, "us": us} for slices, us in parts]
    exact = sum(slices * us for slices, us in parts)
    assert 7 * gpu_microseconds(told) <= exact < 7 * gpu_microseconds(told) + 7
    assert gpu_microseconds([{"slices": 1, "of": 7, "us": us} for _, us in parts for _ in range(7)]) == sum(us for _, us in parts)


def test_a_services_line_is_what_its_status_shows(setting: Setting) -> None:
    """From look to look, whatever it grew and shrank to; one interval for as long as it held the same."""
    world = setting.world
    path = world.start()
    world.until_state(path, "running")
    for _ in range(4):
        setting.jobs.clock.advance(20)
        world.once()
    assert len(world.rows("SELECT 1 FROM work_intervals")) == 1
    world.act(path, "scale", {"replicas": 4})
    world.until_state(path, "running")
    setting.jobs.clock.advance(20)
    world.once()
    world.act(path, "suspend")
    world.until_state(path, "suspended")
    (line,) = setting.lines(key="services")
    shown = world.get(path)["status"]["gpu_seconds"]
    assert (line["kind"], int(Decimal(line["gpu_seconds"]))) == ("service", shown)
    assert shown > 160
    (counted,) = world.rows("SELECT gpu_microseconds AS us FROM services")
    assert Decimal(line["gpu_seconds"]) * 1_000_000 == counted.us


def test_a_services_slices_are_counted_by_their_share(setting: Setting) -> None:
    """While one version follows another each profile counts by its own share; its status shows what its line does, and what is held."""
    world = setting.world
    with setting.jobs.database.owner.begin() as connection:
        connection.execute(text("UPDATE gpu_models SET mig_profiles = '{1g.10gb,3g.40gb,7g.80gb}'"))
        said = {"job_features": ["mig"], "mig": {"1g.10gb": 14, "3g.40gb": 4}}
        connection.execute(text("UPDATE providers SET capabilities = CAST(:said AS jsonb)"), {"said": json.dumps(said)})
    small = {"gpus_per_node": 0, "mig": {"profile": "1g.10gb", "per_node": 2}}
    path = world.start(world.body(template=small))
    shown = world.until_state(path, "running")
    assert shown["spec"]["template"]["mig"] == {"profile": "1g.10gb", "per_node": 2, "slices": 1, "of_slices": 7}
    assert shown["status"]["mig_held"] == [{"profile": "1g.10gb", "slices": 4}]
    assert (shown["status"]["gpus_held"], shown["status"]["replicas"][0]["mig"]) == (0, {"profile": "1g.10gb", "slices": 2})
    again = {"spec": {"template": world.body(template=small)["spec"]["template"]}}
    same = world.call("PATCH", path, again, If_Match=f'"{shown["version"]}"')
    assert (same[0], same[1]["status"]["current_version"]) == (202, 1)
    large = world.body(template={"gpus_per_node": 0, "mig": {"profile": "3g.40gb", "per_node": 1}})["spec"]["template"]
    assert world.call("PATCH", path, {"spec": {"template": large}}, If_Match=f'"{shown["version"]}"')[0] == 202
    world.until_state(path, "running")
    setting.jobs.clock.advance(20)
    world.once()
    world.act(path, "suspend")
    after = world.until_state(path, "suspended")["status"]
    (line,) = setting.lines(key="services")
    times = {one["profile"]: Decimal(one["slice_seconds"]) for one in line["mig"]}
    assert times.keys() == {"1g.10gb", "3g.40gb"}
    assert min(times.values()) > 0
    exact = times["1g.10gb"] / 7 + times["3g.40gb"] * 3 / 7
    assert 0 <= exact - Decimal(line["gpu_seconds"]) < Decimal("0.000001")
    (counted,) = world.rows("SELECT gpu_microseconds AS us FROM services")
    looks = 100  # each drops less than a microsecond
    assert 0 <= Decimal(line["gpu_seconds"]) * 1_000_000 - counted.us < looks
    assert (after["gpu_seconds"], after["mig_held"]) == (counted.us // 1_000_000, [])


def test_what_is_held_side_by_side_grows_side_by_side(setting: Setting) -> None:
    """Whole GPUs and slices of two profiles, of the same replicas and from the same moment on: an interval each, and each goes on alone."""
    world = setting.world
    one = world.customer
    began = datetime(2026, 3, 1, tzinfo=UTC)
    whole = Work("service", "svc_side", one.tenant, one.project, one.cluster, 2, began, began + timedelta(seconds=10))
    small = replace(whole, gpus=4, profile="1g.10gb", slices=1, of_slices=7)
    large = replace(whole, gpus=1, profile="3g.40gb", slices=3, of_slices=7)
    with Session(setting.jobs.database.owner) as session, session.begin():
        session.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        metering_service.note_spans(session, [whole, small, large])
        later = {"since": began + timedelta(seconds=10), "until": began + timedelta(seconds=30)}
        grown = [replace(whole, **later), replace(small, **later), replace(large, **later | {"gpus": 2})]
        for _ in range(3):  # whoever says it again changes nothing, also what has grown meanwhile
            metering_service.note_spans(session, grown)
            metering_service.note_spans(session, [whole, small, large])
    kept = world.rows("SELECT profile, gpus, upper(during) - lower(during) AS held FROM work_intervals ORDER BY profile, gpus")
    assert [(row.profile, row.gpus, row.held.total_seconds()) for row in kept] == [
        ("", 2, 30),
        ("1g.10gb", 4, 30),
        ("3g.40gb", 1, 10),
        ("3g.40gb", 2, 20),
    ]


def test_lines_are_paged_filtered_and_ones_own(setting: Setting) -> None:
    """By project and cluster; another tenant sees none of them, and a foreign filter finds nothing."""
    ids = [setting.jobs.order(SLEEPS, nodes=1, gpus_per_node=1) for _ in range(3)]
    for one in ids:
        setting.jobs.until_state(one, "succeeded")
    first = setting.api.call("jobs", "GET", "/v1/usage/work?limit=2").json()
    rest = setting.api.call("jobs", "GET", f"/v1/usage/work?limit=2&page_token={first['next_page_token']}").json()
    assert [one["id"] for one in [*first["items"], *rest["items"]]] == sorted(ids)
    assert rest["next_page_token"] is None
    assert len(setting.lines(f"?cluster_id={setting.jobs.customer.cluster}")) == 3
    assert setting.lines(f"?cluster_id={setting.world.other.cluster}") == []
    assert setting.lines(key="other") == []
    assert setting.lines(f"?cluster_id={setting.jobs.customer.cluster}", key="other") == []
    assert setting.api.call("project", "GET", f"/v1/usage/work?project_id={setting.jobs.customer.project}").status_code == 404
