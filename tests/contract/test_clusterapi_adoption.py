"""
Clusters that exist in a management cluster: seen, taken over without replacing a Machine, changed like any other, and let go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from controlplane.providers.adapters.clusterapi.adapter import ClusterApiAdapter
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.errors import NotFound, Refused, Unknown
from controlplane.providers.machines import Deployment
from tests.capi_kit import CapiKit, capi_kit, until
from tests.capi_kit import spec as versionless
from tests.kubernetes_kit import UNTIDY

pytestmark = UNTIDY
REFS = ("metal-00", "metal-01", "metal-02", "metal-03")
spec = partial(versionless, version="1.34.2")
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["v1beta2", "v1beta1"])
def kit(request: pytest.FixtureRequest) -> Iterator[CapiKit]:
    """Four hosts, two of which are in a Cluster called theirs."""
    with capi_kit(hosts=4, api=request.param) as made:
        made.stand("theirs", 2)
        yield made


@pytest.fixture
def adapter(kit: CapiKit) -> Iterator[ClusterApiAdapter]:
    """As in production."""
    made = kit.adapter()
    yield made
    made.close()


def only(adapter: ClusterApiAdapter) -> Standing:
    """The one that stands there."""
    (found,) = adapter.list_standing()
    return found


def adopted(adapter: ClusterApiAdapter, **other: Any) -> Adoption:
    """The one that stands there is ours now."""
    found = only(adapter)
    asked = replace(Adoption(found.ref, found.uid, spec(*(one.ref for one in found.hosts))), **other)
    adapter.adopt_cluster(asked)
    return asked


def complete(adapter: ClusterApiAdapter, kit: CapiKit, wanted: ClusterSpec) -> None:
    """Exactly the wanted members are up."""
    refs = {one.ref for one in wanted.members}

    def there() -> bool:
        adapter.apply_cluster(wanted)
        return {one.ref for one in adapter.observe_cluster("clu_1").members if one.state == "up"} == refs == taken(kit)

    until(kit, there, "complete")
    kit.settle()
    adapter.apply_cluster(wanted)
    kit.settle()


def taken(kit: CapiKit) -> set[str]:
    """Hosts that Machines have."""
    return {one["metadata"]["name"] for one in kit.kit.ask("GET", kit.hosts())["items"] if one["spec"].get("consumerRef")}


def deploy(adapter: ClusterApiAdapter, kit: CapiKit, ref: str) -> None:
    """The host is the cluster's to take."""
    adapter.deploy(Deployment(ref, f"alc_{ref[-2:]}", "ten_one", "clu_1", network="net"))
    until(kit, lambda: adapter.observe(ref).phase == "deployed", "deployed")


def ended(kit: CapiKit) -> list[str]:
    """Machines that are gone."""
    return [line for line in kit.controllers.story if line.endswith("is gone")]


def test_what_stands_there_is_told_and_ours_is_not(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """Name, version, sets and hosts, and what an owner should know; once it is taken over it stands there no more."""
    found = only(adapter)
    assert (found.ref, found.version, found.product, found.obstacles) == ("theirs", "1.34.2", "managed_kubernetes", ())
    assert [(one.name, one.instance_types) for one in found.sets] == [("workers", ("gpu-8",))]
    assert [(one.ref, one.node_set, one.ready) for one in found.hosts] == [(ref, "workers", True) for ref in REFS[:2]]
    assert {"pinned_by_upgrade", "written_by_others", "kubeconfigs_stay"} == {one.code for one in found.notices}
    assert "managed_kubernetes" in adapter.capabilities().adopts
    adopted(adapter)
    assert adapter.list_standing() == ()
    assert adapter.list_clusters().cluster_ids == ("clu_1",)


def test_taking_over_replaces_nothing_and_letting_go_leaves_nothing(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """Marks come and go; Machines, hosts and the topology are what they were."""
    before, story = kit.state(), list(kit.controllers.story)
    adopted(adapter)
    adopted_again = Adoption("theirs", next(key for key in before if key.startswith("theirs ")).split()[1], spec(*REFS[:2]))
    adapter.adopt_cluster(adopted_again)
    kit.settle()
    view = adapter.observe_cluster("clu_1")
    assert {one.ref: (one.state, one.gpus) for one in view.members} == dict.fromkeys(REFS[:2], ("up", 8))
    assert (view.verified_at is not None, view.version) == (True, "1.34.2")
    assert {one.ref: (one.phase, one.token) for one in adapter.list_machines().machines if one.token} == {
        ref: ("deployed", f"alc_{ref[-2:]}") for ref in REFS[:2]
    }
    assert kit.controllers.story == story, "no Machine was made or taken"
    with pytest.raises(Refused):
        adapter.deploy(Deployment(REFS[0], "alc_other", "ten_two", "clu_2", network="net"))
    for _ in range(2):
        adapter.let_go("clu_1")
    kit.settle()
    assert kit.state() == before
    assert kit.controllers.story == story
    with pytest.raises(NotFound):
        adapter.observe_cluster("clu_1")


def test_it_grows_shrinks_and_replaces_without_touching_those_that_were_there(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """New hosts go to a machine deployment of their own, exactly those that were chosen; the others' Machines stay until they are named."""
    adopted(adapter)
    first = {ref: kit.host(ref)["spec"]["consumerRef"]["name"] for ref in REFS[:2]}
    deploy(adapter, kit, REFS[3])
    complete(adapter, kit, spec(REFS[0], REFS[1], REFS[3]))
    assert {ref: kit.host(ref)["spec"]["consumerRef"]["name"] for ref in REFS[:2]} == first
    assert ended(kit) == []
    complete(adapter, kit, spec(REFS[1], REFS[3]))
    assert ended(kit) == [f"{first[REFS[0]]} is gone"]
    deploy(adapter, kit, REFS[2])
    complete(adapter, kit, spec(REFS[3], REFS[2]))
    assert ended(kit) == [f"{first[ref]} is gone" for ref in REFS[:2]]
    topology = kit.kit.ask("GET", f"{kit.capi()}/clusters/theirs")["spec"]["topology"]
    counts = {one["name"]: one["replicas"] for one in topology["workers"]["machineDeployments"]}
    assert (counts["workers"], sum(counts.values())) == (0, 2)


def test_an_upgrade_pins_what_was_not_and_each_machine_is_replaced_once(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """The template changes with the version, so one replacement does both; each host is its cluster's still, and no other was taken."""
    adopted(adapter)
    deploy(adapter, kit, REFS[3])
    wanted = spec(REFS[0], REFS[1], REFS[3])
    complete(adapter, kit, wanted)
    newer = replace(wanted, version="1.35.1")
    adapter.apply_cluster(newer)
    until(kit, lambda: adapter.observe_cluster("clu_1").version == "1.35.1", "upgraded")
    kit.settle()
    assert taken(kit) == {REFS[0], REFS[1], REFS[3]}
    assert len([one for one in ended(kit) if "-cp-" not in one]) == 3
    complete(adapter, kit, newer)
    assert len([one for one in ended(kit) if "-cp-" not in one]) == 3, "nothing is replaced a second time"
    selectors = {one["spec"]["pin"] for one in kit.objects("machinedeployments")}
    assert selectors == {"contract-clu-1.workers"}


def test_deleting_it_gives_every_host_back_clean(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """As for a cluster that we made: nothing is left, and hosts are released and wiped under the tokens they were taken with."""
    adopted(adapter)
    kit.settle()

    def absent() -> bool:
        adapter.delete_cluster("clu_1")
        try:
            adapter.observe_cluster("clu_1")
        except NotFound:
            return True
        return False

    adapter.delete_cluster("clu_1")
    assert adapter.observe(REFS[0]).phase == "deployed", "known as its tenancy's while Cluster API takes it down"
    until(kit, absent, "gone")
    for ref in REFS[:2]:
        until(
            kit,
            lambda ref=ref: adapter.release(ref, f"alc_{ref[-2:]}", accepted_at=LONG_AGO) or True,
            "release",
        )  # type: ignore[misc]
        until(kit, lambda ref=ref: adapter.observe(ref).phase == "released", "released")  # type: ignore[misc]
        adapter.wipe(ref, "wip_1")
        until(kit, lambda ref=ref: adapter.observe(ref).phase == "wiped", "wiped")  # type: ignore[misc]
    assert kit.remains() == []


def test_whatever_write_is_lost_a_repeat_ends_it_and_letting_go_leaves_nothing(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """Cut before or after it took effect, on the Cluster or on either host, going in or out."""
    before = kit.state()
    found = only(adapter)
    asked = Adoption(found.ref, found.uid, spec(*REFS[:2]))
    for path in ("/clusters/theirs", *(f"/baremetalhosts/{ref}" for ref in REFS[:2])):
        for kind in ({"cut": True}, {"cutAfter": True}, {"status": 500}):
            faults = [{"method": "PATCH", "path": path, "times": 1, **kind}]
            kit.kit.handle.post("/_emu/faults", faults)
            with pytest.raises(Unknown):
                adapter.adopt_cluster(asked)
            adapter.adopt_cluster(asked)
            assert {one.state for one in adapter.observe_cluster("clu_1").members} == {"up"}
            kit.kit.handle.post("/_emu/faults", faults)
            with pytest.raises(Unknown):
                adapter.let_go("clu_1")
            fresh = kit.adapter()
            fresh.let_go("clu_1")
            fresh.close()
            assert kit.state() == before, (path, kind)
    kit.kit.handle.post("/_emu/faults", [])


def test_what_has_changed_since_it_was_seen_is_not_taken(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """Another of its name, other hosts, another version, another installation's: nothing is written."""
    found, before = only(adapter), kit.state()
    good = Adoption(found.ref, found.uid, spec(*REFS[:2]))
    wrong = [
        replace(good, uid="another"),
        replace(good, ref="nobodys"),
        replace(good, ref="../../x"),
        replace(good, spec=spec(REFS[0])),
        replace(good, spec=spec(REFS[0], REFS[2])),
        replace(good, spec=spec(*REFS[:2], version="1.35.1")),
    ]
    for one in wrong:
        with pytest.raises(Refused):
            adapter.adopt_cluster(one)
    assert kit.state() == before
    mark = {"metadata": {"labels": {"controlplane.internal/deployment": "others", "controlplane.internal/cluster": "clu_9"}}}
    kit.kit.ask("PATCH", f"{kit.capi()}/clusters/theirs", mark)
    with pytest.raises(Refused, match="another installation"):
        adapter.adopt_cluster(good)
    assert "other_installation" in {one.code for one in only(adapter).obstacles}


def test_two_cannot_have_it_and_what_we_made_is_not_let_go(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """The first that marks it has it; a cluster of our own making keeps its marks."""
    asked = adopted(adapter)
    with pytest.raises(Refused):
        adapter.adopt_cluster(replace(asked, spec=replace(asked.spec, cluster_id="clu_2")))
    deploy_for(adapter, kit, REFS[2], "clu_3")
    own = ClusterSpec("clu_3", "ten_one", "prj_one", "", (Member(REFS[2], 8, "alc_02", "workers", "gpu-8"),), "1.34.2")

    def up() -> bool:
        adapter.apply_cluster(own)
        return {one.state for one in adapter.observe_cluster("clu_3").members} == {"up"}

    until(kit, up, "ours")
    adapter.let_go("clu_3")
    assert adapter.list_clusters().cluster_ids == ("clu_1", "clu_3")


def deploy_for(adapter: ClusterApiAdapter, kit: CapiKit, ref: str, cluster_id: str) -> None:
    """The host is that cluster's to take."""
    adapter.deploy(Deployment(ref, f"alc_{ref[-2:]}", "ten_one", cluster_id, network="net"))
    until(kit, lambda: adapter.observe(ref).phase == "deployed", "deployed")


def test_a_machine_that_went_astray_is_the_first_to_go(kit: CapiKit, adapter: ClusterApiAdapter) -> None:
    """Cluster API makes a Machine anew where nothing pins it, and takes a host of nobody's: the member's own Machine is never the one
    that is given up for it.
    """
    adopted(adapter)
    kit.controllers.oldest_first = True
    name = kit.host(REFS[1])["spec"]["consumerRef"]["name"]
    keeps = kit.host(REFS[0])["spec"]["consumerRef"]["name"]
    kit.kit.ask("PATCH", kit.hosts(REFS[1]), {"metadata": {"labels": {"sold": "no"}}})
    kit.kit.ask("DELETE", f"{kit.capi()}/machines/{name}")
    until(kit, lambda: taken(kit) == {REFS[0], REFS[2]}, "astray")
    kit.kit.ask("PATCH", kit.hosts(REFS[1]), {"metadata": {"labels": {"sold": "yes"}}})
    complete(adapter, kit, spec(*REFS[:2]))
    assert kit.host(REFS[0])["spec"]["consumerRef"]["name"] == keeps
    assert taken(kit) == set(REFS[:2])


def test_each_machine_deployment_is_a_node_set_of_its_own() -> None:
    """One grows and the other shrinks; what is nobody's business of ours in the topology stays as its owner wrote it."""
    two = [
        {"class": "h100", "name": "train", "replicas": 2, "metadata": {"labels": {"theirs": "x"}}},
        {"class": "h100", "name": "serve", "replicas": 1},
    ]
    with capi_kit(hosts=5) as kit:
        kit.stand("theirs", 0, workers={"machineDeployments": two}, controlPlane={"replicas": 3})
        adapter = kit.adapter()
        found = only(adapter)
        sets = {one.ref: one.node_set for one in found.hosts}
        assert sorted(sets.values()) == ["serve", "train", "train"]

        def wanted(*refs: str) -> ClusterSpec:
            members = tuple(Member(ref, 8, f"alc_{ref[-2:]}", sets[ref], "gpu-8") for ref in refs)
            return ClusterSpec("clu_1", "ten_one", "prj_one", "", members, "1.34.2")

        adapter.adopt_cluster(Adoption(found.ref, found.uid, wanted(*sets)))
        gives = next(ref for ref, name in sorted(sets.items()) if name == "train")
        fresh = next(ref for ref in (*REFS, "metal-04") if ref not in sets)
        sets[fresh] = "serve"
        deploy(adapter, kit, fresh)
        complete(adapter, kit, wanted(*(ref for ref in sets if ref != gives)))
        topology = kit.kit.ask("GET", f"{kit.capi()}/clusters/theirs")["spec"]["topology"]
        there = {one["name"]: one for one in topology["workers"]["machineDeployments"]}
        assert {name: one["replicas"] for name, one in there.items() if name in {"train", "serve"}} == {"train": 1, "serve": 1}
        assert (there["train"]["metadata"], topology["controlPlane"]["replicas"]) == ({"labels": {"theirs": "x"}}, 3)
        assert len(there) == 3
        adapter.close()
