"""
One `up` per data directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from controlplane.local.errors import DataDirectoryHeld


@contextlib.contextmanager
def held(data_dir: Path, *, what: str) -> Iterator[None]:
    """
    Nobody else holds the directory inside the block; the kernel lets go of it however this process ends.
    """
    path = data_dir / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode("utf-8", errors="replace").strip() or "another process"
            raise DataDirectoryHeld(
                f"{data_dir} is in use by {holder}.",
                "Use that one, end it (Ctrl-C in its window, or kill and its number), or choose others: "
                "DATA_DIR=.data2 PORT=8081 make up",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} ({what})".encode(), 0)
        yield
    finally:
        os.close(descriptor)
