"""
Secrets of a project: written, given to jobs, removed; shown to nobody.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.jobs.sealing import open_secret
from controlplane.kit.secrets import Sealer
from tests.conftest import Database
from tests.factories.jobs import JobApi, JobWorld, job_api, job_world

CANARY = "canary-5f1d"
TELLS = "#!/bin/bash\nsleep 20\necho told $TOKEN\n"


@dataclass
class Setting:
    """
    A world whose installation has a master key, and its API.
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
        assert CANARY not in answer.text
        return answer.status_code, answer.json() if answer.content else None


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """
    Two tenants with a cluster each.
    """
    sealer = Sealer.from_base64(base64.b64encode(bytes(range(32))).decode())
    with job_world(database, tmp_path) as world:
        world.tools.open_job_secret = lambda row, sealed: open_secret(sealer, row, sealed)
        world.add_customer(world.spare_refs[:1])
        api = job_api(database.engine, sealer=sealer)
        for key, customer in zip(("one", "two"), world.customers, strict=True):
            api.keys.known[key] = customer.principal()
        yield Setting(world, api)


def job(setting: Setting, **spec: Any) -> dict[str, Any]:
    """
    A job that is told the secret.
    """
    asked = {"cluster_id": setting.world.customer.cluster, "script": TELLS, "secrets": [{"name": "hub", "env": "TOKEN"}]}
    return {"name": "train", "spec": {**asked, **spec}}


def test_a_job_is_given_what_nobody_can_read(setting: Setting) -> None:
    """The job has the value of the moment it is handed over; answers, events, records and rows never do."""
    assert setting.call("PUT", "/secrets/hub", {"value": "old"})[0] == 200
    status, put = setting.call("PUT", "/secrets/hub", {"value": CANARY})
    assert (status, put["name"], put["version"], set(put)) == (200, "hub", 2, {"name", "created_at", "updated_at", "version"})
    assert [one["name"] for one in setting.call("GET", "/secrets")[1]["items"]] == ["hub"]
    status, made = setting.call("POST", "/jobs", job(setting))
    assert (status, made["spec"]["secrets"]) == (202, [{"name": "hub", "env": "TOKEN", "file": None}])
    setting.world.until_state(made["id"], "running")
    setting.call("GET", f"/jobs/{made['id']}")
    with setting.world.database.owner.begin() as connection:
        connection.execute(text("SELECT set_config('cp.scope', 'all', true)"))
        for table in ("jobs", "events", "audit_entries", "state_history", "project_secrets"):
            rows = connection.execute(text(f"SELECT t::text FROM {table} t")).scalars().all()
            assert not any(CANARY in row or CANARY.encode().hex() in row for row in rows), table
    setting.world.until_state(made["id"], "succeeded")
    assert setting.world.output(made["id"]) == f"told {CANARY}\n"


def test_a_secret_that_is_not_there_is_refused_when_it_is_ordered(setting: Setting) -> None:
    """With its name and what to do; another tenant's of the same name is none."""
    foreign = f"/v1/projects/{setting.world.customers[1].project}/secrets/hub"
    assert setting.api.call("two", "PUT", foreign, {"value": "theirs"}).status_code == 200
    status, problem = setting.call("POST", "/jobs", job(setting))
    assert (status, problem["code"], problem["secret"]) == (409, "secret_unknown", "hub")
    assert "PUT" in problem["hint"]
    assert setting.api.call("one", "PUT", foreign, {"value": "x"}).status_code == 404
    assert setting.api.call("one", "DELETE", foreign).status_code == 404
    assert setting.api.call("one", "GET", foreign.rpartition("/")[0]).status_code == 404


def test_a_secret_that_went_before_the_job_was_sent_ends_it(setting: Setting) -> None:
    """It fails with the reason, and nothing is sent; the name can be written anew."""
    setting.call("PUT", "/secrets/hub", {"value": CANARY})
    made = setting.call("POST", "/jobs", job(setting))[1]
    assert setting.call("DELETE", "/secrets/hub")[0] == 204
    assert setting.call("DELETE", "/secrets/hub")[0] == 404
    done = setting.world.until_state(made["id"], "failed")
    assert (done.reason, done.failure_class) == ("The project has no secret hub any more.", "user_error")
    assert setting.world.submissions() == []
    assert setting.call("PUT", "/secrets/hub", {"value": CANARY})[1]["version"] == 1


@pytest.mark.parametrize("value", ["", "a\x00", "x" * 16_385, "\ud800", 3, None])
def test_what_can_be_no_value_is_refused(setting: Setting, value: Any) -> None:
    """422, and nothing is stored."""
    assert setting.call("PUT", "/secrets/hub", {"value": value})[0] == 422
    assert setting.call("GET", "/secrets")[1]["items"] == []


def test_without_a_master_key_no_secret_is_taken(setting: Setting) -> None:
    """503: nothing is kept in clear."""
    bare = job_api(setting.world.database.engine)
    bare.keys.known["one"] = setting.world.customer.principal()
    path = f"/v1/projects/{setting.world.customer.project}/secrets/hub"
    assert bare.call("one", "PUT", path, {"value": CANARY}).status_code == 503
    assert setting.call("GET", "/secrets")[1]["items"] == []
