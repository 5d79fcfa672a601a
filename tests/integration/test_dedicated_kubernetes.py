"""
Kubernetes clusters of one's own, as rows: what an order fixes, which files hosts get, who gets in, and what is left.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from cryptography import x509

from controlplane.clusters import issuing, planning, replacing, scaling
from controlplane.clusters import service as clusters
from controlplane.clusters.errors import QuorumAtRisk
from controlplane.clusters.states import KubernetesOptions
from controlplane.clusters.steps.letting_in import issue
from controlplane.kit.errors import Invalid, NoCapacity
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.providers.clusters import ClusterView, MemberView
from controlplane.providers.errors import Unknown
from controlplane.providers.toolbox import Reachable
from tests.factories.world import MASTER_KEY, World
from tests.integration.test_bare_nodes import KEY, only_bare
from tests.integration.test_dedicated_slurm import OwnRack, OwnTools, members

SEALER = Sealer.from_base64(MASTER_KEY)
MEMBERS, LEADS = "/etc/controlplane/kubernetes/members", "/etc/controlplane/kubernetes/control-planes"
OFFER = {
    "versions": {"kubeadm": "1.36.2", "k3s": "1.36.1"},
    "shapes": {"hgx-h100-8": {"gpus": 8, "gpu_model": "H100-SXM5-80GB"}},
}


class Api:
    """What the cluster's API would show: hosts whose scripts have run, as the list on the control planes has made them."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.joined: dict[str, str] = {}
        self.away = False
        self.busy: set[str] = set()
        self.unready: set[str] = set()

    def take(self, files: list[dict[str, Any]]) -> None:
        """A control plane has fetched these."""
        self.files = {one["path"]: one["content"] for one in files}

    def standing(self) -> dict[str, str]:
        """The list on the control planes: worker to what becomes of it."""
        return {line.split()[0]: line.split()[1] for line in self.files[MEMBERS].splitlines()}

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """All Nodes."""
        if self.away or not self.files:
            raise Unknown("connection refused")
        said = self.standing()
        there = {name: role for name, role in self.joined.items() if said.get(name) != "gone"}
        return ClusterView(cluster_id, tuple(self._member(name, role, said) for name, role in sorted(there.items())))

    def _member(self, name: str, role: str, said: dict[str, str]) -> MemberView:
        left = "draining" if name in self.busy else "drained"
        state: Any = "down" if name in self.unready else left if said.get(name) == "leaves" else "up"
        return MemberView(name, state, 0 if role == "control_plane" else 8)


class KubeTools(OwnTools):
    """Every Kubernetes is the one."""

    api: Api

    def clusters(self, provider: Reachable) -> Any:
        assert provider.config["url"].startswith("https://10.1.9.")
        return self.api


class KubeRack(OwnRack):
    """Machines whose control planes hold the list and whose kubelets join."""

    made_with = KubeTools

    def __init__(self, world: World, count: int) -> None:
        super().__init__(world, count)
        self.api = Api()
        assert isinstance(self.tools, KubeTools)
        self.tools.api = self.api
        world.do(lambda s: self.offer(s, OFFER))

    def offer(self, session: Any, offer: dict[str, Any]) -> None:
        """The operator sells such clusters."""
        found = nodes.find_provider(session, "redfish")
        assert found is not None
        change = nodes.ProviderChange(config={"kubernetes": offer}, secrets=None)
        nodes.change_provider(session, found.id, change, None, lambda version: None)

    def _speak(self) -> int:
        spoke = super()._speak()
        query = """
            SELECT replace(a.instance_id, '_', '-') AS name, s.role, p.files, b.applied_version FROM boots b
            JOIN blueprints p ON p.id = b.blueprint_id JOIN allocations a ON a.id = b.allocation_id
            JOIN node_sets s ON s.id = a.node_set_id WHERE b.state = 'ready' AND a.state = 'active'"""
        rows = self.world.rows(query)
        self.api.joined = {row.name: row.role for row in rows}
        for row in rows:
            if row.role == "control_plane":
                self.api.take(row.files)
        return spoke


@pytest.fixture
def rack(world: World) -> KubeRack:
    """Six bare machines, free, and nothing else that takes orders."""
    made = KubeRack(world, 6)
    only_bare(world)
    made.settle()
    return made


def wanted(world: World, workers: int = 2, leads: int = 1, **changes: Any) -> clusters.Order:
    """An order for a Kubernetes of one's own."""
    kind = world.keys.instance_type
    sets = (clusters.SetOrder("cp", kind, leads, "control_plane"), clusters.SetOrder("workers", kind, workers))
    given: dict[str, Any] = {
        "sets": sets,
        "login": clusters.Login((KEY,)),
        "kubernetes": KubernetesOptions(),
        "wait": True,
        **changes,
    }
    return clusters.Order("own", given.pop("kind", "kubernetes"), world.keys.site, **given)


def order(world: World, wish: clusters.Order) -> str:
    """The id of the cluster just ordered."""
    view, _ = world.do(lambda s: clusters.order_cluster(s, world.tenant, world.keys.project_id, wish, SEALER))
    return str(view.row.id)


def at(world: World, cluster_id: str) -> tuple[Any, str, str, Callable[[int], None]]:
    """Who asks, and for what."""
    return world.tenant, world.keys.project_id, cluster_id, lambda version: None


def test_an_order_becomes_a_cluster_when_its_own_api_says_so(world: World, rack: KubeRack) -> None:
    """Hosts boot by role, the list names the workers, one that is not ready keeps it from running; all are billed; no key is readable."""
    rack.api.away = True
    cluster_id = order(world, wanted(world))
    rack.settle(120)
    (row,) = world.rows("SELECT state, reason FROM clusters")
    assert row.state == "bootstrapping"
    assert "does not answer" in row.reason
    rack.api.away, rack.api.unready = False, set(members(world, "control_plane"))
    rack.settle(120)
    assert world.rows("SELECT state, reason FROM clusters") == [("verifying", "nodes_answer: 2 of 3")]
    rack.api.unready = set()
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert rack.api.standing() == dict.fromkeys(members(world, "worker"), "stays")
    assert rack.api.files[LEADS].split()[0] == members(world, "control_plane")[0]
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(3,)]
    scripts = world.rows("SELECT DISTINCT scripts[2] AS one FROM blueprints WHERE cluster_id = :id ORDER BY 1", id=cluster_id)
    assert [row.one for row in scripts] == ["start-control-plane", "start-worker"]
    files = [one for row in world.rows("SELECT files FROM blueprints") for one in row.files]
    assert not [one["path"] for one in files if "PRIVATE KEY" in one["content"]]
    assert world.rows("SELECT sealed IS NULL AS open FROM providers WHERE cluster_id = :id", id=cluster_id) == [(False,)]
    home = world.do(lambda s: clusters.homes(s, [cluster_id]))[cluster_id]
    assert (home.nodes, home.provider.adapter, home.sends_output) == (2, "kubernetes", False)
    gives_a_kubeconfig(world, rack, cluster_id)


def test_hosts_that_break_while_they_join_leave_nothing_behind(world: World, rack: KubeRack) -> None:
    """A control plane and a worker whose scripts fail are replaced, and who is in is told to forget what the two have begun."""
    order(world, wanted(world, workers=1, leads=3))
    query = "SELECT a.node_id, s.role, replace(a.instance_id, '_', '-') AS name FROM allocations a JOIN node_sets s ON s.id = a.node_set_id"
    while len(chosen := world.rows(query)) < 4:
        world.tick()
    broken = {row.role: row for row in chosen}
    rack.broken = {row.node_id for row in broken.values()}
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    own = sorted(members(world, "control_plane"))
    lost = broken["control_plane"].name, broken["worker"].name
    assert set(lost) & {*own, *members(world, "worker")} == set()
    told = [line.split() for line in rack.api.files["/etc/controlplane/kubernetes/leads"].splitlines()]
    assert sorted((one[0], one[1], one[-1]) for one in told) == sorted(
        [*((one, "stays", "leads") for one in own), (lost[0], "gone", "leads"), (lost[1], "gone", "-")]
    )
    assert rack.api.files["/etc/controlplane/kubernetes/founder"] == f"{own[0]}\n"


def test_workers_come_and_leave_only_when_empty(world: World, rack: KubeRack) -> None:
    """A new one joins; one that leaves is emptied, forgotten by the API, and only then given back; a dead one is replaced."""
    cluster_id = order(world, wanted(world, 2))
    rack.settle()
    world.do(lambda s: scaling.change_cluster(s, *at(world, cluster_id), counts={"workers": 4}))
    rack.settle()
    assert (world.rows("SELECT state FROM clusters"), len(members(world, "worker"))) == ([("running",)], 4)
    rack.api.busy = set(members(world, "worker"))
    world.do(lambda s: scaling.change_cluster(s, *at(world, cluster_id), counts={"workers": 3}))
    rack.settle(120)
    (leaving,) = [name for name, what in rack.api.standing().items() if what == "leaves"]
    assert (world.rows("SELECT state FROM clusters")[0].state, len(members(world, "worker"))) == ("updating", 4)
    rack.api.busy = set()
    rack.settle()
    assert (world.rows("SELECT state FROM clusters"), leaving in members(world, "worker")) == ([("running",)], False)
    assert rack.api.standing()[leaving] == "gone"
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(4,)]
    replaces_the_dead(world, rack, cluster_id)


def replaces_the_dead(world: World, rack: KubeRack, cluster_id: str) -> None:
    """Another machine takes the place of a dead worker, by a name of its own; the only control plane is not replaced."""
    dead, *well = members(world, "worker")
    rack.api.unready = {dead}
    who, project, _, check = at(world, cluster_id)
    lead = members(world, "control_plane")[0].replace("-", "_")
    with pytest.raises(QuorumAtRisk, match="one of 1 control planes"):
        world.do(lambda s: replacing.replace_instance(s, who, project, cluster_id, lead, check))
    world.do(lambda s: replacing.replace_instance(s, who, project, cluster_id, dead.replace("-", "_"), check))
    rack.settle()
    after = members(world, "worker")
    assert (dead in after, set(well) < set(after), len(after)) == (False, True, 1 + len(well))
    assert world.rows("SELECT state FROM clusters") == [("running",)]


def test_a_deleted_cluster_leaves_nothing(world: World, rack: KubeRack) -> None:
    """Keys are gone, its API is nobody's, all machines are wiped and free."""
    cluster_id = order(world, wanted(world, 2, 3))
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("running",)]
    assert len(rack.api.files[LEADS].splitlines()) == 3
    world.do(lambda s: clusters.delete_cluster(s, *at(world, cluster_id)))
    rack.settle()
    assert world.rows("SELECT state FROM clusters") == [("deleted",)]
    assert world.rows("SELECT sealed, state FROM providers WHERE cluster_id = :id", id=cluster_id) == [(None, "deleted")]
    assert world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(0,)]
    assert rack.states() == {"available": 6}


def gives_a_kubeconfig(world: World, rack: KubeRack, cluster_id: str) -> None:
    """A certificate of the cluster's own authority, for the time asked, for the group of owners, at the control plane's address."""
    ask = world.do(lambda s: issuing.allow_kubeconfig(s, world.tenant, world.keys.project_id, cluster_id, 1800))
    made = issue(ask, rack.tools)
    told = yaml.safe_load(made.text)
    user, server = told["users"][0]["user"], told["clusters"][0]["cluster"]
    certificate = x509.load_pem_x509_certificate(_text(user["client-certificate-data"]))
    authority = x509.load_pem_x509_certificate(_text(server["certificate-authority-data"]))
    certificate.verify_directly_issued_by(authority)
    assert [one.value for one in certificate.subject][:1] == ["controlplane:owners"]
    assert certificate.not_valid_after_utc == made.expires_at
    assert (made.expires_at - world.clock()).total_seconds() == pytest.approx(1800, abs=2)
    assert server["server"].startswith("https://10.1.9.")
    assert server["tls-server-name"] == f"api.{cluster_id.replace('_', '-')}.internal"


def _text(told: str) -> bytes:
    return base64.b64decode(told)


def test_an_order_says_what_is_wrong_with_its_parts(world: World) -> None:
    """One, three or five control planes, workers and keys are needed, and nowhere else taken."""
    lead, workers = wanted(world).sets
    cases: list[tuple[dict[str, Any], str]] = [
        ({"sets": (workers,)}, "control_plane_missing"),
        ({"sets": (lead,)}, "roles_invalid"),
        ({"leads": 2}, "roles_invalid"),
        ({"kubernetes": None, "login": None}, "role_not_taken"),
        ({"login": None}, "login_missing"),
        ({"kind": "slurm"}, "kubernetes_not_taken"),
    ]
    for changes, code in cases:
        with pytest.raises(Invalid) as refused:
            order(world, wanted(world, **changes))
        assert code in {one.code for one in refused.value.errors}, changes
    assert world.rows("SELECT count(*) FROM providers WHERE cluster_id IS NOT NULL") == [(0,)]


def test_what_nobody_offers_is_refused(world: World, rack: KubeRack) -> None:
    """Another version is not sold, a dry run says the same, and a wrong offer is refused."""
    other = wanted(world, kubernetes=KubernetesOptions("k3s", "1.35.0"))
    with pytest.raises(NoCapacity, match=r"k3s 1\.35\.0"):
        order(world, other)
    dry = [lambda s, one=one: planning.plan(s, world.tenant, world.keys.project_id, one) for one in (other, wanted(world))]
    assert [world.do(one).placed for one in dry] == [False, True]
    with pytest.raises(Invalid) as refused:
        world.do(lambda s: rack.offer(s, {**OFFER, "versions": {"kubeadm": "1.9.0"}}))
    assert [one.field for one in refused.value.errors] == ["body.config.kubernetes.version"]
    assert world.rows("SELECT count(*) FROM clusters") == [(0,)]
