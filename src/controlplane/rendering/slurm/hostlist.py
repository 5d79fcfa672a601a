"""
Slurm's short form of node lists, in one canonical spelling: `n[001-004,007],rack2-n1`.

Source: slurm.conf(5), NodeName: one numeric range in brackets at the end of a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

_NUMBERED = re.compile(r"(.*?)(\d{1,9})")


def compress(names: Iterable[str]) -> str:
    """
    The same names once each, sorted by prefix, width and number, runs folded to ranges. Names with other widths are never mixed.
    """
    families: dict[tuple[str, int], list[int]] = {}
    plain = set()
    for name in set(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.add(name)
        else:
            families.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    folded = [_family(prefix, width, sorted(numbers)) for (prefix, width), numbers in sorted(families.items())]
    return ",".join([*sorted(plain), *folded])


def natural(name: str) -> tuple[str, int, int]:
    """
    The order nodes are listed in: prefix, width, number; a name without a number comes before its numbered kin.
    """
    match = _NUMBERED.fullmatch(name)
    return (name, 0, 0) if match is None else (match[1], len(match[2]), int(match[2]))


def _family(prefix: str, width: int, numbers: list[int]) -> str:
    starts = [numbers[0], *(after for before, after in pairwise(numbers) if after != before + 1)]
    ends = [*(before for before, after in pairwise(numbers) if after != before + 1), numbers[-1]]
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    spans = (f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in zip(starts, ends, strict=True))
    return f"{prefix}[{','.join(spans)}]"
