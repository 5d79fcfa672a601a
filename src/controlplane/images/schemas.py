"""
Images on the wire.
"""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, Field, StringConstraints

from controlplane.images.models import ImageRow
from controlplane.images.states import Arch, Changes, Format, NewImage, Visibility
from controlplane.web.schemas import Body, GivenMoment, Issue, Labels, Moment, Name, Out, Status, check_text

LARGEST_BYTES = 2**53 - 1
SHA256 = "b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c"

PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["aW1nXzAx"])
]
StateFilter = Annotated[
    Literal["uploading", "verifying", "ready", "failed"] | None, Query(description="Only in this state.", examples=["ready"])
]
VisibilityFilter = Annotated[Visibility | None, Query(description="Only what these may use.", examples=["public"])]
ArchFilter = Annotated[Arch | None, Query(description="Only for these machines.", examples=["x86_64"])]
FamilyFilter = Annotated[
    str | None,
    Query(min_length=1, max_length=32, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", description="Only of this operating system."),
]
LabelFilter = Annotated[
    list[Annotated[str, StringConstraints(max_length=320), AfterValidator(check_text)]] | None,
    Query(max_length=8, description="Only with this label, as `key:value`.", examples=[["team:vision"]]),
]
CreatedAfter = Annotated[GivenMoment | None, Query(description="Only images made later.")]
TenantFilter = Annotated[
    str | None,
    Query(min_length=1, max_length=40, pattern=r"^[a-z0-9_]+$", description="Only of this tenant."),
]
Family = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]
Version = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class OperatingSystem(Body):
    """
    What runs when the image is booted.
    """

    family: Family = Field(description="The distribution, in lower case.", examples=["ubuntu"])
    version: Version = Field(description="Its version, as its makers write it.", examples=["24.04"])


class ImageSpec(Body):
    """
    What the image is. It never changes: to replace an image, make another one.
    """

    os: OperatingSystem = Field(description="What runs when it is booted.")
    arch: Arch = Field(description="Which machines can run it.", examples=["x86_64"])
    format: Format = Field(
        description="What the content is: a disk as it is, a QEMU disk, a bootable medium, or a tar of kernel and initramfs.",
        examples=["qcow2"],
    )
    size_bytes: int = Field(ge=1, le=LARGEST_BYTES, description="Size of the content.", examples=[2361393152])
    sha256: Digest = Field(description="SHA-256 of the content, 64 lower-case hexadecimal digits.", examples=[SHA256])


class ImageCreate(Body):
    """
    A new image; its content follows.
    """

    name: Name = Field(description="Unique among your images.", examples=["ubuntu-24-04-cuda"])
    labels: Labels = Field(default={}, description="Free key-value pairs.")
    spec: ImageSpec = Field(description="What it is.")

    def plain(self, visibility: Visibility = "tenant") -> NewImage:
        """
        The image as the room knows it.
        """
        spec = self.spec
        return NewImage(
            name=self.name,
            os_family=spec.os.family,
            os_version=spec.os.version,
            arch=spec.arch,
            format=spec.format,
            size_bytes=spec.size_bytes,
            sha256=spec.sha256,
            visibility=visibility,
            labels=self.labels,
        )


class AnyImageCreate(ImageCreate):
    """
    A new image of the operator's; its content follows.
    """

    visibility: Visibility = Field(
        default="public", description="public: every tenant, once it is ready; tenant: the operator alone.", examples=["public"]
    )


class ImageUpdate(Body):
    """
    What can be changed about an image; what is left out stays.
    """

    name: Name | None = Field(default=None, description="The new name.", examples=["ubuntu-24-04-old"])
    labels: Labels | None = Field(default=None, description="The new labels, all of them.")

    def changes(self) -> Changes:
        """
        The change as the room knows it.
        """
        return Changes(self.name, self.labels)


class AnyImageUpdate(ImageUpdate):
    """
    What an operator can change about an image; what is left out stays.
    """

    visibility: Visibility | None = Field(
        default=None, description="public: every tenant, once it is ready; tenant: its owner alone.", examples=["public"]
    )

    def changes(self) -> Changes:
        """
        The change as the room knows it.
        """
        return Changes(self.name, self.labels, self.visibility)


class ImageStatus(Status):
    """
    Where an image stands.
    """

    received_bytes: int = Field(description="How much of the content is here: the next chunk begins there.", examples=[67108864])
    actual_sha256: str | None = Field(description="Digest of the content as we read it; null before that.", examples=[SHA256])


class ImageOut(Out):
    """
    An operating system as a file.
    """

    id: str = Field(description="Its id.", examples=["img_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Unique among its owner's images.", examples=["ubuntu-24-04-cuda"])
    labels: dict[str, str] = Field(description="Free key-value pairs.", examples=[{"team": "vision"}])
    visibility: Visibility = Field(
        description="tenant: its owner alone; public: every tenant, once it is ready.", examples=["tenant"]
    )
    owned: bool = Field(description="Whether it is yours to change.", examples=[True])
    spec: ImageSpec = Field(description="What it is.")
    status: ImageStatus = Field(description="Where it stands.")
    created_at: Moment = Field(description="When it was made.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it last changed.", examples=["2026-03-01T10:00:00Z"])
    version: int = Field(description="Send it as If-Match to change or delete it; a chunk does not raise it.", examples=[1])

    @classmethod
    def of(cls, row: ImageRow, tenant_id: str) -> "ImageOut":
        """
        The image as a tenant sees it.
        """
        return cls(**_shared(row), owned=row.tenant_id == tenant_id)


class AnyImageOut(ImageOut):
    """
    An operating system as a file, as the operator sees it.
    """

    tenant_id: str | None = Field(
        description="Whose it is; null for the operator's own.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )

    @classmethod
    def any_of(cls, row: ImageRow) -> "AnyImageOut":
        """
        The image as the operator sees it.
        """
        return cls(**_shared(row), owned=row.tenant_id is None, tenant_id=row.tenant_id)


def _shared(row: ImageRow) -> dict[str, Any]:
    spec = {
        "os": {"family": row.os_family, "version": row.os_version},
        "arch": row.arch,
        "format": row.format,
        "size_bytes": row.size_bytes,
        "sha256": row.sha256,
    }
    code = _issue(row)
    status = ImageStatus(
        state=row.state,
        reason=row.reason,
        since=row.state_since,
        deadline=row.deadline_at,
        issues=[Issue(code=code, message=row.reason)] if code else [],
        received_bytes=row.received_bytes,
        actual_sha256=row.actual_sha256 or None,
    )
    return {
        "id": row.id,
        "name": row.name,
        "labels": row.labels,
        "visibility": row.visibility,
        "spec": ImageSpec.model_validate(spec),
        "status": status,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "version": row.version,
    }


def _issue(row: ImageRow) -> str:
    """
    Why the image is of no use; empty where it is not so. One with the declared digest can only have failed for its format.
    """
    if row.state != "failed":
        return ""
    return "format_mismatch" if row.actual_sha256 == row.sha256 else "content_mismatch"
