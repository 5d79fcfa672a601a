"""
What a check boot's reports and outputs make of a bare machine.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.boots.seed import OWN, own_scripts
from controlplane.boots.states import Facts
from controlplane.kit.outcome import Advance, Fail
from controlplane.nodes.states import Boot, NodeFacts
from controlplane.nodes.steps.metal.qualifying import completed
from controlplane.qualification.states import BURN_KINDS, LONGEST_BURN_IN_S, USUAL_TESTS
from tests.factories.metal import NOW, Bench, bare_node, drive

GOOD = {"name": "gpu_count", "result": "passed", "detail": "8"}
NAMES = st.sampled_from(sorted(BURN_KINDS))
RESULTS = st.sampled_from(["passed", "failed", "not_measured"])


def boots() -> st.SearchStrategy[Boot]:
    """Any report of any tests, with any outputs."""
    checks = st.dictionaries(NAMES, RESULTS).map(
        lambda said: (GOOD, *({"name": name, "result": result, "detail": ""} for name, result in said.items()))
    )
    return st.builds(
        Boot,
        id=st.just("bot_1"),
        state=st.just("ready"),
        age_s=st.just(90.0),
        ready_at=st.just(NOW),
        failure=st.just(""),
        checks=checks,
        burn_in=st.dictionaries(NAMES, st.booleans()),
        outputs=st.lists(st.tuples(NAMES, st.sampled_from(["", "gpu-burn: cut off"]))).map(tuple),
        under=st.sampled_from([(), ("burn_speed of gpu3 is 1 Gflop/s; its baseline is at least 2",)]),
    )


@settings(deadline=None)
@given(boots())
def test_a_machine_goes_on_only_when_nothing_speaks_against_it(boot: Boot) -> None:
    """No failed check, no figure under its baseline, no required test unmeasured; a test passes by readable outputs only."""
    said = {one["name"]: one["result"] for one in boot.checks}
    readable = {test: all(not failure for name, failure in boot.outputs if name == test) for test, _ in boot.outputs}
    passed = {name for name in boot.burn_in if said.get(name) == "passed" and readable.get(name, False)}
    broken = {name for name in boot.burn_in if said.get(name) == "passed"} - passed
    unmeasured = {name for name in boot.burn_in if said.get(name, "not_measured") == "not_measured"}
    checks = completed(boot)
    results = {one["name"]: one["result"] for one in checks}
    assert set(results) == {*said, *boot.burn_in}
    assert {name for name in boot.burn_in if results[name] == "passed"} == passed
    outcome, _ = drive(bare_node("qualifying", step="report", boot=boot), Bench())
    bad = broken or "failed" in said.values() or boot.under or any(boot.burn_in[name] for name in unmeasured)
    assert isinstance(outcome, Fail if bad else Advance)
    assert outcome.facts == NodeFacts(checks=checks)


def test_a_failure_names_some_figures_and_counts_the_rest() -> None:
    """A machine of many bad figures has one readable reason."""
    boot = Boot("bot_1", "ready", 90.0, NOW, checks=(GOOD,), under=tuple(f"figure {n}" for n in range(9)))
    outcome, _ = drive(bare_node("qualifying", step="report", boot=boot), Bench())
    assert isinstance(outcome, Fail)
    assert outcome.message == "Not good enough: figure 0; figure 1; figure 2; figure 3; figure 4, and 4 more."


def test_the_script_is_told_its_tests_and_may_take_as_long_as_they() -> None:
    """One line for each, quoted for the shell; the longest burn-in is over before its state is."""
    tests = [{"name": one.name, "limit_s": one.limit_s, "amount": one.amount} for one in USUAL_TESTS]
    (script,) = own_scripts("check", Facts("n1", tags={"gpus": "8"}), tests)
    assert "BURN_IN='gpu_state 120 0\ngpu_diagnosis 1200 2\ngpu_burn 420 120\n" in script.text
    assert script.timeout_s == OWN["check"] + sum(one.limit_s for one in USUAL_TESTS)
    assert own_scripts("wipe", Facts("n1"), tests)[0].text.startswith("EXPECTED_GPUS=0\nDISKLESS=no\n#")
    assert OWN["check"] + LONGEST_BURN_IN_S < 4 * 3600
