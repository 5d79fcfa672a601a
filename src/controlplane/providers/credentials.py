"""
The port to peers that let a tenant's people in by themselves, for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """
    A way into one cluster. Never stored and never logged.
    """

    text: str = field(repr=False)
    """As kubectl reads it."""
    expires_at: datetime
    """When the peer ends it (UTC)."""


@runtime_checkable
class SupportsKubeconfigs(Protocol):
    """
    A cluster peer that hands out kubeconfigs of its own making.
    """

    def issue_kubeconfig(self, cluster_id: str, tenant_id: str, *, lifetime_s: int) -> Kubeconfig:
        """
        A new kubeconfig that opens what the tenant may see of the cluster, and nothing else; earlier ones stay valid until they end.

        Raises NotFound where the cluster is not, Refused for a cluster of another tenant, and with the code `kubeconfig_too_long` for a
        lifetime above the operator's ceiling.
        """
        ...
