"""
The life of a cluster as data, and the frozen values its steps get and give. Pure.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from controlplane.clusters.offers import Offers
from controlplane.clusters.refusals import Refusal
from controlplane.clusters.takeovers import Takeover
from controlplane.kit.states import State, StateTable
from controlplane.nodes.states import ProviderRef
from controlplane.rendering.kubernetes.joining import Entry
from controlplane.rendering.kubernetes.plan import Distribution

BARE = "baremetal"
KUBERNETES = "kubernetes"
MANAGED: Literal["managed"] = "managed"
"""The distribution of a Kubernetes whose control planes its provider makes and keeps, out of sight."""
SetRole = Literal["worker", "head", "login", "control_plane"]
COORDINATORS = frozenset({"head", "control_plane"})
"""Roles of nodes that hold what their cluster knows."""
DELETE = frozenset({"deleting"})

CLUSTER_STATES = StateTable(
    kind="cluster",
    gone="deleted",
    states=(
        State("pending", "moving", frozenset({"placing", "adopting", "failed"}) | DELETE, 600, "failed", says="Ordered."),
        State(
            "placing",
            "moving",
            frozenset({"provisioning", "failed"}) | DELETE,
            30 * 86400,
            "failed",
            says="Nodes are being chosen.",
        ),
        State(
            "provisioning",
            "moving",
            frozenset({"bootstrapping", "failed"}) | DELETE,
            4 * 3600,
            "failed",
            says="Nodes are being deployed.",
        ),
        State(
            "bootstrapping",
            "moving",
            frozenset({"verifying", "failed"}) | DELETE,
            3600,
            "failed",
            says="The product is being set up.",
        ),
        State("verifying", "moving", frozenset({"running", "failed"}) | DELETE, 3600, "failed", says="Acceptance checks run."),
        State(
            "adopting",
            "moving",
            frozenset({"running"}) | DELETE,
            3600,
            "deleting",
            says="Being taken over as it is, with the nodes that it runs on.",
        ),
        State(  # a look that is refused says nothing of the cluster: it is looked at again
            "running", "settled", frozenset({"degraded", "updating", "upgrading"}) | DELETE, keeps_trying=True, says="In use."
        ),
        State(
            "degraded",
            "settled",
            frozenset({"running", "updating", "upgrading"}) | DELETE,
            keeps_trying=True,
            says="In use with fewer healthy nodes than ordered.",
        ),
        State("updating", "moving", frozenset({"running", "degraded"}) | DELETE, 4 * 3600, "degraded", says="Being changed."),
        State(
            "upgrading",
            "moving",
            frozenset({"running"}) | DELETE,
            30 * 86400,
            says="In use; its hosts are upgraded a few at a time.",
        ),
        State("failed", "settled", DELETE, says="Could not be made; holds nothing and costs nothing."),
        State("deleting", "moving", frozenset({"deleted"}), 3600, None, True, "Being taken down; billing has ended."),
        State("deleted", "final", says="The provider was seen without it."),
    ),
)


@dataclass(frozen=True, slots=True)
class Options:
    """
    Parts of a Slurm of one's own that not every order has.
    """

    accounting: bool = False
    """History and limits per account."""
    containers: bool = False
    """Enroot and Pyxis."""


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """
    What may be chosen for a Kubernetes of one's own.
    """

    distribution: Distribution | Literal["managed"] = "kubeadm"
    """Who sets it up; managed: its provider, which keeps its control planes as well."""
    version: str = ""
    """Of Kubernetes; empty: what the site offers."""


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """
    One allocation of the cluster.
    """

    allocation_id: str
    """Token at the provider."""
    instance_id: str
    """The tenant's name."""
    node_id: str
    """Operators only."""
    ref: str
    """Name at the provider."""
    gpus: int
    """GPUs it brings to work."""
    state: str
    """held, active, releasing or ended."""
    node_state: str
    """Where its node stands."""
    node_set_id: str
    """Which set it counts for."""
    billed: bool
    """Whether its meter runs."""
    node_health: str = "ok"
    """Worst class of its node's open reports."""
    role: str = "worker"
    """worker; head or login of a Slurm of its owner's own, control_plane of a Kubernetes."""
    current: bool = True
    """Whether its machine has reported that it holds its files as they are now; true where it has none."""
    trouble: str = ""
    """What of its files it could not put in place, for operators."""


@dataclass(frozen=True, slots=True)
class SetView:
    """
    A node set as callers see it.
    """

    id: str
    """`nds_…`."""
    name: str
    """Unique in the cluster."""
    instance_type: str
    """What its nodes are."""
    count: int
    """How many are wanted."""
    gpus: int
    """GPUs of one of its nodes."""
    role: str = "worker"
    """worker; head or login of a Slurm of its owner's own, control_plane of a Kubernetes."""
    image: str | None = None
    """What is written to their disks from now on."""
    images: Mapping[str, int] = field(default_factory=dict)
    """What was written to the disks of those in use: how many have which image; an empty id: none."""


@dataclass(frozen=True, slots=True)
class SetSnapshot:
    """
    One node set and how many nodes it lacks.
    """

    id: str
    """`nds_…`."""
    name: str
    """Unique in the cluster."""
    instance_type: str
    """What its nodes are."""
    wanted: int
    """How many."""


@dataclass(frozen=True, slots=True)
class Roll:
    """
    How far an upgrade of workers is.
    """

    sets: tuple[str, ...]
    """Ids of the node sets whose workers are installed anew."""
    at_once: int
    """Most workers that may be out of use for it."""
    drain_limit_s: float
    """How long running jobs are waited for; then a worker is installed anew all the same."""
    return_limit_s: float
    """How long a worker that was installed anew may take to be in use again."""
    done: tuple[str, ...] = ()
    """Allocations that are in use again."""
    batch: tuple[str, ...] = ()
    """Allocations that are out for it now."""
    started: tuple[str, ...] = ()
    """Those of the batch whose installation was begun."""
    began_s: float = 0.0
    """When the present part of it began, counted from when the cluster came to the state."""
    cancelled: bool = False
    """Whether its owner has asked to stop."""
    install: Mapping[str, str] | None = None
    """{release, fetch, install} where Slurm's release changes, with `version` where Kubernetes' does; none where it stays."""
    head_done: bool = False
    """Whether the head has that release, or all control planes have that version."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """
    All that a step of a cluster may know.
    """

    id: str
    """`clu_…`."""
    state: str
    """Where it stands."""
    step: str
    """Part of the state."""
    tenant_id: str
    """Whose."""
    project_id: str
    """Its project."""
    kind: str
    """slurm, baremetal or kubernetes."""
    user: str
    """Account at the provider."""
    provider: ProviderRef | None
    """Who makes it; none before placement."""
    members: tuple[MemberSnapshot, ...]
    """Its allocations that are not ended."""
    sets: tuple[SetSnapshot, ...]
    """What was ordered."""
    observe_interval_s: float
    """How often a settled cluster is looked at."""
    leaving: frozenset[str] = frozenset()
    """Allocation ids that an update takes out."""
    state_for_s: float = 0.0
    """How long it has been in its state."""
    dedicated: bool = False
    """Whether it is a Slurm or a Kubernetes of its owner's own."""
    roll: Roll | None = None
    """How far its last upgrade is; none where there was none."""
    release: str = ""
    """What the head of a Slurm of its owner's own has; empty for others."""
    distribution: str = ""
    """Who sets up a Kubernetes of its owner's own; empty for others."""
    version: str = ""
    """Of Kubernetes, where its provider makes it at a version; empty for others."""
    ahead: Mapping[str, str] = field(default_factory=dict)
    """Allocations whose hosts are told a later version of Kubernetes than the others: of their API server, or of all."""
    offers: Offers = field(default_factory=Offers)
    """What jobs may ask of it."""
    came: bool = False
    """Whether it is a Kubernetes that stood before it was ours: nothing of ours is on its control planes, and its authority's key is not
    ours."""
    takes: Takeover | None = None
    """What is being taken over, until it runs with us, or let go again: it is not ours to take down. None for others."""
    refusal: Refusal | None = None
    """Why the provider turned its change down, while that is undone; None for others."""

    @property
    def lacking(self) -> int:
        """
        Nodes ordered and not held.
        """
        staying = [m for m in self.members if m.state in {"held", "active"} and m.allocation_id not in self.leaving]
        return max(0, sum(one.wanted for one in self.sets) - len(staying))


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """
    What a step learnt and `apply` stores with the move.
    """

    usable_at: dict[str, datetime | None] = field(default_factory=dict)
    """Allocations that became usable, with the provider's evidence of when; None: the database's clock decides."""
    checks: tuple[dict[str, str], ...] | None = None
    """Acceptance facts."""
    issues: tuple[dict[str, str], ...] | None = None
    """What is wrong: [{code, message}]."""
    release: tuple[str, ...] = ()
    """Allocations the provider was seen without: their nodes may be taken down."""
    release_reason: str = "released"
    """Why."""
    hand_back: tuple[str, ...] = ()
    """Allocations of a cluster that was let go: their machines stay as they are."""
    renew: Literal["", "members", "drain", "final"] = ""
    """Which files its hosts get: with those that leave as they are, drained, or without them; empty: the files stay as they are."""
    drain: tuple[str, ...] = ()
    """Allocations that the renewed files drain besides, though they stay."""
    roll: Mapping[str, Any] = field(default_factory=dict)
    """What of an upgrade's progress is new."""
    reinstall: tuple[str, ...] = ()
    """Allocations whose installation is to begin now."""
    follow: Literal["", "head", "all"] = ""
    """Who has the release of the upgrade from now on, as far as renewed files are concerned; empty: nobody who had not."""
    versions: Mapping[str, Any] = field(default_factory=dict)
    """What is new in what is kept of a Kubernetes' versions."""
    undone: bool = False
    """Whether the provider was seen without the change that it turned down."""
    entry: Entry | None = None
    """What new workers join by from now on; None: as before."""
    stopped: bool = False
    """Whether the operation ends as its owner wished: cancelled."""
    health: tuple[tuple[str, str, str], ...] = ()
    """What the scheduler shows of members: (node id, class, words)."""
    job_features: tuple[str, ...] | None = None
    """What jobs may ask for from now on, where the cluster's own API tells; None: as before, and the next two say nothing."""
    volumes: tuple[str, ...] = ()
    """Names of what they can mount."""
    mig: Mapping[str, int] = field(default_factory=dict)
    """MIG profile to the most that one of its nodes has of it."""


HOME_READY = frozenset({"running", "degraded", "updating", "upgrading"})
"""Cluster states in which work is handed to a cluster: jobs, services, credentials."""
HOME_LOST = frozenset({"failed", "deleting", "deleted"})
"""Cluster states from which none comes back."""


@dataclass(frozen=True, slots=True)
class Home:
    """
    A cluster as the jobs that run on it need to know it.
    """

    cluster_id: str
    """`clu_…`."""
    tenant_id: str
    """Whose."""
    project_id: str
    """Its project."""
    state: str
    """Where it stands."""
    kind: str
    """slurm, baremetal or kubernetes."""
    user: str
    """Account at the provider."""
    provider: ProviderRef | None
    """Who runs it; none before placement."""
    instances: dict[str, str]
    """Active members: name at the provider to the tenant's instance id."""
    nodes: int
    """Nodes that are ordered: it has, or will have, so many."""
    gpus_per_node: int
    """GPUs of its largest node."""
    gpu_model: str
    """As in the catalog; empty where its node sets differ."""
    dedicated: bool = False
    """Whether it is a Slurm or a Kubernetes of its owner's own."""
    managed: bool = False
    """Whether it is a Kubernetes of its owner's own whose control planes its provider keeps."""
    runs: tuple[str, ...] | None = None
    """What work runs in it, where that is its provider's to say and was said: jobs, services; None: whatever its kind runs."""
    offers: Offers = field(default_factory=Offers)
    """What jobs and services may ask of it."""

    @property
    def sends_output(self) -> bool:
        """
        Whether its nodes send by themselves what jobs print; else its provider is asked for it.
        """
        return self.dedicated and self.kind != KUBERNETES

    @property
    def ruled(self) -> bool:
        """
        Whether its owner may do anything in it, and to the work in it.
        """
        return self.dedicated or self.managed


@dataclass(frozen=True, slots=True)
class KubeconfigAsk:
    """
    What a provider is asked for on behalf of somebody who may have it.
    """

    cluster_id: str
    """`clu_…`."""
    tenant_id: str
    """Whose it is."""
    provider: ProviderRef
    """Who makes it."""
    lifetime_s: int
    """For how long."""


@dataclass(frozen=True, slots=True)
class SetOrder:
    """
    Identical nodes that are ordered.
    """

    name: str
    """Unique in the order."""
    instance_type: str
    """What they are."""
    count: int
    """How many."""
    role: SetRole = "worker"
    """head and login: parts of a Slurm of one's own; control_plane: of a Kubernetes."""
    image: str | None = None
    """What is written to their disks; none: nothing."""


@dataclass(frozen=True, slots=True)
class Login:
    """
    How the owner of a cluster gets into its nodes.
    """

    ssh_keys: tuple[str, ...]
    """Public keys, each as a line of authorized_keys."""
    user_data: str = field(default="", repr=False)
    """Given to cloud-init after the operator's own part; empty for none."""


@dataclass(frozen=True, slots=True)
class Order:
    """
    A cluster that is ordered.
    """

    name: str
    """Unique in the project."""
    kind: str
    """slurm, baremetal or kubernetes."""
    site: str
    """Where."""
    sets: tuple[SetOrder, ...]
    """At least one."""
    wait: bool = False
    """Whether it waits for capacity instead of being refused."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Free key-value pairs."""
    login: Login | None = None
    """For nodes that are their owner's to log in to, and only there."""
    slurm: Options | None = None
    """For a Slurm of one's own."""
    kubernetes: KubernetesOptions | None = None
    """For a Kubernetes of one's own."""

    @property
    def opens_nodes(self) -> bool:
        """
        Whether the nodes are their owner's to log in to.
        """
        return self.kind == BARE or self.own

    @property
    def own(self) -> bool:
        """
        Whether the product is made of the nodes by themselves and shared with nobody.
        """
        return self.slurm is not None or (self.kubernetes is not None and not self.managed)

    @property
    def managed(self) -> bool:
        """
        Whether it is a Kubernetes whose control planes its provider makes and keeps.
        """
        return self.kubernetes is not None and self.kubernetes.distribution == MANAGED

    @property
    def spec(self) -> dict[str, Any]:
        """
        The order as it is kept and shown: without what is secret.
        """
        sets = [asdict(one) for one in self.sets]
        login = {"ssh_keys": list(self.login.ssh_keys), "has_user_data": bool(self.login.user_data)} if self.login else None
        slurm = None if self.slurm is None else asdict(self.slurm)
        kubernetes = None if self.kubernetes is None else asdict(self.kubernetes)
        return {
            "kind": self.kind,
            "site": self.site,
            "node_sets": sets,
            "wait": self.wait,
            "login": login,
            "slurm": slurm,
            "kubernetes": kubernetes,
        }
