"""
Services as they are answered.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field

from controlplane.calculating.engines import EngineAnswer
from controlplane.services.models import ServiceLogRow, ServiceVersionRow
from controlplane.services.schemas import CLUSTER_ID
from controlplane.services.service import ServiceView
from controlplane.services.states import TROUBLES, UNKNOWN_TROUBLE
from controlplane.web.programs import GpuUseOut, MigUseOut, SecretUseOut
from controlplane.web.schemas import Issue, Moment, Out, Status


class FileOut(Out):
    """
    A file that the command reads.
    """

    path: str = Field(description="In the working folder.", examples=["engine.yaml"])
    content: str = Field(description="What is in it.", examples=["{}"])


class ReadyWhenOut(Out):
    """
    When a replica may be sent requests.
    """

    path: str = Field(description="Answers a GET with 2xx once it serves; empty: the port takes connections.", examples=["/health"])
    every_s: int = Field(description="How often it is asked, in seconds.", examples=[10])
    failures: int = Field(description="So many in a row, and it is sent none.", examples=[3])
    start_within_s: int = Field(description="It is started again when it was not ready by then, in seconds.", examples=[1800])


class AutoscalingOut(Out):
    """
    The number of replicas follows a metric.
    """

    least: int = Field(description="Never fewer replicas.", examples=[1])
    most: int = Field(description="Never more replicas.", examples=[4])
    metric: str = Field(description="By its name.", examples=["vllm:num_requests_waiting"])
    target: float = Field(description="What each replica should carry of it on average.", examples=[4.0])


class TemplateOut(Out):
    """
    What a replica is, with everything filled in.
    """

    image: str = Field(description="The container image.", examples=["docker.io/library/nginx:1.27"])
    command: list[str] = Field(description="Program and arguments; empty: the image's own.", examples=[[]])
    worker_command: list[str] = Field(description="Of the other nodes of a replica.", examples=[[]])
    engine: dict[str, Any] | None = Field(description="The engine that was asked for.", examples=[None])
    env: dict[str, str] = Field(description="Environment.", examples=[{"LOG_LEVEL": "info"}])
    secrets: list[SecretUseOut] = Field(default=[], description="Secrets of the project that replicas are given.")
    files: list[FileOut] = Field(description="Files that the command reads.")
    port: int = Field(description="Where replicas take requests.", examples=[8000])
    readiness: ReadyWhenOut = Field(description="When a replica may be sent requests.")
    gpus_per_node: int = Field(description="GPUs on each node of a replica.", examples=[1])
    gpu: GpuUseOut | None = Field(default=None, description="What its GPUs must be like.")
    mig: MigUseOut | None = Field(default=None, description="Slices of GPUs on each node of a replica, in the place of whole ones.")
    nodes_per_replica: int = Field(description="Nodes of one replica.", examples=[1])


class RolloutOut(Out):
    """
    How a version follows the one before.
    """

    surge: int = Field(description="Replicas more than wanted meanwhile.", examples=[0])
    unavailable: int = Field(description="Replicas fewer than wanted meanwhile.", examples=[1])
    timeout_s: int = Field(description="Not rolled out by then, it is degraded.", examples=[3600])


class ServiceSpecOut(Out):
    """
    What is kept up, and where, with defaults filled in.
    """

    cluster_id: str = Field(description="Where it runs.", examples=[CLUSTER_ID])
    template: TemplateOut = Field(description="What a replica is.")
    replicas: int = Field(description="How many; with `autoscaling`, how many it began with.", examples=[2])
    autoscaling: AutoscalingOut | None = Field(description="By which metric; null: the number is fixed.")
    rollout: RolloutOut = Field(description="How a version follows the one before.")


class SlicesHeld(Out):
    """
    Slices of partitioned GPUs.
    """

    profile: str = Field(description="The MIG profile.", examples=["1g.10gb"])
    slices: int = Field(description="How many of them.", examples=[2])


class ReplicaOut(Out):
    """
    One replica as the last look found it.
    """

    name: str = Field(description="The cluster's name of it.", examples=["svc-01k5x7p3r8w2v6t9q4n0m1c2d3-7d4b9c-x2x8p"])
    version: int = Field(description="Which version it is.", examples=[1])
    phase: str = Field(description="pending, starting, ready, failing or ending.", examples=["ready"])
    issue: Issue | None = Field(description="Why it is not ready; null where nothing is wrong.", examples=[None])
    exit_code: int | None = Field(description="Of its last end.", examples=[None])
    restarts: int = Field(description="How often it was started again.", examples=[0])
    instances: list[str] = Field(
        description="Instances of the cluster that it is on.", examples=[["ins_01k5x7p3r8w2v6t9q4n0m1c2d3"]]
    )
    gpus: int = Field(description="Whole GPUs that it holds.", examples=[1])
    mig: SlicesHeld | None = Field(default=None, description="Slices of GPUs that it holds.", examples=[None])


class ServiceStatus(Status):
    """
    Where a service stands.
    """

    current_version: int = Field(description="The version that is wanted.", examples=[1])
    wanted: int = Field(description="Replicas that the cluster aims at.", examples=[2])
    ready: int = Field(description="Replicas that are sent requests.", examples=[2])
    replicas: list[ReplicaOut] = Field(description="All there are, at most 64 of them.")
    address: str = Field(description="Where others on the cluster reach it.", examples=["svc-01k5.cp-clu-01k5.svc:8000"])
    seen_at: Moment | None = Field(description="When the cluster was last seen; all of the above is as of then.", examples=[None])
    suspended: bool = Field(description="Whether it has no replicas until it is resumed.", examples=[False])
    gpus_held: int = Field(description="Whole GPUs that its replicas hold.", examples=[2])
    mig_held: list[SlicesHeld] = Field(default=[], description="Slices of GPUs that its replicas hold, by profile.", examples=[[]])
    gpu_seconds: int = Field(
        description="GPU time of its replicas up to `seen_at`, of slices their share. It is not billed: the cluster's nodes are.",
        examples=[7200],
    )


class ServiceOut(Out):
    """
    Work without an end.
    """

    id: str = Field(description="Never changes.", examples=["svc_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="Unique in the project.", examples=["chat"])
    labels: dict[str, str] = Field(description="Free key-value pairs.", examples=[{"team": "vision"}])
    created_at: Moment = Field(description="When it was accepted.", examples=["2026-03-01T09:59:00Z"])
    updated_at: Moment = Field(description="When it was last looked at or changed.", examples=["2026-03-01T10:00:00Z"])
    spec: ServiceSpecOut = Field(description="The service as asked for.")
    proposal: EngineAnswer | None = Field(
        description="How an engine's GPUs and parallelism were found: formulas, inputs, assumptions and sources.", examples=[None]
    )
    status: ServiceStatus = Field(description="Where it stands.")
    version: int = Field(description="Rises with every change; the ETag.", examples=[3])
    operation_id: str | None = Field(
        description="What is under way; null where nothing is.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )

    @classmethod
    def of(cls, view: ServiceView) -> Self:
        """
        The service as its owner may see it: no names of machines, nothing of the cluster's own words.
        """
        row, version = view.row, view.version
        return cls(
            id=row.id,
            name=row.name,
            labels=row.labels,
            created_at=row.created_at,
            updated_at=row.updated_at,
            spec=ServiceSpecOut(
                cluster_id=row.cluster_id,
                template=TemplateOut.model_validate(version.template),
                replicas=row.replicas,
                autoscaling=None if row.scaling is None else AutoscalingOut(**row.scaling),
                rollout=RolloutOut(**row.rollout),
            ),
            proposal=_proposal(version.proposal),
            status=_status(view),
            version=row.version,
            operation_id=view.operation_id,
        )


def _proposal(kept: Mapping[str, Any] | None) -> EngineAnswer | None:
    return None if kept is None else EngineAnswer.model_validate(kept)


def _status(view: ServiceView) -> ServiceStatus:
    row = view.row
    replicas = [_replica(one) for one in row.seen]
    return ServiceStatus(
        state=row.state,
        reason=row.reason,
        since=row.state_since,
        deadline=row.deadline_at,
        issues=[_issue(row.trouble)] if row.trouble else [],
        current_version=row.current_version,
        wanted=row.aimed_at,
        ready=sum(1 for one in replicas if one.phase == "ready"),
        replicas=replicas,
        address=row.address,
        seen_at=row.seen_at,
        suspended=row.suspended,
        gpus_held=row.gpus_held,
        mig_held=[SlicesHeld(profile=one["profile"], slices=one["count"]) for one in row.slices_held],
        gpu_seconds=row.gpu_microseconds // 1_000_000,
    )


def _replica(kept: Mapping[str, Any]) -> ReplicaOut:
    plain = {name: kept[name] for name in ("name", "version", "phase", "exit_code", "restarts", "instances")}
    profile, held = kept.get("profile", ""), kept["gpus"]
    return ReplicaOut(
        **plain,
        gpus=0 if profile else held,
        mig=SlicesHeld(profile=profile, slices=held) if profile else None,
        issue=_issue(kept["trouble"]) if kept["trouble"] else None,
    )


def _issue(code: str) -> Issue:
    return Issue(code=code, message=TROUBLES.get(code, UNKNOWN_TROUBLE))


class VersionOut(Out):
    """
    What a replica was, or is, at one version.
    """

    number: int = Field(description="1, 2, …", examples=[1])
    template: TemplateOut = Field(description="What a replica is.")
    proposal: EngineAnswer | None = Field(description="How an engine's GPUs and parallelism were found.", examples=[None])
    restored: int | None = Field(description="The version that it repeats, after a rollback.", examples=[None])
    outcome: str | None = Field(description="ready, failed or replaced; null while it is not known.", examples=["ready"])
    created_by: str = Field(description="Who asked for it.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    created_at: Moment = Field(description="When.", examples=["2026-03-01T09:59:00Z"])

    @classmethod
    def of(cls, row: ServiceVersionRow) -> Self:
        """
        The row as its owner may see it.
        """
        return cls(
            number=row.number,
            template=TemplateOut.model_validate(row.template),
            proposal=_proposal(row.proposal),
            restored=row.restored,
            outcome=row.outcome or None,
            created_by=row.created_by,
            created_at=row.created_at,
        )


class TailOut(Out):
    """
    What one replica printed last.
    """

    replica: str = Field(description="The cluster's name of it.", examples=["svc-01k5x7p3r8w2v6t9q4n0m1c2d3-7d4b9c-x2x8p"])
    version: int = Field(description="Its version.", examples=[1])
    read_at: Moment = Field(description="When it was read.", examples=["2026-03-01T10:00:00Z"])
    text: str = Field(
        description="The last 64 KiB at most; bytes that are not UTF-8 are replaced by U+FFFD.", examples=["listening on 8000\n"]
    )

    @classmethod
    def of(cls, row: ServiceLogRow) -> Self:
        """
        The row as text.
        """
        return cls(replica=row.replica, version=row.version, read_at=row.at, text=bytes(row.data).decode("utf-8", "replace"))


class ServiceAction(Out):
    """
    A verb and whether it is allowed now.
    """

    name: str = Field(description="The verb.", examples=["rollback"])
    allowed: bool = Field(description="Whether it is allowed now.", examples=[True])
    reason: str = Field(description="Why not; empty when allowed.", examples=[""])


class ServiceActions(Out):
    """
    The verbs of a service.
    """

    items: list[ServiceAction] = Field(description="All verbs.")
