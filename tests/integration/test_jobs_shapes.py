"""
What jobs ask for besides nodes and a script: it is done, or refused at order time with what to do instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import text

from controlplane.jobs.errors import FeatureMissing
from controlplane.kit.errors import DomainError
from tests.conftest import ROOT, Database
from tests.factories.jobs import JobWorld, job_world

TORCHRUN = {"kind": "torchrun", "command": ["train.py"], "launcher": ["echo", "launched"]}
ASKED: dict[str, dict[str, Any]] = {
    "gangs": {"nodes": 2},
    "priority": {"priority": "high"},
    "image": {"image": "registry.example.com/a:1"},
    "launch_torchrun": {"script": None, "launch": TORCHRUN},
    "launch_mpi": {"script": None, "launch": {"kind": "mpi", "command": ["solve"]}},
    "idle_stop": {"gpus_per_node": 8, "idle_stop_min": 30},
    "mig": {"mig": {"profile": "1g.10gb", "per_node": 2}},
    "gpu_attributes": {"gpus_per_node": 8, "gpu": {"model": None, "min_memory_gib": 40, "nvlink": None}},
}


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[JobWorld]:
    """
    A tenant with a running cluster of four nodes.
    """
    with job_world(database, tmp_path) as one:
        yield one


def offer(world: JobWorld, *features: str, mig: dict[str, int] | None = None, only_in: dict[str, str] | None = None) -> None:
    """
    The provider has said that jobs may ask for these, some of them in clusters of one kind only, and for nothing else; its nodes have these
    slices.
    """
    slices = {"1g.10gb": 14} if mig is None else mig
    said = {"said": json.dumps({"job_features": features, "mig": slices, "only_in": only_in or {}}), "id": world.provider.id}
    with world.database.owner.begin() as connection:
        connection.execute(text("UPDATE providers SET capabilities = CAST(:said AS jsonb) WHERE id = :id"), said)
        known = "UPDATE gpu_models SET mig_profiles = '{1g.10gb,1g.20gb,2g.20gb,3g.40gb,4g.40gb,7g.80gb}'"
        connection.execute(text(f"{known} WHERE name = 'H100-SXM5-80GB'"))


@pytest.mark.parametrize("feature", ASKED)
def test_what_the_provider_does_not_offer_is_refused_when_it_is_ordered(world: JobWorld, feature: str) -> None:
    """With the feature's name and what to do instead; where it is offered the job is taken."""
    offer(world)
    with pytest.raises(FeatureMissing) as caught:
        world.order(**ASKED[feature])
    assert caught.value.fields["feature"] == feature
    assert caught.value.fields["hint"]
    offer(world, feature)
    assert world.order(**ASKED[feature])


@pytest.mark.parametrize(("kind", "taken"), [("kubernetes", False), ("slurm", True)])
def test_what_only_clusters_of_one_kind_have_is_refused_in_others(world: JobWorld, kind: str, *, taken: bool) -> None:
    """By the provider's word, where it makes several kinds."""
    offer(world, "mig", only_in={"mig": kind})
    if taken:
        assert world.order(**ASKED["mig"])
        return
    with pytest.raises(FeatureMissing) as caught:
        world.order(**ASKED["mig"])
    assert caught.value.fields["feature"] == "mig"


@pytest.mark.parametrize(
    ("wanted", "code", "told"),
    [
        ({"profile": "1g.5gb", "per_node": 1}, "mig_profile_unknown", {"profile": "1g.5gb"}),  # an A100's
        ({"profile": "2g.20gb", "per_node": 1}, "mig_profile_unknown", {"offered": ["1g.10gb", "3g.40gb", "7g.80gb"]}),
        ({"profile": "1g.10gb", "per_node": 15}, "job_larger_than_cluster", {"resource": "mig_per_node", "limit": 14}),
        ({"profile": "7g.80gb", "per_node": 9}, "job_larger_than_cluster", {"resource": "mig_per_node", "limit": 8}),
        ({"profile": "3g.40gb", "per_node": 19}, "job_larger_than_cluster", {"limit": 18}),
    ],
)
def test_slices_that_its_cluster_has_not_are_refused_when_they_are_ordered(
    world: JobWorld, wanted: dict[str, Any], code: str, told: dict[str, Any]
) -> None:
    """By the catalog what the model cannot be, by the provider what no node is, by the node what would be more than its GPUs."""
    offer(world, "mig", mig={"1g.10gb": 14, "3g.40gb": 20, "7g.80gb": 12})
    with pytest.raises(DomainError) as caught:
        world.order(mig=wanted)
    assert caught.value.code == code
    assert {name: caught.value.fields[name] for name in told} == told


def test_the_guides_slices_are_taken(world: JobWorld) -> None:
    """As they stand there."""
    offer(world, "mig")
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8").partition("## Slices of GPUs")[2]
    found = re.search(r"```json\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    assert world.order(**json.loads(found[1]))


def test_the_guides_mpi_job_is_taken(world: JobWorld) -> None:
    """As it stands there."""
    offer(world, "gangs", "image", "launch_mpi")
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text(encoding="utf-8").partition("## MPI")[2]
    found = re.search(r"```json\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    assert world.job(world.order(None, **json.loads(found[1]))).spec["launch"]["implementation"] == "openmpi"


def test_slices_stand_in_the_place_of_whole_gpus(world: JobWorld) -> None:
    """Both at once are malformed; the share of a GPU that each is stands in the job's spec."""
    offer(world, "mig", mig={"3g.40gb": 16})
    with pytest.raises(ValidationError):
        world.order(mig={"profile": "3g.40gb", "per_node": 2}, gpus_per_node=1)
    job = world.job(world.order(mig={"profile": "3g.40gb", "per_node": 2}))
    assert job.spec["mig"] == {"profile": "3g.40gb", "per_node": 2, "slices": 3, "of_slices": 7}
    assert job.spec["tasks_per_node"] == 2


def test_a_provider_that_changed_its_word_ends_the_job_with_a_reason(world: JobWorld) -> None:
    """What was offered at order time and is not any more is refused before it is sent, as the job's own matter."""
    world.set_cluster_state("provisioning")
    job_id = world.order(priority="high")
    world.settle()
    offer(world)
    world.set_cluster_state("running")
    job = world.until_state(job_id, "failed")
    assert (job.issues[0]["code"], job.failure_class) == ("job_feature_unsupported", "user_error")
    assert "Leave the priority at normal." in job.reason
    assert world.submissions() == []


def test_torchrun_starts_once_on_each_node(world: JobWorld) -> None:
    """Two nodes: two launchers that know the gang, and no script to write."""
    job_id = world.order(None, nodes=2, gpus_per_node=8, launch=TORCHRUN)
    world.until_state(job_id, "succeeded")
    lines = sorted(world.output(job_id).splitlines())
    assert [line.split("--master")[0] for line in lines] == [
        f"launched --nnodes=2 --nproc-per-node=8 --node-rank={rank} " for rank in (0, 1)
    ]
    assert {line.rsplit(" ", 1)[1] for line in lines} == {"train.py"}


def test_a_job_with_idle_gpus_is_stopped(world: JobWorld) -> None:
    """Not before its time, and in words; one that works, and one that did not ask for it, go on."""
    idle = {"SIMULATED_GPUS": "idle"}
    script = "#!/bin/sh\nsleep 7200\n"
    stopped = world.order(script, gpus_per_node=8, idle_stop_min=5, env=idle)
    working = world.order(script, gpus_per_node=8, idle_stop_min=5)
    unasked = world.order(script, gpus_per_node=8, env=idle)
    began = world.until_state(stopped, "running").started_at
    job = world.until_state(stopped, "cancelled", within_s=3600)
    assert [one["code"] for one in job.issues] == ["idle_stopped"]
    assert job.reason == "Stopped: none of its GPUs did anything for 5 minutes."
    assert began is not None
    assert job.ended_at is not None
    assert 300 <= (job.ended_at - began).total_seconds() < 400
    assert {world.job(one).state for one in (working, unasked)} == {"running"}


def test_a_job_whose_image_cannot_be_pulled_fails_in_time(world: JobWorld) -> None:
    """It is given up, in words and with its class, though the scheduler only knows that it was cancelled; others run meanwhile."""
    vain = world.order("#!/bin/sh\ntrue\n", env={"SIMULATED_WAIT": "ImagePullBackOff"})
    waits = world.order("#!/bin/sh\ntrue\n", env={"SIMULATED_WAIT": "Licenses"})
    world.until_state(world.order(), "succeeded")
    began = world.now()
    job = world.until_state(vain, "failed", within_s=900)
    assert 500 < (world.now() - began).total_seconds() < 700
    assert (job.failure_class, job.reason, job.attempt) == ("user_error", "The image cannot be pulled.", 1)
    assert [one["code"] for one in job.issues] == ["image_not_pulled"]
    assert world.job(waits).state == "starting"


def test_a_job_of_a_higher_class_overtakes(world: JobWorld) -> None:
    """It came last and starts first."""
    whole: dict[str, Any] = {"nodes": 4, "gpus_per_node": 8}
    world.until_state(world.order("#!/bin/sh\nsleep 60\n", **whole), "running")
    low, high = (world.order("#!/bin/sh\nsleep 30\n", priority=name, **whole) for name in ("low", "high"))
    world.until_state(high, "running")
    assert world.job(low).state == "starting"
