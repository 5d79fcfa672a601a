"""
Where a figure is going: its last values in order, a line through them that single outliers do not bend, and a warning while the
figure is still good.

Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968): the median of all slopes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Final

KEPT: Final = 20
"""How many last values the trend looks at."""
FEWEST: Final = 5
"""With fewer values there is no slope."""
WEIGHT: Final = 0.3
"""Of the newest value in the moving average."""
DAY_S: Final = 86_400.0
HORIZON_DAYS: Final = 14.0
"""How far ahead a crossing is worth a warning."""
ABOVE_NOISE: Final = 3.0
"""A change counts when it is so many times what the values scatter around the line."""


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """
    One value at one moment.
    """

    at_s: float
    """Seconds since 1970."""
    value: float
    """In the figure's unit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """
    What a figure may not cross, its tolerance already counted in.
    """

    value: float
    """In the figure's unit."""
    at_least: bool
    """Whether it is a least value; else a greatest one."""

    def holds(self, value: float) -> bool:
        """
        The value is on the good side of it, or on it.
        """
        return value >= self.value if self.at_least else value <= self.value


@dataclass(frozen=True, slots=True)
class Trend:
    """
    What the last values say.
    """

    values: int
    """How many there are."""
    mean: float | None
    """Of them; None without any."""
    least: float | None
    """The smallest; None without any."""
    greatest: float | None
    """The largest; None without any."""
    average: float | None
    """Exponentially weighted, the newest first; None without any."""
    slope_per_day: float | None
    """Change per day in the figure's unit; None with too few values or without time between them."""
    days_to_limit: float | None
    """When the line crosses the limit, in days after the newest value; None when it does not, or is across already."""
    drifting: bool
    """The figure is good now and on its way to where it is not."""


NOTHING: Final = Trend(0, None, None, None, None, None, None, drifting=False)


def with_point(points: Sequence[Point], new: Point) -> tuple[Point, ...]:
    """
    The last values with one more, in order of time; a value that arrives late stands where it belongs.
    """
    ordered = sorted(points)
    insort(ordered, new)
    return tuple(ordered[-KEPT:])


def trend_of(points: Sequence[Point], limit: Limit | None) -> Trend:
    """
    The trend of the last values, towards the limit where there is one. The order in which they are given does not matter.
    """
    ordered = sorted(points)[-KEPT:]
    if not ordered:
        return NOTHING
    values = [one.value for one in ordered]
    average = values[0]
    for value in values[1:]:
        average += WEIGHT * (value - average)
    slope = _slope_per_s(ordered)
    days = None if slope is None or limit is None else _days_to(ordered, slope, limit)
    return Trend(
        values=len(values),
        mean=fmean(values),
        least=min(values),
        greatest=max(values),
        average=average,
        slope_per_day=None if slope is None else slope * DAY_S,
        days_to_limit=days,
        drifting=days is not None and slope is not None and days <= HORIZON_DAYS and _tells(ordered, slope),
    )


def _slope_per_s(ordered: Sequence[Point]) -> float | None:
    """
    The median slope over all pairs; None where there is nothing to tell one from.
    """
    slopes = [(b.value - a.value) / (b.at_s - a.at_s) for a, b in combinations(ordered, 2) if b.at_s > a.at_s]
    return median(slopes) if len(ordered) >= FEWEST and slopes else None


def _days_to(ordered: Sequence[Point], slope: float, limit: Limit) -> float | None:
    now = _line_at_end(ordered, slope)
    towards = slope < 0 if limit.at_least else slope > 0
    if not towards or not limit.holds(ordered[-1].value) or not limit.holds(now):
        return None
    return (limit.value - now) / slope / DAY_S


def _line_at_end(ordered: Sequence[Point], slope: float) -> float:
    end = ordered[-1].at_s
    return median(one.value + slope * (end - one.at_s) for one in ordered)


def _tells(ordered: Sequence[Point], slope: float) -> bool:
    """
    The change over the whole time stands out of the scatter around the line.
    """
    end, now = ordered[-1].at_s, _line_at_end(ordered, slope)
    scatter = median(abs(one.value - (now + slope * (one.at_s - end))) for one in ordered)
    return abs(slope) * (end - ordered[0].at_s) > ABOVE_NOISE * scatter
