"""
The port to one machine's management controller: power, boot device, virtual media, inventory, health, firmware settings, accounts.

It is the smallest thing that a bare machine offers. It knows no tenancies, images or wipes: those are the nodes room's, whose steps put
these calls in order and keep their place in the row. A provider that owns whole lives (Ironic, the simulator) implements `Machines`.

Every method may block for at most the adapter's request timeout times the few calls it needs (under 60 s in all) and may raise any
error of `providers.errors`. Changing methods start work and are idempotent: repeated, they leave the machine as the first call did.
What was asked is believed only when it was read back by `observe`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

from controlplane.providers.machines import Power

BootSource = Literal["disk", "network", "media"]
Health = Literal["ok", "warning", "critical", "unknown"]


@dataclass(frozen=True, slots=True)
class Controller:
    """
    Where a machine's management controller is and how to be let in.
    """

    ref: str
    """Our name of the machine (`nod_…`): for logs and as the key of its one client."""
    url: str
    """Root of the controller, for example `https://10.0.0.7`."""
    username: str = ""
    """Account; empty: the provider's."""
    password: str = field(default="", repr=False)
    """Never logged; empty: the provider's."""
    system: str = ""
    """Id of the machine among the controller's systems; empty where there is one that can be switched on."""


@dataclass(frozen=True, slots=True)
class HardwareView:
    """
    What the controller says of the machine now.
    """

    power: Power
    """Read back; `unknown` also while it changes."""
    boot_source: BootSource | None = None
    """The override that is set; None for none."""
    boot_once: bool | None = None
    """Whether the override ends after one boot; None where the controller does not tell."""
    media: str | None = None
    """The image that is inserted; None for none."""
    health: Health = "unknown"
    """The controller's own roll-up; null is unknown, never healthy."""
    pending: tuple[str, ...] = ()
    """Settings that were accepted and wait for a reboot."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """
    One GPU as the controller shows it; empty where it does not tell.
    """

    slot: str
    """The controller's id of it, for example `GPU_SXM_1`."""
    model: str = ""
    """As printed by the vendor, trimmed."""
    serial: str = ""
    """Operators only."""
    memory_gib: int = 0
    """0 when unknown."""
    firmware: str = ""
    """Version."""
    health: Health = "unknown"
    """Of this GPU."""
    power_limit_w: float | None = None
    """As set; None when unknown."""


@dataclass(frozen=True, slots=True)
class Nic:
    """
    One network port.
    """

    name: str
    """The controller's id of it."""
    mac: str
    """Lower case, with colons."""
    link: Literal["up", "down", "unknown"] = "unknown"
    """Whether it has a link."""
    speed_gbps: float | None = None
    """None when unknown."""


@dataclass(frozen=True, slots=True)
class Drive:
    """
    One drive.
    """

    name: str
    """The controller's id of it."""
    model: str = ""
    """Trimmed."""
    serial: str = ""
    """Operators only."""
    size_bytes: int = 0
    """0 when unknown."""
    health: Health = "unknown"
    """Of this drive."""


@dataclass(frozen=True, slots=True)
class HardwareInventory:
    """
    What the machine was found to have, out of band.
    """

    uuid: str
    """System UUID, lower case; empty when the controller has none."""
    vendor: str
    """Manufacturer."""
    model: str
    """Of the machine."""
    serial: str
    """Operators only."""
    cpus: int
    """Logical processors; 0 when unknown."""
    memory_gib: int
    """0 when unknown."""
    gpus: tuple[Gpu, ...] = ()
    """In slot order."""
    nics: tuple[Nic, ...] = ()
    """In order of name."""
    drives: tuple[Drive, ...] = ()
    """In order of name."""
    firmware: dict[str, str] = field(default_factory=dict)
    """Component to version, trimmed."""
    complete: bool = True
    """False where part of the tree did not answer: what is missing then proves nothing."""
    unread: tuple[str, ...] = ()
    """What did not answer, for operators."""


@dataclass(frozen=True, slots=True)
class Fact:
    """
    One thing the controller complains about or measures.
    """

    name: str
    """Stable, for example `gpu_health:GPU_SXM_1`, `temperature:Inlet`."""
    health: Health
    """How bad."""
    message: str = ""
    """In words, for operators."""
    value: float | None = None
    """The reading, in `unit`."""
    unit: str = ""
    """`C`, `W`, `RPM`, `V`; empty where there is no reading."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """
    What one look at a machine tells.
    """

    power: Power
    """As the controller says now; `unknown` also while it changes, and where this look does not tell."""
    facts: tuple[Fact, ...]
    """See `Hardware.read_health`."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """
    One entry of the controller's event log.
    """

    id: str
    """Unique in its log, stable."""
    at: datetime | None
    """UTC, the controller's clock; None where it has none."""
    severity: Health
    """Folded."""
    message: str
    """The vendor's words."""
    code: str = ""
    """Message id of the registry, for example `ResourceEvent.1.0.ResourceErrorThresholdExceeded`."""


@dataclass(frozen=True, slots=True)
class Logs:
    """
    A listing of log entries.
    """

    entries: tuple[LogEntry, ...]
    """Oldest first."""
    complete: bool
    """False when a page did not answer."""


@dataclass(frozen=True, slots=True)
class UpdateView:
    """
    How far a firmware update or another long task is.
    """

    task: str
    """The controller's name of it."""
    state: Literal["running", "succeeded", "failed", "unknown"]
    """Folded; `unknown` also when the task has vanished: look at the version instead."""
    percent: int | None = None
    """None where the controller does not tell."""
    message: str = ""
    """Its words."""


@runtime_checkable
class Hardware(Protocol):
    """
    A kind of management controller.
    """

    def observe(self, controller: Controller) -> HardwareView:
        """
        The machine as its controller sees it now. Raises NotFound when the controller has no such system.
        """
        ...

    def power(self, controller: Controller, *, on: bool, force: bool = False) -> None:
        """
        The controller has been asked to switch power. Off without `force` asks the operating system; with it the power is cut.
        """
        ...

    def boot_from(self, controller: Controller, source: BootSource) -> None:
        """
        The next boot, and only that one where the controller can, starts from the source. Takes effect at the next power-on.
        """
        ...

    def insert_media(self, controller: Controller, url: str) -> None:
        """
        The image is in the virtual drive, and no other is.
        """
        ...

    def eject_media(self, controller: Controller) -> None:
        """
        The virtual drive is empty; an empty one is success.
        """
        ...

    def take_inventory(self, controller: Controller) -> HardwareInventory:
        """
        What the machine has. May take many calls; parts that do not answer are named instead of raised.
        """
        ...

    def read_health(self, controller: Controller) -> tuple[Fact, ...]:
        """
        Sensors and health of the machine's parts.
        """
        ...

    def read_log(self, controller: Controller, *, after: str = "") -> Logs:
        """
        Entries of the event log after the one named, or all that are left when it is gone.
        """
        ...


@runtime_checkable
class SupportsCheckups(Protocol):
    """
    A controller that tells power and health in one look, for the price of the health alone.
    """

    def check_up(self, controller: Controller) -> Checkup:
        """
        Power, and what `read_health` tells.
        """
        ...


@runtime_checkable
class SupportsSettings(Protocol):
    """
    A controller whose firmware settings can be read and changed.
    """

    def read_settings(self, controller: Controller) -> dict[str, str]:
        """
        BIOS attributes in force, and `secure_boot` (`on`, `off`, `unknown`).
        """
        ...

    def change_settings(self, controller: Controller, wanted: dict[str, str]) -> None:
        """
        The settings are accepted; those that need a reboot are shown as `pending` by `observe`.
        """
        ...


@runtime_checkable
class SupportsAccounts(Protocol):
    """
    A controller whose accounts and doors can be managed: rotated, and locked while a tenant holds the machine.
    """

    def list_accounts(self, controller: Controller) -> tuple[str, ...]:
        """
        Names of the enabled accounts, sorted. Raises Unsupported where the controller shows none.
        """
        ...

    def set_password(self, controller: Controller, password: str) -> None:
        """
        The account that we use has this password; the old one no longer lets anybody in. Repeated after a lost answer, it finds that the
        password lets us in already. Raises AuthFailed when neither does, having tried each once; Refused or Unsupported when the old one
        still counts.
        """
        ...

    def lock(self, controller: Controller, *, locked: bool) -> None:
        """
        Locked, the host itself can no longer reach or change its controller; Unsupported where there is no such switch.
        """
        ...


@runtime_checkable
class SupportsReset(Protocol):
    """
    A controller that can be told to start anew: sessions that somebody left open on it are over then.
    """

    def reset_controller(self, controller: Controller) -> None:
        """
        The controller has been asked to restart itself, not the machine. It is silent for a while: `observe` tells when it is back.
        Raises Unsupported where there is no such action.
        """
        ...


@runtime_checkable
class SupportsUpdates(Protocol):
    """
    A controller that updates firmware.
    """

    def update_firmware(self, controller: Controller, image_url: str, *, targets: tuple[str, ...] = ()) -> UpdateView:
        """
        The controller has begun to fetch and install the image.
        """
        ...

    def observe_update(self, controller: Controller, task: str) -> UpdateView:
        """
        How far it is.
        """
        ...

    def find_update(self, controller: Controller) -> UpdateView | None:
        """
        An update that the controller says is under way, whoever began it; None where it tells of none, which a forgetful one does too.
        """
        ...
