"""
Namespaces that run in a shared Kubernetes: seen, taken over without touching a pod, changed like any other cluster, and let go.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.adapter import KubernetesAdapter
from controlplane.providers.adoption import Adoption, Standing
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import Busy, NotFound, Refused, Transient
from controlplane.providers.kube.work.names import CLUSTER
from controlplane.providers.machines import Deployment
from controlplane.providers.services import ServiceSpec
from tests import pod_policies
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubernetes_kit
from tests.kubernetes_standing import BASE, DEPLOYMENTS, JSON, hosts, pods, running, stand, state, until

pytestmark = UNTIDY
SLOW = os.environ.get("CONTROLPLANE_SLOW") == "1"
QUEUE = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/contract-clu-1"
TAINT = {"key": CLUSTER, "value": "clu_1", "effect": "NoSchedule"}


@pytest.fixture
def kit(request: pytest.FixtureRequest) -> Iterator[KubernetesKit]:
    """Four nodes; the namespace runs on two of them."""
    with kubernetes_kit(nodes=4, more=(getattr(request, "param", "policies"), "lws", "keda")) as made:
        stand(made)
        yield made


@pytest.fixture
def adapter(kit: KubernetesKit) -> Iterator[KubernetesAdapter]:
    """As in production."""
    made = kit.adapter()
    yield made
    made.close()


def spec(*refs: str, cluster_id: str = "clu_1") -> ClusterSpec:
    """Exactly these members."""
    members = tuple(Member(ref, 8, f"alc_{ref[-2:]}", "workers", "hgx-h100-8") for ref in refs)
    return ClusterSpec(cluster_id, "ten_one", "prj_one", "", members)


def only(adapter: KubernetesAdapter) -> Standing:
    """The one that stands there."""
    (found,) = adapter.list_standing()
    return found


def wish(adapter: KubernetesAdapter) -> Adoption:
    """To take over the one that stands there."""
    found = only(adapter)
    return Adoption(found.ref, found.uid, spec(*(one.ref for one in found.hosts)))


def adopted(adapter: KubernetesAdapter) -> Adoption:
    """The one that stands there is ours now."""
    asked = wish(adapter)
    adapter.adopt_cluster(asked)
    return asked


def ends_at_last(call: Callable[[], None]) -> None:
    """It is asked for until nothing hinders it."""

    def done() -> bool:
        try:
            call()
        except Busy:
            return False
        return True

    until(done)


def node(kit: KubernetesKit, ref: str) -> Any:
    """As the API shows it."""
    return kit.ask("GET", f"/api/v1/nodes/{ref}")


def come_again(kit: KubernetesKit, refs: list[str], *, others: bool = False) -> None:
    """Each pod of the namespace is lost once, and comes again on these nodes; for `others`, though there are others that are free."""
    spare = sorted({name for _, name in kit.emulator.data[("", "nodes")]} - set(refs)) if not others else []
    _cordon(kit, spare, on=True)
    old = set(running(kit))
    for name in old:
        kit.ask("DELETE", f"{BASE}/pods/{name}", {"gracePeriodSeconds": 0}, JSON)
    until(lambda: len(running(kit)) == len(old) and not old & set(running(kit)))
    assert hosts(kit) == refs
    _cordon(kit, spare, on=False)


def _cordon(kit: KubernetesKit, refs: list[str], *, on: bool) -> None:
    for ref in refs:
        kit.ask("PATCH", f"/api/v1/nodes/{ref}", {"spec": {"unschedulable": on or None}})


def queued_gpus(kit: KubernetesKit) -> int:
    """What our queue promises."""
    (flavor,) = kit.ask("GET", QUEUE)["spec"]["resourceGroups"][0]["flavors"]
    return int(next(one["nominalQuota"] for one in flavor["resources"] if one["name"] == "nvidia.com/gpu"))


def test_what_stands_there_is_told_and_ours_is_not(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Name, version and hosts, and what an owner should know; once it is taken over it stands there no more."""
    few = kit.adapter(page_size=1)
    found = only(few)
    few.close()
    assert (found.ref, found.version, found.product, found.obstacles) == ("theirs", "1.36.2", "kubernetes", ())
    assert [(one.ref, one.node_set, one.ready) for one in found.hosts] == [(ref, "workers", True) for ref in hosts(kit)]
    assert {"pods_are_steered", "policies_stay", "deleted_whole"} == {one.code for one in found.notices}
    assert adapter.capabilities().adopts == ("kubernetes",)
    adopted(adapter)
    assert adapter.list_standing() == ()
    assert adapter.list_clusters().cluster_ids == ("clu_1",)


@pytest.mark.parametrize("kit", ["policies", "early-policies"], indirect=True)
def test_taking_over_touches_no_pod_and_letting_go_leaves_nothing(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Marks, bars, policies and rights come and go; pods and what is theirs are what they were."""
    before, refs, there = state(kit), hosts(kit), running(kit)
    asked = adopted(adapter)
    adapter.adopt_cluster(asked)
    assert running(kit) == there
    view = adapter.observe_cluster("clu_1")
    assert {one.ref: (one.state, one.gpus) for one in view.members} == dict.fromkeys(refs, ("up", 8))
    assert view.verified_at is not None
    assert {one.ref: (one.phase, one.token) for one in adapter.list_machines().machines if one.token} == {
        ref: ("deployed", f"alc_{ref[-2:]}") for ref in refs
    }
    assert all(TAINT in node(kit, ref)["spec"]["taints"] for ref in refs)
    for _ in range(2):
        adapter.let_go("clu_1")
    assert state(kit) == before
    with pytest.raises(NotFound):
        adapter.observe_cluster("clu_1")


def test_pods_that_start_again_come_to_its_nodes_and_to_no_others(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """The server adds selector and toleration, so a restart needs no owner; nor can its people send a pod to others' nodes."""
    refs = hosts(kit)
    adopted(adapter)
    other = next(one.ref for one in adapter.list_machines().machines if one.ref not in refs)
    adapter.apply_cluster(spec(other, cluster_id="clu_2"))
    come_again(kit, refs, others=True)
    bold = {"operator": "Exists"}
    reach = {"nodeSelector": {CLUSTER: "clu_2"}, "tolerations": [bold], "nodeName": ""}
    template = pods(kit)[0]["spec"]["containers"]
    template[0]["resources"] = {}
    body = {"metadata": {"name": "bold"}, "spec": {"containers": template, **reach}}
    kit.ask("POST", f"{BASE}/pods", body, JSON)
    until(lambda: "bold" in running(kit))
    assert running(kit)["bold"] in refs


def test_nothing_is_barred_before_the_server_is_seen_to_send_pods_there(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """A policy takes a while to be in force, and to be so no more: until then pods start again as ever, both ways."""
    asked, refs = wish(adapter), hosts(kit)
    kit.handle.post(
        "/_emu/faults", [{"method": "PATCH", "path": "/mutatingadmissionpolicybindings/", "times": 1, "cutAfter": True}]
    )
    with pytest.raises(Transient):
        adapter.adopt_cluster(asked)
    come_again(kit, refs)
    kit.emulator.in_force = []
    with pytest.raises(Busy, match="does not reach"):
        adapter.adopt_cluster(asked)
    assert not any(node(kit, ref)["spec"].get("taints") for ref in refs)
    come_again(kit, refs)
    kit.emulator.in_force = None
    adapter.adopt_cluster(asked)
    kit.emulator.in_force = pod_policies.bound(kit.emulator)
    with pytest.raises(Busy, match="still reaches"):
        adapter.let_go("clu_1")
    come_again(kit, refs)
    kit.emulator.in_force = None
    adapter.let_go("clu_1")
    assert not any(CLUSTER in node(kit, ref)["metadata"]["labels"] for ref in refs)


def test_a_policy_that_somebody_removes_is_told_and_comes_with_the_next_change(
    kit: KubernetesKit, adapter: KubernetesAdapter
) -> None:
    """Without it no pod could start again. A look does not write it: the look could be late, and the namespace nobody's of ours by then."""
    asked = adopted(adapter)
    for kind in (pod_policies.POLICY, pod_policies.BINDING):
        kit.ask("DELETE", f"/apis/{pod_policies.GROUP}/v1/{kind}/contract-clu-1")
    for result in ("failed", "passed"):
        told = {one.name: one.result for one in adapter.observe_cluster("clu_1").checks}
        assert told == {"gpu_count": "passed", "pod_policy": result}
        adapter.apply_cluster(asked.spec)
    assert len(pod_policies.bound(kit.emulator)) == 1


@pytest.mark.parametrize("kit", ["extensions"], indirect=True)
def test_without_such_policies_nothing_is_taken(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """It is told why, and a try writes nothing."""
    before = state(kit)
    assert [one.code for one in only(adapter).obstacles] == ["no_pod_policies"]
    with pytest.raises(Refused) as refused:
        adapter.adopt_cluster(wish(adapter))
    assert refused.value.code == "provider_no_pod_policies"
    assert state(kit) == before


def test_who_changed_meanwhile_is_not_taken_and_marks_of_others_stay(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Another of its name, other nodes, other GPUs than it is sold with, a neighbour; writers in between are read again."""
    asked, before = wish(adapter), state(kit)
    refs = [one.ref for one in asked.spec.members]
    fewer = replace(asked.spec, members=tuple(replace(one, gpus=4) for one in asked.spec.members))
    for wrong, code in (
        (replace(asked, uid="another"), "provider_cluster_changed"),
        (replace(asked, spec=spec(refs[0])), "provider_cluster_changed"),
        (replace(asked, spec=fewer), "provider_gpus_differ"),
        (replace(asked, ref="../nodes"), "provider_bad_name"),
    ):
        with pytest.raises(Refused) as refused:
            adapter.adopt_cluster(wrong)
        assert refused.value.code == code
    assert state(kit) == before
    conflicts = [{"method": "PATCH", "path": path, "times": 2, "status": 409} for path in ("/namespaces/theirs", "/nodes/")]
    kit.handle.post("/_emu/faults", conflicts)
    adapter.adopt_cluster(asked)
    kit.handle.post("/_emu/faults", [])
    second = replace(asked, spec=replace(asked.spec, cluster_id="clu_2"))
    with pytest.raises(Refused):
        adapter.adopt_cluster(second)
    with pytest.raises(Refused):
        adapter.apply_cluster(spec(refs[0], cluster_id="clu_2"))
    adapter.let_go("clu_2")
    adapter.apply_cluster(asked.spec)
    assert adapter.observe_cluster("clu_1").verified_at is not None


def test_what_a_late_call_writes_is_found_and_taken_away(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """A change that began before it was let go writes after that: its pods are sent nowhere, and it is seen, and let go once more."""
    before, asked, late = state(kit), adopted(adapter), kit.adapter()
    fault = {"method": "PATCH", "path": "/resourcequotas/", "times": 1, "delay": 1.0}
    kit.handle.post("/_emu/faults", [fault])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(late.apply_cluster, asked.spec)
        until(lambda: kit.emulator.faults[0]["times"] == 0)
        adapter.let_go("clu_1")
        with pytest.raises(Refused, match="was let go"):
            writing.result()
    late.close()
    assert pod_policies.bound(kit.emulator) == []
    assert adapter.list_clusters().cluster_ids == ("clu_1",)
    adapter.let_go("clu_1")
    assert (adapter.list_clusters().cluster_ids, state(kit) == before) == ((), True)


def test_a_namespace_that_its_owner_removes_is_not_made_anew(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """What it held is not ours to make; letting go, or deleting, leaves nothing of ours all the same."""
    asked = adopted(adapter)
    kit.ask("DELETE", BASE)
    until(lambda: "theirs" not in {one["metadata"]["name"] for one in kit.ask("GET", "/api/v1/namespaces")["items"]})
    again = kit.adapter()
    for one in (adapter, again):
        with pytest.raises(Refused, match="is gone"):
            one.apply_cluster(asked.spec)
    again.let_go("clu_1")
    again.close()
    assert [one for one in state(kit) if "clu-1" in one] == []
    assert not any(CLUSTER in node(kit, one.ref)["metadata"]["labels"] for one in asked.spec.members)


def test_jobs_are_promised_what_its_own_pods_leave(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Twelve of sixteen GPUs are taken, so a gang of eight waits; when they are free it starts, in the namespace as it is called."""
    adopted(adapter)
    assert queued_gpus(kit) == 4
    job = JobSpec("job_1", "clu_1", "ten_one", "", "#!/bin/sh\necho hello\n", 1, 2, 1, 60)
    adapter.submit(job)
    until(lambda: adapter.find_job("clu_1", "job_1").phase == "succeeded")
    assert adapter.read_output("clu_1", "job_1", offset=0, limit=100).data == b"hello\n"
    assert [one["metadata"]["namespace"] for one in kit.ask("GET", "/apis/batch/v1/jobs")["items"]] == ["theirs"]
    kit.ask("PATCH", f"{DEPLOYMENTS}/serve", {"spec": {"replicas": 0}})
    until(lambda: len(pods(kit)) == 0)
    adapter.observe_cluster("clu_1")
    assert queued_gpus(kit) == 16
    again = kit.adapter(tenant_url="https://kube.example.org")
    assert again.find_job("clu_1", "job_1").phase == "succeeded", "another process finds it too"
    assert [one.token for one in again.list_jobs("clu_1")] == ["job_1"]
    assert "namespace: theirs" in again.issue_kubeconfig("clu_1", "ten_one", lifetime_s=600).text
    again.apply_service(ServiceSpec("svc_1", "clu_1", "ten_one", 1, 1, "a/b:1", 8000, 1))
    again.close()
    assert adapter.list_services("clu_1") == ("svc_1",)
    until(lambda: len(running(kit)) == 1)
    ends_at_last(lambda: adapter.let_go("clu_1"))
    assert kit.ask("GET", "/apis/batch/v1/jobs")["items"] == []
    assert [one["metadata"]["name"] for one in kit.ask("GET", DEPLOYMENTS)["items"]] == ["serve"]
    assert pods(kit) == []


def test_a_node_is_given_back_without_pods_of_the_namespace(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """They carry no mark of ours, and are its tenant's all the same: evicted when it is given back, and in the way of a wipe."""
    adopted(adapter)
    first, _ = hosts(kit)
    with pytest.raises(Busy, match="ending"):
        adapter.release(first, f"alc_{first[-2:]}", accepted_at=adapter._shared.peer_now())
    until(lambda: first not in hosts(kit))


def test_whoever_comes_in_the_last_moment_is_seen(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Between the look and the bar a pod of others started on one of its nodes: it is not taken, and let go as it was."""
    asked, create, first = wish(adapter), kit.emulator.create, hosts(kit)[0]
    before = state(kit)

    def meanwhile(res: Any, ns: Any, body: Any, manager: Any, dry: bool = False, **more: Any) -> Any:  # noqa: FBT001, FBT002 - the kit's
        if dry and ("default", "guest") not in kit.emulator.data[("", "pods")]:
            guest = {"metadata": {"name": "guest"}, "spec": {"nodeName": first, "containers": [{"name": "c", "image": "a/b:1"}]}}
            create(res, "default", guest, "somebody")
        return create(res, ns, body, manager, dry, **more)

    kit.emulator.create = meanwhile
    with pytest.raises(Refused, match="default/guest"):
        adapter.adopt_cluster(asked)
    kit.emulator.create = create
    adapter.let_go("clu_1")
    kit.ask("DELETE", "/api/v1/namespaces/default/pods/guest", {"gracePeriodSeconds": 0}, JSON)
    assert state(kit) == before


def test_it_grows_and_shrinks_and_is_deleted_as_any_other(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """A node that leaves is emptied of its own pods too, and wiped only then; deleted, the namespace and all of ours is gone."""
    first, second = hosts(kit)
    adopted(adapter)
    third = next(one.ref for one in adapter.list_machines().machines if one.ref not in {first, second})
    adapter.deploy(Deployment(third, f"alc_{third[-2:]}", "ten_one", "clu_1", network="net"))
    grown = spec(first, second, third)
    adapter.apply_cluster(grown)
    assert {one.ref for one in adapter.observe_cluster("clu_1").members} == {first, second, third}
    shrunk = spec(second, third)
    with pytest.raises(Busy):
        adapter.apply_cluster(shrunk)
    until(lambda: hosts(kit) == sorted([second, third]))

    ends_at_last(lambda: adapter.apply_cluster(shrunk))
    adapter.release(first, f"alc_{first[-2:]}", accepted_at=adapter._shared.peer_now())
    adapter.wipe(first, "wipe_1")
    until(lambda: adapter.observe(first).phase == "wiped")
    assert "taints" not in node(kit, first)["spec"] or not node(kit, first)["spec"]["taints"]

    def gone() -> bool:
        try:
            adapter.delete_cluster("clu_1")
            adapter.observe_cluster("clu_1")
        except NotFound:
            return True
        except Busy:
            return False
        return False

    until(gone)
    assert [one for one in state(kit) if "theirs" in one or "clu-1" in one] == []
    assert not any(CLUSTER in node(kit, ref)["metadata"]["labels"] for ref in (second, third))


WRITES = (
    ("PATCH", "/namespaces/theirs\\?"),
    ("PATCH", "/nodes/"),
    ("PATCH", "/mutatingadmissionpolicies/"),
    ("PATCH", "/mutatingadmissionpolicybindings/"),
    ("POST", "/theirs/pods"),
    ("PATCH", "/resourcequotas/"),
    ("PATCH", "/networkpolicies/outside"),
    ("PATCH", "/rolebindings/"),
    ("PATCH", "/clusterqueues/"),
    ("DELETE", "/networkpolicies/deny-all"),
    ("DELETE", "/serviceaccounts/"),
    ("DELETE", "/mutatingadmissionpolicybindings/"),
    ("DELETE", "/mutatingadmissionpolicies/"),
    ("DELETE", "/resourceflavors/"),
    ("DELETE", "/localqueues/"),
)
"""Requests whose answers are lost: all of them where time is no matter, each third otherwise."""


def test_whatever_answer_is_lost_it_comes_to_the_same_end(kit: KubernetesKit, adapter: KubernetesAdapter) -> None:
    """Each is carried out, or is not, and nobody hears of it: doing it again is enough, both ways, whichever call it was."""
    before, asked = state(kit), wish(adapter)
    for method, path in WRITES if SLOW else WRITES[::3]:
        for way in ("cutAfter", "cut") if SLOW else ("cutAfter",):
            kit.handle.post("/_emu/faults", [{"method": method, "path": path, "times": 1, way: True}])
            unheard = 0
            for call in (lambda: adapter.adopt_cluster(asked), lambda: adapter.let_go("clu_1")):
                try:
                    call()
                except Transient:
                    unheard += 1
                    call()
                assert set(running(kit).values()) == {one.ref for one in asked.spec.members}
            kit.handle.post("/_emu/faults", [])
            assert (unheard, state(kit) == before) == (1, True), (method, path, way)
