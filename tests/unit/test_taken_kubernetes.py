"""
A Kubernetes that stood before it was ours: what stands in the way of taking it over, how machines are recognised, what new workers are
given, and how far a change is; pure tables and laws.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controlplane.clusters.finding import Firmware, FoundHost, obstacles_of
from controlplane.clusters.refusals import Refusal
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, SetSnapshot
from controlplane.clusters.steps import STEPS
from controlplane.clusters.takeovers import Takeover
from controlplane.kit.outcome import Advance, Fail, Gone, Outcome, Wait
from controlplane.nodes.adopting import Housed, swapped
from controlplane.nodes.states import ProviderRef
from controlplane.providers.adapters.kubernetes.own_standing import Scene, read_standing
from controlplane.providers.clusters import ClusterSpec, ClusterView, MemberView
from controlplane.providers.errors import Busy, NotFound, Refused, Unknown
from controlplane.providers.joining import Door
from controlplane.rendering.kubernetes.joining import Entry, entry_files, joining_files
from controlplane.rendering.kubernetes.plan import Host, KubernetesPlan
from tests.factories.kubernetes_plans import HGX

LEADS = "node-role.kubernetes.io/control-plane"
CLUSTER, OWNER = "controlplane.internal/cluster", "controlplane.internal/deployment"
DIGEST = "ab" * 32


def a_node(name: str, *, leads: bool = False) -> dict[str, Any]:
    """A node of theirs that is well."""
    return {
        "metadata": {"name": name, "labels": {LEADS: ""} if leads else {}},
        "spec": {},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"systemUUID": f"UUID-{name}", "kubeletVersion": "v1.36.2"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    }


def a_scene(**changes: Any) -> Scene:
    """One control plane and two workers by kubeadm, nobody's."""
    nodes = [a_node("cp", leads=True), a_node("w1"), a_node("w2")]
    made = Scene("u-1", "v1.36.2", "clusterName: theirs\nkubernetesVersion: v1.36.2\n", nodes, {"cp": 0, "w1": 8, "w2": 8}, None)
    return replace(made, **changes)


def test_what_it_is_when_nothing_stands_in_the_way() -> None:
    """Sets by role, and by GPUs where those differ; reading changes nothing."""
    scene = a_scene()
    kept = copy.deepcopy(scene)
    seen = read_standing(scene, "cp")
    assert (seen.obstacles, seen.ref, seen.distribution, scene) == ((), "theirs", "kubeadm", kept)
    assert [one.node_set for one in seen.hosts] == ["control-planes", "workers", "workers"]
    mixed = read_standing(a_scene(gpus={"cp": 0, "w1": 8, "w2": 4}), "cp")
    assert [one.name for one in mixed.sets] == ["control-planes", "workers-4", "workers-8"]
    assert "control_planes_stay" in {one.code for one in seen.notices}
    k3s = read_standing(a_scene(version="v1.36.2+k3s1", kubeadm=None), "cp")
    assert (k3s.distribution, k3s.ref, k3s.version, k3s.obstacles) == ("k3s", "k3s", "1.36.2", ())


MARKS = {"metadata": {"labels": {OWNER: "cp", CLUSTER: "clu_9"}}}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kubeadm": None}, "other_distribution"),
        ({"nodes": [a_node("w1"), a_node("w2")]}, "no_quorum"),
        ({"nodes": [a_node("a", leads=True), a_node("b", leads=True), a_node("w1")]}, "no_quorum"),
        ({"nodes": [a_node("cp", leads=True)]}, "no_workers"),
        ({"version": "v1.36.3", "kubeadm": "kubernetesVersion: v1.36.3\n"}, "mixed_versions"),
        ({"kubeadm": "kubernetesVersion: v1.36.1\n"}, "upgrade_pending"),
        ({"gpus": {"cp": 0, "w1": 8, "w2": None}}, "gpus_untold"),
        ({"mark": MARKS}, "marked_already"),
        ({"mark": {"metadata": {"labels": {OWNER: "other", CLUSTER: "clu_9"}}}}, "other_installation"),
        ({"mark": {"metadata": {}}}, "other_installation"),
    ],
)
def test_what_of_the_whole_stands_in_the_way(changes: dict[str, Any], code: str) -> None:
    """Who set it up, its size, versions on their way, counts that nobody tells, somebody else's marks."""
    assert code in {one.code for one in read_standing(a_scene(**changes), "cp").obstacles}


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        (("status", "conditions"), [{"type": "Ready", "status": "Unknown"}], "not_settled"),
        (("metadata", "deletionTimestamp"), "2026-01-01T00:00:00Z", "not_settled"),
        (("spec", "unschedulable"), True, "cordoned"),
        (("status", "nodeInfo", "systemUUID"), "", "node_unrecognised"),
        (("status", "nodeInfo", "kubeletVersion"), "v1.35.1", "mixed_versions"),
        (("metadata", "labels", CLUSTER), "clu_9", "node_marked"),
        (("metadata", "annotations"), {"cluster.x-k8s.io/machine": "m"}, "made_by_others"),
    ],
)
def test_what_of_one_node_stands_in_the_way(path: tuple[str, ...], value: Any, code: str) -> None:
    """Not ready, going, cordoned, nameless, older, marked, somebody else's to replace."""
    scene = a_scene()
    thing: Any = scene.nodes[1]
    for key in path[:-1]:
        thing = thing[key]
    thing[path[-1]] = value
    assert [one.code for one in read_standing(scene, "cp").obstacles] == [code]


def test_its_own_marks_are_no_obstacle() -> None:
    """A takeover that is tried again sees what it has written."""
    scene = a_scene(mark=MARKS)
    for one in scene.nodes:
        one["metadata"]["labels"] |= {OWNER: "cp", CLUSTER: "clu_9"}
    assert read_standing(scene, "cp", "clu_9").obstacles == ()
    assert {one.code for one in read_standing(scene, "cp", "clu_8").obstacles} == {"marked_already", "node_marked"}


@given(st.uuids())
def test_the_other_order_of_bytes_is_the_same_name_and_no_others(name: UUID) -> None:
    """Turned twice it is itself; it is what `bytes_le` says; what is no UUID has no other order."""
    assert swapped(str(name)) == str(UUID(bytes=name.bytes_le))
    assert swapped(swapped(str(name))) == str(name)
    assert swapped(str(name)[:-1]) == swapped("0f0f") == ""


HERE = Housed("nod_1", "bare-1", "maintenance", "hgx-h100-8", "ok", "", wired=False, gpus=8, address="10.1.9.1")
KNOWN = Firmware("uuid", "10.1.9.1", 8, 1)


@pytest.mark.parametrize(
    ("node", "known", "code"),
    [
        (HERE, KNOWN, None),
        (replace(HERE, address=""), KNOWN, None),
        (HERE, replace(KNOWN, address="10.1.9.2"), "host_address_differs"),
        (HERE, replace(KNOWN, gpus=4), "host_gpus_differ"),
        (HERE, replace(KNOWN, gpus=None), None),
        (None, replace(KNOWN, nodes=0), "host_not_enrolled"),
        (None, replace(KNOWN, nodes=2), "host_ambiguous"),
        (replace(HERE, state="cleaning"), KNOWN, "host_busy"),
    ],
)
def test_a_machine_is_known_by_its_firmware_and_checked(node: Housed | None, known: Firmware, code: str | None) -> None:
    """Nobody, several, or one that differs is told; what is not known is no difference."""
    found = obstacles_of(FoundHost("gpu-1", "workers", True, node, known=known), [])
    assert [one.code for one in found] == ([] if code is None else [code])


def a_plan(distribution: Any) -> KubernetesPlan:
    """As for new workers of a cluster that others set up."""
    here = (Host("somewhere", "192.0.2.1"),)
    return KubernetesPlan("clu-1", distribution, "1.36.2", here, (), (HGX,), endpoint="10.1.9.1:6443")


def test_new_workers_join_by_what_the_cluster_told() -> None:
    """Endpoint and pin for kubeadm, for k3s a secure token; no hosts file, and nothing secret in plain files or reprs."""
    entry = Entry("kubeadm", "1.36.2", "10.1.9.1:6443", "abcdef.0123456789abcdef", DIGEST)
    (document,) = entry_files(a_plan("kubeadm"), entry, HGX.name)
    told = yaml.safe_load(document.content)["discovery"]["bootstrapToken"]
    assert told == {"token": entry.token, "apiServerEndpoint": "10.1.9.1:6443", "caCertHashes": [f"sha256:{DIGEST}"]}
    files = {one.path: one for one in entry_files(a_plan("k3s"), replace(entry, distribution="k3s"), HGX.name)}
    assert files["/etc/rancher/k3s/agent-token"].content == f"K10{DIGEST}::{entry.token}\n"
    assert yaml.safe_load(files["/etc/rancher/k3s/config.yaml"].content)["server"] == "https://10.1.9.1:6443"
    assert entry.token not in repr(entry)
    for distribution in ("kubeadm", "k3s"):
        plain = {one.path: one for one in joining_files(a_plan(distribution))}
        assert "/etc/hosts" not in plain
        assert not [one for one in plain.values() if one.secret or entry.token in one.content]
        assert plain["/etc/controlplane/kubernetes/versions"].content == "* 1.36.2 all\n"
    assert "k3s-agent.service" in " ".join(one.path for one in joining_files(a_plan("k3s")))


class Peer:
    """It shows nodes by name in these states, and remembers what it was asked for."""

    def __init__(self, error: Exception | None = None, **nodes: Any) -> None:
        self.nodes = nodes
        self.error = error
        self.asked: list[str] = []

    def clusters(self, provider: object) -> Peer:
        """It is all of them."""
        assert provider
        return self

    adoption = joining = clusters

    def apply_cluster(self, spec: ClusterSpec) -> None:
        """It takes them, or raises."""
        self.asked.append("apply " + " ".join(sorted(one.ref for one in spec.members)))
        self._refuse()

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        """The nodes."""
        if not self.nodes:
            raise self.error or NotFound("nothing")
        return ClusterView(cluster_id, tuple(MemberView(name, state, 8) for name, state in self.nodes.items()))

    def open_door(self, cluster_id: str, *, lasts_s: int) -> Door:
        """A token for five hours, longer than any change lasts."""
        self.asked.append(f"open {cluster_id} {lasts_s}")
        self._refuse()
        return Door("kubeadm", "1.36.3", "10.1.9.1:6443", "abcdef.0123456789abcdef", DIGEST)

    def close_door(self, cluster_id: str) -> None:
        """It is closed."""
        self.asked.append(f"close {cluster_id}")

    def undrain(self, cluster_id: str, refs: tuple[str, ...]) -> None:
        """They are let in again."""
        self.asked.append(f"undrain {cluster_id} {' '.join(refs)}")

    def let_go(self, cluster_id: str) -> None:
        """No mark stays."""
        self.asked.append(f"let go {cluster_id}")

    def _refuse(self) -> None:
        if self.error is not None:
            raise self.error


def a_member(ref: str, **changes: Any) -> MemberSnapshot:
    """A worker that is in use."""
    made = MemberSnapshot(f"alc_{ref}", f"ins_{ref}", f"nod_{ref}", ref, 8, "active", "active", "nds_1", billed=True)
    return replace(made, **changes)


def step(peer: Peer, state: str, at: str = "", *, wanted: int = 2, members: Any = None, **more: Any) -> Outcome:
    """What comes of one step of a cluster of two workers."""
    cluster = ClusterSnapshot(
        id="clu_1",
        state=state,
        step=at,
        tenant_id="ten_1",
        project_id="prj_1",
        kind="kubernetes",
        user="",
        provider=ProviderRef("prv_1", "kubernetes", {}, None, 1),
        members=tuple(members or (a_member("w1"), a_member("w2"))),
        sets=(SetSnapshot("nds_1", "workers", "hgx-h100-8", wanted),),
        observe_interval_s=30.0,
        dedicated=True,
        distribution="kubeadm",
        came=True,
        **more,
    )
    outcome: Outcome = STEPS[state](cluster, peer)
    return outcome


def test_the_door_is_open_before_machines_are_chosen_and_closed_after() -> None:
    """For longer than a change may last; the version is what the API server has by now."""
    peer = Peer(w1="up", w2="up")
    opened = step(peer, "updating", wanted=3)
    assert isinstance(opened, Wait)
    assert isinstance(opened.facts, ClusterFacts)
    assert (opened.step, peer.asked, opened.facts.versions) == ("placing", ["open clu_1 18000"], {"version": "1.36.3"})
    assert opened.facts.entry == Entry("kubeadm", "1.36.3", "10.1.9.1:6443", "abcdef.0123456789abcdef", DIGEST)
    members = (a_member("w1"), a_member("w2"), a_member("new", billed=False))
    told = step(peer, "updating", "applying", wanted=3, members=members)
    assert isinstance(told, Wait)
    assert told.step == "applied"
    waits = step(peer, "updating", "applied", wanted=3, members=members)
    assert isinstance(waits, Wait)
    assert (waits.reason, "close clu_1" in peer.asked) == ("1 new nodes have not joined yet.", False)
    peer.nodes["new"] = "up"
    done = step(peer, "updating", "applied", wanted=3, members=members)
    assert isinstance(done, Advance)
    assert isinstance(done.facts, ClusterFacts)
    assert (done.to, list(done.facts.usable_at), peer.asked[-1]) == ("running", ["alc_new"], "close clu_1")


def test_who_leaves_is_given_back_once_its_api_has_forgotten_it() -> None:
    """Pods are waited for, nothing is released before the Node is gone; a control plane that would go ends the change."""
    leaving: dict[str, Any] = {"wanted": 1, "leaving": frozenset({"alc_w2"})}
    busy = step(Peer(Busy("pods", retry_in_s=5.0), w1="up", w2="draining"), "updating", **leaving)
    assert isinstance(busy, Wait)
    assert busy.reason == "Waits for pods on the nodes that leave."
    peer = Peer(w1="up", w2="draining")
    assert isinstance(step(peer, "updating", **leaving), Wait)
    assert peer.asked == ["apply w1"]
    there = step(peer, "updating", "applied", **leaving)
    assert isinstance(there, Wait)
    assert there.step == ""
    del peer.nodes["w2"]
    done = step(peer, "updating", "applied", **leaving)
    assert isinstance(done, Advance)
    assert isinstance(done.facts, ClusterFacts)
    assert done.facts.release == ("alc_w2",)


@pytest.mark.parametrize(
    ("change", "nodes", "asked"),
    [
        ({"wanted": 3}, {"w1": "up", "w2": "up"}, ["open clu_1 18000", "close clu_1", "apply w1 w2"]),
        (
            {"wanted": 1, "leaving": frozenset({"alc_w2"})},
            {"w1": "up", "w2": "draining"},
            ["apply w1", "close clu_1", "undrain clu_1 w2", "apply w1 w2"],
        ),
    ],
    ids=["nobody is let in", "nobody is let out"],
)
def test_a_change_that_its_api_turns_down_is_undone(change: dict[str, Any], nodes: dict[str, str], asked: list[str]) -> None:
    """The door is closed, who was kept without pods has them again, and the cluster runs as before; the operation has failed."""
    peer = Peer(Refused("no"), **nodes)
    refused = step(peer, "updating", **change)
    assert isinstance(refused, Wait)
    assert refused.step == "refused"
    looked = step(peer, "updating", refused.step, refusal=Refusal("provider_refused", "no"), **change)
    assert isinstance(looked, Wait)
    assert looked.step == "undoing"
    if change["wanted"] == 1:
        barred = step(peer, "updating", looked.step, **change)
        assert isinstance(barred, Wait), "it shows the worker still barred, and refuses whatever it is told"
        assert barred.step == "undoing"
    peer.error, peer.asked = None, peer.asked[:1]
    told = step(peer, "updating", looked.step, **change)
    assert isinstance(told, Wait)
    assert (told.step, peer.asked) == ("undone", asked)
    peer.nodes["w2"] = "up"
    ended = step(peer, "updating", told.step, refusal=Refusal("provider_refused", "no"), **change)
    assert isinstance(ended, Fail)
    assert isinstance(ended.facts, ClusterFacts)
    assert (ended.code, ended.to, ended.facts.undone) == ("provider_refused", "running", True)


def test_a_change_that_came_about_all_the_same_goes_on() -> None:
    """The API refused, and has let the new worker in: its answer before was lost."""
    members = (a_member("w1"), a_member("w2"), a_member("new", billed=False))
    seen = step(Peer(w1="up", w2="up", new="up"), "updating", "refused", wanted=3, members=members)
    assert isinstance(seen, Wait)
    assert seen.step == "applied"


def test_it_is_let_go_until_it_ran_and_wiped_after_that() -> None:
    """As 0058 has it; after a change that failed no door is open, and whoever was to leave and stays is let in again."""
    peer = Peer(w1="up", w2="up")
    assert isinstance(step(peer, "deleting", takes=Takeover("theirs", "u-1")), Wait)
    assert peer.asked == ["let go clu_1"]
    back = step(Peer(), "deleting", "doubt", takes=Takeover("theirs", "u-1"))
    assert isinstance(back, Gone)
    assert isinstance(back.facts, ClusterFacts)
    assert (back.facts.hand_back, back.facts.release) == (("alc_w1", "alc_w2"), ())
    gone = step(Peer(), "deleting")
    assert isinstance(gone, Gone)
    assert isinstance(gone.facts, ClusterFacts)
    assert (gone.facts.hand_back, gone.facts.release) == ((), ("alc_w1", "alc_w2"))
    barred = Peer(w1="up", w2="draining")
    step(barred, "degraded")
    assert barred.asked == ["close clu_1", "undrain clu_1 w2"]
    missing = step(Peer(), "degraded")
    assert isinstance(missing, Wait)


def test_an_api_that_is_silent_twice_is_told() -> None:
    """Nothing is known of its nodes then, whatever the cluster's state; one look that fails says nothing."""
    for state in ("running", "degraded"):
        for at, issues in (("", None), ("unheard", ("api_silent",))):
            seen = step(Peer(Unknown("reset")), state, at)
            assert isinstance(seen, Wait)
            told = seen.facts.issues if isinstance(seen.facts, ClusterFacts) else None
            assert (None if told is None else tuple(one["code"] for one in told)) == issues


def test_a_sick_control_plane_is_told_and_stays() -> None:
    """Its issue stands beside those of the look; a well one has none."""
    for health, codes in (("drain", ["control_planes_stay"]), ("ok", [])):
        lead = a_member("cp", role="control_plane", gpus=0, node_health=health)
        seen = step(Peer(cp="up", w1="up"), "running", members=(lead, a_member("w1")))
        assert isinstance(seen, Wait)
        assert isinstance(seen.facts, ClusterFacts)
        told = [one["code"] for one in seen.facts.issues or ()]
        assert told == codes, health
