"""
Verdicts of `dcgmi diag` from the table it prints for people, of DCGM 3 (lists of GPUs) and DCGM 4 (a line for each).

Source: NVIDIA DCGM user guide, DCGM Diagnostics.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from controlplane.measurements.dcgm import TOOL, DiagResult, DiagTest, verdict_of
from controlplane.measurements.reading import UnreadableOutput, short, whole_lines

STARTED: Final = "Successfully ran diagnostic for group."
ABORTED: Final = "Aborting the iterative runs of the diagnostic"
BORDER = re.compile(r"\+-{3,}\+-{3,}\+\s*")
SECTION = re.compile(r"[|+]-----\s+(\S[^-+|]*?)\s+-+\+-+[|+]\s*")
CELLS = re.compile(r"\| (.{1,60}?) *\| (.*?) *\|\s*")
TOLD = re.compile(r"(?:Warning|Info|Error)\b.*")
OVERALL = re.compile(r"(Pass|Fail|Warn|Skip|Not Run)(?: - All)?")
LISTED = re.compile(r"(Pass|Fail|Warn|Skip) - GPUs?: ([0-9]{1,4}(?:, [0-9]{1,4})*)")
ENTITY = re.compile(r"([A-Za-z]{1,20})([0-9]{1,4}): (Pass|Fail|Warn|Skip|Not Run)")
DCGM_VERSION: Final = "DCGM Version"
DRIVER_VERSION: Final = "Driver Version Detected"


@dataclass(slots=True)
class _Table:
    """
    What was read so far.
    """

    started: int = 0
    borders: int = 0
    aborted: str | None = None
    section: str = ""
    name: str = ""
    told: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    tests: list[DiagTest] = field(default_factory=list)

    def read(self, line: str, number: int) -> None:
        section, cells = SECTION.fullmatch(line), CELLS.fullmatch(line)
        if line.startswith("Error:"):
            raise UnreadableOutput(TOOL, f"the diagnostic did not run: {short(line[6:])}", number)
        if line.strip() == STARTED:
            self.started += 1
            self.section = ""
        elif line.startswith(ABORTED):
            self.aborted = short(line)
        elif BORDER.fullmatch(line):
            self.borders += 1
        elif section:
            self.section, self.name, self.told = section[1], "", False
        elif cells and self.section in {"", "Metadata"}:
            self.facts.setdefault(cells[1].strip(), cells[2])
        elif cells:
            self._take(cells[1].strip(), cells[2], number)
        elif line.startswith("|"):
            raise UnreadableOutput(TOOL, "a row of the table is cut", number)

    def _take(self, name: str, words: str, number: int) -> None:
        if TOLD.fullmatch(name):
            self.told = True
            return
        if name:
            self.name, self.told = name, False
        found = list(self._verdicts(words))
        # the second line of a message has no name either
        if not found and not self.told:
            raise UnreadableOutput(TOOL, "a verdict has an unknown word", number)
        self.tests += found

    def _verdicts(self, words: str) -> Iterator[DiagTest]:
        overall, listed, entity = OVERALL.fullmatch(words), LISTED.fullmatch(words), ENTITY.fullmatch(words)
        if overall and not self.told:
            yield DiagTest(self.section, self.name, None, None, verdict_of(overall[1]))
        elif listed:
            for index in listed[2].split(", "):
                yield DiagTest(self.section, self.name, int(index), None, verdict_of(listed[1]))
        elif entity and entity[1] == "GPU":
            yield DiagTest(self.section, self.name, int(entity[2]), None, verdict_of(entity[3]))
        elif entity:
            yield DiagTest(self.section, self.name, None, entity[1] + entity[2], verdict_of(entity[3]))


def parse_dcgm_table(text: str) -> DiagResult:
    """
    The diagnostic that the text is the whole printed table of, repeated runs included; its warnings' words are left out.

    Raises: UnreadableOutput when it is cut off, says that the diagnostic did not run, or has an unknown verdict.
    """
    table = _Table()
    for index, line in enumerate(whole_lines(TOOL, text)):
        table.read(line, index + 1)
    if not table.started or table.borders != 2 * table.started:
        raise UnreadableOutput(TOOL, "it is cut off before the end of the table")
    if not table.tests:
        raise UnreadableOutput(TOOL, "it has no verdict")
    return DiagResult(table.facts.get(DCGM_VERSION), table.facts.get(DRIVER_VERSION), tuple(table.tests), table.aborted)
