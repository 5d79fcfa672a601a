"""
What start scripts do, run by a real shell in a folder of their own, with stand-ins for the programs that an image brings.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from controlplane.rendering.kubernetes.files import Bundle
from controlplane.rendering.kubernetes.plan import KubernetesPlan
from controlplane.rendering.kubernetes.roles import control_plane_bundle, worker_bundle
from tests.factories.kubernetes_plans import HGX, keys, light, plain, three

STAND_IN = """#!/bin/sh
# Notes how it was called; answers for other control planes where the test says so, and fails as often as the test says.
name=${0##*/}
echo "$name $*" >> "$ROOT/calls"
case "$name $*" in
  hostname*) cat "$ROOT/name" ;;
  *--kubeconfig=/dev/null*) [ -e "$ROOT/peer" ] ;;
  "kubeadm init"*) cp "$3" "$ROOT/given"; rm "$ROOT/fails" 2>/dev/null && exit 1; exit 0 ;;
  "kubeadm join"*)
    case "$* $(cat "$ROOT/etc/kubernetes/kubelet.conf" 2>/dev/null)" in
      *--skip-phases=kubelet-start*) ;;
      *ready) echo "a Node with this name and status Ready already exists" >&2; exit 1 ;;
    esac
    rm "$ROOT/fails" 2>/dev/null && exit 1; exit 0 ;;
  sleep*) [ ! -e "$ROOT/meanwhile" ] || . "$ROOT/meanwhile" ;;
  "systemctl is-active"*) [ ! -e "$ROOT/dead" ] ;;
  journalctl*) cat "$ROOT/dead" ;;
esac
"""
PROGRAMS = ("kubeadm", "kubelet", "kubectl", "k3s", "helm", "containerd", "hostname")
SYSTEM = ("systemctl", "journalctl", "modprobe", "sysctl", "swapoff")


class Host:
    """
    A folder that stands for a host's root.
    """

    def __init__(self, root: Path, bundle: Bundle, name: str) -> None:
        self.root, self.bundle = root, bundle
        (root / "bin").mkdir()
        for program in (*PROGRAMS, *SYSTEM, "sleep"):
            (root / "bin" / program).write_text(STAND_IN, encoding="ascii")
            (root / "bin" / program).chmod(0o755)
        (root / "name").write_text(f"{name}\n", encoding="ascii")
        for file in bundle.files:
            self.path(file.path).parent.mkdir(parents=True, exist_ok=True)
            self.path(file.path).write_text(self.moved(file.content), encoding="utf-8")
            self.path(file.path).chmod(file.mode)

    def path(self, path: str) -> Path:
        """Where a file of the host is."""
        return self.root / path.lstrip("/")

    def moved(self, text: str) -> str:
        """The text with paths below the folder."""
        for folder in ("/etc/controlplane", "/etc/rancher", "/usr/local/lib/controlplane", "/etc/kubernetes/kubelet.conf"):
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def start(self, tries: int = 1) -> subprocess.CompletedProcess[str]:
        """The script has run."""
        (self.root / "calls").write_text("", encoding="ascii")
        env = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "ROOT": str(self.root), "TRIES": str(tries)}
        script = self.moved(self.bundle.script.content)
        return subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False, timeout=60)

    def calls(self, words: str) -> list[str]:
        """How a program was called, in order."""
        lines = (self.root / "calls").read_text("utf-8").replace(str(self.root), "").splitlines()
        return [line for line in lines if line.startswith(words)]


def control_plane(root: Path, plan: KubernetesPlan, name: str = "ins-c1") -> Host:
    """A control plane of this name."""
    return Host(root, control_plane_bundle(plan, keys()), name)


INIT = "kubeadm init --config /etc/controlplane/kubernetes/found.yaml"
JOIN = "kubeadm join --config /etc/controlplane/kubernetes/join-control-plane.yaml"


def test_the_founder_founds_the_cluster_once(tmp_path: Path) -> None:
    """With all four documents, which do not stay; the second start founds nothing and applies add-ons again."""
    host = control_plane(tmp_path, three())
    done = host.start()
    assert done.returncode == 0, done.stderr
    assert host.calls("kubeadm") == [INIT]
    given = [one["kind"] for one in yaml.safe_load_all((tmp_path / "given").read_text("utf-8"))]
    assert given == ["InitConfiguration", "ClusterConfiguration", "KubeletConfiguration", "KubeProxyConfiguration"]
    assert not host.path("/etc/controlplane/kubernetes/found.yaml").exists()
    assert host.calls("systemctl")[-1] == "systemctl enable --now --quiet follow-members.timer"
    assert len(host.calls("helm")) == 4
    assert host.start().returncode == 0
    assert not host.calls("kubeadm")
    assert len(host.calls("helm")) == 4


def test_whoever_does_not_found_waits_and_joins(tmp_path: Path) -> None:
    """While nobody answers it ends with words; then it joins, and never founds a second cluster."""
    host = control_plane(tmp_path, three(), "ins-c2")
    done = host.start()
    assert done.returncode == 1
    assert "another control plane of the cluster is not ready" in done.stderr
    assert not host.calls("kubeadm")
    (tmp_path / "peer").touch()
    assert host.start().returncode == 0
    assert host.calls("kubeadm") == [f"{JOIN} --ignore-preflight-errors=all"]


def test_a_founder_that_comes_back_empty_joins_what_is_there(tmp_path: Path) -> None:
    """Its disk was lost and the others still run: founding again would be a second cluster under the same name."""
    host = control_plane(tmp_path, three())
    (tmp_path / "peer").touch()
    assert host.start().returncode == 0
    assert host.calls("kubeadm") == [JOIN]


def test_who_waits_founds_when_it_has_to(tmp_path: Path) -> None:
    """The first one was lost and the list names this one by now: nobody waits for somebody who waits."""
    host = control_plane(tmp_path, three(), "ins-c2")
    founder = host.path("/etc/controlplane/kubernetes/founder")
    (tmp_path / "meanwhile").write_text(f"echo ins-c2 > {founder}\n", encoding="ascii")
    assert host.start(tries=3).returncode == 0
    assert host.calls("kubeadm") == [INIT]


@pytest.mark.parametrize("plan", [three(), replace(light(), control_planes=three().control_planes)])
def test_a_cluster_that_was_in_use_is_never_founded_again(tmp_path: Path, plan: KubernetesPlan) -> None:
    """An empty disk whose others do not answer just now waits for them and says so, whatever its name; a single one has no others."""
    host = control_plane(tmp_path, replace(plan, founded=True))
    done = host.start()
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "another control plane of the cluster is not ready")
    assert (host.calls("kubeadm"), host.calls("systemctl start")) == ([], [])
    alone = replace(plan, founded=True, control_planes=plan.control_planes[:1])
    (tmp_path / "alone").mkdir()
    assert control_plane(tmp_path / "alone", alone).start().returncode == 0


def test_who_has_begun_to_found_goes_on_with_it(tmp_path: Path) -> None:
    """Power was lost in the middle, and another one that joined answers by now: what comes last in founding is still to be done."""
    host = control_plane(tmp_path, three())
    (tmp_path / "fails").touch()
    assert host.start().returncode == 1
    (tmp_path / "peer").touch()
    assert host.start().returncode == 0
    assert host.calls("kubeadm") == [f"{INIT} --ignore-preflight-errors=all"]


@pytest.mark.parametrize("leads", [True, False])
def test_a_join_that_was_cut_off_behind_its_kubelet_goes_on(tmp_path: Path, *, leads: bool) -> None:
    """After a loss of power the kubelet has made the Node ready before the script is back, and kubeadm would start no other one."""
    worker = Host(tmp_path, worker_bundle(plain(), keys(), HGX.name), "ins-w1") if not leads else None
    host = worker or control_plane(tmp_path, three(), "ins-c2")
    (tmp_path / "peer").touch()
    (tmp_path / "fails").touch()
    kubelet = host.path("/etc/kubernetes/kubelet.conf")
    kubelet.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "meanwhile").write_text(f"echo ready > {kubelet}\n", encoding="ascii")
    assert host.start(tries=30).returncode == 0
    first, second = host.calls("kubeadm")
    assert second == f"{first} --ignore-preflight-errors=all --skip-phases=kubelet-start"


def test_a_start_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """What is there already is no reason to refuse."""
    host = control_plane(tmp_path, plain())
    (tmp_path / "fails").touch()
    assert host.start().returncode == 1
    assert host.start().returncode == 0
    assert host.calls("kubeadm") == [f"{INIT} --ignore-preflight-errors=all"]


def test_a_worker_asks_until_it_is_taken(tmp_path: Path) -> None:
    """The first answer is no, as while the control plane boots; once it has joined it joins no more."""
    host = Host(tmp_path, worker_bundle(plain(), keys(), HGX.name), "ins-w1")
    (tmp_path / "fails").touch()
    assert host.start(tries=30).returncode == 0
    join = "kubeadm join --config /etc/controlplane/kubernetes/join.yaml"
    assert host.calls("kubeadm") == [join, f"{join} --ignore-preflight-errors=all"]
    assert host.start().returncode == 0
    assert not host.calls("kubeadm")


@pytest.mark.parametrize(
    ("name", "peer", "role"),
    [
        ("ins-c1", False, "cluster-init: true\n"),
        ("ins-c1", True, "server: https://api.clu-01k5x7p3r8w2v6t9q4n0m1c2d5.internal:6443\n"),
        ("ins-c2", True, "server: https://api.clu-01k5x7p3r8w2v6t9q4n0m1c2d5.internal:6443\n"),
    ],
)
def test_a_k3s_server_founds_or_joins(tmp_path: Path, name: str, role: str, *, peer: bool) -> None:
    """As it is written once; the same bytes are laid down on all servers."""
    several = three().control_planes
    host = control_plane(tmp_path, replace(light(), control_planes=several), name)
    if peer:
        (tmp_path / "peer").touch()
    done = host.start()
    assert done.returncode == 0, done.stderr
    assert host.path("/etc/rancher/k3s/config.yaml.d/10-role.yaml").read_text("utf-8") == role
    assert "systemctl start --no-block k3s.service" in host.calls("systemctl")


def test_a_k3s_agent_is_started_and_remembers_it(tmp_path: Path) -> None:
    """None of its files stands where it keeps that it has joined: the folder is made."""
    host = Host(tmp_path, worker_bundle(light(), keys(), HGX.name), "ins-w1")
    done = host.start()
    assert done.returncode == 0, done.stderr
    assert "systemctl start --no-block k3s-agent.service" in host.calls("systemctl")
    assert host.path("/etc/controlplane/kubernetes/joined").exists()


def test_a_k3s_that_does_not_come_up_is_told_in_its_own_words(tmp_path: Path) -> None:
    """Where no kubelet can run, the script ends after its wait with what k3s said last, and the host has not joined."""
    host = Host(tmp_path, worker_bundle(light(), keys(), HGX.name), "ins-w1")
    (tmp_path / "dead").write_text("level=fatal msg='failed to find memory cgroup (v2)'\n", encoding="ascii")
    done = host.start()
    assert (done.returncode, done.stderr) == (
        1,
        "k3s-agent.service is not ready\nlevel=fatal msg='failed to find memory cgroup (v2)'\n",
    )
    assert not host.path("/etc/controlplane/kubernetes/joined").exists()


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    """A start script installs nothing."""
    host = control_plane(tmp_path, plain())
    (tmp_path / "bin" / "kubeadm").unlink()
    done = host.start()
    assert done.returncode == 1
    assert done.stderr == "kubeadm is not installed\n"


def test_helm_is_needed_where_charts_are_offered(tmp_path: Path) -> None:
    """And said before anything is founded that would then lack them."""
    host = control_plane(tmp_path, three())
    (tmp_path / "bin" / "helm").unlink()
    done = host.start()
    assert (done.returncode, done.stderr) == (1, "helm is not installed\n")
    assert not host.calls("kubeadm")
