"""
What we remember on a host itself: its tenancy, and the last qualification and wipe. It is one annotation, so the server keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from controlplane.providers.adapters.clusterapi.names import DOMAIN

MACHINE = f"{DOMAIN}/machine"
"""Annotation of a host: this memory."""
OWNER = "owner"
Tenancy = Literal["", "deployed", "releasing"]


@dataclass(frozen=True, slots=True)
class Mark:
    """
    One host's memory. Instants are the API server's, as ISO 8601.
    """

    alloc: str = ""
    """The allocation it is, or was last, deployed for."""
    phase: Tenancy = ""
    """How far that tenancy is."""
    cluster: str = ""
    """The cluster of that tenancy."""
    network: str = ""
    """The tenant network of that tenancy, as it was named to us."""
    ready: str = ""
    """When it was first seen ready for that tenancy."""
    qualified: str = ""
    """The token of the last qualification."""
    wipe: str = ""
    """The token of the last wipe begun."""
    wiped: str = ""
    """When that wipe was proved."""
    uncleaned: str = ""
    """When it was last given back with cleaning switched off: only a cleaning after that counts."""

    def text(self, deployment: str) -> str:
        """
        As it is written on the host.
        """
        kept = {OWNER: deployment} | {name: value for name, value in asdict(self).items() if value}
        return json.dumps(kept, separators=(",", ":"), sort_keys=True)


class ForeignMark(Exception):
    """
    The memory is somebody else's: another installation's, or a person's.
    """


def read(annotations: Mapping[str, str], deployment: str) -> Mark:
    """
    The host's memory; an empty one when nothing is written. Raises ForeignMark.
    """
    text = annotations.get(MACHINE, "")
    if not text:
        return Mark()
    try:
        kept: Any = json.loads(text)
    except (ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict) or kept.get(OWNER) != deployment:
        raise ForeignMark(text[:80])
    known = {item.name for item in fields(Mark)}
    return Mark(**{name: str(value) for name, value in kept.items() if name in known})  # type: ignore[arg-type]
