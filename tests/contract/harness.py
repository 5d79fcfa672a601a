"""
What the contract suite needs of an adapter's surroundings.

A new adapter joins by one file, `tests/contract/<name>_harness.py`, with `harnesses()`: a mapping from a name to a function that
takes a fresh directory and returns a context manager around a `Harness`. Pytest marks for all of its tests go into an optional
`MARKS`. Each test gets a harness of its own; one that is dear to start may hand out the same peer again with other machines and
ids. A harness says in `lacks` what its peer cannot do; those tests are skipped, with that word as the reason:

    machines            the peer does not own machines (no `Machines`)
    clusters            the peer makes no clusters and runs no jobs (no `Clusters`)
    jobs                the peer makes clusters and runs no jobs in them (no `SupportsJobs`)
    late_members        when a member came up is not known
    node_death          a machine cannot be killed and brought back
    short_time_limits   a limit of a few seconds is not enforced in time
    admin_drain         there is no administrator who drains
    srun                scripts are not started under a launcher named srun
    tenant_user_check   a foreign user's submission is not turned away at once
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from controlplane.providers.clusters import ClusterSpec, ClusterView, JobSpec, JobView, Member
from controlplane.providers.errors import NotFound, Transient

Seen = TypeVar("Seen")
ENDED = frozenset({"succeeded", "failed", "cancelled"})


class Harness(ABC):
    """
    One peer with free machines, and somebody who can let time pass and break things.
    """

    adapter: Any
    """The adapter under test, built as in production."""
    lacks: frozenset[str] = frozenset()
    """What this peer cannot do, in the words above."""
    gpus_per_node: int = 8
    """GPUs of each machine that `free_refs` gives."""
    tenants: tuple[str, str] = ("ten_one", "ten_two")
    """Two tenants that the peer knows apart."""
    patience_s: float = 60.0
    """How long anything may take at this peer, in its own time."""

    @abstractmethod
    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        Machines that nobody holds, all alike, and not given out before in this harness.
        """

    @abstractmethod
    def user_of(self, tenant_id: str) -> str:
        """
        The peer's account that the tenant's jobs run as.
        """

    @abstractmethod
    def make_members(self, cluster_id: str, tenant_id: str, refs: tuple[str, ...]) -> tuple[Member, ...]:
        """
        The machines can become members of the tenant's cluster; where the peer owns machines they are deployed first.
        """

    @abstractmethod
    def pass_time(self) -> None:
        """
        A little of the peer's time has passed.
        """

    @abstractmethod
    def now_s(self) -> float:
        """
        The peer's time in seconds, from anywhere.
        """

    @abstractmethod
    def admin_drain(self, ref: str, reason: str) -> None:
        """
        An administrator has drained the machine.
        """

    @abstractmethod
    def admin_undrain(self, ref: str) -> None:
        """
        An administrator has put it back to work.
        """

    @abstractmethod
    def node_dies(self, ref: str) -> None:
        """
        The machine is dead until it returns.
        """

    @abstractmethod
    def node_returns(self, ref: str) -> None:
        """
        The machine answers again.
        """

    @abstractmethod
    def new_id(self, kind: str) -> str:
        """
        An id that was never used at this peer, for example `clu_...` for `clu`.
        """

    # What every test does, written once.

    def until(self, look: Callable[[], Seen], good: Callable[[Seen], object], *, what: str) -> Seen:
        """
        What was seen when it was good; transient errors are looked past, as the port asks. Fails at the end of the patience.
        """
        deadline = self.now_s() + self.patience_s
        seen: object = "nothing"
        while self.now_s() <= deadline:
            try:
                found = look()
            except Transient as wrong:
                seen = wrong
            else:
                if good(found):
                    return found
                seen = found
            self.pass_time()
        raise AssertionError(f"{what}: not within {self.patience_s} s; last seen: {seen!r}")

    def insist(self, act: Callable[[], object], *, what: str) -> None:
        """
        The change was accepted; the peer's requests for patience are granted.
        """

        def once() -> bool:
            act()
            return True

        self.until(once, bool, what=what)

    def cluster(self, count: int, tenant_id: str | None = None) -> ClusterSpec:
        """
        A cluster of so many machines, with every member up.
        """
        tenant = tenant_id or self.tenants[0]
        cluster_id = self.new_id("clu")
        members = self.make_members(cluster_id, tenant, self.free_refs(count))
        spec = ClusterSpec(cluster_id, tenant, "prj_contract", self.user_of(tenant), members)
        self.apply(spec)
        return spec

    def apply(self, spec: ClusterSpec) -> ClusterView:
        """
        The cluster as it is once exactly the wanted members are up.
        """
        wanted = {one.ref for one in spec.members}
        self.insist(lambda: self.adapter.apply_cluster(spec), what="apply_cluster")
        return self.until(
            lambda: self.view(spec),
            lambda view: {one.ref for one in view.members if one.state == "up"} == wanted and len(view.members) == len(wanted),
            what=f"cluster {spec.cluster_id} up",
        )

    def view(self, spec: ClusterSpec) -> ClusterView:
        """
        The cluster now.
        """
        seen: ClusterView = self.adapter.observe_cluster(spec.cluster_id)
        return seen

    def job(self, spec: ClusterSpec, script: str, **wanted: Any) -> JobSpec:
        """
        A job for the cluster, not yet submitted; one task and all GPUs on every member unless said otherwise.
        """
        shape: dict[str, Any] = {
            "nodes": len(spec.members),
            "gpus_per_node": self.gpus_per_node,
            "tasks_per_node": 1,
            "time_limit_s": 600,
        }
        return JobSpec(
            token=f"{self.new_id('job')}-1",
            cluster_id=spec.cluster_id,
            tenant_id=spec.tenant_id,
            user=spec.user,
            script=f"#!/bin/bash\n{script}\n",
            **{**shape, **wanted},
        )

    def submit(self, job: JobSpec) -> str:
        """
        The peer's id of the submitted job.
        """
        ids: list[str] = []
        self.insist(lambda: ids.append(self.adapter.submit(job)), what="submit")
        return ids[-1]

    def ended(self, job: JobSpec) -> JobView:
        """
        The job once it is over.
        """
        return self.until(lambda: self.seen(job), lambda view: view.phase in ENDED, what=f"job {job.token} over")

    def seen(self, job: JobSpec) -> JobView:
        """
        The job now.
        """
        view: JobView = self.adapter.find_job(job.cluster_id, job.token)
        return view

    def gone(self, cluster_id: str) -> None:
        """
        The cluster is deleted and was seen to be absent.
        """

        def absent() -> bool:
            try:
                self.adapter.observe_cluster(cluster_id)
            except NotFound:
                return True
            return False

        self.insist(lambda: self.adapter.delete_cluster(cluster_id), what="delete_cluster")
        self.until(absent, bool, what=f"cluster {cluster_id} gone")
