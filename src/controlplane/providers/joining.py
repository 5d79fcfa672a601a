"""
The port to a Kubernetes that others have set up and that machines of ours join as workers.

Every method may block for at most the adapter's request timeout and may raise any error of `providers.errors`. All are idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Door:
    """
    What a machine needs to join. Its repr shows no secret.
    """

    distribution: str
    """kubeadm or k3s."""
    version: str
    """Of the cluster's API server, for example `1.36.2`."""
    server: str
    """Host and port of the API, as machines reach it."""
    token: str = field(repr=False)
    """A bootstrap token of Kubernetes, `<id>.<secret>`: with it a kubelet's certificate may be asked for, until it ends."""
    authority: str = ""
    """By which digest machines know the cluster's authority: of its public key for kubeadm, of its certificate for k3s; hexadecimal."""


@runtime_checkable
class SupportsJoining(Protocol):
    """
    A cluster peer that lets machines in by a token.
    """

    def open_door(self, cluster_id: str, *, lasts_s: int) -> Door:
        """
        Whoever has what is returned may join as a worker, for so many seconds. Each call makes a new token; earlier ones go on.
        """
        ...

    def close_door(self, cluster_id: str) -> None:
        """
        No token of ours lets anybody in any more.
        """
        ...
