"""
Upgrades of a Kubernetes of one's own, and control planes that are replaced, as rows and files: who is told what and when, what the API must
show before anybody goes on, and what is refused.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.activity import service as activity
from controlplane.clusters import replacing, scaling, upgrading
from controlplane.clusters import service as clusters
from controlplane.clusters.errors import NotChangeable, QuorumAtRisk
from controlplane.clusters.schemas import cluster_out
from controlplane.clusters.states import KubernetesOptions
from controlplane.clusters.upgrade_schemas import upgrade_plan
from controlplane.kit.errors import Invalid, NoCapacity, OperationActive
from controlplane.nodes import service as nodes
from controlplane.providers.clusters import ClusterView, MemberView
from controlplane.rendering.kubernetes.laws import serves
from tests.factories.serving import serving
from tests.factories.world import World
from tests.integration.test_bare_nodes import only_bare
from tests.integration.test_dedicated_kubernetes import OFFER, Api, KubeRack, at, order, wanted
from tests.integration.test_dedicated_slurm import members
from tests.integration.test_slurm_upgrades import cluster_of, deployed, ends, operation

SLOW = pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1")
OURS = "/etc/controlplane/kubernetes"
HOW = {"versions": ["1.36.3", "1.37.0"], "fetch": "bring it", "install": "put it"}
UPGRADES = {**OFFER, "upgrades": {"kubeadm": HOW, "k3s": HOW}}


class Cluster(Api):
    """What the API shows of hosts that follow their version, as far as etcd and the skew policy let them."""

    def __init__(self, version: str, *, alone: bool = False) -> None:
        super().__init__()
        self.first, self.alone = version, alone  # alone: the kubelet of a server asks its own API server only
        self.kubelets: dict[str, str] = {}
        self.apis: dict[str, str] = {}
        self.stuck: set[str] = set()
        self.kept: set[str] = set()
        self.told: list[tuple[str, str]] = []
        self.most_out = 0

    def standing(self) -> dict[str, str]:
        """Both lists."""
        lines = [*self.files[f"{OURS}/members"].splitlines(), *self.files[f"{OURS}/leads"].splitlines()]
        return {line.split()[0]: line.split()[1] for line in lines}

    def follow(self, name: str, role: str, listed: str) -> None:
        """The host's program has run with the list."""
        joins_with = listed.splitlines()[-1].split()[1]
        if name not in self.kubelets and role == "control_plane" and joins_with != self.first:
            self.apis[name] = joins_with
        self.kubelets.setdefault(name, joins_with)
        told = next((line.split()[1:] for line in listed.splitlines() if line.split()[0] == name), None)
        if told is None or name in self.stuck:
            return
        version, part = told
        if role == "control_plane" and self.apis.get(name) != version:
            self.apis[name] = version
            self.told.append((name, "api"))
        if part == "all" and self.kubelets[name] != version:
            assert self.standing()[name] == "leaves", "a kubelet is exchanged on a host that was emptied"
            assert name not in self.busy
            self.kubelets[name] = version
            self.told.append((name, "kubelet"))

    def check(self) -> None:
        """No kubelet is newer than an API server that it may talk to; of control planes never two are out."""
        leads = [one for one, role in self.joined.items() if role == "control_plane"]
        for name, version in self.kubelets.items():
            if name in self.joined:
                asked = [name] if self.alone and name in leads else leads
                assert all(serves(self.apis.get(one, self.first), version) for one in asked), (name, version, self.apis)
        said = self.standing()
        assert sum(said.get(one) == "leaves" for one in leads) <= 1
        self.most_out = max(self.most_out, sum(said.get(one) == "leaves" for one in self.joined if one not in leads))

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """All Nodes, and the version of who answers."""
        seen = super().observe_cluster(cluster_id)
        kept = tuple(self._member(one, self.joined[one], self.standing()) for one in self.kept)
        members = (*(one for one in seen.members if one.ref not in self.kept), *kept)
        return ClusterView(cluster_id, members, version=min(self.apis.values(), default=""))

    def _member(self, name: str, role: str, said: dict[str, str]) -> MemberView:
        seen = super()._member(name, role, said)
        return MemberView(name, seen.state, seen.gpus, version=self.kubelets.get(name, ""), api_version=self.apis.get(name, ""))


class VersionRack(KubeRack):
    """Machines that follow their versions."""

    api: Cluster

    def __init__(self, world: World, count: int, distribution: str) -> None:
        super().__init__(world, count)
        self.api = Cluster(OFFER["versions"][distribution], alone=distribution == "k3s")
        self.tools.api = self.api  # type: ignore[attr-defined]
        world.do(lambda s: self.offer(s, UPGRADES))

    def _speak(self) -> int:
        spoke = super()._speak()
        query = """
            SELECT replace(a.instance_id, '_', '-') AS name, s.role, p.files FROM boots b
            JOIN blueprints p ON p.id = b.blueprint_id JOIN allocations a ON a.id = b.allocation_id
            JOIN node_sets s ON s.id = a.node_set_id WHERE b.state = 'ready' AND a.state = 'active'"""
        for row in self.world.rows(query):
            files = {one["path"]: one["content"] for one in row.files}
            self.api.follow(row.name, row.role, files[f"{OURS}/versions"])
        if self.api.files:
            self.api.check()
        return spoke


def racked(world: World, *, leads: int = 3, workers: int = 2, distribution: str = "kubeadm", machines: int = 6) -> VersionRack:
    """A cluster of one's own that runs."""
    made = VersionRack(world, machines, distribution)
    only_bare(world)
    made.settle()
    order(world, wanted(world, workers, leads, kubernetes=KubernetesOptions(distribution)))  # type: ignore[arg-type]
    made.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    return made


def upgrade(world: World, version: str | None = "1.37.0", **wish: Any) -> str:
    """The id of the operation that was just begun."""
    told = upgrading.Wish(version=version, **wish)
    return str(world.do(lambda s: upgrading.upgrade_workers(s, *at(world, cluster_of(world)), told))[1])


def replace(world: World, name: str) -> str:
    """The id of the operation that replaces the host."""
    who, project, cluster_id, check = at(world, cluster_of(world))
    instance = name.replace("-", "_")
    return str(world.do(lambda s: replacing.replace_instance(s, who, project, cluster_id, instance, check))[1])


def looked(rack: VersionRack) -> None:
    """The cluster was looked at, several times."""
    for _ in range(4):
        rack.world.clock.advance(31)
        rack.settle(20)


def shown(world: World) -> Any:
    """The cluster as its owner sees it."""
    return cluster_out(world.do(lambda s: clusters.get_cluster(s, world.tenant, world.keys.project_id, cluster_of(world))))


@pytest.mark.parametrize("distribution", ["kubeadm", pytest.param("k3s", marks=[pytest.mark.slow, SLOW])])
def test_control_planes_come_first_one_after_another_then_workers(world: World, distribution: str) -> None:
    """API servers before any kubelet, each host emptied before its kubelet, workers in batches; nobody is installed anew; all say it."""
    rack = racked(world, distribution=distribution)
    leads, workers = members(world, "control_plane"), members(world, "worker")
    says_what_it_would_do(world, distribution)
    at_once = {"kubeadm": 1, "k3s": 2}[distribution]
    begun = upgrade(world, at_once=at_once)
    assert ends(rack, begun).state == "succeeded"
    rack.settle(20)
    kubelets = [name for name, what in rack.api.told if what == "kubelet"]
    assert kubelets[:3] == sorted(leads)
    assert sorted(kubelets[3:]) == sorted(workers)
    if distribution == "kubeadm":
        assert rack.api.told[:3] == [(name, "api") for name in sorted(leads)]
    assert rack.api.most_out == at_once
    assert set(rack.api.kubelets.values()) == set(rack.api.apis.values()) == {"1.37.0"}
    assert set(rack.api.standing().values()) == {"stays"}
    assert set(deployed(world).values()) == {1}
    told = shown(world)
    assert (told.spec.kubernetes.version, told.spec.kubernetes.upgrading_to) == ("1.37.0", None)
    assert (told.status.upgrade.version, told.status.upgrade.upgraded) == ("1.37.0", 2)
    assert (told.status.state, told.status.reason) == ("running", "All 5 nodes answer.")
    assert rack.api.files[f"{OURS}/versions"] == "* 1.37.0 all\n"


def asked_over_http(world: World) -> None:
    """A dry run is answered with its parts and changes nothing; a refusal names the field."""
    path = f"/v1/projects/{world.keys.project_id}/clusters/{cluster_of(world)}/actions/upgrade"
    with serving(world.database) as served, served.client(world.keys.tenant_key) as client:
        dry = client.post(path, params={"dry_run": True}, json={"version": "1.36.2"}, headers={"If-Match": "*"})
        assert (dry.status_code, dry.json()["version"]) == (200, "1.36.2"), dry.text
        assert [one["hosts"] for one in dry.json()["parts"]] == ["API servers", "kubelets of control planes", "workers"]
        refused = client.post(path, json={"version": "1.37.0"}, headers={"If-Match": "*"})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "body.version")


def says_what_it_would_do(world: World, distribution: str) -> None:
    """As the route answers a dry run: the upgrade is begun, told, and taken back."""

    def plan(session: Any) -> Any:
        with session.begin_nested() as savepoint:
            wish = upgrading.Wish(version="1.37.0", at_once=2)
            view, _ = upgrading.upgrade_workers(session, *at(world, cluster_of(world)), wish)
            told = upgrade_plan(view)
            savepoint.rollback()
        return told

    told = world.do(plan)
    parts = [(one.hosts, one.count, one.at_once, one.emptied) for one in told.parts]
    leads = {
        "kubeadm": [("API servers", 3, 1, False), ("kubelets of control planes", 3, 1, True)],
        "k3s": [("control planes", 3, 1, True)],
    }
    assert parts == [*leads[distribution], ("workers", 2, 2, True)]
    assert (told.version, world.rows("SELECT state FROM clusters")) == ("1.37.0", [("running",)])


@pytest.mark.slow
@SLOW
def test_who_joins_later_gets_the_clusters_version_and_not_the_offers(world: World) -> None:
    """What is sold changes no cluster; after an upgrade new workers get the upgrade's, by the program of the operator."""
    rack = racked(world, leads=1, workers=1)
    later = {**UPGRADES, "versions": {"kubeadm": "1.37.0"}}
    world.do(lambda s: rack.offer(s, later))
    world.do(lambda s: scaling.change_cluster(s, *at(world, cluster_of(world)), counts={"workers": 2}))
    rack.settle()
    assert set(rack.api.kubelets.values()) == {"1.36.2"}
    assert ends(rack, upgrade(world, "1.36.3")).state == "succeeded"
    world.do(lambda s: scaling.change_cluster(s, *at(world, cluster_of(world)), counts={"workers": 3}))
    rack.settle()
    assert {one: rack.api.kubelets[one] for one in members(world, "worker")} == dict.fromkeys(members(world, "worker"), "1.36.3")
    assert "put it" in rack.api.files["/usr/local/lib/controlplane/follow-version"]


@pytest.mark.slow
@SLOW
def test_pods_that_a_budget_holds_are_never_cut_off(world: World) -> None:
    """The worker is waited for, then a person is asked; when the budget allows, the upgrade goes on. Stopping lets the worker in again."""
    rack = racked(world, leads=1, workers=1, machines=2)
    (busy,) = rack.api.busy = set(members(world, "worker"))
    begun = upgrade(world, drain_limit_s=600.0)
    rack.settle(200)
    assert world.rows("SELECT state, reason FROM clusters") == [
        ("upgrading", "Waits for pods on 1 of 1 hosts to leave, as disruption budgets allow.")
    ]
    seen = ends(rack, begun, 1000)
    assert (seen.state, seen.error["code"]) == ("needs_attention", "upgrade_pods_stay")
    assert rack.api.kubelets[busy] == "1.36.2"
    world.do(lambda s: activity.resolve_resource(s, cluster_of(world), "resume"))
    rack.settle(50)
    world.do(lambda s: activity.cancel_operation(s, world.tenant, begun))
    assert ends(rack, begun).state == "cancelled"
    rack.settle(20)
    assert rack.api.standing()[busy] == "stays"
    told = shown(world)
    assert (told.spec.kubernetes.version, told.spec.kubernetes.upgrading_to) == ("1.36.2", "1.37.0")
    unfinished(world, rack)
    rack.api.busy = set()
    assert ends(rack, upgrade(world)).state == "succeeded"
    assert rack.api.kubelets[busy] == "1.37.0"


def unfinished(world: World, rack: VersionRack) -> None:
    """Two versions are as many as there may be; the files go on telling who has which."""
    with pytest.raises(Invalid, match=r"the upgrade to 1\.37\.0 comes first"):
        upgrade(world, "1.36.3")
    (lead,) = members(world, "control_plane")
    assert rack.api.files[f"{OURS}/versions"] == f"{lead} 1.37.0 all\n* 1.36.2 all\n"


@pytest.mark.slow
@SLOW
def test_a_control_plane_that_does_not_say_its_version_stops_it(world: World) -> None:
    """The others are left alone; resumed, the same one is looked at again and the rest follows."""
    rack = racked(world)
    first, *others = sorted(members(world, "control_plane"))
    rack.api.stuck = {first}
    begun = upgrade(world)
    seen = ends(rack, begun, 2400)
    assert (seen.state, seen.error["code"]) == ("needs_attention", "upgrade_control_plane_failed")
    assert rack.api.told == []
    assert not set(others) & set(rack.api.apis)
    rack.api.stuck = set()
    world.do(lambda s: activity.resolve_resource(s, cluster_of(world), "resume"))
    assert ends(rack, begun).state == "succeeded"


@pytest.mark.slow
@SLOW
def test_no_control_plane_is_taken_out_while_another_is_not_ready(world: World) -> None:
    """With one of three down nothing is touched; with it back the upgrade goes on by itself."""
    rack = racked(world)
    rack.api.unready = {members(world, "control_plane")[2]}
    begun = upgrade(world)
    rack.settle(100)
    assert "none is taken out before they are" in world.rows("SELECT reason FROM clusters")[0].reason
    assert rack.api.told == []
    rack.api.unready = set()
    assert ends(rack, begun).state == "succeeded"


def test_what_kubernetes_refuses_is_refused(world: World) -> None:
    """A skipped minor, an older version, the same one, one that is not sold, words of another product, a second upgrade."""
    racked(world, leads=1, workers=1, machines=2)
    world.do(lambda s: s.execute(text('UPDATE clusters SET kubernetes = kubernetes || \'{"version": "1.35.4"}\'')))
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"version": "1.37.0"}, "kubernetes_upgrade_impossible", r"skips a minor release: 1\.36 comes first.*1\.36\.2, 1\.36\.3"),
        ({"version": "1.34.0"}, "kubernetes_upgrade_impossible", "older"),
        ({"version": "1.35.4"}, "kubernetes_upgrade_impossible", "has 1.35.4 already"),
        ({"version": "1.36.9"}, "version_not_offered", "does not offer"),
        ({"version": None}, "version_missing", r"1\.36\.2, 1\.36\.3, 1\.37\.0"),
        ({"release": "24.11"}, "not_taken", "not upgraded by release"),
        ({"node_sets": ("cp",), "version": "1.36.2"}, "unknown_node_set", "no workers"),
    ]
    for wish, code, words in cases:
        with pytest.raises(Invalid, match=words) as refused:
            upgrade(world, **wish)
        assert [one.code for one in refused.value.errors] == [code]
    asked_over_http(world)
    assert world.rows("SELECT state, upgrade FROM clusters") == [("running", None)]
    upgrade(world, "1.36.2")
    with pytest.raises(OperationActive):
        upgrade(world, "1.36.2")


@pytest.fixture
def five(world: World) -> VersionRack:
    """Three control planes, a worker, and two machines that are free."""
    return racked(world, workers=1)


def test_a_dead_control_plane_leaves_etcd_before_another_comes(world: World, five: VersionRack) -> None:
    """
    The first by name is dead: the API is asked at another, its Node goes, then a machine is chosen, joins, as nobody may found again, and
    is billed instead.
    """
    dead, *well = sorted(members(world, "control_plane"))
    five.api.unready = {dead}
    five.api.kept = {dead}
    begun = replace(world, dead)
    five.settle(100)
    assert world.rows("SELECT state, reason FROM clusters") == [("updating", "The control plane that leaves is taken out of etcd.")]
    assert (five.api.standing()[dead], five.api.files[f"{OURS}/founder"]) == ("gone", "-\n")
    assert world.rows("SELECT count(*) FROM allocations WHERE state <> 'ended'") == [(4,)]
    five.api.kept = set()
    assert ends(five, begun).state == "succeeded"
    after = sorted(members(world, "control_plane"))
    assert (dead in after, set(well) < set(after), len(after)) == (False, True, 3)
    five.settle()
    assert [line.split()[0] for line in five.api.files[f"{OURS}/control-planes"].splitlines()] == after
    assert world.rows("SELECT state, reason FROM clusters") == [("running", "All 4 nodes answer.")]
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(4,)]
    (used,) = world.rows("SELECT config->>'url' AS url FROM providers WHERE cluster_id = :id", id=cluster_of(world))
    addresses = dict(line.split() for line in five.api.files[f"{OURS}/control-planes"].splitlines())
    assert used.url == f"https://{addresses[well[0]]}:6443"


@pytest.mark.slow
@SLOW
def test_a_control_plane_is_not_replaced_at_the_price_of_the_quorum(world: World, five: VersionRack) -> None:
    """Another one is sick: refused; it is only not ready: the change fails with words and all stay; no machine free: refused."""
    first, second, _ = sorted(members(world, "control_plane"))
    query = "UPDATE nodes SET health = :health WHERE id = (SELECT node_id FROM allocations WHERE instance_id = :id)"
    other = {"id": second.replace("-", "_")}
    world.do(lambda s: s.execute(text(query), {"health": "drain", **other}))
    with pytest.raises(QuorumAtRisk, match="1 of the others are ready"):
        replace(world, first)
    world.do(lambda s: s.execute(text(query), {"health": "ok", **other}))
    five.api.unready = {second}
    begun = replace(world, first)
    seen = ends(five, begun)
    assert (seen.state, seen.error["code"]) == ("failed", "quorum_at_risk")
    five.api.unready, five.api.busy = set(), {first}
    looked(five)
    begun = replace(world, first)
    five.settle(60)
    assert five.api.standing()[first] == "leaves"
    five.api.unready = {second}
    assert ends(five, begun).state == "failed"
    five.api.unready, five.api.busy = set(), set()
    looked(five)
    assert set(five.api.standing().values()) == {"stays"}
    assert (world.rows("SELECT state FROM clusters"), len(members(world, "control_plane"))) == ([("running",)], 3)
    world.do(lambda s: scaling.change_cluster(s, *at(world, cluster_of(world)), counts={"workers": 3}))
    five.settle()
    with pytest.raises(NoCapacity, match="No other machine"):
        replace(world, first)


@pytest.mark.slow
@SLOW
def test_a_sick_control_plane_is_replaced_by_itself_or_told_of(world: World, five: VersionRack) -> None:
    """One of three: replaced like a worker, when its machine was sick for long enough. Two of three: shown in words, and left."""
    first, second, _ = members(world, "control_plane")

    def say(name: str, health: Any) -> None:
        """Its machine's own monitoring does."""
        query = text("SELECT node_id FROM allocations WHERE instance_id = :id")
        instance = {"id": name.replace("-", "_")}
        world.do(
            lambda s: nodes.report(s, [nodes.Report(s.execute(query, instance).scalar_one(), "bmc", "fan", health, "A word.")])
        )

    say(first, "drain")
    say(second, "drain")
    world.clock.advance(nodes.SETTLED_S + 1)
    assert world.do(replacing.replace_sick) == 0
    looked(five)
    assert "quorum_at_risk" in {one.code for one in shown(world).status.issues}
    say(second, "ok")
    assert world.do(replacing.replace_sick) == 1
    five.settle()
    assert first not in members(world, "control_plane")
    assert world.rows("SELECT state FROM clusters") == [("running",)]


@pytest.mark.slow
@SLOW
def test_an_upgrade_that_is_not_complete_comes_before_a_new_control_plane(world: World, five: VersionRack) -> None:
    """A control plane joins with what the cluster has; while it has two versions there is no such thing."""
    five.api.busy = set(members(world, "worker"))
    begun = upgrade(world)
    five.settle(300)
    world.do(lambda s: activity.cancel_operation(s, world.tenant, begun))
    assert ends(five, begun).state == "cancelled"
    with pytest.raises(NotChangeable, match="not complete"):
        replace(world, members(world, "control_plane")[0])
    assert operation(world, begun).state == "cancelled"
