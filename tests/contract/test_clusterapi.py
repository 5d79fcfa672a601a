"""
The Cluster API adapter when servers misbehave, what it leaves alone, and which machines it takes.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.adapters.clusterapi.adapter import ClusterApiAdapter, build
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.rights import class_needs, needs_for
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, ProviderError, Refused, Unknown, Unsupported
from controlplane.providers.machines import Deployment
from controlplane.providers.registry import AdapterInput
from tests.capi_kit import CONFIG, NAMESPACE, CapiKit, a_host, capi_kit, spec, until
from tests.kubernetes_kit import UNTIDY, kubeconfig, kubernetes_kit
from tests.tls_door import tls_door

pytestmark = UNTIDY
REFS = ("metal-00", "metal-01", "metal-02")
ADMIN = "an-administrators-token"


@pytest.fixture
def kit() -> Iterator[CapiKit]:
    """Four hosts."""
    with capi_kit(hosts=4) as made:
        yield made


def faults(kit: CapiKit, *some: dict[str, Any]) -> None:
    """The server fails so."""
    kit.kit.handle.post("/_emu/faults", list(some))


def deployed(adapter: ClusterApiAdapter, kit: CapiKit, *refs: str) -> None:
    """The hosts are the cluster's to take."""
    for ref in refs:
        adapter.deploy(Deployment(ref, f"alc_{ref[-2:]}", "ten_one", "clu_1", network="net"))
        until(kit, lambda ref=ref: adapter.observe(ref).phase == "deployed", "deployed")


def complete(adapter: ClusterApiAdapter, kit: CapiKit, wanted: ClusterSpec) -> None:
    """Exactly the wanted members are up."""
    refs = {one.ref for one in wanted.members}

    def there() -> bool:
        adapter.apply_cluster(wanted)
        return {one.ref for one in adapter.observe_cluster("clu_1").members if one.state == "up"} == refs == taken(kit)

    until(kit, there, "complete")
    kit.settle()
    adapter.apply_cluster(wanted)


def taken(kit: CapiKit) -> set[str]:
    """Hosts that Machines have."""
    return {one["metadata"]["name"] for one in kit.kit.ask("GET", kit.hosts())["items"] if one["spec"].get("consumerRef")}


def gone(adapter: ClusterApiAdapter, kit: CapiKit) -> None:
    """The cluster was deleted and seen gone."""

    def absent() -> bool:
        adapter.delete_cluster("clu_1")
        try:
            adapter.observe_cluster("clu_1")
        except NotFound:
            return True
        return False

    until(kit, absent, "gone")


def test_every_fault_is_told_by_its_kind_and_healed_by_a_repeat(kit: CapiKit) -> None:
    """Whatever happened to a try, the next one leaves one cluster with its members."""
    adapter = kit.adapter()
    deployed(adapter, kit, *REFS[:2])
    kinds: tuple[tuple[dict[str, Any], type[ProviderError]], ...] = (
        ({"status": 429, "retryAfter": 7}, Busy),
        ({"status": 500}, Unknown),
        ({"status": 401}, AuthFailed),
        ({"status": 403}, AuthFailed),
        ({"status": 410}, Unknown),
        ({"cut": True}, Unknown),
        ({"cutAfter": True}, Unknown),
    )
    for path in ("/baremetalhosts/metal-01", "/clusters/contract-clu-1"):
        for fault, error in kinds:
            kit.kit.ask("PATCH", kit.hosts("metal-01"), {"metadata": {"labels": {"controlplane.internal/pin": None}}})
            faults(kit, {"method": "PATCH", "path": path, "times": 1, **fault})
            with pytest.raises(error):
                adapter.apply_cluster(spec(*REFS[:2]))
            faults(kit)
            adapter.apply_cluster(spec(*REFS[:2]))
    complete(adapter, kit, spec(*REFS[:2]))
    assert len(kit.objects("clusters")) == 1
    faults(kit, {"method": "DELETE", "path": "/clusters/", "times": 1, "cutAfter": True})
    with pytest.raises(Unknown):
        adapter.delete_cluster("clu_1")
    gone(adapter, kit)
    assert kit.remains() == []
    adapter.close()
    with pytest.raises(NotSent):
        kit_away().observe_cluster("clu_1")


def kit_away() -> ClusterApiAdapter:
    """An adapter whose server is not there."""
    secrets = {"kubeconfig": kubeconfig("http://127.0.0.1:9", {"token": "t"})}
    return build(AdapterInput("prv_1", CONFIG, secrets, "contract", lambda: datetime.now(UTC)))


def test_lists_are_paged_and_conflicts_read_again(kit: CapiKit) -> None:
    """An expiry that never ends is unknown, not a short list; another writer's label stays."""
    adapter = kit.adapter(page_size=1)
    deployed(adapter, kit, *REFS[:2])
    kit.kit.ask("PATCH", kit.hosts("metal-00"), {"metadata": {"labels": {"example.org/theirs": "x"}}})
    faults(kit, {"method": "PATCH", "path": "/baremetalhosts/", "times": 2, "status": 409})
    adapter.apply_cluster(spec(*REFS[:2]))
    assert kit.host("metal-00")["metadata"]["labels"]["example.org/theirs"] == "x"
    faults(kit, {"path": "continue=", "times": 1, "status": 410})
    assert len(adapter.list_machines().machines) == 4
    faults(kit, {"path": "continue=", "times": 99, "status": 410})
    with pytest.raises(Unknown):
        adapter.list_machines()
    faults(kit, {"method": "PATCH", "path": "/baremetalhosts/", "times": 99, "status": 409})
    with pytest.raises(Busy):
        adapter.power("metal-03", on=True, token="pwr_1")
    adapter.close()


def test_a_shrink_takes_exactly_the_chosen_host(kit: CapiKit) -> None:
    """Neither the newest nor the oldest, and nothing takes its host again; the others keep their machines."""
    adapter = kit.adapter()
    deployed(adapter, kit, *REFS)
    complete(adapter, kit, spec(*REFS))
    before = {ref: kit.host(ref)["spec"]["consumerRef"]["name"] for ref in REFS}
    complete(adapter, kit, spec(REFS[0], REFS[2]))
    after = {ref: kit.host(ref)["spec"]["consumerRef"]["name"] for ref in (REFS[0], REFS[2])}
    assert after == {ref: before[ref] for ref in after}
    assert [line for line in kit.controllers.story if line.endswith("is gone")] == [f"{before[REFS[1]]} is gone"]
    assert not [key for key in kit.host(REFS[1])["metadata"]["labels"] if key.startswith("controlplane.internal")]
    adapter.close()


def test_a_host_that_leaves_is_taken_by_no_other_machine(kit: CapiKit) -> None:
    """Not even by one that Cluster API makes by itself, for a machine that somebody has deleted, while the host stands free."""
    adapter = kit.adapter()
    deployed(adapter, kit, *REFS[:2])
    complete(adapter, kit, spec(*REFS[:2]))
    adapter.apply_cluster(spec(REFS[0]))
    until(kit, lambda: taken(kit) == {REFS[0]}, "left")
    name = kit.host(REFS[0])["spec"]["consumerRef"]["name"]
    kit.kit.ask("DELETE", f"{kit.capi()}/machines/{name}")
    until(
        kit,
        lambda: {one["metadata"]["name"] for one in kit.objects("machines") if "workers" in one["metadata"]["name"]} != {name},
        "made anew",
    )
    until(kit, lambda: kit.host(REFS[0])["spec"].get("consumerRef", {}).get("name") not in {None, name}, "back")
    assert taken(kit) == {REFS[0]}
    adapter.close()


def test_a_replacement_has_its_host_before_the_other_goes(kit: CapiKit) -> None:
    """The count never falls below what was ordered while the new one is chosen, and the one that goes is the one that was named."""
    adapter = kit.adapter()
    deployed(adapter, kit, *REFS)
    complete(adapter, kit, spec(*REFS[:2]))
    old = kit.host(REFS[0])["spec"]["consumerRef"]["name"]
    complete(adapter, kit, spec(*REFS[1:]))
    story = kit.controllers.story
    (took,) = (place for place, line in enumerate(story) if line.endswith(f"takes {REFS[2]}"))
    assert took < story.index(f"{old} is gone")
    assert sum(" takes " in line for line in story) == 3, "no other host was taken in between"
    adapter.close()


def test_a_member_that_is_wanted_again_is_no_longer_the_first_to_go(kit: CapiKit) -> None:
    """A change that was taken back leaves its machine as the others are."""
    adapter = kit.adapter()
    deployed(adapter, kit, *REFS[:2])
    complete(adapter, kit, spec(*REFS[:2]))
    kit.controllers.paused = {"clusters", "deployments"}
    adapter.apply_cluster(spec(REFS[0]))
    adapter.apply_cluster(spec(*REFS[:2]))
    kit.controllers.paused = set()
    complete(adapter, kit, spec(*REFS[:2]))
    assert not [
        one for one in kit.objects("machines") if "cluster.x-k8s.io/delete-machine" in one["metadata"].get("annotations", {})
    ]
    adapter.close()


def test_what_is_anothers_is_left_alone_and_told(kit: CapiKit) -> None:
    """Clusters of others, hosts that they have, and a Cluster that has our name and not our marks."""
    adapter = kit.adapter()
    theirs = {"metadata": {"name": "legacy"}, "spec": {"paused": True}}
    kit.kit.ask("POST", f"{kit.capi()}/clusters", theirs, "application/json")
    ref = {
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2",
        "kind": "Metal3Machine",
        "name": "legacy-1",
        "namespace": NAMESPACE,
    }
    kit.kit.ask("PATCH", kit.hosts("metal-00"), {"spec": {"consumerRef": ref}})
    assert [note for note in adapter.capabilities().notes if "1 Clusters here are not ours" in note and "legacy" in note]
    assert adapter.list_clusters().cluster_ids == ()
    view = adapter.observe("metal-00")
    assert (view.phase, view.token, "legacy-1" in view.failure) == ("unknown", None, True)
    with pytest.raises(Refused):
        adapter.deploy(Deployment("metal-00", "alc_1", "ten_one", "clu_1", network="net"))
    with pytest.raises(Refused):
        adapter.apply_cluster(spec("metal-00"))
    kit.kit.ask("POST", f"{kit.capi()}/clusters", {**theirs, "metadata": {"name": "contract-clu-1"}}, "application/json")
    with pytest.raises(Refused):
        adapter.apply_cluster(spec("metal-01"))
    adapter.delete_cluster("clu_1")
    assert {one["metadata"]["name"] for one in kit.objects("clusters")} == {"legacy", "contract-clu-1"}
    adapter.close()


def test_a_cluster_that_cannot_be_leaves_nothing(kit: CapiKit) -> None:
    """Hosts that are not there, types without a class, versions that are not offered: refused before anything is written."""
    adapter = kit.adapter()
    odd = replace(spec("metal-00"), members=(Member("metal-00", 8, "alc_00", "workers", "unheard-of"),))
    for wrong in (spec("metal-00", "metal-99"), odd, replace(spec("metal-00"), version="1.20.0")):
        with pytest.raises(Refused):
            adapter.apply_cluster(wrong)
    assert kit.remains() == []
    adapter.close()


def test_a_host_is_given_on_only_after_it_was_cleaned(kit: CapiKit) -> None:
    """While a Machine has it it is not released; where cleaning is off it is not taken, and what was given back so is not called clean."""
    adapter = kit.adapter()
    deployed(adapter, kit, "metal-00")
    complete(adapter, kit, spec("metal-00"))
    with pytest.raises(Busy):
        adapter.release("metal-00", "alc_00", accepted_at=datetime.now(UTC))
    kit.kit.ask("PATCH", kit.hosts("metal-00"), {"spec": {"automatedCleaningMode": "disabled"}})
    gone(adapter, kit)
    until(kit, lambda: adapter.release("metal-00", "alc_00", accepted_at=datetime.now(UTC)) or True, "released")
    until(kit, lambda: adapter.observe("metal-00").phase == "released", "seen released")
    adapter.wipe("metal-00", "wip_1")
    view = adapter.observe("metal-00")
    assert (view.phase, view.wipe) == ("failed", None)
    kit.kit.ask("PATCH", kit.hosts("metal-00"), {"spec": {"automatedCleaningMode": "metadata"}})
    view = adapter.observe("metal-00")
    assert (view.phase, view.wipe, "not cleaned since" in view.failure) == ("wiping", None, True)
    with pytest.raises(Busy):
        adapter.deploy(Deployment("metal-00", "alc_9", "ten_two", "clu_9", network="net"))
    later = datetime.fromtimestamp(time.time() + 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    history = {"operationHistory": {"deprovision": {"start": later, "end": later}}}
    kit.kit.ask("PATCH", f"{kit.hosts('metal-00')}/status", {"status": history})
    assert adapter.observe("metal-00").phase == "wiped", "its operator had it cleaned by hand"
    kit.add_host({**a_host("metal-09"), "spec": {**a_host("x")["spec"], "automatedCleaningMode": "disabled"}})
    with pytest.raises(Refused):
        adapter.deploy(Deployment("metal-09", "alc_9", "ten_two", "clu_9", network="net"))
    adapter.close()


def test_a_deletion_that_hangs_says_what_holds_it(kit: CapiKit) -> None:
    """In Cluster API's words; then it goes on."""
    adapter = kit.adapter()
    deployed(adapter, kit, "metal-00")
    complete(adapter, kit, spec("metal-00"))
    kit.controllers.budgets = {"metal-00"}
    adapter.delete_cluster("clu_1")

    def held() -> bool:
        (check,) = adapter.observe_cluster("clu_1").checks
        return "disruption budget" in check.detail

    until(kit, held, "held")
    kit.controllers.budgets = set()
    gone(adapter, kit)
    assert kit.remains() == []
    adapter.close()


def test_a_tenants_api_that_is_away_is_no_fault_of_the_provider(tmp_path: Path) -> None:
    """Its members are not known and nothing else is touched; kubeconfigs hold a token that ends, never the administrator's."""
    with (
        kubernetes_kit(nodes=0, kueue=False, token=ADMIN) as theirs,
        tls_door(theirs.handle.port, tmp_path) as door,
        capi_kit(hosts=2, tenant=theirs, server=lambda: way_in(door.url, door.ca_pem)) as kit,
    ):
        adapter = kit.adapter(kubeconfig_max_s=3600)
        deployed(adapter, kit, "metal-00")
        complete(adapter, kit, spec("metal-00"))
        got = adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900)
        assert ADMIN not in got.text
        assert 840 < (got.expires_at - datetime.now(UTC)).total_seconds() < 960
        token = next(line.split()[1] for line in got.text.splitlines() if line.strip().startswith("token:"))
        assert theirs.ask("GET", "/api/v1/nodes", token=token)["items"]
        for tenant, lifetime_s in (("ten_two", 900), ("ten_one", 7200)):
            with pytest.raises(Refused):
                adapter.issue_kubeconfig("clu_1", tenant, lifetime_s=lifetime_s)
        with pytest.raises(NotFound):
            adapter.issue_kubeconfig("clu_9", "ten_one", lifetime_s=900)
        theirs.handle.post("/_emu/faults", [{"path": "/api", "times": 99, "status": 503}])
        for ask in (
            lambda: adapter.observe_cluster("clu_1"),
            lambda: adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900),
            lambda: adapter.drain("clu_1", ("metal-00",), reason="repair"),
        ):
            with pytest.raises(Busy) as wrong:
                ask()
            assert wrong.value.code == "provider_cluster_unreachable"
        assert len(adapter.list_machines().machines) == 2
        adapter.close()


def way_in(url: str, ca_pem: str) -> str:
    """What Cluster API keeps."""
    return kubeconfig(url, {"token": ADMIN}, **{"certificate-authority-data": base64.b64encode(ca_pem.encode()).decode()})


def test_a_kubeconfig_that_cannot_be_used_is_waited_for(kit: CapiKit) -> None:
    """Cluster API may write it anew; what is in it is in no error."""
    first = kit.adapter()
    deployed(first, kit, "metal-00")
    complete(first, kit, spec("metal-00"))
    bad = kubeconfig("https://k", {"client-certificate-data": "Y2FuYXJ5", "client-key-data": "Y2FuYXJ5"})
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/contract-clu-1-kubeconfig"
    for text in (bad, "canary: [", bad.replace("Y2FuYXJ5", base64.b64encode(b"-----BEGIN X-----\ncanary").decode())):
        kit.kit.ask("PATCH", path, {"data": {"value": base64.b64encode(text.encode()).decode()}})
        adapter = kit.adapter()
        with pytest.raises(Busy) as wrong:
            adapter.observe_cluster("clu_1")
        assert (wrong.value.code, "canary" in str(wrong.value)) == ("provider_cluster_unreadable", False)
        adapter.close()
    first.close()


def test_an_owners_cordon_is_the_owners(kit: CapiKit) -> None:
    """It makes no member less, our drain on top of it does not own it, and our undrain leaves it."""
    adapter = kit.adapter()
    deployed(adapter, kit, "metal-00")
    complete(adapter, kit, spec("metal-00"))
    path = f"/api/v1/nodes/{kit.node_of('metal-00')}"
    kit.tenant.ask("PATCH", path, {"spec": {"unschedulable": True}})
    (member,) = adapter.observe_cluster("clu_1").members
    assert (member.state, member.drained_by_us, member.reason) == ("up", False, "cordoned by its owner")
    adapter.drain("clu_1", ("metal-00",), reason="repair")
    (member,) = adapter.observe_cluster("clu_1").members
    assert (member.state, member.drained_by_us, member.reason) == ("drained", False, "repair")
    adapter.undrain("clu_1", ("metal-00",))
    (member,) = adapter.observe_cluster("clu_1").members
    assert (member.state, kit.tenant.ask("GET", path)["spec"]["unschedulable"]) == ("up", True)
    adapter.close()


def test_without_tls_no_token_is_given_out(kit: CapiKit) -> None:
    """Kubectl would not show it."""
    adapter = kit.adapter()
    deployed(adapter, kit, "metal-00")
    complete(adapter, kit, spec("metal-00"))
    with pytest.raises(Unsupported):
        adapter.issue_kubeconfig("clu_1", "ten_one", lifetime_s=900)
    adapter.close()


def test_rights_and_classes_that_are_missing_are_named_and_nothing_is_ordered() -> None:
    """With exactly the rights that are asked for all of it works; with less, and with another ClusterClass, there is no product."""
    config = ClusterApiConfig(**CONFIG)
    with capi_kit(hosts=1, token=ADMIN) as kit:
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        kit.kit.ask("POST", accounts, {"metadata": {"name": "plane"}}, "application/json")
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}"
        for need in (*needs_for(config), *class_needs(config)):
            name = f"plane-{need.resource}"
            rules = [{"apiGroups": [need.group], "resources": [need.resource], "verbs": list(need.verbs)}]
            where = rbac.format(need.namespace)
            kit.kit.ask("POST", f"{where}/roles", {"metadata": {"name": name}, "rules": rules}, "application/json")
            binding = {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": "plane", "namespace": "default"}],
            }
            kit.kit.ask("POST", f"{where}/rolebindings", binding, "application/json")
        made = kit.kit.ask("POST", f"{accounts}/plane/token", {"spec": {"expirationSeconds": 3600}}, "application/json")

        def adapter(**more: Any) -> ClusterApiAdapter:
            secrets = {"kubeconfig": kubeconfig(kit.kit.handle.url, {"token": made["status"]["token"]})}
            return build(AdapterInput("prv_1", {**CONFIG, **more}, secrets, "contract", lambda: datetime.now(UTC)))

        whole = adapter()
        assert whole.capabilities().products == ("managed_kubernetes",)
        deployed(whole, kit, "metal-00")
        complete(whole, kit, spec("metal-00"))
        whole.drain("clu_1", ("metal-00",), reason="a look")
        whole.undrain("clu_1", ("metal-00",))
        gone(whole, kit)
        for more, word in (({"cluster_class": "other"}, "no ClusterClass"), ({"pin_variable": "other"}, "no variable other")):
            said = adapter(**more).capabilities()
            assert (said.products, any(word in note for note in said.notes)) == ((), True)
        kit.kit.ask("DELETE", f"{rbac.format(NAMESPACE)}/rolebindings/plane-machines")
        said = adapter().capabilities()
        assert (said.products, any("patch machines" in note for note in said.notes)) == ((), True)
        whole.close()
