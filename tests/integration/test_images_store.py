"""
The local image store: one holder at a time, no name of a caller's, no error of the operating system's.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from controlplane.images.errors import ContentHeld, StoreFailed, StoreFull
from controlplane.images.store import PIECE_BYTES, Held, LocalImageStore
from controlplane.kit.ids import new_id
from controlplane.web.ranges import Span
from tests.factories.images import content_of


@pytest.fixture
def store(tmp_path: Path) -> LocalImageStore:
    """A store in a directory that is not there yet."""
    return LocalImageStore(tmp_path / "deep" / "images")


@contextmanager
def holding(store: LocalImageStore, image_id: str, *, create: bool = True) -> Iterator[Held]:
    """The content, held for the block."""
    held = store.hold(image_id, create=create)
    assert held is not None
    with closing(held):
        yield held


def test_what_is_written_is_read(store: LocalImageStore) -> None:
    """Bytes stand where they were put, in any order and again; parts of any size come back."""
    image_id, content = new_id("img"), content_of(2 * PIECE_BYTES + 77)
    with holding(store, image_id) as held:
        held.write(PIECE_BYTES, content[PIECE_BYTES:])
        held.write(0, b"\0" * PIECE_BYTES)
        held.write(0, content[:PIECE_BYTES])
        held.settle()
        assert (held.size_bytes(), held.read(5, 10)) == (len(content), content[5:15])
    assert store.size_bytes(image_id) == len(content)
    pieces = list(store.pieces(image_id, Span(3, len(content))))
    assert b"".join(pieces) == content[3:]
    assert max(map(len, pieces)) == PIECE_BYTES
    assert list(store.image_ids()) == [image_id]


def test_one_holds_it_at_a_time(store: LocalImageStore) -> None:
    """A second holder is refused until the first lets go, and so is the remover; other contents are free."""
    image_id = new_id("img")
    with holding(store, image_id):
        with pytest.raises(ContentHeld):
            store.hold(image_id, create=False)
        with pytest.raises(ContentHeld):
            store.remove(image_id)
        with holding(store, new_id("img")):
            pass
    with holding(store, image_id):
        pass


def test_removing_is_final_and_may_be_repeated(store: LocalImageStore) -> None:
    """What is read meanwhile is read to its end; afterwards there is nothing, and nothing is made by looking."""
    image_id, content = new_id("img"), content_of(PIECE_BYTES + 5)
    with holding(store, image_id) as held:
        held.write(0, content)
    pieces = store.pieces(image_id, Span(0, len(content)))
    first = next(pieces)
    assert store.remove(image_id)
    assert first + b"".join(pieces) == content
    assert not store.remove(image_id)
    assert store.hold(image_id, create=False) is None
    assert store.size_bytes(image_id) is None
    assert list(store.image_ids()) == []


@pytest.mark.parametrize(
    "name", ["", "..", "../img", "img_", "/etc/passwd", "img_" + "0" * 25 + "/", "ten_01k5x7p3r8w2v6t9q4n0m1c2d3", "img_\0"]
)
def test_no_other_name_becomes_a_path(store: LocalImageStore, name: str) -> None:
    """Only ids of images name contents: anything else is a fault of ours, found before a file is touched."""
    for use in (lambda: store.hold(name, create=True), lambda: store.size_bytes(name), lambda: store.remove(name)):
        with pytest.raises(ValueError, match="ids of images"):
            use()


def test_what_lies_there_besides_is_passed_over(store: LocalImageStore, tmp_path: Path) -> None:
    """Files of other names are not contents, and a link is not followed."""
    image_id, folder = new_id("img"), tmp_path / "deep" / "images"
    with holding(store, image_id) as held:
        held.write(0, b"x")
    for name in ("lost+found", "notes.image", f"{new_id('img')}.tmp", f"{new_id('ten')}.image"):
        (folder / name).write_bytes(b"")
    assert list(store.image_ids()) == [image_id]
    link = new_id("img")
    (folder / f"{link}.image").symlink_to(folder / f"{image_id}.image")
    with pytest.raises(StoreFailed):
        store.hold(link, create=True)
    assert (folder / f"{image_id}.image").stat().st_mode & 0o077 == 0


def test_a_full_store_says_so(store: LocalImageStore) -> None:
    """Where no more can be written, the error is typed, names no path, and says when to come again."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with holding(store, new_id("img")) as held:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(StoreFull) as full:
                held.write(0, b"x" * 2000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "/" not in full.value.detail
    assert full.value.fields["retry_after_s"] == 60.0


def test_a_content_that_ends_too_early_is_an_error(store: LocalImageStore, tmp_path: Path) -> None:
    """A part that is not there is never made up."""
    image_id = new_id("img")
    with holding(store, image_id) as held:
        held.write(0, b"x" * 10)
    os.truncate(tmp_path / "deep" / "images" / f"{image_id}.image", 5)
    pieces = store.pieces(image_id, Span(0, 10))
    assert next(pieces) == b"x" * 5
    with pytest.raises(StoreFailed):
        next(pieces)
    with pytest.raises(StoreFailed):
        next(store.pieces(new_id("img"), Span(0, 1)))
