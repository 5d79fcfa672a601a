"""
Thresholds: reached, missed, and never passed without a figure.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.measurements.figures import NODE, Measurement, Subject, gpu, pair
from controlplane.measurements.thresholds import Baseline, judge


def speed(value: float | None, subject: Subject = NODE) -> Measurement:
    """A figure."""
    return Measurement("speed", value, "GB/s", subject)


@pytest.mark.parametrize(
    ("limits", "value", "verdict"),
    [
        ({"minimum": 100}, 100, "pass"),
        ({"minimum": 100}, 99.9, "fail"),
        ({"minimum": 100, "tolerance": 0.05}, 95, "pass"),
        ({"minimum": 100, "tolerance": 0.05}, 94.9, "fail"),
        ({"maximum": 80}, 80, "pass"),
        ({"maximum": 80}, 80.1, "fail"),
        ({"maximum": 80, "tolerance": 0.1}, 88, "pass"),
        ({"maximum": 80, "tolerance": 0.1}, 88.1, "fail"),
        ({"minimum": -10, "tolerance": 0.1}, -11, "pass"),
        ({"minimum": 1, "maximum": 2}, 3, "fail"),
        ({"maximum": 0, "tolerance": 0.5}, 1, "fail"),
        ({"minimum": 100}, None, "not_measured"),
    ],
)
def test_a_figure_is_held_against_its_limits(limits: dict[str, Any], value: float | None, verdict: str) -> None:
    """Limits belong to what passes; the tolerance is a part of the limit."""
    baseline = Baseline("speed", "GB/s", **limits)
    (finding,) = judge([speed(value)], [baseline])
    assert (finding.verdict, finding.measurement, finding.baseline, finding.subject) == (verdict, speed(value), baseline, NODE)


def test_a_figure_nobody_has_is_not_measured() -> None:
    """Other names do not help."""
    (finding,) = judge([Measurement("other", 1, "GB/s", NODE)], [Baseline("speed", "GB/s", minimum=1)])
    assert (finding.verdict, finding.measurement, finding.subject) == ("not_measured", None, None)


def test_every_subject_that_should_have_the_figure_is_asked() -> None:
    """A GPU that does not appear is no pass."""
    baseline = Baseline("speed", "GB/s", minimum=10, subjects=(gpu(0), gpu(1), gpu(2)))
    found = judge([speed(12, gpu(0)), speed(9, gpu(2)), speed(11, gpu(3))], [baseline])
    assert [(one.subject, one.verdict) for one in found] == [
        (gpu(0), "pass"),
        (gpu(2), "fail"),
        (gpu(3), "pass"),
        (gpu(1), "not_measured"),
    ]


def test_units_that_differ_are_an_error() -> None:
    """No limit in gigabytes is held against gigabits."""
    with pytest.raises(ValueError, match="measured in GB/s"):
        judge([speed(1)], [Baseline("speed", "Gbit/s", minimum=1)])


@pytest.mark.parametrize(
    "limits",
    [{}, {"minimum": float("nan")}, {"maximum": float("inf")}, {"minimum": 2, "maximum": 1}, {"minimum": 1, "tolerance": 1}],
)
def test_baselines_without_sense_are_refused(limits: dict[str, Any]) -> None:
    """No limit, no number, crossed limits, or a tolerance that allows anything."""
    with pytest.raises(ValueError, match=r"minimum|tolerance"):
        Baseline("speed", "GB/s", **limits)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_figures_are_finite(value: float) -> None:
    """What is no number is no measurement."""
    with pytest.raises(ValueError, match="finite"):
        speed(value)


@pytest.mark.parametrize(("kind", "names"), [("gpu", {}), ("pair", {}), ("node", {"gpu_index": 1}), ("gpu", {"gpu_index": -1})])
def test_subjects_are_named_as_their_kind_is(kind: Any, names: dict[str, Any]) -> None:
    """A GPU by its index, a pair by its ends, a node not at all."""
    with pytest.raises(ValueError, match="GPU"):
        Subject(kind, **names)
    assert pair("a", "b") != pair("b", "a")


@given(st.lists(st.none() | st.floats(-1e6, 1e6)), st.floats(-1e6, 1e6), st.floats(0, 0.9))
def test_nothing_passes_below_its_minimum_or_without_a_value(values: list[float | None], least: float, tolerance: float) -> None:
    """Whatever is measured: a pass has a value that reaches the limit less its tolerance, and each figure has a finding."""
    found = judge(
        [speed(one, gpu(index)) for index, one in enumerate(values)], [Baseline("speed", "GB/s", least, tolerance=tolerance)]
    )
    assert len(found) == max(1, len(values))
    for one in found:
        value = one.measurement.value if one.measurement else None
        assert (one.verdict == "not_measured") == (value is None)
        assert (one.verdict == "pass") == (value is not None and value >= least - abs(least) * tolerance)
