"""
The life of a job as data, and the frozen values its steps get and give. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from controlplane.kit.states import State, StateTable
from controlplane.nodes.states import ProviderRef

ENDS = frozenset({"succeeded", "failed", "cancelled"})
HELD = frozenset({"queued"})
"""States in which a job is with us alone."""
DAY_S = 86_400.0

JOB_STATES = StateTable(
    kind="job",
    states=(
        State(
            "queued", "moving", frozenset({"admitted", "failed", "cancelled"}), 30 * DAY_S, "failed", says="Waits for its cluster."
        ),
        State(
            "admitted",
            "moving",
            frozenset({"starting", "unknown", "failed", "cancelled"}),
            3600,
            "failed",
            keeps_trying=True,
            says="May be handed to the scheduler.",
        ),
        State(
            "starting",
            "moving",
            frozenset({"running", "completing", "unknown"}),
            30 * DAY_S,
            "completing",
            keeps_trying=True,
            says="With the scheduler.",
        ),
        State(
            "running",
            "moving",
            frozenset({"completing", "starting", "unknown"}),
            60 * DAY_S,
            "completing",
            keeps_trying=True,
            says="Runs.",
        ),
        State(
            "completing",
            "moving",
            frozenset({"queued"}) | ENDS,
            3600,
            "failed",
            keeps_trying=True,
            says="Ended; its output is being collected.",
        ),
        State(
            "unknown",
            "moving",
            frozenset({"starting", "running", "completing"}),
            DAY_S,
            "completing",
            keeps_trying=True,
            says="The scheduler does not say.",
        ),
        State("succeeded", "final", says="Ended with exit code 0."),
        State("failed", "final", says="Ended otherwise; see failure_class."),
        State("cancelled", "final", says="Stopped on request."),
    ),
)

CHECKPOINT_STATES = StateTable(
    kind="checkpoint",
    states=(
        State("writing", "settled", frozenset({"good", "bad", "deleted"}), says="Is being written."),
        State("good", "settled", frozenset({"bad", "deleted"}), says="Complete: a restart can go on from it."),
        State("bad", "settled", frozenset({"deleted"}), says="Its owner says that it cannot be used."),
        State("deleted", "final", says="Its data is gone."),
    ),
)

RESTARTS_BY_ITSELF = frozenset({"node_fault", "fabric_fault", "provider_fault", "preempted"})
FAILURE_WORDS = {
    "user_error": "The script did not end well.",
    "out_of_memory": "It ran out of memory.",
    "node_fault": "A node failed under it.",
    "fabric_fault": "The fabric failed under it.",
    "preempted": "It had to make room for other work.",
    "time_limit": "It ran into its time limit.",
    "provider_fault": "The scheduler could not run it.",
    "unknown": "Nobody can say how it ended.",
}
"""What each failure class means; these are all that a job can have."""

FEATURE_HINTS: dict[str, tuple[str, str]] = {
    "gangs": ("it starts no gangs of several nodes.", "Ask for one node, or use a Slurm cluster."),
    "priority": ("its jobs start in the order they came.", "Leave the priority at normal."),
    "image": ("it runs no containers.", "Leave out the image, or use a Kubernetes cluster."),
    "launch_torchrun": ("it has no recipe for torchrun.", "Send a script that starts it."),
    "launch_mpi": (
        "it cannot start the processes of an MPI program.",
        "Use a Slurm cluster, a Kubernetes with the MPI operator, or launch with torchrun.",
    ),
    "secret_env": ("it cannot keep secrets.", "Leave them out."),
    "secret_files": ("it delivers secrets as environment only.", "Deliver the secret as env, or use a Kubernetes cluster."),
    "gpu_attributes": (
        "it only counts its GPUs.",
        "Leave out gpu and ask by gpus_per_node, or use a cluster whose GPUs are claimed.",
    ),
    "gpu_nvlink": ("nothing there tells which GPUs have NVLink.", "Leave out gpu.nvlink."),
    "mig": ("its GPUs are not partitioned.", "Ask for whole GPUs by gpus_per_node, or use a cluster of partitioned ones."),
    "idle_stop": (
        "nothing there tells how busy its GPUs are.",
        "Leave out idle_stop_min, for a time limit ends the job as well; or label the Prometheus where the Kubernetes is your own.",
    ),
    "mounts": (
        "no volumes are offered there.",
        "Leave out the mounts; ask the operator for a volume, or make a claim where the Kubernetes is your own.",
    ),
}
"""What a job may need of a provider, each with what is missing where it is not offered and what to do then."""

OUTPUT_CAP_BYTES = 16 * 1024 * 1024
"""Output kept of one attempt."""
PIECE_BYTES = 64 * 1024
"""Output read by one step."""
TRUNCATED = b"\n[the output goes on; only its first 16 MiB are kept]\n"
"""Stands behind the last byte that was kept, so that more than the cap is stored exactly when something was cut off."""
ABSENCE_GAP_S = 90.0
"""A job is believed lost when the scheduler did not know it twice, this long apart: longer than its answers may be stale."""


def gpu_features(wanted: Mapping[str, Any] | None) -> dict[str, bool]:
    """
    What an order's kind of GPU needs of a provider.
    """
    return {"gpu_attributes": bool(wanted), "gpu_nvlink": bool(wanted and wanted.get("nvlink"))}


def features_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """
    What the job needs of a provider besides nodes, GPUs, a script and its environment.
    """
    launch = (spec.get("launch") or {}).get("kind")
    wanted = {
        "gangs": spec["nodes"] > 1,
        "priority": spec.get("priority", "normal") != "normal",
        "image": bool(spec.get("image")),
        "launch_torchrun": launch == "torchrun",
        "launch_mpi": launch == "mpi",
        "secret_env": any(one["env"] for one in spec.get("secrets") or ()),
        "secret_files": any(one["file"] for one in spec.get("secrets") or ()),
        "mounts": bool(spec.get("mounts")),
        "idle_stop": bool(spec.get("idle_stop_min")),
        "mig": bool(spec.get("mig")),
        **gpu_features(spec.get("gpu")),
    }
    return tuple(name for name, asked in wanted.items() if asked)


IDLE_PERCENT = 1.0
"""A GPU that was never used more than this does nothing."""
IDLED = "idle_stopped"
"""The issue of an attempt that is, or was, stopped because its GPUs are idle."""
REMOVED = "removed_in_cluster"
"""The issue of an attempt that somebody took away where its cluster's owner rules."""
REMOVED_WORDS = "Its cluster does not have it any more: somebody removed it there, so nobody can say how it ended."


def folded(tasks: Mapping[str, int]) -> str:
    """
    What the states of an array's tasks come to: queued until one is under way, running until all have ended, then the worst end.
    """
    here = {state for state, number in tasks.items() if number}
    if not here <= ENDS:
        return "queued" if here <= HELD else "running"
    return next((end for end in ("failed", "cancelled") if end in here), "succeeded")


def array_env(array_id: str | None, index: int | None) -> dict[str, str]:
    """
    What a task is told of its array; nothing where it is none's.
    """
    return {} if array_id is None else {"ARRAY_ID": array_id, "ARRAY_INDEX": str(index)}


def poll_in_s(state_age_s: float) -> float:
    """
    When a job is looked at again: every 2 s while its state is fresh, every 15 s in the end.
    """
    return min(15.0, max(2.0, state_age_s / 20))


def restart_in_s(restarts: int) -> float:
    """
    How long to wait before the next restart, when there were so many: 5 s, doubling, at most 5 minutes.
    """
    return float(min(300, 5 * 2 ** min(restarts, 10)))


CheckpointKind = Literal["full", "sharded", "incremental", "weights"]
Tier = Literal["hot", "warm", "cold"]
Keeping = Literal["hot", "warm", "cold", "drop"]


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """
    A checkpoint as its job registers it.
    """

    step: int
    """The training step it was taken at."""
    kind: CheckpointKind
    """What it holds."""
    location: str
    """A path or URL that the job can read."""
    size_bytes: int | None
    """Its size; None while it is being written."""
    tier: Tier = "hot"
    """Where it lies."""
    taken_at: datetime | None = None
    """When it was taken; None: now."""
    attempt: int | None = None
    """Which try saved it; None: the present one."""


@dataclass(frozen=True, slots=True)
class Retention:
    """
    How long checkpoints are kept, and where. The last good one of a job is always kept.
    """

    hot_last: int = 3
    """So many of a job's last good ones are hot."""
    warm_last: int = 5
    """So many before these are warm."""
    cold_every_steps: int | None = None
    """Of older ones, those whose step is a multiple of this are cold, the others can go; None: all are kept."""
    cold_days: int | None = None
    """Older ones can go after so many days; None: never."""


@dataclass(frozen=True, slots=True)
class CheckpointFilter:
    """
    Which checkpoints a list shows; None: all.
    """

    job_id: str | None = None
    """Only of this job."""
    state: str | None = None
    """Only in this state; without it, deleted ones are left out."""
    due: bool | None = None
    """Only those that lie elsewhere than the policy wants (True), or where it wants (False)."""


def resume_env(last: Mapping[str, Any] | None) -> dict[str, str]:
    """
    What a new attempt is told of the last good checkpoint; nothing where there is none.
    """
    if not last:
        return {}
    return {
        "RESUME_CHECKPOINT": str(last["id"]),
        "RESUME_STEP": str(last["step"]),
        "RESUME_LOCATION": str(last["location"]),
    }


@dataclass(frozen=True, slots=True)
class Parent:
    """
    A job that another one waits for, as it stands.
    """

    id: str
    """`job_…`."""
    condition: str
    """afterok or afterany."""
    state: str
    """Where it stands."""

    @property
    def hopeless(self) -> bool:
        """
        Whether what waits for it can never start.
        """
        return self.condition == "afterok" and self.state in ENDS - {"succeeded"}

    @property
    def awaited(self) -> bool:
        """
        Whether it has not ended yet.
        """
        return self.state not in ENDS


@dataclass(frozen=True, slots=True)
class JobFilter:
    """
    Which jobs of a project are wanted.
    """

    state: str | None = None
    """In this state."""
    cluster_id: str | None = None
    """On this cluster."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """With all of these labels."""
    created_after: datetime | None = None
    """Later than this."""
    array_id: str | None = None
    """Tasks of this array."""


@dataclass(frozen=True, slots=True)
class GivenSecret:
    """
    A secret of the project that a job or a service is given.
    """

    name: str
    """As it is named there."""
    env: str | None
    """The variable it becomes."""
    file: str | None
    """The file it becomes."""
    id: str = ""
    """Of its row; empty where there is none any more."""
    sealed: bytes = field(default=b"", repr=False)
    """Its value, sealed for that row."""


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """
    All that a step of a job may know.
    """

    id: str
    """`job_…`."""
    state: str
    """Where it stands."""
    step: str
    """Part of the state."""
    attempt: int
    """The try under way."""
    tenant_id: str
    """Whose."""
    cluster_id: str
    """Where it runs."""
    cluster_state: str
    """Whether it can."""
    user: str
    """Account at the provider."""
    provider: ProviderRef | None
    """Who runs it."""
    script: str
    """Batch script."""
    nodes: int
    """Gang."""
    gpus_per_node: int
    """GPUs on each."""
    tasks_per_node: int
    """Tasks on each."""
    time_limit_s: int
    """Hard limit."""
    env: dict[str, str]
    """Environment."""
    gpu_model: str
    """As in the catalog; empty: any."""
    max_restarts: int
    """How often we start it again by failure class."""
    restarts: int
    """How often we did."""
    cancel: bool
    """Whether somebody asked to stop it."""
    log_bytes: int
    """Output stored of this attempt."""
    instances: dict[str, str]
    """Member ref to the tenant's instance id."""
    state_age_s: float = 0.0
    """How long it has been in its state, by the database's clock."""
    unsure: bool = False
    """Whether a submit may have taken effect that we have no answer of."""
    verdict: str = ""
    """How the attempt ended: a final state, or empty."""
    exit_code: int | None = None
    """Of the script, when it ended."""
    failure_class: str | None = None
    """Why it failed, when it did."""
    ran: bool = False
    """Whether the attempt was ever seen running."""
    placement: tuple[str, ...] = ()
    """Instance ids stored for the attempt."""
    requeues: int = 0
    """Restarts of this attempt by the scheduler that were counted."""
    image: str = ""
    """The container image; empty: none."""
    priority: str = "normal"
    """low, normal or high."""
    launch: dict[str, Any] | None = None
    """What runs in the place of a script."""
    secrets: tuple[GivenSecret, ...] = ()
    """What it is given sealed."""
    mounts: tuple[Mapping[str, Any], ...] = ()
    """{volume, path, read_only} of what its containers are given."""
    gpu: Mapping[str, Any] | None = None
    """{model, min_memory_gib, nvlink} that its GPUs must have; None: any of its cluster's."""
    mig: Mapping[str, Any] | None = None
    """{profile, per_node, slices, of_slices} that it has in the place of whole GPUs; None: none."""
    idle_stop_s: int | None = None
    """It is stopped once its GPUs were idle for so long; None: never."""
    idled: bool = False
    """Whether the present attempt was found idle and is being stopped."""
    hopeless: str = ""
    """The code of what the present attempt was given up for while it waited; empty: it was not."""
    resume_step: int | None = None
    """The step of the last good checkpoint; None where there is none."""
    sent: bool = False
    """Whether its nodes send its output themselves, so that none is read at the scheduler."""
    ruled: bool = False
    """Whether its cluster is its owner's own, who may remove there what is ours."""
    removed: bool = False
    """Whether the present attempt was removed so."""
    log_closed: bool = False
    """Whether they have said that nothing follows."""
    cluster_kind: str = ""
    """What its cluster was ordered as; empty where there is none any more."""

    @property
    def stopping(self) -> bool:
        """
        Whether it is to end: by somebody's wish, because its GPUs are idle, or because it waits in vain.
        """
        return self.cancel or self.idled or bool(self.hopeless)

    @property
    def token(self) -> str:
        """
        The attempt's name at the provider.
        """
        return f"{self.id}-{self.attempt}"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """
    What a step learnt and `apply` stores with the move; None leaves a column as it is.
    """

    external_id: str | None = None
    """The provider's id."""
    exit_code: int | None = None
    """Of the script."""
    signal: int | None = None
    """That ended it."""
    failure_class: str | None = None
    """When it failed."""
    verdict: str | None = None
    """The final state that the attempt's end stands for."""
    placement: tuple[str, ...] | None = None
    """Instance ids."""
    started_at: datetime | None = None
    """Provider's clock."""
    ended_at: datetime | None = None
    """Provider's clock."""
    expected_start_at: datetime | None = None
    """Provider's estimate."""
    observed: bool = False
    """Whether the scheduler was seen: then no estimate means that there is none any more."""
    requeues: int | None = None
    """Restarts of this attempt by the scheduler."""
    log_offset: int | None = None
    """Where `log` starts."""
    log: bytes = b""
    """New output."""
    next_attempt: bool = False
    """Whether another try begins."""
    resume_in_s: float = 0.0
    """When the next try may begin."""
    issue: tuple[str, str] | None = None
    """(code, message)."""
