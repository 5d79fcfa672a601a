"""
Jobs over HTTP: what is accepted, what is refused and with which words, and what nobody else sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.factories.jobs import JOB_RIGHTS, JobApi, JobWorld, job_api, job_world

SCRIPT = "#!/bin/bash\necho hello\n"


@dataclass
class Setting:
    """
    A world and its API.
    """

    world: JobWorld
    """Everything below."""
    api: JobApi
    """The first customer's key is `one`, the second's `two`."""

    @property
    def jobs(self) -> str:
        """
        The path of the first customer's jobs.
        """
        return f"/v1/projects/{self.world.customer.project}/jobs"

    def body(self, **spec: Any) -> dict[str, Any]:
        """
        A job to submit.
        """
        return {"name": "train", "spec": {"cluster_id": self.world.customer.cluster, "script": SCRIPT, **spec}}

    def get(self, path: str, key: str = "one") -> Any:
        """
        The answer to a GET, with its status.
        """
        answer = self.api.call(key, "GET", path)
        return answer.status_code, answer.json()

    def submit(self, body: dict[str, Any] | None = None, key: str = "one", **headers: str) -> Any:
        """
        The answer to a submit, with its status.
        """
        answer = self.api.call(key, "POST", self.jobs, body or self.body(), **headers)
        return answer.status_code, answer.json()


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """
    Two tenants with a cluster each.
    """
    with job_world(database, tmp_path) as world:
        world.add_customer(world.spare_refs[:1])
        api = job_api(database.engine)
        api.keys.known["one"] = world.customers[0].principal()
        api.keys.known["two"] = world.customers[1].principal()
        yield Setting(world, api)


def test_a_job_from_submit_to_output(setting: Setting) -> None:
    """202 with the job and where it is; then its end, where it ran and what it printed."""
    answer = setting.api.call("one", "POST", setting.jobs, {**setting.body(nodes=2, gpus_per_node=8), "labels": {"team": "vision"}})
    assert answer.status_code == 202
    job = answer.json()
    path = f"{setting.jobs}/{job['id']}"
    assert answer.headers["location"] == path
    assert answer.headers["etag"] == '"1"'
    assert job["status"]["state"] == "queued"
    assert job["spec"] == {
        "cluster_id": setting.world.customer.cluster, "nodes": 2, "gpus_per_node": 8, "tasks_per_node": 8, "script": SCRIPT,
        "launch": None, "image": None, "priority": "normal",
        "env": {}, "time_limit_s": 86_400, "restart": {"max_restarts": 3}, "secrets": [], "depends_on": [], "mounts": [],
        "mig": None, "gpu": None, "idle_stop_min": None,
    }  # fmt: skip
    assert setting.api.nudges == [("job", job["id"])]
    setting.world.until_state(job["id"], "succeeded")
    status, done = setting.get(path)
    assert (status, done["status"]["state"], done["status"]["exit_code"]) == (200, "succeeded", 0)
    assert set(done["status"]["instances"]) < set(setting.world.customer.instances.values())
    assert not any(ref in str(done) for ref in setting.world.customer.instances)
    assert done["version"] > 1
    logs = setting.get(f"{path}/logs")[1]
    assert logs == {"items": [{"attempt": 1, "offset": 0, "text": "hello\n"}], "next_offset": 6, "complete": True}


@pytest.mark.parametrize(
    "spec",
    [
        {"script": "echo no hash bang"},
        {"script": "#!/bin/bash\r\necho dos\r\n"},
        {"script": "#!/bin/bash\n\x00"},
        {"script": "#!" + "x" * 65_536},
        {"script": "#!\ud800"},
        {"script": ""},
        {"script": None},
        {"launch": {"kind": "mpi", "command": ["a"]}},
        {"script": None, "launch": {"kind": "mpi", "command": []}},
        {"script": None, "launch": {"kind": "srun", "command": ["a"]}},
        {"script": None, "launch": {"kind": "mpi", "command": ["a\x00"]}},
        {"script": None, "launch": {"kind": "mpi", "command": ["a" * 8000] * 5}},
        {"script": None, "launch": {"kind": "mpi", "command": ["a"], "setup": "a\r\n"}},
        {"image": "-v /:/host"},
        {"image": "a b"},
        {"priority": "urgent"},
        {"secrets": [{"name": "a"}]},
        {"secrets": [{"name": "a", "env": "A", "file": "a"}]},
        {"secrets": [{"name": "a", "env": "SLURM_A"}]},
        {"secrets": [{"name": "a", "file": "../a"}]},
        {"secrets": [{"name": "a", "env": "A"}, {"name": "b", "env": "A"}]},
        {"depends_on": [{"job_id": "job_1"}, {"job_id": "job_1", "condition": "afterany"}]},
        {"depends_on": [{"job_id": "job_1", "condition": "before"}]},
        {"depends_on": [{"job_id": f"job_{n}"} for n in range(33)]},
        {"nodes": 0},
        {"nodes": 4097},
        {"nodes": "2"},
        {"nodes": True},
        {"nodes": 2.0},
        {"gpus_per_node": -1},
        {"gpus_per_node": 17},
        {"tasks_per_node": 0},
        {"time_limit_s": 59},
        {"time_limit_s": 31 * 86_400 + 1},
        {"env": {"1A": "x"}},
        {"env": {"A B": "x"}},
        {"env": {"SLURM_JOB_ID": "1"}},
        {"env": {"slurm_x": "1"}},
        {"env": {"A": "x\ny"}},
        {"env": {"A": "x\x00"}},
        {"env": {"A": "x" * 4097}},
        {"env": {f"A{n}": "" for n in range(65)}},
        {"env": {f"A{n}": "x" * 4096 for n in range(40)}},
        {"restart": {"max_restarts": 11}},
        {"restart": {"max_restarts": -1}},
        {"unknown": 1},
        {"cluster_id": ""},
        {"cluster_id": None},
    ],
    ids=lambda spec: str(spec)[:40],
)
def test_what_is_malformed_is_refused(setting: Setting, spec: dict[str, Any]) -> None:
    """422 with the field; nothing is stored."""
    status, problem = setting.submit(setting.body(**spec))
    assert (status, problem["code"]) == (422, "invalid_request")
    assert problem["errors"][0]["field"].startswith("body.spec")
    assert setting.get(setting.jobs)[1]["items"] == []


@pytest.mark.parametrize("name", ["", "Train", "a_b", "-a", "a" * 64, None, 3])
def test_names_are_slugs(setting: Setting, name: Any) -> None:
    """A name that could not stand in an address is refused; two jobs may share one."""
    assert setting.submit({**setting.body(), "name": name})[0] == 422
    assert [setting.submit()[0], setting.submit()[0]] == [202, 202]


def test_what_does_not_fit_is_refused_with_numbers(setting: Setting) -> None:
    """409 with the limit, what was asked for and what would help."""
    status, problem = setting.submit(setting.body(nodes=5))
    assert (status, problem["code"], problem["limit"], problem["requested"]) == (409, "job_larger_than_cluster", 4, 5)


def test_a_dry_run_changes_nothing(setting: Setting) -> None:
    """The answer is the job as it would be; no job, no nudge."""
    answer = setting.api.call("one", "POST", f"{setting.jobs}?dry_run=true", setting.body(gpus_per_node=4))
    assert (answer.status_code, answer.json()["spec"]["tasks_per_node"]) == (200, 4)
    assert setting.get(setting.jobs)[1]["items"] == []
    assert setting.api.nudges == []


def test_a_repeat_makes_one_job(setting: Setting) -> None:
    """The same idempotency key answers the same job."""
    first = setting.submit(Idempotency_Key="k1")[1]
    again = setting.submit(Idempotency_Key="k1")[1]
    assert first == again
    assert len(setting.get(setting.jobs)[1]["items"]) == 1
    assert setting.submit(setting.body(nodes=2), Idempotency_Key="k1")[0] == 422


def test_lists_are_paged_and_filtered(setting: Setting) -> None:
    """Pages are stable under inserts; filters by state, cluster, label and time."""
    ids = [setting.submit({**setting.body(), "labels": {"n": str(n % 2)}})[1]["id"] for n in range(5)]
    first = setting.get(f"{setting.jobs}?limit=2")[1]
    late = setting.submit()[1]["id"]
    second = setting.get(f"{setting.jobs}?limit=200&page_token={first['next_page_token']}")[1]
    assert [one["id"] for one in first["items"] + second["items"]] == [*ids, late]
    assert second["next_page_token"] is None
    setting.world.until_state(ids[0], "succeeded")

    def found(query: str) -> list[str]:
        return [one["id"] for one in setting.get(f"{setting.jobs}?{query}")[1]["items"]]

    assert found("label=n:1") == [ids[1], ids[3]]
    assert found("label=n:1&label=x:y") == []
    assert found("state=cancelled") == []
    assert found("cluster_id=clu_none") == []
    assert len(found(f"cluster_id={setting.world.customer.cluster}")) == 6
    assert found("created_after=2026-02-28T00:00:00Z") == [*ids, late]
    assert found("created_after=2026-03-02T00:00:00Z") == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=201", "state=nonsense", "label=nocolon", "created_after=yesterday", "created_after=2026-03-01T00:00:00",
        "page_token=%00", "page_token=x", "unknown=1",
    ],
)  # fmt: skip
def test_wrong_queries_are_refused(setting: Setting, query: str) -> None:
    """422 with the parameter."""
    status, problem = setting.get(f"{setting.jobs}?{query}")
    assert (status, problem["errors"][0]["field"].split(".")[0]) == (422, "query")


def test_cancel_by_delete_and_by_action(setting: Setting) -> None:
    """Both record the wish, once; DELETE also answers for what has ended, the action says why it cannot."""
    ids = [setting.submit(setting.body(script="#!/bin/sh\nsleep 1000\n"))[1]["id"] for _ in range(2)]
    for job_id in ids:
        setting.world.until_state(job_id, "running")
    path, other = (f"{setting.jobs}/{job_id}" for job_id in ids)
    assert setting.get(f"{path}/actions")[1] == {"items": [{"name": "cancel", "allowed": True, "reason": ""}]}
    first = setting.api.call("one", "DELETE", path)
    asked = first.json()["status"]["cancel_requested_at"]
    assert (first.status_code, asked is not None) == (202, True)
    assert setting.api.call("one", "DELETE", path).json()["status"]["cancel_requested_at"] == asked
    assert setting.api.call("one", "POST", f"{other}/actions/cancel").status_code == 202
    for job_id in ids:
        setting.world.until_state(job_id, "cancelled")
    ended = setting.api.call("one", "DELETE", path)
    assert (ended.status_code, ended.json()["status"]["state"]) == (202, "cancelled")
    refused = setting.api.call("one", "POST", f"{path}/actions/cancel")
    assert (refused.status_code, refused.json()["code"], refused.json()["state"]) == (409, "job_ended", "cancelled")
    assert setting.get(f"{path}/actions")[1]["items"][0]["reason"] == refused.json()["detail"]
    assert setting.api.call("one", "DELETE", path, If_Match='"1"').status_code == 412


def test_a_suspended_tenant_can_still_stop_jobs(setting: Setting) -> None:
    """Suspension stops submits and output, never a look at the jobs or a stop."""
    job_id = setting.submit()[1]["id"]
    setting.api.keys.known["one"] = replace(setting.api.keys.known["one"], suspended=True)
    assert setting.submit()[0] == 403
    assert setting.get(setting.jobs)[0] == 200
    assert setting.get(f"{setting.jobs}/{job_id}/logs")[0] == 403
    assert setting.api.call("one", "POST", f"{setting.jobs}/{job_id}/actions/cancel").status_code == 202
    assert setting.api.call("one", "DELETE", f"{setting.jobs}/{job_id}").status_code == 202


def test_each_right_is_needed(setting: Setting) -> None:
    """Every route refuses a key without its permission."""
    job_id = setting.submit()[1]["id"]
    path = f"{setting.jobs}/{job_id}"
    needs = {
        ("POST", setting.jobs): "jobs:create",
        ("GET", setting.jobs): "jobs:read",
        ("GET", path): "jobs:read",
        ("GET", f"{path}/actions"): "jobs:read",
        ("GET", f"{path}/logs"): "jobs:logs",
        ("GET", f"{path}/logs/stream"): "jobs:logs",
        ("DELETE", path): "jobs:delete",
        ("POST", f"{path}/actions/cancel"): "jobs:delete",
    }
    for (method, where), right in needs.items():
        setting.api.keys.known["less"] = setting.world.customer.principal(permissions=JOB_RIGHTS - {right})
        body = setting.body() if where == setting.jobs and method == "POST" else None
        answer = setting.api.call("less", method, where, body)
        assert (answer.status_code, answer.json().get("permission")) == (403, right), (method, where)


def test_other_tenants_jobs_are_as_if_they_were_not(setting: Setting) -> None:
    """On every route a foreign job, a foreign project and an unknown one answer alike, byte for byte."""
    job_id = setting.submit()[1]["id"]
    foreign, unknown = setting.world.customers[1].project, "prj_0000000000000000000000none"
    for method, tail in [
        ("GET", ""),
        ("GET", "/actions"),
        ("GET", "/logs"),
        ("GET", "/logs/stream"),
        ("DELETE", ""),
        ("POST", "/actions/cancel"),
    ]:
        answers = [
            setting.api.call("two", method, f"/v1/projects/{project}/jobs/{job}{tail}")
            for project in (setting.world.customer.project, foreign, unknown)
            for job in (job_id, "job_none", "x" * 200)
        ]
        assert {one.status_code for one in answers} == {404}, (method, tail)
        assert len({one.content for one in answers}) == 1
    assert [setting.get(f"/v1/projects/{one}/jobs", "two")[0] for one in (setting.world.customer.project, unknown)] == [404, 404]
    assert setting.submit(key="two")[0] == 404
    assert setting.get(f"{setting.jobs}/{job_id}")[1]["status"]["cancel_requested_at"] is None


def test_a_project_key_stays_in_its_project(setting: Setting) -> None:
    """A key of one project does not reach the tenant's other ones."""
    job_id = setting.submit()[1]["id"]
    setting.api.keys.known["project"] = setting.world.customer.principal(project=True)
    assert setting.get(f"{setting.jobs}/{job_id}", "project")[0] == 200
    setting.api.keys.known["project"] = replace(setting.api.keys.known["project"], project_id="prj_other")
    assert setting.get(f"{setting.jobs}/{job_id}", "project")[0] == 404
    assert setting.submit(key="project")[0] == 404


def test_output_is_read_by_offset_in_whole_characters(setting: Setting) -> None:
    """Any page size gives the same text; characters are never cut, and what is not UTF-8 is replaced."""
    text = "".join(f"{n} äöü 漢字 🙂\n" for n in range(300))
    job_id = setting.submit(setting.body(script="#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in text.splitlines())))[1]["id"]
    setting.world.until_state(job_id, "succeeded")
    for limit in (1024, 1025, 1027, 65_536):
        read, after, complete = "", 0, False
        while not complete:
            page = setting.get(f"{setting.jobs}/{job_id}/logs?after={after}&limit_bytes={limit}")[1]
            assert all(piece["offset"] == after for piece in page["items"])
            read += "".join(piece["text"] for piece in page["items"])
            after, complete = page["next_offset"], page["complete"]
        assert read == text
    beyond = setting.get(f"{setting.jobs}/{job_id}/logs?after=100000000000")[1]
    assert beyond == {"items": [], "next_offset": 100_000_000_000, "complete": True}
    assert setting.get(f"{setting.jobs}/{job_id}/logs?attempt=2")[0] == 404


def test_output_of_every_attempt_can_be_read(setting: Setting) -> None:
    """A restart does not hide what the attempt before it printed."""
    setting.world.sim.play("job_fabric_fault", "submit", count=1)
    job_id = setting.submit(setting.body(script="#!/bin/sh\necho begun\nsleep 60\necho done\n"))[1]["id"]
    setting.world.until_state(job_id, "succeeded")
    pages = [setting.get(f"{setting.jobs}/{job_id}/logs?attempt={n}")[1] for n in (1, 2)]
    assert [page["complete"] for page in pages] == [True, True]
    assert pages[0]["items"][0]["text"].startswith("begun\nNCCL WARN")
    assert pages[1]["items"][0]["text"] == "begun\ndone\n"
    assert setting.get(f"{setting.jobs}/{job_id}")[1]["status"]["restarts"] == 1
