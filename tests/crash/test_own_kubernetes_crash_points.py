"""
Every named crash point while a Kubernetes of one's own is ordered, upgraded, has a control plane replaced, and is deleted. By default one
life in which somebody dies at every point, several times; with CRASH_PASSES=all each pass of each point by itself, once, twice in a row,
and frozen there and taken over. What hosts do with their files is judged all the while: no kubelet is newer than an API server that it may
talk to, none is exchanged on a host that was not emptied, and never are two control planes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.clusters import replacing, upgrading
from controlplane.clusters import service as clusters
from controlplane.kit import crashpoints
from controlplane.kit.crashpoints import POINTS
from controlplane.providers.circuits import Circuit
from controlplane.providers.hardware import Hardware
from controlplane.providers.toolbox import Guarded, Reachable
from tests.conftest import Database
from tests.crash.dying import die_at_each_pass, die_everywhere
from tests.crash.main_job import LAPSE_S, Death, Doom, Hand
from tests.crash.test_crash_points import ALL, FLEET, HELD, LONG_S, MANNERS, METERS, MODEST_S
from tests.factories.world import World, make_world
from tests.integration.test_bare_nodes import only_bare
from tests.integration.test_dedicated_kubernetes import SEALER, KubeTools, at, wanted
from tests.integration.test_dedicated_slurm import members
from tests.integration.test_kubernetes_upgrades import VersionRack
from tests.schedules.invariants import promises_of_rows

DEATHS = 3
"""At each point, in one life."""
PASSES = {"request": 5, "decide": 10, "": 80}
"""Passes of which the deaths are drawn: a life has four requests, a dozen decisions, and much of everything else."""
LOOKS = 6000
BEGUN = "SELECT id FROM operations WHERE type = :type AND state IN ('pending', 'running')"


class GuardedTools(KubeTools):
    """
    As in production every call passes the crash points.
    """

    def clusters(self, provider: Reachable) -> Any:
        """See `Toolbox.clusters`."""
        return Guarded(super().clusters(provider), Circuit())

    def hardware(self, provider: Reachable, ref: str) -> Hardware:
        """See `Toolbox.hardware`."""
        made: Any = Guarded(super().hardware(provider, ref), Circuit())
        return made  # type: ignore[no-any-return]


class Mortal(VersionRack):
    """
    A rack whose workers die where they are told to.
    """

    made_with = GuardedTools

    def work(self, over: Callable[[], bool], *, takeover: bool) -> None:
        """Workers and hosts have done what is due until it is over; who is only frozen wakes up then, and changes nothing."""
        hand, frozen = Hand(self.world, self.world.tools), []
        for _ in range(LOOKS):
            try:
                done = hand.look()
            except Death:
                frozen += [hand] if takeover else []
                self.world.clock.advance(LAPSE_S)
                hand = Hand(self.world, self.world.tools)
                continue
            if done + self._speak():
                continue
            if over():
                break
            self.world.clock.advance(max(0.5, min(row.pause_s for row in self.world.waiting())))
        else:
            raise AssertionError(f"it does not come to an end: {self.world.waiting()}")
        assert not sum(one.wake_up_late() for one in frozen), "a worker that lost its lease still changed rows"

    def ask(self, kind: str, work: Callable[[Any], Any]) -> None:
        """A caller who gets no answer looks whether it was heard, and asks again where it was not."""

        def all_of_it(session: Any) -> None:
            work(session)
            crashpoints.reach("request.before_commit")

        self.world.clock.advance(60)  # who holds a node for no time at all has nothing to be billed for
        while True:
            try:
                self.world.do(all_of_it)
                crashpoints.reach("request.after_commit")
            except Death:
                if self.world.rows(BEGUN, type=kind):
                    return
            else:
                return

    def run(self, doom: Doom, *, takeover: bool = False) -> None:
        """A whole life, by other processes where the first ones died."""
        world, take_out = self.world, crashpoints.install(doom)
        try:
            wish = wanted(world, 1, 3)
            given = (world.tenant, world.keys.project_id)
            self.ask("cluster.create", lambda s: clusters.order_cluster(s, *given, wish, SEALER))
            cluster_id = str(world.rows("SELECT id FROM clusters WHERE state <> 'deleted'")[0].id)

            def is_(state: str) -> None:
                self.work(
                    lambda: world.rows("SELECT state FROM clusters WHERE id = :i", i=cluster_id) == [(state,)], takeover=takeover
                )

            is_("running")
            there = at(world, cluster_id)
            self.ask("cluster.upgrade", lambda s: upgrading.upgrade_workers(s, *there, upgrading.Wish(version="1.37.0")))
            is_("running")
            assert {self.api.kubelets[one] for one in self.api.joined} == {"1.37.0"}
            gone = min(members(world, "control_plane"))
            who, project, _, check = there
            one = gone.replace("-", "_")
            self.ask("cluster.replace", lambda s: replacing.replace_instance(s, who, project, cluster_id, one, check))
            is_("running")
            after = members(world, "control_plane")
            assert (gone in after, len(after)) == (False, 3)
            self.ask("cluster.delete", lambda s: clusters.delete_cluster(s, *there))
            is_("deleted")
            self.work(lambda: self.states() == {"available": len(self.ids)}, takeover=takeover)
            self.api.files = {}
        finally:
            take_out()


@pytest.fixture(scope="module")
def rack(migrated: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    """
    Five bare machines for all lives.
    """
    migrated.reset()
    world = make_world(migrated, tmp_path_factory.mktemp("own"), fleet=str(FLEET))
    world.settle()
    made = Mortal(world, 5, "kubeadm")
    only_bare(world)
    made.settle()
    yield made
    world.clock.stop()
    migrated.reset()


def assert_clean(world: World, words: str) -> None:
    """
    Every promise holds, each change was one operation, and nothing is left.
    """
    broken = promises_of_rows(world)
    assert not broken, f"{words}: {broken}"
    assert world.rows(HELD) == [], words
    assert world.rows(METERS) == [], words
    assert world.rows("SELECT id FROM clusters WHERE state <> 'deleted'") == [], words
    (count,) = world.rows("SELECT count(*) AS n FROM clusters")
    done = world.rows("SELECT state, count(*) AS n FROM operations WHERE resource_kind = 'cluster' GROUP BY 1")
    assert [(row.state, row.n) for row in done] == [("succeeded", 4 * count.n)], words


def test_one_life_with_deaths_at_every_point(rack: Mortal) -> None:
    """Whoever dies, and wherever: hosts are told each version once, in the one order there is; the quorum is never lost; nothing stays."""
    assert_clean(rack.world, die_everywhere(rack, POINTS, PASSES, DEATHS))


@pytest.mark.skipif(not ALL, reason="hours: CRASH_PASSES=all plays it")
@pytest.mark.timeout(LONG_S if ALL else MODEST_S)
@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("point", POINTS)
def test_death_at_a_point_breaks_no_promise(rack: Mortal, point: str, manner: str) -> None:
    """Each pass by itself."""
    for words in die_at_each_pass(rack, point, manner):
        assert_clean(rack.world, words)
