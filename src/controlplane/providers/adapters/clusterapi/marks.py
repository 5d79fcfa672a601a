"""
What we remember on a host itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.providers.kube.memory import MachineMark


@dataclass(frozen=True, slots=True)
class Mark(MachineMark):
    """
    One host's memory.
    """

    uncleaned: str = ""
    """When it was last given back with cleaning switched off: only a cleaning after that counts."""
