"""
A real Slurm under the contract suite: one a test session, its nodes given out again after each test.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest

from controlplane.providers.clusters import Member
from controlplane.providers.machines import Deployment
from tests.contract.harness import Harness
from tests.slurm_kit import SlurmKit, session_kit

MARKS: tuple[pytest.MarkDecorator, ...] = (pytest.mark.slurm,)
POLL_S = 0.1


class SlurmHarness(Harness):
    """
    The session's Slurm with all its nodes free.
    """

    patience_s = 60.0
    # The nodes are the operator's and stay on, so the suite of `Machines` does not fit: tests/contract/test_slurm_nodes.py does.
    # A limit is a whole minute, and a requeue waits: the slow harness has patience for both.
    lacks = frozenset({"machines", "short_time_limits", "node_death"})

    def __init__(self, kit: SlurmKit) -> None:
        self.kit = kit
        self.adapter = kit.adapter(lambda: datetime.now(UTC), mint=True)
        self._free = iter(kit.nodes)
        self._run = secrets.token_hex(3)
        self._numbers = count(1)
        self._clusters: list[str] = []

    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        The next nodes.
        """
        return tuple(next(self._free) for _ in range(count))

    def user_of(self, tenant_id: str) -> str:
        """
        One of the kit's two accounts.
        """
        return self.kit.users[self.tenants.index(tenant_id)]

    def make_members(self, cluster_id: str, tenant_id: str, refs: tuple[str, ...]) -> tuple[Member, ...]:
        """
        The nodes are deployed; slurmctld's clock has seconds only, so late members wait for the next one.
        """
        if cluster_id in self._clusters:
            time.sleep(1.05 - time.time() % 1)
        members = tuple(Member(ref, self.gpus_per_node, self.new_id("alc")) for ref in refs)
        for one in members:
            self.adapter.deploy(Deployment(one.ref, one.token, tenant_id, cluster_id, network=f"net-{tenant_id}"))
        return members

    def pass_time(self) -> None:
        """
        Real time.
        """
        time.sleep(POLL_S)

    def now_s(self) -> float:
        """
        Real time.
        """
        return time.monotonic()

    def admin_drain(self, ref: str, reason: str) -> None:
        """
        By scontrol, as an administrator would.
        """
        self.kit.scontrol("update", f"nodename={ref}", "state=drain", f"reason={reason}")

    def admin_undrain(self, ref: str) -> None:
        """
        By scontrol.
        """
        self.kit.scontrol("update", f"nodename={ref}", "state=resume")

    def node_dies(self, ref: str) -> None:
        """
        Its slurmd is stopped. Slurm would notice after SlurmdTimeout; an administrator who sees it says so at once.
        """
        self.kit.run("node-down", ref)
        self.kit.scontrol("update", f"nodename={ref}", "state=down", "reason=no answer")

    def node_returns(self, ref: str) -> None:
        """
        Its slurmd runs again and reports, which puts the node back to work (ReturnToService=2).
        """
        self.kit.run("node-up", ref)

    def new_id(self, kind: str) -> str:
        """
        Numbered from 1 in a run of its own.
        """
        made = f"{kind}_{self._run}{next(self._numbers):04d}"
        if kind == "clu":
            self._clusters.append(made)
        return made

    def close(self) -> None:
        """
        Nothing of the test is left at the Slurm.
        """
        if self.adapter.list_clusters().cluster_ids:
            for user in self.kit.users:
                self.kit.slurm("scancel", "--user", user)
        for cluster_id in self.adapter.list_clusters().cluster_ids:
            self.gone(cluster_id)
        self.kit.free()
        idle = ("sinfo", "-h", "-r", "-p", "tenants", "-t", "idle", "-o", "%D")
        self.until(lambda: self.kit.slurm(*idle), lambda seen: seen == str(len(self.kit.nodes)), what="all nodes free")
        self.adapter.close()


@contextmanager
def _open(directory: Path) -> Iterator[Harness]:
    del directory
    harness = SlurmHarness(session_kit())
    try:
        yield harness
    finally:
        harness.close()


def harnesses() -> Mapping[str, Callable[[Path], AbstractContextManager[Harness]]]:
    """
    The installed Slurm: 22.05 on Debian 12.
    """
    return {"slurm": _open}
