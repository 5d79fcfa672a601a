"""
Slurm clusters of one's own, as rows: what an order fixes, which files its hosts get when members come and go, and what is billed.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.activity import service as activity
from controlplane.boots import reporting
from controlplane.boots.states import CLOUD_INIT_STAGES, Outcome, Report
from controlplane.clusters import replacing, scaling
from controlplane.clusters import service as clusters
from controlplane.clusters.errors import NotChangeable
from controlplane.kit.errors import Invalid, NoCapacity, Unavailable
from controlplane.kit.paging import PageAsk
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.providers.clusters import ClusterView, MemberView
from controlplane.providers.errors import Unknown
from controlplane.providers.toolbox import Reachable
from tests.e2e.test_dedicated_slurm import OFFER
from tests.factories.world import MASTER_KEY, World
from tests.integration.test_bare_nodes import KEY, BenchTools, Rack, only_bare

SEALER = Sealer.from_base64(MASTER_KEY)


class Head:
    """What slurmctld would do with the files that its host holds."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.commands: list[str] = []
        self.busy: set[str] = set()
        self.dead: set[str] = set()
        self.release = "22.05.8"
        self.versions: dict[str, str] = {}

    def take(self, files: list[dict[str, Any]]) -> None:
        """The host has fetched these; commands of what changed are run, each once."""
        fresh = {one["path"]: one["content"] for one in files}
        told = [one["on_change"] for one in files if self.files.get(one["path"]) != one["content"] and one["on_change"]]
        if self.files:
            self.commands += dict.fromkeys(told)
        self.files = fresh

    def names(self) -> list[str]:
        """The workers that slurm.conf has a line for."""
        return re.findall(r"^NodeName=(ins-\S+)", self.files["/etc/slurm/slurm.conf"], re.MULTILINE)

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """The workers that slurm.conf names, drained where the list says so and nothing runs."""
        if not self.files:
            raise Unknown("connection refused")
        names = self.names()
        leaving = self.files["/etc/slurm/leaving"].split()
        return ClusterView(cluster_id, tuple(self._member(one, leaving) for one in names), None, (), self.release)

    def _member(self, name: str, leaving: list[str]) -> MemberView:
        return MemberView(name, self._state(name, leaving), 8, 0, version=self.versions.get(name, "22.05.8"))

    def _state(self, name: str, leaving: list[str]) -> Any:
        if name in self.dead:
            return "down"
        return ("draining" if name in self.busy else "drained") if name in leaving else "up"


class OwnTools(BenchTools):
    """Every Slurm is the one head."""

    head: Head

    def clusters(self, provider: Reachable) -> Any:
        assert provider.config["url"].startswith("http://10.1.9.")
        return self.head


class OwnRack(Rack):
    """Machines that run our scripts and fetch their files."""

    made_with = OwnTools

    def __init__(self, world: World, count: int) -> None:
        super().__init__(world, count)
        self.head = Head()
        self.behind: set[str] = set()
        assert isinstance(self.tools, OwnTools)
        self.tools.head = self.head
        world.do(lambda s: self._offer(s, OFFER))

    def _offer(self, session: Any, offer: dict[str, Any]) -> None:
        found = nodes.find_provider(session, "redfish")
        assert found is not None
        change = nodes.ProviderChange(config={"slurm": offer}, secrets=None)
        nodes.change_provider(session, found.id, change, None, lambda version: None)

    def _report(self, session: Any, row: Any) -> None:
        if row.purpose != "deploy":
            super()._report(session, row)
            return
        reporting.phone_home(session, row.id, {"instance_id": row.instance})
        query = text("SELECT p.scripts FROM boots b JOIN blueprints p ON p.id = b.blueprint_id WHERE b.id = :id")
        good = row.node_id not in self.broken
        said = tuple(
            Outcome(one, ok=good, exit_code=0 if good else 1, line=None, output="")
            for one in session.execute(query, {"id": row.id}).scalar_one()
        )
        report = Report(final=True, stages=dict.fromkeys(CLOUD_INIT_STAGES, ""), outcomes=said, checks=())
        reporting.take_report(session, row.id, row.id, report)

    def _speak(self) -> int:
        spoke = super()._speak()
        query = """
            SELECT b.id, b.node_id, p.version, p.files, s.role FROM boots b JOIN blueprints p ON p.id = b.blueprint_id
            JOIN allocations a ON a.id = b.allocation_id JOIN node_sets s ON s.id = a.node_set_id
            WHERE b.state = 'ready' AND b.applied_version < p.version"""
        for row in self.world.rows(query):
            if row.node_id not in self.behind:
                if row.role == "head":
                    self.head.take(row.files)
                self.world.do(lambda s, one=row: reporting.take_applied(s, one.id, one.version, ""))
                spoke += 1
        return spoke


@pytest.fixture
def rack(world: World) -> OwnRack:
    """Five bare machines, free, and nothing else that takes orders."""
    made = OwnRack(world, 5)
    only_bare(world)
    made.settle()
    return made


def wanted(world: World, workers: int = 2, **changes: Any) -> clusters.Order:
    """An order for a Slurm of one's own."""
    kind = world.keys.instance_type
    sets = (clusters.SetOrder("head", kind, 1, "head"), clusters.SetOrder("workers", kind, workers))
    given: dict[str, Any] = {"sets": sets, "login": clusters.Login((KEY,)), "slurm": clusters.Options(), "wait": True, **changes}
    return clusters.Order("own", given.pop("kind", "slurm"), world.keys.site, **given)


def order(world: World, wish: clusters.Order, sealer: Sealer | None = SEALER) -> str:
    """The id of the cluster just ordered."""
    view, _ = world.do(lambda s: clusters.order_cluster(s, world.tenant, world.keys.project_id, wish, sealer))
    return str(view.row.id)


def resize(world: World, cluster_id: str, workers: int) -> None:
    """The cluster is to have so many workers."""
    at = (world.tenant, world.keys.project_id, cluster_id, lambda version: None)
    world.do(lambda s: scaling.change_cluster(s, *at, counts={"workers": workers}))


def members(world: World, role: str) -> list[str]:
    """The machines' own names, of those in use."""
    query = """
        SELECT replace(a.instance_id, '_', '-') AS name FROM allocations a JOIN node_sets s ON s.id = a.node_set_id
        WHERE a.state = 'active' AND s.role = :role ORDER BY a.id"""
    return [row.name for row in world.rows(query, role=role)]


def test_an_order_becomes_a_cluster_with_keys_of_its_own(world: World, rack: OwnRack) -> None:
    """A head and its workers boot by role; files name exactly them; no key is readable; all three are billed; jobs have a home."""
    cluster_id = order(world, wanted(world))
    rack.settle()
    assert world.rows("SELECT state, provider_user FROM clusters") == [("running", "tenant")]
    assert sorted(rack.head.names()) == sorted(members(world, "worker"))
    assert f"SlurmctldHost={members(world, 'head')[0]}" in rack.head.files["/etc/slurm/slurm.conf"]
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(3,)]
    scripts = world.rows("SELECT DISTINCT scripts[2] AS one FROM blueprints WHERE cluster_id = :id ORDER BY 1", id=cluster_id)
    assert [row.one for row in scripts] == ["start-head", "start-worker"]
    paths = {one["path"] for row in world.rows("SELECT files FROM blueprints") for one in row.files}
    assert "/etc/slurm/slurm.conf" in paths
    assert not [one for one in paths if one.endswith(".key")]
    home = world.do(lambda s: clusters.homes(s, [cluster_id]))[cluster_id]
    hosts = sorted(members(world, "worker") + members(world, "head"))
    assert (home.nodes, sorted(home.instances), home.provider.adapter) == (2, hosts, "slurm")
    assert all(bench.unsafe == [] for bench in rack.tools.benches.values())


def test_a_schedulers_own_provider_is_nobody_elses(world: World, rack: OwnRack) -> None:
    """No order is placed on it, no list shows it, no check asks it or calls it silent; it and its keys are forgotten with the cluster."""
    cluster_id = order(world, wanted(world))
    rack.settle()
    pools = world.do(lambda s: [one.id for one in nodes.read_pools(s, [world.keys.site])])
    (own,) = world.rows("SELECT id, sealed, state FROM providers WHERE cluster_id = :id", id=cluster_id)
    assert own.id not in pools
    assert (own.state, own.sealed is None) == ("active", False)
    assert world.rows("SELECT checked_at FROM providers WHERE id = :id", id=own.id) == [(None,)]
    world.clock.advance(86_400)
    waiting = world.do(lambda s: activity.list_attention(s, "provider", PageAsk(200, None)).items)
    assert own.id not in {one.id for one in waiting}
    at = (world.tenant, world.keys.project_id, cluster_id, lambda version: None)
    world.do(lambda s: clusters.delete_cluster(s, *at))
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("deleted",)]
    assert world.rows("SELECT sealed, state FROM providers WHERE id = :id", id=own.id) == [(None, "deleted")]
    assert rack.states() == {"available": 5}
    assert world.do(lambda s: clusters.homes(s, [cluster_id]))[cluster_id].provider is None


def test_growing_tells_the_head_and_takes_nothing_away(world: World, rack: OwnRack) -> None:
    """The new worker boots, the head follows by the release's own commands, and is billed from when it is in."""
    cluster_id = order(world, wanted(world, 2))
    rack.settle()
    before = members(world, "worker")
    resize(world, cluster_id, 4)
    rack.settle()
    after = members(world, "worker")
    assert set(before) < set(after)
    assert len(after) == 4
    assert any("systemctl restart slurmctld" in one and "scontrol reconfigure" in one for one in rack.head.commands)
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(5,)]


def test_a_worker_leaves_only_when_nothing_runs_on_it(world: World, rack: OwnRack) -> None:
    """It is drained and stays named, held and billed while its job runs; then the head forgets it before its machine is taken."""
    cluster_id = order(world, wanted(world, 3))
    rack.settle()
    rack.head.busy = set(members(world, "worker"))
    resize(world, cluster_id, 2)
    rack.settle(120)
    (leaving,) = rack.head.files["/etc/slurm/leaving"].split()
    assert f"NodeName={leaving} " in rack.head.files["/etc/slurm/slurm.conf"]
    assert (world.rows("SELECT state FROM clusters")[0].state, len(members(world, "worker"))) == ("updating", 3)
    rack.head.busy = set()
    rack.settle()
    assert leaving not in rack.head.files["/etc/slurm/slurm.conf"] + rack.head.files["/etc/slurm/leaving"]
    assert (leaving in members(world, "worker"), len(members(world, "worker"))) == (False, 2)
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(3,)]


def test_nothing_is_taken_from_a_head_that_does_not_follow(world: World, rack: OwnRack) -> None:
    """While the head has not said that it holds its files, a worker that leaves is still the cluster's."""
    cluster_id = order(world, wanted(world, 3))
    rack.settle()
    (head,) = world.rows(
        "SELECT a.node_id FROM allocations a JOIN node_sets s ON s.id = a.node_set_id WHERE s.role = 'head' AND a.state = 'active'"
    )
    rack.behind = {head.node_id}
    resize(world, cluster_id, 2)
    rack.settle(120)
    (row,) = world.rows("SELECT state, reason FROM clusters")
    assert (row.state, row.reason) == ("updating", "1 of 3 hosts do not hold their files yet.")
    assert len(members(world, "worker")) == 3
    rack.behind = set()
    rack.settle()
    assert len(members(world, "worker")) == 2


def test_a_dead_worker_is_replaced_and_a_head_is_not(world: World, rack: OwnRack) -> None:
    """Another machine takes the dead one's place under a name of its own; the head, which knows the jobs, is refused."""
    cluster_id = order(world, wanted(world, 2))
    rack.settle()
    dead, well = members(world, "worker")
    rack.head.dead = {dead}
    at = (world.tenant, world.keys.project_id, cluster_id)
    with pytest.raises(NotChangeable, match="not replaced"):
        world.do(lambda s: replacing.replace_instance(s, *at, members(world, "head")[0].replace("-", "_"), lambda version: None))
    world.do(lambda s: replacing.replace_instance(s, *at, dead.replace("-", "_"), lambda version: None))
    rack.settle()
    after = members(world, "worker")
    assert (dead in after, well in after, len(after)) == (False, True, 2)
    assert dead not in rack.head.files["/etc/slurm/slurm.conf"]
    assert world.rows("SELECT state FROM clusters") == [("running",)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"sets": ("workers",)}, "head_missing"),
        ({"sets": ("head",)}, "roles_invalid"),
        ({"slurm": None, "login": None}, "role_not_taken"),
        ({"login": None}, "login_missing"),
        ({"kind": "baremetal"}, "slurm_not_taken"),
    ],
)
def test_an_order_says_what_is_wrong_with_its_parts(world: World, rack: OwnRack, changes: dict[str, Any], code: str) -> None:
    """A head, workers and keys are needed, and nowhere else taken."""
    del rack
    whole = wanted(world)
    if "sets" in changes:
        changes = {**changes, "sets": tuple(one for one in whole.sets if one.name in changes["sets"])}
    with pytest.raises(Invalid) as refused:
        order(world, wanted(world, **changes))
    assert code in {one.code for one in refused.value.errors}
    assert world.rows("SELECT count(*) FROM providers WHERE cluster_id IS NOT NULL") == [(0,)]


def test_what_nobody_offers_is_refused(world: World, rack: OwnRack) -> None:
    """Parts that no image has, and installations without a master key, are refused before anything is stored; so is a wrong offer."""
    with pytest.raises(NoCapacity, match="No provider"):
        order(world, wanted(world, slurm=clusters.Options(containers=True)))
    with pytest.raises(Unavailable):
        order(world, wanted(world), None)
    with pytest.raises(Invalid) as refused:
        world.do(lambda s: rack._offer(s, {**OFFER, "release": "19.05"}))
    assert [one.field for one in refused.value.errors] == ["body.config.slurm.release"]
    assert world.rows("SELECT count(*) FROM clusters") == [(0,)]


def test_only_workers_change_in_number(world: World, rack: OwnRack) -> None:
    """A head stays one head."""
    cluster_id = order(world, wanted(world))
    rack.settle()
    at = (world.tenant, world.keys.project_id, cluster_id, lambda version: None)
    with pytest.raises(Invalid, match="only workers"):
        world.do(lambda s: scaling.change_cluster(s, *at, counts={"head": 2}))
