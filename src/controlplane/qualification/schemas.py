"""
Measurements, standings and what they mean for nodes on the wire. All of it is for operators.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from controlplane.measurements.tools import SubjectKind, ToolName
from controlplane.qualification.models import MeasurementRow, NodeQualificationRow, StandingRow
from controlplane.qualification.service import Output, Recorded, Subject
from controlplane.web.schemas import Body, GivenMoment, Moment, Out, check_text

LONGEST_OUTPUT = 900_000
NAMED: dict[SubjectKind, frozenset[str]] = {
    "node": frozenset({"node_id"}),
    "pair": frozenset({"node_id", "peer_node_id"}),
    "leaf": frozenset({"site", "leaf"}),
    "rail": frozenset({"site", "leaf", "rail"}),
}

PageLimit = Annotated[int, Query(ge=1, le=200, description="Items per page.", examples=[50])]
PageToken = Annotated[
    str | None, Query(min_length=1, max_length=200, description="`next_page_token` of the page before.", examples=["bXNyXzAx"])
]
TextFilter = Annotated[str | None, Query(min_length=1, max_length=120, pattern=r"^[A-Za-z0-9 _.:-]+$")]
NodeFilter = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=60,
        pattern=r"^[a-z0-9_]+$",
        description="Only of this node and of pairs with it.",
        examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"],
    ),
]
SiteFilter = Annotated[TextFilter, Query(description="Only of leaves and rails in this site.", examples=["osl1"])]
LeafFilter = Annotated[TextFilter, Query(description="Only of this leaf and its rails.", examples=["b1-l2"])]
MetricFilter = Annotated[TextFilter, Query(description="Only this figure.", examples=["nccl_all_reduce_bus_bandwidth_largest"])]
ToolFilter = Annotated[
    TextFilter, Query(description="Only by this tool; `acceptance`: a provider's checks.", examples=["gpu-burn"])
]
RunFilter = Annotated[TextFilter, Query(description="Only of this run.", examples=["run_01k5x7p3r8w2v6t9q4n0m1c2d3"])]
KindFilter = Annotated[SubjectKind | None, Query(description="Only of these subjects.", examples=["pair"])]
VerdictName = Literal["passed", "failed", "not_measured", "not_judged"]
VerdictFilter = Annotated[VerdictName | None, Query(description="Only with this verdict.", examples=["failed"])]
NodeId = Annotated[str, StringConstraints(min_length=1, max_length=60, pattern=r"^[a-z]+_[a-z0-9]+$")]
Place = Annotated[str, StringConstraints(min_length=1, max_length=120), AfterValidator(check_text)]


class SubjectIn(Body):
    """
    What was measured. A node is named by `node_id`; a pair by both ends in the order of the traffic; a leaf by `site` and `leaf`; a rail by
    these and its number.
    """

    kind: SubjectKind = Field(description="What it is.", examples=["node"])
    node_id: NodeId | None = Field(
        default=None, description="The node, or the first end of the pair.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"]
    )
    peer_node_id: NodeId | None = Field(default=None, description="The second end of the pair.", examples=[None])
    site: Place | None = Field(default=None, description="The site of the leaf.", examples=[None])
    leaf: Place | None = Field(default=None, description="The leaf, or the one the rail is of.", examples=[None])
    rail: int | None = Field(default=None, ge=0, le=255, description="The rail's number.", examples=[None])

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "SubjectIn":
        given = {name for name in ("node_id", "peer_node_id", "site", "leaf", "rail") if getattr(self, name) is not None}
        if given != NAMED[self.kind]:
            raise ValueError(f"a {self.kind} is named by {' and '.join(sorted(NAMED[self.kind]))}, and by nothing else")
        if self.node_id is not None and self.node_id == self.peer_node_id:
            raise ValueError("a pair has two different ends")
        return self

    def subject(self) -> Subject:
        """
        As the service takes it.
        """
        return Subject(self.kind, self.node_id, self.peer_node_id, self.site, self.leaf, self.rail)


class MeasurementPost(Body):
    """
    All that a tool printed about one subject.
    """

    tool: ToolName = Field(
        description="Which tool. JSON and tables of dcgmi, text and XML of nvidia-smi -q are told apart.", examples=["gpu-burn"]
    )
    output: str = Field(
        min_length=1,
        max_length=LONGEST_OUTPUT,
        description="Its whole output, unchanged, with its line breaks. It is read and not kept; its digest is.",
        examples=["GPU 0: OK\n"],
    )
    subject: SubjectIn = Field(description="What it ran on.")
    collective: Annotated[str, StringConstraints(max_length=40, pattern=r"^[a-z0-9_]*$")] = Field(
        default="", description="For nccl-tests: the collective, such as `all_reduce`. Empty for other tools.", examples=[""]
    )
    run_id: Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._:-]+$")] | None = Field(
        default=None,
        description="Your name of the run: the same output of the same run is recorded once. Without it every request is a new run.",
        examples=["burn-in-2026-03-01"],
    )
    taken_at: GivenMoment | None = Field(
        default=None, description="When it was measured; without it now.", examples=["2026-03-01T10:00:00Z"]
    )

    def content(self) -> Output:
        """
        As the service takes it.
        """
        return Output(self.tool, self.output, self.subject.subject(), self.collective, self.run_id or "", self.taken_at)


class SubjectOut(Out):
    """
    What was measured.
    """

    kind: str = Field(description="node, pair, leaf or rail.", examples=["node"])
    node_id: str | None = Field(description="The node, or the first end of the pair.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    peer_node_id: str | None = Field(description="The second end of the pair.", examples=[None])
    site: str | None = Field(description="The site of the leaf.", examples=[None])
    leaf: str | None = Field(description="The leaf, or the one the rail is of.", examples=[None])
    rail: int | None = Field(description="The rail's number.", examples=[None])
    part: str = Field(
        description="The GPU or device of the node, as `gpu3`, or the rail of a pair, as `rail3`; empty for the whole.",
        examples=["gpu3"],
    )

    @classmethod
    def of(cls, row: MeasurementRow | StandingRow) -> "SubjectOut":
        """
        The subject of a row.
        """
        return cls(
            kind=row.subject_kind,
            node_id=row.node_id,
            peer_node_id=row.peer_node_id,
            site=row.site,
            leaf=row.leaf,
            rail=row.rail,
            part=row.part,
        )


class JudgedAgainst(Out):
    """
    One version of a baseline.
    """

    id: str = Field(description="The baseline.", examples=["bsl_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    version: int = Field(description="Its version.", examples=[2])

    @classmethod
    def of(cls, row: MeasurementRow | StandingRow) -> "JudgedAgainst | None":
        """
        The version a row was held against.
        """
        if row.baseline_id is None or row.baseline_version is None:
            return None
        return cls(id=row.baseline_id, version=row.baseline_version)


VERDICT = "passed, failed, not_measured, or not_judged: there is a value, and nothing that says what is good enough."
JUDGE = "Whose verdict it is: of a baseline, the tool itself, the provider, or of nothing."


class MeasurementOut(Out):
    """
    One figure as it was measured, and the verdict on it then. It never changes.
    """

    id: str = Field(description="Opaque id.", examples=["msr_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    run_id: str = Field(description="The run it is of.", examples=["burn-in-2026-03-01"])
    subject: SubjectOut = Field(description="Whose figure it is.")
    tool: str = Field(description="What measured it; `acceptance` for a provider's checks.", examples=["gpu-burn"])
    metric: str = Field(description="Which figure.", examples=["burn_speed"])
    value: float | None = Field(description="In `unit`; null when it was not measured.", examples=[51234.0])
    unit: str = Field(description="Of the value; `yes` is 1 or 0.", examples=["Gflop/s"])
    detail: str = Field(description="What a provider saw.", examples=[""])
    verdict: str = Field(description=VERDICT, examples=["passed"])
    judged_by: str = Field(description=JUDGE, examples=["baseline"])
    baseline: JudgedAgainst | None = Field(description="What it was held against; null without one.")
    digest: str = Field(description="SHA-256 of the raw output, in hex.", examples=["9f86d081884c7d659a2feaa0c55ad015"])
    taken_at: Moment = Field(description="When it was measured.", examples=["2026-03-01T10:00:00Z"])
    recorded_at: Moment = Field(description="When it was recorded.", examples=["2026-03-01T10:05:00Z"])

    @classmethod
    def of(cls, row: MeasurementRow) -> "MeasurementOut":
        """
        The row on the wire.
        """
        plain = (
            "id",
            "run_id",
            "tool",
            "metric",
            "value",
            "unit",
            "detail",
            "verdict",
            "judged_by",
            "digest",
            "taken_at",
            "recorded_at",
        )
        values: dict[str, Any] = {name: getattr(row, name) for name in plain}
        return cls(**values, subject=SubjectOut.of(row), baseline=JudgedAgainst.of(row))


class Recording(Out):
    """
    What stands in the ledger of the output.
    """

    run_id: str = Field(description="The run, yours or a new one.", examples=["burn-in-2026-03-01"])
    recorded: int = Field(description="How many figures are new; 0 when the run was recorded already.", examples=[33])
    items: list[MeasurementOut] = Field(description="Every figure of the output.")

    @classmethod
    def of(cls, done: Recorded) -> "Recording":
        """
        What was recorded, on the wire.
        """
        return cls(run_id=done.run_id, recorded=done.new, items=[MeasurementOut.of(row) for row in done.rows])


class TrendOut(Out):
    """
    What the last values of a figure say.
    """

    values: int = Field(default=0, description="How many values it rests on, at most 20.", examples=[9])
    mean: float | None = Field(default=None, description="Of these values.", examples=[370.5])
    least: float | None = Field(default=None, description="The smallest.", examples=[362.0])
    greatest: float | None = Field(default=None, description="The largest.", examples=[378.1])
    average: float | None = Field(default=None, description="Exponentially weighted, newest first.", examples=[366.2])
    slope_per_day: float | None = Field(default=None, description="Change per day; null with fewer than 5 values.", examples=[-1.4])
    days_to_limit: float | None = Field(
        default=None, description="Days until the line crosses the baseline; null when it does not.", examples=[4.4]
    )


class StandingOut(Out):
    """
    The latest verdict on one figure of one subject under the baselines in force.
    """

    id: str = Field(description="Opaque id.", examples=["std_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    subject: SubjectOut = Field(description="Whose figure it is.")
    tool: str = Field(description="What measured it last.", examples=["nccl-tests"])
    metric: str = Field(description="Which figure.", examples=["nccl_all_reduce_bus_bandwidth_largest"])
    value: float | None = Field(description="The latest value; null when it was not measured.", examples=[366.0])
    unit: str = Field(description="Of the value.", examples=["GB/s"])
    verdict: str = Field(description=VERDICT, examples=["passed"])
    judged_by: str = Field(description=JUDGE, examples=["baseline"])
    baseline: JudgedAgainst | None = Field(description="The version in force; null without one.")
    since: Moment = Field(description="When the verdict became what it is.", examples=["2026-03-01T10:05:00Z"])
    measurement_id: str = Field(description="The latest measurement.", examples=["msr_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    taken_at: Moment = Field(description="When that was taken.", examples=["2026-03-01T10:00:00Z"])
    drifting: bool = Field(description="Whether it is good now and within 14 days of where it is not.", examples=[False])
    trend: TrendOut = Field(description="Where it is going.")

    @classmethod
    def of(cls, row: StandingRow) -> "StandingOut":
        """
        The row on the wire.
        """
        plain = ("id", "tool", "metric", "value", "unit", "verdict", "judged_by", "since", "measurement_id", "taken_at", "drifting")
        values: dict[str, Any] = {name: getattr(row, name) for name in plain}
        return cls(**values, subject=SubjectOut.of(row), baseline=JudgedAgainst.of(row), trend=TrendOut(**row.trend))


class PointOut(Out):
    """
    One value at one moment.
    """

    at: Moment = Field(description="When it was measured.", examples=["2026-03-01T10:00:00Z"])
    value: float = Field(description="In the figure's unit.", examples=[366.0])


class TrendReport(Out):
    """
    One figure of one subject over time.
    """

    standing: StandingOut = Field(description="How it stands, and its trend.")
    points: list[PointOut] = Field(description="The values the trend rests on, oldest first.")

    @classmethod
    def of(cls, row: StandingRow) -> "TrendReport":
        """
        The row with its values.
        """
        points = [PointOut(at=datetime.fromtimestamp(at_s, UTC), value=value) for at_s, value in row.recent]
        return cls(standing=StandingOut.of(row), points=points)


class ReasonOut(Out):
    """
    One thing that keeps a node from being sold, or would under a stricter policy.
    """

    code: str = Field(description="under_baseline, suspect_in_pairs, not_measured or not_passed.", examples=["under_baseline"])
    subject: str = Field(description="Whose figure; for pairs the nodes it fails with.", examples=["osl1/b1-l2"])
    metric: str = Field(description="Which figure; empty for pairs.", examples=["nccl_all_reduce_bus_bandwidth_largest"])
    part: str = Field(description="The GPU or device, as `gpu3`, or the rail of a pair; empty for the whole.", examples=[""])


class NodeQualificationOut(Out):
    """
    Whether a node may be sold, as far as measurements go.
    """

    node_id: str = Field(description="Which node.", examples=["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    refusal: str | None = Field(
        description="Why it is not placed: below_baseline or not_measured; null when it is.", examples=["below_baseline"]
    )
    below: bool = Field(description="Whether something of it is under its baseline.", examples=[True])
    missing: bool = Field(description="Whether a figure that its policy requires has not passed.", examples=[False])
    good_until: Moment | None = Field(description="When a required figure becomes too old.", examples=["2026-04-01T00:00:00Z"])
    fails_with: list[str] = Field(description="Partners whose failed pairs single it out.", examples=[[]])
    reasons: list[ReasonOut] = Field(description="At most 50.")
    changed_at: Moment = Field(description="When it last became another.", examples=["2026-03-01T10:05:00Z"])

    @classmethod
    def of(cls, row: NodeQualificationRow, refusal: str | None) -> "NodeQualificationOut":
        """
        The row on the wire.
        """
        plain = ("node_id", "below", "missing", "good_until", "fails_with", "changed_at")
        values: dict[str, Any] = {name: getattr(row, name) for name in plain}
        return cls(**values, refusal=refusal, reasons=[ReasonOut(**one) for one in row.reasons])
