"""
Upgrades of a Slurm of one's own to another release, as rows: the head before the workers, the logins after them, what daemons say of
themselves before what anybody believes, and what a stopped upgrade leaves behind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.activity import service as activity
from controlplane.boots import reporting
from controlplane.boots.states import CLOUD_INIT_STAGES, Outcome, Report
from controlplane.clusters import service as clusters
from controlplane.clusters.schemas import cluster_out
from controlplane.images.store import LocalImageStore
from controlplane.kit.errors import Invalid
from tests.e2e.test_dedicated_slurm import OFFER
from tests.factories.world import World
from tests.integration.test_bare_nodes import only_bare
from tests.integration.test_dedicated_slurm import members, order, wanted
from tests.integration.test_image_orders import STAGES, image
from tests.integration.test_slurm_upgrades import Seen, cluster_of, deployed, ends, operation, upgrade

SLOW = pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1")
PROGRAM = "/usr/local/libexec/slurm/follow-release"
UPGRADES = {"23.11": {"fetch": "bring it", "install": "put it"}, "24.11": {"install": "put it"}}


class Installed(Seen):
    """A rack whose hosts get releases: the head by its program, workers by what is installed on them, logins by theirs."""

    puts = "23.11.4"
    follows = True
    login = ""
    told: list[str]

    def _speak(self) -> int:
        spoke = super()._speak()
        if PROGRAM in self.head.commands and self.follows:
            self.head.release = "23.11.4"
        return spoke

    def note(self) -> None:
        """Workers are installed anew only below a head that has the release, and logins follow workers."""
        super().note()
        installing = self.world.rows("SELECT 1 FROM nodes WHERE state = 'reinstalling'")
        login = [
            row.one
            for row in self.world.rows(
                "SELECT (p.files @> CAST(:with AS jsonb)) AS one FROM blueprints p JOIN node_sets s ON s.blueprint_id = p.id "
                "WHERE s.role = 'login'",
                **{"with": f'[{{"path": "{PROGRAM}"}}]'},
            )
        ]
        if installing:
            self.told.append(f"worker below {self.head.release}")
        if any(login):
            self.told.append("login")

    def _report(self, session: Any, row: Any) -> None:
        if row.purpose == "install":
            reporting.phone_home(session, row.id, {"instance_id": row.instance})
            said = tuple(Outcome(name, ok=True, exit_code=0, line=None, output="") for name in STAGES)
            reporting.take_report(session, row.id, row.id, Report(True, dict.fromkeys(CLOUD_INIT_STAGES, ""), said))
            return
        super()._report(session, row)
        name = session.execute(
            text("SELECT allocation_id FROM boots WHERE id = :id AND purpose = 'deploy'"), {"id": row.id}
        ).scalar()
        if name is not None and self.head.files:
            found = session.execute(text("SELECT instance_id FROM allocations WHERE id = :id"), {"id": name}).scalar_one()
            self.head.versions[found.replace("_", "-")] = self.puts


def racked(world: World, *, login: bool = False, workers: int = 1) -> Installed:
    """Bare machines with a Slurm of 22.05 on them, whose operator says how to get later releases."""
    made = Installed(world, workers + 1 + login)
    made.cut, made.told = set(), []
    world.do(lambda s: made._offer(s, {**OFFER, "upgrades": UPGRADES}))
    world.do(
        lambda s: s.execute(
            text("UPDATE providers SET capabilities = capabilities || '{\"images\": true}' WHERE adapter = 'redfish'")
        )
    )
    only_bare(world)
    made.settle()
    wish = wanted(world, workers)
    door = (clusters.SetOrder("door", world.keys.instance_type, 1, "login"),) if login else ()
    order(world, wanted(world, workers, sets=(*wish.sets, *door)))
    made.settle()
    made.head.versions = dict.fromkeys(members(world, "worker"), "22.05.8")
    made.told = []
    return made


def shown(world: World) -> Any:
    """The cluster as its owner sees it."""
    at = (world.tenant, world.keys.project_id, cluster_of(world))
    return cluster_out(world.do(lambda s: clusters.get_cluster(s, *at)))


def stop(world: World, operation_id: str) -> None:
    """Its owner asks to stop it."""
    world.do(lambda s: activity.cancel_operation(s, world.tenant, operation_id))


def test_a_release_comes_to_the_head_then_to_workers_then_to_logins(world: World) -> None:
    """Nothing is installed below an older head; logins are told last; then the cluster is of the new release, and nothing was cut off."""
    rack = racked(world, login=True, workers=2)
    begun = upgrade(world, release="23.11")
    assert ends(rack, begun).state == "succeeded"
    rack.settle(20)
    first_login = rack.told.index("login")
    assert set(rack.told[:first_login]) == {"worker below 23.11.4"}
    assert set(rack.told[first_login:]) == {"login"}
    assert deployed(world) == {
        **dict.fromkeys(members(world, "worker"), 2),
        **dict.fromkeys(members(world, "head") + members(world, "login"), 1),
    }
    assert "bring it" in rack.head.files[PROGRAM]
    assert "openapi/slurmctld" in rack.head.files["/etc/systemd/system/slurmrestd.service.d/10-cluster.conf"]
    seen = shown(world)
    assert (seen.spec.slurm.release, seen.spec.slurm.head_release, seen.status.state) == ("23.11", "23.11", "running")
    assert seen.status.reason in {"All hosts have Slurm 23.11.", "All 2 nodes answer."}
    again = upgrade(world, release="23.11")
    rack.told = []
    assert ends(rack, again).state == "succeeded"
    assert rack.head.commands.count(PROGRAM) == 1
    assert rack.cut == set()


@pytest.mark.slow
@SLOW
def test_a_head_that_does_not_get_the_release_stops_it_before_any_worker(world: World) -> None:
    """Its report alone is not believed: what its Slurm says is. A person sees it; with the release there, the upgrade goes on."""
    rack = racked(world)
    rack.follows = False
    begun = upgrade(world, release="23.11")
    seen = ends(rack, begun)
    assert (seen.state, seen.error["code"]) == ("needs_attention", "upgrade_head_release")
    assert set(deployed(world).values()) == {1}
    rack.follows = True
    world.do(lambda s: activity.resolve_resource(s, cluster_of(world), "resume"))
    assert ends(rack, begun).state == "succeeded"


@pytest.mark.slow
@SLOW
def test_a_worker_with_another_release_stops_it_and_is_installed_once_more(world: World) -> None:
    """The first worker comes back with the old release: a person is told which, the other keeps its work; resumed, it is tried again."""
    rack = racked(world, workers=2)
    rack.puts = "22.05.8"
    begun = upgrade(world, release="23.11")
    seen = ends(rack, begun, 1000)
    assert (seen.state, seen.error["code"]) == ("needs_attention", "upgrade_worker_release")
    assert sorted(deployed(world).values()) == [1, 1, 2]
    assert len(rack.leaving()) == 1
    assert (shown(world).spec.slurm.release, shown(world).spec.slurm.head_release) == ("22.05", "23.11")
    rack.puts = "23.11.4"
    world.do(lambda s: activity.resolve_resource(s, cluster_of(world), "resume"))
    assert ends(rack, begun).state == "succeeded"
    assert sorted(deployed(world).values()) == [1, 2, 3]


def test_without_a_release_workers_must_be_what_the_head_serves(world: World) -> None:
    """An image with a newer Slurm than the head's is found out after the first worker, and no other gets it."""
    rack = racked(world)
    begun = upgrade(world)
    rack.puts = "24.11.5"
    seen = ends(rack, begun, 1000)
    assert (seen.state, seen.error["code"]) == ("needs_attention", "upgrade_worker_release")
    assert "(24.11.5) came back without Slurm 22.05" in seen.error["message"]


@pytest.mark.slow
@SLOW
def test_stopped_at_the_head_it_is_finished_there_and_may_go_on_later(world: World) -> None:
    """A head under way gets its release, no worker is touched and logins are not; the same upgrade again does only what is left."""
    rack = racked(world, login=True)
    begun = upgrade(world, release="23.11")
    while PROGRAM not in rack.head.commands:
        rack.settle(1)
    stop(world, begun)
    assert ends(rack, begun).state == "cancelled"
    assert (rack.head.release, rack.told) == ("23.11.4", [])
    assert (shown(world).spec.slurm.release, shown(world).spec.slurm.head_release) == ("22.05", "23.11")
    again = upgrade(world, release="23.11")
    assert ends(rack, again).state == "succeeded"
    assert rack.head.commands.count(PROGRAM) == 1
    assert shown(world).spec.slurm.release == "23.11"


def test_an_installation_under_way_is_finished_before_a_stopped_upgrade_ends(world: World, tmp_path: Path) -> None:
    """Asked to stop while the first worker is installed, that one is in use again before it ends; the sets say what their members have."""
    rack = racked(world, workers=2)
    rack.puts = "22.05.8"
    image_id = image(world, LocalImageStore(tmp_path / "images"))
    begun = upgrade(world, image=image_id)
    while not world.rows("SELECT 1 FROM nodes WHERE state = 'reinstalling'"):
        rack.settle(1)
    stop(world, begun)
    rack.settle(1)
    assert operation(world, begun).state == "running"
    assert ends(rack, begun).state == "cancelled"
    assert rack.states() == {"active": 3}
    assert rack.leaving() == []
    (workers,) = (one for one in shown(world).spec.node_sets if one.name == "workers")
    assert workers.image == image_id
    assert [(one.image, one.count) for one in workers.images] == [(None, 1), (image_id, 1)]


def test_stopped_before_any_installation_a_set_has_the_image_it_had(world: World, tmp_path: Path) -> None:
    """Its next members get what its members have."""
    rack = racked(world)
    rack.head.busy = set(members(world, "worker"))
    begun = upgrade(world, image=image(world, LocalImageStore(tmp_path / "images")))
    rack.settle(60)
    stop(world, begun)
    assert ends(rack, begun).state == "cancelled"
    (workers,) = (one for one in shown(world).spec.node_sets if one.name == "workers")
    assert (workers.image, [(one.image, one.count) for one in workers.images]) == (None, [(None, 1)])


def test_a_release_that_cannot_be_reached_is_refused(world: World) -> None:
    """One that does not understand the present one, with the way there; one that nobody offers; and one beside an unfinished one."""
    rack = racked(world)
    for release, code, words in (
        ("24.11", "slurm_upgrade_impossible", "upgrade to 23.11 and then to 24.11"),
        ("25.05", "slurm_upgrade_impossible", "23.11"),
    ):
        with pytest.raises(Invalid, match=words) as refused:
            upgrade(world, release=release)
        assert refused.value.errors[0].code == code
    world.do(lambda s: rack._offer(s, OFFER))
    with pytest.raises(Invalid, match="does not offer"):
        upgrade(world, release="23.11")
    assert world.rows("SELECT count(*) FROM clusters WHERE upgrade IS NOT NULL") == [(0,)]
