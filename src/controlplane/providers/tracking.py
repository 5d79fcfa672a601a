"""
Ports of peers that tell of changes by themselves, so that looking often costs them nothing. What is told this way is a hint.
"""

from __future__ import annotations

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
