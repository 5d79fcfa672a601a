"""
Rows of clusters and their node sets.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base
from controlplane.kit.moving import Moving


class ClusterRow(Moving, Base):
    """
    An order for nodes turned into a product.
    """

    __tablename__ = "clusters"
    __table_args__ = (
        Index("ix_clusters_due", "due_at", postgresql_where=text("due_at IS NOT NULL")),
        Index("uq_clusters_name", "project_id", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
        Index("ix_clusters_project", "project_id", "id"),
        Index("ix_clusters_tenant", "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`clu_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose."""
    reseller_id: Mapped[str]
    """The tenant's reseller."""
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    """Its project."""
    name: Mapped[str]
    """Unique per project among what is not deleted."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs."""
    kind: Mapped[str]
    """slurm, baremetal or kubernetes."""
    site: Mapped[str] = mapped_column(ForeignKey("sites.name"))
    """Where."""
    spec: Mapped[dict[str, Any]]
    """The order as the caller sent it, defaults filled in."""
    provider_id: Mapped[str | None] = mapped_column(ForeignKey("providers.id"))
    """Who makes it; known from placement on."""
    provider_user: Mapped[str] = mapped_column(server_default="")
    """The account jobs run as at the provider."""
    blueprint_id: Mapped[str | None]
    """What its nodes boot with, where they are the tenant's to log in to."""
    slurm: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """A Slurm of its owner's own: {offer, accounting, containers} as they were when it was ordered; none for others."""
    kubernetes: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """A Kubernetes of its owner's own: {offer, distribution} as they were when it was ordered, and since its first upgrade
    {version, install, ahead}; a managed one's has {distribution, version, job_features, volumes, mig} and no offer, one that stood before
    it was ours {distribution, version, came}; none for others."""
    upgrade: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """How far the last upgrade of its workers is, as in states.Roll; none where there was none."""
    peer_id: Mapped[str | None] = mapped_column(ForeignKey("providers.id"))
    """Its own scheduler; none where its provider is that."""
    placement: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """{domain_kind, domain_name, explanation}."""
    issues: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """[{code, message}] when not running."""
    checks: Mapped[list[Any]] = mapped_column(JSONB(), server_default=text("'[]'::jsonb"))
    """Acceptance facts: [{name, result, detail}]."""
    adopted: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """A cluster that its provider had already: {found_id, ref, uid} as it was there, {nodes} by allocation where its Nodes have names of
    their own, {let_go} once it is to go back; none for others."""
    running_at: Mapped[datetime | None]
    """When it first ran."""
    charged: Mapped[bool] = mapped_column(server_default=text("true"))
    """Whether it counts against the quota of clusters."""
    delete_accepted_at: Mapped[datetime | None]
    """When deletion was accepted."""
    mend_tried_at: Mapped[datetime | None]
    """When its sick nodes were last looked at to be replaced."""


class NodeSetRow(Base):
    """
    Identical nodes inside a cluster.
    """

    __tablename__ = "node_sets"
    __table_args__ = (
        UniqueConstraint("cluster_id", "name"),
        CheckConstraint("role IN ('worker','head','login','control_plane')", name="role"),
        Index("ix_node_sets_image", "image_id", postgresql_where=text("image_id IS NOT NULL")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`nds_…`."""
    cluster_id: Mapped[str] = mapped_column(ForeignKey("clusters.id"))
    """Whose part."""
    tenant_id: Mapped[str]
    """Whose."""
    name: Mapped[str]
    """Unique in the cluster."""
    role: Mapped[str] = mapped_column(server_default="worker")
    """worker; head or login of a Slurm of its owner's own, control_plane of a Kubernetes."""
    blueprint_id: Mapped[str | None]
    """What its nodes boot with, where that differs from set to set."""
    image_id: Mapped[str | None] = mapped_column(ForeignKey("images.id"))
    """What is written to their disks; none: nothing, they run what their provider starts."""
    instance_type: Mapped[str]
    """What its nodes are."""
    count: Mapped[int]
    """How many are wanted."""
    gpus: Mapped[int]
    """GPUs of one of its nodes."""
    gpu_model: Mapped[str]
    """Their model."""
    unplaced: Mapped[int]
    """Nodes whose quota is taken and for which no node is held yet."""


class FoundClusterRow(Base):
    """
    A cluster that was found at a provider and is not ours.
    """

    __tablename__ = "found_clusters"
    __table_args__ = (UniqueConstraint("provider_id", "uid"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`fcl_…`."""
    provider_id: Mapped[str] = mapped_column(ForeignKey("providers.id"))
    """Where it was found."""
    ref: Mapped[str]
    """Its name there."""
    uid: Mapped[str]
    """The provider's own id of it."""
    facts: Mapped[dict[str, Any]]
    """{product, version, sets, hosts, obstacles, notices} as in providers.adoption.Standing."""
    refusal: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    """{code, message, at} of the last try to take it over that the provider turned down; none for none."""
    first_seen_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    seen_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it was last seen."""
    gone_at: Mapped[datetime | None]
    """When it was first not there, or not somebody else's, any more."""


class ProviderUserRow(Base):
    """
    The account at a provider that a tenant's work runs as; one account never serves two tenants.
    """

    __tablename__ = "provider_users"

    provider_id: Mapped[str] = mapped_column(ForeignKey("providers.id"), primary_key=True)
    """Where."""
    user: Mapped[str] = mapped_column(primary_key=True)
    """Which account."""
    tenant_id: Mapped[str]
    """Whose."""
