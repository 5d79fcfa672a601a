"""
Images and their contents for tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

import httpx
from sqlalchemy import Engine

from controlplane.images import service as images
from controlplane.images.states import NewImage
from controlplane.images.store import Depot, ImageStore
from controlplane.kit.access import Principal
from controlplane.kit.db import in_transaction
from controlplane.web.ranges import Chunk, Span

CHUNK_BYTES = 32 * 1024 * 1024
OCTETS = {"Content-Type": "application/octet-stream"}


def content_of(size_bytes: int, seed: str = "image") -> bytes:
    """
    So many bytes that no two seeds share.
    """
    return hashlib.shake_128(seed.encode()).digest(size_bytes)


def declared(content: bytes, name: str = "ubuntu", **more: Any) -> dict[str, Any]:
    """
    The body that declares an image of this content; `more` stands in its spec.
    """
    spec = {
        "os": {"family": "ubuntu", "version": "24.04"},
        "arch": "x86_64",
        "format": "raw",
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return {"name": name, "spec": spec | more}


def new_image(content: bytes, name: str) -> NewImage:
    """
    The declaration of this content, as the room knows it.
    """
    return NewImage(name, "ubuntu", "24.04", "x86_64", "raw", len(content), hashlib.sha256(content).hexdigest())


def filled_image(engine: Engine, store: ImageStore, who: Principal, content: bytes, name: str) -> str:
    """
    The id of an image whose content is here and waits to be checked.
    """
    depot, chunk = Depot(store, 2**40, 2**40), Chunk(Span(0, len(content)), len(content))
    new = new_image(content, name)
    row = in_transaction(engine, who.wall, lambda s: images.create_image(s, who, new, max_image_bytes=depot.max_image_bytes))
    with closing(in_transaction(engine, who.wall, lambda s: images.begin_chunk(s, who, row.id, chunk, depot))) as sink:
        sink.write(content)
        sink.settle()
        in_transaction(engine, who.wall, lambda s: images.store_chunk(s, who, row.id, chunk))
    return row.id


def chunk_headers(start_bytes: int, end_bytes: int, total_bytes: int) -> dict[str, str]:
    """
    The headers of a chunk `[start_bytes, end_bytes)`.
    """
    return {**OCTETS, "Content-Range": f"bytes {start_bytes}-{end_bytes - 1}/{total_bytes}"}


def send_chunk(client: httpx.Client, path: str, content: bytes, start_bytes: int, end_bytes: int) -> httpx.Response:
    """
    The answer to one chunk of the content.
    """
    body = content[start_bytes:end_bytes]
    return client.put(f"{path}/content", content=body, headers=chunk_headers(start_bytes, end_bytes, len(content)))


def uploaded(
    client: httpx.Client, content: bytes, name: str = "ubuntu", *, root: str = "/v1/images", **more: Any
) -> dict[str, Any]:
    """
    The image with all of its content, checked: the API's keeper must run.
    """
    made = client.post(root, json=declared(content, name) | more).raise_for_status().json()
    path = f"{root}/{made['id']}"
    for start in range(0, len(content), CHUNK_BYTES):
        send_chunk(client, path, content, start, min(start + CHUNK_BYTES, len(content))).raise_for_status()
    return settled(client, path)


def settled(client: httpx.Client, path: str) -> dict[str, Any]:
    """
    The image when it is not being checked any more.
    """
    body: dict[str, Any] = client.get(path, params={"wait_s": 20}).raise_for_status().json()
    return body


def pieces(content: bytes, cuts: list[int]) -> Iterator[tuple[int, int]]:
    """
    The content's parts between the cuts, as `[start, end)`.
    """
    marks = sorted({0, len(content), *(one % len(content) for one in cuts)})
    yield from pairwise(marks)
