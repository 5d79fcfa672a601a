"""
Services on the wire.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from controlplane.calculating.answers import Precision
from controlplane.calculating.engines import ModelPath
from controlplane.calculating.facts import ModelFacts
from controlplane.services.planning import EngineName
from controlplane.web.programs import Env, GpuUse, Image, MigUse, SecretUse, check_ways
from controlplane.web.schemas import Body, Labels, Name

MAX_COMMAND_BYTES = 64 * 1024
OURS = frozenset({"MASTER_ADDR", "NODE_RANK", "NNODES", "GPUS_PER_NODE", "SECRETS_DIR"})
CLUSTER_ID = "clu_01k5x7p3r8w2v6t9q4n0m1c2d3"


def _check_argument(value: str) -> str:
    if "\x00" in value:
        raise ValueError("an argument cannot hold NUL")
    return value


def _check_command(command: list[str]) -> list[str]:
    if sum(len(one.encode(errors="replace")) for one in command) > MAX_COMMAND_BYTES:
        raise ValueError(f"a command has at most {MAX_COMMAND_BYTES} bytes")
    return command


def _check_names(env: dict[str, str]) -> dict[str, str]:
    taken = sorted(name for name in env if _is_ours(name))
    if taken:
        raise ValueError(f"{', '.join(taken)}: set by the cluster")
    return env


def _check_secrets(given: list[SecretUse]) -> list[SecretUse]:
    _check_names({one.env: "" for one in given if one.env})
    return check_ways(given)


def _is_ours(name: str) -> bool:
    return name in OURS or name.startswith("LWS_")


Argument = Annotated[str, StringConstraints(max_length=16_384), AfterValidator(_check_argument)]
Command = Annotated[list[Argument], Field(max_length=256), AfterValidator(_check_command)]
OwnEnv = Annotated[Env, Field(max_length=64), AfterValidator(_check_names)]
HealthPath = Annotated[str, StringConstraints(max_length=256, pattern=r"^(/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?$")]
Metric = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
Replicas = Annotated[int, Field(ge=0, le=1024)]


class ReadyWhen(Body):
    """
    When a replica may be sent requests.
    """

    path: HealthPath = Field(
        default="", description="Answers a GET with 2xx once it serves; empty: the port takes connections.", examples=["/health"]
    )
    every_s: int = Field(default=10, ge=1, le=300, description="How often it is asked, in seconds.", examples=[10])
    failures: int = Field(default=3, ge=1, le=30, description="So many in a row, and it is sent none.", examples=[3])
    start_within_s: int = Field(
        default=1800,
        ge=10,
        le=4 * 3600,
        description="It is started again when it was not ready for the first time by then, in seconds.",
        examples=[1800],
    )


class Autoscaling(Body):
    """
    The number of replicas follows a metric.
    """

    least: int = Field(ge=1, le=1024, description="Never fewer replicas.", examples=[1])
    most: int = Field(ge=1, le=1024, description="Never more replicas.", examples=[4])
    metric: Metric = Field(
        description="`cpu_cores`, or the name of a metric that the replicas tell.", examples=["vllm:num_requests_waiting"]
    )
    target: float = Field(gt=0, le=1e9, description="What each replica should carry of it on average.", examples=[4.0])

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError("least is more than most")
        return self


class Rollout(Body):
    """
    How a version follows the one before.
    """

    surge: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Replicas more than wanted meanwhile; left out: none where replicas hold GPUs, else 1.",
        examples=[0],
    )
    unavailable: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Replicas fewer than wanted meanwhile; left out: 1 without surge, else 0.",
        examples=[1],
    )
    timeout_s: int = Field(
        default=3600,
        ge=30,
        le=4 * 3600,
        description="Not rolled out by then, the service is degraded, in seconds.",
        examples=[3600],
    )

    def settled(self, template: Mapping[str, Any]) -> dict[str, int]:
        """
        With what was left out filled in: GPUs, or slices of them, for one more replica are seldom free.
        """
        held = template["gpus_per_node"] or template.get("mig")
        surge = self.surge if self.surge is not None else (0 if held or self.unavailable else 1)
        unavailable = self.unavailable if self.unavailable is not None else (0 if surge else 1)
        return {"surge": surge, "unavailable": unavailable, "timeout_s": self.timeout_s}

    @model_validator(mode="after")
    def _moves(self) -> Self:
        if self.surge == 0 and self.unavailable == 0:
            raise ValueError("with neither surge nor unavailable no replica could ever be replaced")
        return self


class EngineWish(Body):
    """
    A model to be served by a known engine: command, GPUs and parallelism are found from it and from the cluster's nodes.
    """

    engine: EngineName = Field(description="The engine; `tgi` is refused: it is archived.", examples=["vllm"])
    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        description="A model of `GET /v1/calculators/models`; leave it out and give `facts` for any other.",
        examples=["llama-3.1-8b"],
    )
    facts: ModelFacts | None = Field(default=None, description="The numbers of a model that is not listed.", examples=[None])
    model_path: ModelPath | None = Field(
        default=None, description="Repository or folder of the weights; null: where the model's are published.", examples=[None]
    )
    context_tokens: int | None = Field(
        default=None, ge=1, le=10**9, description="Tokens of one sequence; null: the model's longest.", examples=[8192]
    )
    sequences: int = Field(default=1, ge=1, le=1_000_000, description="Sequences of that length at once.", examples=[16])
    weight_precision: Precision = Field(default="bf16", description="Precision of the weights.", examples=["bf16"])
    kv_precision: Precision = Field(default="bf16", description="Precision of cached keys and values.", examples=["bf16"])
    memory_utilization: float = Field(
        default=0.9, ge=0.01, le=1, description="Share of a GPU's memory that the engine may take.", examples=[0.9]
    )


class Template(Body):
    """
    What a replica is; a change of it makes a version.
    """

    image: Image | None = Field(
        default=None, description="The container image; may be left out with `engine`.", examples=["docker.io/library/nginx:1.27"]
    )
    command: Command = Field(
        default=[],
        description="Program and arguments; empty: the image's own. Not with `engine`.",
        examples=[["python", "serve.py"]],
    )
    worker_command: Command = Field(
        default=[],
        description="Of the nodes of a replica that are not its first; empty: as `command`. Not with `engine`.",
        examples=[[]],
    )
    engine: EngineWish | None = Field(default=None, description="Serve a model with a known engine.")
    env: OwnEnv = Field(
        default={},
        description="Environment; shown to everybody who may read the service, so no place for secrets.",
        examples=[{"LOG_LEVEL": "info"}],
    )
    secrets: Annotated[list[SecretUse], AfterValidator(_check_secrets)] = Field(
        default=[],
        max_length=32,
        description="Secrets of the project that replicas are given, as they are when the cluster is told of the service.",
        examples=[[]],
    )
    port: int = Field(default=8000, ge=1, le=65_535, description="Where replicas take requests.", examples=[8000])
    readiness: ReadyWhen = Field(default_factory=ReadyWhen, description="When a replica may be sent requests.")
    gpus_per_node: int = Field(
        default=0, ge=0, le=16, description="GPUs on each node of a replica; found for you with `engine`.", examples=[1]
    )
    gpu: GpuUse | None = Field(
        default=None, description="What its GPUs must be like; left out: any of the cluster's. Needs `gpus_per_node`."
    )
    mig: MigUse | None = Field(
        default=None,
        description="Slices of GPUs on each node of a replica in the place of whole ones, where the cluster's nodes are partitioned so."
        " Not with `engine`.",
    )
    nodes_per_replica: int = Field(
        default=1, ge=1, le=64, description="Nodes of one replica, which start and end together.", examples=[1]
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.engine is None and self.image is None:
            raise ValueError("give an image, or an engine")
        if self.gpu is not None and not (self.gpus_per_node or self.engine):
            raise ValueError("gpu says what GPUs are like; say how many with gpus_per_node")
        if self.mig is not None and (self.gpus_per_node or self.engine):
            raise ValueError("mig asks for slices, gpus_per_node and engines for whole GPUs; ask for one of them")
        twice = sorted({one.env for one in self.secrets if one.env} & self.env.keys())
        if twice:
            raise ValueError(f"{', '.join(twice)}: given by env and by a secret")
        if self.engine is not None and (self.command or self.worker_command):
            raise ValueError("an engine's command is found for you: leave command and worker_command out")
        if self.engine is not None and ({"gpus_per_node", "nodes_per_replica"} & self.model_fields_set):
            raise ValueError("an engine's GPUs and nodes are found for you: leave them out")
        return self

    def document(self) -> dict[str, Any]:
        """
        As a version keeps it.
        """
        return {**self.model_dump(exclude={"engine"}), "files": [], "engine": None}

    def wish(self) -> dict[str, Any] | None:
        """
        The engine that is asked for, without what was left out, so that the answer can tell what was assumed.
        """
        return None if self.engine is None else self.engine.model_dump(exclude_unset=True, mode="json")


class ServiceSpec(Body):
    """
    What shall be kept up, and where.
    """

    cluster_id: str = Field(
        min_length=1, max_length=64, description="A Kubernetes cluster of the same project.", examples=[CLUSTER_ID]
    )
    template: Template = Field(description="What a replica is.")
    replicas: Replicas = Field(default=1, description="How many; with `autoscaling`, how many to begin with.", examples=[2])
    autoscaling: Autoscaling | None = Field(default=None, description="Null: the number is fixed.")
    rollout: Rollout = Field(default_factory=Rollout, description="How a version follows the one before.")


class ServiceCreate(Body):
    """
    A service to keep up.
    """

    name: Name
    labels: Labels = Field(default_factory=dict)
    spec: ServiceSpec = Field(description="What shall be kept up.")


class ServiceSpecPatch(Body):
    """
    What shall be different.
    """

    template: Template | None = Field(default=None, description="All of what a replica is: rolled out as a new version.")
    replicas: Replicas | None = Field(default=None, description="How many.", examples=[3])
    autoscaling: Autoscaling | None = Field(default=None, description="Null, when it is sent: the number is fixed from now on.")
    rollout: Rollout | None = Field(default=None, description="How a version follows the one before.")


class ServicePatch(Body):
    """
    A change; what is left out stays.
    """

    labels: Labels | None = Field(default=None, description="All labels; left out: as they are.")
    spec: ServiceSpecPatch | None = Field(default=None, description="Left out: as it is.")


class RollbackPost(Body):
    """
    Where to go back to.
    """

    version: int | None = Field(
        default=None, ge=1, le=10**9, description="The version to repeat; null: the last one that was ready.", examples=[1]
    )


class ScalePost(Body):
    """
    How many replicas.
    """

    replicas: Replicas = Field(description="How many.", examples=[3])
