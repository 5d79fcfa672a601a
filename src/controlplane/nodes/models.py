"""
Rows of the fleet: providers, nodes, who holds them, their wipes, holds and health.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, LargeBinary, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB, TSTZRANGE, ExcludeConstraint, Range
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base
from controlplane.kit.moving import Moving


class ProviderRow(Base):
    """
    A system below us, as the operator registered it.
    """

    __tablename__ = "providers"
    __table_args__ = (
        CheckConstraint("state IN ('active','disabled','deleted')", name="state"),
        Index("uq_providers_cluster", "cluster_id", unique=True, postgresql_where=text("cluster_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`prv_…`."""
    name: Mapped[str] = mapped_column(unique=True)
    """For operators."""
    adapter: Mapped[str]
    """Entry point name: `simulated`, `slurm`."""
    site: Mapped[str] = mapped_column(ForeignKey("sites.name"))
    """The one site its machines stand in."""
    state: Mapped[str] = mapped_column(server_default="active")
    """active, disabled or deleted."""
    config: Mapped[dict[str, Any]]
    """Plain settings of the adapter."""
    sealed: Mapped[bytes | None] = mapped_column(LargeBinary())
    """Its secrets, sealed (kit.secrets) under the row's id."""
    capabilities: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """What the peer said it can do."""
    cluster_id: Mapped[str | None]
    """The one cluster that it is the scheduler of, where a tenant has its own; nothing is placed on it."""
    shared: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether several tenants may hold its nodes at once; false where its members cannot be scrubbed."""
    seen_at: Mapped[datetime | None]
    """When it last answered."""
    checked_at: Mapped[datetime | None]
    """When it was last asked."""
    problem: Mapped[str] = mapped_column(server_default="")
    """Why the last question got no answer, in the peer's words; empty when it did."""
    discovered_at: Mapped[datetime | None]
    """When its machines were last asked for one by one; none: as soon as possible."""
    listed_at: Mapped[datetime | None]
    """When it last gave a list of machines that proves absence; none: never."""
    findings: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """Where its machines differ from the enrolled ones: [{code, ref, message}]."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag; also the adapter cache's key."""


class NodeRow(Moving, Base):
    """
    One machine.
    """

    __tablename__ = "nodes"
    __table_args__ = (
        UniqueConstraint("provider_id", "ref"),
        Index("ix_nodes_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
        Index("ix_nodes_available", "site", "instance_type", postgresql_where=text("state = 'available'")),
        Index("ix_nodes_attention", "id", postgresql_where=text("attention <> ''")),
        Index("ix_nodes_rotate", "rotate_at", postgresql_where=text("rotate_at IS NOT NULL")),
        Index("ix_nodes_check", "check_id", postgresql_where=text("check_id IS NOT NULL")),
        CheckConstraint("(check_id IS NOT NULL) = (state = 'checking')", name="lent"),
        CheckConstraint("check_id IS NULL OR allocation_id IS NULL", name="lent_or_held"),
        CheckConstraint("(sealed_next IS NOT NULL) = (rotation IN ('prepared','told'))", name="next_password"),
        Index("uq_nodes_serial", "serial", unique=True, postgresql_where=text("serial IS NOT NULL AND state <> 'retired'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`nod_…`; operators only."""
    provider_id: Mapped[str] = mapped_column(ForeignKey("providers.id"))
    """Who drives it."""
    ref: Mapped[str]
    """Its name there."""
    site: Mapped[str] = mapped_column(ForeignKey("sites.name"))
    """Where it stands."""
    block: Mapped[str]
    """Spine group."""
    leaf: Mapped[str]
    """Where its rails meet."""
    rack: Mapped[str]
    """Which rack."""
    nvlink_domain: Mapped[str | None]
    """The rack-wide NVLink domain; none where the node is its own."""
    instance_type: Mapped[str] = mapped_column(ForeignKey("instance_types.name"))
    """What it is sold as."""
    gpus: Mapped[int]
    """How many it should have."""
    allocation_id: Mapped[str | None]
    """The allocation that holds it; none when nobody does."""
    check_id: Mapped[str | None]
    """The fabric check it is lent to; there is one exactly while it is being checked, and never beside an allocation."""
    task_id: Mapped[str | None]
    """Token of the inspection, qualification or wipe under way: repeats find the first try by it."""
    inventory: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """What inspection found; `findings` where it differs from what was bought."""
    access: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Where we drive the machine ourselves: {url, system, username} of its management controller; else empty."""
    sealed: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The controller's password, sealed (kit.secrets) under the row's id; none: the provider's."""
    sealed_next: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The password that is to take its place, sealed for `sealed`, where it is going to stand; there before the controller is told."""
    rotation: Mapped[str] = mapped_column(server_default="")
    """How far the controller's password is on its way to another (`states.ROTATIONS`)."""
    rotate_at: Mapped[datetime | None]
    """When the rotation is taken up although no state of the node does it; none: left to the next inspection or wipe."""
    rotated_at: Mapped[datetime | None]
    """When the password last became another."""
    refusals: Mapped[int] = mapped_column(server_default="0")
    """How often in a row the controller let us in with neither password."""
    door: Mapped[str] = mapped_column(server_default="")
    """The way from the host to its controller (`states.DOORS`)."""
    restarted_at: Mapped[datetime | None]
    """When the controller last took our word to restart."""
    updating: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """How far its firmware is on its way to what is wanted (`states.Update`); empty: nowhere."""
    address: Mapped[str | None]
    """The machine's own address, as the operator or its tenant reaches it; none when unknown."""
    boot_id: Mapped[str | None]
    """The boot that was begun last, where we drive the machine ourselves."""
    acting_for: Mapped[str | None]
    """The instance whose tenant's action is under way: its operation tells the moves; none while nothing is."""
    looked_at: Mapped[datetime | None]
    """When its controller was last asked how the machine is."""
    power: Mapped[str] = mapped_column(server_default="unknown")
    """What the machine last said of its power: on, off; unknown until it has."""
    power_at: Mapped[datetime | None]
    """When it began to say so."""
    power_amiss_at: Mapped[datetime | None]
    """Since when its power is not what its state wants; none while it is, or nothing is wanted."""
    health: Mapped[str] = mapped_column(server_default="ok")
    """Worst class of its open reports: ok, info, block_allocation, drain, quarantine."""
    health_since: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When its health came to be what it is."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs of the operator."""
    serial: Mapped[str | None]
    """The serial number that the operator expects; operators only. None where nobody said."""
    unit: Mapped[int | None]
    """Lowest rack unit that it takes; none where nobody said."""


class DiscoveryTargetRow(Base):
    """
    A management controller that an operator asked to be looked at.
    """

    __tablename__ = "discovery_targets"
    __table_args__ = (UniqueConstraint("provider_id", "url", "system"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`dtg_…`."""
    provider_id: Mapped[str] = mapped_column(ForeignKey("providers.id"))
    """The kind of controller, whose account is used."""
    url: Mapped[str]
    """Root of the controller."""
    system: Mapped[str] = mapped_column(server_default="")
    """The machine among the controller's systems; empty where there is one."""
    asked_at: Mapped[datetime | None]
    """When it was last asked; none: as soon as possible."""
    seen_at: Mapped[datetime | None]
    """When it last answered."""
    problem: Mapped[str] = mapped_column(server_default="")
    """Why the last question got no answer; empty when it did."""


class DiscoveredMachineRow(Base):
    """
    A machine that was found at a provider, whether it is enrolled or not.
    """

    __tablename__ = "discovered_machines"
    __table_args__ = (UniqueConstraint("provider_id", "ref"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`dsc_…`."""
    provider_id: Mapped[str] = mapped_column(ForeignKey("providers.id"))
    """Where it was found."""
    ref: Mapped[str]
    """Its name there; for a controller that was looked at, the controller's address."""
    serial: Mapped[str] = mapped_column(server_default="")
    """Serial number; operators only. Empty: not told."""
    controller_url: Mapped[str] = mapped_column(server_default="")
    """Root of its controller; empty where the provider owns the machine's life."""
    controller_system: Mapped[str] = mapped_column(server_default="")
    """The machine among the controller's systems."""
    place: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """{site, block, leaf, rack, nvlink_domain, instance_type, gpus}, where the provider knows it; else empty."""
    inventory: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """{vendor, model, gpu_model, gpus, memory_gib, uuid}: what was told; a missing one is unknown."""
    first_seen_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    seen_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was last seen."""
    gone_at: Mapped[datetime | None]
    """When a whole list first did not name it any more; none while it is there."""


class NodePortRow(Base):
    """
    Where one network port of a node ends; a switch's port belongs to one node.
    """

    __tablename__ = "node_ports"
    __table_args__ = (UniqueConstraint("provider_id", "switch", "port"), Index("ix_node_ports_look", "look_at"))

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    """Whose."""
    name: Mapped[str] = mapped_column(primary_key=True)
    """The machine's name of it."""
    provider_id: Mapped[str] = mapped_column(ForeignKey("providers.id"))
    """The fabric."""
    switch: Mapped[str]
    """The switch by the fabric's name."""
    port: Mapped[str]
    """The port by the switch's name."""
    look_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it is looked at next."""
    trouble: Mapped[str] = mapped_column(server_default="")
    """What is not as it should be, for operators; empty for nothing."""
    trouble_since: Mapped[datetime | None]
    """Since when something is."""


class NetworkRow(Base):
    """
    A tenant network; its number is never used for another.
    """

    __tablename__ = "networks"

    name: Mapped[str] = mapped_column(primary_key=True)
    """A function of the tenant's id."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    segment: Mapped[int] = mapped_column(Identity(always=True, start=10001, minvalue=10001, maxvalue=16777215), unique=True)
    """Its number in fabrics (a VNI)."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class AllocationRow(Base):
    """
    One node held for one cluster over a half-open interval: from being chosen to being wiped.
    """

    __tablename__ = "allocations"
    __table_args__ = (
        CheckConstraint("state IN ('held','active','releasing','ended')", name="state"),
        CheckConstraint("lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during)", name="half_open"),
        ExcludeConstraint(("node_id", "="), ("during", "&&"), name="ex_allocations_one_tenant", using="gist"),
        Index("uq_allocations_active", "node_id", unique=True, postgresql_where=text("state <> 'ended'")),
        Index("ix_allocations_cluster", "cluster_id", "state"),
        Index("ix_allocations_tenant", "tenant_id", "id"),
        Index("uq_allocations_instance", "instance_id", unique=True),
        Index("ix_allocations_image", "image_id", postgresql_where=text("image_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`alc_…`: the token at providers."""
    instance_id: Mapped[str]
    """`ins_…`: the tenant's name of the node during this allocation."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    """Which node."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    reseller_id: Mapped[str]
    """The tenant's reseller."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """For which project."""
    cluster_id: Mapped[str]
    """For which cluster; it has no row of its own when the cluster is gone for good."""
    node_set_id: Mapped[str]
    """For which node set."""
    instance_type: Mapped[str]
    """What is held."""
    site: Mapped[str]
    """Where."""
    gpus: Mapped[int]
    """GPUs charged to quota while it is not ended."""
    state: Mapped[str] = mapped_column(server_default="held")
    """held: chosen or being deployed; active: deployed; releasing: given back, not wiped yet; ended."""
    network: Mapped[str]
    """The tenant network it is attached to."""
    during: Mapped[Range[datetime]] = mapped_column(TSTZRANGE())
    """[chosen, wiped)."""
    release_accepted_at: Mapped[datetime | None]
    """When giving it back was accepted: billing ends here."""
    charged: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether its GPUs count against quota; false once a replacement has taken the charge over."""
    leaving: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether an update takes it out of its cluster."""
    blueprint_id: Mapped[str | None]
    """What the node boots with for this tenant, where we drive the machine ourselves."""
    image_id: Mapped[str | None] = mapped_column(ForeignKey("images.id"))
    """What is written to its disk for this tenant; none: nothing."""
    end_reason: Mapped[str] = mapped_column(server_default="")
    """`released`, `node_failed`, `cancelled`."""


class WipeRow(Base):
    """
    One wipe of one node.
    """

    __tablename__ = "wipes"
    __table_args__ = (Index("ix_wipes_node", "node_id", "requested_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`wip_…`: the token at the provider."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    """Which node."""
    requested_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock: after the tenancy it follows."""
    finished_at: Mapped[datetime | None]
    """As the provider reported."""
    verified: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether the report was complete and every check passed or was allowed to be not measured."""
    checks: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """[{name, result, detail}]."""


class HoldRow(Base):
    """
    A named reason that keeps a node out of placement without changing its state.
    """

    __tablename__ = "node_holds"
    __table_args__ = (Index("ix_node_holds_open", "node_id", postgresql_where=text("lifted_at IS NULL")),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`hld_…`."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    """Which node."""
    reason: Mapped[str]
    """Why."""
    created_by: Mapped[str]
    """Who."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    until: Mapped[datetime | None]
    """When it ends by itself."""
    lifted_at: Mapped[datetime | None]
    """When it was lifted."""


class HealthReportRow(Base):
    """
    What one source says of one node; the latest report of a source and check counts.
    """

    __tablename__ = "health_reports"

    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), primary_key=True)
    """Which node."""
    source: Mapped[str] = mapped_column(primary_key=True)
    """bmc, fabric, scheduler, agent, test, person."""
    check_name: Mapped[str] = mapped_column(primary_key=True)
    """What was looked at."""
    class_: Mapped[str] = mapped_column("class")
    """ok, info, block_allocation, drain or quarantine: behaviour hangs on this."""
    message: Mapped[str]
    """For operators."""
    at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class FreezeRow(Base):
    """
    A block where nothing follows from nodes' health by itself until a person lifts it.
    """

    __tablename__ = "automation_freezes"
    __table_args__ = (
        Index("uq_automation_freezes_block", "site", "block", unique=True, postgresql_where=text("lifted_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`frz_…`."""
    site: Mapped[str] = mapped_column(ForeignKey("sites.name"))
    """Where."""
    block: Mapped[str]
    """Spine group."""
    reason: Mapped[str]
    """Why."""
    made_by: Mapped[str]
    """Who; `system` when many nodes fell ill at once."""
    made_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    lifted_at: Mapped[datetime | None]
    """When it was lifted; none while it is in force."""
    lifted_by: Mapped[str | None]
    """Who lifted it."""


class TicketRow(Base):
    """
    A repair that is asked for; one open at a time for each node.
    """

    __tablename__ = "repair_tickets"
    __table_args__ = (
        Index("uq_repair_tickets_open", "node_id", unique=True, postgresql_where=text("closed_at IS NULL")),
        Index("ix_repair_tickets_due", "due_at", postgresql_where=text("delivered_at IS NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`tkt_…`."""
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    """Which node."""
    opened_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    reports: Mapped[list[Any]] = mapped_column(JSONB())
    """What was said of the node: [{source, check, class, message}]."""
    due_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When the operator's webhook is told next."""
    attempts: Mapped[int] = mapped_column(server_default="0")
    """How often it was told."""
    delivered_at: Mapped[datetime | None]
    """When it took note."""
    closed_at: Mapped[datetime | None]
    """When the node was in use again or gone."""
