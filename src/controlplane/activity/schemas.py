"""
Operations, events and the audit on the wire.
"""

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import Field

from controlplane.activity.service import Entry, Feed, Told, Verification
from controlplane.kit.operations import ENDED, OperationRow
from controlplane.web.schemas import Moment, Out

PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["b3ByXzAx"])
]
IdFilter = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=60,
        pattern=r"^[a-z0-9_]+$",
        description="Only of this resource.",
        examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    ),
]
Dotted = Annotated[
    str | None,
    Query(min_length=1, max_length=60, pattern=r"^[a-z_]+(\.[a-z_]+)*$", description="Only of this type."),
]
OperationState = Literal["pending", "running", "needs_attention", "succeeded", "failed", "cancelled"]
PATHS: dict[str, tuple[str, ...]] = {
    "cluster.create": ("placing", "provisioning", "bootstrapping", "verifying", "running"),
    "cluster.delete": ("deleting", "deleted"),
    "cluster.upgrade": ("upgrading", "running"),
    "node.update_firmware": ("updating", "inspecting", "qualifying", "cleaning", "available"),
    "node.requalify": ("inspecting", "qualifying", "cleaning", "available"),
}
"""The states that operations of a type go through when all goes well."""


class OperationStep(Out):
    """
    Something that happened.
    """

    name: str = Field(description="The state, or the part of it, that was reached.", examples=["provisioning"])
    at: str = Field(description="When.", examples=["2026-03-01T10:00:00.000000Z"])
    reason: str = Field(description="In words.", examples=["4 nodes chosen in one leaf."])


class OperationError(Out):
    """
    Why it failed, or why a person is needed.
    """

    code: str = Field(description="Stable code.", examples=["insufficient_capacity"])
    message: str = Field(description="In words.", examples=["2 more free nodes are needed."])


class Progress(Out):
    """
    How far it is.
    """

    done: int = Field(description="States that lie behind it.", examples=[2])
    of: int = Field(description="States in all.", examples=[5])


class OperationOut(Out):
    """
    One long-running change.
    """

    id: str = Field(description="Opaque id.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    type: str = Field(description="The noun and what is done to it.", examples=["cluster.create"])
    state: OperationState = Field(description="Where it stands; the last three are its ends.", examples=["running"])
    reason: str = Field(description="Why, or what it waits for.", examples=["2 of 4 nodes are deployed."])
    resource_kind: str = Field(description="The noun.", examples=["cluster"])
    resource_id: str = Field(description="What is changed.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    tenant_id: str | None = Field(description="Whose; null: the operator's.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    project_id: str | None = Field(description="Its project.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    principal_id: str = Field(description="Who asked.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    steps: list[OperationStep] = Field(description="What happened so far.")
    progress: Progress | None = Field(description="How far it is; null where that cannot be told.")
    error: OperationError | None = Field(description="Why it failed, or why a person is needed.")
    cancel_requested_at: Moment | None = Field(description="When somebody asked to stop it.", examples=[None])
    created_at: Moment = Field(description="When it was asked for.", examples=["2026-03-01T10:00:00Z"])
    updated_at: Moment = Field(description="When it last changed.", examples=["2026-03-01T10:00:10Z"])
    finished_at: Moment | None = Field(description="When it ended; null while it goes on.", examples=[None])
    version: int = Field(description="Its ETag.", examples=[3])

    @classmethod
    def of(cls, row: OperationRow) -> "OperationOut":
        """
        The operation as callers see it.
        """
        fields = {name: getattr(row, name) for name in cls.model_fields if name != "progress"}
        return cls.model_validate({**fields, "progress": _progress(row)})


def _progress(row: OperationRow) -> Progress | None:
    path = PATHS.get(row.type)
    if path is None:
        return None
    if row.state in ENDED:
        return Progress(done=len(path), of=len(path)) if row.state == "succeeded" else None
    reached = [path.index(step["name"]) for step in row.steps if step["name"] in path]
    return Progress(done=max(reached, default=0), of=len(path))


class AttentionOut(Out):
    """
    Something that needs a person.
    """

    kind: str = Field(description="node, cluster, job or provider.", examples=["node"])
    id: str = Field(description="Which one.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    name: str = Field(description="What people call it.", examples=["gpu-0041"])
    attention: str = Field(
        description="Why: `deadline`, `attempts`, `unconfirmed_delete`, `provider_silent` or the code of a failure.",
        examples=["deadline"],
    )
    state: str = Field(description="Where it stands.", examples=["releasing"])
    reason: str = Field(description="What it waits for.", examples=["Being powered off."])
    detail: str = Field(description="The provider's own words.", examples=["BMC does not answer"])
    tenant_id: str | None = Field(description="Whose.", examples=[None])
    operation_id: str | None = Field(description="The operation that waits with it.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    since: Moment = Field(description="Since when it is there.", examples=["2026-03-01T10:00:00Z"])
    deadline_at: Moment | None = Field(description="When it should have gone on.", examples=["2026-03-01T11:00:00Z"])


class Resolved(Out):
    """
    What a verb was given to.
    """

    kind: str = Field(description="The noun.", examples=["node"])
    id: str = Field(description="Which one.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    action: str = Field(description="resume, retry or abandon.", examples=["resume"])


class EventOut(Out):
    """
    Something that happened.
    """

    position: str = Field(description="Send it as `after` to hear what comes behind it.", examples=["NzQxLjE3"])
    type: str = Field(description="The noun and its state or a verb.", examples=["cluster.running"])
    resource_kind: str = Field(description="The noun.", examples=["cluster"])
    resource_id: str = Field(description="Which one.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    tenant_id: str | None = Field(description="Whose.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    project_id: str | None = Field(description="Its project.", examples=["prj_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    at: Moment = Field(description="When.", examples=["2026-03-01T10:00:00Z"])
    data: dict[str, Any] = Field(description="More about it.", examples=[{"state": "running", "before": "verifying"}])

    @classmethod
    def of(cls, told: Told) -> "EventOut":
        """
        The event with its position.
        """
        fields = {name: getattr(told.event, name) for name in cls.model_fields if name != "position"}
        return cls.model_validate({**fields, "position": told.position})


class EventFeed(Out):
    """
    Some events and where to go on.
    """

    items: list[EventOut] = Field(description="In an order that never changes.")
    next_after: str = Field(description="Send it as `after` to go on, now or later.", examples=["NzQxLjE3"])
    more: bool = Field(description="Whether more is there already.", examples=[False])

    @classmethod
    def of(cls, feed: Feed) -> "EventFeed":
        """
        The feed as answered.
        """
        return cls(items=[EventOut.of(one) for one in feed.items], next_after=feed.next_after, more=feed.more)


class AuditEntryOut(Out):
    """
    One mutation, denied attempt or override.
    """

    seq: int = Field(description="Its number in the chain: 1, 2, 3, … without a gap.", examples=[17])
    at: Moment = Field(description="When it was stored.", examples=["2026-03-01T10:00:00Z"])
    actor: str = Field(description="Who.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    action: str = Field(description="The permission it took.", examples=["clusters:create"])
    target: str = Field(description="What was touched.", examples=["clu_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    outcome: str = Field(description="done, denied or failed.", examples=["done"])
    request_id: str = Field(description="The request it came with.", examples=["req_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    detail: dict[str, Any] = Field(description="More about it.", examples=[{"key_id": "key_01k5x7p3r8w2v6t9q4n0m1c2d3"}])
    hash: str = Field(description="SHA-256 over the entry and the hash before it.", examples=["9f" * 32])

    @classmethod
    def of(cls, entry: Entry) -> "AuditEntryOut":
        """
        The entry as shown; an entry that was edited from outside shows what can be read of it.
        """
        words = {name: str(entry.body.get(name, "")) for name in ("actor", "action", "target", "outcome", "request_id")}
        detail = entry.body.get("detail")
        return cls(seq=entry.seq, at=entry.at, hash=entry.hash, detail=detail if isinstance(detail, dict) else {}, **words)


class BreakOut(Out):
    """
    Where a chain does not hold.
    """

    seq: int = Field(description="At which entry.", examples=[12])
    problem: str = Field(description="In words.", examples=["its bytes do not match its hash"])


class VerificationOut(Out):
    """
    Whether a chain holds.
    """

    chain: str = Field(description="Which one.", examples=["ten_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    entries: int = Field(description="How many it has.", examples=[412])
    checked: int = Field(
        description="How many were checked, from the first; the rest of a very long chain was not.", examples=[412]
    )
    intact: bool = Field(description="Whether all that was checked holds.", examples=[True])
    breaks: list[BreakOut] = Field(description="Where it does not, at most 100.")

    @classmethod
    def of(cls, seen: Verification) -> "VerificationOut":
        """
        The verdict as answered.
        """
        return cls.model_validate(seen)
