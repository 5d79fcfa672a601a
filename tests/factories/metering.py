"""
Customers, openings and price lists for tests of meters.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from sqlalchemy.orm import Session

from controlplane.catalog import service as catalog
from controlplane.identity.models import ResellerRow, TenantRow
from controlplane.kit.ids import new_id
from controlplane.metering import service as metering
from controlplane.metering.service import Opening, Price

START = datetime(2024, 3, 1, tzinfo=UTC)
"""A month begins; long before any real clock that runs these tests."""


def seller(session: Session, *, is_platform: bool = False) -> str:
    """
    A new reseller.
    """
    row = ResellerRow(id=new_id("rsl"), name=new_id("rsl"), is_platform=is_platform)
    session.add(row)
    session.flush()
    return row.id


def tenant(session: Session, reseller_id: str) -> str:
    """
    A new tenant of the reseller.
    """
    row = TenantRow(id=new_id("ten"), reseller_id=reseller_id, name=new_id("ten"))
    session.add(row)
    session.flush()
    return row.id


def opening(
    tenant_id: str,
    *,
    allocation_id: str | None = None,
    project_id: str = "prj_a",
    cluster_id: str = "clu_a",
    instance_type: str = "hgx-h100-8",
    site: str = "osl1",
    gpus: int = 8,
    not_before: datetime = START,
    usable_at: datetime | None = START,
) -> Opening:
    """
    A node that became usable when the month began.
    """
    return Opening(
        allocation_id=allocation_id or new_id("alc"),
        instance_id=new_id("ins"),
        tenant_id=tenant_id,
        project_id=project_id,
        cluster_id=cluster_id,
        instance_type=instance_type,
        site=site,
        gpus=gpus,
        evidence="opr_start",
        not_before=not_before,
        usable_at=usable_at,
    )


def held(session: Session, one: Opening, until: datetime) -> None:
    """
    The node was held until the moment.
    """
    metering.open_intervals(session, [one])
    metering.close_intervals(session, [one.allocation_id], at=until, evidence="opr_end")


def book(
    session: Session,
    reseller_id: str,
    prices: Sequence[tuple[str, str]],
    *,
    currency: str = "USD",
    valid_from: datetime | None = START - timedelta(days=365),
) -> metering.PriceBook:
    """
    A version of the reseller's list with on-demand prices.
    """
    catalog.load_catalog(session)
    lines = [Price(name, "on_demand", Decimal(price)) for name, price in prices]
    return metering.create_price_book(session, reseller_id, currency, valid_from, lines)
