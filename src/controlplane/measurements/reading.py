"""
How a tool's text is read: whole lines, plain numbers, and one error for everything that cannot be trusted.
"""

from __future__ import annotations

import math
import re
from typing import Final

LONGEST_TEXT: Final = 16 * 1024 * 1024
"""Characters; the real outputs stay far below."""
LONGEST_LINE: Final = 10_000
"""Characters; keeps the patterns cheap on any text."""
LARGEST_WHOLE: Final = 2**63 - 1
WHOLE = re.compile(r"-?[0-9]{1,19}")
NUMBER = re.compile(r"[-+]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?")
RANK_TAG = re.compile(r"^\[[0-9]+,[0-9]+\]<std(?:out|err)>: ?")


class UnreadableOutput(Exception):
    """
    The output is empty, cut off, of a run that failed, or not of the named tool: nothing in it may be used.
    """

    def __init__(self, tool: str, why: str, line: int | None = None) -> None:
        super().__init__(f"{tool}: {why}" + ("" if line is None else f" (line {line})"))
        self.tool = tool
        """Name of the tool whose output it should have been."""
        self.why = why
        """In plain words."""
        self.line = line
        """Number of the line, counted from 1; None when it is about the whole."""


def whole_lines(tool: str, text: str) -> list[str]:
    """
    The lines that end, without their ends: a last line without its line break may have lost its tail, so it is left out.

    Raises: UnreadableOutput for empty and endless texts and lines.
    """
    refuse_unlikely(tool, text)
    lines = text.split("\n")[:-1]
    if any(len(line) > LONGEST_LINE for line in lines):
        raise UnreadableOutput(tool, "a line is longer than any real one")
    return [_plain(line) for line in lines]


def refuse_unlikely(tool: str, text: str) -> None:
    """
    The text is neither empty nor endless.

    Raises: UnreadableOutput otherwise.
    """
    if not text.strip():
        raise UnreadableOutput(tool, "the output is empty")
    if len(text) > LONGEST_TEXT:
        raise UnreadableOutput(tool, "the output is longer than any real one")


def number(word: str) -> float | None:
    """
    The finite decimal number that the whole word is; None for anything else.
    """
    if not NUMBER.fullmatch(word):
        return None
    value = float(word)
    return value if math.isfinite(value) else None


def whole(word: str) -> int | None:
    """
    The whole number that the word is; None for anything else and beyond 64 bits.
    """
    if not WHOLE.fullmatch(word):
        return None
    value = int(word)
    return value if abs(value) <= LARGEST_WHOLE else None


def short(text: str) -> str:
    """
    The words a tool said, fit to stand in a message.
    """
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())[:200]


def _plain(line: str) -> str:
    # mpirun --tag-output puts the rank before each line
    return RANK_TAG.sub("", line.rstrip("\r"))
