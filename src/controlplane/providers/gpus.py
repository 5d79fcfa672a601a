"""
Which GPUs are wanted, beside how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuKind:
    """
    What every GPU of a job or of a service's replica must be like.
    """

    model: str = ""
    """As in the catalog; empty: any."""
    min_memory_gib: int = 0
    """At least so much memory; 0: any."""
    nvlink: bool = False
    """Whether it must be linked to its neighbours by NVLink."""


@dataclass(frozen=True, slots=True)
class Slices:
    """
    Parts of partitioned GPUs that a program holds on each node.
    """

    profile: str
    """The MIG profile, as its maker writes it: `1g.10gb`, `1g.10gb+me`."""
    per_node: int
    """How many of them."""


def slices_of(wanted: Mapping[str, Any] | None) -> Slices | None:
    """
    The slices that an order's document names; None where it names none.
    """
    return Slices(wanted["profile"], wanted["per_node"]) if wanted else None


def kind_of(wanted: Mapping[str, Any] | None) -> GpuKind | None:
    """
    The kind that an order's document names; None where it names none.
    """
    if not wanted:
        return None
    return GpuKind(wanted.get("model") or "", wanted.get("min_memory_gib") or 0, nvlink=bool(wanted.get("nvlink")))
