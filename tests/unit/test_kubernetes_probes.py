"""
Whatever a tenant writes into a job or a service: its pods stay in their namespace and on their nodes, with the rights they always have.

Each probe puts one hostile text into one field. Either it is refused, or the objects have the shape of harmless ones, with nothing in them
that decides about place, rights or mounts being other than what is ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from controlplane.providers.adapters.kubernetes.config import KubernetesConfig
from controlplane.providers.clusters import JobSpec
from controlplane.providers.errors import Refused, Unsupported
from controlplane.providers.kube.work import manifests, serving, walls
from controlplane.providers.kube.work.names import CLUSTER, Names
from controlplane.providers.launching import Launch
from controlplane.providers.services import Readiness, Scaling, ServiceFile, ServiceSpec

NAMES, HOME = Names("cp"), "clu_home"
KUEUE = walls.Queueing("kueue.x-k8s.io/v1beta2", topology=False)
CONFIG = KubernetesConfig(prometheus_url="http://prometheus.example.org")
OFFER = serving.Offer(lws=True, keda=True, cpu=True, custom=True)
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"uid": "0000-uid"}}
JOB = JobSpec("job_1-1", HOME, "ten_one", "", "#!/bin/sh\n", 2, 8, 8, 600, env={"A": "b"}, image="a/b:1")
TORCH = replace(JOB, script="", launch=Launch("torchrun", ("train.py",)))
SERVICE = ServiceSpec(
    "svc_1", HOME, "ten_one", 1, 1, "a/b:1", 8000, 1, command=("serve",), env={"A": "b"}, files=(ServiceFile("c", "d"),)
)
MANY = replace(SERVICE, nodes=2, worker_command=("follow",))
TEXTS = (
    "../../other",
    "/etc/kubernetes/admin.conf",
    "..data/x",
    "$(KUBERNETES_SERVICE_HOST)",
    "{{ .Values.x }}",
    "${jndi:ldap://x}",
    'x"}],"hostNetwork":true,"y":[{"z":"',
    "x\nhostPID: true\n",
    "- name: evil\n  image: evil",
    "!!python/object/apply:os.system ['id']",
    "&a [*a, *a]",
    "x\0y",
    "kube-system",
    "cp-clu-other",
    "node-role.kubernetes.io/control-plane",
    "metadata.annotations['x']",
    'up{namespace="other"}) or sum(up',
    "a" * 5000,
    "\u202egnp",
    "",
)
PODS = {
    "serviceAccountName",
    "serviceAccount",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "initContainers",
    "nodeName",
    "runtimeClassName",
}
"""What no pod of a tenant has at all."""


def _forms(text: str) -> Iterator[tuple[str, JobSpec | ServiceSpec]]:
    """The text in each field that a tenant writes."""
    yield "script", replace(JOB, script=f"#!/bin/sh\n{text}\n")
    yield "script whole", replace(JOB, script=text)
    yield "env name", replace(JOB, env={text: "b"})
    yield "env value", replace(JOB, env={"A": text})
    yield "secret name", replace(JOB, secret_env={text: "b"})
    yield "secret value", replace(JOB, secret_env={"A": text})
    yield "file name", replace(JOB, secret_files={text: "b"})
    yield "file content", replace(JOB, secret_files={"a": text})
    yield "image", replace(JOB, image=text)
    for name, launch in (
        ("command", Launch("torchrun", (text,))),
        ("launcher", Launch("torchrun", ("a.py",), launcher=(text,))),
        ("setup", Launch("torchrun", ("a.py",), setup=text)),
    ):
        yield name, replace(TORCH, launch=launch)
    yield "service image", replace(SERVICE, image=text)
    yield "service env name", replace(SERVICE, env={text: "b"})
    yield "service env value", replace(SERVICE, env={"A": text})
    yield "service command", replace(SERVICE, command=("serve", text))
    yield "service program", replace(SERVICE, command=(text,))
    yield "worker command", replace(MANY, worker_command=(text,))
    yield "service file", replace(SERVICE, files=(ServiceFile(text, "d"),))
    yield "service content", replace(SERVICE, files=(ServiceFile("c", text),))
    yield "readiness", replace(SERVICE, readiness=Readiness(path=text))
    yield "metric", replace(SERVICE, scaling=Scaling(1, 2, text, 5.0))


FORMS = [(f"{field}-{number}", spec) for number, text in enumerate(TEXTS) for field, spec in _forms(text)]


def _objects(spec: JobSpec | ServiceSpec) -> list[dict[str, Any]]:
    if isinstance(spec, JobSpec):
        manifests.refuse_unsendable(spec, CONFIG)
        return [manifests.job(NAMES, spec, CONFIG, KUEUE), manifests.secret(NAMES, spec, "0000-uid")]
    serving.refuse_unsendable(spec, OFFER, CONFIG)
    beside = serving.beside(NAMES, spec, CONFIG, OFFER, OWNER)
    assert all(f"/namespaces/{NAMES.namespace(HOME)}/" in one.path for one in beside)
    return [serving.main(NAMES, spec, CONFIG, KUEUE, 1), *(one.body for one in beside)]


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for one in value.values():
            yield from _pods(one)
    elif isinstance(value, list):
        for one in value:
            yield from _pods(one)


def _check_pod(pod: dict[str, Any]) -> None:
    assert not PODS & pod.keys()
    assert pod["automountServiceAccountToken"] is False
    assert pod["nodeSelector"] == {CLUSTER: HOME}
    assert pod["tolerations"] == [walls.toleration(HOME)]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {kind for one in pod["volumes"] for kind in one.keys() - {"name"}} <= {"secret", "emptyDir"}
    at = {one["mountPath"] for one in container["volumeMounts"]}
    assert at <= {"/controlplane", "/controlplane-secrets", "/controlplane-cache", "/dev/shm"}
    for volume in pod["volumes"]:
        for item in volume.get("secret", {}).get("items", ()):
            assert item["path"]
            assert not item["path"].startswith(("/", ".."))
    for variable in container["env"]:
        assert set(variable.get("valueFrom", {})) <= {"secretKeyRef", "fieldRef"}


@pytest.mark.parametrize("spec", [spec for _, spec in FORMS], ids=[name for name, _ in FORMS])
def test_nothing_a_tenant_writes_leaves_its_walls(spec: JobSpec | ServiceSpec) -> None:
    """Refused, or harmless: in its namespace, on its nodes, without a right or a mount more than any other pod."""
    try:
        objects = _objects(spec)
    except (Refused, Unsupported):
        return
    for made in objects:
        assert made["metadata"]["namespace"] == NAMES.namespace(HOME)
        assert made["kind"] in {
            "Job",
            "Secret",
            "Deployment",
            "LeaderWorkerSet",
            "Service",
            "HorizontalPodAutoscaler",
            "ScaledObject",
        }
        assert made.get("type", "Opaque") == "Opaque"
        for pod in _pods(made):
            _check_pod(pod)
        if made["kind"] == "ScaledObject":
            assert made["spec"]["triggers"][0]["metadata"]["query"].count("{") == 1
        if made["kind"] == "Service":
            assert made["spec"]["type"] == "ClusterIP"
        assert json.loads(json.dumps(made)) == made


def test_there_are_enough_probes() -> None:
    """And most of the fields take something, so that what is taken is looked at."""
    assert len(FORMS) >= 200
    taken = set()
    for name, spec in FORMS:
        try:
            _objects(spec)
        except (Refused, Unsupported):
            continue
        taken.add(name.rpartition("-")[0])
    assert len(taken) >= 15, sorted(taken)
