"""
Every statement on the catalog.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from controlplane.catalog.models import GpuModelRow, InstanceTypeRow, PartsRow, SiteRow
from controlplane.kit.clock import CpClock
from controlplane.kit.paging import Page, PageAsk, fetch_page


def put(session: Session, row: type[GpuModelRow | InstanceTypeRow], values: Sequence[dict[str, Any]]) -> None:
    """
    The rows stand as given; rows of other names are left alone.
    """
    query = insert(row).values(list(values))
    changed = {name: query.excluded[name] for name in values[0] if name != "name"}
    session.execute(query.on_conflict_do_update(index_elements=["name"], set_=changed))


def add_site(session: Session, name: str, region: str, description: str) -> bool:
    """
    The site is there; whether it is new is returned.
    """
    query = insert(SiteRow).values(name=name, region=region, description=description).on_conflict_do_nothing()
    return session.execute(query.returning(SiteRow.name)).first() is not None


def find_site(session: Session, name: str, *, lock: bool = False) -> SiteRow | None:
    """
    The site, or None.
    """
    query = select(SiteRow).where(SiteRow.name == name).execution_options(populate_existing=True)
    return session.scalars(query.with_for_update() if lock else query).one_or_none()


def find_instance_type(session: Session, name: str) -> InstanceTypeRow | None:
    """
    The instance type, or None.
    """
    return session.get(InstanceTypeRow, name)


def find_gpu_model(session: Session, name: str) -> GpuModelRow | None:
    """
    The GPU model, or None.
    """
    return session.get(GpuModelRow, name)


def instance_type_names(session: Session) -> set[str]:
    """
    The names of all instance types.
    """
    return set(session.scalars(select(InstanceTypeRow.name)))


def sites(session: Session, ask: PageAsk) -> Page[SiteRow]:
    """
    A page of sites by name.
    """
    return fetch_page(session, select(SiteRow), SiteRow.name.expression, ask)


def gpu_models(session: Session, ask: PageAsk) -> Page[GpuModelRow]:
    """
    A page of GPU models by name.
    """
    return fetch_page(session, select(GpuModelRow), GpuModelRow.name.expression, ask)


def instance_types(session: Session, ask: PageAsk, gpu_model: str | None) -> Page[InstanceTypeRow]:
    """
    A page of instance types by name; of one GPU model only when one is named.
    """
    query = select(InstanceTypeRow)
    if gpu_model is not None:
        query = query.where(InstanceTypeRow.gpu_model == gpu_model)
    return fetch_page(session, query, InstanceTypeRow.name.expression, ask)


def all_gpu_models(session: Session) -> Sequence[GpuModelRow]:
    """
    Every GPU model by name.
    """
    return session.scalars(select(GpuModelRow).order_by(GpuModelRow.name)).all()


ALL_TYPES = select(*InstanceTypeRow.__table__.columns).order_by(InstanceTypeRow.name)


def all_instance_types(session: Session) -> Sequence[Row[Any]]:
    """
    Every instance type, as a row of its columns: asked for by every order and every claim.
    """
    return session.execute(ALL_TYPES).all()


def site_names(session: Session) -> frozenset[str]:
    """
    The names of all sites.
    """
    return frozenset(session.execute(select(SiteRow.name)).scalars())


PARTS = select(
    InstanceTypeRow.name,
    GpuModelRow.memory_gib.label("model_memory_gib"),
    InstanceTypeRow.nics.label("type_nics"),
    InstanceTypeRow.nic_gbit_s.label("type_nic_gbit_s"),
    PartsRow.gpu_memory_gib,
    PartsRow.nics,
    PartsRow.nic_gbit_s,
    PartsRow.drives,
    PartsRow.drive_gib,
    PartsRow.firmware,
    PartsRow.firmware_images,
).join(GpuModelRow, GpuModelRow.name == InstanceTypeRow.gpu_model)


def all_parts(session: Session) -> Sequence[Row[Any]]:
    """
    What machines of every type must have: the catalog's figures beside the operator's.
    """
    return session.execute(PARTS.outerjoin(PartsRow, PartsRow.name == InstanceTypeRow.name)).all()


def put_parts(session: Session, name: str, values: dict[str, Any]) -> None:
    """
    The type's machines must have these.
    """
    query = insert(PartsRow).values(name=name, **values)
    session.execute(query.on_conflict_do_update(index_elements=["name"], set_={**values, "updated_at": CpClock()}))
