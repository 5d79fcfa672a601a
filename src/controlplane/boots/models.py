"""
Rows of boots: what machines are to be, each boot with its outcome, and what it wrote to its console.
"""

from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, text
from sqlalchemy.dialects.postgresql import INET, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class BlueprintRow(Base):
    """
    What machines of one cluster, or of one of our own purposes, are to be.
    """

    __tablename__ = "blueprints"
    __table_args__ = (Index("ix_blueprints_cluster", "cluster_id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`bpr_…`."""
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenants.id"))
    """Whose; none for the operator's own."""
    cluster_id: Mapped[str | None]
    """For which cluster; it may have no row of its own any more."""
    image: Mapped[str] = mapped_column(server_default="")
    """What is written to the disk or started."""
    sealed: Mapped[bytes | None] = mapped_column(LargeBinary())
    """Login, keys, user-data, secret files and scripts, sealed (kit.secrets) under the row's id."""
    scripts: Mapped[list[str]] = mapped_column(server_default=text("'{}'::text[]"))
    """Names of what must be reported well, in order: `files` when there are any, then our scripts."""
    files: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """Plain files that may be rewritten while machines run: [{path, content, mode, owner, on_change}]."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Of the plain files; rises with every change of them."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class BootRow(Base):
    """
    One boot of one node: from being prepared to being ended.
    """

    __tablename__ = "boots"
    __table_args__ = (
        CheckConstraint("state IN ('made','fetched','reporting','ready','failed','ended')", name="state"),
        CheckConstraint("purpose IN ('deploy','wipe','check','rescue','install','fabric')", name="purpose"),
        Index("uq_boots_open", "node_id", unique=True, postgresql_where=text("state <> 'ended'")),
        Index("ix_boots_node", "node_id", "id"),
        Index("ix_boots_address", "address", postgresql_where=text("state <> 'ended' AND address IS NOT NULL")),
        Index("ix_boots_blueprint", "blueprint_id"),
        Index("ix_boots_image", "image_id", postgresql_where=text("image_id IS NOT NULL")),
        Index("ix_boots_allocation", "allocation_id", "id", postgresql_where=text("allocation_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`bot_…`; with a mark of ours it is the machine's token."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    """Which node."""
    allocation_id: Mapped[str | None]
    """For whom it is deployed."""
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenants.id"))
    """Whose; none for boots of our own."""
    blueprint_id: Mapped[str | None] = mapped_column(ForeignKey("blueprints.id"))
    """What it is to be."""
    purpose: Mapped[str]
    """deploy, wipe, check, rescue, install or fabric."""
    image_id: Mapped[str | None] = mapped_column(ForeignKey("images.id"))
    """The image that it writes to the machine's disk, or that the machine starts from; none for others."""
    facts: Mapped[dict[str, Any]]
    """{hostname, instance_id, mac, network, tags}: what is true of this machine only."""
    address: Mapped[IPv4Address | IPv6Address | None] = mapped_column(INET())
    """By which it is known where addresses are believed."""
    state: Mapped[str] = mapped_column(server_default="made")
    """made, fetched, reporting, ready, failed or ended."""
    expires_at: Mapped[datetime]
    """When it must have reported; a boot that is ready has no such end."""
    fetched_at: Mapped[datetime | None]
    """When user-data was first taken."""
    phoned_at: Mapped[datetime | None]
    """When it first phoned home."""
    ready_at: Mapped[datetime | None]
    """When its own report said that all is well."""
    host_keys: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Public SSH keys by kind, as it phoned home."""
    stages: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """[{name, ok, detail, at}] in the order reported."""
    checks: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """What a wipe or check found: [{name, result, detail}]."""
    burn_in: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """What a check is to run: [{name, required, limit_s, amount}], as its policy was when the boot was made."""
    failure_code: Mapped[str] = mapped_column(server_default="")
    """Why it failed, by a stable code."""
    failure: Mapped[str] = mapped_column(server_default="")
    """The same in words."""
    applied_version: Mapped[int] = mapped_column(server_default="0")
    """Version of the plain files that the machine reported."""
    apply_failure: Mapped[str] = mapped_column(server_default="")
    """What of that version could not be written."""
    applied_at: Mapped[datetime | None]
    """When it reported that version."""
    console_bytes: Mapped[int] = mapped_column(server_default="0")
    """Written in all, dropped ones included."""
    console_pieces: Mapped[int] = mapped_column(server_default="0")
    """Pieces in all."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    ended_at: Mapped[datetime | None]
    """When its token stopped to open anything."""


class ConsolePieceRow(Base):
    """
    Some of what a machine wrote during a boot; the oldest are dropped beyond a limit.
    """

    __tablename__ = "boot_console"

    boot_id: Mapped[str] = mapped_column(ForeignKey("boots.id"), primary_key=True)
    """Which boot."""
    piece: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Number of the piece, from 1."""
    byte_offset: Mapped[int]
    """Where it begins in all that was written."""
    tenant_id: Mapped[str | None]
    """Whose boot."""
    data: Mapped[bytes] = mapped_column(LargeBinary())
    """As written, tokens taken out."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class BootOutputRow(Base):
    """
    What became of one output that a check sent; the output itself is read and not kept.
    """

    __tablename__ = "boot_outputs"

    boot_id: Mapped[str] = mapped_column(ForeignKey("boots.id"), primary_key=True)
    """Of which boot."""
    name: Mapped[str] = mapped_column(primary_key=True)
    """The test, with its part where it has several: `rdma_loopback.mlx5_0`."""
    digest: Mapped[str]
    """SHA-256 of the output, in hex."""
    size_bytes: Mapped[int]
    """How long it was."""
    figures: Mapped[int]
    """How many figures of it are in the ledger."""
    failure: Mapped[str] = mapped_column(server_default="")
    """Why it could not be read; empty when it was."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
