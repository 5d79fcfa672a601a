"""
What one data directory must remember between runs, in files that only its owner can read.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from controlplane.local.errors import LocalError

MASTER_KEY_BYTES = 32
PASSWORD_BYTES = 24


class Keepsakes:
    """
    A JSON file of strings with mode 0600, replaced as a whole so that a crash leaves the old or the new one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values = _read(path)

    def password(self, name: str) -> str:
        """
        Answers the password of this name, made once.
        """
        return self._once(name, lambda: secrets.token_urlsafe(PASSWORD_BYTES))

    def master_key(self) -> str:
        """
        Answers the key that wraps all data keys, as base64, made once.
        """
        return self._once("master_key", lambda: base64.b64encode(secrets.token_bytes(MASTER_KEY_BYTES)).decode())

    def find(self, name: str) -> str | None:
        """
        Answers a value, or None when it was never kept.
        """
        return self._values.get(name)

    def all(self) -> dict[str, str]:
        """
        Answers every value by name.
        """
        return dict(self._values)

    def keep(self, **values: str) -> None:
        """
        The values are on disk.
        """
        if values.items() <= self._values.items():
            return
        self._values |= values
        write_private(self._path, json.dumps(self._values, indent=2, sort_keys=True) + "\n")

    def _once(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._values:
            self.keep(**{name: make()})
        return self._values[name]


def write_private(path: Path, content: str) -> None:
    """
    The file has this content and can be read by its owner only, at every instant.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:  # mkstemp made it 0600
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LocalError(
            f"{path} is damaged: {error}",
            f"Put it back from a copy, or start over: remove {path.parent} (its clusters and keys are lost).",
        ) from error
    return {str(name): str(value) for name, value in content.items()}
