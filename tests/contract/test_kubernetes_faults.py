"""
The Kubernetes adapter when the server misbehaves, and what it leaves alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import AuthFailed, Busy, NotFound, NotSent, ProviderError, Refused, Unknown
from controlplane.providers.kube.work.names import CLUSTER
from controlplane.providers.registry import AdapterInput, build_adapter
from tests.kubernetes_kit import UNTIDY, KubernetesKit, kubeconfig, kubernetes_kit

pytestmark = UNTIDY
SPEC = ClusterSpec("clu_1", "ten_one", "prj_one", "", (Member("gpu-00000", 8, "alc_1"), Member("gpu-00001", 8, "alc_2")))
JOB = JobSpec("job_1-1", "clu_1", "ten_one", "", "#!/bin/bash\nsleep 20\n", 2, 8, 1, 600)
ROOT = "/api/v1/namespaces/contract-clu-1"


@pytest.fixture
def kit() -> Iterator[KubernetesKit]:
    """Four free nodes and a queue."""
    with kubernetes_kit(nodes=4) as made:
        yield made


def _faults(kit: KubernetesKit, *faults: dict[str, Any]) -> None:
    kit.handle.post("/_emu/faults", list(faults))


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"status": 429, "retryAfter": 7}, Busy),
        ({"status": 500}, Unknown),
        ({"status": 503}, Unknown),
        ({"status": 504}, Unknown),
        ({"status": 401}, AuthFailed),
        ({"status": 403}, AuthFailed),
        ({"status": 410}, Unknown),
        ({"cut": True}, Unknown),
        ({"cutAfter": True}, Unknown),
    ],
)
def test_a_fault_is_told_by_its_kind_and_healed_by_a_repeat(
    kit: KubernetesKit, fault: dict[str, Any], error: type[ProviderError]
) -> None:
    """Whatever happened to the first try, the second leaves one cluster and one job."""
    adapter = kit.adapter()
    for method, path, act in (
        ("PATCH", "/nodes/gpu-00001", lambda: adapter.apply_cluster(SPEC)),
        ("PATCH", "/resourcequotas", lambda: adapter.apply_cluster(SPEC)),
        ("POST", "/jobs", lambda: adapter.submit(JOB)),
        ("PATCH", "/secrets", lambda: adapter.submit(JOB)),
    ):
        _faults(kit, {"method": method, "path": path, "times": 1, **fault})
        with pytest.raises(error) as wrong:
            act()
        assert error is not Busy or getattr(wrong.value, "retry_in_s", None) == 7
        _faults(kit)
        act()
    assert len(adapter.observe_cluster("clu_1").members) == 2
    assert [one.token for one in adapter.list_jobs("clu_1")] == [JOB.token]
    adapter.close()


def test_every_list_is_paged_and_begun_anew_when_its_pages_expire(kit: KubernetesKit) -> None:
    """One 410 in the middle costs a repetition; an expiry that never ends is unknown, not a short list."""
    adapter = kit.adapter(page_size=1)
    adapter.apply_cluster(SPEC)
    _faults(kit, {"path": "continue=", "times": 1, "status": 410})
    assert len(adapter.observe_cluster("clu_1").members) == 2
    _faults(kit, {"path": "continue=", "times": 99, "status": 410})
    with pytest.raises(Unknown):
        adapter.observe_cluster("clu_1")
    _faults(kit)
    lists = [path for method, path in kit.asked() if method == "GET" and path.endswith(("/nodes", "/pods", "/jobs"))]
    assert lists == []
    adapter.close()


def test_a_node_changed_by_others_is_read_again(kit: KubernetesKit) -> None:
    """Conflicts pass; the other writer's taint stays."""
    adapter = kit.adapter()
    taint = {"key": "example.org/odd", "value": "x", "effect": "PreferNoSchedule"}
    kit.ask("PATCH", "/api/v1/nodes/gpu-00000", {"spec": {"taints": [taint]}})
    _faults(kit, {"method": "PATCH", "path": "/nodes/", "times": 2, "status": 409})
    adapter.apply_cluster(SPEC)
    taints = kit.ask("GET", "/api/v1/nodes/gpu-00000")["spec"]["taints"]
    assert {one["key"] for one in taints} == {"example.org/odd", CLUSTER}
    _faults(kit, {"method": "PATCH", "path": "/nodes/", "times": 99, "status": 409})
    with pytest.raises(Busy):
        adapter.drain("clu_1", ("gpu-00000",), reason="repair")
    _faults(kit)
    adapter.close()


def test_deleting_leaves_nothing_of_ours_and_all_of_others(kit: KubernetesKit) -> None:
    """Nodes are as they were, and no object with our mark is left anywhere."""
    adapter = kit.adapter()
    before = {one["metadata"]["name"]: one["metadata"]["labels"] for one in kit.ask("GET", "/api/v1/nodes")["items"]}
    adapter.apply_cluster(SPEC)
    adapter.observe_cluster("clu_1")
    adapter.drain("clu_1", ("gpu-00000",), reason="repair")
    adapter.delete_cluster("clu_1")
    _wait_gone(kit)
    with pytest.raises(NotFound):
        adapter.observe_cluster("clu_1")
    after = kit.ask("GET", "/api/v1/nodes")["items"]
    for one in after:
        assert one["metadata"]["labels"] == before[one["metadata"]["name"]]
        assert not one["spec"].get("taints")
        assert not one["spec"].get("unschedulable")
        assert not [key for key in one["metadata"].get("annotations") or {} if key.startswith("controlplane")]
    left = [obj for kind in kit.emulator.uniq() for obj in kit.emulator.data[kind.key].values()]
    assert not [obj for obj in left if CLUSTER in (obj["metadata"].get("labels") or {})]
    adapter.close()


def test_a_namespace_that_does_not_go_is_told_in_words(kit: KubernetesKit) -> None:
    """The cluster stays visible with the reason, takes no new order, and goes once the finalizer is gone."""
    adapter = kit.adapter()
    adapter.apply_cluster(SPEC)
    held = {"metadata": {"name": "held", "finalizers": ["example.org/hold"]}}
    kit.ask("POST", f"{ROOT}/configmaps", held, "application/json")
    adapter.delete_cluster("clu_1")
    view = adapter.observe_cluster("clu_1")
    assert [(one.result, "terminating" in one.detail) for one in view.checks if one.name == "removed"] == [("failed", True)]
    with pytest.raises(Busy):
        adapter.apply_cluster(SPEC)
    kit.ask("PATCH", f"{ROOT}/configmaps/held", {"metadata": {"finalizers": None}})
    _wait_gone(kit)
    with pytest.raises(NotFound):
        adapter.observe_cluster("clu_1")
    adapter.close()


def test_a_node_that_others_use_or_that_is_not_there_is_not_taken(kit: KubernetesKit) -> None:
    """Busy while pods of others hold its GPUs; refused when there is none; nothing of the cluster is made then."""
    adapter = kit.adapter()
    gpus = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "c", "image": "x", "resources": gpus}
    pod = {"metadata": {"name": "theirs"}, "spec": {"nodeName": "gpu-00001", "containers": [container]}}
    kit.ask("POST", "/api/v1/namespaces/default/pods", pod, "application/json")
    with pytest.raises(Busy):
        adapter.apply_cluster(SPEC)
    absent = replace(SPEC, cluster_id="clu_2", members=(Member("gpu-00009", 8, "alc_9"),))
    with pytest.raises(Refused):
        adapter.apply_cluster(absent)
    with pytest.raises(NotFound):
        adapter.observe_cluster("clu_2")
    adapter.close()


def test_an_administrators_second_cordon_is_not_ours(kit: KubernetesKit) -> None:
    """We cordoned, they uncordoned and cordoned again: it stays."""
    adapter = kit.adapter()
    adapter.apply_cluster(SPEC)
    adapter.drain("clu_1", ("gpu-00000",), reason="repair")
    kit.ask("PATCH", "/api/v1/nodes/gpu-00000", {"spec": {"unschedulable": None}})
    kit.ask("PATCH", "/api/v1/nodes/gpu-00000", {"spec": {"unschedulable": True}})
    adapter.undrain("clu_1", ("gpu-00000",))
    assert kit.ask("GET", "/api/v1/nodes/gpu-00000")["spec"]["unschedulable"] is True
    adapter.close()


def test_a_gang_without_a_gang_scheduler_is_refused_with_a_hint() -> None:
    """It would hang beside another; one node runs."""
    with kubernetes_kit(nodes=2, kueue=False) as kit:
        adapter = kit.adapter()
        assert adapter.capabilities().max_nodes_per_job == 1
        adapter.apply_cluster(SPEC)
        with pytest.raises(Refused, match="Kueue"):
            adapter.submit(JOB)
        adapter.submit(replace(JOB, nodes=1))
        adapter.close()


def test_a_wrong_token_and_a_dead_server_are_told_apart() -> None:
    """AuthFailed for the one, NotSent for the other; the token is in neither."""
    with kubernetes_kit(nodes=1, token="right-token") as kit:
        ways = {AuthFailed: (kit.handle.url, "wrong-token"), NotSent: ("http://127.0.0.1:9", "right-token")}
        for error, (url, token) in ways.items():
            given = AdapterInput("prv_1", {}, {"kubeconfig": kubeconfig(url, {"token": token})}, "contract", None)  # type: ignore[arg-type]
            adapter: Any = build_adapter("kubernetes", given)
            with pytest.raises(error) as wrong:
                adapter.capabilities()
            assert "token" not in str(wrong.value)
            adapter.close()
        good = kit.adapter()
        assert good.capabilities().products == ("kubernetes",)
        good.close()


def test_a_job_costs_a_bounded_number_of_calls(kit: KubernetesKit) -> None:
    """Four to submit and one for the nodes of the first, two to look, two for a whole list however many jobs there are."""
    adapter = kit.adapter(watches="off")  # which open with the first submission, and ask at a time of their own
    adapter.apply_cluster(SPEC)
    jobs = [replace(JOB, token=f"job_{number}-1") for number in range(5)]
    adapter.submit(jobs[0])
    adapter.list_jobs("clu_1")  # which kinds of jobs there are is asked once a minute
    for calls, act in (
        (4, lambda: [adapter.submit(jobs[1])]),
        (2, lambda: adapter.find_job("clu_1", jobs[1].token)),
        (2, lambda: adapter.list_jobs("clu_1")),
        (12, lambda: [adapter.submit(one) for one in jobs[2:]]),
        (2, lambda: adapter.list_jobs("clu_1")),
    ):
        before = len(kit.asked())
        act()
        assert len(kit.asked()) - before == calls
    adapter.close()


def _wait_gone(kit: KubernetesKit) -> None:
    for _ in range(2000):
        if not [name for name in kit.emulator.data[("", "namespaces")] if name[1] == "contract-clu-1"]:
            return
        kit.ask("GET", "/version")
    raise AssertionError("the namespace did not go")
