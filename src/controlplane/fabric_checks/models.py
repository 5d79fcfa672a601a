"""
Rows of fabric checks and of the nodes they hold.
"""

from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, text
from sqlalchemy.dialects.postgresql import INET, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base
from controlplane.kit.moving import Moving


class FabricCheckRow(Moving, Base):
    """
    One check of the network between nodes.
    """

    __tablename__ = "fabric_checks"
    __table_args__ = (
        CheckConstraint("scope IN ('pair','leaf','rail','block')", name="scope"),
        CheckConstraint("tool IN ('nccl-tests','ib_write_bw')", name="tool"),
        CheckConstraint("verdict IN ('','passed','failed','not_measured','not_judged')", name="verdict"),
        CheckConstraint("ending IN ('','done','failed','cancelled')", name="ending"),
        Index("ix_fabric_checks_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
        Index("ix_fabric_checks_leaf", "site", "leaf", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`fck_…`: the token at the provider, and the run of its figures in the ledger."""
    scope: Mapped[str]
    """pair, leaf, rail or block."""
    site: Mapped[str] = mapped_column(ForeignKey("sites.name"))
    """Where."""
    block: Mapped[str] = mapped_column(server_default="")
    """Spine group, of a block; else empty."""
    leaf: Mapped[str] = mapped_column(server_default="")
    """The leaf, of a leaf or rail; else empty."""
    rail: Mapped[int | None]
    """The only rail that is used; none: all."""
    tool: Mapped[str]
    """nccl-tests or ib_write_bw."""
    provider_id: Mapped[str] = mapped_column(ForeignKey("providers.id"))
    """Who runs the tools."""
    rounds: Mapped[list[Any]] = mapped_column(JSONB())
    """What is run, round by round: [[{name, kind, refs, …}]]."""
    left_out: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """Nodes of the place that were not free: [{node_id, state}]."""
    results: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """What runs came to: [{name, result, detail}]; figures are in the ledger."""
    verdict: Mapped[str] = mapped_column(server_default="")
    """passed, failed, not_measured or not_judged; empty where nothing was judged."""
    blamed: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Node to the partners it failed with: those that failures of pairs point at."""
    ending: Mapped[str] = mapped_column(server_default="")
    """The state it will end in; empty: not known yet."""
    failure: Mapped[str] = mapped_column(server_default="")
    """Stable code of why it could not be brought to its end."""
    cancel_requested_at: Mapped[datetime | None]
    """When somebody asked to stop it."""
    created_by: Mapped[str]
    """Who asked for it; `system` for one that a repair brought about."""
    ended_at: Mapped[datetime | None]
    """When its nodes were free again."""


class FabricCheckNodeRow(Base):
    """
    One node of one check; a node is in one check at a time.
    """

    __tablename__ = "fabric_check_nodes"
    __table_args__ = (Index("uq_fabric_check_nodes_held", "node_id", unique=True, postgresql_where=text("returned_at IS NULL")),)

    check_id: Mapped[str] = mapped_column(ForeignKey("fabric_checks.id"), primary_key=True)
    """Which check."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    """Which node."""
    ref: Mapped[str]
    """Its name at the provider."""
    taken_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    returned_at: Mapped[datetime | None]
    """When it was free again; none while the check holds it."""
    address: Mapped[IPv4Address | IPv6Address | None] = mapped_column(INET())
    """Where the others of a run reach it; none before it came, and for machines that do not boot through us."""
    told: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """What it said when it came: {tools, devices, gpus, key, host_key}; keys are public ones."""
    arrived_at: Mapped[datetime | None]
    """When it came."""


class AttendanceRow(Base):
    """
    One machine in one run of a check whose machines boot through us.
    """

    __tablename__ = "fabric_check_attendances"
    __table_args__ = (
        ForeignKeyConstraint(
            ["check_id", "node_id"],
            ["fabric_check_nodes.check_id", "fabric_check_nodes.node_id"],
            name="fk_fabric_check_attendances_member",
        ),
        CheckConstraint("result IN ('','passed','failed','not_measured')", name="result"),
        CheckConstraint("(told_at IS NULL) = (result = '')", name="told"),
        CheckConstraint("told_at IS NULL OR came_at IS NOT NULL", name="came_first"),
        CheckConstraint("closed_at IS NULL OR output = ''", name="not_kept"),
        Index("uq_fabric_check_attendances_open", "node_id", unique=True, postgresql_where=text("closed_at IS NULL")),
    )

    check_id: Mapped[str] = mapped_column(primary_key=True)
    """Which check."""
    run: Mapped[str] = mapped_column(primary_key=True)
    """Name of the run."""
    node_id: Mapped[str] = mapped_column(primary_key=True)
    """Which machine."""
    opened_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Since when it is waited for."""
    came_at: Mapped[datetime | None]
    """When it first asked for the run; tools begin when all have."""
    result: Mapped[str] = mapped_column(server_default="")
    """passed, failed or not_measured, in the machine's words; empty before."""
    detail: Mapped[str] = mapped_column(server_default="")
    """Why it failed or was not measured."""
    output: Mapped[str] = mapped_column(server_default="")
    """What the tool printed, until the run is recorded."""
    digest: Mapped[str] = mapped_column(server_default="")
    """SHA-256 of all that it said, in hex: another word of the same machine on the same run is refused."""
    told_at: Mapped[datetime | None]
    """When it said so."""
    closed_at: Mapped[datetime | None]
    """When the run was recorded; nothing counts from then on."""
