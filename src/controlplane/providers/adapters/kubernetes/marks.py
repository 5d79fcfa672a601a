"""
What we remember on a node itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.providers.kube.memory import MachineMark


@dataclass(frozen=True, slots=True)
class Mark(MachineMark):
    """
    One node's memory.
    """

    clear: str = ""
    """When the last wipe first found nothing of a tenant on the node."""
    beat: str = ""
    """The kubelet's last sign of life at that moment, by its own clock; another one proves that it has looked since."""
