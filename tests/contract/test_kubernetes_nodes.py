"""
Nodes of a Kubernetes as machines: whose they are, what they have, and what must be proved before the next tenant gets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.errors import Busy, NotFound, Refused, Unsupported
from controlplane.providers.kube.memory import MACHINE
from controlplane.providers.kube.work.names import CLUSTER, LEAVING, OWNER
from controlplane.providers.machines import Deployment, Machines, MachineView
from tests.contract.harness import Harness
from tests.contract.kubernetes_harness import KubernetesHarness, harnesses
from tests.kubernetes_kit import UNTIDY

pytestmark = UNTIDY
ACCEPTED_AT = datetime(2026, 11, 28, tzinfo=UTC)
NODE = "gpu-00000"
HELD = Deployment(NODE, "alc_1", "ten_one", "clu_1", network="net-1")
STRANGER: dict[str, Any] = {
    "metadata": {"name": "stranger"},
    "spec": {
        "nodeName": NODE,
        "containers": [{"name": "main", "image": "debian", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    },
}


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubernetesHarness]:
    """A Kubernetes of six free nodes."""
    with harnesses()["kubernetes"](tmp_path) as made:
        assert isinstance(made, KubernetesHarness)
        yield made


def _phase(kube: Harness, ref: str, phase: str) -> MachineView:
    seen: MachineView = kube.until(lambda: kube.adapter.observe(ref), lambda view: view.phase == phase, what=f"{ref} {phase}")
    return seen


def _node(kube: KubernetesHarness, ref: str = NODE) -> Any:
    return kube.kit.ask("GET", f"/api/v1/nodes/{ref}")


def _taints(node: Any) -> set[str]:
    return {one["key"] for one in node["spec"].get("taints") or []}


def test_a_node_is_a_machine_with_its_inventory(kube: KubernetesHarness) -> None:
    """What its kubelet registered; a listing is complete and agrees with a look at one."""
    kube.adapter.close()
    kube.adapter = kube.kit.adapter(gpu_models={"H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3"})
    assert isinstance(kube.adapter, Machines)
    listed = kube.adapter.list_machines()
    assert listed.complete
    assert [one.ref for one in listed.machines] == [f"gpu-{number:05d}" for number in range(6)]
    view = kube.adapter.observe(NODE)
    assert view == listed.machines[0]
    assert view.inventory is not None
    assert (view.power, view.phase, view.token) == ("unknown", "idle", None)
    seen = view.inventory
    assert (seen.gpu_model, seen.gpus, seen.memory_gib, seen.cpus) == ("H100-SXM5-80GB", 8, 2048, 192)
    assert seen.firmware["kubelet"] == "v1.36.2"
    with pytest.raises(NotFound):
        kube.adapter.observe("no-such-node")
    with pytest.raises(Unsupported):
        kube.adapter.power(NODE, on=False, token="pwr_1")


def test_the_operator_says_which_nodes_are_machines(kube: KubernetesHarness) -> None:
    """By a label selector; without one, those of the control plane are none."""
    labels = {"metadata": {"labels": {"example.org/sold": "yes", "node-role.kubernetes.io/control-plane": ""}}}
    kube.kit.ask("PATCH", f"/api/v1/nodes/{NODE}", labels)
    assert NODE not in {one.ref for one in kube.adapter.list_machines().machines}
    chosen = kube.kit.adapter(node_selector="example.org/sold=yes")
    assert [one.ref for one in chosen.list_machines().machines] == [NODE]
    chosen.close()


def test_a_qualification_tells_what_a_kubelet_knows_and_what_it_cannot(kube: KubernetesHarness) -> None:
    """Reported facts pass, a GPU that its device plugin has given up fails, what nobody measured says so."""
    kube.adapter.inspect(NODE, "isp_1")
    kube.adapter.qualify(NODE, "qua_1")
    view = kube.adapter.observe(NODE)
    results = {check.name: check.result for check in view.checks}
    assert view.qualified_token == "qua_1"
    assert results["node_answers"] == results["gpu_count"] == results["no_pressure"] == results["residue"] == "passed"
    assert results["gpu_burn_in"] == "not_measured"
    kube.kit.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"allocatable": {"nvidia.com/gpu": "7"}}})
    wrong = {check.name: check.detail for check in kube.adapter.observe(NODE).checks if check.result == "failed"}
    assert wrong == {"gpu_count": "7 of 8 usable"}


def test_a_tenancy_is_remembered_by_the_server_itself(kube: KubernetesHarness) -> None:
    """Held against another token, ready by the server's clock, over for good once released."""
    kube.adapter.deploy(HELD)
    kube.adapter.deploy(HELD)
    view = _phase(kube, NODE, "deployed")
    assert (view.token, view.network) == ("alc_1", "net-1")
    assert view.ready_at is not None
    with pytest.raises(Refused):
        kube.adapter.deploy(replace(HELD, token="alc_2"))
    with pytest.raises(Refused):
        kube.adapter.wipe(NODE, "wip_1")
    with pytest.raises(Refused):
        kube.adapter.release(NODE, "alc_2", accepted_at=ACCEPTED_AT)
    again = kube.kit.adapter()
    assert again.observe(NODE) == view
    again.close()
    for _ in range(2):
        kube.adapter.release(NODE, "alc_1", accepted_at=ACCEPTED_AT)
    assert kube.adapter.observe(NODE).phase == "released"
    with pytest.raises(Refused):
        kube.adapter.deploy(HELD)


def test_a_node_an_administrator_cordoned_is_not_deployed(kube: KubernetesHarness) -> None:
    """It becomes so when the cordon is lifted, by whoever set it."""
    kube.admin_drain(NODE, "disk swap")
    kube.adapter.deploy(HELD)
    view = kube.adapter.observe(NODE)
    assert (view.phase, view.ready_at, view.failure) == ("deploying", None, "not ready: it is cordoned")
    kube.admin_undrain(NODE)
    assert _phase(kube, NODE, "deployed").ready_at is not None


def test_a_node_with_somebody_elses_memory_is_left_alone(kube: KubernetesHarness) -> None:
    """Another installation's node is shown as unknown, and nothing of it is changed."""
    other = kube.kit.adapter()
    text = '{"owner":"another","alloc":"alc_9","phase":"deployed"}'
    kube.kit.ask("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {MACHINE: text}}})
    view = other.observe(NODE)
    assert (view.phase, view.failure) == ("unknown", "foreign mark")
    for act in (
        lambda: other.deploy(HELD),
        lambda: other.release(NODE, "alc_1", accepted_at=ACCEPTED_AT),
        lambda: other.wipe(NODE, "wip_1"),
        lambda: other.qualify(NODE, "qua_1"),
    ):
        with pytest.raises(Refused):
            act()
    assert _node(kube)["metadata"]["annotations"][MACHINE] == text
    other.close()


def _used(kube: KubernetesHarness, script: str, **wanted: Any) -> ClusterSpec:
    """A node of a tenant on which a job has been started."""
    ref = kube.free_refs(1)[0]
    assert ref == NODE
    kube.adapter.deploy(HELD)
    spec = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member(NODE, 8, "alc_1"),))
    kube.apply(spec)
    job = kube.job(spec, script, **wanted)
    kube.submit(job)
    kube.until(lambda: kube.seen(job), lambda view: view.phase in {"running", "succeeded"}, what="started")
    return spec


def test_a_wipe_evicts_what_the_tenant_left_and_proves_that_nothing_is(kube: KubernetesHarness) -> None:
    """Also ended pods, which keep their logs on the node, and although the cluster goes on elsewhere."""
    spec = _used(kube, "echo canary")
    with pytest.raises(Busy):
        kube.adapter.release(NODE, "alc_1", accepted_at=ACCEPTED_AT)
    kube.insist(lambda: kube.adapter.release(NODE, "alc_1", accepted_at=ACCEPTED_AT), what="release")
    assert kube.view(spec).members == ()
    for _ in range(2):
        kube.adapter.wipe(NODE, "wip_1")
    view = _phase(kube, NODE, "wiped")
    assert view.wipe is not None
    assert view.wipe.token == "wip_1"
    results = {check.name: check.result for check in view.wipe.checks}
    assert results["tenant_pods"] == results["gpus_unused"] == results["node_answers"] == "passed"
    assert results["gpu_memory"] == results["image_cache"] == "not_measured"
    assert kube.kit.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}")["items"] == []
    node = _node(kube)
    assert CLUSTER not in node["metadata"]["labels"]
    assert not _taints(node) & {CLUSTER, LEAVING}
    kube.adapter.deploy(replace(HELD, token="alc_2", tenant_id="ten_two"))
    after = _phase(kube, NODE, "deployed")
    assert (after.token, after.wipe) == ("alc_2", None)


def test_no_wipe_is_proved_while_a_pod_of_the_tenant_is_there(kube: KubernetesHarness) -> None:
    """A pod that a finalizer holds keeps the node from the next tenant, and it is told which."""
    _used(kube, "sleep 1000")
    (pod,) = kube.kit.ask("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={NODE}")["items"]
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
    kube.kit.ask("PATCH", path, {"metadata": {"finalizers": [*pod["metadata"].get("finalizers", []), "example.org/held"]}})
    with pytest.raises(Busy):
        kube.adapter.release(NODE, "alc_1", accepted_at=ACCEPTED_AT)
    assert kube.adapter.observe(NODE).phase == "releasing"
    with pytest.raises(Refused):
        kube.adapter.wipe(NODE, "wip_1")
    kube.kit.ask("PATCH", path, {"metadata": {"finalizers": None}})
    kube.insist(lambda: kube.adapter.release(NODE, "alc_1", accepted_at=ACCEPTED_AT), what="release")
    kube.adapter.wipe(NODE, "wip_1")
    _phase(kube, NODE, "wiped")


def test_a_pod_of_a_tenant_that_was_overlooked_keeps_a_wipe_from_being_proved(kube: KubernetesHarness) -> None:
    """One that stays although its eviction was asked for, in whatever namespace."""
    meta = {"name": "late", "labels": {OWNER: "contract"}, "finalizers": ["example.org/held"]}
    pod = {"metadata": meta, "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "debian"}]}}
    kube.kit.ask("POST", "/api/v1/namespaces/default/pods", pod, "application/json")
    kube.adapter.wipe(NODE, "wip_1")
    for _ in range(30):
        kube.pass_time()
        view = kube.adapter.observe(NODE)
        assert view.phase == "wiping"
    assert view.failure == "1 pods of tenants are on it: default/late"
    kube.kit.ask("PATCH", "/api/v1/namespaces/default/pods/late", {"metadata": {"finalizers": None}})
    _phase(kube, NODE, "wiped")


def test_a_wipe_waits_for_a_kubelet_that_looked_after_the_last_pod(kube: KubernetesHarness) -> None:
    """Pods that were forced out of the server prove nothing: containers go when the kubelet hears of it."""
    kube.adapter.deploy(HELD)
    kube.adapter.release(NODE, "alc_1", accepted_at=ACCEPTED_AT)
    kube.until(lambda: kube.adapter.observe(NODE), lambda view: view.phase == "released", what="released")
    beats = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    kube.until(lambda: kube.kit.ask("GET", beats)["items"], lambda leases: len(leases) == 6, what="signs of life")
    kube.adapter.wipe(NODE, "wip_1")
    kube.kit.handle.post("/_emu/pause", {"kubelet": True})
    kube.adapter.observe(NODE)
    for _ in range(20):
        kube.pass_time()
        view = kube.adapter.observe(NODE)
        assert (view.phase, view.wipe) == ("wiping", None)
    assert LEAVING in _taints(_node(kube))
    kube.kit.handle.post("/_emu/pause", {"kubelet": False})
    assert _phase(kube, NODE, "wiped").wipe is not None


def test_a_dead_node_is_never_proved_clean(kube: KubernetesHarness) -> None:
    """It says why, and is proved once it is back."""
    kube.adapter.deploy(HELD)
    kube.adapter.release(NODE, "alc_1", accepted_at=ACCEPTED_AT)
    kube.node_dies(NODE)
    kube.adapter.wipe(NODE, "wip_1")
    for _ in range(20):
        kube.pass_time()
        view = kube.adapter.observe(NODE)
        assert view.phase == "wiping"
    assert "does not answer" in view.failure
    kube.node_returns(NODE)
    _phase(kube, NODE, "wiped")


def test_a_pod_of_the_operators_own_is_not_evicted_and_not_overlooked(kube: KubernetesHarness) -> None:
    """A node whose GPUs somebody uses is offered to nobody; the pod is not ours to end."""
    kube.kit.ask("POST", "/api/v1/namespaces/default/pods", STRANGER, "application/json")
    kube.adapter.wipe(NODE, "wip_1")
    for _ in range(20):
        kube.pass_time()
        view = kube.adapter.observe(NODE)
        assert view.phase == "wiping"
    assert view.failure == "pods of others use its GPUs: default/stranger"
    kube.kit.ask("DELETE", "/api/v1/namespaces/default/pods/stranger")
    _phase(kube, NODE, "wiped")


def test_a_wipe_that_was_not_finished_lets_nobody_on(kube: KubernetesHarness) -> None:
    """Busy, until it is proved."""
    kube.node_dies(NODE)
    kube.adapter.wipe(NODE, "wip_1")
    with pytest.raises(Busy):
        kube.adapter.deploy(HELD)


def test_a_wipe_lifts_no_cordon_of_an_administrator(kube: KubernetesHarness) -> None:
    """Before, during and after."""
    kube.admin_drain(NODE, "disk swap")
    kube.adapter.wipe(NODE, "wip_1")
    _phase(kube, NODE, "wiped")
    assert _node(kube)["spec"]["unschedulable"] is True
