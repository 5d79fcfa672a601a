"""
Clusters that exist: what stands in the way of taking them over, what is written of one that was, and how far a takeover is; pure tables.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from controlplane.clusters.finding import FoundHost, obstacles_of
from controlplane.clusters.states import ClusterFacts, ClusterSnapshot, MemberSnapshot, SetSnapshot
from controlplane.clusters.steps import STEPS
from controlplane.clusters.takeovers import Takeover
from controlplane.kit.outcome import Advance, Fail, Gone, Outcome, Wait
from controlplane.nodes.adopting import Housed
from controlplane.nodes.states import ProviderRef
from controlplane.providers.adapters.clusterapi.adopted import added, layout
from controlplane.providers.adapters.clusterapi.classes import reads_marks
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.names import Names
from controlplane.providers.adapters.clusterapi.standing import Shelf, read_standing
from controlplane.providers.adoption import Adoption
from controlplane.providers.clusters import ClusterSpec, ClusterView, Member, MemberState, MemberView
from controlplane.providers.errors import NotFound, Refused
from tests.capi_kit import CLASSES, CONFIG, a_class, a_host

CONFIGURED = ClusterApiConfig(**CONFIG)
NAMES = Names("cp", "site-a")
OWNER, CLUSTER = "controlplane.internal/deployment", "controlplane.internal/cluster"
DEPLOYMENTS = ("spec", "topology", "workers", "machineDeployments")


def a_cluster() -> dict[str, Any]:
    """A Cluster of the operator's with one worker."""
    workers = {"machineDeployments": [{"class": "h100", "name": "workers", "replicas": 1}]}
    topology = {"classRef": {"name": "gpu-metal", "namespace": CLASSES}, "version": "v1.34.2", "workers": workers}
    return {"metadata": {"name": "theirs", "uid": "u-1", "namespace": "site-a"}, "spec": {"topology": topology}}


def a_machine() -> dict[str, Any]:
    """Its worker's Machine."""
    labels = {"cluster.x-k8s.io/cluster-name": "theirs", "topology.cluster.x-k8s.io/deployment-name": "workers"}
    return {
        "metadata": {"name": "m-0", "labels": labels},
        "spec": {"infrastructureRef": {"name": "m-0"}, "version": "v1.34.2"},
        "status": {"nodeRef": {"name": "m-0"}},
    }


def a_taken_host() -> dict[str, Any]:
    """Its worker's host."""
    host = a_host("metal-00")
    host["spec"]["consumerRef"] = {"kind": "Metal3Machine", "name": "m-0"}
    return host


def put(thing: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """The thing has the value at the path; `None` takes away what is there."""
    for key in path[:-1]:
        thing = thing[key] if isinstance(key, int) else thing.setdefault(key, {})
    if value is None:
        thing.pop(path[-1])
    else:
        thing[path[-1]] = value


@pytest.mark.parametrize(
    ("which", "path", "value", "code"),
    [
        ("cluster", ("metadata", "labels"), {OWNER: "others", CLUSTER: "clu_9"}, "other_installation"),
        ("cluster", ("metadata", "labels"), {OWNER: "cp", CLUSTER: "clu_9"}, "marked_already"),
        ("cluster", ("metadata", "deletionTimestamp"), "2026-01-01T00:00:00Z", "being_removed"),
        ("cluster", ("spec", "paused"), True, "paused"),
        ("cluster", ("spec", "topology"), None, "no_topology"),
        ("cluster", ("spec", "topology", "classRef", "name"), "plain", "other_class"),
        ("cluster", ("spec", "topology", "classRef"), {"name": "gpu-metal"}, "other_class"),
        ("cluster", ("spec", "topology", "workers", "machinePools"), [{"name": "p"}], "machine_pools"),
        ("cluster", (*DEPLOYMENTS, 0, "class"), "plain", "unknown_machine_class"),
        ("cluster", (*DEPLOYMENTS, 0, "replicas"), None, "scaled_by_others"),
        ("cluster", (*DEPLOYMENTS, 0, "replicas"), 2, "not_settled"),
        ("cluster", (*DEPLOYMENTS, 0, "name"), "a.b", "bad_set_name"),
        ("machine", ("metadata", "deletionTimestamp"), "2026-01-01T00:00:00Z", "not_settled"),
        ("machine", ("status",), {}, "not_settled"),
        ("machine", ("spec", "version"), "v1.33.1", "not_settled"),
        ("machine", ("metadata", "labels"), {"cluster.x-k8s.io/cluster-name": "theirs"}, "outside_of_topology"),
        ("machine", ("metadata", "labels"), {}, "no_workers"),
        ("host", ("spec", "consumerRef", "name"), "m-9", "not_settled"),
        ("host", ("spec", "automatedCleaningMode"), "disabled", "host_never_cleaned"),
        ("host", ("spec", "externallyProvisioned"), True, "host_installed_by_others"),
        ("host", ("metadata", "labels"), {CLUSTER: "clu_9", OWNER: "cp"}, "host_marked"),
        ("shelf", (), None, "host_not_sold"),
        ("class", (), None, "class_reads_marks"),
    ],
)
def test_what_the_provider_knows_that_stands_in_the_way(which: str, path: tuple[Any, ...], value: Any, code: str) -> None:
    """One thing at a time; without any of them nothing does, and a cluster of ours finds its own marks no obstacle."""
    things = {"cluster": a_cluster(), "machine": a_machine(), "host": a_taken_host()}

    def read(ours: str = "") -> list[str]:
        sold = frozenset() if which == "shelf" else frozenset({"metal-00"})
        patches = [{"definitions": [{"jsonPatches": [{"valueFrom": {"template": "{{ .builtin.cluster.metadata.labels }}"}}]}]}]
        read_by = a_class() if which != "class" else {"spec": {"patches": patches}}
        shelf = Shelf([things["machine"]], [things["host"]], sold, "cp", marks_matter=reads_marks(read_by))
        return [one.code for one in read_standing(things["cluster"], shelf, CONFIGURED, ours).obstacles]

    if path:
        assert read() == []
        put(things[which], path, value)
    assert code in read()
    if code in {"marked_already", "host_marked"}:
        assert read("clu_9") == []


def test_an_older_topology_names_its_class_in_other_fields() -> None:
    """`class` and `classNamespace`, as v1beta1 has them."""
    cluster = a_cluster()
    del cluster["spec"]["topology"]["classRef"]
    cluster["spec"]["topology"] |= {"class": "gpu-metal", "classNamespace": CLASSES}
    assert read_standing(cluster, Shelf([a_machine()], [a_taken_host()], frozenset({"metal-00"}), "cp"), CONFIGURED).obstacles == ()


def taken() -> dict[str, Any]:
    """The Cluster as ours, with what its owner wrote in it."""
    cluster = a_cluster()
    cluster["metadata"]["annotations"] = {"controlplane.internal/adopted": "workers"}
    put(cluster, (*DEPLOYMENTS, 0, "metadata"), {"labels": {"theirs": "x"}})
    return cluster


def deployments(version: str, cluster: dict[str, Any] | None = None, fresh: int = 1) -> dict[str, dict[str, Any]]:
    """The machine deployments of what is written for one worker that is there and so many new hosts."""
    members = tuple(Member(f"metal-{n}", 8, f"alc_{n}", "workers", "gpu-8") for n in range(1 + fresh))
    spec = ClusterSpec("clu_1", "ten_1", "prj_1", "", members, version)
    plan = layout(NAMES, CONFIGURED, cluster or taken(), spec, api="v1beta2", version=version)
    body = plan.body([("workers", a_machine()), *[("workers", None)] * fresh], [])
    assert body["metadata"]["name"] == "theirs"
    assert set(body["spec"]["topology"]) == {"version", "workers"}, "class, control plane and variables are their owner's"
    return {one["name"]: one for one in body["spec"]["topology"]["workers"]["machineDeployments"]}


def test_what_is_there_is_not_pinned_and_what_is_new_is() -> None:
    """A pin in a template replaces its Machines, so it comes with a machine deployment of its own, or with the next version."""
    now = deployments("1.34.2")
    assert "variables" not in now["workers"]
    assert (now["workers"]["replicas"], now["workers"]["class"], now[added("workers")]["replicas"]) == (1, "h100", 1)
    pin = {"overrides": [{"name": "hostPin", "value": "cp-clu-1.workers"}]}
    assert now[added("workers")]["variables"] == pin
    assert {one["rollout"]["strategy"]["rollingUpdate"]["maxSurge"] for one in now.values()} == {0}
    newer = deployments("1.35.1")
    assert {name: (one["replicas"], one["variables"]) for name, one in newer.items()} == {"workers": (2, pin)}


def test_once_pinned_it_stays_so_and_takes_new_hosts_itself() -> None:
    """After the upgrade there is no need of another machine deployment; one that was added keeps what it has."""
    cluster = taken()
    written = deployments("1.34.2")
    put(
        cluster,
        DEPLOYMENTS,
        [written["workers"] | {"variables": written[added("workers")]["variables"]}, written[added("workers")]],
    )
    now = deployments("1.34.2", cluster, fresh=2)
    assert {name: one["replicas"] for name, one in now.items()} == {"workers": 3, added("workers"): 0}


HERE = Housed("nod_1", "metal-00", "maintenance", "gpu-8", "ok", "", wired=False)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, None),
        ({"state": "available"}, None),
        ({"state": "quarantined"}, None),
        ({"state": "cleaning"}, "host_busy"),
        ({"state": "active", "held_by": "clu_2"}, "host_held"),
        ({"state": "adopting", "held_by": "clu_1"}, None),
        ({"instance_type": "cpu-64"}, "other_instance_type"),
        ({"health": "drain"}, "host_sick"),
        ({"wired": True}, "host_wired"),
    ],
)
def test_what_our_inventory_knows_that_stands_in_the_way(change: dict[str, Any], code: str | None) -> None:
    """A node at rest, of the right type, well, unheld and unwired is none; nor is one that the cluster itself holds."""
    found = obstacles_of(FoundHost("metal-00", "workers", True, replace(HERE, **change)), ["gpu-8"], "clu_1")
    assert [one.code for one in found] == ([] if code is None else [code])
    assert [one.code for one in obstacles_of(FoundHost("metal-00", "workers", True, None), [])] == ["host_not_enrolled"]


class Peer:
    """It shows its two workers so, and remembers what it was asked for."""

    def __init__(self, *workers: MemberState, error: Exception | None = None, absent: bool = False) -> None:
        members = tuple(MemberView(f"metal-{n}", state, 8) for n, state in enumerate(workers, 1))
        self.view = ClusterView("clu_1", members)
        self.error = error
        self.absent = absent
        self.told: list[Any] = []

    def clusters(self, provider: Any) -> Peer:
        del provider
        return self

    def adoption(self, provider: Any) -> Peer:
        del provider
        return self

    def adopt_cluster(self, adoption: Adoption) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(adoption)

    def let_go(self, cluster_id: str) -> None:
        self.told.append(("let go", cluster_id))

    def delete_cluster(self, cluster_id: str) -> None:
        raise AssertionError(f"{cluster_id} is not ours to remove")

    def observe_cluster(self, cluster_id: str) -> ClusterView:
        if self.absent:
            raise NotFound(cluster_id)
        return self.view


def step(peer: Peer, part: str, state: str = "adopting") -> Outcome:
    """What becomes of a cluster of two workers that is being taken over."""
    members = tuple(
        MemberSnapshot(f"alc_{n}", f"ins_{n}", f"nod_{n}", f"metal-{n}", 8, "active", "adopting", "nds_1", billed=False)
        for n in (1, 2)
    )
    cluster = ClusterSnapshot(
        id="clu_1",
        state=state,
        step=part,
        tenant_id="ten_1",
        project_id="prj_1",
        kind="kubernetes",
        user="",
        provider=ProviderRef("prv_1", "clusterapi", {"read_lag_s": 3.0}, None, 1),
        members=members,
        sets=(SetSnapshot("nds_1", "workers", "hgx-h100-8", 2),),
        observe_interval_s=15.0,
        distribution="managed",
        version="1.34.2",
        takes=Takeover("theirs", "u-1"),
    )
    return STEPS[state](cluster, peer)


def test_the_provider_is_told_whom_and_what_then_looked_at() -> None:
    """Exactly the members, under their tokens; it runs once all answer, and from then on it is billed."""
    peer = Peer("up", "up")
    outcome = step(peer, "")
    assert isinstance(outcome, Wait)
    assert outcome.step == "told"
    (asked,) = peer.told
    assert (asked.ref, asked.uid, asked.spec.version) == ("theirs", "u-1", "1.34.2")
    assert [(one.ref, one.token, one.node_set) for one in asked.spec.members] == [
        ("metal-1", "alc_1", "workers"),
        ("metal-2", "alc_2", "workers"),
    ]
    over = step(peer, "told")
    assert isinstance(over, Advance)
    assert over.to == "running"
    assert isinstance(over.facts, ClusterFacts)
    assert set(over.facts.usable_at) == {"alc_1", "alc_2"}


def test_what_is_not_there_or_not_whole_is_waited_for_and_told_again() -> None:
    """Nothing is billed meanwhile."""
    for peer in (Peer("up", "down"), Peer(absent=True)):
        outcome = step(peer, "told")
        assert isinstance(outcome, Wait)
        assert outcome.step == ""
        assert outcome.facts is None or not outcome.facts.usable_at


def test_a_refusal_ends_it_with_the_reason_for_operators() -> None:
    """Its tenant reads no host's name."""
    outcome = step(Peer(error=Refused("metal-1 has changed hands", code="provider_cluster_changed")), "")
    assert isinstance(outcome, Fail)
    assert (outcome.code, outcome.detail) == ("adoption_refused", "provider_cluster_changed: metal-1 has changed hands")
    assert "metal" not in outcome.message


def test_before_it_ran_with_us_it_is_let_go_and_never_removed() -> None:
    """Asked, then seen without it twice with a gap; then its nodes are put back as they are, and none is wiped."""
    peer = Peer(absent=True)
    parts = ["", "asked", "doubt"]
    told = [step(peer, part, "deleting") for part in parts]
    assert peer.told == [("let go", "clu_1")]
    assert [one.step for one in told if isinstance(one, Wait)] == ["asked", "doubt"]
    assert told[1].retry_in_s == 3.0  # type: ignore[union-attr]
    gone = told[2]
    assert isinstance(gone, Gone)
    assert (gone.facts.hand_back, gone.facts.release) == (("alc_1", "alc_2"), ())
    assert isinstance(step(Peer("up", "up"), "asked", "deleting"), Wait), "it is still there with our marks"


def test_nothing_is_changed_in_what_is_read() -> None:
    """Reading is pure."""
    cluster, machine, host = a_cluster(), a_machine(), a_taken_host()
    kept = copy.deepcopy((cluster, machine, host))
    read_standing(cluster, Shelf([machine], [host], frozenset({"metal-00"}), "cp"), CONFIGURED)
    assert (cluster, machine, host) == kept
