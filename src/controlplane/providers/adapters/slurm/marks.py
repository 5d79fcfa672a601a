"""
What we remember on a node itself: its tenancy, and the last qualification and wipe. Slurm keeps it over restarts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Literal

_HEAD = "cp1"
MAX_DIGITS = 12
Tenancy = Literal["", "deployed", "releasing", "released"]


@dataclass(frozen=True, slots=True)
class Mark:
    """
    One node's memory.
    """

    alloc: str = ""
    """The allocation it is, or was last, deployed for."""
    phase: Tenancy = ""
    """How far that tenancy is."""
    cluster: str = ""
    """The cluster of that tenancy."""
    users: str = ""
    """Accounts that could run on it since the last verified wipe, joined by `+`."""
    qualified: str = ""
    """The token of the last qualification."""
    wipe: str = ""
    """The token of the last wipe begun."""
    network: str = ""
    """The tenant network of that tenancy, as it was named to us."""
    ready: str = ""
    """When it was first seen ready for that tenancy: seconds since 1970 on slurmctld's clock."""
    up: str = ""
    """When it was first seen up in that cluster, on the same clock."""
    verified: str = ""
    """When that cluster was first seen complete, on the same clock; every member keeps it."""

    check: str = ""
    """The fabric check it is lent to."""
    checked: str = ""
    """The last fabric check that was ended on it: that one never gets it again."""
    runs: str = ""
    """Runs of the present check that it takes part in, joined by `+`."""

    def with_user(self, user: str) -> Mark:
        """
        The same, and the user is among those to scrub.
        """
        known = [name for name in self.users.split("+") if name]
        return self if not user or user in known else replace(self, users="+".join([*known, user]))

    def in_cluster(self, cluster_id: str) -> Mark:
        """
        The same in the cluster; what was seen in another one is forgotten.
        """
        return self if self.cluster == cluster_id else replace(self, cluster=cluster_id, up="", verified="")

    def text(self, deployment: str) -> str:
        """
        As it is written on the node.
        """
        parts = [f"{item.name}={value}" for item in fields(self) if (value := getattr(self, item.name))]
        return ";".join([f"{_HEAD}:{deployment}", *parts])


def stamp(at: datetime) -> str:
    """
    The instant as a mark keeps it.
    """
    return str(int(at.timestamp()))


def instant(kept: str) -> datetime | None:
    """
    The instant that a mark keeps; None for none.
    """
    return datetime.fromtimestamp(int(kept), UTC) if kept.isdecimal() and len(kept) < MAX_DIGITS else None


class ForeignMark(Exception):
    """
    The node's text is somebody else's: another installation's, or a person's.
    """


def read(text: str, deployment: str) -> Mark:
    """
    The node's memory; an empty one when nothing is written. Raises ForeignMark.
    """
    if not text:
        return Mark()
    head, *parts = text.split(";")
    if head != f"{_HEAD}:{deployment}":
        raise ForeignMark(text[:80])
    known = {item.name for item in fields(Mark)}
    values = dict(part.split("=", 1) for part in parts if "=" in part)
    return Mark(**{key: value for key, value in values.items() if key in known})  # type: ignore[arg-type]
