"""
The port to whatever owns machines: power, deployment, wiping, inspection.

Every method may block for at most its adapter's request timeout (well under 30 s) and starts work rather than waiting for it:
progress is read back by `observe`. Every method may raise any error of `providers.errors`; what is written below is in addition.
All changing methods are idempotent under their token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

Power = Literal["on", "off", "unknown"]
Phase = Literal["idle", "deploying", "deployed", "releasing", "released", "wiping", "wiped", "failed", "unknown"]
CheckResult = Literal["passed", "failed", "not_measured"]


@dataclass(frozen=True, slots=True)
class OwnImage:
    """
    An image that the tenant chose, instead of one that the provider knows by name.
    """

    url: str = field(repr=False)
    """Where it is, without further proof: the address is good for this deployment only."""
    format: str
    """`raw` or `qcow2`."""
    size_bytes: int
    """Of what stands at the address."""
    sha256: str
    """The same."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """
    One tenancy of one machine.
    """

    ref: str
    """The machine's name at the provider."""
    token: str
    """The allocation's id: client token and tag of everything this call makes."""
    tenant_id: str
    """Whose tenancy it is; becomes a tag."""
    cluster_id: str
    """The cluster the machine joins; becomes a tag."""
    network: str
    """The tenant network the machine is attached to when it is up."""
    image: str = "default"
    """The operating-system image by name."""
    own_image: OwnImage | None = None
    """What is written to the machine's disk instead."""
    config_drive_url: str = field(default="", repr=False)
    """Where its config drive is, ready to be written beside the image; empty: the machine is told its names only."""


@dataclass(frozen=True, slots=True)
class Check:
    """
    One measured fact about a machine; `not_measured` where the peer cannot tell.
    """

    name: str
    """What was checked, for example `gpu_count`, `disk_wiped`, `gpu_memory_scrubbed`."""
    result: CheckResult
    """Whether it held."""
    detail: str = ""
    """What was seen, for operators."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """
    What the machine was found to have.
    """

    gpu_model: str
    """As in the catalog, for example `H100-SXM5-80GB`; empty when the peer cannot tell."""
    gpus: int | None
    """Number of GPUs seen; None when the peer cannot see any."""
    memory_gib: int
    """Main memory in GiB; 0 when unknown."""
    cpus: int
    """Logical CPUs; 0 when unknown."""
    serial: str = ""
    """Serial number: operators only."""
    firmware: dict[str, str] = field(default_factory=dict)
    """Component to version."""
    uuid: str = ""
    """What the machine's firmware calls it, lower case; empty: the peer does not tell."""


@dataclass(frozen=True, slots=True)
class WipeReport:
    """
    The record of one wipe. An empty `checks` proves nothing and must never count as success.
    """

    token: str
    """The wipe's id, as given to `wipe`."""
    finished_at: datetime
    """When the peer finished it (UTC, the peer's clock)."""
    checks: tuple[Check, ...]
    """One per wiped thing: disks, memory, GPU memory, firmware and BMC baseline."""


@dataclass(frozen=True, slots=True)
class MachineView:
    """
    What the peer says of one machine now.
    """

    ref: str
    """The machine's name at the provider."""
    power: Power
    """Read back, not what was asked."""
    phase: Phase
    """Where the machine stands in its life at the peer."""
    token: str | None = None
    """The allocation it is, or was last, deployed for (its tag)."""
    ready_at: datetime | None = None
    """When the peer first saw the deployment ready (UTC, the peer's clock)."""
    inventory: Inventory | None = None
    """Present when the peer has inspected the machine."""
    wipe: WipeReport | None = None
    """The last finished wipe."""
    checks: tuple[Check, ...] = ()
    """The last qualification, when there was one; see `qualify`."""
    qualified_token: str | None = None
    """The token of that qualification."""
    failure: str = ""
    """Why `phase` is `failed`: operators only."""
    network: str | None = None
    """The tenant network its ports are attached to, when the peer knows."""


@dataclass(frozen=True, slots=True)
class MachineList:
    """
    A listing; an incomplete one can add knowledge and never proves absence.
    """

    machines: tuple[MachineView, ...]
    """In no particular order."""
    complete: bool
    """False when the peer, or a page of it, did not answer."""


@dataclass(frozen=True, slots=True)
class Position:
    """
    Where one machine stands and what it is sold as, where the peer knows it.
    """

    ref: str
    """The machine's name at the provider."""
    site: str
    """Site name."""
    region: str
    """Region of the site."""
    block: str
    """Spine group."""
    leaf: str
    """Where its rails meet."""
    rack: str
    """Which rack."""
    nvlink_domain: str | None
    """The rack-wide NVLink domain; None where the machine is its own."""
    instance_type: str
    """As in the catalog."""
    gpus: int
    """GPUs it should have."""


@runtime_checkable
class SupportsPositions(Protocol):
    """
    A provider that can tell where its machines stand.
    """

    def list_positions(self) -> tuple[Position, ...]:
        """
        Every machine's place, in a stable order.
        """
        ...


@runtime_checkable
class Machines(Protocol):
    """
    A system that owns machines.
    """

    def list_machines(self) -> MachineList:
        """
        Every machine the peer has, with its tags.
        """
        ...

    def observe(self, ref: str) -> MachineView:
        """
        The machine as the peer sees it now. Raises NotFound when the peer has no such machine.
        """
        ...

    def inspect(self, ref: str, token: str) -> None:
        """
        The peer has begun to read the machine's inventory; `observe().inventory` shows it.
        """
        ...

    def qualify(self, ref: str, token: str) -> None:
        """
        The peer has begun its acceptance checks; done when `observe().qualified_token == token`.
        """
        ...

    def deploy(self, deployment: Deployment) -> None:
        """
        The peer has begun to deploy; done when `phase == "deployed"` under the token. Refused when held by another token.
        """
        ...

    def release(self, ref: str, token: str, *, accepted_at: datetime) -> None:
        """
        The tenancy is being ended: networks detached first, then power off; done when `phase == "released"` under the token.

        `accepted_at` is when our tenant's release was accepted (billing ended); the peer may keep it as evidence.
        """
        ...

    def wipe(self, ref: str, token: str) -> None:
        """
        The peer has begun to wipe; done when `observe().wipe.token == token`. Refused while a tenancy is deployed.
        """
        ...

    def power(self, ref: str, *, on: bool, token: str) -> None:
        """
        The peer has been asked to switch power; read back by `observe`.
        """
        ...
