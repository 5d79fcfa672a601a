"""
What a cluster has for those who run something in it, as it is kept with it. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Offers:
    """
    What jobs and services may ask of a cluster.
    """

    features: tuple[str, ...] | None = None
    """Besides nodes, GPUs and a script; None where nobody has said yet."""
    volumes: tuple[str, ...] = ()
    """Names of what they can mount."""
    mig: Mapping[str, int] = field(default_factory=dict)
    """MIG profile to the most that one of its nodes has of it."""
