"""
Baselines and policies on the wire. All of it is for operators.
"""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from controlplane.measurements.figures import Unit
from controlplane.measurements.tools import LARGEST_VALUE, SubjectKind
from controlplane.qualification.schemas import Place, TextFilter
from controlplane.qualification.service import Baseline, BurnTest, Impact, Policy
from controlplane.qualification.states import BURN_KINDS, LONGEST_BURN_IN_S, BurnName
from controlplane.web.schemas import Body, Moment, Out, check_text

MOST_NODES = 500
ModelFilter = Annotated[TextFilter, Query(description="Only for this GPU model.", examples=["H100-SXM5-80GB"])]
TypeFilter = Annotated[TextFilter, Query(description="Only for this instance type.", examples=["hgx-h100-8"])]

Metric = Annotated[str, StringConstraints(min_length=1, max_length=120, pattern=r"^[a-z0-9_]+$")]
Source = Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(check_text)]
Value = Annotated[float, Field(ge=-LARGEST_VALUE, le=LARGEST_VALUE, allow_inf_nan=False)]


class Limits(Body):
    """
    What a figure has to reach.
    """

    comparison: Literal["at_least", "at_most"] = Field(description="On which side of the value is good.", examples=["at_least"])
    value: Value = Field(description="The limit, in `unit`.", examples=[360.0])
    tolerance: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = Field(
        default=0.0, description="Part of the limit by which a figure may miss it.", examples=[0.05]
    )
    unit: Unit = Field(description="Of the limit; the one the figure is measured in.", examples=["GB/s"])
    source: Source = Field(description="Where the limit comes from.", examples=["Median of 64 nodes at acceptance, less 3 %."])


class BaselineCreate(Limits):
    """
    A new baseline, for one GPU model or for one instance type; one for an instance type goes before one for its GPU model.
    """

    gpu_model: Place | None = Field(default=None, description="For which GPU model.", examples=[None])
    instance_type: Place | None = Field(default=None, description="For which instance type.", examples=["hgx-h100-8"])
    subject_kind: SubjectKind = Field(description="Of which subjects.", examples=["node"])
    metric: Metric = Field(description="Which figure.", examples=["nccl_all_reduce_bus_bandwidth_largest"])

    @model_validator(mode="after")
    def _for_one(self) -> "BaselineCreate":
        if (self.gpu_model is None) == (self.instance_type is None):
            raise ValueError("a baseline is for one GPU model or for one instance type")
        return self

    def new(self, by: str) -> Baseline:
        """
        As the service takes it; its id and version are given there.
        """
        return Baseline(
            id="",
            version=0,
            scope_kind="gpu_model" if self.gpu_model is not None else "instance_type",
            scope_name=self.gpu_model or self.instance_type or "",
            subject_kind=self.subject_kind,
            metric=self.metric,
            comparison=self.comparison,
            value=self.value,
            tolerance=self.tolerance,
            unit=self.unit,
            source=self.source,
            created_by=by,
        )


class ImpactOut(Out):
    """
    What the change does to the fleet, or with `dry_run` would do.
    """

    judged: int = Field(description="Latest figures that are held against the new version.", examples=[64])
    falls_out_count: int = Field(description="Nodes that are not placed any more.", examples=[1])
    comes_back_count: int = Field(description="Nodes that are placed again.", examples=[0])
    falls_out: list[str] = Field(description="The first 500 of them.", examples=[["nod_01k5x7p3r8w2v6t9q4n0m1c2d3"]])
    comes_back: list[str] = Field(description="The first 500 of them.", examples=[[]])

    @classmethod
    def of(cls, impact: Impact) -> "ImpactOut":
        """
        The impact on the wire.
        """
        return cls(
            judged=impact.judged,
            falls_out_count=len(impact.falls_out),
            comes_back_count=len(impact.comes_back),
            falls_out=list(impact.falls_out[:MOST_NODES]),
            comes_back=list(impact.comes_back[:MOST_NODES]),
        )


class BaselineOut(Out):
    """
    One version of what a figure has to reach.
    """

    id: str = Field(description="Opaque id; the same for all versions.", examples=["bsl_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    version: int = Field(description="Counted from 1; also the ETag.", examples=[2])
    gpu_model: str | None = Field(description="For which GPU model; null when it is for an instance type.", examples=[None])
    instance_type: str | None = Field(
        description="For which instance type; null when it is for a GPU model.", examples=["hgx-h100-8"]
    )
    subject_kind: str = Field(description="Of which subjects.", examples=["node"])
    metric: str = Field(description="Which figure.", examples=["nccl_all_reduce_bus_bandwidth_largest"])
    comparison: str = Field(description="at_least or at_most.", examples=["at_least"])
    value: float = Field(description="The limit.", examples=[360.0])
    tolerance: float = Field(description="Part of the limit by which a figure may miss it.", examples=[0.05])
    unit: str = Field(description="Of the limit.", examples=["GB/s"])
    source: str = Field(description="Where the limit comes from.", examples=["Median of 64 nodes at acceptance, less 3 %."])
    withdrawn: bool = Field(description="Whether it judges nothing from this version on.", examples=[False])
    created_by: str = Field(description="Who set this version.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    created_at: Moment = Field(description="When this version was set.", examples=["2026-03-01T10:00:00Z"])

    @classmethod
    def of(cls, one: Baseline) -> "BaselineOut":
        """
        The version on the wire.
        """
        return cls(**_baseline(one))


class BaselineSet(BaselineOut):
    """
    The version that is in force, and what that does.
    """

    impact: ImpactOut = Field(description="What it does to the fleet.")

    @classmethod
    def done(cls, one: Baseline, impact: Impact) -> "BaselineSet":
        """
        The version with its impact.
        """
        return cls(**_baseline(one), impact=ImpactOut.of(impact))


def _baseline(one: Baseline) -> dict[str, Any]:
    same = ("id", "version", "subject_kind", "metric", "comparison", "value", "tolerance", "unit", "source", "withdrawn")
    values: dict[str, Any] = {name: getattr(one, name) for name in (*same, "created_by", "created_at")}
    by_model = one.scope_kind == "gpu_model"
    return values | {"gpu_model": one.scope_name if by_model else None, "instance_type": None if by_model else one.scope_name}


class BurnTestIn(Body):
    """
    One test of a machine's own check.
    """

    name: BurnName = Field(description=f"Which one: {', '.join(BURN_KINDS)}.", examples=["gpu_burn"])
    limit_s: int = Field(ge=10, le=LONGEST_BURN_IN_S, description="Seconds it may take; then it has failed.", examples=[900])
    required: bool = Field(
        default=False, description="Whether a machine on which it cannot be run has failed its check.", examples=[True]
    )
    amount: int = Field(
        default=0, ge=0, le=7200, description="gpu_burn: seconds; gpu_diagnosis: level, 1 to 4; others: 0.", examples=[600]
    )

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "BurnTestIn":
        kind = BURN_KINDS[self.name]
        if not kind.least <= self.amount <= kind.most:
            raise ValueError(f"the amount of {self.name} is {kind.least} to {kind.most}")
        if self.name == "gpu_burn" and self.amount >= self.limit_s:
            raise ValueError("a burn is over before its limit")
        return self


class BurnTestOut(Out):
    """
    One test of a machine's own check.
    """

    name: str = Field(description="Which one.", examples=["gpu_burn"])
    limit_s: int = Field(description="Seconds it may take; then it has failed.", examples=[900])
    required: bool = Field(description="Whether a machine on which it cannot be run has failed its check.", examples=[True])
    amount: int = Field(description="gpu_burn: seconds; gpu_diagnosis: level; others: 0.", examples=[600])


class PolicyPut(Body):
    """
    What must be known of nodes of the type before they may be sold.
    """

    required: list[Metric] = Field(
        max_length=50,
        description="Figures of the node itself that must have passed; `fabric_run_passed` is that of its leaf and rails.",
        examples=[["gpu_burn_in", "burn_passed"]],
    )
    sell_not_measured: bool = Field(
        description="Whether a node may be sold although a required figure is not measured.", examples=[False]
    )
    max_age_s: Annotated[int, Field(ge=60, le=315_360_000)] | None = Field(
        default=None, description="After this a required figure counts as not measured; null: never.", examples=[2_592_000]
    )
    burn_in: Annotated[list[BurnTestIn], Field(max_length=len(BURN_KINDS))] | None = Field(
        default=None, description="What a machine's own check runs, in this order; null: the usual tests.", examples=[None]
    )

    @model_validator(mode="after")
    def _each_once(self) -> "PolicyPut":
        if len(set(self.required)) != len(self.required):
            raise ValueError("a figure is required once")
        tests = self.burn_in or []
        if len({one.name for one in tests}) != len(tests):
            raise ValueError("a test is run once")
        if sum(one.limit_s for one in tests) > LONGEST_BURN_IN_S:
            raise ValueError(f"the limits of all tests together are at most {LONGEST_BURN_IN_S} s")
        return self

    def tests(self) -> tuple[BurnTest, ...] | None:
        """
        The tests as the service takes them.
        """
        return None if self.burn_in is None else tuple(BurnTest(**one.model_dump()) for one in self.burn_in)


class PolicyOut(Out):
    """
    What must be known of nodes of the type before they may be sold.
    """

    instance_type: str = Field(description="Which type.", examples=["hgx-h100-8"])
    required: list[str] = Field(
        description="Figures of the node itself that must have passed; `fabric_run_passed` is that of its leaf and rails.",
        examples=[["gpu_burn_in"]],
    )
    sell_not_measured: bool = Field(
        description="Whether a node may be sold although a required figure is not measured.", examples=[False]
    )
    max_age_s: int | None = Field(description="After this a required figure counts as not measured.", examples=[2_592_000])
    burn_in: list[BurnTestOut] | None = Field(
        description="What a machine's own check runs, in this order; null: the usual tests.", examples=[None]
    )
    version: int = Field(description="0 where nobody has set one; also the ETag.", examples=[1])
    updated_by: str = Field(description="Who set it; empty where nobody has.", examples=["prn_01k5x7p3r8w2v6t9q4n0m1c2d3"])
    updated_at: Moment | None = Field(description="When; null where nobody has.", examples=["2026-03-01T10:00:00Z"])

    @classmethod
    def of(cls, one: Policy) -> "PolicyOut":
        """
        The policy on the wire.
        """
        return cls(**_policy(one))


class PolicySet(PolicyOut):
    """
    The policy that is in force, and what that does.
    """

    impact: ImpactOut = Field(description="What it does to the fleet.")

    @classmethod
    def done(cls, one: Policy, impact: Impact) -> "PolicySet":
        """
        The policy with its impact.
        """
        return cls(**_policy(one), impact=ImpactOut.of(impact))


def _policy(one: Policy) -> dict[str, Any]:
    burn_in = None if one.burn_in is None else [BurnTestOut(**asdict(test)) for test in one.burn_in]
    plain = {name: getattr(one, name) for name in Policy.__dataclass_fields__}
    return plain | {"required": list(one.required), "burn_in": burn_in}
