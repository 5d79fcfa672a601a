"""
The fabrics under the contract suite: the simulated one, and the lab of `tests/fabric_lab.py` with real FRR.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.providers.errors import Transient
from controlplane.providers.fabrics import Fabrics, NetworkSpec, PortRef, PortView
from controlplane.providers.registry import AdapterInput, build_adapter
from tests.fabric_lab import LEAVES, PORTS, FabricLab

Seen = TypeVar("Seen")


class FabricHarness(ABC):
    """
    One fabric whose listed ports are bare, and somebody who can break things.
    """

    adapter: Fabrics
    """The adapter under test, built as in production."""
    ports: tuple[PortRef, ...]
    """Four ports: two on one switch, then two on another."""
    reserved: PortRef
    """A port of the first switch that is the operator's."""
    missing: PortRef
    """No port at all."""
    _segments = count(1000)
    _turns = count(1)

    @abstractmethod
    def another(self) -> Fabrics:
        """
        A second adapter of the same fabric, as another process would have.
        """

    @abstractmethod
    def silence(self, switch: str) -> None:
        """
        The switch cannot be reached; what it carries goes on.
        """

    @abstractmethod
    def restore(self, switch: str) -> None:
        """
        The switch can be reached again.
        """

    @abstractmethod
    def reboot(self, switch: str) -> None:
        """
        The switch has started anew and has what the operator gave it, nothing else.
        """

    @abstractmethod
    def meddle(self, ref: PortRef) -> None:
        """
        Somebody has put the port into a network of their own by hand.
        """

    @abstractmethod
    def tidy(self, ref: PortRef) -> None:
        """
        They have taken it out again.
        """

    @abstractmethod
    def pass_time(self) -> None:
        """
        A little of the fabric's time has passed.
        """

    def network(self) -> NetworkSpec:
        """
        A network that was never there before.
        """
        segment = next(self._segments)
        return NetworkSpec(f"net-{segment}", f"ten_{segment}", segment)

    def turn(self) -> int:
        """
        A turn later than every one before.
        """
        return next(self._turns)

    def settled(self, ref: PortRef, segment: int | None) -> PortView:
        """
        The port as it is once it carries the segment and nothing is strange. Fails when that does not come.
        """
        return self.until(lambda: self.adapter.observe_port(ref), lambda seen: seen.segment == segment and not seen.strange)

    def until(self, look: Callable[[], Seen], good: Callable[[Seen], object]) -> Seen:
        """
        What was seen when it was good; transient errors are looked past. Fails after 20 s.
        """
        ends_at = time.monotonic() + 20
        seen: object = "nothing"
        while time.monotonic() < ends_at:
            try:
                found = look()
            except Transient as wrong:
                seen = wrong
            else:
                if good(found):
                    return found
                seen = found
            self.pass_time()
        raise AssertionError(f"not within 20 s; last seen: {seen!r}")


class SimulatedFabric(FabricHarness):
    """
    Two leaves of the demo fleet.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "world.sqlite"
        self._now = datetime(2026, 1, 31, 12, tzinfo=UTC)
        self.adapter = self.another()
        self.control = SimControl(self._path, now=lambda: self._now)
        leaves: dict[str, list[PortRef]] = {}
        for one in self.adapter.observe_fabric().ports:
            leaves.setdefault(one.ref.switch, []).append(one.ref)
        first, second, *_ = leaves.values()
        self.ports = (*first[:2], *second[:2])
        machine = first[0].port.removesuffix(".p1")
        self.reserved = PortRef(first[0].switch, f"{machine}.bmc")
        self.missing = PortRef(first[0].switch, f"{machine}.p9")

    def another(self) -> Fabrics:
        """
        Over the same file.
        """
        given = AdapterInput("prv_fabric", {"path": str(self._path), "fleet": "demo"}, {}, "contract", lambda: self._now)
        adapter = build_adapter("simulated", given)
        assert isinstance(adapter, Fabrics)
        return adapter

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()

    def silence(self, switch: str) -> None:
        """
        By the world's control.
        """
        self.control.silence_switch(switch)

    def restore(self, switch: str) -> None:
        """
        By the world's control.
        """
        self.control.restore_switch(switch)

    def reboot(self, switch: str) -> None:
        """
        By the world's control.
        """
        self.control.reboot_switch(switch)

    def meddle(self, ref: PortRef) -> None:
        """
        By the world's control.
        """
        self.control.rewire(ref, 4242, tenant_id="somebody")

    def tidy(self, ref: PortRef) -> None:
        """
        By the world's control.
        """
        self.control.rewire(ref, None)

    def pass_time(self) -> None:
        """
        One second of the virtual clock.
        """
        self._now += timedelta(seconds=1)


class FrrFabric(FabricHarness):
    """
    The lab's two leaves.
    """

    def __init__(self, lab: FabricLab) -> None:
        self.lab = lab
        self.ports = tuple(PortRef(leaf, port) for leaf in LEAVES for port in PORTS)
        self.reserved = PortRef("l1", "bmc0")
        self.missing = PortRef("l1", "p9")
        self.adapter = self.another()

    def another(self) -> Fabrics:
        """
        The same switches.
        """
        adapter = self.lab.adapter()
        assert isinstance(adapter, Fabrics)
        return adapter

    def silence(self, switch: str) -> None:
        """
        The way to it is gone.
        """
        self.lab.close_door(switch)

    def restore(self, switch: str) -> None:
        """
        The way to it is back.
        """
        self.lab.open_door(switch)

    def reboot(self, switch: str) -> None:
        """
        As the lab does it.
        """
        self.lab.reboot(switch)

    def meddle(self, ref: PortRef) -> None:
        """
        With `ip`, on the switch.
        """
        self.lab.on(ref.switch, "ip", "link", "add", "byhand", "type", "bridge")
        self.lab.on(ref.switch, "ip", "link", "set", "dev", ref.port, "master", "byhand")

    def tidy(self, ref: PortRef) -> None:
        """
        With `ip`, on the switch.
        """
        self.lab.on(ref.switch, "ip", "link", "del", "dev", "byhand")

    def pass_time(self) -> None:
        """
        Real time.
        """
        threading.Event().wait(0.05)


@contextmanager
def frr_fabric(lab: FabricLab) -> Iterator[FrrFabric]:
    """
    The lab with bare ports, before and after.
    """
    harness = FrrFabric(lab)
    try:
        yield harness
    finally:
        for ref in harness.ports:
            harness.adapter.detach(ref)
        for leaf in LEAVES:
            assert lab.made_on(leaf) == []
