"""
Machines and switches as they physically are: power, media, what runs, whose data is on the disks, and who is wired to whom.

The site judges by itself: whoever lets one tenant meet another's data or network finds his deed in `findings`, whatever our tables say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from controlplane.providers.errors import Busy, NotFound
from controlplane.providers.fabrics import FabricView, NetworkSpec, PortRef, PortView
from controlplane.providers.hardware import BootSource, Controller, Fact, HardwareInventory, HardwareView, Logs, UpdateView
from tests.factories.metal import INVENTORY
from tests.matrix.flashing import COMPONENT, Flash

DISK = "what is on the disk"


@dataclass(frozen=True)
class Seed:
    """
    What a boot is for.
    """

    purpose: str
    """check, wipe or deploy."""
    tenant_id: str | None
    """Whose, of a deployment."""
    segment: int | None
    """The number of its tenant's network."""


@dataclass
class Site:
    """
    Everything physical.
    """

    now: Callable[[], datetime]
    """The one clock."""
    seed_of: Callable[[str], Seed]
    """What a boot is for."""
    machines: dict[str, Machine] = field(default_factory=dict)
    """By node id."""
    switch: Switch = field(default_factory=lambda: Switch())  # noqa: PLW0108 - it is named below
    """All ports."""
    findings: list[str] = field(default_factory=list)
    """Broken promises, in words."""

    def check(self, machine: Machine) -> None:
        """
        Nobody reaches what is another's just now.
        """
        carried = self.switch.carried(machine.port)
        if not machine.is_on or carried is None or machine.residue is None:
            return
        if machine.residue.segment != carried:
            self.findings.append(
                f"I1 {machine.node_id}: runs with data of {machine.residue.tenant_id} on the network {carried} of somebody else"
            )


@dataclass
class Machine:
    """
    One machine behind its controller.
    """

    node_id: str
    """Which."""
    port: PortRef
    """Where its one cable ends."""
    site: Site
    """Where it stands."""
    is_on: bool = False
    """Whether it has power."""
    media: str | None = None
    """What is in the virtual drive."""
    aimed: bool = False
    """Whether its next start is from our seed."""
    running: str = ""
    """The boot whose seed it was started from, or `DISK`; empty while it is off."""
    said: int = 0
    """How far it is in what it tells us, since its last start."""
    residue: Seed | None = None
    """Whose data is on it."""
    inventory: HardwareInventory = INVENTORY
    """What it has."""
    past: list[tuple[datetime, HardwareView]] = field(default_factory=list)
    """How it was, and since when."""
    flash: Flash = field(init=False)
    """Its firmware."""

    def __post_init__(self) -> None:
        self.flash = Flash(self.site.now)

    def note(self) -> None:
        """
        What it is now is remembered, and judged.
        """
        self.past = [*self.past[-20:], (self.site.now(), self.view())]
        self.site.check(self)

    def view(self) -> HardwareView:
        """
        As it is.
        """
        return HardwareView(power="on" if self.is_on else "off", media=self.media)

    def switch(self, *, on: bool) -> None:
        """
        Power is as told; a machine that was off starts, from our seed if it was aimed at one.
        """
        if on and not self.is_on:
            self.flash.start()
            from_seed = self.aimed and self.media is not None
            self.running = str(self.media).rpartition("/")[2] if from_seed else DISK
            self.said, self.aimed = 0, False
            self._begin()
        if not on:
            self.running = ""
        self.is_on = on
        self.note()

    def restart(self) -> None:
        """
        It was reset: the same starts again.
        """
        if self.is_on:
            self.said = 0

    def _begin(self) -> None:
        if self.running == DISK:
            return
        seed = self.site.seed_of(self.running)
        if seed.purpose != "deploy":
            return
        if self.residue is not None and self.residue.tenant_id != seed.tenant_id:
            self.site.findings.append(f"I7 {self.node_id}: {seed.tenant_id} gets it with data of {self.residue.tenant_id} on it")
        self.residue = seed

    # the port to a controller
    def observe(self, controller: Controller) -> HardwareView:
        """
        See `Hardware.observe`.
        """
        return self.view()

    def observe_past(self, age_s: float) -> HardwareView:
        """
        As it was that long ago.
        """
        then = self.site.now() - timedelta(seconds=age_s)
        known = [view for at, view in self.past if at <= then]
        return known[-1] if known else HardwareView(power="off")

    def power(self, controller: Controller, *, on: bool, force: bool = False) -> None:
        """
        See `Hardware.power`.
        """
        if not on:
            self.flash.cut()
        self.switch(on=on)

    def boot_from(self, controller: Controller, source: BootSource) -> None:
        """
        See `Hardware.boot_from`.
        """
        self.aimed = True

    def insert_media(self, controller: Controller, url: str) -> None:
        """
        See `Hardware.insert_media`.
        """
        self.media = url
        self.note()

    def eject_media(self, controller: Controller) -> None:
        """
        See `Hardware.eject_media`.
        """
        self.media = None
        self.note()

    def take_inventory(self, controller: Controller) -> HardwareInventory:
        """
        See `Hardware.take_inventory`.
        """
        return replace(self.inventory, firmware={**self.inventory.firmware, COMPONENT: self.flash.look()})

    def update_firmware(self, controller: Controller, image_url: str, *, targets: tuple[str, ...] = ()) -> UpdateView:
        """
        See `SupportsUpdates.update_firmware`.
        """
        self.meddle()
        return self.flash.begin(image_url)

    def find_update(self, controller: Controller) -> UpdateView | None:
        """
        See `SupportsUpdates.find_update`.
        """
        seen = self.flash.follow(str(self.flash.task))
        return seen if seen.state == "running" else None

    def observe_update(self, controller: Controller, task: str) -> UpdateView:
        """
        See `SupportsUpdates.observe_update`.
        """
        return self.flash.follow(task)

    def meddle(self) -> None:
        """
        Somebody updates it: nobody's data may be on it.
        """
        if self.residue is not None:
            self.site.findings.append(f"I1 {self.node_id}: updated with data of {self.residue.tenant_id} on it")

    def read_health(self, controller: Controller) -> tuple[Fact, ...]:
        """
        See `Hardware.read_health`.
        """
        return ()

    def read_log(self, controller: Controller, *, after: str = "") -> Logs:
        """
        See `Hardware.read_log`.
        """
        return Logs((), complete=True)


@dataclass
class Switch:
    """
    The fabric: what each port carries, was told, and is wrong with.
    """

    ports: dict[PortRef, int | None] = field(default_factory=dict)
    """Segment by port."""
    strange: dict[PortRef, str] = field(default_factory=dict)
    """What somebody did to a port behind our back."""
    turns: dict[PortRef, int] = field(default_factory=dict)
    """The latest turn that each port was told."""
    past: dict[PortRef, list[tuple[datetime, PortView]]] = field(default_factory=dict)
    """How ports were, and since when."""
    site: Site | None = None
    """Where it stands."""

    def carried(self, ref: PortRef) -> int | None:
        """
        The segment that a machine on the port reaches.
        """
        return self.ports.get(ref)

    def _set(self, ref: PortRef, segment: int | None) -> None:
        assert self.site is not None
        self.ports[ref] = segment
        self.past.setdefault(ref, []).append((self.site.now(), PortView(ref, segment, up=True)))
        for machine in self.site.machines.values():
            if machine.port == ref:
                self.site.check(machine)

    def attach(self, ref: PortRef, network: NetworkSpec, *, turn: int = 0) -> None:
        """
        See `Fabrics.attach`.
        """
        if self._is_over(ref, turn):
            raise Busy("a later turn was told", code="fabric_turn_over")
        self._note(ref, turn)
        self.strange.pop(ref, None)
        self._set(ref, network.segment)

    def detach(self, ref: PortRef, *, only: int | None = None, turn: int = 0) -> None:
        """
        See `Fabrics.detach`.
        """
        if only is not None and self._is_over(ref, turn):
            return
        self._note(ref, turn)
        if only in {None, self.ports.get(ref)}:
            self.strange.pop(ref, None)
            self._set(ref, None)

    def _is_over(self, ref: PortRef, turn: int) -> bool:
        return 0 < turn < self.turns.get(ref, 0)

    def _note(self, ref: PortRef, turn: int) -> None:
        self.turns[ref] = max(turn, self.turns.get(ref, 0))

    def observe_port(self, ref: PortRef) -> PortView:
        """
        See `Fabrics.observe_port`.
        """
        return PortView(ref, self.ports.get(ref), up=True, strange=self.strange.get(ref, ""))

    def observe_past(self, ref: PortRef, age_s: float) -> PortView:
        """
        As it was that long ago.
        """
        assert self.site is not None
        then = self.site.now() - timedelta(seconds=age_s)
        known = [view for at, view in self.past.get(ref, ()) if at <= then]
        return known[-1] if known else PortView(ref, None, up=True)

    def observe_fabric(self) -> FabricView:
        """
        See `Fabrics.observe_fabric`.
        """
        return FabricView(tuple(self.observe_port(ref) for ref in sorted(self.ports, key=str)), complete=True)

    def machine_at(self, ref: PortRef) -> str:
        """
        The node whose cable ends there. Raises NotFound.
        """
        assert self.site is not None
        for machine in self.site.machines.values():
            if machine.port == ref:
                return machine.node_id
        raise NotFound(f"nothing is wired to {ref}")
