"""
Every named crash point while a cluster that exists already is taken over, let go, taken over again and deleted. By default one life in
which somebody dies at every point, several times; with CRASH_PASSES=all each pass of each point by itself, once, twice in a row, and
frozen there and taken over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from controlplane.kit.crashpoints import POINTS
from tests.conftest import Database
from tests.crash.dying import die_at_each_pass, die_everywhere
from tests.crash.main_job import DONE_BEFORE, Death, Doom
from tests.crash.on_cluster_api import assert_nothing_is_left, many_lives
from tests.crash.test_crash_points import ALL, LONG_S, MANNERS, MODEST_S
from tests.integration.test_adoption import THEIRS, Standing
from tests.kubernetes_kit import UNTIDY

pytestmark = UNTIDY
OPERATIONS = 2
"""Of one life."""
DEATHS = 2
"""At each point, in one life."""
HERE = tuple(one for one in POINTS if not one.startswith("decide."))
"""Nothing is placed: which nodes it has stands before it is asked for."""
PASSES = {"request": 5, "": 16}
"""Passes of which the deaths are drawn: a life has four requests, and more of everything else."""
ASIDE = "SELECT id FROM nodes WHERE ref = ANY(:refs) AND state = 'available'"


class Lives(Standing):
    """
    Lives of a Cluster that its operator has made, one after the other, on one management cluster.
    """

    def _wait(self) -> None:
        self.kit.settle()
        super()._wait()

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """
        A whole life, by other processes where the first ones died.
        """
        self._stand()
        before, story = self.kit.state(), list(self.kit.controllers.story)
        first = self._taken_over(doom, takeover=takeover)
        self._later()
        path = f"/v1/admin/clusters/{first}/actions/let-go"
        with self.watched(doom):
            self._insist("POST", path, None, **{"If-Match": "*"})
            self.drive(f"clusters/{first}", "deleted", takeover=takeover)
        assert (self.kit.state(), self.kit.controllers.story) == (before, story), "it is as it was"
        assert {self.nodes()[ref] for ref in THEIRS} == {"maintenance"}
        assert (self.billed(), self.used()) == (0, {"gpus": 0, "clusters": 0})
        second = self._taken_over(doom, takeover=takeover)
        assert self.kit.controllers.story == story, "no Machine was made or taken"
        self._later()
        with self.watched(doom):
            self.change(f"/clusters/{second}", "DELETE", None)
            self.drive(f"clusters/{second}", "deleted", takeover=takeover)
            self.work(lambda: not self.world.rows("SELECT 1 FROM nodes WHERE state <> 'available' LIMIT 1"), takeover=takeover)

    def _stand(self) -> None:
        """
        The operator has a Cluster on the two machines, which are in maintenance here.
        """
        for row in self.world.rows(ASIDE, refs=sorted(THEIRS)):
            self.verb(row.id, "maintain")
        if not self.kit.objects("clusters"):
            self.kit.stand("theirs", 2)
        assert self.members() == THEIRS

    def _taken_over(self, doom: Doom, *, takeover: bool) -> str:
        found = self.see()
        with self.watched(doom):
            body = self.wish(name=f"research{self._number}")
            made = self._insist("POST", f"{self.found}/{found['id']}/actions/adopt", body)
            self.drive(f"clusters/{made['cluster_id']}", "running", takeover=takeover)
        assert self.billed() == 2
        return str(made["cluster_id"])

    def _later(self) -> None:
        self.world.clock.advance(60)

    def _insist(self, method: str, path: str, body: Mapping[str, Any] | None, **headers: str) -> Any:
        """
        What the operator is answered, who repeats what was not answered under the same key.
        """
        told, repeated = {"Idempotency-Key": f"{path}-{self._number}", **headers}, False
        while True:
            try:
                answer = self.admin(method, path, body, **told)
            except Death:
                repeated = True
                continue
            if repeated and answer.status_code in DONE_BEFORE:
                return None
            assert answer.is_success, answer.text
            return answer.json()


@pytest.fixture(scope="module")
def lives(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    """
    A management cluster for all lives.
    """
    with many_lives(migrated, tmp_path_factory.mktemp("managed"), Lives, before=lambda kit: kit.stand("theirs", 2)) as made:
        yield made


def test_one_life_with_deaths_at_every_point(lives: Lives) -> None:
    """Whoever dies, and wherever: it is taken over once, no Machine touched, given back as it was, and taken down when it is ours."""
    assert_nothing_is_left(lives, die_everywhere(lives, HERE, PASSES, DEATHS), operations=OPERATIONS)


@pytest.mark.skipif(not ALL, reason="many minutes: CRASH_PASSES=all plays it")
@pytest.mark.timeout(LONG_S if ALL else MODEST_S)
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("point", HERE)
def test_death_at_a_point_breaks_no_promise(lives: Lives, point: str, manner: str) -> None:
    """Each pass by itself."""
    for words in die_at_each_pass(lives, point, manner):
        assert_nothing_is_left(lives, words, operations=OPERATIONS)
