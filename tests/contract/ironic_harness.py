"""
A real Ironic with fake hardware under the contract suite: one a test process, with nodes of their own for each test.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path

from controlplane.providers.clusters import Member
from controlplane.providers.machines import Deployment
from tests.contract.harness import Harness
from tests.ironic_kit import IronicKit, session_kit

POLL_S = 0.1


class IronicHarness(Harness):
    """
    The process's Ironic with one free node, at least.
    """

    patience_s = 30.0
    lacks = frozenset({"clusters"})

    def __init__(self, kit: IronicKit) -> None:
        self.kit = kit
        self.adapter = kit.adapter()
        self._run = secrets.token_hex(3)
        self._numbers = count(1)
        self._given: list[str] = []
        self._spares = _spares()
        if not self._spares:
            self._spares.append(self._make())

    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        The node that is there from the beginning, and new ones.
        """
        given = tuple(self._spares.pop() if self._spares else self._make() for _ in range(count))
        self._given += given
        return given

    def user_of(self, tenant_id: str) -> str:
        """
        Ironic runs no jobs.
        """
        return tenant_id

    def make_members(self, cluster_id: str, tenant_id: str, refs: tuple[str, ...]) -> tuple[Member, ...]:
        """
        The nodes are deployed for the cluster.
        """
        members = tuple(Member(ref, self.gpus_per_node, self.new_id("alc")) for ref in refs)
        for one in members:
            wanted = Deployment(one.ref, one.token, tenant_id, cluster_id, network=f"net-{tenant_id}")
            self.insist(partial(self.adapter.deploy, wanted), what="deploy")
            self.until(partial(self.adapter.observe, one.ref), lambda view: view.phase == "deployed", what=f"{one.ref} deployed")
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
        Maintenance, as an administrator would set it.
        """
        self.kit.call("PUT", f"nodes/{ref}/maintenance", {"reason": reason})

    def admin_undrain(self, ref: str) -> None:
        """
        Out of maintenance.
        """
        self.kit.call("DELETE", f"nodes/{ref}/maintenance")

    def node_dies(self, ref: str) -> None:
        """
        It is without power.
        """
        self.kit.call("PUT", f"nodes/{ref}/states/power", {"target": "power off"})

    def node_returns(self, ref: str) -> None:
        """
        It has power.
        """
        self.kit.call("PUT", f"nodes/{ref}/states/power", {"target": "power on"})

    def new_id(self, kind: str) -> str:
        """
        Numbered from 1 in a run of its own.
        """
        return f"{kind}_{self._run}{next(self._numbers):04d}"

    def _make(self) -> str:
        name = self.new_id("node")
        self.kit.make(name)
        return name

    def close(self) -> None:
        """
        Nothing of the test is left at the Ironic.
        """
        self.adapter.close()
        for name in self._given:
            self.kit.drop(name)


@cache
def _spares() -> list[str]:
    """
    A free node that no test has had yet: a test that is skipped leaves it to the next.
    """
    return []


@contextmanager
def _open(directory: Path) -> Iterator[Harness]:
    del directory
    harness = IronicHarness(session_kit())
    try:
        yield harness
    finally:
        harness.close()


def harnesses() -> Mapping[str, Callable[[Path], AbstractContextManager[Harness]]]:
    """
    Ironic 39 without authentication.
    """
    return {"ironic": _open}
