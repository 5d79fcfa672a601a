"""
Rows of what was held and for how long, and of what it costs.
"""

from datetime import datetime
from decimal import Decimal

from sqlalchemy import CheckConstraint, ForeignKey, Index, Numeric, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import TSTZRANGE, ExcludeConstraint, Range
from sqlalchemy.orm import Mapped, mapped_column

from controlplane.kit.clock import CpClock
from controlplane.kit.db import Base


class WorkRow(Base):
    """
    A job or a service held GPUs of its cluster over a half-open interval of UTC; open while a job's run goes on. Evidence, never billed.
    """

    __tablename__ = "work_intervals"
    __table_args__ = (
        CheckConstraint("kind IN ('job','service')", name="kind"),
        CheckConstraint("gpus > 0", name="gpus"),
        CheckConstraint("slices >= 1 AND slices <= of_slices", name="share"),
        CheckConstraint(
            "isempty(during) OR (lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during))", name="half_open"
        ),
        Index("ix_work_intervals_during", "tenant_id", "during", postgresql_using="gist"),
    )

    work_id: Mapped[str] = mapped_column(primary_key=True)
    """The job or the service."""
    part: Mapped[str] = mapped_column(primary_key=True)
    """Its start in microseconds: a run of a job, or a time in which a service held so many GPUs."""
    kind: Mapped[str]
    """job or service."""
    tenant_id: Mapped[str]
    """Whose."""
    project_id: Mapped[str]
    """Its project."""
    cluster_id: Mapped[str]
    """Where it ran."""
    gpus: Mapped[int]
    """GPUs that it held, or slices of GPUs."""
    profile: Mapped[str] = mapped_column(server_default="")
    """The MIG profile of those slices; empty: whole GPUs."""
    slices: Mapped[int] = mapped_column(server_default="1")
    """Of a GPU's `of_slices` equal parts of compute, so many are one of them."""
    of_slices: Mapped[int] = mapped_column(server_default="1")
    """1 for whole GPUs."""
    during: Mapped[Range[datetime]] = mapped_column(TSTZRANGE())
    """[started, ended)."""


class IntervalRow(Base):
    """
    One allocation was billable over a half-open interval of UTC; open while the upper bound is missing.
    """

    __tablename__ = "meter_intervals"
    __table_args__ = (
        ExcludeConstraint(("allocation_id", "="), ("during", "&&"), name="ex_meter_intervals_once", using="gist"),
        CheckConstraint(
            "isempty(during) OR (lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during))", name="half_open"
        ),
        Index("ix_meter_intervals_tenant", "tenant_id", "id"),
        Index("ix_meter_intervals_during", "tenant_id", "during", postgresql_using="gist"),
        Index("ix_meter_intervals_cluster", "cluster_id"),
        Index("ix_meter_intervals_allocation", "allocation_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`mtr_…`."""
    tenant_id: Mapped[str]
    """Who pays."""
    project_id: Mapped[str]
    """For which project."""
    cluster_id: Mapped[str]
    """For which cluster."""
    allocation_id: Mapped[str]
    """Which allocation."""
    instance_id: Mapped[str]
    """The tenant's name of the node."""
    instance_type: Mapped[str]
    """What was held."""
    site: Mapped[str]
    """Where."""
    gpus: Mapped[int]
    """GPUs of the node."""
    mode: Mapped[str] = mapped_column(server_default="on_demand")
    """on_demand, reserved or spot."""
    during: Mapped[Range[datetime]] = mapped_column(TSTZRANGE())
    """[usable, release accepted); empty when it was released before it was usable: it bills nothing and stops a late start."""
    opened_by: Mapped[str]
    """Evidence of the start: operation or claim."""
    closed_by: Mapped[str] = mapped_column(server_default="")
    """Evidence of the end."""


class PriceBookRow(Base):
    """
    One dated version of a price list.
    """

    __tablename__ = "price_books"
    __table_args__ = (UniqueConstraint("reseller_id", "number"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """`prb_…`."""
    reseller_id: Mapped[str] = mapped_column(ForeignKey("resellers.id"))
    """Whose list; the platform's is the base."""
    is_base: Mapped[bool] = mapped_column(server_default=text("false"))
    """Whether it is the platform's own, which the others overlay; customers cannot see the row that says so elsewhere."""
    number: Mapped[int]
    """1, 2, 3, …"""
    currency: Mapped[str]
    """ISO 4217."""
    valid_from: Mapped[datetime]
    """It holds from this moment until a later one does."""
    created_at: Mapped[datetime] = mapped_column(server_default=CpClock())
    """Database clock."""


class PriceRow(Base):
    """
    The price of one instance type in one mode.
    """

    __tablename__ = "prices"

    price_book_id: Mapped[str] = mapped_column(ForeignKey("price_books.id"), primary_key=True)
    """Which version of the list."""
    instance_type: Mapped[str] = mapped_column(primary_key=True)
    """What."""
    mode: Mapped[str] = mapped_column(primary_key=True)
    """on_demand, reserved or spot."""
    per_gpu_hour: Mapped[Decimal] = mapped_column(Numeric(18, 6))
    """In the book's currency."""
