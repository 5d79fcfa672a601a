"""
What a dedicated Slurm cluster is made of. Everything a rendered file depends on stands in a `SlurmPlan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from controlplane.rendering.slurm.hostlist import natural
from controlplane.rendering.slurm.layout import Layout, Ports, Timing
from controlplane.rendering.slurm.releases import RELEASES, Release, ReleaseName

Confinement = Literal["cgroup/v2", "cgroup/v1", "none"]
TopologyKind = Literal["auto", "tree", "block", "flat"]


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """
    GPUs of one node that share a socket.
    """

    first: int
    """Minor number of the first device file."""
    count: int
    """GPUs with consecutive numbers."""
    cores: str = ""
    """Cores next to them, as Slurm counts cores, for example `0-55`; empty: not known, and tasks are not kept near their GPU."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """
    A node's GPUs.
    """

    model: str
    """The catalog's word, for example `H100-SXM5-80GB`."""
    gres_type: str
    """Slurm's type, for example `h100`."""
    groups: tuple[GpuGroup, ...]
    """All GPUs of the node, by socket."""
    device_prefix: str = "/dev/nvidia"
    """Path of a device file up to its number."""

    @property
    def count(self) -> int:
        """
        GPUs on a node.
        """
        return sum(group.count for group in self.groups)


@dataclass(frozen=True, slots=True)
class Rdma:
    """
    The network between a shape's GPUs, as collective libraries must be told.
    """

    kind: Literal["infiniband", "roce"]
    """What the adapters speak."""
    devices: tuple[str, ...]
    """RDMA devices of the compute fabric, in rail order, for example `mlx5_0`; storage and management adapters are left out."""
    interface: str
    """Network interface for connection set-up, for example `bond0`."""
    gid_index: int | None = None
    """Of RoCE v2 addresses; None: the library's choice, which InfiniBand needs."""
    traffic_class: int | None = None
    """For lossless RoCE; None: the library's choice."""
    service_level: int | None = None
    """InfiniBand's; None: the library's choice."""
    rail_optimised: bool = True
    """Whether each rail has switches of its own, so that crossing rails costs a hop."""


@dataclass(frozen=True, slots=True)
class Shape:
    """
    What identical workers have.
    """

    name: str
    """The instance type's name; also the nodes' Feature, so that jobs can ask for it."""
    sockets: int
    """CPU sockets."""
    cores_per_socket: int
    """Cores of one socket."""
    threads_per_core: int
    """Hardware threads of one core."""
    memory_mib: int
    """RealMemory: what the operating system reports as usable."""
    system_memory_mib: int = 0
    """Kept from jobs for the system and slurmd."""
    gpus: Gpus | None = None
    """None for nodes without."""
    rdma: Rdma | None = None
    """None when the nodes have no fabric of that kind."""

    @property
    def cpus(self) -> int:
        """
        Hardware threads of a node.
        """
        return self.sockets * self.cores_per_socket * self.threads_per_core


@dataclass(frozen=True, slots=True)
class Position:
    """
    Where a node hangs in the fabric. Empty words: not known.
    """

    block: str = ""
    """Spine group."""
    leaf: str = ""
    """Leaf switch inside the block."""
    rack: str = ""
    """Rack; no switch is made of it."""
    nvlink_domain: str = ""
    """NVLink rack, for example an NVL72; empty when NVLink ends at the node."""


@dataclass(frozen=True, slots=True)
class Worker:
    """
    One compute node.
    """

    name: str
    """NodeName."""
    address: str
    """IPv4, reached from the head and all workers."""
    shape: str
    """Name of its shape."""
    position: Position = Position()
    """In the fabric."""
    hostname: str = ""
    """What `hostname -s` says there; empty: its name."""
    port: int = 0
    """Of its slurmd; 0: the cluster's. Differs only where several share a host."""


@dataclass(frozen=True, slots=True)
class Host:
    """
    A head or a login.
    """

    name: str
    """What `hostname -s` says there."""
    address: str
    """IPv4, reached from all workers."""


@dataclass(frozen=True, slots=True)
class Partition:
    """
    One queue of the cluster.
    """

    name: str
    """PartitionName."""
    shapes: tuple[str, ...] = ()
    """Its nodes are all of these shapes; empty: all nodes."""
    default: bool = False
    """Where jobs go that name none."""
    max_time_min: int | None = None
    """Longest a job may ask for; None: no limit."""
    default_time_min: int = 60
    """Of a job that asks for none."""
    priority_tier: int = 1
    """Jobs of a higher tier start first, and requeue those of a lower one."""
    only_reservations: bool = False
    """Whether jobs must name a reservation, as shared clusters need it."""
    groups: tuple[str, ...] = ()
    """Unix groups that may use it; empty: everybody."""


@dataclass(frozen=True, slots=True)
class User:
    """
    An account that exists on every host of the cluster with the same numbers.
    """

    name: str
    """Unix name."""
    uid: int
    """Number of the user, and of the group of the same name."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """
    slurmdbd and MariaDB on the first head.
    """

    enforce: tuple[Literal["associations", "limits", "qos", "safe"], ...] = ("associations", "limits", "qos")
    """What a job must satisfy to be taken."""
    account: str = "cluster"
    """Every user of the plan gets an association with it."""
    keep_months: int = 12
    """Jobs and steps older than that are purged."""
    buffer_pool_mib: int = 1024
    """Memory of the database."""


@dataclass(frozen=True, slots=True)
class Containers:
    """
    Enroot and Pyxis on logins and workers; the packages are the image's.
    """

    plugin: str = "/usr/lib/x86_64-linux-gnu/slurm-wlm/spank_pyxis.so"
    """Where the image has Pyxis, built for the same release."""
    scratch_dir: str = "/var/lib/enroot"
    """On a worker's local disk: images are unpacked there."""


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """
    slurmd looks at its node from time to time and drains it when something is missing.
    """

    interval_s: int = 300
    """Between two looks."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    How much a cluster holds.
    """

    max_jobs: int = 50_000
    """Waiting, running and remembered jobs."""
    max_array: int = 10_001
    """Highest index of a job array, plus one."""
    remember_s: int = 3600
    """How long an ended job stays readable without accounting."""


@dataclass(frozen=True, slots=True)
class Install:
    """
    How hosts that keep their disks get another release.
    """

    release: ReleaseName
    """What they then have."""
    fetch: str
    """Shell commands that bring what is needed onto the host and change nothing that runs; empty: none."""
    install: str
    """Shell commands after which the release's programs are in place. They may be run again."""


@dataclass(frozen=True)
class SlurmPlan:
    """
    A dedicated cluster. `check_plan` says whether it can be rendered; every renderer calls it first.
    """

    cluster: str
    """ClusterName, from `words.cluster_name`."""
    release: ReleaseName
    """What is installed on every host; while an upgrade is under way, what the hosts have that were not reached yet."""
    heads: tuple[Host, ...]
    """The first holds slurmctld, slurmrestd and accounting; more take over from a shared state directory."""
    workers: tuple[Worker, ...]
    """Compute nodes, in any order."""
    shapes: tuple[Shape, ...]
    """Of the workers; a shape without workers is allowed, so that growing by it changes nothing else."""
    logins: tuple[Host, ...] = ()
    """Hosts that only submit."""
    partitions: tuple[Partition, ...] = (Partition(name="main", default=True),)
    """At least one; exactly one is the default."""
    users: tuple[User, ...] = ()
    """Accounts jobs run as."""
    confinement: Confinement = "cgroup/v2"
    """By which jobs are held to their cores, memory and devices: what the workers' kernel has mounted."""
    topology: TopologyKind = "auto"
    """auto: blocks where NVLink domains are known and the release has them, else a tree where leaves are known, else flat."""
    imex: bool = False
    """Whether jobs get IMEX channels, so that GPUs of an NVLink domain share memory between nodes."""
    accounting: Accounting | None = None
    """None: no history beyond `limits.remember_s`, no limits per account."""
    containers: Containers | None = None
    """None: none."""
    health: HealthCheck | None = None
    """None: none."""
    limits: Limits = field(default_factory=Limits)
    """How much it holds."""
    timing: Timing = field(default_factory=Timing)
    """How long things may take."""
    ports: Ports = field(default_factory=Ports)
    """Where daemons listen."""
    layout: Layout = field(default_factory=Layout)
    """Where files are."""
    scheduler: tuple[str, ...] = ("bf_continue", "bf_interval=30", "bf_max_job_test=1000", "bf_window=10080")
    """SchedulerParameters."""
    made_up_sizes: bool = False
    """Whether the shapes' sizes win over what slurmd finds, as on test hosts that are smaller than they say."""
    listen_named: bool = False
    """Whether daemons listen only on the address their host's name means, not on all."""
    shared_state: bool = False
    """Whether `layout.state_dir` is one file system of all heads."""
    sends_output: bool = False
    """Whether workers send what jobs print to whoever booted them, as there is no file system on which it could be read."""
    install: Install | None = None
    """The last upgrade: heads have its release, and everybody has where the plan's is the same. None where there was none."""
    hosts_file: bool = True
    """Whether /etc/hosts names all hosts of the cluster; if not, a name service must."""

    @property
    def words(self) -> Release:
        """
        What the release calls things, in all that workers read too.
        """
        return RELEASES[self.release]

    @property
    def head_words(self) -> Release:
        """
        What the heads' own release calls things.
        """
        return RELEASES[self.install.release] if self.install else self.words

    @cached_property
    def shape_of(self) -> Mapping[str, Shape]:
        """
        Shapes by name.
        """
        return {shape.name: shape for shape in self.shapes}

    @cached_property
    def ordered(self) -> tuple[Worker, ...]:
        """
        The workers in the order they are rendered in, whatever order they were given in.
        """
        return tuple(sorted(self.workers, key=lambda one: natural(one.name)))

    @property
    def topology_kind(self) -> Literal["tree", "block", "flat"]:
        """
        The topology that is rendered.
        """
        if self.topology != "auto":
            return self.topology
        if self.words.has_blocks and self.workers and all(one.position.nvlink_domain for one in self.workers):
            return "block"
        return "tree" if any(one.position.leaf for one in self.workers) else "flat"

    @property
    def has_gpus(self) -> bool:
        """
        Whether any shape has GPUs.
        """
        return any(shape.gpus for shape in self.shapes)

    def worker(self, name: str) -> Worker:
        """
        The worker of this name. Raises KeyError.
        """
        return next((one for one in self.workers if one.name == name), None) or _missing(name)


def _missing(name: str) -> Worker:
    raise KeyError(name)
