"""
The loop of one kind: when it asks the database, and whom it tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.kit.lifecycle import Claim, Driver, Tempo
from controlplane.kit.outcome import Advance, Outcome, Wait
from controlplane.nodes.states import NodeFacts
from tests.conftest import Database
from tests.factories.world import World, make_world
from workers.pump import Pump

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
NODES = 6
TURNS = 20


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """Six nodes that nobody has looked at yet."""
    made = make_world(database, tmp_path, fleet=str(FLEET))
    yield made
    made.clock.stop()


class Counted(Driver):
    """A driver that counts what it asks the database for."""

    asked = 0
    claimed = 0

    def next_due_in_s(self) -> float | None:
        """See `Driver.next_due_in_s`."""
        self.asked += 1
        return super().next_due_in_s()

    def claim(self, limit: int) -> list[Claim]:
        """See `Driver.claim`."""
        self.claimed += 1
        return super().claim(limit)


@dataclass
class Loop:
    """A pump whose nodes' first step is given."""

    driver: Counted
    """What it drives with."""
    pump: Pump
    """Turned by hand."""
    told: list[str] = field(default_factory=list)
    """A word for each time that others were told."""

    def finish(self) -> None:
        """All nodes have had one step."""
        while self.pump.finished < NODES:
            self.pump.turn()


@pytest.fixture
def looped(world: World) -> Iterator[Callable[[Callable[[Any, Any], Outcome]], Loop]]:
    """Makes a loop of the step."""
    with ThreadPoolExecutor(NODES) as pool:

        def make(step: Callable[[Any, Any], Outcome]) -> Loop:
            kind = world.drivers["node"].kind
            driver = Counted(world.engine, replace(kind, steps={**kind.steps, "enrolled": step}), Tempo())
            told: list[str] = []
            return Loop(driver, Pump(driver, world.tools, world.settings, pool, tell=lambda: told.append("told")), told)

        yield make


Make = Callable[[Callable[[Any, Any], Outcome]], Loop]


def test_nothing_is_claimed_while_nothing_is_due(looped: Make) -> None:
    """Once every row waits, a call costs the one question whether something is due, and no claim."""
    loop = looped(lambda _node, _tools: Wait("Later.", 600.0))
    loop.finish()
    asked, claimed = loop.driver.asked, loop.driver.claimed
    for _ in range(TURNS):
        loop.pump.wake()
        assert loop.pump.turn() == 0
    assert (loop.driver.asked - asked, loop.driver.claimed - claimed) == (TURNS, 0)


def test_nothing_is_asked_while_steps_are_under_way(looped: Make) -> None:
    """A slow provider costs no look at the database until somebody calls, and one that calls is heard meanwhile."""
    answer = threading.Event()

    def slow(_node: Any, _tools: Any) -> Outcome:
        answer.wait()
        return Wait("Later.", 600.0)

    loop = looped(slow)
    try:
        assert loop.pump.turn() == NODES
        loop.pump.turn()
        asked = loop.driver.asked
        for _ in range(TURNS):
            assert loop.pump.turn() == 0
        assert loop.driver.asked == asked
        loop.pump.wake()
        loop.pump.turn()
        assert loop.driver.asked == asked + 1
    finally:
        answer.set()
    loop.finish()


@pytest.mark.parametrize(
    ("outcome", "news"),
    [
        (Wait("Later.", 600.0), False),
        (Wait("Later.", 600.0, step="part"), False),
        (Wait("Later.", 600.0, facts=NodeFacts()), True),
        (Advance("inspecting"), True),
    ],
    ids=["wait", "part", "facts", "move"],
)
def test_others_are_told_of_news(looped: Make, outcome: Outcome, *, news: bool) -> None:
    """A move, or facts, may make rows of other kinds due, so their loops look at once; a mere wait is nobody else's business."""
    loop = looped(lambda _node, _tools: outcome)
    loop.finish()
    assert bool(loop.told) == news
