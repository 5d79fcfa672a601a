"""
What is written for Cluster API, and what its objects and Metal3's are read as: pure tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.adapters.clusterapi import folding
from controlplane.providers.adapters.clusterapi.classes import lacking
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.marks import Mark
from controlplane.providers.adapters.clusterapi.names import CLUSTER, Names
from controlplane.providers.adapters.clusterapi.objects import Workers, cluster_object
from controlplane.providers.clusters import ClusterSpec, Member
from controlplane.providers.errors import Permanent, Refused
from controlplane.providers.kube import memory
from controlplane.providers.registry import AdapterInput, build_adapter
from tests.capi_kit import CONFIG, a_class, a_host

CONFIGURED = ClusterApiConfig(**{**CONFIG, "machine_classes": {"gpu-8": "h100", "cpu-64": "plain"}})
NAMES = Names("cp", "site-a")
SPEC = ClusterSpec(
    "clu_1", "ten_1", "prj_1", "", (Member("a", 8, "alc_1", "gpu", "gpu-8"), Member("b", 0, "alc_2", "cpu", "cpu-64"))
)
WORKERS = [Workers("gpu", "gpu-8", 1), Workers("cpu", "cpu-64", 2)]
META = {
    "name": "cp-clu-1",
    "namespace": "site-a",
    "labels": {"controlplane.internal/cluster": "clu_1", "controlplane.internal/deployment": "cp"},
    "annotations": {
        "controlplane.internal/tenant": "ten_1",
        "controlplane.internal/project": "prj_1",
        "controlplane.internal/members": "2",
    },
}
ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
HELD = Mark(alloc="alc_1", phase="deployed", cluster="clu_1", ready="2026-03-01T10:00:00+00:00")
OVER = Mark(alloc="alc_1", phase="releasing", cluster="clu_1")


def made(config: ClusterApiConfig, api: str) -> dict[str, Any]:
    """The whole object."""
    return cluster_object(NAMES, SPEC, config, WORKERS, api=api, version="1.34.2")


def pinned(name: str) -> dict[str, Any]:
    """The variable that becomes a hostSelector."""
    return {"overrides": [{"name": "hostPin", "value": f"cp-clu-1.{name}"}]}


def test_a_cluster_of_v1beta2() -> None:
    """Every field as the published schema names it, and none that is not ours."""
    assert made(CONFIGURED, "v1beta2") == {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": META,
        "spec": {
            "topology": {
                "classRef": {"name": "gpu-metal", "namespace": "classes"},
                "version": "v1.34.2",
                "controlPlane": {"replicas": 1},
                "workers": {
                    "machineDeployments": [
                        {
                            "class": "plain",
                            "name": "cpu",
                            "replicas": 2,
                            "variables": pinned("cpu"),
                            "rollout": {"strategy": ROLLING},
                        },
                        {
                            "class": "h100",
                            "name": "gpu",
                            "replicas": 1,
                            "variables": pinned("gpu"),
                            "rollout": {"strategy": ROLLING},
                        },
                    ]
                },
            }
        },
    }


def test_a_cluster_of_v1beta1_says_the_same_in_its_own_words() -> None:
    """The class, the strategy and the limit of a drain stand elsewhere."""
    more = CONFIGURED.model_copy(
        update={
            "drain_limit_s": 600,
            "control_planes": 0,
            "class_namespace": None,
            "variables": {"dns": ["10.0.0.53"]},
            "pod_cidrs": ["10.128.0.0/12"],
        }
    )
    old, new = made(more, "v1beta1")["spec"], made(more, "v1beta2")["spec"]
    assert old["clusterNetwork"] == new["clusterNetwork"] == {"pods": {"cidrBlocks": ["10.128.0.0/12"]}}
    assert {key: old["topology"][key] for key in ("class", "classNamespace", "variables")} == {
        "class": "gpu-metal",
        "classNamespace": "site-a",
        "variables": [{"name": "dns", "value": ["10.0.0.53"]}],
    }
    assert "controlPlane" not in old["topology"]
    ours, theirs = (one["topology"]["workers"]["machineDeployments"][0] for one in (old, new))
    assert (ours["strategy"], ours["nodeDrainTimeout"]) == (ROLLING, "600s")
    assert theirs["deletion"] == {"nodeDrainTimeoutSeconds": 600}


def test_pins_are_labels_whatever_a_node_set_is_called() -> None:
    """At most 63 characters, the same for the same set, and never the same for two."""
    long = [NAMES.pin("clu_01k5x7p3r8w2v6t9q4n0m1c2d3", "n" * size) for size in (5, 62, 63)]
    assert len(set(long)) == 3
    assert all(len(one) <= 63 for one in long)
    with pytest.raises(Refused):
        NAMES.pin("clu/1", "workers")


def host(state: str = "available", mark: Mark | None = None, **spec: Any) -> dict[str, Any]:
    """A host in that state, switched off."""
    one = a_host("metal-00")
    one["spec"] |= spec
    one["status"]["provisioning"]["state"] = state
    if mark is not None:
        one["metadata"]["annotations"] = {memory.MACHINE: mark.text("cp")}
    return one


USED = {"consumerRef": {"kind": "Metal3Machine", "name": "m-1"}, "image": {"url": "http://i"}}


@pytest.mark.parametrize(
    ("seen", "mark", "phase"),
    [
        (host(), Mark(), "idle"),
        (host(), replace(HELD, ready=""), "deploying"),
        (host("provisioned", **USED), HELD, "deployed"),
        (host("deprovisioning", **USED), OVER, "releasing"),
        (host("deprovisioning"), OVER, "releasing"),
        (host(), OVER, "released"),
        (host("deprovisioning"), replace(OVER, wipe="wip_1"), "wiping"),
        (host(automatedCleaningMode="disabled"), replace(OVER, wipe="wip_1"), "failed"),
        (host(), replace(OVER, wipe="wip_1", wiped="2026-03-01T10:00:00+00:00"), "wiped"),
    ],
)
def test_a_hosts_phase(seen: dict[str, Any], mark: Mark, phase: str) -> None:
    """From Metal3's state and our memory of it."""
    assert folding.phase_of(seen, mark) == phase


def cleaned(written: str | None, taken: str | None, **spec: Any) -> dict[str, Any]:
    """A free host that was written to and cleaned when it says."""
    one = host(**spec)
    one["status"]["operationHistory"] = {"provision": {"start": written}, "deprovision": {"end": taken}}
    return one


@pytest.mark.parametrize(
    ("seen", "mark", "clean"),
    [
        (host(), OVER, True),
        (cleaned("2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z"), OVER, True),
        (cleaned("2026-03-01T12:00:00Z", "2026-03-01T11:00:00Z"), OVER, False),
        (cleaned("2026-03-01T10:00:00Z", None), OVER, False),
        (cleaned("2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z"), replace(OVER, uncleaned="2026-03-01T11:30:00+00:00"), False),
        (cleaned("2026-03-01T10:00:00Z", "2026-03-01T12:00:00Z"), replace(OVER, uncleaned="2026-03-01T11:30:00+00:00"), True),
        (cleaned("2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", automatedCleaningMode="disabled"), OVER, False),
        (cleaned("2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", image={"url": "http://i"}), OVER, False),
        (cleaned("2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", consumerRef=USED["consumerRef"]), OVER, False),
        (host("deprovisioning"), OVER, False),
        (host("preparing"), OVER, False),
        (host(""), OVER, False),
    ],
)
def test_when_a_host_is_clean(seen: dict[str, Any], mark: Mark, *, clean: bool) -> None:
    """Only when what was installed was taken off and cleaned since; everything that is not known is not clean."""
    assert (folding.uncleaned(seen, mark) == "") is clean


def test_a_host_in_trouble_or_with_marks_is_not_clean() -> None:
    """What Metal3 calls an error, and a label of ours that is left."""
    ill, marked = host(), host()
    ill["status"] |= {"errorType": "preparation error", "errorMessage": "cleaning failed"}
    marked["metadata"]["labels"][CLUSTER] = "clu_1"
    assert "cleaning failed" in folding.uncleaned(ill, OVER)
    assert "marks" in folding.uncleaned(marked, OVER)
    assert [one.name for one in folding.checks(ill, held=False) if one.result == "failed"] == ["host_manageable"]
    assert [one.name for one in folding.checks(marked, held=False) if one.result == "failed"] == ["residue"]


def test_memory_of_somebody_else_is_left_alone() -> None:
    """Another installation's, or a person's text."""
    for text in ('{"owner":"other"}', "ask Kim", "[]"):
        assert memory.read(Mark, {"metadata": {"annotations": {memory.MACHINE: text}}}, "cp") is None
    assert memory.read(Mark, host(mark=HELD), "cp") == HELD


MACHINE: dict[str, Any] = {"metadata": {"labels": {}}, "spec": {"version": "v1.34.2"}, "status": {"nodeRef": {"name": "n"}}}
GOING = {**MACHINE, "metadata": {"annotations": {"cluster.x-k8s.io/delete-machine": "yes"}}}
ENDING = {**MACHINE, "metadata": {"deletionTimestamp": "2026-03-01T10:00:00Z"}}


def node(ready: str = "True", **spec: Any) -> dict[str, Any]:
    """A Node."""
    return {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def drained(node: dict[str, Any]) -> dict[str, Any]:
    """It bears our reason."""
    return {**node, "metadata": {"name": "n", "annotations": {"controlplane.internal/drain": "repair"}}}


@pytest.mark.parametrize(
    ("machine", "seen", "kept", "state"),
    [
        (None, None, True, "absent"),
        (MACHINE, None, True, "absent"),
        (MACHINE, None, False, "draining"),
        (MACHINE, node(), True, "up"),
        (MACHINE, node("Unknown"), True, "down"),
        (MACHINE, node(unschedulable=True), True, "up"),
        (MACHINE, drained(node(unschedulable=True)), True, "drained"),
        (MACHINE, drained(node()), True, "up"),
        (MACHINE, {"metadata": {"name": "n"}}, True, "joining"),
        (MACHINE, node(), False, "draining"),
        (GOING, node(), True, "draining"),
        (ENDING, node(), True, "draining"),
    ],
)
def test_a_members_state(machine: dict[str, Any] | None, seen: dict[str, Any] | None, *, kept: bool, state: str) -> None:
    """From its Machine, its Node, and whether it is to stay."""
    assert folding.member_state(machine, seen, pinned=kept) == state


def test_a_cluster_has_a_version_once_every_machine_has_it_and_a_node() -> None:
    """Until then it is on its way; machines that end do not count."""
    new = {**MACHINE, "spec": {"version": "v1.35.1"}}
    assert folding.version_of([MACHINE, MACHINE], "1.34.2") == "1.34.2"
    assert folding.version_of([MACHINE, new], "1.35.1") == ""
    assert folding.version_of([{**ENDING}, new], "1.35.1") == "1.35.1"
    assert folding.version_of([{**new, "status": {}}], "1.35.1") == ""
    assert folding.version_of([], "1.35.1") == ""


@pytest.mark.parametrize(
    ("status", "result"),
    [
        ({"conditions": [{"type": "ControlPlaneAvailable", "status": "True"}]}, "passed"),
        ({"conditions": [{"type": "ControlPlaneReady", "status": "False"}]}, "failed"),
        ({"v1beta2": {"conditions": [{"type": "ControlPlaneAvailable", "status": "True"}]}, "conditions": []}, "passed"),
        ({"conditions": [{"type": "ControlPlaneAvailable", "status": "Unknown"}]}, "not_measured"),
        ({}, "not_measured"),
    ],
)
def test_a_control_plane_is_as_cluster_api_calls_it(status: dict[str, Any], result: str) -> None:
    """In both generations of conditions; unknown is no verdict."""
    assert folding.control_plane_check({"status": status}).result == result


def test_a_topology_that_is_still_made_is_no_failure() -> None:
    """One that cannot be made is, in Cluster API's words."""
    waits = {"type": "TopologyReconciled", "status": "False", "reason": "ControlPlaneUpgradePending"}
    broken = {**waits, "reason": "ReconcileFailed", "message": "variable hostPin is not defined"}
    assert folding.topology_check({"status": {"conditions": [waits]}}) is None
    told = folding.topology_check({"status": {"conditions": [broken]}})
    assert told is not None
    assert "hostPin" in told.detail


def test_what_a_cluster_class_lacks_is_named() -> None:
    """Classes of machines and variables; those that extensions discovered count."""
    assert lacking(a_class(), ClusterApiConfig(**CONFIG)) == ()
    more = CONFIGURED.model_copy(update={"variables": {"dns": []}})
    assert lacking(a_class(), more) == (
        "the ClusterClass has no machine deployment class plain",
        "the ClusterClass has no variable dns",
    )
    grown = {**a_class(), "status": {"variables": [{"name": "dns"}]}}
    assert len(lacking(grown, more)) == 1


@pytest.mark.parametrize(
    ("config", "secrets", "words"),
    [
        ({"versions": ["v1.34.2"]}, {"kubeconfig": "x"}, "versions.0"),
        ({"machine_classes": {}}, {"kubeconfig": "x"}, "machine_classes"),
        ({"control_planes": 2}, {"kubeconfig": "x"}, "control_planes"),
        ({"namespace": "No Such"}, {"kubeconfig": "x"}, "namespace"),
        ({}, {}, "give the secret"),
        ({"url": "https://k"}, {"kubeconfig": "x"}, "brings its own url"),
        ({}, {"token": "canary-secret"}, "give the secret"),
    ],
)
def test_settings_that_are_wrong_are_told_without_secrets(config: dict[str, Any], secrets: dict[str, str], words: str) -> None:
    """At registration, by field."""
    with pytest.raises(Permanent) as wrong:
        build_adapter("clusterapi", AdapterInput("prv_1", {**CONFIG, **config}, secrets, "cp", lambda: None))  # type: ignore[arg-type, return-value]
    assert words in str(wrong.value)
    assert "canary" not in str(wrong.value)
