"""
The port to whatever keeps services up on a cluster: a Kubernetes, or the simulator.

A service is declarative: `apply_service` states all of it, `observe_service` reads it back. Names at the peer are functions of our ids.
Every method may block for at most the adapter's request timeout and may raise any error of `providers.errors`. Changing methods are
idempotent; a change that arrives late must not undo a newer one, which `turn` tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from controlplane.providers.gpus import GpuKind, Slices

ReplicaPhase = Literal["pending", "starting", "ready", "failing", "ending"]
Trouble = Literal[
    "",
    "image_pull",
    "image_name",
    "crash_loop",
    "out_of_memory",
    "no_room",
    "quota",
    "cannot_start",
    "node_lost",
    "not_ready",
]
CPU = "cpu_cores"
"""The metric that every cluster with a metrics server has: processor cores in use by a replica."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """
    When a replica may be sent requests.
    """

    path: str = ""
    """Answers a GET with 2xx or 3xx; empty: the port takes connections."""
    every_s: int = 10
    """How often it is asked."""
    failures: int = 3
    """So many in a row and it is sent none."""
    start_within_s: int = 1800
    """It is started again when it was not ready for the first time by then."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """
    Replicas by a metric.
    """

    least: int
    """Never fewer."""
    most: int
    """Never more."""
    metric: str
    """`cpu_cores`, or a metric that the replicas tell themselves."""
    target: float
    """What each replica should carry of it on average."""


@dataclass(frozen=True, slots=True)
class ServiceFile:
    """
    A file in the replicas' working folder.
    """

    path: str
    """Relative, without `..`."""
    content: str
    """Text."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """
    The whole wanted service.
    """

    service_id: str
    """Our id; names at the peer are made from it."""
    cluster_id: str
    """Where it runs."""
    tenant_id: str
    """Whose it is."""
    version: int
    """Which version of image, command and the rest of what a replica is."""
    turn: int
    """Rises with every change of ours; a spec of an older turn changes nothing."""
    image: str
    """The container image."""
    port: int
    """Where replicas take requests."""
    replicas: int
    """How many; where `scaling` is given, how many to begin with. 0: none, and nothing scales it."""
    command: tuple[str, ...] = ()
    """Program and arguments; empty: the image's own."""
    worker_command: tuple[str, ...] = ()
    """Of the nodes of a replica that are not its first."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment."""
    files: tuple[ServiceFile, ...] = ()
    """In the working folder."""
    secret_env: dict[str, str] = field(default_factory=dict, repr=False)
    """More environment, which nobody but the program may read."""
    secret_files: dict[str, str] = field(default_factory=dict, repr=False)
    """File name to content, below the folder that SECRETS_DIR names."""
    gpus_per_node: int = 0
    """GPUs on each node of a replica."""
    nodes: int = 1
    """Nodes of one replica, which live and die together."""
    gpu_model: str = ""
    """As in the catalog; empty: any."""
    gpu: GpuKind | None = None
    """What its GPUs must be like; None: any of its cluster's."""
    mig: Slices | None = None
    """Slices of GPUs on each node of a replica, in the place of whole ones; None: none."""
    readiness: Readiness = Readiness()
    """When a replica may be sent requests."""
    scaling: Scaling | None = None
    """None: the number is fixed."""
    surge: int = 0
    """Replicas more than wanted while a version rolls out."""
    unavailable: int = 1
    """Replicas fewer than wanted while a version rolls out."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """
    One replica as the peer sees it.
    """

    name: str
    """The peer's name; of several nodes, the first one's."""
    version: int
    """Which version it is."""
    phase: ReplicaPhase
    """pending: no place yet; starting; ready: is sent requests; failing; ending."""
    trouble: Trouble = ""
    """Why it is not ready, as far as the peer tells."""
    exit_code: int | None = None
    """Of its last end, where it was started again."""
    restarts: int = 0
    """How often."""
    refs: tuple[str, ...] = ()
    """Members it is on."""
    gpus: int = 0
    """GPUs, or slices of GPUs, that it holds."""
    profile: str = ""
    """The MIG profile of the slices; empty: whole GPUs."""


@dataclass(frozen=True, slots=True)
class ServiceView:
    """
    A service as the peer sees it.
    """

    service_id: str
    """Read back from the peer's object."""
    version: int
    """The version the peer was told of last."""
    turn: int
    """The turn it was told of last."""
    wanted: int
    """Replicas the peer aims at now."""
    replicas: tuple[ReplicaView, ...]
    """All there are, those of older versions included."""
    trouble: Trouble = ""
    """What keeps replicas from being made at all."""
    address: str = ""
    """Where others on the cluster reach it: `host:port`."""
    going: bool = False
    """Whether it is being removed."""


@runtime_checkable
class SupportsServices(Protocol):
    """
    A cluster peer that keeps services up.
    """

    def apply_service(self, spec: ServiceSpec) -> None:
        """
        The peer has been told the whole service; converges by `observe_service`. Refused for what it could never run.
        """
        ...

    def observe_service(self, cluster_id: str, service_id: str) -> ServiceView:
        """
        The service now. Raises NotFound when the peer, asked completely, has nothing of it, replicas included.
        """
        ...

    def delete_service(self, cluster_id: str, service_id: str) -> None:
        """
        All of it is being removed; absence is success; done when `observe_service` says NotFound.
        """
        ...

    def list_services(self, cluster_id: str) -> tuple[str, ...]:
        """
        The ids of all services of the cluster. Raises instead of returning an incomplete list.
        """
        ...

    def read_replica(self, cluster_id: str, service_id: str, name: str, *, limit: int) -> bytes:
        """
        The last `limit` bytes at most that the replica printed; of one that crashed, before it was started again. Raises NotFound.
        """
        ...
