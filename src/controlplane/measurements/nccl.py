"""
Collective bandwidths as nccl-tests print them: one table of message sizes, then the verdict of the whole run.

Columns are found by their headings: older tests leave `root` or `redop` out, call `#wrong` `error`, newer ones add iteration times.

Source: https://github.com/NVIDIA/nccl-tests, README and doc/PERFORMANCE.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.measurements.figures import NODE, Measurement, Subject, yes
from controlplane.measurements.reading import LARGEST_WHOLE, UnreadableOutput, number, short, whole, whole_lines

TOOL: Final = "nccl-tests"
TIMES: Final = frozenset({"time", "cputime"})
CHECKS: Final = frozenset({"#wrong", "error"})
FACTS: Final = frozenset({"size", "count", "type", "redop", "root"})
SPEEDS: Final = ["(us)", "(GB/s)", "(GB/s)"]
FOOTER = re.compile(r"#?\s*(Out of bounds values|Avg bus bandwidth)\s*:\s*(\S+)(?:\s+(OK|FAILED))?\s*")
NAMED = re.compile(r"# Collective test (?:starting|concluded): (?:\S*/)?(\S+?)_perf\S*\s*")
BROKEN = re.compile(r"Test (?:NCCL |CUDA )?failure|# error:")


@dataclass(frozen=True, slots=True)
class Transfer:
    """
    One size, out of place or in place.
    """

    time_us: float | None
    """Time of one operation."""
    algorithm_bandwidth_gb_per_s: float | None
    """Message size over time."""
    bus_bandwidth_gb_per_s: float | None
    """The same, corrected so that collectives and numbers of ranks compare."""
    wrong_values: int | None
    """Elements that came out wrong; None when not checked or when the version prints the largest error instead."""
    largest_error: float | None
    """Largest deviation, of older versions only."""


@dataclass(frozen=True, slots=True)
class MessageSize:
    """
    One row of the table.
    """

    size_bytes: int
    """Bytes of the message."""
    count: int
    """Elements of it."""
    data_type: str
    """As printed, such as `float`."""
    operation: str | None
    """The reduction; None where the collective has none."""
    root: int | None
    """Rank of the root; None where there is none."""
    out_of_place: Transfer
    """With a buffer of its own for the result."""
    in_place: Transfer
    """With the result over the input."""


@dataclass(frozen=True, slots=True)
class NcclResult:
    """
    A run of one collective that came to its end.
    """

    collective: str
    """Name without `_perf`, such as `all_reduce`."""
    sizes: tuple[MessageSize, ...]
    """Rows in the order printed, at least one."""
    out_of_bounds_values: int
    """Wrong values the run counted itself; zero too when it did not look."""
    average_bus_bandwidth_gb_per_s: float
    """Over all sizes, so it says little for runs with small ones."""
    refused: bool
    """The run itself called something FAILED."""

    @property
    def wrong_values(self) -> int | None:
        """
        Wrong elements of all rows; None when a row was not checked.
        """
        found = [one.wrong_values for row in self.sizes for one in (row.out_of_place, row.in_place)]
        known = [one for one in found if one is not None]
        return sum(known) if len(known) == len(found) else None

    @property
    def failed(self) -> bool:
        """
        The data came out wrong, or slower than the run was told to expect.
        """
        known = (one.wrong_values or 0 for row in self.sizes for one in (row.out_of_place, row.in_place))
        return self.refused or self.out_of_bounds_values > 0 or any(known)

    def figures(self, whole: Subject = NODE) -> tuple[Measurement, ...]:
        """
        Speed at the largest size (the slower way counts), best and average speed, time of the smallest message, wrong values.
        Speeds of a failed run are missing.
        """
        largest = max(self.sizes, key=lambda row: row.size_bytes)
        smallest = min((row for row in self.sizes if row.size_bytes > 0), key=lambda row: row.size_bytes, default=largest)
        every = [one.bus_bandwidth_gb_per_s for row in self.sizes for one in (row.out_of_place, row.in_place)]
        at_largest = [largest.out_of_place.bus_bandwidth_gb_per_s, largest.in_place.bus_bandwidth_gb_per_s]
        speeds = {
            "bus_bandwidth_largest": min((one for one in at_largest if one is not None), default=None),
            "bus_bandwidth_best": max((one for one in every if one is not None), default=None),
            "bus_bandwidth_average": self.average_bus_bandwidth_gb_per_s,
        }
        name, failed = f"nccl_{self.collective}", self.failed
        return (
            *(Measurement(f"{name}_{key}", None if failed else value, "GB/s", whole) for key, value in speeds.items()),
            Measurement(f"{name}_time_smallest", None if failed else smallest.out_of_place.time_us, "us", whole),
            Measurement(f"{name}_wrong_values", self.wrong_values, "count", whole),
            Measurement(f"{name}_failed", yes(failed), "yes", whole),
        )


@dataclass(frozen=True, slots=True)
class _Layout:
    facts: tuple[str, ...]
    ways: tuple[tuple[str, ...], tuple[str, ...]]
    with_moment: bool

    @property
    def width(self) -> int:
        return len(self.facts) + sum(map(len, self.ways))


def parse_nccl(text: str, collective: str) -> NcclResult:
    """
    The run of `collective` (such as `all_reduce`) that the text is the whole output of.

    Raises: UnreadableOutput when it is cut off, broke down, has rows that do not fit their headings, or is of another collective.
    """
    lines = whole_lines(TOOL, text)
    _refuse_others(lines, collective)
    layout: _Layout | None = None
    rows: list[MessageSize] = []
    footer: dict[str, tuple[str, str | None]] = {}
    for index, line in enumerate(lines):
        words = line.lstrip("# ").split()
        found = FOOTER.fullmatch(line)
        if found:
            if found[1] in footer:
                raise UnreadableOutput(TOOL, "there is more than one run in it", index + 1)
            footer[found[1]] = (found[2], found[3])
        elif words[:2] == ["size", "count"] and line.startswith("#"):
            layout = _layout(words, lines[index + 1] if index + 1 < len(lines) else "", index + 1)
        elif layout is not None and not footer and words and line.lstrip()[0].isdecimal():
            rows.append(_row(layout, words, index + 1))
    return _result(collective, rows, footer)


def _refuse_others(lines: Sequence[str], collective: str) -> None:
    for index, line in enumerate(lines):
        if BROKEN.search(line):
            raise UnreadableOutput(TOOL, f"the run broke down: {short(line)}", index + 1)
        named = NAMED.fullmatch(line)
        if named and named[1] != collective:
            raise UnreadableOutput(TOOL, f"this is {short(named[1])}, not {collective}", index + 1)


def _result(collective: str, rows: list[MessageSize], footer: dict[str, tuple[str, str | None]]) -> NcclResult:
    if not rows:
        raise UnreadableOutput(TOOL, "there is no table of sizes in it")
    if len(footer) < 2:  # noqa: PLR2004 - the two lines that end a run
        raise UnreadableOutput(TOOL, "it is cut off before the verdict of the run")
    (bounds, bounds_verdict), (average, average_verdict) = footer["Out of bounds values"], footer["Avg bus bandwidth"]
    wrong, speed = whole(bounds), number(average)
    if wrong is None or wrong < 0 or speed is None or speed < 0 or bounds_verdict is None:
        raise UnreadableOutput(TOOL, "the verdict of the run is no number")
    return NcclResult(collective, tuple(rows), wrong, speed, "FAILED" in {bounds_verdict, average_verdict})


def _layout(words: list[str], units: str, line: int) -> _Layout:
    starts = [index for index, word in enumerate(words) if word in TIMES]
    if len(starts) != 2:  # noqa: PLR2004 - out of place and in place
        raise UnreadableOutput(TOOL, "the headings do not show two ways", line)
    with_moment = words[-1] == "timestamp"
    facts, one = tuple(words[: starts[0]]), tuple(words[starts[0] : starts[1]])
    other = tuple(words[starts[1] : len(words) - with_moment])
    known = one[1:3] == ("algbw", "busbw") and len(one) > 3 and one[3] in CHECKS  # noqa: PLR2004 - time, two speeds, check
    if one != other or not known or not set(facts) <= FACTS or facts[:3] != ("size", "count", "type"):
        raise UnreadableOutput(TOOL, "the headings are of no known version", line)
    if [word for word in units.split() if word in SPEEDS][:3] != SPEEDS:
        raise UnreadableOutput(TOOL, "times and speeds are not in the known units", line + 1)
    return _Layout(facts, (one, other), with_moment)


def _row(layout: _Layout, words: list[str], line: int) -> MessageSize:
    if len(words) != layout.width + 2 * layout.with_moment:
        raise UnreadableOutput(TOOL, "a row does not fit its headings", line)
    facts = dict(zip(layout.facts, words, strict=False))
    size, count = whole(facts["size"]), whole(facts["count"])
    if size is None or count is None or size < 0 or count < 0:
        raise UnreadableOutput(TOOL, "a row has no size", line)
    root = whole(facts.get("root", "-1"))
    start = len(layout.facts)
    middle = start + len(layout.ways[0])
    return MessageSize(
        size_bytes=size,
        count=count,
        data_type=facts["type"],
        operation=None if facts.get("redop", "none") == "none" else facts["redop"],
        root=None if root is None or root < 0 else root,
        out_of_place=_transfer(layout.ways[0], words[start:middle], line),
        in_place=_transfer(layout.ways[1], words[middle : layout.width], line),
    )


def _transfer(headings: tuple[str, ...], words: list[str], line: int) -> Transfer:
    values = [None if word == "N/A" else number(word) for word in words[:4]]
    time_us, algorithm, bus, check = values
    odd = any(value is None and word != "N/A" for value, word in zip(values, words, strict=False))
    if odd or any(value is not None and value < 0 for value in values):
        raise UnreadableOutput(TOOL, "a row has words where numbers belong", line)
    counted = headings[3] == "#wrong"
    if counted and check is not None and (check != int(check) or check > LARGEST_WHOLE):
        raise UnreadableOutput(TOOL, "a row counts a part of a value", line)
    return Transfer(
        time_us=time_us,
        algorithm_bandwidth_gb_per_s=algorithm,
        bus_bandwidth_gb_per_s=bus,
        wrong_values=int(check) if counted and check is not None else None,
        largest_error=None if counted else check,
    )
