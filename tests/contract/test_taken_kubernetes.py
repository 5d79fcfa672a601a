"""
A whole Kubernetes that stood before it was ours, as the adapter sees it: found, taken over by marks, held, grown, shrunk, let go; and the
ways into it that its own authority signs.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter, build
from controlplane.providers.adoption import Adoption
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import Busy, NotFound, ProviderError, Refused, Unknown, Unsupported
from controlplane.providers.registry import AdapterInput
from tests.factories.kubernetes_plans import keys
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubeconfig, kubectl, kubernetes_kit
from tests.own_kit import administrators, join, stand, uuid_of

pytestmark = UNTIDY
CLUSTER, TENANT = "clu_took", "ten_one"
MARK = "/api/v1/namespaces/kube-system/configmaps/controlplane-cluster"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/controlplane-owners"
OURS = "controlplane.internal/"


@dataclass
class Theirs:
    """
    Somebody's cluster of one control plane and two workers, and our way in by an administrator's kubeconfig.
    """

    kit: KubernetesKit
    names: list[str]
    way: str
    adapter: KubernetesAdapter
    open: Callable[..., KubernetesAdapter]

    def spec(self, *, without: str = "", more: str = "", cluster_id: str = CLUSTER) -> ClusterSpec:
        """All of its nodes as members, but for one, or with one more."""
        sets = {name: "control-planes" if number == 0 else "workers" for number, name in enumerate(self.names)}
        sets |= {more: "workers"} if more else {}
        members = tuple(
            Member(name, 8, f"alc_{number}", of, "hgx-h100-8", leads=of == "control-planes")
            for number, (name, of) in enumerate(sets.items())
            if name != without
        )
        return ClusterSpec(cluster_id, TENANT, "prj_1", "", members)

    def adopt(self, cluster_id: str = CLUSTER) -> None:
        """It is taken over as it was seen."""
        (seen,) = self.open("fresh").list_standing() or (None,)
        self.adapter.adopt_cluster(Adoption("research", seen.uid if seen else self.uid(), self.spec(cluster_id=cluster_id)))

    def uid(self) -> str:
        """What it is told by."""
        return str(self.kit.ask("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"])

    def traces(self) -> list[str]:
        """Everything of ours that is in it."""
        nodes = [one["metadata"] for one in self.kit.ask("GET", "/api/v1/nodes")["items"]]
        found = [one["name"] for one in nodes if OURS in json.dumps([one.get("labels"), one.get("annotations")])]
        found += [path for path in (MARK, BINDING) if self.there(path)]
        found += [one["metadata"]["name"] for path in (SECRETS, REQUESTS) for one in self.kit.ask("GET", path)["items"]]
        return found

    def there(self, path: str) -> bool:
        """Whether the object is there."""
        return any(True for one in self.kit.ask("GET", path.rsplit("/", 1)[0])["items"] if path.endswith(one["metadata"]["name"]))


def scene(kit: KubernetesKit, folder: Path, *, k3s: bool = False) -> Iterator[Theirs]:
    """The cluster behind a door of its own authority."""
    names = stand(kit, keys().cluster, k3s=k3s)
    with administrators(kit, keys().cluster, folder) as way:
        made: list[KubernetesAdapter] = []

        def opened(deployment: str = "cp", **config: Any) -> KubernetesAdapter:
            given = {"machines_of": "prv_" + "0" * 26, **config}
            made.append(build(AdapterInput("prv_took", given, {"kubeconfig": way}, deployment, lambda: datetime.now(UTC))))
            return made[-1]

        yield Theirs(kit, names, way, opened(), opened)
        for one in made:
            one.close()


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """An API with three nodes."""
    with kubernetes_kit(nodes=3, kueue=False) as made:
        yield made


@pytest.fixture
def theirs(kit: KubernetesKit, tmp_path: Path) -> Iterator[Theirs]:
    """Set up by kubeadm."""
    yield from scene(kit, tmp_path)


def states(theirs: Theirs) -> dict[str, tuple[str, int | None]]:
    """What each node is seen as."""
    return {one.ref: (one.state, one.gpus) for one in theirs.adapter.observe_cluster(CLUSTER).members}


def test_it_is_seen_with_its_machines_and_nothing_is_written(theirs: Theirs) -> None:
    """Roles, firmware's names, addresses, GPUs of workers, who set it up; orders are not taken, its machines are not listed twice."""
    before = len(theirs.kit.asked())
    (seen,) = theirs.adapter.list_standing()
    assert (seen.ref, seen.product, seen.version, seen.distribution) == ("research", "own_kubernetes", "1.36.2", "kubeadm")
    assert seen.uid == theirs.uid()
    assert seen.obstacles == ()
    hosts = [(one.ref, one.node_set, one.leads, one.uuid, one.address, one.gpus) for one in seen.hosts]
    lead, *workers = theirs.names
    assert hosts[0] == (lead, "control-planes", True, uuid_of(1), "10.1.9.1", None)
    assert hosts[1:] == [(name, "workers", False, uuid_of(at), f"10.1.9.{at}", 8) for at, name in enumerate(workers, 2)]
    assert {method for method, _ in theirs.kit.asked()[before:]} == {"GET"}
    told = theirs.adapter.capabilities()
    assert (told.products, told.adopts) == ((), ("own_kubernetes",))
    with pytest.raises(Unsupported):
        theirs.adapter.list_machines()
    with pytest.raises(NotFound):
        theirs.adapter.observe_cluster(CLUSTER)
    assert theirs.adapter.list_clusters().cluster_ids == ()


def test_taken_over_by_marks_and_let_go_as_it_was(theirs: Theirs) -> None:
    """Twice is once; nobody else takes it; work of ours has a home; then no trace is left, and an owner's cordon stays."""
    before = theirs.kit.ask("GET", "/api/v1/nodes")["items"]
    theirs.adopt()
    theirs.adapter.adopt_cluster(Adoption("research", theirs.uid(), theirs.spec()))
    assert states(theirs) == {theirs.names[0]: ("up", 0), theirs.names[1]: ("up", 8), theirs.names[2]: ("up", 8)}
    assert theirs.adapter.list_clusters().cluster_ids == (CLUSTER,)
    assert theirs.adapter.list_standing() == ()
    (seen,) = theirs.open("other").list_standing()
    assert {one.code for one in seen.obstacles} >= {"other_installation", "node_marked"}
    for other in (theirs.open("other"), theirs.adapter):
        with pytest.raises(Refused):
            other.adopt_cluster(Adoption("research", theirs.uid(), theirs.spec(cluster_id="clu_second")))
    assert "image" in theirs.adapter.capabilities().job_features
    theirs.kit.ask("PATCH", f"/api/v1/nodes/{theirs.names[1]}", {"spec": {"unschedulable": True}})
    theirs.adapter.let_go("clu_second")
    assert theirs.adapter.list_clusters().cluster_ids == (CLUSTER,), "another's marks are left alone"
    theirs.adapter.open_door(CLUSTER, lasts_s=600)
    for _ in range(2):
        theirs.adapter.let_go(CLUSTER)
    assert theirs.traces() == []
    after = {one["metadata"]["name"]: one for one in theirs.kit.ask("GET", "/api/v1/nodes")["items"]}
    assert after[theirs.names[1]]["spec"].pop("unschedulable") is True
    assert [one["metadata"]["labels"] for one in before] == [one["metadata"]["labels"] for one in after.values()]
    with pytest.raises(NotFound):
        theirs.adapter.observe_cluster(CLUSTER)
    assert len(theirs.adapter.list_standing()) == 1


def test_whatever_is_lost_of_a_takeover_it_is_whole_or_none(theirs: Theirs) -> None:
    """Each changing request is lost before it is carried out, or its answer after it: asked again it is whole, let go it is none."""
    for fault in ("cut", "cutAfter"):
        for number in range(1, 6):
            theirs.kit.handle.post("/_emu/faults", [{"method": "POST", "path": "/configmaps", "times": number == 1, fault: True}])
            if number > 1:
                rule = {"method": "PATCH", "path": "/nodes" if number < 5 else "/clusterrolebindings", "times": 1, fault: True}
                theirs.kit.handle.post("/_emu/faults", [rule])
            with pytest.raises(Unknown):
                theirs.adopt()
            theirs.kit.handle.post("/_emu/faults", [])
            if number % 2:
                theirs.adapter.adopt_cluster(Adoption("research", theirs.uid(), theirs.spec()))
                assert {state for state, _ in states(theirs).values()} == {"up"}
            theirs.adapter.let_go(CLUSTER)
            assert theirs.traces() == [], (fault, number)


def test_what_changed_since_it_was_seen_is_refused_and_nothing_written(theirs: Theirs) -> None:
    """Another cluster, another node, a node that is not ready."""
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: theirs.adapter.adopt_cluster(Adoption("research", "other", theirs.spec())), "provider_cluster_changed"),
        (lambda: theirs.adapter.adopt_cluster(Adoption("research", theirs.uid(), theirs.spec(without=theirs.names[2]))), "changed"),
    ]
    for act, code in cases:
        with pytest.raises(Refused) as refused:
            act()
        assert code in refused.value.code
    down = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
    theirs.kit.ask("PATCH", f"/api/v1/nodes/{theirs.names[2]}/status", {"status": {"conditions": [down]}})
    with pytest.raises(Refused) as refused:
        theirs.adopt()
    assert refused.value.code == "provider_not_settled"
    assert theirs.traces() == []


def test_a_kubeconfig_is_signed_by_the_cluster_itself(theirs: Theirs, tmp_path: Path) -> None:
    """The real kubectl comes in with it; for its tenant and time only; the request does not stay, whatever goes wrong."""
    theirs.adopt()
    made = theirs.adapter.issue_kubeconfig(CLUSTER, TENANT, lifetime_s=900)
    told = yaml.safe_load(made.text)
    certificate = x509.load_pem_x509_certificate(base64.b64decode(told["users"][0]["user"]["client-certificate-data"]))
    assert [one.value for one in certificate.subject] == ["controlplane:owners", TENANT]
    assert made.expires_at == certificate.not_valid_after_utc
    assert abs((made.expires_at - datetime.now(UTC)).total_seconds() - 900) < 60
    file = tmp_path / "kubeconfig"
    file.write_text(made.text, encoding="utf-8")
    line = [str(kubectl()), f"--kubeconfig={file}", "get", "nodes", "-o", "name"]
    done = subprocess.run(line, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [f"node/{name}" for name in theirs.names], done.stderr
    bound = theirs.kit.ask("GET", BINDING)
    assert (bound["roleRef"]["name"], bound["subjects"][0]["name"]) == ("cluster-admin", "controlplane:owners")
    for tenant_id, seconds in (("ten_two", 900), (TENANT, 86_400)):
        with pytest.raises(Refused):
            theirs.adapter.issue_kubeconfig(CLUSTER, tenant_id, lifetime_s=seconds)
    for fault in (
        {"method": "PATCH", "path": "/approval", "times": 1, "status": 500},
        {"path": "/approval", "times": 1, "cutAfter": True},
    ):
        theirs.kit.handle.post("/_emu/faults", [fault])
        with pytest.raises(ProviderError):
            theirs.adapter.issue_kubeconfig(CLUSTER, TENANT, lifetime_s=900)
    theirs.kit.handle.post("/_emu/faults", [])
    assert theirs.kit.ask("GET", REQUESTS)["items"] == []


def test_a_door_is_open_for_a_while_and_closed(theirs: Theirs) -> None:
    """A bootstrap token that ends, for the group that kubeadm's kubelets are approved by; the server and pin that the cluster tells."""
    theirs.adopt()
    door = theirs.adapter.open_door(CLUSTER, lasts_s=3600)
    assert (door.distribution, door.version, door.server) == ("kubeadm", "1.36.2", "10.1.9.1:6443")
    assert f"sha256:{door.authority}" == keys().cluster.pin
    (kept,) = theirs.kit.ask("GET", SECRETS)["items"]
    data = {key: base64.b64decode(value).decode() for key, value in kept["data"].items()}
    assert (kept["type"], kept["metadata"]["name"]) == ("bootstrap.kubernetes.io/token", f"bootstrap-token-{data['token-id']}")
    assert door.token == f"{data['token-id']}.{data['token-secret']}"
    assert data["auth-extra-groups"] == "system:bootstrappers:kubeadm:default-node-token"
    left = datetime.fromisoformat(data["expiration"]) - datetime.now(UTC)
    assert 3500 < left.total_seconds() <= 3600
    assert door.token not in repr(door)
    theirs.adapter.open_door(CLUSTER, lasts_s=3600)
    assert len(theirs.kit.ask("GET", SECRETS)["items"]) == 2, "hosts that are booting keep the first"
    foreign = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"}
    theirs.kit.ask("POST", SECRETS, {"apiVersion": "v1", "kind": "Secret", **foreign}, "application/json")
    for _ in range(2):
        theirs.adapter.close_door(CLUSTER)
    assert [one["metadata"]["name"] for one in theirs.kit.ask("GET", SECRETS)["items"]] == ["bootstrap-token-abcdef"]


def test_k3s_is_known_and_lets_agents_in(kit: KubernetesKit, tmp_path: Path) -> None:
    """By its version; the token names the authority as servers hand it out, and agents' group."""
    for theirs in scene(kit, tmp_path, k3s=True):
        (seen,) = theirs.adapter.list_standing()
        assert (seen.distribution, seen.version, seen.obstacles) == ("k3s", "1.36.2", ())
        theirs.adopt()
        door = theirs.open(join_server="10.1.9.1:6443").open_door(CLUSTER, lasts_s=600)
        assert (door.distribution, door.server) == ("k3s", "10.1.9.1:6443")
        assert door.authority == sha256(keys().cluster.certificate.encode()).hexdigest()
        (kept,) = kit.ask("GET", SECRETS)["items"]
        assert base64.b64decode(kept["data"]["auth-extra-groups"]) == b"system:bootstrappers:k3s:default-node-token"


def test_workers_come_and_leave_within_budgets(theirs: Theirs) -> None:
    """A new one is marked; one that leaves is emptied as budgets allow, then forgotten; a control plane never goes; a change is undone."""
    theirs.adopt()
    join(theirs.kit, "ins-new", 9)
    theirs.adapter.apply_cluster(theirs.spec(more="ins-new"))
    assert states(theirs)["ins-new"] == ("up", 8)
    gone = theirs.names[2]
    run(theirs.kit, gone)
    leaves = theirs.spec(without=gone, more="ins-new")
    with pytest.raises(Busy):
        theirs.adapter.apply_cluster(leaves)
    assert states(theirs)[gone][0] == "draining"
    theirs.adapter.undrain(CLUSTER, (gone,))
    assert (states(theirs)[gone][0], theirs.kit.ask("GET", f"/api/v1/nodes/{gone}")["spec"].get("unschedulable")) == ("up", None)
    theirs.kit.ask("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets/kept")
    for _ in range(40):
        try:
            theirs.adapter.apply_cluster(leaves)
            break
        except Busy:
            continue
    assert gone not in states(theirs)
    with pytest.raises(Refused) as refused:
        theirs.adapter.apply_cluster(theirs.spec(without=theirs.names[0]))
    assert refused.value.code == "provider_control_plane_stays"
    assert theirs.names[0] in states(theirs)


def run(kit: KubernetesKit, node: str) -> None:
    """A pod that a budget keeps, on the node."""
    spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
    meta = {"name": "work", "labels": {"app": "work"}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    kit.ask("POST", "/api/v1/namespaces/default/pods", pod, "application/json")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "work"}}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}, "spec": budget}
    kit.ask("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body, "application/json")


def test_jobs_run_in_it_as_in_any_of_its_tenants_own(theirs: Theirs) -> None:
    """Through the same ground; another tenant's work is refused, and after it was let go none is taken."""
    theirs.adopt()
    job = JobSpec("job_1-1", CLUSTER, TENANT, "", "#!/bin/sh\necho done\n", 1, 8, 1, 600)
    theirs.adapter.submit(job)
    assert theirs.adapter.find_job(CLUSTER, "job_1-1").phase in {"pending", "running", "succeeded"}
    space = theirs.kit.ask("GET", "/api/v1/namespaces/cp-clu-took")
    assert space["metadata"]["labels"]["controlplane.internal/cluster"] == CLUSTER
    with pytest.raises(Refused):
        theirs.adapter.submit(JobSpec("job_2-1", CLUSTER, "ten_two", "", "#!/bin/sh\n", 1, 8, 1, 600))
    theirs.adapter.let_go(CLUSTER)
    with pytest.raises(NotFound):
        theirs.adapter.submit(JobSpec("job_3-1", CLUSTER, TENANT, "", "#!/bin/sh\n", 1, 8, 1, 600))


def test_a_credential_that_is_no_administrators_takes_nothing() -> None:
    """It says so, and nothing is offered."""
    with kubernetes_kit(nodes=2, kueue=False, token="an-administrators-token") as kit:
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        kit.ask("POST", accounts, {"metadata": {"name": "plane"}}, "application/json")
        made = kit.ask("POST", f"{accounts}/plane/token", {"spec": {"expirationSeconds": 3600}}, "application/json")
        text = kubeconfig(kit.handle.url, {"token": made["status"]["token"]})
        given = {"machines_of": "prv_" + "0" * 26}
        adapter = build(AdapterInput("prv_took", given, {"kubeconfig": text}, "cp", lambda: datetime.now(UTC)))
        told = adapter.capabilities()
        assert (told.products, told.adopts) == ((), ())
        assert "administrator" in told.notes[0]
        adapter.close()
