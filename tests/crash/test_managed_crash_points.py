"""
Every named crash point in the life of a Kubernetes that its provider makes: ordered, grown, shrunk, a node replaced, upgraded, deleted. By
default one life in which somebody dies at every point, several times; with CRASH_PASSES=all each pass of each point by itself, once, twice
in a row, and frozen there and taken over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.kit.crashpoints import POINTS
from tests.conftest import Database
from tests.crash.dying import die_at_each_pass, die_everywhere
from tests.crash.main_job import Doom
from tests.crash.on_cluster_api import assert_nothing_is_left, many_lives
from tests.crash.test_crash_points import ALL, LONG_S, MANNERS, MODEST_S
from tests.integration.test_managed_kubernetes import ORDER, Scene
from tests.kubernetes_kit import UNTIDY

pytestmark = UNTIDY
OPERATIONS = 6
"""Of one life."""
DEATHS = 3
"""At each point, in one life."""
PASSES = {"request": 7, "decide": 12, "": 60}
"""Passes of which the deaths are drawn: a life has six requests, a dozen decisions, and much of everything else."""


class Lives(Scene):
    """
    Lives of clusters, one after the other, on one management cluster.
    """

    def _wait(self) -> None:
        self.kit.settle()
        super()._wait()

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """
        A whole life, by other processes where the first ones died.
        """
        with self.watched(doom):
            made = self.ask("POST", "/clusters", {**ORDER, "name": f"life{self._number}"})
            path = f"/clusters/{made['id']}"
            changes: list[tuple[str, str, Any]] = [
                ("PATCH", "", {"node_sets": [{"name": "workers", "count": 3}]}),
                ("PATCH", "", {"node_sets": [{"name": "workers", "count": 2}]}),
                ("POST", "/instances/{}/actions/replace", None),
                ("POST", "/actions/upgrade", {"version": "1.35.1"}),
            ]
            self.drive(path[1:], "running", takeover=takeover)
            for method, more, body in changes:
                self.alter(path, method, more, body)
                self.drive(path[1:], "running", takeover=takeover)
            assert len(self.members()) == 2
            shown = self._persist("GET", path)[0].json()["spec"]["kubernetes"]
            assert shown == {"distribution": "managed", "version": "1.35.1", "upgrading_to": None}
            self.alter(path, "DELETE", "", None)
            self.drive(path[1:], "deleted", takeover=takeover)
            self.work(lambda: not self.world.rows("SELECT 1 FROM nodes WHERE state <> 'available' LIMIT 1"), takeover=takeover)


@pytest.fixture(scope="module")
def lives(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """
    A management cluster for all lives.
    """
    with many_lives(migrated, tmp_path_factory.mktemp("managed"), Lives) as made:
        yield made


def test_one_life_with_deaths_at_every_point(lives: Lives) -> None:
    """Whoever dies, and wherever, each change is made once: a Machine for each host, a meter for each node, and nothing stays."""
    assert_nothing_is_left(lives, die_everywhere(lives, POINTS, PASSES, DEATHS), operations=OPERATIONS)


@pytest.mark.skipif(not ALL, reason="hours: CRASH_PASSES=all plays it")
@pytest.mark.timeout(LONG_S if ALL else MODEST_S)
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("point", POINTS)
def test_death_at_a_point_breaks_no_promise(lives: Lives, point: str, manner: str) -> None:
    """Each pass by itself."""
    for words in die_at_each_pass(lives, point, manner):
        assert_nothing_is_left(lives, words, operations=OPERATIONS)
