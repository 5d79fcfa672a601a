"""
The words of the room, and its two decisions: which verdict a figure gets, and whether a node may be sold. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from controlplane.measurements.figures import NODE, Measurement, Unit
from controlplane.measurements.thresholds import Baseline as Threshold
from controlplane.measurements.thresholds import judge
from controlplane.measurements.tools import SubjectKind, ToolName, own_baseline
from controlplane.measurements.trends import Limit

Verdict = Literal["passed", "failed", "not_measured", "not_judged"]
"""`not_judged`: there is a value, and nothing that says what is good enough."""
JudgedBy = Literal["baseline", "tool", "provider", "nothing"]
Comparison = Literal["at_least", "at_most"]
BurnName = Literal["gpu_state", "gpu_diagnosis", "gpu_burn", "gpu_collectives", "linpack", "rdma_loopback"]
ScopeKind = Literal["gpu_model", "instance_type"]
Refusal = Literal["", "below_baseline", "not_measured"]

ACCEPTANCE = "acceptance"
"""What the checks of a provider are recorded under, where a tool's name stands otherwise."""
FABRIC_CHECK = "fabric check"
"""What the end of a run between nodes is recorded under."""
RUN_PASSED = "fabric_run_passed"
"""Whether a tool between nodes came to its end with an output that can be read; not measured where it is not there."""
MOST_REASONS = 50
WORDS: Mapping[str, Verdict] = {"pass": "passed", "fail": "failed", "not_measured": "not_measured"}


@dataclass(frozen=True, slots=True)
class Subject:
    """
    Whose figure it is.
    """

    kind: SubjectKind
    """node, pair, leaf or rail."""
    node_id: str | None = None
    """The node, or the first end of the pair."""
    peer_node_id: str | None = None
    """The second end of the pair."""
    site: str | None = None
    """Where the leaf is."""
    leaf: str | None = None
    """The leaf, or the one the rail is of."""
    rail: int | None = None
    """The rail's number."""

    @property
    def key(self) -> str:
        """
        Its name among the subjects of its kind; ends of a pair stay in their order, because the ways differ.
        """
        if self.kind == "node":
            return f"{self.node_id}"
        if self.kind == "pair":
            return f"{self.node_id}/{self.peer_node_id}"
        place = f"{self.site}/{self.leaf}"
        return place if self.kind == "leaf" else f"{place}/{self.rail}"


@dataclass(frozen=True, slots=True)
class Hardware:
    """
    What a subject is made of, as far as baselines go by it.
    """

    instance_type: str | None = None
    """None when its nodes differ."""
    gpu_model: str | None = None
    """None when its nodes differ."""


@dataclass(frozen=True, slots=True)
class NodeFact:
    """
    What the ledger needs to know of a node.
    """

    id: str
    """`nod_…`."""
    site: str
    """Where it stands."""
    leaf: str
    """Where its rails meet."""
    instance_type: str
    """What it is sold as."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """
    One version of what a figure must reach.
    """

    id: str
    """`bsl_…`; the same for all versions."""
    version: int
    """Counted from 1."""
    scope_kind: ScopeKind
    """By what it is chosen."""
    scope_name: str
    """For which GPU model or instance type."""
    subject_kind: SubjectKind
    """Of which subjects."""
    metric: str
    """Which figure."""
    comparison: Comparison
    """On which side of the value is good."""
    value: float
    """The limit."""
    tolerance: float
    """Part of the limit by which a figure may miss it."""
    unit: Unit
    """Of the limit."""
    source: str
    """Where the limit comes from, in words."""
    withdrawn: bool = False
    """From this version on it judges nothing."""
    created_by: str = ""
    """Who set this version."""
    created_at: datetime | None = None
    """When; None for one that is not stored."""

    @property
    def threshold(self) -> Threshold:
        """
        What the judge takes.
        """
        least = self.value if self.comparison == "at_least" else None
        most = self.value if self.comparison == "at_most" else None
        return Threshold(self.metric, self.unit, least, most, self.tolerance)

    @property
    def limit(self) -> Limit:
        """
        What the trend goes by.
        """
        room = abs(self.value) * self.tolerance
        at_least = self.comparison == "at_least"
        return Limit(self.value - room if at_least else self.value + room, at_least)


@dataclass(frozen=True, slots=True)
class BaselineFilter:
    """
    Which baselines are asked for; None: any.
    """

    gpu_model: str | None = None
    """For this GPU model."""
    instance_type: str | None = None
    """For this instance type."""
    subject_kind: str | None = None
    """Of these subjects."""
    metric: str | None = None
    """Of this figure."""
    withdrawn: bool = False
    """The withdrawn ones instead of those in force."""


@dataclass(frozen=True, slots=True)
class MeasurementFilter:
    """
    Which measurements or standings are asked for; None: any.
    """

    node_id: str | None = None
    """Of this node, or of a pair with it."""
    site: str | None = None
    """Of leaves and rails in this site."""
    leaf: str | None = None
    """Of this leaf and its rails."""
    subject_kind: str | None = None
    """Of these subjects."""
    metric: str | None = None
    """Of this figure."""
    tool: str | None = None
    """By this tool."""
    verdict: str | None = None
    """With this verdict."""
    run_id: str | None = None
    """Of this run; measurements only."""
    drifting: bool | None = None
    """On their way to failing; standings only."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """
    A verdict and what it rests on.
    """

    verdict: Verdict
    """What it is."""
    judged_by: JudgedBy
    """Whose."""
    baseline: Baseline | None = None
    """The version that was held against it."""


class Baselines:
    """
    The baselines in force, found by what a subject is made of: one for its instance type goes before one for its GPU model.
    """

    def __init__(self, active: Iterable[Baseline]) -> None:
        self._by_place = {
            (one.subject_kind, one.metric, one.scope_kind, one.scope_name): one for one in active if not one.withdrawn
        }

    def find(self, kind: SubjectKind, metric: str, made_of: Hardware) -> Baseline | None:
        """
        The one that applies, or None.
        """
        by_type = self._by_place.get((kind, metric, "instance_type", made_of.instance_type or ""))
        return by_type or self._by_place.get((kind, metric, "gpu_model", made_of.gpu_model or ""))


def judgement_of(tool: str, metric: str, value: float | None, unit: Unit, baseline: Baseline | None) -> Judgement:
    """
    The verdict on a figure: by the baseline, else by the provider's or the tool's own word. A limit in another unit judges nothing.
    """
    figure = Measurement(metric, value, unit, NODE)
    if baseline is not None and baseline.unit == unit:
        (finding,) = judge([figure], [baseline.threshold])
        return Judgement(WORDS[finding.verdict], "baseline", baseline)
    if tool == ACCEPTANCE:
        return Judgement("not_measured" if value is None else "passed" if value else "failed", "provider")
    own = own_baseline(metric, unit)
    if own is not None:
        (finding,) = judge([figure], [own])
        return Judgement(WORDS[finding.verdict], "tool")
    return Judgement("not_measured" if value is None else "not_judged", "nothing")


@dataclass(frozen=True, slots=True)
class BurnTest:
    """
    One test of a machine's own check.
    """

    name: BurnName
    """Which one."""
    limit_s: int
    """Seconds it may take; then it is ended and has failed."""
    required: bool = False
    """Whether a machine that cannot run it has failed its check."""
    amount: int = 0
    """The seconds of a burn, the level of a diagnosis; of no meaning for others."""


@dataclass(frozen=True, slots=True)
class BurnKind:
    """
    What a test runs, and what may be asked of it.
    """

    tool: ToolName
    """Who reads its output."""
    collective: str = ""
    """For nccl-tests."""
    least: int = 0
    """Of the amount."""
    most: int = 0
    """Of the amount; 0 where it has none."""


BURN_KINDS: Mapping[BurnName, BurnKind] = {
    "gpu_state": BurnKind("nvidia-smi"),
    "gpu_diagnosis": BurnKind("dcgmi diag", least=1, most=4),
    "gpu_burn": BurnKind("gpu-burn", least=10, most=7200),
    "gpu_collectives": BurnKind("nccl-tests", "all_reduce"),
    "linpack": BurnKind("HPL"),
    "rdma_loopback": BurnKind("ib_write_bw"),
}
USUAL_TESTS = (
    BurnTest("gpu_state", 120),
    BurnTest("gpu_diagnosis", 1200, amount=2),
    BurnTest("gpu_burn", 420, amount=120),
    BurnTest("gpu_collectives", 600),
    BurnTest("rdma_loopback", 300),
)
"""Where no policy names any; whatever the image or the hardware lacks is not measured. Linpack needs a file made for the machine."""
LONGEST_BURN_IN_S = 3 * 3600
"""All limits of a check together: its state must outlast it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """
    What must be known of nodes of one instance type before they may be sold.
    """

    instance_type: str
    """Which type."""
    required: tuple[str, ...] = ()
    """Figures of the node itself that must have passed."""
    sell_not_measured: bool = True
    """Whether a node may be sold although a required figure is not measured."""
    max_age_s: int | None = None
    """After this a required figure counts as not measured; None: never."""
    version: int = 0
    """0 where nobody has set one."""
    updated_by: str = ""
    """Who set it."""
    updated_at: datetime | None = None
    """When it was set; None where nobody has."""
    burn_in: tuple[BurnTest, ...] | None = None
    """What a machine's own check runs, in this order; None: the usual tests."""

    @property
    def tests(self) -> tuple[BurnTest, ...]:
        """
        What a machine of the type runs.
        """
        return USUAL_TESTS if self.burn_in is None else self.burn_in


@dataclass(frozen=True, slots=True)
class Stand:
    """
    The latest verdict on one figure of one subject, as the rule on selling sees it.
    """

    kind: SubjectKind
    """Of what."""
    key: str
    """Of which one."""
    part: str
    """The GPU, as `gpu3`; empty for the whole."""
    metric: str
    """Which figure."""
    verdict: Verdict
    """Latest."""
    judged_by: JudgedBy
    """By what."""
    taken_at: datetime
    """When it was measured."""


@dataclass(frozen=True, slots=True)
class Reason:
    """
    One thing that keeps a node from being sold, or would under a stricter policy.
    """

    code: str
    """`under_baseline`, `suspect_in_pairs`, `not_measured`, `not_passed`."""
    subject: str
    """Key of the subject; for pairs those it fails with."""
    metric: str
    """Which figure; empty for pairs."""
    part: str = ""
    """The GPU, where it is one."""


@dataclass(frozen=True, slots=True)
class Qualification:
    """
    Whether a node may be sold, as far as measurements go.
    """

    below: bool
    """Something of it is under its baseline."""
    missing: bool
    """A figure that its policy requires has not passed."""
    good_until: datetime | None
    """When the first required figure becomes too old; None when none ever does."""
    reasons: tuple[Reason, ...] = field(default=())
    """At most so many, what is under its baseline first."""


UNKNOWN = Qualification(below=False, missing=True, good_until=None)
"""Of a node that nobody looked at yet."""


def refusal_of(known: Qualification, policy: Policy, now: datetime) -> Refusal:
    """
    Why placement leaves the node out; empty when it does not. The same rule as the one that placement's query has.
    """
    if known.below:
        return "below_baseline"
    strict = bool(policy.required) and not policy.sell_not_measured
    old = known.good_until is not None and known.good_until <= now
    return "not_measured" if strict and (known.missing or old) else ""


def qualification_of(policy: Policy, stands: Sequence[Stand], fails_with: Iterable[str]) -> Qualification:
    """
    Whether the node may be sold: `stands` are those of the node, its leaf and its rails, `fails_with` the partners that single it out.

    Failures that a provider found itself decide over the node's state, so they count here only where the policy asks for the figure.
    """
    required = set(policy.required)
    # Whether the tools ran between nodes is known of places only, and is asked of the node's own; other figures mean another thing there.
    own = [one for one in stands if one.kind == "node" or one.metric == RUN_PASSED]
    partners = sorted(fails_with)
    under = [
        Reason("under_baseline", one.key, one.metric, one.part)
        for one in stands
        if one.verdict == "failed" and (one.judged_by != "provider" or (one.kind == "node" and one.metric in required))
    ]
    if partners:
        under.append(Reason("suspect_in_pairs", ", ".join(partners[:10]), ""))
    lacking = []
    for metric in policy.required:
        verdicts = {one.verdict for one in own if one.metric == metric}
        if not verdicts or verdicts & {"not_measured", "not_judged"}:
            lacking.append(Reason("not_passed" if "not_judged" in verdicts else "not_measured", "", metric))
    known = [one.taken_at for one in own if one.metric in required]
    until = min(known) + timedelta(seconds=policy.max_age_s) if known and policy.max_age_s is not None else None
    return Qualification(bool(under), bool(lacking), until, (*under, *lacking)[:MOST_REASONS])
