"""
What discovery looks at and what it finds.
"""

from dataclasses import dataclass, field
from typing import Any

from controlplane.nodes.states import Access, ProviderRef


@dataclass(frozen=True, slots=True)
class Target:
    """
    A management controller that is to be looked at, whether its machine is enrolled or not.
    """

    id: str
    """`dtg_…`."""
    provider: ProviderRef
    """The kind of controller."""
    ref: str
    """What the controller's password is sealed under: the node's id where the machine is enrolled, else the target's."""
    access: Access
    """How it is reached: as the node is, where the machine is enrolled."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """
    A machine as it was found; empty where nothing was told.
    """

    ref: str
    """Its name at the provider; for a controller that was looked at, its address."""
    power: str = field(default="unknown", kw_only=True)
    """`on`, `off` or `unknown`, as its provider says."""
    serial: str = ""
    """Operators only."""
    controller_url: str = ""
    """Root of its controller."""
    controller_system: str = ""
    """The machine among the controller's systems."""
    place: dict[str, Any] = field(default_factory=dict)
    """{site, block, leaf, rack, nvlink_domain, instance_type, gpus}."""
    inventory: dict[str, Any] = field(default_factory=dict)
    """{vendor, model, gpu_model, gpus, memory_gib, uuid}."""


@dataclass(frozen=True, slots=True)
class Listing:
    """
    What came of asking a provider for its machines.
    """

    sightings: tuple[Sighting, ...]
    """The machines it named."""
    complete: bool
    """Whether a machine that is not named is not there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What came of looking at one controller.
    """

    target_id: str
    """Which one."""
    provider_id: str
    """The kind of controller."""
    sighting: Sighting | None
    """Its machine; None when it did not answer."""
    problem: str = ""
    """Why it did not."""
