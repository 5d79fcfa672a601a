"""
Every object that we write to a Kubernetes, checked against the published schemas of 1.36 and against files of their own.

After a wanted change: `GOLDEN=write pytest tests/unit/test_kubernetes_manifests.py`, and read the difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from controlplane.providers.adapters.kubernetes import policies
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig, OwnConfig
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import Refused
from controlplane.providers.gpus import GpuKind, Slices
from controlplane.providers.kube import rights
from controlplane.providers.kube.kubeconfigs import token_request
from controlplane.providers.kube.work import manifests, serving, standing, walls
from controlplane.providers.kube.work.config import Volume
from controlplane.providers.kube.work.names import CLUSTER, Names
from controlplane.providers.launching import Launch
from controlplane.providers.services import Readiness, Scaling, ServiceFile, ServiceSpec
from controlplane.providers.volumes import Mount

GOLDEN = Path(__file__).parent / "kubernetes_golden"
NAMES = Names("cp")
CLUSTER_ID = "clu_01hzzzzzzzzzzzzzzzzzzzzzzz"
KUEUE = walls.Queueing("kueue.x-k8s.io/v1beta2", topology=True)
CONFIG = KubernetesConfig(
    topology_labels=["example.org/block", "example.org/rack", "kubernetes.io/hostname"],
    egress=["10.9.0.0/16"],
    gpu_models={"H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3"},
    volumes={
        "data": Volume(storage_class="lustre", size_gib=1000),
        "models": Volume(storage_class="nfs", size_gib=50, access="ReadOnlyMany", read_only=True),
    },
)
CLAIMING = CONFIG.model_copy(
    update={
        "gpus_by": "dra",
        "nvlink_attribute": "example.org/nvlink",
        "gpu_models": {"H100-SXM5-80GB": "NVIDIA H100 80GB HBM3"},
        "queues_count_claims": True,
    }
)
OWN = KubernetesConfig(
    dedicated=OwnConfig(cluster_id=CLUSTER_ID, tenant_id="ten_one", server_name="api", drivers="d", owners="o", mark="m"),
    gpu_runtime_class="nvidia",
)
"""A Kubernetes that is one tenant's alone."""
SPEC = ClusterSpec(CLUSTER_ID, "ten_one", "prj_one", "", (Member("gpu-1", 8, "alc_1"), Member("gpu-2", 8, "alc_2")))
JOB = JobSpec(
    token="job_01hzzzzzzzzzzzzzzzzzzzzzzz-1",
    cluster_id=CLUSTER_ID,
    tenant_id="ten_one",
    user="",
    script="#!/bin/sh\necho hello\n",
    nodes=2,
    gpus_per_node=8,
    tasks_per_node=8,
    time_limit_s=3600,
    env={"GREETING": "hello, you"},
    gpu_model="H100-SXM5-80GB",
    exclude=("gpu-3", "gpu-4"),
)
SERVICE = ServiceSpec(
    service_id="svc_01hzzzzzzzzzzzzzzzzzzzzzzz",
    cluster_id=CLUSTER_ID,
    tenant_id="ten_one",
    version=3,
    turn=7,
    image="example.org/serve:1",
    port=8000,
    replicas=2,
    command=("/bin/sh", "-c", "exec serve --at $(HOST)"),
    env={"GREETING": "hello, you"},
    files=(ServiceFile("models/config.pbtxt", "secret words"),),
    gpus_per_node=4,
    gpu_model="H100-SXM5-80GB",
    readiness=Readiness(path="/health"),
    scaling=Scaling(1, 4, "cpu_cores", 2.5),
)
OFFER = serving.Offer(lws=True, keda=True, cpu=True, custom=True)
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"uid": "0000-uid"}}
OF_OTHERS = ("kueue", "leaderworkerset", "keda", "kubeflow")
"""Groups whose schemas Kubernetes does not publish."""


def _of_services() -> dict[str, Any]:
    by_metric = replace(SERVICE, scaling=Scaling(1, 4, "vllm:num_requests_waiting", 5.0))
    asking = CONFIG.model_copy(update={"prometheus_url": "http://prometheus.monitoring:9090"})
    made = {
        "service-deployment": serving.main(NAMES, SERVICE, CONFIG, KUEUE, 2),
        "service-plain": serving.main(NAMES, replace(SERVICE, files=(), readiness=Readiness(), command=()), CONFIG, None, 0),
        "service-lws": serving.main(NAMES, replace(SERVICE, nodes=2, worker_command=("follow",)), CONFIG, KUEUE, 1),
    }
    secretive = replace(SERVICE, secret_env={"TOKEN": "quiet"}, secret_files={"key.pem": "quiet too"})
    made["service-secretive"] = serving.main(NAMES, secretive, CONFIG, KUEUE, 2)
    made["service-secret-secretive"] = serving.beside(NAMES, secretive, CONFIG, OFFER, OWNER)[0].body
    parts = serving.beside(NAMES, SERVICE, CONFIG, OFFER, OWNER)
    parts += serving.beside(NAMES, by_metric, asking, OFFER, OWNER)[2:]
    parts += serving.beside(NAMES, by_metric, CONFIG, OFFER, OWNER)[2:]
    by_claim = replace(SERVICE, gpu=GpuKind(min_memory_gib=70))
    made["service-claiming"] = serving.main(NAMES, by_claim, CLAIMING, KUEUE, 2)
    made |= {f"{name}-bare": serving.bare(made[name]) for name in ("service-deployment", "service-lws")}
    made["service-sliced"] = serving.main(NAMES, replace(SERVICE, gpus_per_node=0, mig=Slices("1g.10gb+me", 2)), CONFIG, KUEUE, 2)
    made["service-claims"] = serving.claims(NAMES, by_claim, CLAIMING, "resource.k8s.io/v1", OWNER).body
    names = ("service-secret", "service-service", "service-hpa-cpu", "service-keda", "service-hpa-pods")
    return made | {name: one.body for name, one in zip(names, parts, strict=True)}


def _objects() -> dict[str, Any]:
    parts = [
        walls.namespace(NAMES, SPEC, CONFIG),
        walls.limit(NAMES, SPEC, CONFIG, {"nvidia.com/mig-1g.10gb.me": 14}),
        *walls.walls(NAMES, SPEC, CONFIG),
    ]
    parts += walls.queue(NAMES, CLUSTER_ID, CONFIG, KUEUE, {"cpu": "384", "nvidia.com/gpu": "16"})
    made = {f"{one.body['kind']}-{one.body['metadata']['name']}".lower(): one.body for one in parts}
    made["job-gang"] = manifests.job(NAMES, JOB, CONFIG, KUEUE)
    alone = JobSpec(
        **{**{name: getattr(JOB, name) for name in JOB.__dataclass_fields__}, "nodes": 1, "exclude": (), "image": "a/b:1"}
    )
    made["job-alone"] = manifests.job(NAMES, alone, KubernetesConfig(), None)
    launched = JobSpec(
        **{
            **{name: getattr(JOB, name) for name in JOB.__dataclass_fields__},
            "script": "",
            "launch": Launch("torchrun", ("train.py",)),
            "priority": "high",
            "secret_env": {"TOKEN": "quiet"},
            "secret_files": {"key.pem": "quiet too"},
        }
    )
    made["job-launched"] = manifests.job(NAMES, launched, CONFIG, KUEUE)
    made["secret-launched"] = manifests.secret(NAMES, launched, "0000-uid")
    mounting = JobSpec(
        **{
            **{name: getattr(JOB, name) for name in JOB.__dataclass_fields__},
            "mounts": (Mount("data", "/data"), Mount("data", "/again", read_only=True), Mount("models", "/models")),
        }
    )
    made["job-mounting"] = manifests.job(NAMES, mounting, CONFIG, KUEUE)
    wanted = replace(JOB, gpu=GpuKind("H100-SXM5-80GB", 70, nvlink=True))
    made["job-claiming"] = manifests.job(NAMES, wanted, CLAIMING, KUEUE)
    made["job-claiming-count"] = manifests.job(NAMES, replace(JOB, gpu_model=""), CLAIMING, None)
    for version in ("v1", "v1beta2", "v1beta1"):
        made[f"claims-{version}"] = manifests.claims(NAMES, wanted, CLAIMING, f"resource.k8s.io/{version}", "0000-uid")
    made["job-sliced"] = manifests.job(NAMES, replace(JOB, gpus_per_node=0, mig=Slices("1g.10gb+me", 2)), CONFIG, KUEUE)
    solved = replace(launched, launch=Launch("mpi", ("./solve", "a b"), implementation="mpich"))
    made["mpijob"] = manifests.mpi_job(NAMES, solved, CONFIG, KUEUE)
    made["secret-mpi"] = manifests.secret(
        NAMES, replace(solved, launch=Launch("mpi", ("./solve",), setup="export A=b")), "0000-uid"
    )
    made["claims-count"] = manifests.claims(NAMES, replace(JOB, gpu_model=""), CLAIMING, "resource.k8s.io/v1")
    made["resourcequota-claiming"] = walls.limit(NAMES, SPEC, CLAIMING, {}).body
    space = walls.own_space(NAMES, CLUSTER_ID, "ten_one", OWN) + walls.queue(NAMES, CLUSTER_ID, OWN, KUEUE, {"cpu": "384"})
    made |= {f"own-{one.body['kind']}-{one.body['metadata']['name']}".lower(): one.body for one in space}
    placed = OWN.model_copy(update={"topology_labels": ["controlplane.internal/block", "kubernetes.io/hostname"]})
    by_place = walls.queue(NAMES, CLUSTER_ID, placed, KUEUE, {"cpu": "384"})
    made |= {f"own-placed-{one.body['kind']}".lower(): one.body for one in by_place[:2]}
    made["own-job"] = manifests.job(NAMES, JOB, OWN, KUEUE)
    made["own-job-sliced"] = manifests.job(NAMES, replace(JOB, gpus_per_node=0, mig=Slices("3g.40gb", 1)), OWN, KUEUE)
    made["own-service"] = serving.main(NAMES, SERVICE, OWN, None, 2)
    for version in ("v1", "v1beta1"):
        for part in policies.policy(NAMES, CLUSTER_ID, "theirs", f"{policies.GROUP}/{version}"):
            made[f"{part.body['kind']}-{version}".lower()] = part.body
    made["pod-rehearsed"] = policies.rehearsal(NAMES, CLUSTER_ID, "theirs")
    kept = Names("cp")
    kept.keep(CLUSTER_ID, "theirs")
    for part in walls.queue(kept, CLUSTER_ID, CONFIG, KUEUE, {"cpu": "384"})[2:]:
        made[f"kept-{part.body['kind']}".lower()] = part.body
    made["claim"] = manifests.claim(NAMES, CLUSTER_ID, "data", CONFIG)
    made["workloadpriorityclass-high"] = walls.rank(NAMES, "high", KUEUE).body
    made["secret"] = manifests.secret(NAMES, JOB, "0000-uid")
    made["tokenrequest"] = token_request(900)
    made["rulesreview"] = rights.rules_review()
    made["accessreview"] = rights.access_review(rights.Need("", "pods/log", ("get",), "one"), "get")
    return made | _of_services()


OBJECTS = _objects()


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_what_its_file_says(name: str) -> None:
    """A change of what we write is seen by whoever reads the change."""
    text = json.dumps(OBJECTS[name], indent=1, sort_keys=True) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", [name for name, made in OBJECTS.items() if not made["apiVersion"].startswith(OF_OTHERS)])
def test_the_published_schema_knows_every_field(name: str) -> None:
    """Strictly: a field that 1.36 does not know is refused, by the schema of that very version."""
    assert kubernetes_validate.validate(OBJECTS[name], "1.36", strict=True).startswith("1.36")


def test_the_schemas_bite() -> None:
    """A misspelt field is found, so the test above can fail."""
    wrong = json.loads(json.dumps(OBJECTS["job-gang"]))
    wrong["spec"]["template"]["spec"]["nodeSelectr"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.36", strict=True)


def test_a_pod_goes_to_its_clusters_nodes_only() -> None:
    """Selector and toleration name one cluster; nothing in the pod can reach the host or the API server."""
    pod = OBJECTS["job-gang"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"][CLUSTER] == CLUSTER_ID
    assert [(one["key"], one["operator"], one["value"]) for one in pod["tolerations"]] == [(CLUSTER, "Equal", CLUSTER_ID)]
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(pod)
    assert not [one for one in pod["volumes"] if "hostPath" in one]


def test_a_script_and_its_environment_are_in_no_readable_place() -> None:
    """Only the Secret holds them; tenants' people may not read secrets here."""
    text = json.dumps(OBJECTS["job-gang"])
    assert "hello" not in text
    kinds = {kind for rule in OBJECTS["role-tenant"]["rules"] for kind in rule["resources"]}
    verbs = {verb for rule in OBJECTS["role-tenant"]["rules"] for verb in rule["verbs"]}
    assert "secrets" not in kinds
    assert verbs == {"get", "list", "watch"}


@pytest.mark.parametrize(
    "wanted",
    [
        {"script": "no shebang"},
        {"script": "#!/bin/sh\n\0"},
        {"script": "#!/bin/sh\n" + "x" * 1_000_000},
        {"env": {"A B": "x"}},
        {"env": {"1A": "x"}},
        {"env": {"A": "\0"}},
        {"image": "a b"},
        {"image": "--privileged"},
        {"image": "x" * 400},
        {"mounts": (Mount("other", "/data"),)},
        {"mounts": (Mount("data", "/data"), Mount("models", "/data"))},
        *(
            {"mounts": (Mount("data", path),)}
            for path in ("/", "data", "/../x", "/a/../b", "/proc/1", "/dev/shm", "/controlplane", "/a:b")
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(wanted: dict[str, Any]) -> None:
    """Before anything is asked of the server."""
    known = {name: getattr(JOB, name) for name in JOB.__dataclass_fields__}
    with pytest.raises(Refused):
        manifests.refuse_unsendable(JobSpec(**{**known, **wanted}), CONFIG)


@pytest.mark.parametrize("word", ["", "UPPER", "a/b", "../x", "a b", "a" * 60, "-a", "a-", "ä", "a\n"])
def test_odd_ids_never_become_names(word: str) -> None:
    """A path is made of checked words only."""
    with pytest.raises(Refused):
        NAMES.namespace(word)


@pytest.mark.parametrize("name", ["service-deployment", "service-lws"])
def test_a_services_pods_go_to_its_clusters_nodes_only(name: str) -> None:
    """As jobs' pods: one cluster's nodes, nothing of the host, no way to the API server; secrets by reference alone."""
    spec = OBJECTS[name]["spec"]
    group = spec.get("leaderWorkerTemplate")
    for template in [spec["template"]] if group is None else [group["leaderTemplate"], group["workerTemplate"]]:
        pod = template["spec"]
        assert pod["nodeSelector"][CLUSTER] == CLUSTER_ID
        assert [(one["key"], one["operator"], one["value"]) for one in pod["tolerations"]] == [(CLUSTER, "Equal", CLUSTER_ID)]
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(pod)
        assert not [one for one in pod["volumes"] if "hostPath" in one]
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": pod}, "1.36", strict=True
        )
    assert "hello" not in json.dumps(OBJECTS[name])
    assert "secret words" not in json.dumps(OBJECTS[name])
    assert "quiet" not in json.dumps(OBJECTS["service-secretive"])


def test_the_server_expands_nothing_in_a_tenants_command() -> None:
    """What looks like a reference to a variable reaches the program as it was written."""
    (container,) = OBJECTS["service-deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "exec serve --at $$(HOST)"


@pytest.mark.parametrize(
    "wanted",
    [
        {"image": "a b"},
        {"image": "--privileged"},
        {"env": {"A B": "x"}},
        {"secret_env": {"A B": "x"}},
        {"secret_files": {"../a": "x"}},
        {"secret_files": {"a": "x" * 1_000_000}},
        {"files": (ServiceFile("../etc/passwd", ""),)},
        {"files": (ServiceFile("/etc/passwd", ""),)},
        {"files": (ServiceFile("x", "x" * 1_000_000),)},
    ],
)
def test_what_cannot_be_served_is_refused(wanted: dict[str, Any]) -> None:
    """Before anything is asked of the server."""
    with pytest.raises(Refused):
        serving.refuse_unsendable(replace(SERVICE, **wanted), OFFER, CONFIG)


def test_what_the_server_lacks_is_refused_in_words() -> None:
    """Several nodes need LeaderWorkerSet; a metric needs somebody who tells it."""
    with pytest.raises(Refused, match="LeaderWorkerSet"):
        serving.refuse_unsendable(replace(SERVICE, nodes=2, scaling=None), serving.Offer(), CONFIG)
    with pytest.raises(Refused, match="cpu_cores"):
        serving.refuse_unsendable(SERVICE, serving.Offer(keda=True, custom=True), CONFIG)


def _pod(**status: Any) -> dict[str, Any]:
    labels = {"controlplane.internal/version": "3"}
    return {"metadata": {"name": "p", "labels": labels}, "spec": {"nodeName": "gpu-1", "containers": []}, "status": status}


def _state(**one: Any) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"name": "service", "restartCount": 2, **one}]}


@pytest.mark.parametrize(
    ("status", "phase", "trouble", "code"),
    [
        (_state(state={"waiting": {"reason": "ImagePullBackOff"}}), "failing", "image_pull", None),
        (_state(state={"waiting": {"reason": "InvalidImageName"}}), "failing", "image_name", None),
        (
            _state(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": {"exitCode": 3}}),
            *("failing", "crash_loop", 3),
        ),
        (_state(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), "failing", "out_of_memory", 137),
        (_state(state={"running": {}}), "starting", "not_ready", None),
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, "ready", "", None),
    ],
)
def test_what_a_kubelet_says_is_folded(status: dict[str, Any], phase: str, trouble: str, code: int | None) -> None:
    """Codes that have words for people."""
    (replica,) = standing.view(OBJECTS["service-deployment"], [_pod(**status)], SERVICE.service_id, CONFIG, "").replicas
    assert (replica.phase, replica.trouble, replica.exit_code, replica.version) == (phase, trouble, code, 3)


def test_a_quota_that_stops_pods_is_told() -> None:
    """The Deployment says it by a condition; no pod is there to tell."""
    said = {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota: cluster'}
    told = {**OBJECTS["service-deployment"], "status": {"conditions": [said]}}
    assert standing.view(told, [], SERVICE.service_id, CONFIG, "").trouble == "quota"
