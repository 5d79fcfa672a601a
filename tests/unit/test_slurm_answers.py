"""
Answers recorded from real daemons of 22.05 and 24.11 say the same once they are normalised.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.adapters.slurm import answers
from controlplane.providers.adapters.slurm.answers import JobRecord
from controlplane.providers.adapters.slurm.jobs import failure, phase, view
from controlplane.providers.adapters.slurm.walls import member_state

RECORDED = Path(__file__).parents[1] / "fixtures" / "slurmrestd"
VERSIONS = ["v0.0.38", "v0.0.40", "v0.0.41", "v0.0.42"]


def _recorded(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{version}.json").read_text())
    return found


def _jobs(version: str) -> dict[str, JobRecord]:
    return {job.name: job for job in answers.records(_recorded(version)["jobs"], "jobs", answers.job)}


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_nodes_say_the_same(version: str) -> None:
    """An allocated, an administrator's drained and a dead node."""
    nodes = {node.name: node for node in answers.records(_recorded(version)["nodes"], "nodes", answers.node)}
    assert {name: member_state(node, 0) for name, node in nodes.items()} == {"n1": "up", "n2": "up", "n3": "drained", "n4": "down"}
    assert {(node.gpus, node.gpu_types, node.cpus, node.memory_mib) for node in nodes.values()} == {(8, ("h100",), 64, 1_000_000)}
    assert nodes["n3"].reason == "disk swap"
    assert nodes["n1"].extra == "cp1:test;cluster=clu_1;users=tenant1"
    assert nodes["n1"].version == ("22.05.8" if version == "v0.0.38" else "24.11.5")
    assert nodes["n1"].partitions[0] == "batch"


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_jobs_say_the_same(version: str) -> None:
    """Phase, failure, exit code and signal, nodes and requeues of every kind of end."""
    jobs = _jobs(version)
    assert jobs.pop("job_never-1").rejected
    seen = {name: view(job) for name, job in jobs.items()}
    told = {name: (one.phase, one.failure, one.exit_code, one.signal, one.nodes, one.requeues) for name, one in seen.items()}
    assert told == {
        "job_ok-1": ("succeeded", None, 0, 0, ("n1",), 0),
        "job_three-1": ("failed", "user_error", 3, 0, ("n1",), 0),
        "job_killed-1": ("failed", "user_error", 0, 9, ("n1",), 0),
        "job_cancelled-1": ("cancelled", None, 0, 15, ("n1",), 0),
        "job_requeued-1": ("pending", None, None, None, (), 1),
        "job_running-1": ("running", None, None, None, ("n1", "n2"), 0),
        "job_pending-1": ("pending", None, None, None, (), 0),
        "job_dropped-1": ("cancelled", None, None, None, (), 0),
    }
    assert seen["job_pending-1"].reason == "Resources"
    assert seen["job_pending-1"].started_at is None
    assert seen["job_running-1"].ended_at is None
    assert {job.user for job in jobs.values()} == {"tenant1"}
    assert {job.reservation for job in jobs.values()} == {"test:clu_1"}


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_reservations_and_releases_are_read(version: str) -> None:
    """The wall's nodes and user; the release under either spelling."""
    recorded = _recorded(version)
    (wall,) = answers.records(recorded["reservations"], "reservations", answers.reservation)
    assert (wall.name, wall.nodes, wall.users) == ("test:clu_1", ("n1", "n2"), ("tenant1",))
    assert wall.ends_at is not None
    assert wall.ends_at.year == 2080
    assert answers.release(recorded["ping"]) == ("22.05.8" if version == "v0.0.38" else "24.11.5")


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ({"NODE_FAIL"}, "node_fault"),
        ({"BOOT_FAIL"}, "node_fault"),
        ({"TIMEOUT"}, "time_limit"),
        ({"DEADLINE"}, "time_limit"),
        ({"OUT_OF_MEMORY"}, "out_of_memory"),
        ({"PREEMPTED"}, "preempted"),
        ({"LAUNCH_FAILED"}, "provider_fault"),
        ({"REVOKED"}, "provider_fault"),
        ({"FAILED"}, "user_error"),
        ({"FAILED", "LAUNCH_FAILED"}, "provider_fault"),
    ],
)
def test_every_end_has_a_failure_class(states: set[str], cause: str) -> None:
    """Slurm's states in the port's words."""
    job = replace(_jobs("v0.0.42")["job_three-1"], states=frozenset(states))
    assert (phase(job), failure(job)) == ("failed", cause)


def test_an_output_that_cannot_be_opened_is_not_the_users_fault() -> None:
    """Exit 0:53 is slurmstepd's own."""
    job = replace(_jobs("v0.0.38")["job_three-1"], exit_code=0, signal=53, reason="JobLaunchFailure")
    assert failure(job) == "provider_fault"


@pytest.mark.parametrize(
    ("states", "folded"),
    [
        ({"CANCELLED", "COMPLETING"}, "completing"),
        ({"COMPLETING"}, "completing"),
        ({"PENDING", "REQUEUED"}, "pending"),
        ({"REQUEUE_HOLD"}, "pending"),
        ({"RUNNING", "CONFIGURING"}, "running"),
        ({"SUSPENDED"}, "running"),
        ({"COMPLETED"}, "succeeded"),
        ({"SOMETHING_NEW"}, "unknown"),
    ],
)
def test_states_fold_into_phases(states: set[str], folded: str) -> None:
    """A flag goes before the state beside it; a state nobody knows is unknown."""
    assert phase(replace(_jobs("v0.0.42")["job_running-1"], states=frozenset(states))) == folded


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ({"IDLE"}, "up"),
        ({"MIXED", "RESERVED"}, "up"),
        ({"IDLE", "PLANNED"}, "up"),
        ({"ALLOCATED", "DRAIN"}, "draining"),
        ({"IDLE", "DRAIN"}, "drained"),
        ({"IDLE", "NOT_RESPONDING"}, "unknown"),
        ({"DOWN", "NOT_RESPONDING"}, "down"),
        ({"DOWN", "DRAIN"}, "down"),
        ({"IDLE", "DRAIN", "INVALID_REG"}, "down"),
        ({"IDLE", "POWERED_DOWN"}, "joining"),
        ({"DOWN", "POWERING_UP"}, "down"),
        ({"SOMETHING_NEW"}, "unknown"),
    ],
)
def test_node_states_fold_into_member_states(states: set[str], state: str) -> None:
    """A missed ping is no loss; a state nobody knows is unknown."""
    node = answers.records(_recorded("v0.0.42")["nodes"], "nodes", answers.node)[0]
    assert member_state(replace(node, states=frozenset(states)), 0) == state
