"""
Every object that we write to a Kubernetes, checked against the published schemas of 1.36 and against files of their own.

After a wanted change: `GOLDEN=write pytest tests/unit/test_kubernetes_manifests.py`, and read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from controlplane.providers.adapters.kubernetes import manifests, rights, walls
from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.adapters.kubernetes.names import CLUSTER, Names
from controlplane.providers.adapters.kubernetes.tokens import token_request
from controlplane.providers.clusters import ClusterSpec, JobSpec, Member
from controlplane.providers.errors import Refused
from controlplane.providers.launching import Launch

GOLDEN = Path(__file__).parent / "kubernetes_golden"
NAMES = Names("cp")
CLUSTER_ID = "clu_01hzzzzzzzzzzzzzzzzzzzzzzz"
KUEUE = walls.Queueing("kueue.x-k8s.io/v1beta2", topology=True)
CONFIG = KubernetesConfig(
    topology_labels=["example.org/block", "example.org/rack", "kubernetes.io/hostname"],
    egress=["10.9.0.0/16"],
    gpu_models={"H100-SXM5-80GB": "NVIDIA-H100-80GB-HBM3"},
)
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


def _objects() -> dict[str, Any]:
    parts = [walls.namespace(NAMES, SPEC, CONFIG), *walls.walls(NAMES, SPEC, CONFIG)]
    parts += walls.queue(NAMES, SPEC, CONFIG, KUEUE, {"cpu": "384", "nvidia.com/gpu": "16"})
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
    made["workloadpriorityclass-high"] = walls.rank(NAMES, "high", KUEUE).body
    made["secret"] = manifests.secret(NAMES, JOB, "0000-uid")
    made["tokenrequest"] = token_request(900)
    made["rulesreview"] = rights.rules_review()
    made["accessreview"] = rights.access_review(rights.Need("", "pods/log", ("get",), "one"), "get")
    return made


OBJECTS = _objects()


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_what_its_file_says(name: str) -> None:
    """A change of what we write is seen by whoever reads the change."""
    text = json.dumps(OBJECTS[name], indent=1, sort_keys=True) + "\n"
    file = GOLDEN / f"{name}.json"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("name", [name for name, made in OBJECTS.items() if "kueue" not in made["apiVersion"]])
def test_the_published_schema_knows_every_field(name: str) -> None:
    """Strictly: a field that 1.36 does not know fails."""
    kubernetes_validate.validate(OBJECTS[name], "1.36", strict=True)


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
    ],
)
def test_what_cannot_be_sent_is_refused(wanted: dict[str, Any]) -> None:
    """Before anything is asked of the server."""
    known = {name: getattr(JOB, name) for name in JOB.__dataclass_fields__}
    with pytest.raises(Refused):
        manifests.refuse_unsendable(JobSpec(**{**known, **wanted}))


@pytest.mark.parametrize("word", ["", "UPPER", "a/b", "../x", "a b", "a" * 60, "-a", "a-", "ä", "a\n"])
def test_odd_ids_never_become_names(word: str) -> None:
    """A path is made of checked words only."""
    with pytest.raises(Refused):
        NAMES.namespace(word)
