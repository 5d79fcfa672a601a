"""
Jobs on the wire.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from controlplane.jobs.models import JobRow
from controlplane.jobs.ordering import JobOrder
from controlplane.jobs.service import Slice
from controlplane.web.programs import (
    Env,
    GpuUse,
    GpuUseOut,
    Image,
    MigUse,
    MigUseOut,
    MountPath,
    SecretUse,
    SecretUseOut,
    check_ways,
)
from controlplane.web.schemas import Body, Issue, Labels, Moment, Out, Status

MAX_SCRIPT_BYTES = 64 * 1024
MAX_COMMAND_BYTES = 32 * 1024
SCRIPT = '#!/bin/bash\nsrun python train.py --resume "$CHECKPOINTS"\n'


def _check_script(script: str) -> str:
    if not script.startswith("#!"):
        raise ValueError("the script must begin with #!, for example #!/bin/bash")
    if "\x00" in script:
        raise ValueError("a script cannot hold NUL")
    if "\r\n" in script:
        raise ValueError("the script has DOS line ends; send it with \\n alone")
    if len(script.encode(errors="replace")) > MAX_SCRIPT_BYTES:
        raise ValueError(f"a script has at most {MAX_SCRIPT_BYTES} bytes")
    return script


def _check_names(env: dict[str, str]) -> dict[str, str]:
    if any(name.upper().startswith("SLURM_") for name in env):
        raise ValueError("names that begin with SLURM_ are the scheduler's")
    return env


JobName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"),
    Field(description="Lower-case letters, digits and dashes; several jobs may share a name.", examples=["train-7b"]),
]


def _check_command(words: list[str]) -> list[str]:
    if any("\x00" in word for word in words):
        raise ValueError("a word cannot hold NUL")
    if sum(len(word.encode(errors="replace")) for word in words) > MAX_COMMAND_BYTES:
        raise ValueError(f"a command has at most {MAX_COMMAND_BYTES} bytes")
    return words


def _check_setup(lines: str) -> str:
    if "\x00" in lines or "\r" in lines:
        raise ValueError("setup lines end with \\n and cannot hold NUL")
    return lines


Command = Annotated[list[Annotated[str, StringConstraints(max_length=8192)]], AfterValidator(_check_command)]
Setup = Annotated[str, StringConstraints(max_length=8192), AfterValidator(_check_setup)]
Script = Annotated[str, StringConstraints(min_length=2, max_length=MAX_SCRIPT_BYTES), AfterValidator(_check_script)]
PriorityClass = Literal["low", "normal", "high"]


class Restart(Body):
    """
    When a job starts again by itself: after faults that are not its own (nodes, fabric, provider, preemption).
    """

    max_restarts: int = Field(default=3, ge=0, le=10, description="How often at most.", examples=[3])


class Launch(Body):
    """
    A program that is started on all nodes of the gang at once, in the place of a script.
    """

    kind: Literal["torchrun", "mpi"] = Field(
        description="torchrun: one launcher on each node, which starts the processes. mpi: the scheduler starts every process.",
        examples=["torchrun"],
    )
    command: Command = Field(
        min_length=1,
        max_length=256,
        description="The program and its arguments, word by word; no shell reads them. For torchrun: what follows its own arguments.",
        examples=[["train.py", "--epochs", "3"]],
    )
    launcher: Command = Field(
        default=["torchrun"],
        min_length=1,
        max_length=8,
        description="What is run in the place of `torchrun`.",
        examples=[["python3", "-m", "torch.distributed.run"]],
    )
    setup: Setup = Field(
        default="", description="Shell lines that run first, for every launcher.", examples=["source /opt/venv/bin/activate"]
    )
    pmi: Literal["pmix", "pmi2"] | None = Field(
        default=None, description="How MPI processes find each other; left out: as the cluster is set up.", examples=["pmix"]
    )
    implementation: Literal["openmpi", "intel", "mpich"] = Field(
        default="openmpi",
        description="Which MPI the image has, where its `mpirun` starts the processes: in pods.",
        examples=["openmpi"],
    )


class Dependency(Body):
    """
    A job that has to end before this one starts.
    """

    job_id: str = Field(
        min_length=1, max_length=64, description="A job of the same project.", examples=["job_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    condition: Literal["afterok", "afterany"] = Field(
        default="afterok",
        description="afterok: it must succeed, else this one is cancelled. afterany: it must end, however it does.",
        examples=["afterok"],
    )


def _check_not_ours(given: SecretUse) -> SecretUse:
    if (given.env or "").upper().startswith("SLURM_"):
        raise ValueError("names that begin with SLURM_ are the scheduler's")
    return given


class MountUse(Body):
    """
    A volume of the cluster's operator in the job's containers.
    """

    volume: str = Field(min_length=1, max_length=40, description="As the operator named it.", examples=["datasets"])
    path: MountPath = Field(description="Where the job finds it.", examples=["/data"])
    read_only: bool = Field(default=False, description="Whether it may only be read.", examples=[True])


def _check_places(given: list[MountUse]) -> list[MountUse]:
    if len({one.path for one in given}) < len(given):
        raise ValueError("a path is named twice")
    return given


def _check_once(given: list[Dependency]) -> list[Dependency]:
    if len({one.job_id for one in given}) < len(given):
        raise ValueError("a job is named twice")
    return given


class JobSpec(Body):
    """
    What shall run, and where.
    """

    cluster_id: str = Field(
        min_length=1,
        max_length=64,
        description="A Slurm or Kubernetes cluster of the same project.",
        examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )
    nodes: int = Field(default=1, ge=1, le=4096, description="Nodes of the gang: all start together or none.", examples=[4])
    gpus_per_node: int = Field(default=0, ge=0, le=16, description="GPUs on each node; 0 for none.", examples=[8])
    tasks_per_node: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Tasks a bare `srun` starts on each node; one per GPU when left out, and at least one.",
        examples=[8],
    )
    script: Script | None = Field(
        default=None,
        description="A batch script that begins with `#!`, at most 64 KiB. It runs on the first node under Slurm, and on every node where"
        " the job runs in containers. Left out with `launch`.",
        examples=[SCRIPT],
    )
    launch: Launch | None = Field(default=None, description="A program to start on all nodes at once, in the place of a script.")
    image: Image | None = Field(
        default=None,
        description="The container image it runs in; left out: the cluster's own default.",
        examples=["registry.example.com/team/train:7"],
    )
    priority: PriorityClass = Field(
        default="normal",
        description="Its place among the jobs of its cluster that wait: a higher one starts first where both could.",
        examples=["normal"],
    )
    env: Annotated[Env, AfterValidator(_check_names)] = Field(
        default={},
        max_length=64,
        description="Environment of the script; shown to everybody who may read the job, so no place for secrets.",
        examples=[{"CHECKPOINTS": "/data/run-1"}],
    )
    time_limit_s: int = Field(
        default=86_400, ge=60, le=31 * 86_400, description="It is ended after this, in seconds.", examples=[86_400]
    )
    restart: Restart = Field(default_factory=Restart, description="When it starts again by itself.")
    secrets: Annotated[list[Annotated[SecretUse, AfterValidator(_check_not_ours)]], AfterValidator(check_ways)] = Field(
        default=[], max_length=32, description="Secrets of the project that it is given.", examples=[[]]
    )
    depends_on: Annotated[list[Dependency], AfterValidator(_check_once)] = Field(
        default=[],
        max_length=32,
        description="Jobs that have to end before it starts, on whatever clusters they run.",
        examples=[[]],
    )

    mounts: Annotated[list[MountUse], AfterValidator(_check_places)] = Field(
        default=[],
        max_length=16,
        description="Volumes that the cluster's operator offers, and where the job wants them.",
        examples=[[]],
    )
    gpu: GpuUse | None = Field(
        default=None, description="What its GPUs must be like; left out: any of the cluster's. Needs `gpus_per_node`."
    )
    mig: MigUse | None = Field(
        default=None, description="Slices of GPUs in the place of whole ones, where the cluster's nodes are partitioned so."
    )
    idle_stop_min: int | None = Field(
        default=None,
        ge=5,
        le=1440,
        description="It is stopped once none of its GPUs did anything for so many minutes; left out: never. Where its cluster can tell.",
        examples=[60],
    )

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if (self.gpu is not None or self.idle_stop_min) and not self.gpus_per_node:
            raise ValueError("gpu and idle_stop_min are about GPUs; say how many with gpus_per_node")
        if self.mig is not None and self.gpus_per_node:
            raise ValueError("mig asks for slices, gpus_per_node for whole GPUs; ask for one of them")
        return self

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if (self.script is None) == (self.launch is None):
            raise ValueError("send either a script or what to launch")
        return self


class JobCreate(Body):
    """
    A job to run.
    """

    name: JobName
    labels: Labels = Field(default_factory=dict)
    spec: JobSpec = Field(description="What shall run.")

    def order(self) -> JobOrder:
        """
        The job with its defaults filled in.
        """
        spec = self.spec.model_dump()
        slices = 0 if self.spec.mig is None else self.spec.mig.per_node
        spec["tasks_per_node"] = self.spec.tasks_per_node or max(1, self.spec.gpus_per_node, slices)
        return JobOrder(
            name=self.name,
            labels=dict(self.labels),
            cluster_id=self.spec.cluster_id,
            nodes=self.spec.nodes,
            gpus_per_node=self.spec.gpus_per_node,
            spec=spec,
        )


class RestartOut(Out):
    """
    When a job starts again by itself.
    """

    max_restarts: int = Field(description="How often at most.", examples=[3])


class LaunchOut(Out):
    """
    A program that is started on all nodes of the gang at once.
    """

    kind: str = Field(description="torchrun or mpi.", examples=["torchrun"])
    command: list[str] = Field(description="The program and its arguments.", examples=[["train.py", "--epochs", "3"]])
    launcher: list[str] = Field(description="What is run in the place of `torchrun`.", examples=[["torchrun"]])
    setup: str = Field(description="Shell lines that run first.", examples=["source /opt/venv/bin/activate"])
    pmi: str | None = Field(description="How MPI processes find each other.", examples=[None])
    implementation: str = Field(default="openmpi", description="Which MPI the image has.", examples=["openmpi"])


class DependencyOut(Out):
    """
    A job that has to end before this one starts.
    """

    job_id: str = Field(description="Of the same project.", examples=["job_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    condition: str = Field(description="afterok or afterany.", examples=["afterok"])


class MountUseOut(Out):
    """
    A volume in the job's containers.
    """

    volume: str = Field(description="As the operator named it.", examples=["datasets"])
    path: str = Field(description="Where the job finds it.", examples=["/data"])
    read_only: bool = Field(description="Whether it may only be read.", examples=[True])


class JobSpecOut(Out):
    """
    What runs, and where, with defaults filled in.
    """

    cluster_id: str = Field(description="Where it runs.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    nodes: int = Field(description="Nodes of the gang.", examples=[4])
    gpus_per_node: int = Field(description="GPUs on each node.", examples=[8])
    gpu: GpuUseOut | None = Field(default=None, description="What its GPUs must be like.")
    mig: MigUseOut | None = Field(default=None, description="Slices of GPUs in the place of whole ones.")
    tasks_per_node: int = Field(description="Tasks a bare `srun` starts on each node.", examples=[8])
    script: str | None = Field(description="The batch script; none with `launch`.", examples=[SCRIPT])
    launch: LaunchOut | None = Field(default=None, description="What is started in the place of a script.")
    image: str | None = Field(
        default=None, description="The container image it runs in.", examples=["registry.example.com/team/train:7"]
    )
    priority: str = Field(default="normal", description="Its place among the jobs that wait.", examples=["normal"])
    env: dict[str, str] = Field(description="Environment of the script.", examples=[{"CHECKPOINTS": "/data/run-1"}])
    time_limit_s: int = Field(description="It is ended after this, in seconds.", examples=[86_400])
    restart: RestartOut = Field(description="When it starts again by itself.")
    idle_stop_min: int | None = Field(default=None, description="It is stopped after so many minutes of idle GPUs.", examples=[60])
    secrets: list[SecretUseOut] = Field(default=[], description="Secrets of the project that it is given.")
    depends_on: list[DependencyOut] = Field(default=[], description="Jobs that have to end before it starts.")
    mounts: list[MountUseOut] = Field(default=[], description="Volumes that it is given.")


class LastCheckpoint(Out):
    """
    Where a restart goes on from.
    """

    id: str = Field(description="The checkpoint.", examples=["ckp_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    step: int = Field(description="The training step it was taken at.", examples=[12_000])
    location: str = Field(description="Where its data lies.", examples=["s3://runs/train-7b/step-12000"])


class JobStatus(Status):
    """
    Where a job stands; times are the scheduler's.
    """

    attempt: int = Field(description="The try under way: 1, 2, …", examples=[1])
    restarts: int = Field(description="How often it was started again, by its scheduler or by us.", examples=[0])
    exit_code: int | None = Field(description="Of the script, when the attempt has ended.", examples=[None])
    signal: int | None = Field(description="The signal that ended it.", examples=[None])
    failure_class: str | None = Field(
        description="Why it failed: user_error, out_of_memory, node_fault, fabric_fault, preempted, time_limit, provider_fault or unknown.",
        examples=[None],
    )
    instances: list[str] = Field(
        description="Instances of its cluster that the attempt runs, or ran, on.", examples=[["ins_01k5x7p3r8w2v6t9q4n0m1c2d3"]]
    )
    started_at: Moment | None = Field(description="When the attempt started.", examples=["2026-03-01T10:00:00Z"])
    ended_at: Moment | None = Field(description="When it ended.", examples=[None])
    expected_start_at: Moment | None = Field(description="The scheduler's estimate while it waits.", examples=[None])
    cancel_requested_at: Moment | None = Field(description="When somebody asked to stop it.", examples=[None])
    log_bytes: int = Field(description="Output of the attempt that can be read now.", examples=[18_432])
    last_checkpoint: LastCheckpoint | None = Field(
        description="The last good checkpoint: a restart is told of it as RESUME_CHECKPOINT, RESUME_STEP and RESUME_LOCATION."
    )


class TemplateUse(Out):
    """
    What a job was made from.
    """

    name: str = Field(description="The template.", examples=["train-7b"])
    version: int = Field(description="Which version of it.", examples=[3])
    parameters: dict[str, str | int | bool] = Field(description="The values that were filled in.", examples=[{"rate": "3e-4"}])
    overrides: list[str] = Field(description="Fields of the spec that are not the template's.", examples=[["time_limit_s"]])


class TaskOf(Out):
    """
    Which task of which array a job is.
    """

    id: str = Field(description="The array.", examples=["jar_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    index: int = Field(description="The task's index.", examples=[17])


class JobOut(Out):
    """
    Work with an end.
    """

    id: str = Field(description="Never changes.", examples=["job_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="For people; several jobs may share it.", examples=["train-7b"])
    labels: dict[str, str] = Field(description="Free key-value pairs.", examples=[{"team": "vision"}])
    created_at: Moment = Field(description="When it was accepted.", examples=["2026-03-01T09:59:00Z"])
    updated_at: Moment = Field(description="When it was last looked at or changed.", examples=["2026-03-01T10:00:00Z"])
    spec: JobSpecOut = Field(description="The job as asked for.")
    status: JobStatus = Field(description="Where it stands.")
    version: int = Field(description="Rises with every change; the ETag.", examples=[3])
    template: TemplateUse | None = Field(default=None, description="What it was made from; null where it was sent whole.")
    array: TaskOf | None = Field(default=None, description="The array that it is a task of; null where it is none's.")

    @classmethod
    def of(cls, row: JobRow) -> Self:
        """
        The row as its owner may see it: nothing of the scheduler's own words, no names of machines.
        """
        status = JobStatus(
            state=row.state,
            reason=row.reason,
            since=row.state_since,
            deadline=row.deadline_at,
            issues=[Issue(**issue) for issue in row.issues],
            attempt=row.attempt,
            restarts=row.requeues,
            exit_code=row.exit_code,
            signal=row.signal,
            failure_class=row.failure_class,
            instances=list(row.placement),
            started_at=row.started_at,
            ended_at=row.ended_at,
            expected_start_at=row.expected_start_at,
            cancel_requested_at=row.cancel_requested_at,
            log_bytes=row.log_bytes,
            last_checkpoint=LastCheckpoint(**row.last_checkpoint) if row.last_checkpoint else None,
        )
        return cls(
            id=row.id,
            name=row.name,
            labels=row.labels,
            created_at=row.created_at,
            updated_at=row.updated_at,
            spec=JobSpecOut.model_validate(row.spec),
            status=status,
            version=row.version,
            template=None if row.template is None else TemplateUse(**row.template),
            array=None if row.array_id is None else TaskOf(id=row.array_id, index=row.array_index or 0),
        )


class LogPiece(Out):
    """
    Some output of one attempt.
    """

    attempt: int = Field(description="Which try printed it.", examples=[1])
    offset: int = Field(description="Where it starts, in bytes of the attempt's output.", examples=[0])
    text: str = Field(description="As printed; bytes that are not UTF-8 are replaced by U+FFFD.", examples=["step 100 loss 2.31\n"])


class LogPage(Out):
    """
    Output from an offset on.
    """

    items: list[LogPiece] = Field(description="In order; empty when there is nothing new.")
    next_offset: int = Field(description="Send it as `after` for what follows.", examples=[19])
    complete: bool = Field(description="True when nothing will follow in this attempt.", examples=[False])

    @classmethod
    def of(cls, part: Slice) -> Self:
        """
        The slice as a page.
        """
        items = [LogPiece(attempt=part.attempt, offset=part.offset, text=part.text)] if part.text else []
        return cls(items=items, next_offset=part.next_offset, complete=part.complete)


class Action(Out):
    """
    A verb and whether it is allowed now.
    """

    name: str = Field(description="The verb: POST it under `actions/`.", examples=["cancel"])
    allowed: bool = Field(description="Whether it is allowed now.", examples=[True])
    reason: str = Field(description="Why not; empty when allowed.", examples=[""])


class Actions(Out):
    """
    The verbs of a job.
    """

    items: list[Action] = Field(description="All verbs.")
