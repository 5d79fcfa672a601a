"""
The words of the room: sites, GPU models and instance types as plain values. No state moves here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Site:
    """
    A place with machines.
    """

    name: str
    """For example `osl1`."""
    region: str
    """The region it belongs to."""
    description: str
    """For people."""
    created_at: datetime
    """When it was entered."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """
    Facts about a GPU.
    """

    name: str
    """For example `H100-SXM5-80GB`."""
    vendor: str
    """Who makes it."""
    memory_gib: int
    """Memory per GPU, as the maker names it."""
    memory_bandwidth_gb_s: int
    """Memory bandwidth in 10^9 bytes per second."""
    tflops: dict[str, float]
    """Dense peak by precision in 10^12 operations per second; never with sparsity."""
    tdp_w: int
    """Thermal design power in watts."""
    nvlink_generation: int | None
    """None without NVLink."""
    mig_profiles: tuple[str, ...]
    """Names of MIG profiles, smallest first; none where the GPU cannot be partitioned."""
    source: str
    """The maker's document the figures come from, and how dense ones were derived."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """
    A sellable shape.
    """

    name: str
    """For example `hgx-h100-8`."""
    gpu_model: str
    """Which GPU."""
    gpus: int
    """GPUs per node."""
    cpus: int
    """Logical CPUs."""
    memory_gib: int
    """Main memory."""
    nics: int
    """Fabric ports."""
    nic_gbit_s: int
    """Rate of each in 10^9 bits per second."""
    nvme_gib: int
    """Local storage."""
    power_kw: Decimal
    """Planned power of a node."""
    description: str
    """For people."""


@dataclass(frozen=True, slots=True)
class FirmwareImage:
    """
    Where a wanted version of one component's firmware comes from.
    """

    version: str
    """As the controller shows it once it is installed."""
    url: str
    """Where the controller fetches it; the operator's, and without a password in it."""
    targets: tuple[str, ...] = ()
    """Resources of the controller that the image is for; empty: the controller knows by the image."""


@dataclass(frozen=True, slots=True)
class Parts:
    """
    What every machine of an instance type must have; None: nobody said.
    """

    gpu_memory_gib: int | None = None
    """Memory of each GPU."""
    nics: int | None = None
    """Network ports of at least the rate."""
    nic_gbit_s: int | None = None
    """Rate of each in 10^9 bits per second."""
    drives: int | None = None
    """Drives of at least the size."""
    drive_gib: int | None = None
    """Size of each in 2^30 bytes."""
    firmware: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Component, as the controller names it, to the versions that are wanted."""
    images: Mapping[str, FirmwareImage] = field(default_factory=dict)
    """Component to the image that an update installs; its version is one of those wanted."""
    asked: frozenset[str] = frozenset()
    """Which of these the operator has asked for; the others follow from the catalog and keep no machine out."""
