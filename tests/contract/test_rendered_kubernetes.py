"""
Programs of a dedicated Kubernetes' control planes against a Kubernetes API, with the real kubectl: add-ons, and the list of workers.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.rendering.kubernetes.manifests import manifests
from controlplane.rendering.kubernetes.plan import Host, KubernetesPlan, Position, Worker
from controlplane.rendering.kubernetes.roles import control_plane_files
from tests.factories.kubernetes_plans import HGX, plain
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubectl, kubernetes_kit

pytestmark = UNTIDY
NODES = [f"gpu-{number:05d}" for number in range(4)]
MOST_RUNS = 3
SLOW = pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1")
MARK = "controlplane.internal/leaving"
HERE = ("/etc/controlplane", "/etc/kubernetes", "/usr/local/lib/controlplane")


class ControlPlane:
    """
    A folder that stands for a control plane's root, with kubectl and an administrator's kubeconfig.
    """

    def __init__(self, root: Path, kit: KubernetesKit) -> None:
        self.root, self.kit = root, kit
        (root / "etc/kubernetes").mkdir(parents=True)
        (root / "etc/kubernetes/admin.conf").write_text(kit.kubeconfig, encoding="utf-8")

    def run(self, plan: KubernetesPlan, program: str) -> subprocess.CompletedProcess[str]:
        """The program has run with the plan's files."""
        for file in control_plane_files(plan):
            path = self.root / file.path.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            text = file.content
            for folder in HERE:
                text = text.replace(folder, f"{self.root}{folder}")
            path.write_text(text, encoding="utf-8")
            path.chmod(file.mode)
        (self.root / "etc/controlplane/kubernetes/joined").touch()
        env = {**os.environ, "PATH": f"{self.root}/bin:{kubectl().parent}:{os.environ['PATH']}", "HOME": str(self.root)}
        command = [str(self.root / "usr/local/lib/controlplane" / program)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)

    def follow(self, plan: KubernetesPlan) -> None:
        """The list is true, by at most three runs of its program."""
        done = [self.run(plan, "follow-members")]
        while done[-1].returncode and len(done) < MOST_RUNS:
            done.append(self.run(plan, "follow-members"))
        assert done[-1].returncode == 0, done[-1].stderr

    def node(self, name: str) -> Any:
        """As the API shows it."""
        return self.kit.ask("GET", f"/api/v1/nodes/{name}")

    def names(self) -> list[str]:
        """Of all nodes."""
        return sorted(one["metadata"]["name"] for one in self.kit.ask("GET", "/api/v1/nodes")["items"])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane of a cluster with four workers."""
    with kubernetes_kit(nodes=4, kueue=False, more=("extensions",)) as kit:
        yield ControlPlane(tmp_path, kit)


def of(*workers: Worker) -> KubernetesPlan:
    """The plan with these workers."""
    return replace(plain(), workers=workers)


def worker(place: int, standing: str = "stays", position: Position = Position()) -> Worker:  # noqa: B008 - frozen
    """One of the four."""
    return Worker(NODES[place], f"10.20.0.{place + 11}", HGX.name, position, standing)  # type: ignore[arg-type]


def test_add_ons_are_applied_and_stay_as_they_are(host: ControlPlane) -> None:
    """Every object is there after the first run; the second changes none, and an owner's own label stays."""
    done = host.run(plain(), "apply-addons")
    assert done.returncode == 0, done.stderr
    objects = [one for each in manifests(plain()).values() for one in each]
    assert done.stdout.count("serverside-applied") == len(objects)
    where = "/apis/apps/v1/namespaces/controlplane-gpus/daemonsets/dcgm-exporter"
    before = host.kit.ask("PATCH", where, {"metadata": {"labels": {"owner": "mine"}}})
    assert host.run(plain(), "apply-addons").returncode == 0
    after = host.kit.ask("GET", where)
    assert after["metadata"]["labels"]["owner"] == "mine"
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    bindings = host.kit.ask("GET", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/controlplane-owners")
    assert [one["name"] for one in bindings["subjects"]] == ["controlplane:owners"]


def test_workers_are_as_the_list_says(host: ControlPlane) -> None:
    """Places are labels; who leaves is cordoned and emptied; who is gone has no Node; who is not named is left alone."""
    pod = {"containers": [{"name": "main", "image": "debian"}], "nodeName": NODES[1]}
    host.kit.ask("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": "work"}, "spec": pod}, "application/json")
    plan = of(
        worker(0, position=Position("b1", "l1", "r1")),
        worker(1, "leaves"),
        worker(2, "gone"),
        Worker("away", "10.20.0.99", HGX.name),
    )
    host.follow(plan)
    labels = host.node(NODES[0])["metadata"]["labels"]
    shown = {name.split("/")[1]: value for name, value in labels.items() if name.startswith("controlplane.internal/")}
    assert shown == {"block": "b1", "leaf": "l1", "rack": "r1"}
    leaving = host.node(NODES[1])
    assert leaving["spec"]["unschedulable"] is True
    assert leaving["metadata"]["annotations"][MARK] == "drained"
    assert not host.kit.ask("GET", "/api/v1/namespaces/default/pods")["items"]
    assert host.names() == [NODES[0], NODES[1], NODES[3]]
    assert "unschedulable" not in host.node(NODES[3])["spec"]


@pytest.mark.slow
@SLOW
def test_who_stays_after_all_is_let_in_again(host: ControlPlane) -> None:
    """Our cordon is lifted, an owner's is not; a place that is not known any more has no label."""
    host.kit.ask("PATCH", f"/api/v1/nodes/{NODES[1]}", {"spec": {"unschedulable": True}})
    host.kit.ask("PATCH", f"/api/v1/nodes/{NODES[0]}", {"metadata": {"labels": {"controlplane.internal/block": "b1"}}})
    host.follow(of(worker(0, "leaves"), worker(1)))
    assert host.node(NODES[0])["spec"]["unschedulable"] is True
    host.follow(of(worker(0, position=Position(leaf="l2")), worker(1)))
    back, owners = host.node(NODES[0]), host.node(NODES[1])
    assert not back["spec"].get("unschedulable")
    assert MARK not in back["metadata"].get("annotations", {})
    assert back["metadata"]["labels"].get("controlplane.internal/leaf") == "l2"
    assert "controlplane.internal/block" not in back["metadata"]["labels"]
    assert owners["spec"]["unschedulable"] is True


@pytest.mark.slow
@SLOW
def test_a_budget_is_respected_and_the_drain_goes_on_later(host: ControlPlane) -> None:
    """A pod that may not be evicted keeps its node cordoned and not drained; the run says that it is not done."""
    pod = {"containers": [{"name": "main", "image": "debian"}], "nodeName": NODES[0]}
    body = {"metadata": {"name": "kept", "labels": {"app": "kept"}}, "spec": pod}
    host.kit.ask("POST", "/api/v1/namespaces/default/pods", body, "application/json")
    budget = {"metadata": {"name": "kept"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}}
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    host.kit.ask("POST", budgets, budget, "application/json")
    done = host.run(of(worker(0, "leaves")), "follow-members")
    assert done.returncode == 1
    assert "disruption budget" in done.stderr
    assert host.node(NODES[0])["metadata"]["annotations"][MARK] == "asked"
    assert host.kit.ask("GET", "/api/v1/namespaces/default/pods")["items"]
    host.kit.ask("DELETE", f"{budgets}/kept")
    host.follow(of(worker(0, "leaves")))
    assert host.node(NODES[0])["metadata"]["annotations"][MARK] == "drained"


ETCD = """#!/bin/sh
# etcdctl inside of etcd's pod, which the API of this test does not run; all else is the real kubectl's.
case "$*" in
  *" exec "*"etcd-gpu-00000 -- etcdctl "*"member list") cat "$HOME/etcd" ;;
  *" exec "*"etcd-gpu-00000 -- etcdctl "*"member remove "*)
    [ ! -e "$HOME/refuses" ] || { echo "re-configuration failed due to not enough started members" >&2; exit 1; }
    sed -i "/^${*##* },/d" "$HOME/etcd" ;;
  *) exec KUBECTL "$@" ;;
esac
"""


def stand_in(host: ControlPlane, name: str, text: str) -> None:
    """The program is this one."""
    path = host.root / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="ascii")
    path.chmod(0o755)


def leading(*standings: str) -> KubernetesPlan:
    """Three control planes of the four nodes, which become this."""
    hosts = (Host(NODES[at], f"10.20.0.{at + 2}", what) for at, what in enumerate(standings))  # type: ignore[arg-type]
    return replace(plain(), control_planes=tuple(hosts), workers=())


def test_a_control_plane_leaves_etcd_before_its_node_goes(host: ControlPlane) -> None:
    """While etcd refuses nothing goes; then the member goes and the Node with it; one whose Node is gone already is not forgotten."""
    stand_in(host, "kubectl", ETCD.replace("KUBECTL", str(kubectl())))
    stand_in(host, "hostname", f"#!/bin/sh\necho {NODES[0]}\n")
    members = [
        f"{at}a, started, {name}, https://10.20.0.{at + 2}:2380, https://10.20.0.{at + 2}:2379, false\n"
        for at, name in enumerate(NODES[:3])
    ]
    (host.root / "etcd").write_text("".join(members), encoding="ascii")
    (host.root / "refuses").touch()
    done = host.run(leading("stays", "gone", "stays"), "follow-members")
    assert done.returncode == 1
    assert "not enough started members" in done.stderr
    assert (host.names(), (host.root / "etcd").read_text("ascii")) == (NODES, "".join(members))
    (host.root / "refuses").unlink()
    host.follow(leading("stays", "gone", "stays"))
    assert host.names() == [NODES[0], NODES[2], NODES[3]]
    assert (host.root / "etcd").read_text("ascii") == members[0] + members[2]
    host.kit.ask("DELETE", f"/api/v1/nodes/{NODES[2]}")
    host.follow(leading("stays", "stays", "gone"))
    assert (host.root / "etcd").read_text("ascii") == members[0]


def test_hosts_that_were_lost_while_they_joined_leave_nothing_behind(host: ControlPlane) -> None:
    """A member keeps another from joining, also one that never started, which bears no name; who has a lost one's address keeps its own."""
    stand_in(host, "kubectl", ETCD.replace("KUBECTL", str(kubectl())))
    stand_in(host, "hostname", f"#!/bin/sh\necho {NODES[0]}\n")
    own = f"1a, started, {NODES[0]}, https://10.20.0.2:2380, https://10.20.0.2:2379, false\n"
    joins = "2b, unstarted, , https://10.20.0.4:2380, , true\n"
    lost = f"3c, started, {NODES[3]}, https://10.20.0.8:2380, https://10.20.0.8:2379, false\n"
    never = "4d, unstarted, , https://10.20.0.9:2380, , true\n"
    (host.root / "etcd").write_text(f"{own}{joins}{lost}{never}", encoding="ascii")
    departed = (Host(NODES[3], "10.20.0.8"), Host("gpu-00008", "10.20.0.9"), Host("gpu-00009", "10.20.0.4"), Host(NODES[2], ""))
    plan = replace(leading("stays", "stays", "stays"), departed=departed[:3])
    host.follow(plan)
    assert (host.root / "etcd").read_text("ascii") == f"{own}{joins}"
    assert host.names() == NODES[:3]
    host.follow(replace(leading("stays", "stays"), control_planes=plan.control_planes[:1], departed=departed[3:]))
    assert host.names() == NODES[:2]


def test_a_control_plane_that_has_left_does_not_come_back_by_itself(host: ControlPlane) -> None:
    """It stops what would bring it back, and touches nothing else."""
    stand_in(host, "hostname", f"#!/bin/sh\necho {NODES[0]}\n")
    stand_in(host, "systemctl", '#!/bin/sh\necho "$*" >> "$HOME/asked"\n')
    assert host.run(leading("gone", "stays", "stays"), "follow-members").returncode == 0
    assert (host.root / "asked").read_text("ascii") == "disable --now --quiet kubelet.service follow-members.timer\n"
    assert host.names() == NODES


def test_an_api_that_does_not_answer_changes_nothing(host: ControlPlane) -> None:
    """The program says so and ends; the timer runs it again."""
    (host.root / "etc/kubernetes/admin.conf").write_text(
        host.kit.kubeconfig.replace(host.kit.handle.url, "http://127.0.0.1:9"), "utf-8"
    )
    done = host.run(of(worker(2, "gone")), "follow-members")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "the API does not answer"
    assert host.names() == NODES
