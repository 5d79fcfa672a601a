"""
HPL's speed and whether its solution holds: the reference program and NVIDIA's, which adds the speed of each GPU.

Source: https://www.netlib.org/benchmark/hpl/, and NVIDIA HPC Benchmarks, NVIDIA HPL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from controlplane.measurements.figures import NODE, Measurement, Subject, yes
from controlplane.measurements.reading import UnreadableOutput, number, whole, whole_lines

TOOL: Final = "HPL"
ROW = re.compile(r"\s*(W[RC]\S*)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)(?:\s*\(\s*(\S+?)\s*\))?\s*")
ROW_START = re.compile(r"\s*W[RC][0-9]\S*\s.*")
RESIDUAL: Final = "||Ax-b||"
VERDICT = re.compile(r"\s*(\S+)\s+\.{3,}\s+(PASSED|FAILED)\s*")
FINISHED = re.compile(r"\s*Finished\s+([0-9]{1,9}) tests with(?:out checking| the following results).*")
SKIPPED = re.compile(r"\s*([0-9]{1,9}) tests skipped because of illegal input values\.\s*")
END: Final = "End of Tests."


@dataclass(frozen=True, slots=True)
class LinpackRun:
    """
    One problem solved.
    """

    variant: str
    """HPL's code of the algorithm, such as `WR11C2R4`."""
    order: int
    """N, rows of the matrix."""
    block: int
    """NB, rows of a block."""
    grid_rows: int
    """P of the process grid."""
    grid_columns: int
    """Q of the process grid."""
    time_s: float
    """Time to solve."""
    speed_gflop_per_s: float
    """Of all processes together."""
    speed_per_gpu_gflop_per_s: float | None
    """Of one GPU, in NVIDIA's program only."""
    residual: float | None
    """Scaled residual, the worst when there are several; None when not checked or no number."""
    passed: bool | None
    """Every residual is small enough; None when the run was told not to check."""


@dataclass(frozen=True, slots=True)
class LinpackResult:
    """
    All problems of one run that came to its end.
    """

    runs: tuple[LinpackRun, ...]
    """In the order printed, at least one."""

    @property
    def failed(self) -> bool:
        """
        Some solution does not hold.
        """
        return any(one.passed is False for one in self.runs)

    def figures(self, whole: Subject = NODE) -> tuple[Measurement, ...]:
        """
        The fastest problem whose solution holds, its time and residual, and whether all hold; without any, the speeds are missing.
        """
        best = max((one for one in self.runs if one.passed), key=lambda one: one.speed_gflop_per_s, default=None)
        checks = [one.passed for one in self.runs]
        passed = False if self.failed else (True if all(checks) else None)
        return (
            Measurement("hpl_speed", best.speed_gflop_per_s if best else None, "Gflop/s", whole),
            Measurement("hpl_speed_per_gpu", best.speed_per_gpu_gflop_per_s if best else None, "Gflop/s", whole),
            Measurement("hpl_time", best.time_s if best else None, "s", whole),
            Measurement("hpl_residual", best.residual if best else None, "ratio", whole),
            Measurement("hpl_passed", yes(passed), "yes", whole),
        )


def parse_linpack(text: str) -> LinpackResult:
    """
    The run that the text is the whole output of.

    Raises: UnreadableOutput when it is cut off, skipped a problem, or has numbers that are none.
    """
    lines = whole_lines(TOOL, text)
    announced = _announced(lines)
    runs: list[LinpackRun] = []
    for index, line in enumerate(lines):
        check = _check(line)
        if ROW_START.fullmatch(line):
            runs.append(_run(ROW.fullmatch(line), index + 1))
        elif check and not runs:
            raise UnreadableOutput(TOOL, "a check stands before what it checks", index + 1)
        elif check:
            runs[-1] = _checked(runs[-1], number(check[1]), holds=check[2] == "PASSED")
    if not runs or announced != len(runs):
        raise UnreadableOutput(TOOL, "the problems in it are not as many as were finished")
    if len({one.passed is None for one in runs}) > 1:
        raise UnreadableOutput(TOOL, "the check of a problem is missing")
    return LinpackResult(tuple(runs))


def _announced(lines: list[str]) -> int:
    """
    How many problems the end of the run says were finished.
    """
    announced: int | None = None
    ended = False
    for index, line in enumerate(lines):
        finished, skipped = FINISHED.fullmatch(line), SKIPPED.fullmatch(line)
        if ended and (finished or ROW_START.fullmatch(line)):
            raise UnreadableOutput(TOOL, "there is more than one run in it", index + 1)
        if skipped and int(skipped[1]):
            raise UnreadableOutput(TOOL, "problems were skipped because of illegal input", index + 1)
        announced = int(finished[1]) if finished else announced
        ended = ended or line.strip() == END
    if not ended or announced is None:
        raise UnreadableOutput(TOOL, "it is cut off before the end of the tests")
    return announced


def _check(line: str) -> re.Match[str] | None:
    return VERDICT.fullmatch(line.rpartition("=")[2]) if line.lstrip().startswith(RESIDUAL) else None


def _run(row: re.Match[str] | None, line: int) -> LinpackRun:
    if row is None:
        raise UnreadableOutput(TOOL, "a row has not its seven columns", line)
    order, block, grid_rows, grid_columns = (whole(word) for word in row.groups()[1:5])
    time_s, speed, per_gpu = number(row[6]), number(row[7]), number(row[8]) if row[8] else None
    if order is None or block is None or grid_rows is None or grid_columns is None or time_s is None or speed is None:
        raise UnreadableOutput(TOOL, "a row has words where numbers belong", line)
    if (row[8] and per_gpu is None) or min(order, block, grid_rows, grid_columns, time_s, speed, per_gpu or 0) < 0:
        raise UnreadableOutput(TOOL, "a row has numbers that cannot be", line)
    return LinpackRun(row[1], order, block, grid_rows, grid_columns, time_s, speed, per_gpu, None, None)


def _checked(run: LinpackRun, residual: float | None, *, holds: bool) -> LinpackRun:
    # older versions check each solution three times
    holds = holds and run.passed is not False and residual is not None
    known = [one for one in (run.residual, residual) if one is not None]
    return replace(run, residual=max(known, default=None), passed=holds)
