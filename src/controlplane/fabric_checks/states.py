"""
The life of a fabric check as data, what it runs on which nodes, and its verdict. Pure.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal

from controlplane.kit.states import State, StateTable
from controlplane.measurements.suspects import PairResult, suspects
from controlplane.nodes.states import ProviderRef
from controlplane.qualification.states import RUN_PASSED, Subject

ScopeKind = Literal["pair", "leaf", "rail", "block"]
Tool = Literal["nccl-tests", "ib_write_bw"]
Result = Literal["passed", "failed", "not_measured"]
Verdict = Literal["", "passed", "failed", "not_measured", "not_judged"]
COLLECTIVES: Mapping[Tool, str] = {"nccl-tests": "all_reduce", "ib_write_bw": ""}
TOOLS: Mapping[Tool, tuple[str, ...]] = {
    "nccl-tests": ("all_reduce_perf", "mpirun", "ssh", "sshd"),
    "ib_write_bw": ("ib_write_bw",),
}
"""What a machine that boots through us must have to take part."""
MOST_NODES = 64
"""Of one check; of a larger place the first ones are measured."""
FEWEST_NODES = 2

FABRIC_CHECK_STATES = StateTable(
    kind="fabric_check",
    states=(
        State(
            "starting",
            "moving",
            frozenset({"running", "judging", "returning"}),
            3600,
            "returning",
            says="Its nodes are being made ready for tools.",
        ),
        State("running", "moving", frozenset({"judging", "returning"}), 4 * 3600, "returning", says="Tools run between its nodes."),
        State("judging", "moving", frozenset({"returning"}), 600, "returning", says="What was measured is judged."),
        State(
            "returning",
            "moving",
            frozenset({"done", "failed", "cancelled"}),
            3600,
            None,
            True,
            "Its nodes are free only once the provider was seen without it.",
        ),
        State("done", "final", says="All was run and judged; the verdict says how it is."),
        State("failed", "final", says="It could not be brought to its end; what had been measured by then stands."),
        State("cancelled", "final", says="Somebody stopped it; what had been measured by then stands."),
    ),
)
ENDS = frozenset(FABRIC_CHECK_STATES.names("final"))


@dataclass(frozen=True, slots=True)
class Scope:
    """
    What is to be checked.
    """

    kind: ScopeKind
    """pair, leaf, rail or block."""
    node_id: str = ""
    """The first end of the pair."""
    peer_node_id: str = ""
    """The second end of the pair."""
    site: str = ""
    """Where the leaf or block is."""
    block: str = ""
    """Spine group."""
    leaf: str = ""
    """The leaf, or the one the rail is of."""
    rail: int | None = None
    """The only rail that is used; None: all."""


@dataclass(frozen=True, slots=True)
class Member:
    """
    A node of a check.
    """

    id: str
    """`nod_…`."""
    ref: str
    """Its name at the provider."""
    leaf: str
    """Where its rails meet."""


@dataclass(frozen=True, slots=True)
class Run:
    """
    One tool between some of the nodes.
    """

    name: str
    """Unique in the check."""
    kind: Literal["pair", "leaf", "rail"]
    """Whose figures it measures."""
    refs: tuple[str, ...]
    """Its machines, by their names at the provider."""
    node_id: str | None = None
    """The first end of the pair."""
    peer_node_id: str | None = None
    """The second end of the pair."""
    site: str | None = None
    """Where the leaf is."""
    leaf: str | None = None
    """The leaf, or the one the rail is of."""
    rail: int | None = None
    """The only rail that it uses; None: all."""

    @property
    def subject(self) -> Subject:
        """
        Whose figures they are in the ledger.
        """
        return Subject(self.kind, self.node_id, self.peer_node_id, self.site, self.leaf, self.rail if self.kind == "rail" else None)

    @property
    def part(self) -> str:
        """
        The part of a pair that was measured; empty for the whole.
        """
        return f"rail{self.rail}" if self.kind == "pair" and self.rail is not None else ""

    def document(self) -> dict[str, Any]:
        """
        As its row keeps it.
        """
        return asdict(self) | {"refs": list(self.refs)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Run":
        """
        As its row kept it.
        """
        return cls(**{**document, "refs": tuple(document["refs"])})


Rounds = tuple[tuple[Run, ...], ...]


def plan(scope: Scope, tool: Tool, members: Sequence[Member]) -> Rounds:
    """
    What is run, round by round: in a round every node is in one run at most.

    Of a leaf or rail: a collective over all of it, then pairs; each node has up to four partners, so that failures point at somebody. Of
    a block: each of its leaves so, then the first nodes of the leaves as pairs across the spine. Writes know pairs only.
    """
    rail = scope.rail if tool == "nccl-tests" else scope.rail or 0
    if scope.kind == "pair":
        return _numbered([[_pair(members[0], members[1], rail)]])
    leaves: dict[str, list[Member]] = {}
    for one in members:
        leaves.setdefault(one.leaf, []).append(one)
    together = [_whole(scope, rail, some) for some in leaves.values() if len(some) >= FEWEST_NODES and tool == "nccl-tests"]
    pairs = [one for some in leaves.values() for one in _neighbours(some)]
    across = _neighbours([some[0] for some in leaves.values()]) if scope.kind == "block" else []
    rounds = [together] if together else []
    return _numbered(rounds + _matched([_pair(one, other, rail) for one, other in [*pairs, *across]]))


def _whole(scope: Scope, rail: int | None, members: Sequence[Member]) -> Run:
    kind: Literal["leaf", "rail"] = "leaf" if rail is None else "rail"
    return Run("", kind, tuple(one.ref for one in members), site=scope.site, leaf=members[0].leaf, rail=rail)


def _pair(one: Member, other: Member, rail: int | None) -> Run:
    return Run("", "pair", (one.ref, other.ref), one.id, other.id, rail=rail)


def _neighbours(members: Sequence[Member]) -> list[tuple[Member, Member]]:
    """
    Each node with the next two in a ring, no pair twice.
    """
    ring = [*members, *members[:2]]
    near = [*pairwise(ring[: len(members) + 1]), *zip(ring, ring[2:], strict=False)]
    once: dict[frozenset[str], tuple[Member, Member]] = {}
    for one, other in near:
        if one.id != other.id:
            once.setdefault(frozenset((one.id, other.id)), (one, other))
    return list(once.values())


def _matched(runs: Iterable[Run]) -> list[list[Run]]:
    """
    The runs in rounds in which no machine is in two.
    """
    rounds: list[list[Run]] = []
    busy: list[set[str]] = []
    for run in runs:
        place = next((number for number, refs in enumerate(busy) if not refs & set(run.refs)), len(rounds))
        if place == len(rounds):
            rounds.append([])
            busy.append(set())
        rounds[place].append(run)
        busy[place] |= set(run.refs)
    return rounds


def _numbered(rounds: Sequence[Sequence[Run]]) -> Rounds:
    return tuple(
        tuple(Run(**{**one.document(), "refs": one.refs, "name": f"{number}-{place}"}) for place, one in enumerate(some))
        for number, some in enumerate(rounds)
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """
    What one run came to.
    """

    run: Run
    """Which one."""
    result: Result
    """`passed`: the tool came to its end; whether that was good enough the ledger says."""
    output: str = ""
    """What it printed."""
    detail: str = ""
    """Why it failed or was not measured."""


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """
    How tools are run on machines that boot through us: the provider's setting `fabric_tools`.
    """

    rails: tuple[str, ...] = ()
    """RDMA devices in rail order; a rail without one is not measured."""
    timeout_s: int = 600
    """Longest one tool may run."""
    all_reduce: tuple[str, ...] = ("-b", "8", "-e", "8G", "-f", "2")
    """Options of all_reduce_perf."""
    ib_write_bw: tuple[str, ...] = ("-F", "--report_gbits")
    """Options of ib_write_bw, on both ends."""
    mpirun: tuple[str, ...] = ()
    """More options of mpirun."""


LIMITS_S = range(10, 7201)
DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,40}", re.ASCII)
OPTION = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)


def tool_settings(config: Mapping[str, Any]) -> ToolSettings:
    """
    The settings among a provider's. Raises ValueError in words for operators.
    """
    given = config.get("fabric_tools", {})
    if not isinstance(given, dict) or not given.keys() <= set(ToolSettings.__slots__):
        raise ValueError(f"the provider's setting fabric_tools knows {', '.join(ToolSettings.__slots__)}")
    timeout_s = given.get("timeout_s", ToolSettings().timeout_s)
    if type(timeout_s) is not int or timeout_s not in LIMITS_S:
        raise ValueError(f"fabric_tools.timeout_s is {LIMITS_S.start} to {LIMITS_S.stop - 1} seconds")
    words = {name: value for name, value in given.items() if name != "timeout_s"}
    for name, value in words.items():
        form = DEVICE if name == "rails" else OPTION
        if not isinstance(value, list) or not all(isinstance(one, str) and form.fullmatch(one) for one in value):
            raise ValueError(f"fabric_tools.{name} is a list of plain words")
    return ToolSettings(timeout_s=timeout_s, **{name: tuple(value) for name, value in words.items()})


def lacking(tool: Tool, rail: int | None, settings: ToolSettings, told: Mapping[str, Any]) -> str:
    """
    What the tool needs and the machine, by what it told when it came, does not have; empty where it has everything.
    """
    missing = [one for one in TOOLS[tool] if one not in told.get("tools", ())]
    if missing:
        return f"no {missing[0]} in the image"
    if tool == "nccl-tests" and not told.get("gpus"):
        return "no GPU is seen"
    if rail is None:
        return ""
    if rail >= len(settings.rails):
        return f"no device is configured for rail {rail}"
    return "" if settings.rails[rail] in told.get("devices", ()) else f"no RDMA port of {settings.rails[rail]} is up"


@dataclass(frozen=True, slots=True)
class Arrival:
    """
    What a machine that boots through us tells when it comes to its check.
    """

    address: str
    """Where it is reached, as far as it knows."""
    tools: tuple[str, ...]
    """Those of TOOLS that its image has."""
    devices: tuple[str, ...]
    """Its RDMA devices with a port that is up."""
    gpus: int
    """How many GPUs it sees."""
    key: str
    """Its public key as a client of SSH; empty where it cannot make one."""
    host_key: str
    """Its public key as a server of SSH."""

    def document(self) -> dict[str, Any]:
        """
        As its row keeps it.
        """
        return {**asdict(self), "tools": list(self.tools), "devices": list(self.devices)}


@dataclass(frozen=True, slots=True)
class Guest:
    """
    A machine of a check that boots through us.
    """

    node_id: str
    """`nod_…`."""
    arrived: bool
    """Whether it came."""
    lost: str
    """Why it will not come, in words; empty while it may."""
    home: bool
    """Whether it was seen without power after the check had let it go."""
    lacks: str
    """What the check's tool needs and the machine does not have; empty where nothing, or where it has not come."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """
    One machine in one run that was opened.
    """

    ref: str
    """Its name at the provider."""
    waited_s: float
    """Since the run was opened."""
    came_for_s: float | None
    """Since it asked for the run; None: it has not."""
    result: Result | None
    """What it said; None: nothing yet."""
    told_for_s: float
    """Since it said so."""
    detail: str
    """Why it failed or was not measured."""
    output: str
    """What its tool printed."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """
    How far the machines of a check are that boot through us.
    """

    guests: Mapping[str, Guest]
    """By their names at the provider."""
    open_runs: Mapping[str, tuple[Attendance, ...]]
    """By run, those that are opened and not recorded."""
    ended: frozenset[str]
    """Runs that are recorded."""
    state_for_s: float
    """How long the check has been in its state."""


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """
    What a step or a decision learnt and `apply` stores with the move.
    """

    ran: tuple[Ran, ...] = ()
    """Runs that have ended."""
    opened: tuple[Run, ...] = ()
    """Runs whose machines, all of which boot through us, are called together."""
    end: str = ""
    """The state it will end in; empty: not known yet."""
    failure: str = ""
    """Stable code of why it could not be brought to its end."""
    verdict: Verdict = ""
    """What the ledger says; empty where it was not asked."""
    blamed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes that pairs point at, each with the partners it failed with."""


@dataclass(frozen=True, slots=True)
class CheckSnapshot:
    """
    All that a step may know.
    """

    id: str
    """`fck_…`: the token at the provider."""
    step: str
    """Part of the state; while it is running, the number of the round."""
    provider: ProviderRef
    """Who runs the tools."""
    tool: Tool
    """Which tool."""
    rounds: Rounds
    """What is run."""
    refs: tuple[str, ...]
    """All its machines."""
    cancel: bool
    """Whether somebody asked to stop it."""
    overdue: bool
    """Whether its state lasts too long."""
    end: str
    """The state it will end in, once that is known."""
    meeting: Meeting | None = None
    """Its machines where they boot through us; None where the provider has tools of its own, or none."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    One figure of a check, as far as its verdict goes by it.
    """

    pair: tuple[str, str] | None
    """Both ends; None where it is of no pair."""
    metric: str
    """Which figure."""
    verdict: str
    """passed, failed, not_measured or not_judged."""
    judged_by: str
    """baseline, tool, provider or nothing."""


def verdict_of(seen: Sequence[Seen]) -> Verdict:
    """
    `failed` when anything did; not_measured when a run was not; not_judged where no baseline says what is good enough; else passed.
    """
    if any(one.verdict == "failed" for one in seen):
        return "failed"
    if not seen or any(one.verdict == "not_measured" and one.metric == RUN_PASSED for one in seen):
        return "not_measured"
    return "passed" if any(one.judged_by == "baseline" for one in seen) else "not_judged"


def blamed_by(seen: Iterable[Seen]) -> dict[str, tuple[str, ...]]:
    """
    The nodes that the failures of this check's pairs point at, each with the partners it failed with.
    """
    bad: dict[tuple[str, str], bool] = {}
    for one in seen:
        if one.pair is not None and one.verdict != "not_measured":
            bad[one.pair] = bad.get(one.pair, False) or one.verdict == "failed"
    found = suspects(PairResult(*pair, passed=not failed) for pair, failed in bad.items())
    return {node_id: tuple(sorted(partners)) for node_id, partners in sorted(found.items())}
