"""
A simulated world on a clock that its test moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from controlplane.providers.adapters.simulated.adapter import SimulatedProvider, build
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput

REF, OTHER = "ams1-b1-l1-r1-n01", "ams1-b1-l1-r1-n02"


@dataclass
class World:
    """A world on a clock that the test moves."""

    path: Path
    moment: datetime = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def __post_init__(self) -> None:
        self.sim = self.adapter()
        self.control = SimControl(self.path, now=lambda: self.moment)

    def adapter(self, **config: object) -> SimulatedProvider:
        """Another adapter over the same file."""
        return build(AdapterInput("prv_1", {"path": str(self.path), **config}, {}, "test", lambda: self.moment))

    def later(self, seconds: float) -> None:
        """Time has passed."""
        self.moment += timedelta(seconds=seconds)

    def deployment(self, token: str = "alc_1", ref: str = REF) -> Deployment:
        """A tenancy of the tenant."""
        return Deployment(ref, token, "ten_1", "clu_1", "net_1")

    def cluster(self) -> ClusterSpec:
        """A cluster of two machines, up."""
        members = (Member(REF, 8, "alc_1"), Member(OTHER, 8, "alc_2"))
        for one in members:
            self.sim.deploy(self.deployment(one.token, one.ref))
        spec = ClusterSpec("clu_1", "ten_1", "prj_1", "u1", members)
        self.sim.apply_cluster(spec)
        return spec

    def job(self, script: str = "sleep 60", token: str = "job_1-1") -> JobSpec:
        """A job over both machines."""
        return JobSpec(token, "clu_1", "ten_1", "u1", f"#!/bin/sh\n{script}\n", 2, 8, 1, 600)

    def freed(self) -> None:
        """The machine had a tenancy, which is over."""
        self.sim.deploy(self.deployment())
        self.sim.release(REF, "alc_1", accepted_at=self.moment)
