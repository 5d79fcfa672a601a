"""
Rows of the tree (resellers, tenants, projects), of who acts in it, and of what they hold.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, LargeBinary, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class ResellerRow(Base):
    """
    A seller under its own brand; the platform is the reseller of its direct tenants.
    """

    __tablename__ = "resellers"
    __table_args__ = (
        CheckConstraint("state IN ('active','suspended','deleted')", name="state"),
        Index("uq_resellers_platform", "is_platform", unique=True, postgresql_where=text("is_platform")),
        Index("uq_resellers_name", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`rsl_…`."""
    name: Mapped[str]
    """Unique among resellers."""
    is_platform: Mapped[bool] = mapped_column(server_default=text("false"))
    """True for exactly one row: the operator's own."""
    state: Mapped[str] = mapped_column(server_default="active")
    """active, suspended or deleted."""
    brand: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """{name, logo_url, colour, support_email}: what its customers see."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag."""


class ResellerDomainRow(Base):
    """
    A host name on which only one brand is seen.
    """

    __tablename__ = "reseller_domains"

    domain: Mapped[str] = mapped_column(primary_key=True)
    """Lower-case host name without a port."""
    reseller_id: Mapped[str] = mapped_column(ForeignKey("resellers.id"))
    """Whose it is."""


class TenantRow(Base):
    """
    A customer organisation.
    """

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("state IN ('active','suspended','deleting','deleted')", name="state"),
        Index("uq_tenants_name", "reseller_id", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`ten_…`."""
    reseller_id: Mapped[str] = mapped_column(ForeignKey("resellers.id"))
    """Who sells to it."""
    name: Mapped[str]
    """Unique per reseller."""
    state: Mapped[str] = mapped_column(server_default="active")
    """active, suspended, deleting or deleted."""
    suspended_by: Mapped[str] = mapped_column(server_default="")
    """Level that suspended it, platform or reseller: a lower one cannot resume it; empty when it is not suspended."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag."""


class ProjectRow(Base):
    """
    A tenant's unit that owns resources.
    """

    __tablename__ = "projects"
    __table_args__ = (
        CheckConstraint("state IN ('active','deleted')", name="state"),
        Index("uq_projects_name", "tenant_id", "name", unique=True, postgresql_where=text("state <> 'deleted'")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`prj_…`."""
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    """Whose it is."""
    name: Mapped[str]
    """Unique per tenant."""
    state: Mapped[str] = mapped_column(server_default="active")
    """active or deleted."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag."""


class PrincipalRow(Base):
    """
    Who acts: a user or a service account. `tenant_id` and `reseller_id` name its home; both empty: the platform's.
    """

    __tablename__ = "principals"
    __table_args__ = (
        CheckConstraint("kind IN ('user','service_account')", name="kind"),
        CheckConstraint("state IN ('active','disabled','deleted')", name="state"),
        Index(
            "uq_principals_email",
            "tenant_id",
            "reseller_id",
            "email",
            unique=True,
            postgresql_where=text("state <> 'deleted'"),
            postgresql_nulls_not_distinct=True,
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`prn_…`."""
    kind: Mapped[str]
    """user or service_account."""
    name: Mapped[str]
    """For people."""
    email: Mapped[str]
    """Lower-case; for service accounts a name in the same form."""
    reseller_id: Mapped[str | None] = mapped_column(ForeignKey("resellers.id"))
    """Its reseller; none for the platform's own."""
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenants.id"))
    """Its tenant; none above tenants."""
    state: Mapped[str] = mapped_column(server_default="active")
    """active, disabled or deleted."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag."""


class RoleBindingRow(Base):
    """
    A role of a principal at a scope.
    """

    __tablename__ = "role_bindings"
    __table_args__ = (
        CheckConstraint("scope_kind IN ('platform','reseller','tenant','project')", name="scope_kind"),
        UniqueConstraint("principal_id", "role", "scope_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`rol_…`."""
    principal_id: Mapped[str] = mapped_column(ForeignKey("principals.id"))
    """Who."""
    role: Mapped[str]
    """A name of `identity.states.ROLES`."""
    scope_kind: Mapped[str]
    """platform, reseller, tenant or project."""
    scope_id: Mapped[str]
    """`platform`, or the id of the scope."""
    reseller_id: Mapped[str | None]
    """The scope's reseller."""
    tenant_id: Mapped[str | None]
    """The scope's tenant."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class ApiKeyRow(Base):
    """
    A key: belongs to one principal and one scope; only the hash of its secret is kept.
    """

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("scope_kind IN ('platform','reseller','tenant','project')", name="scope_kind"),
        Index("ix_api_keys_tenant", "tenant_id", "id"),
        Index("ix_api_keys_principal", "principal_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`key_…`; also the public part of the key itself."""
    principal_id: Mapped[str] = mapped_column(ForeignKey("principals.id"))
    """Who acts with it."""
    name: Mapped[str]
    """For people."""
    scope_kind: Mapped[str]
    """platform, reseller, tenant or project."""
    scope_id: Mapped[str]
    """`platform`, or the id of the scope."""
    reseller_id: Mapped[str | None]
    """The scope's reseller."""
    tenant_id: Mapped[str | None]
    """The scope's tenant."""
    project_id: Mapped[str | None]
    """The scope's project."""
    secret_hash: Mapped[bytes] = mapped_column(LargeBinary())
    """SHA-256 of the secret part."""
    permissions: Mapped[list[str] | None]
    """Narrows the principal's rights to these; none: all of them."""
    networks: Mapped[list[str] | None]
    """Networks it may be used from; none: any."""
    created_by: Mapped[str]
    """Principal that made it."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    expires_at: Mapped[datetime | None]
    """After this it is refused."""
    revoked_at: Mapped[datetime | None]
    """Since when it is refused."""
    last_used_at: Mapped[datetime | None]
    """To the minute."""


class IdempotencyRow(Base):
    """
    The first answer to a POST, kept for 24 hours.
    """

    __tablename__ = "idempotency_keys"
    __table_args__ = (Index("ix_idempotency_keys_created", "created_at"),)

    principal_id: Mapped[str] = mapped_column(primary_key=True)
    """Keys of different principals never meet."""
    key: Mapped[str] = mapped_column(primary_key=True)
    """The header as sent."""
    tenant_id: Mapped[str]
    """Whose: a tenant, a reseller or `platform`."""
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary())
    """SHA-256 over method, path, query and body."""
    status: Mapped[int]
    """HTTP status of the first answer."""
    headers: Mapped[dict[str, Any]]
    """Location and ETag of the first answer."""
    body: Mapped[bytes] = mapped_column(LargeBinary())
    """The first answer; secrets in it are blanked."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
