"""
What Kubernetes and etcd refuse, as laws; and the program that brings a host to a version, run by a real shell with stand-ins for what it
calls.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from controlplane.rendering.kubernetes.checking import BadPlan, check_plan
from controlplane.rendering.kubernetes.files import Bundle
from controlplane.rendering.kubernetes.laws import may_part, quorum, same, serves, upgrade_refusal
from controlplane.rendering.kubernetes.members import member_files
from controlplane.rendering.kubernetes.offer import SETTING, offered_versions, read_offer
from controlplane.rendering.kubernetes.plan import Ahead, Host, KubernetesPlan, Programs
from controlplane.rendering.kubernetes.roles import control_plane_bundle, worker_bundle
from controlplane.rendering.kubernetes.settings import adapter_config
from tests.factories.kubernetes_plans import HGX, keys, light, plain, three

VERSIONS = some.builds("1.{}.{}".format, some.integers(30, 40), some.integers(0, 20))
STAND_IN = """#!/bin/sh
name=${0##*/}
case "$name $*" in
  "kubeadm version"*) echo "v$(cat "$ROOT/has-kubeadm")"; exit ;;
  "kubelet --version") echo "Kubernetes v$(cat "$ROOT/has-kubelet")"; exit ;;
  "k3s --version") echo "k3s version v$(cat "$ROOT/has-k3s")+k3s1 (0000)"; exit ;;
  hostname*) cat "$ROOT/name"; exit ;;
  *"get --raw /version"*) echo '{"gitVersion": "v'"$(cat "$ROOT/api")"'"}'; exit ;;
  *"get configmap kubeadm-config"*) echo "kubernetesVersion: v$(cat "$ROOT/agreed")"; exit ;;
esac
echo "$name $*" >> "$ROOT/calls"
case "$name $*" in
  "kubeadm upgrade apply"*) cat "$ROOT/has-kubeadm" > "$ROOT/api"; cat "$ROOT/api" > "$ROOT/agreed" ;;
  "kubeadm upgrade node") [ ! -e "$ROOT/api" ] || cat "$ROOT/has-kubeadm" > "$ROOT/api" ;;
  "systemctl restart --no-block k3s.service") cat "$ROOT/has-k3s" > "$ROOT/api" ;;
esac
"""
PUT = 'for one in $PROGRAMS; do echo "put $one $VERSION" >> "$ROOT/calls"; echo "$VERSION" > "$ROOT/has-$one"; done'
BY = Programs('echo "fetch $VERSION" >> "$ROOT/calls"', PUT)


class VersionHost:
    """A folder that stands for a host's root, which has joined with some version."""

    def __init__(self, root: Path, bundle: Bundle, name: str, version: str) -> None:
        self.root = root
        (root / "bin").mkdir()
        for program in ("kubeadm", "kubelet", "kubectl", "k3s", "systemctl", "hostname"):
            (root / "bin" / program).write_text(STAND_IN, encoding="ascii")
            (root / "bin" / program).chmod(0o755)
        for part in ("has-kubeadm", "has-kubelet", "has-k3s", "name", *(["api", "agreed"] if bundle.role != "worker" else [])):
            (root / part).write_text(f"{name if part == 'name' else version}\n", encoding="ascii")
        self.lay(bundle)
        self.path("/etc/controlplane/kubernetes/joined").touch()

    def path(self, path: str) -> Path:
        """Where a file of the host is."""
        return self.root / path.lstrip("/")

    def lay(self, bundle: Bundle) -> None:
        """The host has these files."""
        for file in bundle.files:
            self.path(file.path).parent.mkdir(parents=True, exist_ok=True)
            text = file.content.replace("/etc/controlplane", f"{self.root}/etc/controlplane")
            self.path(file.path).write_text(text, encoding="utf-8")
            self.path(file.path).chmod(file.mode)

    def run(self, *mode: str) -> subprocess.CompletedProcess[str]:
        """The program has run."""
        (self.root / "calls").write_text("", encoding="ascii")
        env = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "ROOT": str(self.root), "TRIES": "1"}
        program = str(self.path("/usr/local/lib/controlplane/follow-version"))
        return subprocess.run([program, *mode], env=env, capture_output=True, text=True, check=False, timeout=60)

    def did(self) -> list[str]:
        """What it called, without where it looked for rights."""
        return [line.split(" --", 1)[0] for line in (self.root / "calls").read_text("ascii").splitlines()]


def ahead(plan: KubernetesPlan, name: str, version: str, part: str = "all") -> KubernetesPlan:
    """The plan with one host ahead, and the operator's commands."""
    return replace(plan, programs=BY, ahead=(Ahead(name, version, part),))  # type: ignore[arg-type]


@given(VERSIONS, VERSIONS)
def test_an_upgrade_goes_up_by_one_minor_at_most_and_keeps_every_kubelet_served(old: str, new: str) -> None:
    """What is let through is later, and its API servers take the kubelets that are there; new kubelets and old API servers never meet."""
    minors = int(new.split(".")[1]) - int(old.split(".")[1])
    if upgrade_refusal(old, new) is None:
        assert minors in {0, 1}
        assert serves(new, old)
        assert serves(new, new)
        assert same(old, old)
        assert not same(old, new)
        assert upgrade_refusal(new, old) is not None
        assert serves(old, new) == (old.split(".")[1] == new.split(".")[1])
    else:
        patches = int(new.split(".")[2]) - int(old.split(".")[2])
        assert minors < 0 or minors > 1 or (minors == 0 and patches <= 0)


@given(some.sampled_from([1, 3, 5]), some.integers(0, 4))
def test_a_control_plane_leaves_only_where_no_moment_has_no_quorum(members: int, ready: int) -> None:
    """Before it leaves, when it has left, and when the one in its place was added and never starts; and it may wherever that is so."""
    ready = min(ready, members - 1)
    moments = [(members, ready), (members - 1, ready), (members, ready)]
    assert may_part(members, ready) == (members > 1 and all(up >= quorum(size) for size, up in moments))


def test_versions_that_cannot_be_are_refused_in_offers_and_plans() -> None:
    """A kubelet two minors ahead, a version that is none, commands that install nothing or hold what a shell must not see."""
    check_plan(ahead(plain(), "ins-c1", "1.35.0"))
    for version in ("1.36.0", "1.33.9", "1.35"):
        with pytest.raises(BadPlan):
            check_plan(ahead(plain(), "ins-c1", version))
    for programs in (Programs("", " "), Programs("\x00", "put")):
        with pytest.raises(BadPlan):
            check_plan(replace(plain(), programs=programs))
    shapes = {"hgx-h100-8": {"gpus": 8, "gpu_model": "H100"}}
    told = {"versions": {"kubeadm": "1.36.2"}, "shapes": shapes}
    offer = read_offer({SETTING: {**told, "upgrades": {"kubeadm": {"versions": ["1.37.0", "1.36.10"], "install": "put"}}}})
    assert offer is not None
    assert offered_versions(offer, "kubeadm") == ("1.36.2", "1.36.10", "1.37.0")
    assert offered_versions(offer, "k3s") == ()
    with pytest.raises(BadPlan):
        read_offer({SETTING: {**told, "upgrades": {"kubeadm": {"versions": ["1.99.0"], "install": "put"}}}})


def test_between_two_control_planes_there_is_one_fewer_or_one_more() -> None:
    """One of three may be gone, alone or with another in its place; the API is asked at one that stays; who is gone has no address."""
    first, second, third = three().control_planes
    gone, fresh = replace(first, standing="gone"), Host("ins-c4", "10.20.0.9")
    for leads in ((gone, second, third), (gone, second, third, fresh)):
        plan = replace(three(), control_planes=leads)
        check_plan(plan)
        assert gone.address not in adapter_config(plan, "clu_one", "ten_one")["url"]
        hosts = control_plane_bundle(plan, keys()).file("/etc/hosts").content
        assert (gone.address in hosts, second.address in hosts) == (False, True)
    leaving = replace(three(), control_planes=(replace(first, standing="leaves"), second, third))
    assert second.address in adapter_config(leaving, "clu_one", "ten_one")["url"]
    for wrong in ((second, third), (first, second, third, fresh)):
        with pytest.raises(BadPlan):
            check_plan(replace(three(), control_planes=wrong))
    lost = (Host("ins-c9", "10.20.0.3"), Host("ins-w9", ""))
    plan = replace(three(), control_planes=(gone, second, third), departed=lost)
    check_plan(plan)
    listed = next(one for one in member_files(plan) if one.path.endswith("/leads")).content.splitlines()
    assert [one for one in listed if " gone " in one] == [
        "ins-c1 gone 10.20.0.2 - - - leads",
        "ins-c9 gone 10.20.0.3 - - - leads",
        "ins-w9 gone - - - -",
    ]


@pytest.mark.parametrize(("agreed", "verb"), [("1.36.2", "kubeadm upgrade apply v1.37.0"), ("1.37.0", "kubeadm upgrade node")])
def test_a_control_planes_api_server_comes_before_its_kubelet(tmp_path: Path, agreed: str, verb: str) -> None:
    """The first applies, others follow; what its own API server says is noted on its Node; the kubelet is exchanged when told, and once."""
    plan = ahead(three(), "ins-c1", "1.37.0", "api")
    host = VersionHost(tmp_path, control_plane_bundle(plan, keys()), "ins-c1", "1.36.2")
    (tmp_path / "agreed").write_text(f"{agreed}\n")
    done = host.run("now")
    assert done.returncode == 0, done.stderr
    said = "kubectl"
    assert host.did() == ["fetch 1.37.0", "put kubeadm 1.37.0", verb, said]
    assert "controlplane.internal/api-version=1.37.0" in (tmp_path / "calls").read_text()
    assert (host.run("now").returncode, host.did()) == (0, [])
    host.lay(control_plane_bundle(ahead(three(), "ins-c1", "1.37.0"), keys()))
    assert host.run("now").returncode == 0
    restart = ["systemctl daemon-reload", "systemctl restart kubelet.service", "systemctl is-active kubelet.service"]
    assert host.did() == [said, "put kubelet 1.37.0", "put kubectl 1.37.0", *restart]
    assert (host.run().returncode, host.did()) == (0, [])


def test_a_worker_follows_and_one_that_is_not_named_does_not(tmp_path: Path) -> None:
    """First kubeadm, then the kubelet's configuration, then the kubelet; the list's last line is for those that join."""
    plan = ahead(three(), "ins-w1", "1.37.0")
    host = VersionHost(tmp_path, worker_bundle(plan, keys(), HGX.name), "ins-w1", "1.36.2")
    assert host.run("now").returncode == 0
    assert host.did()[:4] == ["fetch 1.37.0", "put kubeadm 1.37.0", "kubeadm upgrade node", "put kubelet 1.37.0"]
    (tmp_path / "name").write_text("ins-w9\n")
    assert (host.run().returncode, host.did()) == (0, [])


def test_a_k3s_server_restarts_with_the_new_program(tmp_path: Path) -> None:
    """And says which version it is."""
    host = VersionHost(tmp_path, control_plane_bundle(ahead(light(), "ins-c1", "1.37.0"), keys()), "ins-c1", "1.36.1")
    done = host.run("now")
    assert done.returncode == 0, done.stderr
    restart = ["systemctl daemon-reload", "systemctl restart", "systemctl is-active k3s.service"]
    assert host.did() == ["fetch 1.37.0", "put k3s 1.37.0", *restart, "k3s kubectl"]


@pytest.mark.parametrize("install", ["false", "true"])
def test_an_installation_that_fails_upgrades_nothing_and_says_why(tmp_path: Path, install: str) -> None:
    """Whether the commands fail or only do nothing; the next look tells of it while it tries again."""
    plan = replace(ahead(three(), "ins-c1", "1.37.0", "api"), programs=Programs("", install))
    host = VersionHost(tmp_path, control_plane_bundle(plan, keys()), "ins-c1", "1.36.2")
    assert host.run("now").returncode == 1
    assert host.did() == []
    log = host.path("/etc/controlplane/kubernetes/follow-version.log")
    log.write_text("no space left\n")
    done = host.run()
    assert done.returncode == 1
    assert "no space left" in done.stderr
    assert "Kubernetes 1.37.0 is being installed" in done.stderr


def test_a_host_that_joins_has_what_its_cluster_has(tmp_path: Path) -> None:
    """An image that has something else is put right by the operator's commands, and without them a newer kubelet does not join."""
    plan = replace(three(), programs=BY)
    host = VersionHost(tmp_path, worker_bundle(plan, keys(), HGX.name), "ins-w9", "1.37.0")
    assert (host.run("first").returncode, host.did()) == (0, [])
    host.path("/etc/controlplane/kubernetes/joined").unlink()
    assert host.run("first").returncode == 0
    assert host.did() == ["fetch 1.36.2", "put kubeadm 1.36.2", "put kubelet 1.36.2"]
    for part in ("has-kubeadm", "has-kubelet"):
        (tmp_path / part).write_text("1.37.0\n")
    host.lay(worker_bundle(three(), keys(), HGX.name))
    done = host.run("first")
    assert (done.returncode, "and its cluster 1.36.2" in done.stderr) == (1, True)
