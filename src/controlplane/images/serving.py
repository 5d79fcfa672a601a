"""
How a content answers a GET. Knows no framework, so that whatever hands images to machines can use it.

Source: RFC 9110, sections 8.8.3 (ETag), 13.1.2 (If-None-Match), 13.1.5 (If-Range), 14.2 (Range), 15.3.7 (206), 15.5.17 (416); RFC
9530, section 3 (Repr-Digest).
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controlplane.images.errors import StoreFailed
from controlplane.images.store import ImageStore
from controlplane.web.ranges import Span, parse_wanted


@dataclass(frozen=True, slots=True)
class Content:
    """
    What is known of a checked content.
    """

    image_id: str
    """Its name in the store."""
    size_bytes: int
    """Its size."""
    sha256: str
    """Its digest, 64 hexadecimal digits."""

    @property
    def etag(self) -> str:
        """
        The strong validator of its bytes.
        """
        return f'"{self.sha256}"'


@dataclass(frozen=True, slots=True)
class Served:
    """
    An answer whose body is read as it is sent.
    """

    status: int
    """200, 206, 304 or 416."""
    headers: Mapping[str, str]
    """With Content-Length where there is a body."""
    pieces: Iterator[bytes]
    """The body; empty for 304 and 416."""


@dataclass(frozen=True, slots=True)
class Asked:
    """
    The headers of the request that decide the answer; None: not sent.
    """

    wanted: str | None = None
    """Range."""
    if_range: str | None = None
    """If-Range."""
    if_none_match: str | None = None
    """If-None-Match."""


def serve(store: ImageStore, content: Content, asked: Asked) -> Served:
    """
    The answer to a GET or HEAD of the content. Several ranges at once are answered with the whole, as a server may. Raises StoreFailed
    when the store does not hold all of it: then nothing was sent yet.
    """
    headers = {"ETag": content.etag, "Accept-Ranges": "bytes"}
    if asked.if_none_match is not None and _matches(asked.if_none_match, content.etag):
        return Served(304, headers, iter(()))
    there = store.size_bytes(content.image_id)
    if there != content.size_bytes:
        raise StoreFailed("The content of the image is not in the store.")
    heeded = asked.if_range is None or asked.if_range.strip() == content.etag
    part = parse_wanted(asked.wanted, content.size_bytes) if heeded else None
    if part is not None and part.length_bytes == 0:
        return Served(416, headers | {"Content-Range": f"bytes */{content.size_bytes}"}, iter(()))
    span = part or Span(0, content.size_bytes)
    digest = base64.b64encode(bytes.fromhex(content.sha256)).decode()
    headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(span.length_bytes)}
    headers |= {"Repr-Digest": f"sha-256=:{digest}:"}
    pieces = store.pieces(content.image_id, span)
    if part is None:
        return Served(200, headers, pieces)
    return Served(206, headers | {"Content-Range": f"bytes {span.start_bytes}-{span.end_bytes - 1}/{content.size_bytes}"}, pieces)


def _matches(given: str, etag: str) -> bool:
    return given.strip() == "*" or etag in {one.strip().removeprefix("W/") for one in given.split(",")}
