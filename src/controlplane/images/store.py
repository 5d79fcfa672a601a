"""
Where the content of images is kept: a small port, and a local directory behind it.

Names in the store are ids of images and nothing else, so that nothing a caller sends ever becomes part of a path.
"""

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from controlplane.images.errors import ContentHeld, StoreFailed, StoreFull
from controlplane.kit.ids import is_id
from controlplane.web.ranges import Span

log = logging.getLogger(__name__)
PIECE_BYTES = 1024 * 1024
SUFFIX = ".image"
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Held(Protocol):
    """
    One content, held by one holder alone until it is closed. May block on disks. Raises StoreFailed and StoreFull.
    """

    def size_bytes(self) -> int:
        """
        How much there is.
        """
        ...

    def write(self, offset_bytes: int, data: bytes) -> None:
        """
        The bytes stand at the offset; not yet safe from a power cut. Repeating it changes nothing.
        """
        ...

    def read(self, offset_bytes: int, most_bytes: int) -> bytes:
        """
        Bytes from the offset on; none at the end.
        """
        ...

    def settle(self) -> None:
        """
        All that was written outlives a power cut.
        """
        ...

    def close(self) -> None:
        """
        Others may hold it. Closing twice is fine; so is never settling what was written.
        """
        ...


class ImageStore(Protocol):
    """
    Contents by the ids of their images. Methods may block on disks; each is idempotent; each raises StoreFailed.
    """

    def hold(self, image_id: str, *, create: bool) -> Held | None:
        """
        The content for this holder alone, whatever process others are in; None where there is none and none is to be made. A
        holder that dies holds it no longer. Raises ContentHeld while another has it.
        """
        ...

    def size_bytes(self, image_id: str) -> int | None:
        """
        How much there is of the content; None when there is none.
        """
        ...

    def pieces(self, image_id: str, span: Span) -> Iterator[bytes]:
        """
        The bytes of the span in order, read as they are taken. What is removed meanwhile is read to its end.
        """
        ...

    def remove(self, image_id: str) -> bool:
        """
        There is no such content; whether there was is returned. Raises ContentHeld while somebody has it.
        """
        ...

    def image_ids(self) -> Iterator[str]:
        """
        The images that there is content of.
        """
        ...


@dataclass(frozen=True, slots=True)
class Depot:
    """
    What the room's endpoints need besides the database.
    """

    store: ImageStore
    """Where content is kept."""
    max_image_bytes: int
    """Largest image."""
    max_chunk_bytes: int
    """Largest chunk of an upload."""
    wake: Callable[[], None] = lambda: None
    """Somebody may look for contents to check; never blocks, never fails."""


class LocalImageStore:
    """
    One file per image in one directory. Processes that share the directory share the contents; a network file system must carry
    `flock` from one host to the other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def hold(self, image_id: str, *, create: bool) -> "LocalHeld | None":
        """
        The image's file, locked for this holder; None where there is none and none is to be made.
        """
        with _told():
            if create:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                handle = os.open(self._path(image_id), _flags(create=create), 0o600)
            except FileNotFoundError:
                return None
            try:
                _lock(handle)
                return LocalHeld(handle, self._folder)
            except BaseException:
                os.close(handle)
                raise

    def size_bytes(self, image_id: str) -> int | None:
        """
        The size of the image's file, or None.
        """
        with _told():
            try:
                return self._path(image_id).stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                return None

    def pieces(self, image_id: str, span: Span) -> Iterator[bytes]:
        """
        The bytes of the span, a piece at a time. Raises StoreFailed when the file ends before the span does.
        """
        with _told():
            handle = os.open(self._path(image_id), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            at = span.start_bytes
            while at < span.end_bytes:
                with _told():
                    piece = os.pread(handle, min(PIECE_BYTES, span.end_bytes - at), at)
                if not piece:
                    raise StoreFailed("The content is shorter than it should be.")
                at += len(piece)
                yield piece
        finally:
            os.close(handle)

    def remove(self, image_id: str) -> bool:
        """
        The image has no file; whether it had one is returned.
        """
        held = self.hold(image_id, create=False)
        if held is None:
            return False
        with contextlib.closing(held), _told():
            self._path(image_id).unlink(missing_ok=True)
        return True

    def image_ids(self) -> Iterator[str]:
        """
        The images that have files here; whatever else lies in the directory is passed over.
        """
        with _told():
            names = sorted(path.name for path in self._folder.iterdir()) if self._folder.is_dir() else []
        for name in names:
            image_id, suffix = name[: -len(SUFFIX)], name[-len(SUFFIX) :]
            if suffix == SUFFIX and is_id(image_id, "img"):
                yield image_id

    def _path(self, image_id: str) -> Path:
        if not is_id(image_id, "img"):
            raise ValueError("contents are named by the ids of images")
        return self._folder / f"{image_id}{SUFFIX}"


class LocalHeld:
    """
    An open and locked file.
    """

    def __init__(self, handle: int, folder: Path) -> None:
        self._handle: int | None = handle
        self._folder = folder

    def size_bytes(self) -> int:
        """
        The file's size.
        """
        with _told():
            return os.fstat(self._open()).st_size

    def write(self, offset_bytes: int, data: bytes) -> None:
        """
        The bytes stand in the file at the offset.
        """
        rest = memoryview(data)
        with _told():
            while rest:
                written = os.pwrite(self._open(), rest, offset_bytes)
                offset_bytes += written
                rest = rest[written:]

    def read(self, offset_bytes: int, most_bytes: int) -> bytes:
        """
        Bytes of the file from the offset on.
        """
        with _told():
            return os.pread(self._open(), most_bytes, offset_bytes)

    def settle(self) -> None:
        """
        The file and its name in the directory are on the disk.
        """
        with _told():
            os.fsync(self._open())
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def close(self) -> None:
        """
        The file is closed and with it unlocked.
        """
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def _open(self) -> int:
        if self._handle is None:
            raise ValueError("the content is not held any more")
        return self._handle


def _flags(*, create: bool) -> int:
    return os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy() from None
    if os.fstat(handle).st_nlink == 0:  # removed between open and lock: the name stands for another file now
        raise _busy()


def _busy() -> ContentHeld:
    return ContentHeld("The content is being written or checked by another request; try again soon.", retry_after_s=1.0)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """
    What the operating system says is logged; callers learn only what they can act on, never a path.
    """
    try:
        yield
    except OSError as error:
        log.exception("the image store failed", extra={"errno": error.errno})
        if error.errno in NO_ROOM:
            raise StoreFull("The image store has no room left; nothing of this chunk counts.", retry_after_s=60.0) from error
        raise StoreFailed("The image store does not answer; try again soon.") from error
