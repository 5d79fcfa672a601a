"""
The life of a job as data, and the frozen values its steps get and give. Pure.
"""

from dataclasses import dataclass
from datetime import datetime

from controlplane.kit.states import State, StateTable
from controlplane.nodes.states import ProviderRef

ENDS = frozenset({"succeeded", "failed", "cancelled"})

JOB_STATES = StateTable(
    kind="job",
    states=(
        State(
            "queued", "moving", frozenset({"admitted", "failed", "cancelled"}), 30 * 86400, "failed", says="Waits for its cluster."
        ),
        State(
            "admitted", "moving", frozenset({"starting", "queued"}) | ENDS, 3600, "failed", says="May be handed to the scheduler."
        ),
        State(
            "starting",
            "moving",
            frozenset({"running", "completing", "queued", "unknown"}),
            30 * 86400,
            "completing",
            says="With the scheduler.",
        ),
        State(
            "running", "moving", frozenset({"completing", "starting", "queued", "unknown"}), 60 * 86400, "completing", says="Runs."
        ),
        State("completing", "moving", frozenset({"queued"}) | ENDS, 3600, "failed", says="Ended; its output is being collected."),
        State(
            "unknown",
            "moving",
            frozenset({"starting", "running", "completing", "queued"}),
            86400,
            "completing",
            says="The scheduler cannot say.",
        ),
        State("succeeded", "final", says="Ended with exit code 0."),
        State("failed", "final", says="Ended otherwise; see failure_class."),
        State("cancelled", "final", says="Stopped on request."),
    ),
)

RESTARTS_BY_ITSELF = frozenset({"node_fault", "fabric_fault", "provider_fault", "preempted"})


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
    placement: tuple[str, ...] | None = None
    """Instance ids."""
    started_at: datetime | None = None
    """Provider's clock."""
    ended_at: datetime | None = None
    """Provider's clock."""
    expected_start_at: datetime | None = None
    """Provider's estimate."""
    requeues: int | None = None
    """Restarts by the scheduler."""
    log_offset: int | None = None
    """Where `log` starts."""
    log: bytes = b""
    """New output."""
    next_attempt: bool = False
    """Whether another try begins."""
    issue: tuple[str, str] | None = None
    """(code, message)."""
