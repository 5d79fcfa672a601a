"""
What every tool's output becomes for the ledger: named figures of a node, a GPU or a pair of nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

SubjectKind: TypeAlias = Literal["node", "gpu", "pair"]
Unit: TypeAlias = Literal["GB/s", "Gbit/s", "Gflop/s", "Mpps", "us", "s", "bytes", "C", "W", "count", "yes", "ratio"]


@dataclass(frozen=True, slots=True)
class Subject:
    """
    Whose figure it is; the node itself is known to whoever ran the tool.

    Raises: ValueError when what names it does not fit its kind.
    """

    kind: SubjectKind
    """A whole node, one GPU of it, or two nodes together."""
    gpu_index: int | None = None
    """The GPU's index as the tool counts; None for the other kinds."""
    ends: tuple[str, str] | None = None
    """The two ends of a pair; None for the other kinds."""

    def __post_init__(self) -> None:
        if (self.kind == "gpu") != (self.gpu_index is not None) or (self.kind == "pair") != (self.ends is not None):
            raise ValueError("a GPU has an index, a pair has two ends, a node has neither")
        if self.gpu_index is not None and self.gpu_index < 0:
            raise ValueError("GPUs are counted from zero")


NODE: Final = Subject("node")
"""The node the tool ran on."""


def gpu(index: int) -> Subject:
    """
    The GPU with that index.
    """
    return Subject("gpu", gpu_index=index)


def pair(one: str, other: str) -> Subject:
    """
    Two nodes, in the order given.
    """
    return Subject("pair", ends=(one, other))


@dataclass(frozen=True, slots=True)
class Measurement:
    """
    One figure, or the fact that it is missing.

    Raises: ValueError for infinities and what is no number.
    """

    name: str
    """What was measured, stable over tool versions."""
    value: float | None
    """In `unit`; None when the tool did not measure it or when its run failed."""
    unit: Unit
    """Unit of the value; `yes` is 1 or 0."""
    subject: Subject
    """Whose figure it is."""

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError("a figure is a finite number")


class HasFigures(Protocol):
    """
    The result of any of the parsers here.
    """

    def figures(self, whole: Subject = NODE) -> tuple[Measurement, ...]:
        """
        Its figures; those that are of no GPU in particular are given to `whole`.
        """
        ...


def yes(value: bool | None) -> float | None:  # noqa: FBT001 - a fact to convert, not a switch
    """
    1 or 0; None stays None.
    """
    return None if value is None else float(value)
