"""
What we remember on a machine's own object: its tenancy, and the last qualification and wipe. It is one annotation, so the server keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar

from controlplane.providers.errors import Busy
from controlplane.providers.kube.changing import Edit, Json

DOMAIN = "controlplane.internal"
"""What our labels, annotations and taints begin with; `.internal` is nobody's on the public network."""
MACHINE = f"{DOMAIN}/machine"
"""Annotation of a machine: this memory."""
OWNER = "owner"
Tenancy = Literal["", "deployed", "releasing", "released"]


@dataclass(frozen=True, slots=True)
class MachineMark:
    """
    One machine's memory. Instants are the API server's, as ISO 8601.
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

    def text(self, deployment: str) -> str:
        """
        As it is written on the machine.
        """
        kept = {OWNER: deployment} | {name: value for name, value in asdict(self).items() if value}
        return json.dumps(kept, separators=(",", ":"), sort_keys=True)


M = TypeVar("M", bound=MachineMark)


def read(kind: type[M], machine: Json, deployment: str) -> M | None:
    """
    The machine's memory; an empty one when nothing is written, None for one that is somebody else's: another installation's, or a person's.
    """
    notes: Mapping[str, str] = machine["metadata"].get("annotations") or {}
    text = notes.get(MACHINE, "")
    if not text:
        return kind()
    try:
        kept: Any = json.loads(text)
    except (ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict) or kept.get(OWNER) != deployment:
        return None
    known = {item.name for item in fields(kind)}
    return kind(**{name: str(value) for name, value in kept.items() if name in known})  # type: ignore[arg-type]


def rewriting(old: M, new: M, deployment: str) -> Edit:
    """
    The edit that puts the new memory in the old one's place. It raises Busy when another call of ours changed the memory meanwhile.
    """

    def edit(seen: Json) -> Json | None:
        now = read(type(new), seen, deployment)
        if now == new:
            return None
        if now != old:
            raise Busy(f"{seen['metadata']['name']} was changed by another call", retry_in_s=1.0)
        return {"metadata": {"annotations": {MACHINE: new.text(deployment)}}}

    return edit
