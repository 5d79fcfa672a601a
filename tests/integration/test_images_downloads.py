"""
Contents on their way out: whole and in parts, as RFC 9110 says, for as long as the credential holds.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.images.errors import StoreFailed
from controlplane.images.serving import Asked, Content, serve
from controlplane.images.store import LocalImageStore
from controlplane.kit.access import Principal
from controlplane.kit.errors import Unauthenticated
from controlplane.kit.ids import new_id
from controlplane.web.transfers import TransferTempo
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.images import content_of, declared, uploaded
from tests.factories.serving import Served, serving

CONTENT = content_of(10_000)
LARGE = content_of(24 * 2**20, "large")
ETAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where contents lie."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def tree(migrated: Database) -> Tree:
    """Two resellers with a tenant each."""
    migrated.reset()
    return make_tree(migrated.engine)


@pytest.fixture(scope="module")
def served(migrated: Database, tree: Tree, folder: Path) -> Iterator[Served]:
    """The application, which looks at the credential after each piece."""
    del tree
    with serving(migrated, image_dir=folder) as one:
        one.app.state.transfer_tempo = TransferTempo(recheck_s=0.0)
        yield one


@pytest.fixture(scope="module")
def owner(served: Served, tree: Tree) -> Iterator[httpx.Client]:
    """The left tenant's owner."""
    with served.client(tree.left.owner_key) as client:
        yield client


@pytest.fixture(scope="module")
def path(owner: httpx.Client) -> str:
    """Where the content of a ready image is read."""
    return f"/v1/images/{uploaded(owner, CONTENT)['id']}/content"


def test_the_whole_content_is_served_with_its_digest(owner: httpx.Client, path: str) -> None:
    """Length, validator and digest come with it, and a HEAD tells the same without a body."""
    answer, head = owner.get(path), owner.head(path)
    digest = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
    assert (answer.status_code, answer.content) == (200, CONTENT)
    for one in (answer, head):
        assert one.headers["content-length"] == str(len(CONTENT))
        assert one.headers["content-type"] == "application/octet-stream"
        assert (one.headers["etag"], one.headers["accept-ranges"]) == (ETAG, "bytes")
        assert one.headers["repr-digest"] == f"sha-256=:{digest}:"
        assert "no-store" not in one.headers["cache-control"]
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("headers", "status", "start", "end"),
    [
        ({"Range": "bytes=0-0"}, 206, 0, 1),
        ({"Range": "bytes=9000-"}, 206, 9000, 10_000),
        ({"Range": "bytes=-1"}, 206, 9999, 10_000),
        ({"Range": "bytes=0-99999"}, 206, 0, 10_000),
        ({"Range": "bytes=5-9", "If-Range": ETAG}, 206, 5, 10),
        ({"Range": "bytes=5-9", "If-Range": f"W/{ETAG}"}, 200, 0, 10_000),
        ({"Range": "bytes=5-9", "If-Range": '"other"'}, 200, 0, 10_000),
        ({"Range": "bytes=5-9", "If-Range": "Sat, 29 Oct 1994 19:43:31 GMT"}, 200, 0, 10_000),
        ({"Range": "bytes=0-1,5-9"}, 200, 0, 10_000),
        ({"Range": "pages=1-2"}, 200, 0, 10_000),
        ({"If-None-Match": '"other"'}, 200, 0, 10_000),
    ],
)
def test_a_part_is_served_as_asked(
    owner: httpx.Client, path: str, headers: dict[str, str], status: int, start: int, end: int
) -> None:
    """A range is 206 with its place; one that need not be heeded, or of another content, is the whole."""
    for method in ("GET", "HEAD"):
        answer = owner.request(method, path, headers=headers)
        assert (answer.status_code, answer.headers["content-length"]) == (status, str(end - start))
        place = f"bytes {start}-{end - 1}/{len(CONTENT)}" if status == 206 else None
        assert answer.headers.get("content-range") == place
        assert answer.content == (CONTENT[start:end] if method == "GET" else b"")


def test_a_part_that_is_not_there_is_a_problem(owner: httpx.Client, path: str) -> None:
    """416 names the size of the whole."""
    answer = owner.get(path, headers={"Range": "bytes=10000-"})
    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */10000"


@pytest.mark.parametrize("given_", [ETAG, f"W/{ETAG}", f'"a", {ETAG}', "*"])
def test_who_has_it_is_sent_nothing(owner: httpx.Client, path: str, given_: str) -> None:
    """304 with the validator and without a body."""
    answer = owner.get(path, headers={"If-None-Match": given_, "Range": "bytes=0-5"})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", ETAG)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(CONTENT)), max_size=6), last=st.sampled_from(["", str(len(CONTENT) - 1)]))
def test_any_parts_make_the_whole(path: str, folder: Path, cuts: list[int], last: str) -> None:
    """Whoever fetches part after part, in any cut, has the content; each says where it belongs."""
    store = LocalImageStore(folder)
    content = Content(path.split("/")[3], len(CONTENT), ETAG.strip('"'))
    marks, had = sorted({0, len(CONTENT), *cuts}), b""
    for start, end in pairwise(marks):
        wanted = f"bytes={start}-{last if end == len(CONTENT) else end - 1}"
        found = serve(store, content, Asked(wanted=wanted, if_range=content.etag))
        part = b"".join(found.pieces)
        assert (found.status, found.headers["Content-Length"]) == (206, str(len(part)))
        assert found.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"
        had += part
    assert had == CONTENT


def test_what_is_not_ready_is_not_served(owner: httpx.Client) -> None:
    """The answer tells how much is here."""
    made = owner.post("/v1/images", json=declared(CONTENT, "waiting")).json()
    answer = owner.get(f"/v1/images/{made['id']}/content")
    told = answer.json()
    assert (answer.status_code, told["code"], told["received_bytes"], told["size_bytes"]) == (409, "image_not_ready", 0, 10_000)


def test_a_content_that_is_missing_is_not_begun(owner: httpx.Client, folder: Path) -> None:
    """Where the store lost a content, or part of it, the answer is 503 and not an empty success."""
    image = uploaded(owner, content_of(50, "lost"), "lost")
    file = folder / f"{image['id']}.image"
    for damage in (lambda: file.write_bytes(b"x"), file.unlink):
        damage()
        answer = owner.get(f"/v1/images/{image['id']}/content")
        assert (answer.status_code, answer.json()["code"]) == (503, "image_store_failed")
    with pytest.raises(StoreFailed):
        serve(LocalImageStore(folder), Content(new_id("img"), 5, "0" * 64), Asked())


def test_a_content_is_read_to_its_end_though_it_is_removed(served: Served, owner: httpx.Client, folder: Path) -> None:
    """A machine that has begun to read gets all of it."""
    image = uploaded(owner, LARGE[: 8 * 2**20], "leaving")
    with owner.stream("GET", f"/v1/images/{image['id']}/content") as answer:
        stream = answer.iter_bytes()
        had = bytearray(next(stream))
        assert LocalImageStore(folder).remove(image["id"])
        for piece in stream:
            had += piece
    assert bytes(had) == LARGE[: 8 * 2**20]


class Until:
    """Accepts credentials as another does, until it is told not to."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.over = False

    def authenticate(self, authorization: str | None, client: Any, *, reseller_id: str | None = None) -> Principal:
        """The principal, or Unauthenticated."""
        if self.over:
            raise Unauthenticated("No accepted credential.")
        found: Principal = self.inner.authenticate(authorization, client, reseller_id=reseller_id)
        return found


def test_a_revoked_credential_ends_a_download(served: Served, owner: httpx.Client) -> None:
    """The rest is not sent; the caller sees that it has not all of it."""
    image = uploaded(owner, LARGE, "revoked")
    edge = served.app.state.edge
    gate = Until(edge.authenticator)
    served.app.state.edge = dataclasses.replace(edge, authenticator=gate)
    had = bytearray()
    try:
        with owner.stream("GET", f"/v1/images/{image['id']}/content") as answer:
            stream = answer.iter_bytes()
            had += next(stream)
            gate.over = True
            with pytest.raises(httpx.RemoteProtocolError):
                had.extend(chain.from_iterable(stream))
    finally:
        served.app.state.edge = edge
    assert 0 < len(had) < len(LARGE)
    assert owner.get(f"/v1/images/{image['id']}/content").content == LARGE
