"""
Volumes that an operator offers to the jobs of a cluster, by name: a tenant names one and says where it wants it, and names no path of a
machine and no object of a peer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from controlplane.providers.errors import Refused

KEPT = frozenset({"proc", "sys", "dev", "etc", "run", "controlplane", "controlplane-secrets"})
"""First parts of paths that are the system's or ours."""
_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}){1,8}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Mount:
    """
    A volume in the job's containers.
    """

    volume: str
    """As the operator named it."""
    path: str
    """Where the job finds it."""
    read_only: bool = False
    """Whether it may only be read, also where more would be allowed."""


def check_volume(name: str) -> str:
    """
    The value can be a volume's name. Raises ValueError.
    """
    if not _NAME.fullmatch(name):
        raise ValueError("a volume's name has lower-case letters, digits and dashes, at most 40")
    return name


def check_mounts(mounts: Iterable[Mount], offered: Collection[str]) -> None:
    """
    Every mount is of a volume that is offered, at a place where one can be. Raises Refused.
    """
    taken: set[str] = set()
    for one in mounts:
        if one.volume not in offered:
            raise Refused(f"no volume {one.volume[:80]!r} is offered", code="job_volume_unknown")
        if not _PATH.fullmatch(one.path) or one.path.split("/")[1] in KEPT or one.path in taken:
            raise Refused(f"nothing can be mounted at {one.path[:80]!r}", code="job_mount_invalid")
        taken.add(one.path)
