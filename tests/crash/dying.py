"""
How a life is lived while whoever drives it dies at crash points.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tests.crash.main_job import Doom, Dooms

SEED = int(os.environ.get("CRASH_SEED", "1"))


class Lives(Protocol):
    """
    Something that can be lived again and again.
    """

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """A whole life, by other processes where the first ones died."""


def die_everywhere(lives: Lives, points: Sequence[str], passes: Mapping[str, int], deaths: int) -> str:
    """
    One life was lived in which somebody died so many times at each of these points; returned in words. `passes` says of how many of a kind
    of point the deaths are drawn, and of any other under "".
    """
    dice = random.Random(SEED)
    many = {one: passes.get(one.partition(".")[0], passes[""]) for one in points}
    doom = Dooms({one: frozenset(dice.sample(range(1, many[one]), deaths)) for one in points})
    lives.run(doom)
    assert set(doom.seen) == set(points)
    assert not [one for one in points if not doom.died[one]], doom.seen
    return f"seed {SEED}, {sum(doom.died.values())} deaths"


def die_at_each_pass(lives: Lives, point: str, manner: str) -> Iterator[str]:
    """
    One life after the other, each with a death at another pass of the point; each is told in words once it is lived.
    """
    count = Doom()
    lives.run(count)
    for number in range(1, count.seen[point] + 1):
        passes = frozenset({number, number + 1} if manner == "retry" else {number})
        lives.run(Doom(point, passes), takeover=manner == "takeover")
        yield f"{point} pass {number} of {count.seen[point]}, {manner}"
