"""
Slurm's short form of node lists: `n[1-4,7],gpu-[01-02]-a`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

MAX_HOSTS = 100_000
_SPECIAL = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_TAIL = re.compile(r"(.*?)(\d+)")


class BadHostlist(ValueError):
    """
    The text is not a hostlist, or stands for too many hosts.
    """


def expand(text: str) -> tuple[str, ...]:
    """
    The hosts in the list's own order; none for an empty one. Raises BadHostlist.
    """
    if text in {"", "(null)", "None assigned"}:
        return ()
    hosts: list[str] = []
    for word in _split(text):
        parts = _SPECIAL.split(word)
        literals, ranges = parts[::2], [_numbers(part) for part in parts[1::2]]
        size = 1
        for choices in ranges:
            size *= len(choices)
        if size + len(hosts) > MAX_HOSTS:
            raise BadHostlist("too many hosts")
        for picked in product(*ranges):
            pairs = zip(literals, (*picked, ""), strict=True)
            hosts.append("".join(part for pair in pairs for part in pair))
    return tuple(hosts)


def compress(hosts: Iterable[str]) -> str:
    """
    A short hostlist of the same hosts, each once, sorted; `expand` gives them back.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for host in sorted(set(hosts)):
        tail = _TAIL.fullmatch(host)
        if tail is None:
            plain.append(host)
        else:
            groups.setdefault((tail[1], len(tail[2])), []).append(int(tail[2]))
    words = [
        f"{prefix}{numbers[0]:0{width}d}" if len(numbers) == 1 else f"{prefix}[{_ranges(numbers, width)}]"
        for (prefix, width), numbers in sorted(groups.items())
    ]
    return ",".join([*plain, *words])


def _split(text: str) -> list[str]:
    words, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            words.append(text[start:at])
            start = at + 1
        if depth not in {0, 1}:
            raise BadHostlist(f"brackets do not match: {text[:80]!r}")
    words.append(text[start:])
    if depth or not all(words) or any(letter.isspace() for letter in text):
        raise BadHostlist(f"not a hostlist: {text[:80]!r}")
    return words


def _numbers(text: str) -> list[str]:
    out: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise BadHostlist(f"not a range: {part[:40]!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= MAX_HOSTS:
            raise BadHostlist(f"not a range: {part[:40]!r}")
        out += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return out


def _ranges(numbers: list[int], width: int) -> str:
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in spans)
