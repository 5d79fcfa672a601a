"""
The port to a peer on which clusters exist already that nobody made through us: they can be seen, taken over as they are, and let go again.

Taking over changes no machine and starts nothing anew: what runs goes on. It is marks, by which the cluster is ours from then on. Every
method may block for at most the adapter's request timeout and may raise any error of `providers.errors`. Changing ones are idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from controlplane.providers.clusters import ClusterSpec


@dataclass(frozen=True, slots=True)
class Remark:
    """
    Something to know before a cluster is taken over.
    """

    code: str
    """Stable."""
    message: str
    """In words, for operators."""


@dataclass(frozen=True, slots=True)
class StandingHost:
    """
    A machine of a cluster that exists.
    """

    ref: str
    """Its name at the peer."""
    node_set: str
    """Which set of alike workers it belongs to."""
    ready: bool
    """Whether it is in use there now."""
    leads: bool = False
    """Whether it is a control plane that comes with the cluster."""
    uuid: str = ""
    """What the machine's firmware calls it, lower case, where its name there is not the one it is enrolled by; empty: its name is."""
    address: str = ""
    """Its own address, where that is told with `uuid`."""
    gpus: int | None = None
    """GPUs that work is given on it, where that is told."""


@dataclass(frozen=True, slots=True)
class StandingSet:
    """
    Alike workers of a cluster that exists.
    """

    name: str
    """Unique in the cluster."""
    instance_types: tuple[str, ...]
    """What they may be, as the peer is set up; empty: nothing that is sold."""


@dataclass(frozen=True, slots=True)
class Standing:
    """
    A cluster at the peer that is not ours.
    """

    ref: str
    """Its name there."""
    uid: str
    """Never another's, also where the name is used again."""
    product: str
    """What it would be with us, as in `Capabilities.adopts`."""
    version: str
    """Of Kubernetes; empty: not told."""
    sets: tuple[StandingSet, ...]
    """Its workers by set."""
    hosts: tuple[StandingHost, ...]
    """Its workers by machine."""
    obstacles: tuple[Remark, ...] = ()
    """Why it cannot be taken over as it is, as far as the peer knows."""
    notices: tuple[Remark, ...] = ()
    """What changes, or does not, when it is."""
    distribution: str = ""
    """Who set it up, where it comes with its control planes: kubeadm, k3s; empty for others."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """
    A cluster that is taken over.
    """

    ref: str
    """Its name at the peer, which it keeps."""
    uid: str
    """As it was seen: another of that name is not taken."""
    spec: ClusterSpec
    """What it is to us: exactly the members that it has."""


@runtime_checkable
class SupportsAdoption(Protocol):
    """
    A cluster peer that can hand over what it has.
    """

    def list_standing(self) -> tuple[Standing, ...]:
        """
        Every cluster that is not ours. Raises instead of returning an incomplete list.
        """
        ...

    def adopt_cluster(self, adoption: Adoption) -> None:
        """
        The cluster and exactly its members are ours, and go on as they were. Raises Refused where it cannot be; marks may be there then,
        until `let_go`.
        """
        ...

    def let_go(self, cluster_id: str) -> None:
        """
        No mark of ours is on a cluster that was taken over, nor on its members, which go on as they are; one that we made ourselves is left
        alone. Absence is success.
        """
        ...
