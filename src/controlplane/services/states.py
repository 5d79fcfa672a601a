"""
The life of a service as data, and the frozen values its steps get and give. Pure.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from controlplane.jobs.states import GivenSecret
from controlplane.kit.states import State, StateTable
from controlplane.nodes.states import ProviderRef

DAY_S = 86_400.0
Phase = Literal["pending", "starting", "ready", "failing", "ending"]

SERVICE_STATES = StateTable(
    kind="service",
    states=(
        State(
            "pending",
            "moving",
            frozenset({"rolling_out", "failed", "deleting"}),
            30 * DAY_S,
            "failed",
            says="Waits for its cluster.",
        ),
        State(
            "rolling_out",
            "moving",
            frozenset({"running", "degraded", "suspended", "failed", "deleting"}),
            6 * 3600,
            "failed",
            keeps_trying=True,
            says="Its replicas become what was asked for.",
        ),
        State(
            "running",
            "settled",
            frozenset({"rolling_out", "degraded", "deleting"}),
            says="All replicas are ready.",
        ),
        State(
            "degraded",
            "settled",
            frozenset({"running", "rolling_out", "deleting"}),
            says="Some replicas are not ready.",
        ),
        State("suspended", "settled", frozenset({"rolling_out", "deleting"}), says="It has no replicas until it is resumed."),
        State(
            "failed", "settled", frozenset({"rolling_out", "deleting"}), says="It was turned down; it can be changed or deleted."
        ),
        State(
            "deleting", "moving", frozenset({"deleted"}), 3600, None, True, "It is gone only once its cluster was seen without it."
        ),
        State("deleted", "final", says="Nothing of it is left."),
    ),
    gone="deleted",
)
CHANGEABLE = frozenset({"pending", "rolling_out", "running", "degraded", "suspended", "failed"})
TAIL_BYTES = 64 * 1024
"""Kept of what each replica printed last."""
LOGS_AT_ONCE = 4
"""Replicas whose output is read by one look."""
MOST_KEPT = 64
"""Replicas that a row tells one by one."""
TROUBLES: Mapping[str, str] = {
    "image_pull": "The image cannot be pulled: see whether it exists and may be read.",
    "image_name": "The image's name is wrong.",
    "crash_loop": "The program ends again and again soon after its start.",
    "out_of_memory": "The program ran out of memory.",
    "no_room": "No node of the cluster has that many free GPUs.",
    "quota": "The quota of the cluster allows no more.",
    "cannot_start": "The container cannot be started: see the command.",
    "node_lost": "Its node does not answer.",
    "not_ready": "It runs and does not answer on its port yet.",
}
"""What keeps replicas from being ready, for people; these are all codes that are shown."""
UNKNOWN_TROUBLE = "The cluster does not say what keeps it."


@dataclass(frozen=True, slots=True)
class ServiceFilter:
    """
    Which services of a project are wanted.
    """

    state: str | None = None
    """In this state; without it, deleted ones are left out."""
    cluster_id: str | None = None
    """On this cluster."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """With all of these labels."""
    created_after: datetime | None = None
    """Later than this."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    One replica as a look found it, in the tenant's names.
    """

    name: str
    """The cluster's name of it."""
    version: int
    """Which version it is."""
    phase: Phase
    """pending, starting, ready, failing or ending."""
    trouble: str
    """Stable code of why it is not ready; empty where nothing is wrong."""
    exit_code: int | None
    """Of its last end."""
    restarts: int
    """How often it was started again."""
    instances: tuple[str, ...]
    """Where it is."""
    gpus: int
    """GPUs, or slices of GPUs, that it holds."""
    profile: str = ""
    """The MIG profile of the slices; empty: whole GPUs."""

    def document(self) -> dict[str, Any]:
        """
        As its row keeps it.
        """
        return asdict(self) | {"instances": list(self.instances)}


@dataclass(frozen=True, slots=True)
class Tail:
    """
    What a replica printed last.
    """

    replica: str
    """Which one."""
    version: int
    """Its version."""
    data: bytes
    """At most `TAIL_BYTES`."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """
    What a step learnt and `apply` stores with the move; None leaves a column as it is.
    """

    observed: bool = False
    """Whether the cluster was seen: then the next five are what it showed."""
    replicas: tuple[Seen, ...] = ()
    """All there are."""
    wanted: int = 0
    """Replicas the cluster aims at."""
    address: str = ""
    """Where others on the cluster reach it."""
    trouble: str = ""
    """Code of what is wrong; empty where nothing is."""
    outcome: str = ""
    """What came of the present version: `ready` or `failed`; empty: not known yet."""
    tails: tuple[Tail, ...] = ()
    """What replicas printed last."""
    next_tail: int = 0
    """Which replica's output is read first by the next look."""


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """
    All that a step of a service may know.
    """

    id: str
    """`svc_…`."""
    state: str
    """Where it stands."""
    step: str
    """Part of the state."""
    tenant_id: str
    """Whose."""
    cluster_id: str
    """Where it runs."""
    cluster_state: str
    """Whether it can."""
    provider: ProviderRef | None
    """Who keeps it up."""
    instances: Mapping[str, str]
    """Member ref to the tenant's instance id."""
    gpu_model: str
    """As in the catalog; empty: any."""
    version: int
    """Of the template."""
    turn: int
    """Rises with every change of the service."""
    template: Mapping[str, Any]
    """What a replica is."""
    replicas: int
    """How many; where scaling is given, how many it has now."""
    scaling: Mapping[str, Any] | None
    """By which metric."""
    rollout: Mapping[str, Any]
    """How versions follow each other."""
    suspended: bool
    """Whether it is to have none."""
    state_age_s: float = 0.0
    """How long it has been in its state."""
    next_tail: int = 0
    """Which replica's output is read first."""
    secrets: tuple[GivenSecret, ...] = ()
    """That replicas are given; only where the cluster is about to be told."""
