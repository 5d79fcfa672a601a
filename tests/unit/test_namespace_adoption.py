"""
Namespaces that exist: what stands in the way of taking them over, what their pods leave for others, what the server makes of their pods.
"""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.foreign import left_over, needs
from controlplane.providers.adapters.kubernetes.neighbours import selects, unstated
from controlplane.providers.adapters.kubernetes.policies import policy, steered
from controlplane.providers.adapters.kubernetes.standing import Shelf, Space, candidates, read_standing
from controlplane.providers.kube.work.names import CLUSTER, OWNER, Names
from controlplane.providers.kube.work.walls import toleration
from tests import pod_policies
from tests.kubernetes_standing import a_namespace, a_policy

NAMES = Names("cp")
CONFIG = KubernetesConfig()
KEYS = st.sampled_from(["cpu", "memory", "nvidia.com/gpu"])
Json = dict[str, Any]


def a_pod(name: str = "serve-1", namespace: str = "theirs", node: str = "gpu-1", **spec: Any) -> Json:
    """A pod of a Deployment's that runs on the node."""
    meta: Json = {"name": name, "namespace": namespace, "labels": {"app": "serve"}}
    container = {"name": "main", "image": "a/b:1", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [container], **spec}, "status": {"phase": "Running"}}


def a_node(name: str = "gpu-1", gpus: int = 8) -> Json:
    """A node that is ready and nobody's."""
    conditions = [{"type": "Ready", "status": "True"}]
    capacity = {"nvidia.com/gpu": str(gpus)}
    return {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": {"conditions": conditions, "capacity": capacity}}


def a_daemon(pod: Json) -> Json:
    """The pod as a DaemonSet's."""
    pod["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "controller": True}]
    return pod


def here(thing: Json, namespace: str = "theirs") -> Json:
    """The object in the namespace."""
    thing["metadata"]["namespace"] = namespace
    return thing


def binding(name: str, subject: Json, namespace: str = "") -> Json:
    """Whoever the subject is has some role."""
    return {"metadata": {"name": name, "namespace": namespace}, "subjects": [subject]}


def plain() -> Json:
    """All that there is, in the way of nothing."""
    return {
        "space": {**a_namespace(), "metadata": {**a_namespace()["metadata"], "uid": "u-1"}},
        "nodes": [a_node()],
        "pods": [a_pod()],
        "steers": True,
        "parts": {"networkpolicies": [here(a_policy())]},
    }


def standing(there: Json, ours: str = "") -> Any:
    """What is told of it."""
    shelf = Shelf(there["nodes"], there["pods"], steers=there["steers"], version="1.36.2", parts=there["parts"])
    return read_standing(Space(NAMES, CONFIG, shelf, there["space"], ours))


def put(thing: Any, path: tuple[Any, ...], value: Any) -> None:
    """The thing has the value at the path; to a list of things one is added."""
    for key in path[:-1]:
        thing = thing[key] if isinstance(key, int) else thing.setdefault(key, {})
    if isinstance(thing.get(path[-1]), list) and isinstance(value, dict):
        thing[path[-1]].append(value)
    else:
        thing[path[-1]] = value


SPACE, POD, NODE = ("space", "metadata"), ("pods", 0), ("nodes", 0)
HOSTILE = {"kind": "ServiceAccount", "name": "default", "namespace": "theirs"}
DEVS = {"kind": "Group", "name": "devs"}


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ((*SPACE, "labels", OWNER), "others", "other_installation"),
        ((*SPACE, "labels", CLUSTER), "clu_9", "marked_already"),
        ((*SPACE, "deletionTimestamp"), "2026-01-01T00:00:00Z", "being_removed"),
        ((*SPACE, "labels", "pod-security.kubernetes.io/enforce"), "baseline", "pod_security_too_weak"),
        ((*SPACE, "labels", "pod-security.kubernetes.io/enforce"), "strict", "pod_security_too_weak"),
        ((*SPACE, "labels", "pod-security.kubernetes.io/enforce-version"), "v1.24", "pod_security_too_weak"),
        ((*SPACE, "annotations"), {"scheduler.alpha.kubernetes.io/tolerationsWhitelist": "[]"}, "placed_by_annotation"),
        (("steers",), False, "no_pod_policies"),
        (("pods",), {**a_pod("b"), "spec": {"containers": []}}, "not_settled"),
        ((*POD, "spec", "hostNetwork"), True, "pods_outside_walls"),
        ((*POD, "spec", "volumes"), [{"name": "x", "hostPath": {"path": "/"}}], "pods_outside_walls"),
        ((*POD, "spec", "containers", 0, "securityContext"), {"privileged": True}, "pods_outside_walls"),
        ((*POD, "spec", "containers", 0, "ports"), [{"hostPort": 80}], "pods_outside_walls"),
        ((*POD, "spec", "resourceClaims"), [{"name": "gpu"}], "devices_claimed"),
        (("parts", "daemonsets"), [here({"metadata": {"name": "d"}})], "daemon_sets"),
        (("parts", "networkpolicies"), None, "traffic_not_stated"),
        (("parts", "networkpolicies", 0, "spec", "policyTypes"), ["Ingress"], "traffic_not_stated"),
        (("parts", "networkpolicies", 0, "spec", "podSelector"), {"matchLabels": {"app": "x"}}, "traffic_not_stated"),
        (("parts", "networkpolicies", 0, "metadata", "namespace"), "elsewhere", "traffic_not_stated"),
        (("parts", "services"), [here({"metadata": {"name": "s"}, "spec": {"type": "NodePort"}})], "services_outside"),
        (("parts", "services"), [here({"metadata": {"name": "s"}, "spec": {"externalIPs": ["192.0.2.1"]}})], "services_outside"),
        (("parts", "resourcequotas"), [here({"metadata": {"name": "q"}})], "quota_of_its_own"),
        (("parts", "limitranges"), [here({"metadata": {"name": "l"}})], "limits_of_its_own"),
        (("parts", "networkpolicies"), here({"metadata": {"name": "deny-all"}, "spec": {}}), "names_taken"),
        (("parts", "roles"), [here({"metadata": {"name": "tenant"}})], "names_taken"),
        (("parts", "localqueues"), [here({"metadata": {"name": "cluster"}})], "names_taken"),
        (("parts", "clusterrolebindings"), [binding("wide", HOSTILE)], "accounts_reach_out"),
        (
            ("parts", "clusterrolebindings"),
            [binding("w", {"kind": "Group", "name": "system:serviceaccounts:theirs"})],
            "accounts_reach_out",
        ),
        (("parts", "rolebindings"), [binding("far", HOSTILE, "elsewhere")], "accounts_reach_out"),
        (("nodes",), [], "host_not_sold"),
        ((*NODE, "metadata", "labels"), {CLUSTER: "clu_9", OWNER: "cp"}, "host_marked"),
        ((*NODE, "metadata", "annotations"), {"controlplane.internal/machine": "{}"}, "host_marked"),
        (
            (*NODE, "metadata", "annotations"),
            {"controlplane.internal/machine": '{"owner":"cp","phase":"deployed","alloc":"alc_9","cluster":"clu_9"}'},
            "host_marked",
        ),
        ((*NODE, "status", "conditions"), None, "not_settled"),
        ((*NODE, "spec", "unschedulable"), True, "host_cordoned"),
        (("pods",), a_pod("else", "other"), "host_shared"),
        (("pods",), a_pod("dns", "kube-system"), "host_shared"),
        (("pods",), a_daemon(a_pod("greedy", "other")), "host_shared"),
    ],
)
def test_what_stands_in_the_way(path: tuple[Any, ...], value: Any, code: str) -> None:
    """Each alone is told by its code, in words, and nothing else is."""
    there = plain()
    assert standing(there).obstacles == ()
    if path == ("nodes",):
        there["nodes"] = value
    elif value is None:
        put(there, path[:-1], {**(there["nodes"][0]["status"] if path[0] == "nodes" else {}), path[-1]: []})
    else:
        put(there, path, value)
    told = standing(there).obstacles
    assert {one.code for one in told} == {code}, told
    assert all(one.message.endswith(".") for one in told)


def test_people_with_rights_everywhere_are_an_obstacle_and_others_a_notice() -> None:
    """Whoever may change things in it keeps that; whoever reaches other tenants must not come with it."""
    there = plain()
    there["parts"]["rolebindings"] = [binding("editors", DEVS, "theirs")]
    told = standing(there)
    assert (told.obstacles, [one.code for one in told.notices if "Group devs" in one.message]) == ((), ["people_stay"])
    there["parts"]["clusterrolebindings"] = [binding("viewers", DEVS)]
    assert [one.code for one in standing(there).obstacles] == ["people_reach_out"]


def test_daemons_of_the_operator_and_mirror_pods_are_nobodys_neighbours() -> None:
    """They belong to the node, as on every other node that is sold."""
    there = plain()
    exporter, proxy = a_daemon(a_pod("exporter", "monitoring", containers=[])), a_pod("proxy", "kube-system", containers=[])
    proxy["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    there["pods"] += [exporter, proxy]
    assert standing(there).obstacles == ()


def test_only_namespaces_that_run_on_nodes_that_are_sold_are_told() -> None:
    """Not the server's own, not ours, not those of DaemonSets alone, nor those whose pods are elsewhere or over."""
    pods = [
        a_pod(namespace="theirs"),
        a_pod(namespace="kube-system"),
        a_pod(namespace="ours"),
        a_pod(namespace="far", node="cpu-1"),
    ]
    pods += [a_daemon(a_pod(namespace="daemons")), a_pod(namespace="default")]
    spaces = [a_namespace(one) for one in ("theirs", "kube-system", "far", "daemons", "default", "empty")]
    spaces.append(a_namespace("ours", **NAMES.labels("clu_1")))
    shelf = Shelf([a_node()], pods, steers=True)
    assert [one["metadata"]["name"] for one in candidates(spaces, shelf, NAMES)] == ["theirs"]


def test_marks_of_the_takeover_itself_are_in_nobodys_way() -> None:
    """So that doing it again after half of it is the same."""
    there = plain()
    marks = NAMES.labels("clu_1")
    there["space"]["metadata"]["labels"] |= marks
    there["nodes"][0]["metadata"]["labels"] |= marks
    there["nodes"][0]["metadata"]["annotations"] = {
        "controlplane.internal/machine": '{"owner":"cp","phase":"deployed","alloc":"alc_1","cluster":"clu_1"}'
    }
    mine = here({"metadata": {"name": "deny-all", "labels": marks}, "spec": {"podSelector": {}}})
    there["parts"] |= {"resourcequotas": [here({"metadata": {"name": "cluster", "labels": marks}})]}
    there["parts"]["networkpolicies"].append(mine)
    assert standing(there, "clu_1").obstacles == ()
    there["parts"]["networkpolicies"] = [mine]
    assert [one.code for one in standing(there, "clu_1").obstacles] == ["traffic_not_stated"], "ours state nothing for it"


def test_nodes_with_other_gpus_are_other_sets() -> None:
    """A node set has alike nodes; one kind alone is called workers."""
    there = plain()
    there["nodes"].append(a_node("gpu-2", 4))
    there["pods"].append(a_pod("serve-2", node="gpu-2"))
    assert {one.ref: one.node_set for one in standing(there).hosts} == {"gpu-1": "workers-2", "gpu-2": "workers-1"}


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["0"]}]}, False),
    ],
)
def test_a_selector_finds_labels_as_the_server_does(selector: Json, found: bool) -> None:  # noqa: FBT001 - a verdict
    """What is not understood finds nothing, which is the safe side: its traffic counts as unstated."""
    assert selects(selector, {"a": "1"}) is found
    both = {"spec": {"podSelector": selector, "egress": [{}]}}
    assert unstated({"metadata": {"labels": {"a": "1"}}}, [both]) is not found


def test_what_a_pod_needs_is_counted_as_the_scheduler_counts() -> None:
    """Sidecars beside containers, the way up when it needs more, overhead, limits as requests; nothing of pods that are over."""
    one = {"limits": {"nvidia.com/gpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m"}}
    spec = {
        "containers": [{"resources": one}, {"resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [
            {"resources": {"requests": {"cpu": "4"}}},
            {"resources": {"requests": {"cpu": "1"}}, "restartPolicy": "Always"},
        ],
        "overhead": {"cpu": "250m"},
    }
    counted = needs({"spec": spec})
    assert {name: counted[name] for name in ("cpu", "nvidia.com/gpu", "memory")} == {
        "cpu": Decimal("4.25"),
        "nvidia.com/gpu": Decimal(2),
        "memory": Decimal(2**30),
    }
    assert needs({"spec": {**spec, "resources": {"requests": {"cpu": "8"}}}})["cpu"] == Decimal("8.25")
    sums = {"cpu": "16", "nvidia.com/gpu": "8", "ephemeral-storage": "5"}
    over = {"spec": spec, "status": {"phase": "Failed"}}
    assert left_over(sums, [{"spec": spec}, over]) == {"cpu": "11", "nvidia.com/gpu": "6", "ephemeral-storage": "5"}


@given(st.dictionaries(KEYS, st.integers(0, 100)), st.lists(st.dictionaries(KEYS, st.integers(0, 60)), max_size=5))
def test_what_is_left_is_never_less_than_nothing_nor_more_than_is_there(sums: dict[str, int], asked: list[dict[str, int]]) -> None:
    """And where pods take no more than is there, both add up to it."""
    pods = [
        {"spec": {"containers": [{"resources": {"requests": {key: str(value) for key, value in one.items()}}}]}} for one in asked
    ]
    left = left_over({key: str(value) for key, value in sums.items()}, pods)
    for key, there in sums.items():
        taken = sum(one.get(key, 0) for one in asked)
        assert int(left[key]) == max(0, there - taken)


def patched(thing: Json, operations: list[Json]) -> Json:
    """A JSON patch of additions only."""
    made = copy.deepcopy(thing)
    for one in operations:
        assert one["op"] == "add"
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]]
        place = made
        for key in way:
            place = place[key]
        if isinstance(place, list):
            assert last == "-"
            place.append(one["value"])
        else:
            place[last] = one["value"]
    return made


TOLERATIONS = st.lists(
    st.sampled_from(
        [
            {"operator": "Exists"},
            {"key": CLUSTER, "operator": "Equal", "value": "clu_2", "effect": "NoSchedule"},
            {"key": CLUSTER, "operator": "Exists"},
            {"key": CLUSTER, "operator": "Equal", "value": "clu_1", "effect": "NoExecute"},
            toleration("clu_1"),
        ]
    ),
    min_size=1,
    max_size=3,
)
SELECTORS = st.dictionaries(st.sampled_from([CLUSTER, "disk"]), st.sampled_from(["clu_1", "clu_2"]), min_size=1)
SPECS = st.fixed_dictionaries({"containers": st.just([])}, optional={"tolerations": TOLERATIONS, "nodeSelector": SELECTORS})


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@given(spec=SPECS)
def test_whatever_a_pod_says_it_goes_to_its_clusters_nodes_alone(version: str, spec: Json) -> None:
    """By the policy's own expressions; what it said otherwise stays, and once more changes nothing."""
    made, bound = policy(NAMES, "clu_1", "theirs", f"admissionregistration.k8s.io/{version}")
    assert bound.body["spec"] == {"policyName": made.body["metadata"]["name"]}
    got = pod_policies.mutated(made.body, {"spec": spec}, patched)
    assert steered(got, "clu_1")
    assert got["spec"]["nodeSelector"] == {**spec.get("nodeSelector", {}), CLUSTER: "clu_1"}
    said = spec.get("tolerations", [])
    assert got["spec"]["tolerations"][: len(said)] == said
    assert pod_policies.mutated(made.body, got, patched) == got


def test_the_policy_is_about_one_namespace() -> None:
    """By the name that the server itself writes on each namespace."""
    made, _ = policy(NAMES, "clu_1", "theirs", "admissionregistration.k8s.io/v1")
    assert pod_policies.matches(made.body, "theirs")
    assert not pod_policies.matches(made.body, "others")
