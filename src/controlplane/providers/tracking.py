"""
Ports of peers that tell of changes by themselves, so that looking often costs them nothing. What is told this way is a hint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controlplane.providers.clusters import JobView


@runtime_checkable
class SupportsGlances(Protocol):
    """
    A peer whose attempts are remembered from what it told last.
    """

    def glance(self, cluster_id: str, token: str) -> JobView | None:
        """
        The attempt as it was told last, without asking the peer; None where that may not be the whole truth: then `find_job` knows.

        May be half a minute old, so it can be behind what is known already. An end that is told is the end.
        """
        ...


@runtime_checkable
class SupportsNews(Protocol):
    """
    A peer that tells which attempts have changed.
    """

    def take_news(self) -> frozenset[str]:
        """
        Tokens of attempts whose phase changed since the last call, without asking the peer; a hint that may be lost or repeated.
        """
        ...


@dataclass(frozen=True, slots=True)
class GpuUse:
    """
    How busy an attempt's GPUs were over a window of time.
    """

    watched: int
    """How many of them were measured all through it."""
    peak_percent: float | None
    """The most that any of them was used at any moment, in percent; None where nothing was measured."""


@runtime_checkable
class SupportsGpuUse(Protocol):
    """
    A cluster peer that can tell how busy GPUs are, with the job feature `idle_stop`.
    """

    def gpu_use(self, cluster_id: str, token: str, *, window_s: int) -> GpuUse:
        """
        The use of the attempt's GPUs over the last so many seconds. Raises what any call may: then nothing is known.
        """
        ...
