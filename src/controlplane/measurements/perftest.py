"""
What an RDMA link carries between two ends, as ib_write_bw and its siblings print it.

Speeds come in binary megabytes unless `--report_gbits` was asked for; versions that print MB/sec mean MiB too.

Source: https://github.com/linux-rdma/perftest, README and the headings of its reports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from controlplane.measurements.figures import NODE, Measurement, Subject
from controlplane.measurements.reading import UnreadableOutput, number, short, whole, whole_lines

TOOL: Final = "perftest"
GBIT_PER_MIB: Final = 8 * 2**20 / 1e9
HEADING = re.compile(r"(#?[A-Za-z_]+(?: [A-Za-z][A-Za-z0-9]*)?)(?:\[([^\]]{0,20})\])?")
UNITS: Final = {"Gb/sec": 1.0, "MiB/sec": GBIT_PER_MIB, "MB/sec": GBIT_PER_MIB}
RULE = re.compile(r"-{20,}\s*")
BROKEN = re.compile(
    r"\s*(?:Completion with error|Failed status|Problems with|Couldn't|Unable to|Failed to|failed to|Error in|ERRNO|IB device .* not found"
    r"|Did not detect devices|Device not found).*"
)


@dataclass(frozen=True, slots=True)
class WriteSize:
    """
    One row: one message size.
    """

    size_bytes: int
    """Bytes of a message."""
    iterations: int
    """Messages sent."""
    peak_gbit_per_s: float | None
    """The best moment; None when the run did not look for it."""
    average_gbit_per_s: float
    """Over the run, both directions together when it was bidirectional."""
    message_rate_mpps: float
    """Million messages a second."""


@dataclass(frozen=True, slots=True)
class PerftestResult:
    """
    A run that came to its end.
    """

    sizes: tuple[WriteSize, ...]
    """In the order printed, at least one."""

    def figures(self, whole: Subject = NODE) -> tuple[Measurement, ...]:
        """
        Speeds and rate at the largest message, for the two ends that `whole` names.
        """
        largest = max(self.sizes, key=lambda one: one.size_bytes)
        return (
            Measurement("rdma_write_bandwidth_average", largest.average_gbit_per_s, "Gbit/s", whole),
            Measurement("rdma_write_bandwidth_peak", largest.peak_gbit_per_s, "Gbit/s", whole),
            Measurement("rdma_write_message_rate", largest.message_rate_mpps, "Mpps", whole),
        )


def parse_write_bandwidth(text: str) -> PerftestResult:
    """
    The run that the text is the whole output of, at either end.

    Raises: UnreadableOutput when it is cut off, broke down, or has rows that do not fit their headings.
    """
    columns: list[str] | None = None
    factor = 1.0
    sizes: list[WriteSize] = []
    ended = False
    for index, line in enumerate(whole_lines(TOOL, text)):
        if BROKEN.fullmatch(line):
            raise UnreadableOutput(TOOL, f"the run broke down: {short(line)}", index + 1)
        if line.lstrip().startswith("#bytes"):
            if columns is not None:
                raise UnreadableOutput(TOOL, "there is more than one run in it", index + 1)
            columns, factor = _columns(line, index + 1)
        elif columns is not None and not ended:
            if RULE.fullmatch(line):
                ended = True
            elif line.strip()[:1].isdecimal():
                sizes.append(_size(columns, line.split(), factor, index + 1))
    if not sizes or not ended:
        raise UnreadableOutput(TOOL, "it is cut off before the end of the table")
    return PerftestResult(tuple(sizes))


def _columns(line: str, number_of_line: int) -> tuple[list[str], float]:
    found = [(one[1], one[2]) for one in HEADING.finditer(line)]
    columns = [name for name, _ in found]
    units = {unit for name, unit in found if name in {"BW peak", "BW average"}}
    wanted = {"#bytes", "#iterations", "BW peak", "BW average", "MsgRate"}
    if not wanted <= set(columns) or len(units) != 1 or not units <= set(UNITS) or dict(found)["MsgRate"] != "Mpps":
        raise UnreadableOutput(TOOL, "the headings are of no bandwidth test with known units", number_of_line)
    return columns, UNITS[units.pop()]


def _size(columns: list[str], words: list[str], factor: float, line: int) -> WriteSize:
    if len(words) != len(columns):
        raise UnreadableOutput(TOOL, "a row does not fit its headings", line)
    row = dict(zip(columns, words, strict=True))
    size, iterations = whole(row["#bytes"]), whole(row["#iterations"])
    peak, average, rate = number(row["BW peak"]), number(row["BW average"]), number(row["MsgRate"])
    if size is None or iterations is None or peak is None or average is None or rate is None:
        raise UnreadableOutput(TOOL, "a row has words where numbers belong", line)
    if iterations <= 0 or average <= 0 or min(size, peak, rate) < 0:
        raise UnreadableOutput(TOOL, "a row says that nothing was sent", line)
    # runs of a fixed duration print a peak of zero: it is not looked for
    return WriteSize(size, iterations, peak * factor if peak else None, average * factor, rate)
