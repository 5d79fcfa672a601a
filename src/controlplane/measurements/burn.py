"""
What gpu-burn did to each GPU: how fast it computed, how hot it got, and how many results differed.

Source: https://github.com/wilicc/gpu-burn, README and the program's messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from controlplane.measurements.figures import NODE, Measurement, Subject, gpu, yes
from controlplane.measurements.reading import UnreadableOutput, number, whole, whole_lines

TOOL: Final = "gpu-burn"
PLANNED = re.compile(r"\s*Burning for ([0-9]{1,9}) seconds\.\s*")
TESTED = re.compile(r"Tested ([0-9]{1,4}) GPUs:\s*")
VERDICT = re.compile(r"\s*GPU ([0-9]{1,4}): (OK|FAULTY)\s*")
PARTS: Final = ("proc'd:", "errors:", "temps:")
WORK = re.compile(r"(-?[0-9]+) \(([0-9.]+) Gflop/s\)")
MISTAKES = re.compile(r"(-?[0-9]+)\s*(?:\((?:DIED|WARNING)!\))?")
HEAT = re.compile(r"([0-9]+) C|--")
DEAD: Final = -1


@dataclass(frozen=True, slots=True)
class BurnedGpu:
    """
    One GPU at the end of the run.
    """

    index: int
    """As the CUDA library counts."""
    called_faulty: bool
    """The tool's own verdict; it calls a GPU that computed nothing OK."""
    products: int | None
    """Matrix products computed; None when the process died or never told."""
    died: bool
    """Its process ended before the run did."""
    errors: int | None
    """Results that differed, over the whole run; None when the process died or never told."""
    speed_gflop_per_s: float | None
    """At the last report; None when nothing was computed."""
    hottest_c: int | None
    """Highest temperature reported; None when there was none."""

    @property
    def passed(self) -> bool | None:
        """
        It computed, and every result was right; None when it neither failed nor computed anything.
        """
        if self.called_faulty or self.died or self.errors:
            return False
        return True if self.products else None


@dataclass(frozen=True, slots=True)
class BurnResult:
    """
    A run that came to its list of verdicts.
    """

    planned_s: int | None
    """Seconds it was told to burn; None when it did not say."""
    gpus: tuple[BurnedGpu, ...]
    """All of them, by index."""

    @property
    def failed(self) -> bool:
        """
        Some GPU failed.
        """
        return any(one.passed is False for one in self.gpus)

    def figures(self, whole: Subject = NODE) -> tuple[Measurement, ...]:
        """
        Of each GPU: passed, errors, speed and temperature; the number of GPUs goes to `whole`. Speeds of failed GPUs are missing.
        """
        found = [Measurement("burn_gpus", len(self.gpus), "count", whole)]
        for one in self.gpus:
            subject = gpu(one.index)
            speed = one.speed_gflop_per_s if one.passed else None
            found += [
                Measurement("burn_passed", yes(one.passed), "yes", subject),
                Measurement("burn_errors", one.errors, "count", subject),
                Measurement("burn_speed", speed, "Gflop/s", subject),
                Measurement("burn_hottest", one.hottest_c, "C", subject),
            ]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Report:
    products: tuple[int, ...]
    speeds: tuple[float, ...]
    errors: tuple[int, ...]
    heat_c: tuple[int | None, ...]


def parse_burn(text: str) -> BurnResult:
    """
    The run that the text is the whole output of.

    Raises: UnreadableOutput when it is cut off before its verdicts, or when reports and verdicts do not fit together.
    """
    # each report is written over the one before
    lines = whole_lines(TOOL, text.replace("\r", "\n"))
    planned = next((int(told[1]) for told in map(PLANNED.fullmatch, lines) if told), None)
    return BurnResult(planned, _gpus(_verdicts(lines), _intervals(lines)))


def _verdicts(lines: list[str]) -> list[bool]:
    expected: int | None = None
    verdicts: list[bool] = []
    for index, line in enumerate(lines):
        tested, verdict = TESTED.fullmatch(line), VERDICT.fullmatch(line)
        if "No clients are alive" in line:
            raise UnreadableOutput(TOOL, "the process of every GPU died", index + 1)
        if tested and expected is not None:
            raise UnreadableOutput(TOOL, "there is more than one run in it", index + 1)
        if tested:
            expected = int(tested[1])
        elif verdict and expected is not None:
            if int(verdict[1]) != len(verdicts):
                raise UnreadableOutput(TOOL, "the verdicts are out of order", index + 1)
            verdicts.append(verdict[2] == "FAULTY")
    if not expected or len(verdicts) != expected:
        raise UnreadableOutput(TOOL, "it is cut off before the verdict on every GPU")
    return verdicts


def _intervals(lines: list[str]) -> list[list[_Report]]:
    intervals: list[list[_Report]] = [[]]
    for index, line in enumerate(lines):
        if "Summary at:" in line:
            intervals.append([])
        elif PARTS[0] in line:
            intervals[-1].append(_report(line, index + 1))
    return intervals


def _report(part: str, line: int) -> _Report:
    rest = part.partition(PARTS[0])[2]
    done, _, rest = rest.partition(PARTS[1])
    wrong, _, hot = rest.partition(PARTS[2])
    work = [WORK.fullmatch(one.strip()) for one in done.split(" - ")]
    mistakes = [MISTAKES.fullmatch(one.strip()) for one in wrong.split(" - ")]
    heat = [HEAT.fullmatch(one.strip()) for one in hot.split(" - ")]
    products = [whole(one[1]) for one in work if one]
    speeds = [number(one[2]) for one in work if one]
    errors = [whole(one[1]) for one in mistakes if one]
    report = _Report(
        products=tuple(one for one in products if one is not None),
        speeds=tuple(one for one in speeds if one is not None),
        errors=tuple(one for one in errors if one is not None),
        heat_c=tuple(whole(one[1]) if one[1] else None for one in heat if one),
    )
    sizes = {len(one) for one in (work, mistakes, heat, report.products, report.speeds, report.errors, report.heat_c)}
    if len(sizes) != 1:
        raise UnreadableOutput(TOOL, "a report of progress is cut", line)
    return report


def _gpus(verdicts: list[bool], intervals: list[list[_Report]]) -> tuple[BurnedGpu, ...]:
    reports = [one for interval in intervals for one in interval]
    if any(len(one.products) != len(verdicts) for one in reports):
        raise UnreadableOutput(TOOL, "progress and verdicts are of different numbers of GPUs")
    return tuple(_gpu(index, faulty, reports, intervals) for index, faulty in enumerate(verdicts))


def _gpu(index: int, faulty: bool, reports: list[_Report], intervals: list[list[_Report]]) -> BurnedGpu:  # noqa: FBT001 - a fact
    died = any(one.products[index] == DEAD for one in reports)
    # the counts of errors start anew after each summary
    errors = sum(max(one.errors[index] for one in interval) for interval in intervals if interval)
    heat = [one.heat_c[index] for one in reports]
    known = bool(reports) and not died
    products = reports[-1].products[index] if known else None
    return BurnedGpu(
        index=index,
        called_faulty=faulty,
        products=products,
        died=died,
        errors=errors if known else None,
        speed_gflop_per_s=reports[-1].speeds[index] if products else None,
        hottest_c=max((one for one in heat if one is not None), default=None),
    )
