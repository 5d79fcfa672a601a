"""
Trends: a warning before the failure, none for steady figures, and none that one outlier could cause.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.measurements.trends import DAY_S, FEWEST, KEPT, Limit, Point, trend_of, with_point

FLOOR = Limit(360.0, at_least=True)
VALUES = st.floats(-1e6, 1e6).map(lambda value: round(value, 3))
POINTS = st.lists(st.builds(Point, st.integers(0, 10**7).map(float), VALUES), max_size=30)


def daily(values: list[float]) -> list[Point]:
    """One value a day."""
    return [Point(day * DAY_S, value) for day, value in enumerate(values)]


def test_a_steady_fall_warns_before_the_figure_fails() -> None:
    """2 a day from 380: at 370 the line crosses 360 in five days, and the figure still passes."""
    trend = trend_of(daily([380, 378, 376, 374, 372, 370]), FLOOR)
    assert trend.slope_per_day == pytest.approx(-2)
    assert trend.days_to_limit == pytest.approx(5)
    assert trend.drifting


def test_a_rise_towards_a_greatest_value_warns_too() -> None:
    """Errors, temperatures and latencies drift upwards."""
    assert trend_of(daily([60, 61, 62, 63, 64]), Limit(70, at_least=False)).drifting


def test_what_is_far_away_or_already_failing_does_not_warn() -> None:
    """A warning is about what is still good and soon is not."""
    assert not trend_of(daily([380, 379.9, 379.8, 379.7, 379.6]), FLOOR).drifting
    assert not trend_of(daily([370, 366, 362, 358, 354]), FLOOR).drifting
    assert not trend_of(daily([370, 372, 374, 376, 378]), FLOOR).drifting
    assert not trend_of(daily([380, 378, 376, 374, 372]), None).drifting


def test_one_outlier_bends_nothing() -> None:
    """A single bad run in a steady series changes neither slope nor warning."""
    trend = trend_of(daily([380, 380, 380, 362, 380, 380, 380, 380]), FLOOR)
    assert trend.slope_per_day == 0
    assert not trend.drifting
    assert (trend.least, trend.greatest) == (362, 380)


def test_scatter_is_no_drift() -> None:
    """A slope that does not stand out of the noise is no warning, however near the limit."""
    assert not trend_of(daily([362, 368, 361, 367, 361.5, 367.5, 361, 366]), FLOOR).drifting


def test_few_values_have_no_slope() -> None:
    """Nor do values of one moment; their mean and average are told."""
    few = trend_of(daily([380.0, 370.0]), FLOOR)
    assert (few.values, few.mean, few.slope_per_day, few.drifting) == (2, 375.0, None, False)
    assert few.average == pytest.approx(377.0)
    assert trend_of([Point(0, 1.0)] * FEWEST, FLOOR).slope_per_day is None
    assert trend_of([], FLOOR).values == 0


@given(points=POINTS, value=VALUES)
def test_constant_figures_never_drift(points: list[Point], value: float) -> None:
    """Whatever the limit and the times."""
    same = [Point(one.at_s, value) for one in points]
    assert not trend_of(same, Limit(value, at_least=True)).drifting


@given(points=POINTS, shuffled=st.randoms())
def test_the_order_of_arrival_does_not_matter(points: list[Point], shuffled: object) -> None:
    """Late measurements stand where they belong, and the last ones are kept."""
    kept: tuple[Point, ...] = ()
    other = list(points)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    for one in other:
        kept = with_point(kept, one)
    assert len(kept) <= KEPT
    assert list(kept) == sorted(kept)
    if len(points) <= KEPT:
        assert trend_of(kept, FLOOR) == trend_of(points, FLOOR)


@given(points=POINTS, days=st.integers(0, 1000))
def test_trends_do_not_depend_on_the_calendar(points: list[Point], days: int) -> None:
    """The same figures some days later have the same trend."""
    later = [Point(one.at_s + days * DAY_S, one.value) for one in points]
    assert trend_of(later, FLOOR) == trend_of(points, FLOOR)


@given(points=st.lists(st.builds(Point, st.floats(0, 1e10), st.floats(-1e30, 1e30)), max_size=20))
def test_every_number_told_is_finite(points: list[Point]) -> None:
    """The widest values and the closest times give no infinity."""
    trend = trend_of(points, Limit(0.0, at_least=True))
    told = (trend.mean, trend.average, trend.slope_per_day, trend.days_to_limit)
    assert all(math.isfinite(one) for one in told if one is not None)
