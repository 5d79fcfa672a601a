"""
What a management controller's facts mean for the node. Pure.

A warning is worth knowing. What is critical follows by the part: a GPU that its own board calls critical is to be exchanged, its links
and memory want the machine drained, and everything that has a spare (fans, supplies, drives, sensors) keeps new orders away. What is
unknown says nothing: it neither makes a node sick nor well again.
"""

from controlplane.health.classes import HealthClass

CRITICAL: tuple[tuple[str, HealthClass], ...] = (
    ("gpu_health", "quarantine"),
    ("gpu_", "drain"),
    ("nvlink", "drain"),
    ("switch", "drain"),
    ("cpu", "drain"),
    ("memory", "drain"),
    ("system", "block_allocation"),
)
"""Beginning of the fact's name to the class when it is critical; the first that fits."""
OTHERWISE: HealthClass = "block_allocation"


def class_of(name: str, health: str) -> HealthClass | None:
    """
    The class of the fact (`ok`, `warning`, `critical`, `unknown`); None where it says nothing.
    """
    if health == "ok":
        return "ok"
    if health == "warning":
        return "info"
    if health != "critical":
        return None
    return next((found for beginning, found in CRITICAL if name.startswith(beginning)), OTHERWISE)
