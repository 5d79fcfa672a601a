"""
Verdicts and whether a node may be sold, as pure rules.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.qualification.states import (
    ACCEPTANCE,
    Baseline,
    Baselines,
    Hardware,
    JudgedBy,
    Policy,
    Qualification,
    ScopeKind,
    Stand,
    Verdict,
    judgement_of,
    qualification_of,
    refusal_of,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LENIENT = Policy("t")
STRICT = Policy("t", ("speed",), sell_not_measured=False, max_age_s=3600)


def baseline(scope: ScopeKind = "instance_type", name: str = "t", **changes: object) -> Baseline:
    """A least speed of 100."""
    values: dict[str, object] = {
        "id": f"bsl_{scope}",
        "version": 1,
        "scope_kind": scope,
        "scope_name": name,
        "subject_kind": "node",
        "metric": "speed",
        "comparison": "at_least",
        "value": 100.0,
        "tolerance": 0.05,
        "unit": "GB/s",
        "source": "test",
    }
    return Baseline(**(values | changes))  # type: ignore[arg-type]


def stand(verdict: Verdict, judged_by: JudgedBy = "baseline", **changes: object) -> Stand:
    """How the node's speed stands."""
    values = {"kind": "node", "key": "nod_1", "part": "", "metric": "speed", "taken_at": NOW}
    return Stand(**(values | {"verdict": verdict, "judged_by": judged_by} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "change", "verdict"),
    [
        (100.0, {}, "passed"),
        (95.0, {}, "passed"),
        (94.9, {}, "failed"),
        (None, {}, "not_measured"),
        (100.0, {"comparison": "at_most"}, "passed"),
        (105.1, {"comparison": "at_most"}, "failed"),
        (94.0, {"unit": "Gbit/s"}, "not_judged"),
    ],
)
def test_a_baseline_judges(value: float | None, change: dict[str, Any], verdict: str) -> None:
    """On its side, within its tolerance, in its unit; and what is not measured is never good."""
    assert judgement_of("nccl-tests", "speed", value, "GB/s", baseline(**change)).verdict == verdict


def test_without_a_baseline_the_tool_or_the_provider_has_the_word() -> None:
    """A value that nobody judges is not called good."""
    assert judgement_of("nccl-tests", "speed", 94.0, "GB/s", None).verdict == "not_judged"
    own = judgement_of("gpu-burn", "burn_passed", 0.0, "yes", None)
    assert (own.verdict, own.judged_by) == ("failed", "tool")
    theirs = [judgement_of(ACCEPTANCE, "gpu_count", value, "yes", None) for value in (1.0, 0.0, None)]
    assert [one.verdict for one in theirs] == ["passed", "failed", "not_measured"]
    assert {one.judged_by for one in theirs} == {"provider"}


def test_the_instance_type_goes_before_the_gpu_model() -> None:
    """And a withdrawn baseline is none."""
    both = [baseline(), baseline("gpu_model", "g")]
    made_of = Hardware("t", "g")
    found = Baselines(both).find("node", "speed", made_of)
    assert found is both[0]
    assert Baselines([both[1], baseline(withdrawn=True)]).find("node", "speed", made_of) is both[1]
    assert Baselines(both).find("node", "speed", Hardware(None, "g")) is both[1]
    assert Baselines(both).find("pair", "speed", made_of) is None
    assert Baselines(both).find("node", "speed", Hardware()) is None


def test_the_trends_limit_is_the_judges() -> None:
    """The warning goes by the same line as the verdict."""
    for one in (baseline(), baseline(comparison="at_most"), baseline(value=-100.0)):
        for value in (94.9, 95.0, 100.0, 105.0, 105.1, -94.9, -105.0, -105.1):
            judged = judgement_of("t", "speed", value, "GB/s", one).verdict
            assert one.limit.holds(value) is (judged == "passed"), (one.comparison, value)


def test_a_failure_of_the_node_its_leaf_or_its_rails_keeps_it_out() -> None:
    """Whatever the policy says."""
    for failing in (
        stand("failed"),
        stand("failed", "tool"),
        stand("failed", kind="leaf", key="s/l"),
        stand("failed", kind="rail"),
    ):
        known = qualification_of(LENIENT, [failing], ())
        assert known.below
        assert refusal_of(known, LENIENT, NOW) == "below_baseline"
        assert [one.code for one in known.reasons] == ["under_baseline"]


def test_a_providers_own_failure_counts_where_the_policy_asks_for_it() -> None:
    """Elsewhere it decides over the node's state, which keeps it out by itself."""
    assert not qualification_of(LENIENT, [stand("failed", "provider")], ()).below
    assert qualification_of(STRICT, [stand("failed", "provider")], ()).below


def test_partners_that_single_it_out_keep_it_out() -> None:
    """The reason names them."""
    known = qualification_of(LENIENT, [], ["nod_3", "nod_2"])
    assert known.below
    assert known.reasons[0].subject == "nod_2, nod_3"


@pytest.mark.parametrize("verdict", ["not_measured", "not_judged", None])
def test_what_is_required_and_not_known_is_missing(verdict: Verdict | None) -> None:
    """Sold under a lenient policy, not under a strict one."""
    stands = [] if verdict is None else [stand("passed", part="gpu0"), stand(verdict, "nothing", part="gpu1")]
    known = qualification_of(STRICT, stands, ())
    assert known.missing
    assert refusal_of(known, STRICT, NOW) == "not_measured"
    assert refusal_of(known, Policy("t", ("speed",)), NOW) == ""


def test_what_is_known_becomes_old() -> None:
    """The oldest of the required figures counts; from that moment on it is as if it were not measured."""
    late = stand("passed", part="gpu1", taken_at=NOW - timedelta(seconds=600))
    known = qualification_of(STRICT, [stand("passed"), late], ())
    assert known.good_until == NOW + timedelta(seconds=3000)
    assert refusal_of(known, STRICT, NOW) == ""
    assert refusal_of(known, STRICT, NOW + timedelta(seconds=3000)) == "not_measured"


@given(
    stands=st.lists(
        st.tuples(
            st.sampled_from(["speed", "heat"]),
            st.sampled_from(["passed", "failed", "not_measured", "not_judged"]),
            st.sampled_from(["baseline", "tool", "provider", "nothing"]),
        )
    )
)
def test_nothing_unproven_is_sold_under_a_strict_policy(stands: list[tuple[str, Verdict, JudgedBy]]) -> None:
    """A node that is placed has passed in every part of everything that is required."""
    given_ = [stand(verdict, judged_by, metric=metric, part=f"gpu{at}") for at, (metric, verdict, judged_by) in enumerate(stands)]
    known: Qualification = qualification_of(STRICT, given_, ())
    if refusal_of(known, STRICT, NOW) == "":
        speeds = [one.verdict for one in given_ if one.metric == "speed"]
        assert speeds
        assert set(speeds) == {"passed"}
