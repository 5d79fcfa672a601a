"""
Rows of what a scope may hold and what it holds.
"""

from datetime import datetime

from sqlalchemy import CheckConstraint, Index
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class QuotaRow(Base):
    """
    One counter of one scope. `used` is changed only by conditional updates in the transaction of the change.
    """

    __tablename__ = "quotas"
    __table_args__ = (
        CheckConstraint("used >= 0", name="used_not_negative"),
        CheckConstraint("ceiling IS NULL OR ceiling >= 0", name="ceiling_not_negative"),
        CheckConstraint("resource IN ('gpus','clusters','keys','operations','image_bytes')", name="resource"),
        CheckConstraint("scope_kind IN ('platform','reseller','tenant','project')", name="scope_kind"),
        Index("uq_quotas_scope", "scope_id", "resource", "gpu_model", "site", unique=True),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`quo_…`."""
    scope_kind: Mapped[str]
    """platform, reseller, tenant or project."""
    scope_id: Mapped[str]
    """`platform`, or the id of the scope."""
    depth: Mapped[int]
    """0 platform, 1 reseller, 2 tenant, 3 project: counters are locked from the root down."""
    reseller_id: Mapped[str | None]
    """The scope's reseller."""
    tenant_id: Mapped[str | None]
    """The scope's tenant."""
    resource: Mapped[str]
    """gpus, clusters, keys, operations or image_bytes."""
    gpu_model: Mapped[str] = mapped_column(server_default="")
    """Only GPUs of this model; empty: all."""
    site: Mapped[str] = mapped_column(server_default="")
    """Only in this site; empty: everywhere."""
    ceiling: Mapped[int | None]
    """The limit; none: unlimited at this level."""
    used: Mapped[int] = mapped_column(server_default="0")
    """What is held now."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag; rises when the limit changes, not with use."""
