"""
What a report makes of a boot.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.boots.states import CLOUD_INIT_STAGES, FILES, Outcome, Report, Stage, judge, stages_of

WELL = dict.fromkeys(CLOUD_INIT_STAGES, "")
NOW, BEFORE = "2026-03-01T10:00:01Z", "2026-03-01T10:00:00Z"


def outcome(name: str, *, ok: bool = True, line: int | None = None, output: str = "") -> Outcome:
    """What a script came to."""
    return Outcome(name, ok, 0 if ok else 1, line, output)


@given(
    stages=st.dictionaries(st.sampled_from(CLOUD_INIT_STAGES), st.sampled_from(["", "broken"])),
    scripts=st.dictionaries(st.sampled_from(["a", "b", FILES]), st.booleans()),
    expected=st.sets(st.sampled_from(["a", "b", FILES])),
    phoned=st.booleans(),
)
def test_ready_needs_everything(stages: dict[str, str], scripts: dict[str, bool], expected: set[str], *, phoned: bool) -> None:
    """Ready if and only if every stage, every expected script and the phone-home are there and well; else a code and words."""
    report = Report(True, stages, tuple(outcome(name, ok=ok) for name, ok in scripts.items()))
    verdict = judge(report, sorted(expected), phoned=phoned)
    well = stages == WELL and all(scripts.get(name) for name in expected) and phoned
    assert verdict.ready is well
    assert (verdict.code == "") is well
    assert (verdict.words == "") is well


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        (outcome("munge", ok=False, line=3), "The script munge failed at line 3."),
        (outcome("munge", ok=False), "The script munge failed."),
        (outcome(FILES, ok=False), "The files could not all be laid down."),
    ],
)
def test_the_words_name_the_failing_line(failed: Outcome, words: str) -> None:
    """Script and line are named in our words; what the machine wrote is not repeated in them."""
    assert judge(Report(True, WELL, (failed,)), ["munge", FILES], phoned=True).words == words


def test_stages_keep_the_time_they_were_first_said() -> None:
    """What is said again keeps its time, what changed gets a new one, what is not said any more stays."""
    first = stages_of(Report(False, {"init": ""}, (outcome("a"),)), (), BEFORE)
    again = stages_of(Report(False, {"init-local": "", "init": ""}, ()), first, NOW)
    assert again == (
        Stage("script:a", ok=True, detail="", at=BEFORE),
        Stage("init-local", ok=True, detail="", at=NOW),
        Stage("init", ok=True, detail="", at=BEFORE),
    )
    worse = stages_of(Report(True, {"init": "broken"}, (outcome("a", ok=False, line=2, output="no unit"),)), again, NOW)
    assert [one.at for one in worse if one.name in {"init", "script:a"}] == [NOW, NOW]
    assert next(one.detail for one in worse if one.name == "script:a") == "line 2, exit code 1: no unit"
