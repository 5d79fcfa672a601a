"""
Images: declared with their digest, filled chunk by chunk, checked, shown, deleted.

The row is the truth about the content. A chunk is written while its content is held, outside of any transaction, and counts when the
row says so: whoever dies in between has changed nothing, and the same chunk is sent again. Nobody writes what is checked or being
checked, for every writer looks at the row once more after it got hold of the content.
"""

from collections.abc import Callable, Collection, Iterator, Sequence

from sqlalchemy.orm import Session

from controlplane.identity import service as identity
from controlplane.images import repository
from controlplane.images.errors import ImageInUse, NotReady, NotUploading, WrongOffset
from controlplane.images.models import ImageRow
from controlplane.images.serving import Asked, Content, Served, serve
from controlplane.images.states import IMAGE_STATES, Changes, ImageFilter, NewImage
from controlplane.images.store import Depot, Held
from controlplane.kit.access import Principal
from controlplane.kit.errors import FieldError, Forbidden, Invalid, NotFound, TooLarge
from controlplane.kit.events import Event, Move, record
from controlplane.kit.ids import new_id
from controlplane.kit.paging import Page, PageAsk
from controlplane.quotas import service as quotas
from controlplane.web.ranges import Chunk, refused

__all__ = [
    "Asked",
    "Content",
    "ImageRow",
    "Incoming",
    "Served",
    "begin_chunk",
    "create_image",
    "delete_image",
    "formats_of",
    "get_content",
    "get_deployed_content",
    "get_image",
    "held_bytes",
    "list_images",
    "not_taken",
    "serve",
    "store_chunk",
    "update_image",
    "use_disk_image",
    "use_image",
]
CheckVersion = Callable[[int], None]
DISKS = ("raw", "qcow2")
"""Formats of whole disks; who installs images says which of them it takes."""
NOT_INSTALLABLE = "image_not_installable"
LIVE = tuple(name for name in IMAGE_STATES.by_name if name != "deleted")


def create_image(session: Session, principal: Principal, new: NewImage, *, max_image_bytes: int) -> ImageRow:
    """
    The image waits for its content, and its bytes are taken from the owner's quota: the tenant's, or the platform's for an operator's.
    Raises NameTaken, QuotaExceeded, Forbidden for keys of a project, Invalid when it is larger than images may be.
    """
    identity.require_tenant_key(principal)
    if new.size_bytes > max_image_bytes:
        words = f"An image holds at most {max_image_bytes} bytes."
        raise Invalid(words, errors=[FieldError("body.spec.size_bytes", "too_large", words)])
    row = ImageRow(
        id=new_id("img"),
        tenant_id=principal.tenant_id or None,
        reseller_id=principal.reseller_id or None,
        name=new.name,
        labels=dict(new.labels),
        visibility=new.visibility,
        os_family=new.os_family,
        os_version=new.os_version,
        arch=new.arch,
        format=new.format,
        size_bytes=new.size_bytes,
        sha256=new.sha256,
        state=IMAGE_STATES.initial,
        reason=IMAGE_STATES.by_name[IMAGE_STATES.initial].says,
    )
    repository.add(session, row)
    quotas.take(session, _chain(row), [_need(row)], viewer=principal.scope_kind)
    tell(session, row, "")
    return row


def get_image(session: Session, principal: Principal, image_id: str) -> ImageRow:
    """
    The image. Raises NotFound for what the principal may not see: others' images that are not public or not ready.
    """
    row = repository.find(session, principal.tenant_id or None, image_id)
    if row is None:
        raise NotFound
    return row


def list_images(session: Session, principal: Principal, wanted: ImageFilter, ask: PageAsk) -> Page[ImageRow]:
    """
    A page of the tenant's images and the public ones, oldest first; for operators of all.
    """
    return repository.page(session, principal.tenant_id or None, wanted, ask)


def update_image(session: Session, principal: Principal, image_id: str, changes: Changes, check: CheckVersion) -> ImageRow:
    """
    The image is changed. Raises NotFound, Forbidden for what is another's, NameTaken and what `check` raises.
    """
    row = _owned(session, principal, image_id)
    check(row.version)
    if changes.name is not None:
        row.name = changes.name
    if changes.labels is not None:
        row.labels = dict(changes.labels)
    if changes.visibility is not None:
        row.visibility = changes.visibility
    repository.touch(session, row)
    return row


def delete_image(session: Session, principal: Principal, image_id: str, check: CheckVersion) -> None:
    """
    The image is gone and its bytes are given back to the quota, unless something uses it; its content goes later, when nothing reads it
    any more. Raises NotFound, Forbidden, ImageInUse and what `check` raises.
    """
    row = _owned(session, principal, image_id)
    check(row.version)
    repository.lock_uses(session, row.id, alone=True)
    if repository.is_used(session, row.id):
        raise ImageInUse("A cluster uses the image; delete it once no cluster does.")
    bury(session, row.id, "Deleted by its owner." if row.tenant_id == (principal.tenant_id or None) else "Deleted by the operator.")


def bury(session: Session, image_id: str, reason: str) -> None:
    """
    The image is deleted, if it was not, and its bytes are given back to its owner's quota.
    """
    before = repository.find(session, None, image_id, lock=True)
    if before is None:
        return
    state = before.state
    repository.lock_uses(session, image_id, alone=True)
    row = repository.move(session, image_id, LIVE, "deleted", reason)
    assert row is not None, "its lock is ours"
    quotas.give_back(session, _chain(row), [_need(row)])
    tell(session, row, state)


def _owned(session: Session, principal: Principal, image_id: str) -> ImageRow:
    """
    The image, locked: a tenant's own, or any for operators. Raises NotFound, and Forbidden for what is only shown to the tenant.
    """
    identity.require_tenant_key(principal)
    seen = get_image(session, principal, image_id)
    if principal.scope_kind != "platform" and seen.tenant_id != principal.tenant_id:
        raise Forbidden("This image is public and another's: it can be used, not changed.", code="not_owner")
    row = repository.find(session, principal.tenant_id or None, image_id, lock=True)
    if row is None:
        raise NotFound
    return row


# Content


class Incoming:
    """
    A chunk on its way into the store; nobody else can write the content until it is closed.
    """

    def __init__(self, chunk: Chunk, held: Held) -> None:
        self.chunk = chunk
        self._held = held
        self._at_bytes = chunk.span.start_bytes

    @property
    def length_bytes(self) -> int:
        """
        How many bytes must come.
        """
        return self.chunk.span.length_bytes

    def write(self, data: bytes) -> None:
        """
        The next bytes of the chunk stand in the store. Raises StoreFailed.
        """
        if len(data) > self.chunk.span.end_bytes - self._at_bytes:
            raise ValueError("these bytes belong to no part of the chunk")
        self._held.write(self._at_bytes, data)
        self._at_bytes += len(data)

    def settle(self) -> None:
        """
        All bytes are here and outlive a power cut. Raises StoreFailed.
        """
        if self._at_bytes != self.chunk.span.end_bytes:
            raise ValueError("bytes of the chunk are missing")
        self._held.settle()

    def close(self) -> None:
        """
        Others may write the content.
        """
        self._held.close()


def begin_chunk(session: Session, principal: Principal, image_id: str, chunk: Chunk, depot: Depot) -> Incoming:
    """
    The chunk may be written: it begins where the content ends, and nobody else holds the content. Changes no row. Raises NotFound,
    Forbidden, NotUploading, WrongOffset, ContentHeld, TooLarge, Invalid, StoreFailed.
    """
    row = _fillable(session, principal, image_id)
    if chunk.total_bytes != row.size_bytes:
        raise refused("wrong_total", f"The image was declared with {row.size_bytes} bytes in all.")
    if chunk.span.length_bytes > depot.max_chunk_bytes:
        raise TooLarge(f"A chunk holds at most {depot.max_chunk_bytes} bytes.", limit_bytes=depot.max_chunk_bytes)
    held = depot.store.hold(image_id, create=True)
    assert held is not None, "it would have been made"
    try:
        _check_offset(_fillable(session, principal, image_id), chunk)  # what was seen before it was held may be past
    except BaseException:
        held.close()
        raise
    return Incoming(chunk, held)


def _fillable(session: Session, principal: Principal, image_id: str) -> ImageRow:
    identity.require_tenant_key(principal)
    row = get_image(session, principal, image_id)
    if row.tenant_id != (principal.tenant_id or None):
        raise Forbidden("Only its owner sends the content of an image.", code="not_owner")
    if row.state != "uploading":
        words = f"The image is {row.state}; its content cannot be changed. To replace it, make another image."
        raise NotUploading(words, state=row.state, received_bytes=row.received_bytes)
    return row


def _check_offset(row: ImageRow, chunk: Chunk) -> None:
    if chunk.span.start_bytes != row.received_bytes:
        words = f"The next chunk must begin at byte {row.received_bytes}."
        raise WrongOffset(words, expected_offset=row.received_bytes)


def store_chunk(session: Session, principal: Principal, image_id: str, chunk: Chunk) -> ImageRow:
    """
    The chunk's bytes, which must stand in the store by now, count; after the last one the content waits to be checked. Raises NotFound,
    NotUploading, WrongOffset when the image has changed meanwhile.
    """
    row = repository.advance(session, image_id, chunk.span.start_bytes, chunk.span.end_bytes)
    if row is None:
        _check_offset(_fillable(session, principal, image_id), chunk)
        raise NotFound
    if row.state == "verifying":
        tell(session, row, "uploading")
    return row


def get_content(session: Session, principal: Principal, image_id: str) -> Content:
    """
    What is needed to serve the image's content. Raises NotFound, NotReady.
    """
    row = get_image(session, principal, image_id)
    return content_of(row)


def use_image(session: Session, principal: Principal, image_id: str) -> Content:
    """
    The content of a ready image that the principal may see, for a deployment that is written in this transaction and that a
    `CountUses` counts from then on: until it ends, nobody deletes the image. Raises NotFound, NotReady.
    """
    repository.lock_uses(session, image_id, alone=False)
    return get_content(session, principal, image_id)


def use_disk_image(session: Session, principal: Principal, image_id: str, field: str) -> str:
    """
    The image may be written to disks by what is written in this transaction, and is used by it from then on; its format is returned, which
    not everybody takes. Raises NotReady, and Invalid, naming the field, for one that the principal does not see or that is none of a disk.
    """
    try:
        use_image(session, principal, image_id)
    except NotFound:
        words = f"There is no image {image_id[:60]}."
        raise Invalid(words, errors=[FieldError(field, "unknown_image", words)]) from None
    row = get_image(session, principal, image_id)
    if row.format not in DISKS:
        words = f"An image of the format {row.format} is no image of a disk; {' and '.join(DISKS)} are."
        raise Invalid(words, errors=[FieldError(field, NOT_INSTALLABLE, words)])
    return row.format


def not_taken(image_format: str, fields: Sequence[str]) -> Invalid:
    """
    What to say where nobody writes images of this format, named in these fields, to disks.
    """
    words = f"Images of the format {image_format} are not written to these disks; convert it with `qemu-img convert -O raw`."
    return Invalid(words, errors=[FieldError(field, NOT_INSTALLABLE, words) for field in fields])


def formats_of(session: Session, image_ids: Collection[str]) -> dict[str, str]:
    """
    The formats of the images by id, in one query; what the session does not see is missing.
    """
    return repository.formats_of(session, image_ids) if image_ids else {}


def get_deployed_content(session: Session, image_id: str) -> Content:
    """
    The content of an image that a deployment uses, though the image be deleted meanwhile. For sessions that see everything. Raises
    NotFound for what was never checked, or found wrong.
    """
    row = repository.find_any(session, image_id)
    if row is None or row.actual_sha256 != row.sha256:
        raise NotFound
    return Content(row.id, row.size_bytes, row.actual_sha256)


def content_of(row: ImageRow) -> Content:
    """
    What is needed to serve the image's content. Raises NotReady for an image that was not checked.
    """
    if row.state != "ready":
        words = f"The image is {row.state}: {row.received_bytes} of {row.size_bytes} bytes are here."
        raise NotReady(words, state=row.state, received_bytes=row.received_bytes, size_bytes=row.size_bytes)
    return Content(row.id, row.size_bytes, row.actual_sha256)


# Books


def tell(session: Session, row: ImageRow, before: str) -> None:
    """
    The image's move from this state is on record, for its owner to hear of.
    """
    data = {"state": row.state, "before": before, "reason": row.reason}
    record(
        session,
        [Event(f"image.{row.state}", "image", row.id, row.tenant_id, data=data)],
        [Move("image", row.id, before, row.state, row.reason, row.tenant_id)],
    )


def held_bytes(session: Session) -> Iterator[tuple[quotas.Chain, quotas.Need]]:
    """
    What `quotas.service.recount` compares the counters of images with.
    """
    for row in repository.held(session):
        yield _chain(row), _need(row)


def _chain(row: ImageRow) -> quotas.Chain:
    return quotas.Chain(row.reseller_id, row.tenant_id)


def _need(row: ImageRow) -> quotas.Need:
    return quotas.Need("image_bytes", row.size_bytes)
