"""
Volumes that jobs mount: only what the operator of their cluster offers, by name, and nowhere near the system's own paths.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.conftest import Database
from tests.factories.jobs import JobApi, JobWorld, job_api, job_world

DATA = {"volume": "datasets", "path": "/data"}


@dataclass
class Setting:
    """
    A tenant whose provider says what it likes, and its API.
    """

    world: JobWorld
    """Everything below."""
    api: JobApi
    """The customer's key is `one`."""

    def offer(self, features: list[str], volumes: list[str]) -> None:
        """
        The provider has said that jobs may ask for these, and mount those.
        """
        said = json.dumps({"job_features": features, "volumes": volumes})
        with self.world.database.owner.begin() as connection:
            connection.execute(text("UPDATE providers SET capabilities = CAST(:said AS jsonb)"), {"said": said})

    def submit(self, *mounts: dict[str, Any]) -> tuple[int, Any]:
        """
        The answer to a job with these mounts.
        """
        spec = {"cluster_id": self.world.customer.cluster, "script": "#!/bin/sh\ntrue\n", "mounts": list(mounts)}
        path = f"/v1/projects/{self.world.customer.project}/jobs"
        answer = self.api.call("one", "POST", path, {"name": "train", "spec": spec})
        return answer.status_code, answer.json()


@pytest.fixture
def setting(database: Database, tmp_path: Path) -> Iterator[Setting]:
    """
    One tenant with a cluster.
    """
    with job_world(database, tmp_path) as world:
        api = job_api(database.engine)
        api.keys.known["one"] = world.customer.principal()
        yield Setting(world, api)


def test_only_what_is_offered_can_be_mounted(setting: Setting) -> None:
    """Without the feature, and by another name, the order is refused with what there is instead; what is offered is taken."""
    setting.offer([], [])
    status, problem = setting.submit(DATA)
    assert (status, problem["code"], problem["feature"]) == (409, "job_feature_unsupported", "mounts")
    setting.offer(["mounts"], ["scratch"])
    status, problem = setting.submit(DATA)
    assert (status, problem["code"], problem["volume"], problem["offered"]) == (409, "volume_unknown", "datasets", ["scratch"])
    setting.offer(["mounts"], ["scratch", "datasets"])
    status, made = setting.submit(DATA, {"volume": "scratch", "path": "/scratch", "read_only": True})
    assert (status, made["spec"]["mounts"][0]) == (202, {**DATA, "read_only": False}), made


def test_what_the_adapter_then_refuses_ends_the_job_in_words(setting: Setting) -> None:
    """A provider that claims volumes and has none: the job fails as refused, nothing runs."""
    setting.offer(["mounts"], ["datasets"])
    made = setting.submit(DATA)[1]
    job = setting.world.until_state(made["id"], "failed")
    assert (job.failure_class, job.issues[0]["code"]) == ("user_error", "job_feature_unsupported")
    assert setting.world.submissions() == []


@pytest.mark.parametrize(
    "mount",
    [
        *(
            {"path": path}
            for path in ("/", "data", "/../etc", "/data/..", "/data/../../etc", "/data//x", "/data/", "/.ssh", "//etc")
        ),
        *({"path": path} for path in ("/proc/1", "/sys", "/dev/shm", "/etc/passwd", "/run/secrets", "/controlplane/script")),
        *({"path": path} for path in ("/a:/b", "/a,/etc:/x", "/a b", "/a\n/b", "/a;id", "/$HOME", "/a%u", "/ä", "/" + "a" * 600)),
        {"volume": ""},
        {"volume": None},
        {"host_path": "/"},
        {"read_only": "no"},
    ],
)
def test_places_and_forms_that_are_none_are_refused(setting: Setting, mount: dict[str, Any]) -> None:
    """Ways up, the system's own, what a command line or a shell would read otherwise, fields of a peer: 422."""
    setting.offer(["mounts"], ["datasets"])
    assert setting.submit({**DATA, **mount})[0] == 422
    assert setting.submit(DATA, {**DATA, "volume": "other"})[0] == 422
