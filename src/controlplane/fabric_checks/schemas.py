"""
Fabric checks on the wire. All of it is for operators.
"""

from typing import Annotated, Literal, cast

from fastapi import Query
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from controlplane.fabric_checks.service import CheckView, cancel_refusal
from controlplane.fabric_checks.states import FABRIC_CHECK_STATES, Scope, ScopeKind, Tool
from controlplane.web.schemas import Body, Issue, Moment, Out, Status, check_text

NODE_EXAMPLE = "nod_01k5x7p3r8w2v6t9q4n0m1c2d3"
NAMED: dict[ScopeKind, frozenset[str]] = {
    "pair": frozenset({"node_id", "peer_node_id"}),
    "leaf": frozenset({"site", "leaf"}),
    "rail": frozenset({"site", "leaf", "rail"}),
    "block": frozenset({"site", "block"}),
}
NodeId = Annotated[str, StringConstraints(min_length=1, max_length=60, pattern=r"^[a-z]+_[a-z0-9]+$")]
Place = Annotated[str, StringConstraints(min_length=1, max_length=120), AfterValidator(check_text)]
PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["ZmNrXzAx"])
]
TextFilter = Annotated[str | None, Query(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9 _.:-]+$")]
NodeFilter = Annotated[TextFilter, Query(description="Only with this node.", examples=[NODE_EXAMPLE])]
SiteFilter = Annotated[TextFilter, Query(description="Only in this site.", examples=["osl1"])]
LeafFilter = Annotated[TextFilter, Query(description="Only of this leaf and its rails.", examples=["b1-l2"])]
StateName = Literal[FABRIC_CHECK_STATES.names()]  # type: ignore[valid-type]
StateFilter = Annotated[
    StateName | None,  # type: ignore[valid-type]
    Query(description="Only in this state.", examples=["running"]),
]
VerdictName = Literal["passed", "failed", "not_measured", "not_judged"]


VerdictFilter = Annotated[VerdictName | None, Query(description="Only with this verdict.", examples=["failed"])]


class ScopeIn(Body):
    """
    What is checked. A pair is named by both nodes, in the order of the traffic; a leaf by `site` and `leaf`; a rail by these and its
    number; a block by `site` and `block`. `ib_write_bw` uses one rail: `rail` is allowed for every kind then, and is 0 without.
    """

    kind: ScopeKind = Field(description="What it is.", examples=["leaf"])
    node_id: NodeId | None = Field(default=None, description="The first end of the pair.", examples=[None])
    peer_node_id: NodeId | None = Field(default=None, description="The second end of the pair.", examples=[None])
    site: Place | None = Field(default=None, description="The site of the leaf or block.", examples=["osl1"])
    block: Place | None = Field(default=None, description="The block.", examples=[None])
    leaf: Place | None = Field(default=None, description="The leaf, or the one the rail is of.", examples=["b1-l2"])
    rail: int | None = Field(default=None, ge=0, le=255, description="The only rail that is used; null: all.", examples=[None])

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "ScopeIn":
        given = {name for name in ("node_id", "peer_node_id", "site", "block", "leaf") if getattr(self, name) is not None}
        if given != NAMED[self.kind] - {"rail"} or (self.kind == "rail" and self.rail is None):
            raise ValueError(f"a {self.kind} is named by {' and '.join(sorted(NAMED[self.kind]))}, and by nothing else")
        if self.node_id is not None and self.node_id == self.peer_node_id:
            raise ValueError("a pair has two different ends")
        return self

    def scope(self) -> Scope:
        """
        As the service takes it.
        """
        return Scope(
            self.kind, self.node_id or "", self.peer_node_id or "", self.site or "", self.block or "", self.leaf or "", self.rail
        )


class FabricCheckPost(Body):
    """
    A check of the network between free nodes.
    """

    scope: ScopeIn = Field(description="What is checked.")
    tool: Tool = Field(
        default="nccl-tests",
        description="`nccl-tests`: an all-reduce over the whole and over pairs. `ib_write_bw`: writes between pairs on one rail.",
        examples=["nccl-tests"],
    )

    @model_validator(mode="after")
    def _rail_where_it_counts(self) -> "FabricCheckPost":
        if self.tool == "nccl-tests" and self.scope.rail is not None and self.scope.kind not in {"rail", "pair"}:
            raise ValueError("an all-reduce over one rail only is the check of that rail, or of a pair")
        return self


class LeftOut(Out):
    """
    A node of the place that was not free.
    """

    node_id: str = Field(description="Which node.", examples=[NODE_EXAMPLE])
    state: str = Field(description="Its state then.", examples=["active"])


class RunOut(Out):
    """
    One tool between some of the nodes.
    """

    name: str = Field(description="Unique in the check: its round and its place there.", examples=["0-0"])
    kind: str = Field(description="Whose figures it measures: pair, leaf or rail.", examples=["pair"])
    node_id: str | None = Field(description="The first end of the pair.", examples=[NODE_EXAMPLE])
    peer_node_id: str | None = Field(description="The second end of the pair.", examples=[NODE_EXAMPLE])
    leaf: str | None = Field(description="The leaf, of a leaf or rail.", examples=[None])
    rail: int | None = Field(description="The only rail it uses; null: all.", examples=[None])
    nodes: int = Field(description="How many nodes take part.", examples=[2])
    result: str | None = Field(
        description="`passed`: the tool came to its end, and the ledger says how good it was; `failed`, `not_measured`; null: not yet.",
        examples=["passed"],
    )
    detail: str = Field(description="Why it failed or was not measured.", examples=[""])


class Blamed(Out):
    """
    A node that failures of pairs point at.
    """

    node_id: str = Field(description="Which node.", examples=[NODE_EXAMPLE])
    fails_with: list[str] = Field(description="The partners it failed with.", examples=[["nod_01k5x7p3r8w2v6t9q4n0m1c2d4"]])


class FabricCheckOut(Out):
    """
    A check of the network between nodes.
    """

    id: str = Field(
        description="Also the `run_id` of its figures in the ledger. Of a dry run: of nothing that stays.",
        examples=["fck_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    )
    scope: str = Field(description="pair, leaf, rail or block.", examples=["leaf"])
    site: str = Field(description="Where.", examples=["osl1"])
    block: str = Field(description="The block; empty for other scopes.", examples=[""])
    leaf: str = Field(description="The leaf, of a leaf or rail; else empty.", examples=["b1-l2"])
    rail: int | None = Field(description="The only rail that is used; null: all.", examples=[None])
    tool: str = Field(description="What measures.", examples=["nccl-tests"])
    status: Status = Field(description="Where it stands.")
    attention: str = Field(description="Why a person is needed; empty when none is.", examples=[""])
    verdict: VerdictName | None = Field(
        description="What the ledger says of it; null: not judged yet, or never.", examples=["passed"]
    )
    blamed: list[Blamed] = Field(description="Nodes that failures of its pairs point at.")
    node_ids: list[str] = Field(description="The nodes that it holds or held.", examples=[[NODE_EXAMPLE]])
    left_out: list[LeftOut] = Field(description="Nodes of the place that were not free.")
    runs: list[RunOut] = Field(description="What is run, round by round.")
    cancel_refusal: str = Field(description="Why it cannot be stopped now; empty when it can.", examples=[""])
    created_by: str = Field(
        description="Who asked for it; `system`: a repair brought it about.", examples=["usr_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    created_at: Moment = Field(description="When.", examples=["2026-03-01T10:00:00Z"])
    ended_at: Moment | None = Field(description="When its nodes were free again; null: it holds them.", examples=[None])
    version: int = Field(description="Rises with every change.", examples=[3])
    operation_id: str | None = Field(description="The operation that is under way.", examples=["opr_01k5x7p3r8w2v6t9q4n0m1c2d3"])

    @classmethod
    def of(cls, view: CheckView) -> "FabricCheckOut":
        """
        As operators see it.
        """
        row = view.row
        told = {one["name"]: one for one in row.results}
        issues = [Issue(code=row.failure, message=row.reason)] if row.failure else []
        plain = (
            "id",
            "scope",
            "site",
            "block",
            "leaf",
            "rail",
            "tool",
            "attention",
            "created_by",
            "created_at",
            "ended_at",
            "version",
        )
        return cls(
            **{name: getattr(row, name) for name in plain},
            status=Status(state=row.state, reason=row.reason, since=row.state_since, deadline=row.deadline_at, issues=issues),
            verdict=_verdict(row.verdict),
            blamed=[Blamed(node_id=one, fails_with=partners) for one, partners in sorted(row.blamed.items())],
            node_ids=[one.node_id for one in view.members],
            left_out=[LeftOut(**one) for one in row.left_out],
            runs=[_run(run, told.get(run["name"], {})) for some in row.rounds for run in some],
            cancel_refusal=cancel_refusal(row),
            operation_id=view.operation_id,
        )


def _verdict(word: str) -> VerdictName | None:
    return cast("VerdictName", word) if word else None


def _run(run: dict[str, object], told: dict[str, str]) -> RunOut:
    refs = run["refs"]
    plain = {name: run[name] for name in ("name", "kind", "node_id", "peer_node_id", "leaf", "rail")}
    nodes = len(refs) if isinstance(refs, list) else 0
    return RunOut.model_validate({**plain, "nodes": nodes, "result": told.get("result"), "detail": told.get("detail", "")})
