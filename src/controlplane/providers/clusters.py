"""
The port to whatever turns deployed machines into a cluster and runs its jobs: a Slurm, the simulator, later Kubernetes.

Clusters are declarative: `apply_cluster` states the whole wanted cluster, members included; `observe_cluster` reads it back. Names at the
peer are functions of our ids. Every method may block for at most the adapter's request timeout (well under 30 s) and may raise any
error of `providers.errors`. Changing methods are idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

from controlplane.providers.gpus import GpuKind, Slices
from controlplane.providers.launching import Launch
from controlplane.providers.machines import Check
from controlplane.providers.volumes import Mount

MemberState = Literal["up", "draining", "drained", "down", "joining", "absent", "unknown"]
Priority = Literal["low", "normal", "high"]
JobFeature = Literal[
    "gangs",
    "priority",
    "image",
    "launch_torchrun",
    "launch_mpi",
    "secret_env",
    "secret_files",
    "mounts",
    "gpu_attributes",
    "gpu_nvlink",
    "mig",
    "idle_stop",
]
WorkKind = Literal["jobs", "services"]
JobPhase = Literal["pending", "running", "completing", "succeeded", "failed", "cancelled", "unknown"]
FailureClass = Literal[
    "user_error",
    "out_of_memory",
    "node_fault",
    "fabric_fault",
    "preempted",
    "time_limit",
    "provider_fault",
    "cancelled",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """
    What this peer can do; stored on the provider's row when it is registered, so that services ask the row.
    """

    version: str
    """The peer's version as it says it, for example `slurm 22.05.8, api v0.0.38`."""
    products: tuple[str, ...]
    """What it can make: `slurm`, `kubernetes`, `baremetal`; `managed_kubernetes`: a whole one, whose control planes the peer keeps."""
    job_output: bool = False
    """Whether output of jobs can be read."""
    drain: bool = False
    """Whether members can be drained."""
    accounts: bool = False
    """Whether accounts and QOS are enforced (Slurm: slurmdbd present)."""
    walls: tuple[str, ...] = ()
    """What keeps tenants apart, for example `reservation`, `partition`, `account`."""
    scrub: bool = False
    """Whether the peer can wipe a member between tenants; if not, its pool is sold to one tenant only."""
    images: bool = False
    """Whether a tenant's own image can be installed on its machines."""
    image_formats: tuple[str, ...] = ("raw",)
    """Of which formats, where that is so."""
    max_nodes_per_job: int | None = None
    """None: no limit known."""
    notes: tuple[str, ...] = ()
    """What is missing on this version, in words, for operators."""
    job_features: tuple[JobFeature, ...] = ()
    """What jobs may ask for besides nodes, GPUs, a script and its environment; all else is refused before it is sent."""
    volumes: tuple[str, ...] = ()
    """Names of what jobs can mount, with the feature `mounts`."""
    own_kubernetes: Mapping[str, str] = field(default_factory=dict)
    """Where the peer itself makes Kubernetes clusters that are one tenant's alone: by distribution, the version."""
    kubernetes_versions: tuple[str, ...] = ()
    """Versions that may be ordered with the product `managed_kubernetes`; the first is what orders get that name none."""
    instance_types: tuple[str, ...] = ()
    """Of which nodes it makes that product."""
    only_in: Mapping[str, str] = field(default_factory=dict)
    """Features that only its clusters of one kind have, where it makes several: by feature, the kind."""
    managed_work: tuple[WorkKind, ...] = ()
    """What work of ours runs in clusters of that product."""
    mig: dict[str, int] = field(default_factory=dict)
    """MIG profile to the most that one node has of it, with the feature `mig`; as its nodes are partitioned now."""
    adopts: tuple[str, ...] = ()
    """Products of which clusters that exist there already can be taken over, see `providers.adoption`."""


@dataclass(frozen=True, slots=True)
class Member:
    """
    One machine of a cluster.
    """

    ref: str
    """The machine's name at this peer (for Slurm the NodeName)."""
    gpus: int
    """GPUs the member brings."""
    token: str
    """The allocation's id."""
    node_set: str = ""
    """Name of its node set, unique in the cluster."""
    instance_type: str = ""
    """What it is sold as."""
    leads: bool = False
    """Whether it is a control plane of a Kubernetes of one's own, to which no work comes."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """
    The whole wanted cluster.
    """

    cluster_id: str
    """Our id; names at the peer are made from it."""
    tenant_id: str
    """Whose it is: another tenant must not be able to run on its members or see its jobs."""
    project_id: str
    """The owning project (accounting)."""
    user: str
    """The peer's account jobs run as, one per tenant, assigned by us; empty where the peer makes its own."""
    members: tuple[Member, ...]
    """Exactly these; a member that is not here any more is removed once nothing runs on it."""
    version: str = ""
    """Of Kubernetes, for peers that make it at the version that is asked for; empty: as it is, or their own choice."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """
    One member as the peer sees it.
    """

    ref: str
    """The machine's name at this peer."""
    state: MemberState
    """`up` means that a job could start on it now or after the running one."""
    gpus: int | None
    """GPUs the peer counts; None when it does not tell."""
    jobs: int = 0
    """Jobs on it now, of anybody."""
    reason: str = ""
    """The peer's reason text for a drain or an outage: operators only."""
    drained_by_us: bool = False
    """Whether the drain carries our reason prefix; a drain of an administrator is never undone."""
    up_since: datetime | None = None
    """When the peer first saw this member, under its token, up; evidence for the meter's start."""
    version: str = ""
    """Of the peer's own daemon on it, as it last registered, for example `23.11.4`; empty: the peer does not tell."""
    api_version: str = ""
    """Of the API server on it, where it has one and that has told; empty for others."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """
    A cluster as the peer sees it.
    """

    cluster_id: str
    """Our id, read back from the peer's object."""
    members: tuple[MemberView, ...]
    """Those that the peer counts as members now."""
    verified_at: datetime | None = None
    """When the peer first saw the cluster complete and answering (UTC, the peer's clock); evidence for the meter's start."""
    checks: tuple[Check, ...] = ()
    """Acceptance facts that the peer knows (every node answers, GPU count); see `Check`."""
    version: str = ""
    """The peer's own, for example `23.11.4`; empty: it was not asked."""
    job_features: tuple[JobFeature, ...] | None = None
    """What jobs may ask of it, where the cluster's own API tells; None: it does not, or what was told before holds."""
    volumes: tuple[str, ...] | None = None
    """Names of what jobs can mount, where the cluster's own API tells; None: the peer's capabilities tell, of slices as well."""
    mig: Mapping[str, int] = field(default_factory=dict)
    """MIG profile to the most that one node has of it now."""


@dataclass(frozen=True, slots=True)
class ClusterList:
    """
    A listing; an incomplete one can add knowledge and never proves absence.
    """

    cluster_ids: tuple[str, ...]
    """Our ids, read back from the tags or names of the peer's objects."""
    complete: bool
    """False when the peer, or a page of it, did not answer."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """
    One attempt of one job.
    """

    token: str
    """`<job id>-<attempt>`: the name at the peer, by which a repeat finds the first try."""
    cluster_id: str
    """Where it runs."""
    tenant_id: str
    """Whose it is."""
    user: str
    """The peer's account it runs as (as in ClusterSpec)."""
    script: str
    """A batch script with its `#!` line; empty with `launch`."""
    nodes: int
    """Whole gang: all or none."""
    gpus_per_node: int
    """GPUs asked on each node; 0 for none."""
    tasks_per_node: int
    """Tasks an `srun` in the script starts on each node."""
    time_limit_s: int
    """Hard limit, in seconds."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment of the script."""
    gpu_model: str = ""
    """As in the catalog; empty: any."""
    exclude: tuple[str, ...] = ()
    """Member refs to stay away from."""
    requeue: bool = True
    """Whether the peer may start it again by itself, under the same id, when it lost a machine."""
    image: str = ""
    """The container image it runs in, where the peer runs containers; empty: the peer's own default."""
    priority: Priority = "normal"
    """Its place among the jobs of its cluster that wait: a higher one starts first where both could."""
    launch: Launch | None = None
    """What runs in the place of a script, which is empty then."""
    secret_env: dict[str, str] = field(default_factory=dict, repr=False)
    """More environment, whose values nobody may read; wins over `env`."""
    secret_files: dict[str, str] = field(default_factory=dict, repr=False)
    """File name to content, below the folder that SECRETS_DIR names."""
    mounts: tuple[Mount, ...] = ()
    """Volumes of the operator's in its containers."""
    gpu: GpuKind | None = None
    """What its GPUs must be like; None: any of its cluster's."""
    mig: Slices | None = None
    """Slices of GPUs on each node, in the place of whole ones; None: none."""
    cluster_kind: str = ""
    """What its cluster was ordered as, for a peer that makes several kinds: `slurm`, `kubernetes`; empty: the peer's own."""


@dataclass(frozen=True, slots=True)
class JobView:
    """
    One attempt as the peer sees it.
    """

    token: str
    """The name it was submitted under."""
    external_id: str
    """The peer's own id."""
    phase: JobPhase
    """Folded from the peer's states."""
    reason: str = ""
    """Why it waits or ended, as a short code of the peer (`Resources`, `Priority`, `NodeFail`, …)."""
    failure: FailureClass | None = None
    """Set when `phase` is `failed`."""
    exit_code: int | None = None
    """Of the batch script; None until it ended."""
    signal: int | None = None
    """The signal that ended it; None or 0 for none."""
    nodes: tuple[str, ...] = ()
    """Member refs it runs, or ran, on."""
    started_at: datetime | None = None
    """UTC, the peer's clock."""
    ended_at: datetime | None = None
    """UTC, the peer's clock."""
    expected_start_at: datetime | None = None
    """The peer's own estimate while it waits."""
    requeues: int = 0
    """How often the peer itself started it again under the same id."""


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """
    Bytes of a job's output from an offset on.
    """

    offset: int
    """Where the chunk starts, in bytes."""
    data: bytes
    """At most the asked limit; empty at the present end."""
    end: bool
    """True when the job has ended and nothing follows."""


@runtime_checkable
class Clusters(Protocol):
    """
    A system that turns machines into clusters and runs jobs on them.
    """

    def capabilities(self) -> Capabilities:
        """
        What the peer can do, read from the peer itself. Raises AuthFailed, Unsupported for an unknown version.
        """
        ...

    def apply_cluster(self, spec: ClusterSpec) -> None:
        """
        The peer has been told the whole wanted cluster; converges by `observe_cluster`. Busy while a removed member still runs a job.
        """
        ...

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """
        The cluster now. Raises NotFound when the peer, asked completely, has no object of it.
        """
        ...

    def delete_cluster(self, cluster_id: str) -> None:
        """
        The cluster's jobs are cancelled and its objects are being removed; absence is success; done when `observe_cluster` says NotFound.
        """
        ...

    def list_clusters(self) -> ClusterList:
        """
        Every cluster at the peer that carries our marks.
        """
        ...

    def drain(self, cluster_id: str, refs: tuple[str, ...], *, reason: str) -> None:
        """
        No new job starts on the members; running ones go on. The peer's reason carries our prefix. An existing drain is left as it is.
        """
        ...

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """
        Drains with our prefix are lifted; others are left alone.
        """
        ...


@runtime_checkable
class SupportsJobs(Protocol):
    """
    A cluster peer that runs batch jobs.
    """

    def submit(self, job: JobSpec) -> str:
        """
        The attempt exists exactly once; the peer's id is returned. Looks for the token first. Refused, NoCapacity for what can never run.
        """
        ...

    def find_job(self, cluster_id: str, token: str) -> JobView:
        """
        The attempt by its token. Raises NotFound when the peer, asked completely, has none.
        """
        ...

    def list_jobs(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        All attempts of the cluster the peer still remembers, in one call. Raises instead of returning an incomplete list.
        """
        ...

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        The attempt has been asked to end; absence is success; read the phase to be sure.
        """
        ...


@runtime_checkable
class SupportsOutput(Protocol):
    """
    A cluster peer that lets us read what jobs print.
    """

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        Up to `limit` bytes of the attempt's combined output from `offset` on. Raises NotFound before there is any.
        """
        ...
