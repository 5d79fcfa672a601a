"""
Images over HTTP: a tenant's own and the public ones, and below /v1/admin all of them for operators.
"""

from collections.abc import Mapping

from fastapi import APIRouter

from controlplane.images import service
from controlplane.images.schemas import (
    AnyImageCreate,
    AnyImageOut,
    AnyImageUpdate,
    ArchFilter,
    CreatedAfter,
    FamilyFilter,
    ImageCreate,
    ImageOut,
    ImageUpdate,
    LabelFilter,
    PageLimit,
    PageToken,
    StateFilter,
    TenantFilter,
    VisibilityFilter,
)
from controlplane.images.service import Asked, ImageRow, Incoming, Served
from controlplane.images.states import Changes, ImageFilter, NewImage
from controlplane.images.store import Depot
from controlplane.kit.errors import Unavailable
from controlplane.kit.paging import PageAsk
from controlplane.web.call import Call, Reply
from controlplane.web.endpoint import endpoint
from controlplane.web.filters import label_filter
from controlplane.web.ranges import parse_chunk, refused
from controlplane.web.schemas import ListOf
from controlplane.web.transfers import download_endpoint, upload_endpoint

router = APIRouter(tags=["images"])
IMAGES, ANY_IMAGES = "/v1/images", "/v1/admin/images"
IMAGE, ANY_IMAGE = IMAGES + "/{image_id}", ANY_IMAGES + "/{image_id}"
CONTENT, ANY_CONTENT = IMAGE + "/content", ANY_IMAGE + "/content"
UPLOADS = (r"/v1/images/[^/]+/content", r"/v1/admin/images/[^/]+/content")
"""Paths whose bodies the edge leaves to the endpoint."""
CHECKED = frozenset({"verifying"})
PLACE = {"Content-Range": "The chunk's place in the whole, for example `bytes 0-67108863/2361393152`."}
PART = {
    "Range": "The part that is wanted, for example `bytes=0-1048575`; several parts at once are answered with the whole.",
    "If-Range": "The ETag of the content that the part must belong to; for another the whole is sent.",
    "If-None-Match": "The ETag of a content that the caller has; nothing is sent when it is this one.",
}
TOO_LARGE = "The chunk is larger than this installation takes."


# What tenants see


@endpoint(
    router,
    "POST",
    IMAGES,
    permission="images:create",
    status=201,
    answer=ImageOut,
    summary="Declare an image",
    dry_run=True,
)
def create_image(call: Call, body: ImageCreate) -> Reply:
    """
    The image waits for its content, and its bytes count against the tenant's quota. Send the content in chunks to
    `/v1/images/{image_id}/content`; when the last byte is here, its SHA-256 is computed, and the image is `ready` if it is the one
    declared, otherwise `failed`.
    """
    row = _created(call, body.plain())
    return Reply(ImageOut.of(row, call.principal.tenant_id), headers={"Location": f"{IMAGES}/{row.id}"}, etag=row.version)


@endpoint(router, "GET", IMAGES, permission="images:read", answer=ListOf[ImageOut], summary="List images", works_suspended=True)
def list_images(
    call: Call,
    limit: PageLimit = 50,
    page_token: PageToken = None,
    state: StateFilter = None,
    visibility: VisibilityFilter = None,
    os_family: FamilyFilter = None,
    arch: ArchFilter = None,
    label: LabelFilter = None,
    created_after: CreatedAfter = None,
) -> ListOf[ImageOut]:
    """
    The tenant's images and those that are public and ready, oldest first; new ones only ever appear at the end.
    """
    wanted = ImageFilter(state, visibility, os_family, arch, label_filter(label), created_after)
    page = service.list_images(call.session, call.principal, wanted, PageAsk(limit, page_token))
    items = [ImageOut.of(row, call.principal.tenant_id) for row in page.items]
    return ListOf[ImageOut](items=items, next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    IMAGE,
    permission="images:read",
    answer=ImageOut,
    summary="Read an image",
    works_suspended=True,
    waits=CHECKED,
)
def get_image(call: Call, image_id: str) -> Reply:
    """
    The image: where it stands, how much of its content is here, and its digests.
    """
    row = service.get_image(call.session, call.principal, image_id)
    return _shown(row, ImageOut.of(row, call.principal.tenant_id))


@endpoint(router, "PATCH", IMAGE, permission="images:update", answer=ImageOut, summary="Change an image", problems=(409, 412, 428))
def update_image(call: Call, image_id: str, body: ImageUpdate) -> Reply:
    """
    The image has this name and these labels. What it is never changes, and only operators make images public.
    """
    row = _updated(call, image_id, body.changes())
    return _shown(row, ImageOut.of(row, call.principal.tenant_id))


@endpoint(router, "DELETE", IMAGE, permission="images:delete", status=204, summary="Delete an image", problems=(409, 412, 428))
def delete_image(call: Call, image_id: str) -> Reply:
    """
    The image is gone, whatever its state, and its bytes are given back to the quota. One that a cluster uses is not: 409 `image_in_use`.
    """
    return _deleted(call, image_id)


def _begin(call: Call, headers: Mapping[str, str], image_id: str) -> Incoming:
    place = headers.get("content-range")
    if place is None:
        raise refused("missing", "Send Content-Range with the chunk's place, for example `bytes 0-67108863/2361393152`.")
    return service.begin_chunk(call.session, call.principal, image_id, parse_chunk(place), depot_of(call))


@upload_endpoint(
    router,
    CONTENT,
    begin=_begin,
    permission="images:create",
    audience="tenant",
    answer=ImageOut,
    summary="Send a chunk of an image's content",
    headers=PLACE,
    too_large=TOO_LARGE,
)
def upload_image(call: Call, sink: Incoming, image_id: str) -> Reply:
    """
    The bytes of the body stand at the place that Content-Range names, and count. A chunk must begin where the content ends: otherwise
    the answer is 409 `wrong_offset` with `expected_offset`, and that is where to go on, also after a break. A body that breaks off
    counts for nothing; 409 `content_busy` means that another request is sending just now.
    """
    row = _filled(call, sink, image_id)
    return _shown(row, ImageOut.of(row, call.principal.tenant_id))


@download_endpoint(router, CONTENT, permission="images:read", audience="tenant", summary="Read an image's content", headers=PART)
def download_image(call: Call, headers: Mapping[str, str], image_id: str) -> Served:
    """
    The content of a ready image, whole or the part that Range names. ETag is its SHA-256. 409 `image_not_ready` tells how much is here.
    """
    return _served(call, headers, image_id)


# What operators see


@endpoint(
    router,
    "POST",
    ANY_IMAGES,
    permission="images:create",
    audience="operator",
    status=201,
    answer=AnyImageOut,
    summary="Declare an image of the operator's",
    dry_run=True,
)
def create_operator_image(call: Call, body: AnyImageCreate) -> Reply:
    """
    The image waits for its content. A public one is shown to every tenant once it is ready.
    """
    row = _created(call, body.plain(body.visibility))
    return Reply(AnyImageOut.any_of(row), headers={"Location": f"{ANY_IMAGES}/{row.id}"}, etag=row.version)


@endpoint(
    router, "GET", ANY_IMAGES, permission="images:read", audience="operator", answer=ListOf[AnyImageOut], summary="List all images"
)
def list_all_images(
    call: Call,
    limit: PageLimit = 50,
    page_token: PageToken = None,
    state: StateFilter = None,
    visibility: VisibilityFilter = None,
    os_family: FamilyFilter = None,
    arch: ArchFilter = None,
    label: LabelFilter = None,
    created_after: CreatedAfter = None,
    tenant_id: TenantFilter = None,
) -> ListOf[AnyImageOut]:
    """
    The operator's images and those of all tenants, oldest first.
    """
    wanted = ImageFilter(state, visibility, os_family, arch, label_filter(label), created_after, tenant_id)
    page = service.list_images(call.session, call.principal, wanted, PageAsk(limit, page_token)).map(AnyImageOut.any_of)
    return ListOf[AnyImageOut](items=list(page.items), next_page_token=page.next_page_token)


@endpoint(
    router,
    "GET",
    ANY_IMAGE,
    permission="images:read",
    audience="operator",
    answer=AnyImageOut,
    summary="Read any image",
    waits=CHECKED,
)
def get_any_image(call: Call, image_id: str) -> Reply:
    """
    The image with its owner: where it stands, how much of its content is here, and its digests.
    """
    row = service.get_image(call.session, call.principal, image_id)
    return _shown(row, AnyImageOut.any_of(row))


@endpoint(
    router,
    "PATCH",
    ANY_IMAGE,
    permission="images:update",
    audience="operator",
    answer=AnyImageOut,
    summary="Change any image",
    problems=(409, 412, 428),
)
def update_any_image(call: Call, image_id: str, body: AnyImageUpdate) -> Reply:
    """
    The image has this name, these labels and this visibility. A tenant's image that is made public is shown to every tenant.
    """
    row = _updated(call, image_id, body.changes())
    return _shown(row, AnyImageOut.any_of(row))


@endpoint(
    router,
    "DELETE",
    ANY_IMAGE,
    permission="images:delete",
    audience="operator",
    status=204,
    summary="Delete any image",
    problems=(409, 412, 428),
)
def delete_any_image(call: Call, image_id: str) -> Reply:
    """
    The image is gone, whosever it was and whatever its state. One that a cluster uses is not: 409 `image_in_use`.
    """
    return _deleted(call, image_id)


@upload_endpoint(
    router,
    ANY_CONTENT,
    begin=_begin,
    permission="images:create",
    audience="operator",
    answer=AnyImageOut,
    summary="Send a chunk of an operator's image",
    headers=PLACE,
    too_large=TOO_LARGE,
)
def upload_operator_image(call: Call, sink: Incoming, image_id: str) -> Reply:
    """
    The bytes of the body stand at the place that Content-Range names, and count; as for tenants. Only the operator's own images.
    """
    row = _filled(call, sink, image_id)
    return _shown(row, AnyImageOut.any_of(row))


@download_endpoint(
    router, ANY_CONTENT, permission="images:read", audience="operator", summary="Read any image's content", headers=PART
)
def download_any_image(call: Call, headers: Mapping[str, str], image_id: str) -> Served:
    """
    The content of a ready image, whole or the part that Range names. ETag is its SHA-256. 409 `image_not_ready` tells how much is here.
    """
    return _served(call, headers, image_id)


# What both do


def depot_of(call: Call) -> Depot:
    """
    Where contents are kept. Raises Unavailable where this installation keeps none.
    """
    if call.images is None:
        raise Unavailable("This installation keeps no images.", code="no_image_store")
    assert isinstance(call.images, Depot)
    return call.images


def _created(call: Call, new: NewImage) -> ImageRow:
    row = service.create_image(call.session, call.principal, new, max_image_bytes=depot_of(call).max_image_bytes)
    call.audit_target = row.id
    return row


def _shown(row: ImageRow, body: ImageOut) -> Reply:
    return Reply(body, headers={"Upload-Offset": str(row.received_bytes)}, etag=row.version)


def _updated(call: Call, image_id: str, changes: Changes) -> ImageRow:
    call.audit_target = image_id
    return service.update_image(call.session, call.principal, image_id, changes, call.check_version)


def _deleted(call: Call, image_id: str) -> Reply:
    call.audit_target = image_id
    service.delete_image(call.session, call.principal, image_id, call.check_version)
    return Reply(None)


def _filled(call: Call, sink: Incoming, image_id: str) -> ImageRow:
    span = sink.chunk.span
    call.audit_target = image_id
    call.audit_detail["bytes"] = [span.start_bytes, span.end_bytes]
    row = service.store_chunk(call.session, call.principal, image_id, sink.chunk)
    if row.state in CHECKED:
        call.after_commit.append(depot_of(call).wake)
    return row


def _served(call: Call, headers: Mapping[str, str], image_id: str) -> Served:
    asked = Asked(headers.get("range"), headers.get("if-range"), headers.get("if-none-match"))
    return service.serve(depot_of(call).store, service.get_content(call.session, call.principal, image_id), asked)
