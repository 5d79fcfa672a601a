"""
Clusters that exist at a provider and are not ours, and what is taken over of them.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Seen:
    """
    A cluster that a provider has and that is not ours, as it is kept.
    """

    ref: str
    """Its name there."""
    uid: str
    """The provider's own id of it."""
    product: str
    """What it would be with us."""
    version: str
    """Of Kubernetes; empty: not told."""
    sets: tuple[dict[str, Any], ...]
    """[{name, instance_types}]."""
    hosts: tuple[dict[str, Any], ...]
    """[{ref, node_set, ready, leads, uuid, address, gpus}]."""
    obstacles: tuple[dict[str, str], ...]
    """[{code, message}]: why it cannot be taken over, as far as the provider knows."""
    notices: tuple[dict[str, str], ...]
    """[{code, message}]: what changes, or does not, when it is."""
    distribution: str = ""
    """Who set it up, where it comes with its control planes; empty for others."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """
    A cluster that exists at its provider and is being taken over.
    """

    ref: str
    """Its name there."""
    uid: str
    """As it was seen there."""
