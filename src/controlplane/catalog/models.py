"""
Rows of what can be bought: sites, GPU models and instance types.
"""

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import ForeignKey, Numeric, text
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class SiteRow(Base):
    """
    A place with machines.
    """

    __tablename__ = "sites"

    name: Mapped[str] = mapped_column(primary_key=True)
    """Slug, for example `osl1`."""
    region: Mapped[str]
    """The region it belongs to."""
    description: Mapped[str] = mapped_column(server_default="")
    """For people."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class GpuModelRow(Base):
    """
    Facts about a GPU from its maker's data sheet.
    """

    __tablename__ = "gpu_models"

    name: Mapped[str] = mapped_column(primary_key=True)
    """For example `H100-SXM5-80GB`."""
    vendor: Mapped[str]
    """Who makes it."""
    memory_gib: Mapped[int]
    """Memory per GPU."""
    memory_bandwidth_gb_s: Mapped[int]
    """Memory bandwidth in 10^9 bytes per second."""
    tflops: Mapped[dict[str, Any]]
    """Dense TFLOPS by precision: {bf16, fp8, …}; no sparsity."""
    tdp_w: Mapped[int]
    """Thermal design power in watts."""
    nvlink_generation: Mapped[int | None]
    """None without NVLink."""
    mig_profiles: Mapped[list[str]] = mapped_column(server_default=text("'{}'::text[]"))
    """Names of MIG profiles."""
    source: Mapped[str]
    """The data sheet the figures come from."""


class InstanceTypeRow(Base):
    """
    A sellable shape.
    """

    __tablename__ = "instance_types"

    name: Mapped[str] = mapped_column(primary_key=True)
    """For example `hgx-h100-8`."""
    gpu_model: Mapped[str] = mapped_column(ForeignKey("gpu_models.name"))
    """Which GPU."""
    gpus: Mapped[int]
    """GPUs per node."""
    cpus: Mapped[int]
    """Logical CPUs."""
    memory_gib: Mapped[int]
    """Main memory."""
    nics: Mapped[int]
    """Fabric ports."""
    nic_gbit_s: Mapped[int]
    """Rate of each."""
    nvme_gib: Mapped[int]
    """Local storage."""
    power_kw: Mapped[Decimal] = mapped_column(Numeric(8, 3))
    """Planned power of a node."""
    description: Mapped[str] = mapped_column(server_default="")
    """For people."""


class PartsRow(Base):
    """
    What every machine of an instance type must have, beyond what the catalog's file says; none: nobody said.
    """

    __tablename__ = "instance_type_parts"

    name: Mapped[str] = mapped_column(ForeignKey("instance_types.name"), primary_key=True)
    """The instance type."""
    gpu_memory_gib: Mapped[int | None]
    """Memory of each GPU."""
    nics: Mapped[int | None]
    """Network ports of at least the rate."""
    nic_gbit_s: Mapped[int | None]
    """Rate of each in 10^9 bits per second."""
    drives: Mapped[int | None]
    """Drives of at least the size."""
    drive_gib: Mapped[int | None]
    """Size of each in 2^30 bytes."""
    firmware: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Component to the versions that are wanted."""
    firmware_images: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Component to the image that an update installs: {version, url, targets}."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
