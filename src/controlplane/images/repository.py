"""
Every statement on images. Row-level security stands behind each; the conditions here are the first wall.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import Select, and_, case, or_, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from controlplane.images.models import ImageRow
from controlplane.images.states import IMAGE_STATES, LONGEST_CHECK_S, ImageFilter
from controlplane.kit.clock import CpClock
from controlplane.kit.db import constraint_name
from controlplane.kit.errors import NameTaken
from controlplane.kit.paging import Page, PageAsk, fetch_page

LONGEST_CHECK = timedelta(seconds=LONGEST_CHECK_S)
SHARED = text("SELECT pg_advisory_xact_lock_shared(hashtextextended(:name, 0))")
IN_USE = text("SELECT cp_image_in_use(:id)")
ALONE = text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))")
OF_DELETED_TENANTS = text(
    """
    SELECT i.id FROM images i JOIN tenants t ON t.id = i.tenant_id
    WHERE t.state = 'deleted' AND i.state <> 'deleted' AND NOT cp_image_in_use(i.id) ORDER BY i.id LIMIT :most
    """
)


def add(session: Session, row: ImageRow) -> None:
    """
    The image is stored, and its defaults are known. Raises NameTaken.
    """
    session.add(row)
    flush(session)
    session.refresh(row)


def flush(session: Session) -> None:
    """
    Changes are in the database. Raises NameTaken where another has the name.
    """
    try:
        session.flush()
    except IntegrityError as error:
        if constraint_name(error) == "uq_images_name":
            raise NameTaken("The owner has another image of this name.") from error
        raise


def touch(session: Session, row: ImageRow) -> None:
    """
    The row's changes are stored under its next version. Raises NameTaken.
    """
    row.version += 1
    row.updated_at = CpClock()
    flush(session)
    session.refresh(row)


def _seen_by(tenant_id: str | None) -> Select[Any]:
    """
    What a tenant may see: its own, and what is public and ready; everything where no tenant is named.
    """
    query = select(ImageRow).where(ImageRow.state != "deleted")
    if tenant_id is None:
        return query
    shown = and_(ImageRow.visibility == "public", ImageRow.state == "ready")
    return query.where(or_(ImageRow.tenant_id == tenant_id, shown))


def find(session: Session, tenant_id: str | None, image_id: str, *, lock: bool = False) -> ImageRow | None:
    """
    The image that the tenant (none: the operator) may see, as it is now, or None. A lock is had only of one's own.
    """
    query = _seen_by(tenant_id).where(ImageRow.id == image_id).execution_options(populate_existing=True)
    return session.scalars(query.with_for_update(key_share=True) if lock else query).one_or_none()


def lock_uses(session: Session, image_id: str, *, alone: bool) -> None:
    """
    Until this transaction ends nobody deletes the image, or, alone, nobody begins to use it. A lock of the row would not do: a tenant
    uses public images, and may lock only its own.
    """
    session.execute(ALONE if alone else SHARED, {"name": f"image-uses:{image_id}"})


def is_used(session: Session, image_id: str) -> bool:
    """
    Whether a cluster's order names the image, or a held machine has it; whosever they are. A trigger asks the same.
    """
    return bool(session.execute(IN_USE, {"id": image_id}).scalar_one())


def find_any(session: Session, image_id: str) -> ImageRow | None:
    """
    The image, though it be deleted, or None.
    """
    query = select(ImageRow).where(ImageRow.id == image_id).execution_options(populate_existing=True)
    return session.scalars(query).one_or_none()


def page(session: Session, tenant_id: str | None, wanted: ImageFilter, ask: PageAsk) -> Page[ImageRow]:
    """
    A page of the images that the tenant (none: the operator) may see, oldest first.
    """
    query: Select[Any] = _seen_by(tenant_id)
    columns: dict[str, Any] = {"state": ImageRow.state, "visibility": ImageRow.visibility, "os_family": ImageRow.os_family}
    columns |= {"arch": ImageRow.arch, "tenant_id": ImageRow.tenant_id}
    for name, column in columns.items():
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(column == value)
    if wanted.labels:
        query = query.where(ImageRow.labels.contains(dict(wanted.labels)))
    if wanted.created_after is not None:
        query = query.where(ImageRow.created_at > wanted.created_after)
    return fetch_page(session, query, ImageRow.__table__.c.id, ask)


def advance(session: Session, image_id: str, start_bytes: int, end_bytes: int) -> ImageRow | None:
    """
    The content counts up to the new end, and the image is complete when that is all of it; None when the content did not end at
    the start any more.
    """
    complete = ImageRow.size_bytes == end_bytes
    statement = (
        update(ImageRow)
        .where(ImageRow.id == image_id, ImageRow.state == "uploading", ImageRow.received_bytes == start_bytes)
        .values(
            received_bytes=end_bytes,
            state=case((complete, "verifying"), else_=ImageRow.state),
            reason=case((complete, IMAGE_STATES.by_name["verifying"].says), else_=ImageRow.reason),
            state_since=case((complete, CpClock()), else_=ImageRow.state_since),
            deadline_at=case((complete, CpClock() + LONGEST_CHECK), else_=None),
            updated_at=CpClock(),
            version=case((complete, ImageRow.version + 1), else_=ImageRow.version),
        )
        .returning(ImageRow)
        .execution_options(populate_existing=True, synchronize_session=False)
    )
    return session.scalars(statement).one_or_none()


def move(session: Session, image_id: str, before: Collection[str], after: str, reason: str, **more: str) -> ImageRow | None:
    """
    The image has moved; None when it was in none of these states any more.
    """
    statement = (
        update(ImageRow)
        .where(ImageRow.id == image_id, ImageRow.state.in_(before))
        .values(
            state=after,
            reason=reason,
            state_since=CpClock(),
            deadline_at=None,
            updated_at=CpClock(),
            version=ImageRow.version + 1,
            **more,
        )
        .returning(ImageRow)
        .execution_options(populate_existing=True, synchronize_session=False)
    )
    return session.scalars(statement).one_or_none()


def verifying(session: Session, most: int) -> Sequence[ImageRow]:
    """
    Images whose content is to be checked, oldest first.
    """
    return session.scalars(select(ImageRow).where(ImageRow.state == "verifying").order_by(ImageRow.id).limit(most)).all()


def of_deleted_tenants(session: Session, most: int) -> Sequence[str]:
    """
    Ids of images that outlived their tenants.
    """
    return session.execute(OF_DELETED_TENANTS, {"most": most}).scalars().all()


def states_of(session: Session, image_ids: Collection[str]) -> dict[str, str]:
    """
    The states of the images by id; what was never stored is missing.
    """
    rows = session.execute(select(ImageRow.id, ImageRow.state).where(ImageRow.id.in_(image_ids)))
    return {row.id: row.state for row in rows}


def formats_of(session: Session, image_ids: Collection[str]) -> dict[str, str]:
    """
    The formats of the images by id; what was never stored is missing.
    """
    rows = session.execute(select(ImageRow.id, ImageRow.format).where(ImageRow.id.in_(image_ids)))
    return {row.id: row.format for row in rows}


def held(session: Session) -> Sequence[ImageRow]:
    """
    Every image whose bytes count against quotas.
    """
    return session.scalars(select(ImageRow).where(ImageRow.state != "deleted").order_by(ImageRow.id)).all()
