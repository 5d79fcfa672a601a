"""
A scheduler with one job, and what a job's steps make of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from controlplane.jobs.states import (
    PIECE_BYTES,
    JobFacts,
    JobSnapshot,
)
from controlplane.jobs.steps import STEPS
from controlplane.kit.outcome import Outcome
from controlplane.nodes.states import ProviderRef
from controlplane.providers.clusters import JobSpec, JobView, OutputChunk
from controlplane.providers.errors import (
    ProviderError,
)
from controlplane.providers.toolbox import Toolbox
from controlplane.providers.tracking import GpuUse

AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
JOB = JobSnapshot(
    id="job_1",
    state="admitted",
    step="",
    attempt=2,
    tenant_id="ten_1",
    cluster_id="clu_1",
    cluster_state="running",
    user="u1",
    provider=ProviderRef("prv_1", "simulated", {}, None, 1),
    script="#!/bin/sh\n",
    nodes=2,
    gpus_per_node=8,
    tasks_per_node=8,
    time_limit_s=600,
    env={"A": "b"},
    gpu_model="H100",
    max_restarts=3,
    restarts=1,
    cancel=False,
    log_bytes=0,
    instances={"n1": "ins_1", "n2": "ins_2"},
)
VIEW = JobView(token="job_1-2", external_id="77", phase="running", nodes=("n1", "n2"), started_at=AT)


@dataclass
class Peer:
    """
    A scheduler with one job.
    """

    view: JobView | ProviderError = VIEW
    """What a look says."""
    submitted: str | ProviderError = "77"
    """What a submit says."""
    printed: bytes | ProviderError = b""
    """What the job has printed."""
    done: bool = False
    """Whether it will print no more."""
    calls: list[Any] = field(default_factory=list)
    """Changing calls it got."""

    use: GpuUse | ProviderError = field(default_factory=lambda: GpuUse(0, None))
    """How busy its GPUs are."""

    def gpu_use(self, cluster_id: str, token: str, *, window_s: int) -> GpuUse:
        """The port's."""
        assert (cluster_id, token, window_s) == ("clu_1", "job_1-2", 1800)
        return cast("GpuUse", _say(self.use))

    def submit(self, job: JobSpec) -> str:
        """The port's."""
        self.calls.append(job)
        return cast("str", _say(self.submitted))

    def find_job(self, cluster_id: str, token: str) -> JobView:
        """The port's."""
        assert (cluster_id, token) == ("clu_1", "job_1-2")
        return cast("JobView", _say(self.view))

    def cancel(self, cluster_id: str, token: str) -> None:
        """The port's."""
        self.calls.append(("cancel", cluster_id, token))

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """The port's."""
        assert limit <= PIECE_BYTES
        data = cast("bytes", _say(self.printed))
        chunk = data[offset : offset + limit]
        return OutputChunk(offset, chunk, self.done and offset + len(chunk) >= len(data))


class Tools(Toolbox):
    """
    A toolbox in which every provider is the same peer.
    """

    def __init__(self, peer: object) -> None:
        super().__init__(deployment="test", now=lambda: AT, open_secrets=lambda _id, _sealed: {})
        self._peer = peer

    def adapter(self, provider: Any) -> Any:
        """The peer."""
        del provider
        return self._peer


def _say(answer: Any) -> Any:
    if isinstance(answer, ProviderError):
        raise answer
    return answer


def run(peer: object, state: str, **changes: Any) -> Outcome:
    """
    What the state's step says, as the driver would hear it.
    """
    outcome, broken = Tools(peer).run(STEPS[state], replace(JOB, state=state, **changes), attempt=1)
    assert not broken
    return outcome


def facts(outcome: Outcome) -> JobFacts:
    """
    The outcome's facts.
    """
    assert isinstance(outcome.facts, JobFacts)
    return outcome.facts
