"""
What a fabric check runs on which nodes, and its verdict.
"""

from __future__ import annotations

import pytest

from controlplane.fabric_checks.states import FABRIC_CHECK_STATES, Member, Run, Scope, Seen, blamed_by, plan, verdict_of
from controlplane.fabric_checks.steps import STEPS
from controlplane.measurements.nccl import parse_nccl
from controlplane.measurements.perftest import parse_write_bandwidth
from controlplane.providers.adapters.simulated.checks import nccl_output, write_output

LEAF = Scope("leaf", site="s", leaf="l1")
RUN, SPEED = "fabric_run_passed", "nccl_all_reduce_bus_bandwidth_largest"


def members(count: int, leaf: str = "l1") -> list[Member]:
    """So many nodes of a leaf."""
    return [Member(f"nod_{leaf}{number:02d}", f"{leaf}-n{number:02d}", leaf) for number in range(count)]


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 17, 64])
def test_every_node_of_a_leaf_has_partners_enough_to_be_singled_out(count: int) -> None:
    """No pair twice, no node twice in a round, four partners where there are five nodes, all others where there are fewer."""
    rounds = plan(LEAF, "nccl-tests", members(count))
    assert [(one.kind, len(one.refs)) for one in rounds[0]] == [("leaf", count)]
    pairs = [one for some in rounds[1:] for one in some]
    assert len({frozenset(one.refs) for one in pairs}) == len(pairs)
    for some in rounds:
        busy = [ref for one in some for ref in one.refs]
        assert len(busy) == len(set(busy))
    partners = {one.ref: sum(one.ref in run.refs for run in pairs) for one in members(count)}
    assert set(partners.values()) == {min(4, count - 1)}
    assert len(rounds) <= 1 + 8
    names = [one.name for some in rounds for one in some]
    assert len(set(names)) == len(names)


def test_a_block_goes_across_its_leaves() -> None:
    """Leaves of one node have no collective; the first nodes of three leaves are three pairs."""
    rounds = plan(Scope("block", site="s", block="b"), "nccl-tests", [*members(3, "a"), *members(1, "b"), *members(2, "c")])
    assert [one.leaf for one in rounds[0]] == ["a", "c"]
    pairs = {one.refs for some in rounds[1:] for one in some}
    assert {("a-n00", "b-n00"), ("b-n00", "c-n00"), ("c-n00", "a-n00")} <= pairs


def test_writes_are_of_pairs_on_one_rail() -> None:
    """Rail 0 where none is named; a rail's own collective is a rail's figure; what a row keeps is what was planned."""
    (only,) = plan(Scope("pair"), "ib_write_bw", members(2))[0]
    assert (only.kind, only.rail, only.part, only.subject.kind, only.subject.rail) == ("pair", 0, "rail0", "pair", None)
    rounds = plan(Scope("rail", site="s", leaf="l1", rail=3), "nccl-tests", members(3))
    assert (rounds[0][0].kind, rounds[0][0].subject.key) == ("rail", "s/l1/3")
    for some in rounds:
        for run in some:
            assert Run.of(run.document()) == run


def seen(verdict: str, by: str = "baseline", metric: str = SPEED, pair: tuple[str, str] | None = None) -> Seen:
    """One figure."""
    return Seen(pair, metric, verdict, by)


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ([], "not_measured"),
        ([seen("passed"), seen("failed", "tool", RUN)], "failed"),
        ([seen("passed"), seen("not_measured", "tool", RUN)], "not_measured"),
        ([seen("failed"), seen("not_measured", "tool", RUN)], "failed"),
        ([seen("not_judged", "nothing"), seen("passed", "tool", RUN)], "not_judged"),
        ([seen("passed"), seen("passed", "tool", RUN), seen("not_measured", "nothing", "rdma_write_bandwidth_peak")], "passed"),
    ],
)
def test_what_is_not_measured_never_passes(figures: list[Seen], verdict: str) -> None:
    """A failure goes first; a tool's own word is no baseline."""
    assert verdict_of(figures) == verdict


def test_blame_is_laid_by_pairs_of_this_check_alone() -> None:
    """Who fails with two partners is named; a pair that was not measured blames nobody."""
    bad = [seen("failed", pair=("a", "b")), seen("failed", pair=("c", "a")), seen("passed", pair=("b", "c"))]
    assert blamed_by(bad) == {"a": ("b", "c")}
    assert blamed_by([seen("not_measured", pair=("a", "b")), seen("not_measured", pair=("a", "c"))]) == {}


def test_every_moving_state_has_a_step_or_a_decision() -> None:
    """`judging` is decided in the database; giving nodes back cannot fail."""
    assert set(FABRIC_CHECK_STATES.names("moving")) == set(STEPS) | {"judging"}
    assert FABRIC_CHECK_STATES.by_name["returning"].fails_to is None


def test_simulated_outputs_are_read_like_real_ones() -> None:
    """To the figures that the simulator meant."""
    speeds = {one.name: one.value for one in parse_nccl(nccl_output(371.23), "all_reduce").figures()}
    assert speeds[SPEED] == pytest.approx(371.23)
    written = {one.name: one.value for one in parse_write_bandwidth(write_output(391.5)).figures()}
    assert written["rdma_write_bandwidth_average"] == pytest.approx(391.5)
