"""
The simulated provider under the contract suite, at every pace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path

from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.clusters import Member
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput, build_adapter
from tests.contract.harness import Harness

_STEP_S = {"instant": 1.0, "fast": 0.25, "realistic": 60.0}


class SimulatedHarness(Harness):
    """
    A demo fleet in a file of its own, on a clock that only moves when the harness lets time pass.
    """

    def __init__(self, directory: Path, profile: str) -> None:
        self._now = datetime(2026, 1, 31, 12, tzinfo=UTC)
        self._step_s = _STEP_S[profile]
        self.patience_s = 600 * self._step_s
        path = directory / "world.sqlite"
        given = AdapterInput(
            provider_id="prv_contract",
            config={"path": str(path), "fleet": "demo", "profile": profile},
            secrets={},
            deployment="contract",
            now=lambda: self._now,
        )
        self.adapter = build_adapter("simulated", given)
        self.control = SimControl(path, now=lambda: self._now)
        self._refs = iter([one.ref for one in self.adapter.list_machines().machines if "-b3-" not in one.ref])
        self._numbers = count(1)

    def free_refs(self, count: int) -> tuple[str, ...]:
        """
        The next machines of the fleet's HGX blocks.
        """
        return tuple(next(self._refs) for _ in range(count))

    def user_of(self, tenant_id: str) -> str:
        """
        Any name will do.
        """
        return f"u-{tenant_id}"

    def make_members(self, cluster_id: str, tenant_id: str, refs: tuple[str, ...]) -> tuple[Member, ...]:
        """
        The machines are deployed for the cluster.
        """
        members = tuple(Member(ref, self.gpus_per_node, self.new_id("alc")) for ref in refs)
        for one in members:
            self.adapter.deploy(Deployment(one.ref, one.token, tenant_id, cluster_id, network=f"net-{tenant_id}"))
        for one in members:
            self.until(partial(self.adapter.observe, one.ref), lambda view: view.phase == "deployed", what=f"{one.ref} deployed")
        return members

    def pass_time(self) -> None:
        """
        One step of the virtual clock.
        """
        self._now += timedelta(seconds=self._step_s)

    def now_s(self) -> float:
        """
        The virtual clock.
        """
        return self._now.timestamp()

    def admin_drain(self, ref: str, reason: str) -> None:
        """
        By the world's control.
        """
        self.control.admin_drain(ref, reason)

    def admin_undrain(self, ref: str) -> None:
        """
        By the world's control.
        """
        self.control.admin_undrain(ref)

    def node_dies(self, ref: str) -> None:
        """
        By the world's control.
        """
        self.control.kill_node(ref)

    def node_returns(self, ref: str) -> None:
        """
        By the world's control.
        """
        self.control.revive_node(ref)

    def new_id(self, kind: str) -> str:
        """
        Numbered from 1.
        """
        return f"{kind}_{next(self._numbers):06d}"

    def close(self) -> None:
        """
        The file is given up.
        """
        self.control.close()
        self.adapter.close()


@contextmanager
def _open(profile: str, directory: Path) -> Iterator[Harness]:
    harness = SimulatedHarness(directory, profile)
    try:
        yield harness
    finally:
        harness.close()


def harnesses() -> Mapping[str, Callable[[Path], AbstractContextManager[Harness]]]:
    """
    One harness for each pace of the world.
    """
    return {f"simulated-{profile}": partial(_open, profile) for profile in _STEP_S}
