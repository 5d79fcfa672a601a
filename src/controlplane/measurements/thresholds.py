"""
Whether figures are good enough: each baseline against what was measured, and what was not measured never passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from controlplane.measurements.figures import Measurement, Subject, Unit

Verdict: TypeAlias = Literal["pass", "fail", "not_measured"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """
    What a figure has to reach or may not exceed.

    Raises: ValueError without a limit, for limits that are no finite numbers or crossed, and for a tolerance outside 0 to 1.
    """

    name: str
    """Name of the figure."""
    unit: Unit
    """Unit of the limits; a figure in another unit is an error."""
    minimum: float | None = None
    """The least value; None for no lower limit."""
    maximum: float | None = None
    """The greatest value; None for no upper limit."""
    tolerance: float = 0.0
    """Part of the limit by which a figure may miss it: 0.05 lets a minimum of 100 pass from 95."""
    subjects: tuple[Subject, ...] = ()
    """Who must have the figure; empty asks for at least one, whoever has it."""

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.minimum, self.maximum) if limit is not None]
        if not limits or not all(math.isfinite(limit) for limit in limits):
            raise ValueError("a baseline has a finite minimum or maximum")
        if limits != sorted(limits):
            raise ValueError("the minimum is above the maximum")
        if not 0 <= self.tolerance < 1:
            raise ValueError("a tolerance is at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One baseline held against one figure.
    """

    measurement: Measurement | None
    """The figure; None when nobody, or not this subject, has it."""
    baseline: Baseline
    """What it was held against."""
    verdict: Verdict
    """`not_measured` is not a pass."""
    subject: Subject | None
    """Whose figure it is or would have been; None when the baseline names nobody and nobody has it."""


def judge(measurements: Sequence[Measurement], baselines: Iterable[Baseline]) -> tuple[Finding, ...]:
    """
    Findings for every baseline in turn: one for each figure of its name, and one for each subject that should have it and has not.

    Raises: ValueError when a figure and its baseline have different units.
    """
    return tuple(finding for baseline in baselines for finding in _hold(measurements, baseline))


def _hold(measurements: Sequence[Measurement], baseline: Baseline) -> Iterator[Finding]:
    named = [one for one in measurements if one.name == baseline.name]
    for one in named:
        yield Finding(one, baseline, _verdict(one, baseline), one.subject)
    have = {one.subject for one in named}
    for subject in baseline.subjects:
        if subject not in have:
            yield Finding(None, baseline, "not_measured", subject)
    if not named and not baseline.subjects:
        yield Finding(None, baseline, "not_measured", None)


def _verdict(measurement: Measurement, baseline: Baseline) -> Verdict:
    if measurement.unit != baseline.unit:
        raise ValueError(f"{baseline.name} is measured in {measurement.unit}, its baseline is in {baseline.unit}")
    if measurement.value is None:
        return "not_measured"
    low, high = baseline.minimum, baseline.maximum
    if low is not None and measurement.value < low - abs(low) * baseline.tolerance:
        return "fail"
    if high is not None and measurement.value > high + abs(high) * baseline.tolerance:
        return "fail"
    return "pass"
