"""
Rows of images.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class ImageRow(Base):
    """
    An operating system as a file. The row is the truth about its content: bytes behind `received_bytes` are not there, whatever
    the store holds.
    """

    __tablename__ = "images"
    __table_args__ = (
        CheckConstraint("arch IN ('x86_64','aarch64')", name="arch"),
        CheckConstraint("format IN ('raw','qcow2','iso','kernel-bundle')", name="format"),
        CheckConstraint("visibility IN ('tenant','public')", name="visibility"),
        CheckConstraint("state IN ('uploading','verifying','ready','failed','deleted')", name="state"),
        CheckConstraint("sha256 ~ '^[0-9a-f]{64}$' AND actual_sha256 ~ '^([0-9a-f]{64})?$'", name="digests"),
        CheckConstraint("size_bytes > 0 AND received_bytes BETWEEN 0 AND size_bytes", name="sizes"),
        CheckConstraint("state = 'uploading' OR state = 'deleted' OR received_bytes = size_bytes", name="complete"),
        CheckConstraint("state <> 'ready' OR actual_sha256 = sha256", name="ready_is_checked"),
        Index(
            "uq_images_name",
            "tenant_id",
            "name",
            unique=True,
            postgresql_where=text("state <> 'deleted'"),
            postgresql_nulls_not_distinct=True,
        ),
        Index("ix_images_public", "id", postgresql_where=text("visibility = 'public' AND state = 'ready'")),
        Index("ix_images_verifying", "id", postgresql_where=text("state = 'verifying'")),
        Index("ix_images_tenant", "tenant_id", "id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`img_…`; names the content in the store."""
    tenant_id: Mapped[str | None] = mapped_column(ForeignKey("tenants.id"))
    """Whose; none: the operator's."""
    reseller_id: Mapped[str | None] = mapped_column(ForeignKey("resellers.id"))
    """The tenant's reseller, whose quota counts the bytes too."""
    name: Mapped[str]
    """Unique among the owner's images."""
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    """Free key-value pairs."""
    visibility: Mapped[str] = mapped_column(server_default="tenant")
    """tenant: its owner alone; public: every tenant, once it is ready."""
    os_family: Mapped[str]
    """For example `ubuntu`."""
    os_version: Mapped[str]
    """For example `24.04`."""
    arch: Mapped[str]
    """x86_64 or aarch64."""
    format: Mapped[str]
    """raw, qcow2, iso or kernel-bundle."""
    size_bytes: Mapped[int]
    """Size of the content as declared."""
    sha256: Mapped[str]
    """Digest of the content as declared."""
    received_bytes: Mapped[int] = mapped_column(server_default="0")
    """How much of the content counts: from its first byte on, without a gap."""
    actual_sha256: Mapped[str] = mapped_column(server_default="")
    """Digest of the content as computed by us; empty before."""
    state: Mapped[str]
    """As in `IMAGE_STATES`."""
    reason: Mapped[str] = mapped_column(server_default="")
    """Why it is in this state."""
    state_since: Mapped[datetime] = mapped_column(server_default=CpClock())
    """When it came to this state."""
    deadline_at: Mapped[datetime | None]
    """After this it needs attention; none for settled states."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    updated_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""
    version: Mapped[int] = mapped_column(server_default="1")
    """Shown as ETag; rises with every change but the arrival of a chunk."""
