"""
What any Kubernetes is under the contract suite, the emulator of the kit or a real one.
"""

from __future__ import annotations

import time
from itertools import count

from controlplane.providers.clusters import Member
from tests.contract.harness import Harness


class OnKubernetes(Harness):
    """
    Its nodes run already, and time is real.
    """

    poll_s: float
    """Between two looks."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._clusters: set[str] = set()

    def user_of(self, tenant_id: str) -> str:
        """
        Namespaces keep tenants apart; jobs have no account.
        """
        return f"u-{tenant_id.replace('_', '-')}"

    def make_members(self, cluster_id: str, tenant_id: str, refs: tuple[str, ...]) -> tuple[Member, ...]:
        """
        Nothing is deployed; the server's clock has seconds only, so late members wait for the next one.
        """
        if cluster_id in self._clusters:
            time.sleep(1.05 - time.time() % 1)
        self._clusters.add(cluster_id)
        return tuple(Member(ref, self.gpus_per_node, self.new_id("alc")) for ref in refs)

    def pass_time(self) -> None:
        """
        Real time.
        """
        time.sleep(self.poll_s)

    def now_s(self) -> float:
        """
        Real time.
        """
        return time.monotonic()

    def new_id(self, kind: str) -> str:
        """
        Numbered from 1.
        """
        return f"{kind}_{next(self._numbers):06d}"
