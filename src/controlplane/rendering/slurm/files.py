"""
What a host is given: files, a script that starts its role, and what must be done when a file changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from controlplane.rendering.shell import Script

Role = Literal["head", "login", "worker"]
Change = Literal[
    "none", "units", "munge", "slurmctld", "slurmd", "slurmdbd", "slurmrestd", "sackd", "mariadb", "imex", "output", "reconfigure"
]
"""What a changed file asks for; `COMMANDS` has the commands."""
COMMANDS: dict[Change, tuple[str, ...]] = {
    "none": (),
    "units": ("systemctl daemon-reload",),
    "munge": ("systemctl restart munge.service",),
    "mariadb": ("systemctl try-restart mariadb.service",),
    "slurmdbd": ("systemctl try-restart slurmdbd.service",),
    "slurmctld": ("systemctl restart slurmctld.service",),
    "slurmrestd": ("systemctl try-restart slurmrestd.service",),
    "slurmd": ("systemctl restart slurmd.service",),
    "sackd": ("systemctl restart sackd.service",),
    "imex": ("systemctl try-restart nvidia-imex.service",),
    "output": ("systemctl restart job-output.service",),
    "reconfigure": ("scontrol reconfigure",),
}
"""In the order they are run in: what others stand on comes first. Running jobs survive each of them."""


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """
    One file of one host. Its repr has no content.
    """

    path: str
    """Absolute."""
    content: bytes = field(repr=False)
    """All of it."""
    mode: int = 0o644
    """Permissions."""
    owner: str = "root:root"
    """User and group."""
    secret: bool = False
    """Whether the content is a key: it is sealed where it is kept and never shown."""
    on_change: Change = "none"
    """What must happen on the host after the content changed."""

    @property
    def digest(self) -> str:
        """
        SHA-256 of the content, in hex.
        """
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True, slots=True)
class Bundle:
    """
    Everything one host is given.
    """

    role: Role
    """What it is."""
    host: str
    """Its name in the plan."""
    files: tuple[RenderedFile, ...]
    """By path, each path once. They are in place before a script runs."""
    scripts: tuple[Script, ...]
    """In the order they are run in."""

    def file(self, path: str) -> RenderedFile:
        """
        The file at the path. Raises KeyError.
        """
        found = {one.path: one for one in self.files}
        return found[path]


def text_file(
    path: str, lines: Iterable[str], *, mode: int = 0o644, owner: str = "root:root", on_change: Change = "none"
) -> RenderedFile:
    """
    A file of these lines, which holds no secret.
    """
    return RenderedFile(path, "".join(f"{line}\n" for line in lines).encode(), mode, owner, on_change=on_change)
