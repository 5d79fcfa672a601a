"""
A worker's way into a cluster by what it is given: token, request for a certificate, Node. Against the stand-in that hosts have for an API
server, or, with CONTROLPLANE_USE_KUBECONFIG=1, against the real Kubernetes whose administrator KUBECONFIG names.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.kit.certificates import sign_client
from controlplane.providers.adapters.kubernetes.adapter import build
from controlplane.providers.registry import AdapterInput
from controlplane.rendering.kubernetes.joining import Entry, entry_files
from controlplane.rendering.kubernetes.keys import ClusterKeys, new_keys
from controlplane.rendering.kubernetes.kubeadm import join_file
from controlplane.rendering.kubernetes.scripts import STRANGER
from tests.contract.real_kubernetes_harness import named_cluster
from tests.factories.kubernetes_plans import HGX, plain
from tests.kubernetes_kit import UNTIDY, kubeconfig, kubectl, kubernetes_kit
from tests.stand_ins.api_server import APPROVED_GROUP, Server
from tests.stand_ins.kubelet import Kubelet, bootstrap
from tests.stand_ins.machine import STORE_TOKEN, Answer, Api, trusting
from tests.stand_ins_kit import let_act
from tests.tls_door import signed_by

pytestmark = UNTIDY
REAL = named_cluster()
RBAC, OURS = "rbac.authorization.k8s.io", "controlplane.internal"
ROLES = {
    "bootstrap": "system:node-bootstrapper",
    "approve": "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
}
"""What kubeadm lets joining nodes do; every real API server has these roles from its start."""


@dataclass(frozen=True)
class Cluster:
    """One that an administrator comes into."""

    server: str
    authority: str
    admin: Path
    folder: Path

    def kubectl(self, *words: str, given: Any = None) -> str:
        """What the administrator's command printed."""
        command = [str(kubectl()), f"--kubeconfig={self.admin}", *words]
        text = None if given is None else json.dumps(given)
        env = {"HOME": str(self.folder), "PATH": os.environ["PATH"]}
        ran = subprocess.run(command, input=text, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def api(self, token: str = "", pair: str = "") -> Api:
        """It as whoever has the token or the certificate."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        shown = (f"{pair}.crt", f"{pair}.key") if pair else ()
        return Api(self.server, trusting(self.authority, *shown), headers)


@pytest.fixture(params=["real-kubernetes" if REAL else "stand-in"])
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A real one where it is meant, else the stand-in; which of them stands in the test's name."""
    if REAL is not None:
        yield real(tmp_path)
        return
    held = new_keys(datetime.now(UTC)).cluster
    clients = (tmp_path / "ca.crt", tmp_path / "ca.key")
    for path, text in zip(clients, (held.certificate, held.key), strict=True):
        path.write_text(text)
    shown = sign_client(
        (held.certificate, held.key), "admin", ["system:masters"], datetime.now(UTC), datetime.now(UTC) + timedelta(1)
    )
    pair = str(signed_by((held.certificate, held.key), "localhost", tmp_path))
    with kubernetes_kit(nodes=0, kueue=False, token=STORE_TOKEN) as kit:
        let_act(kit.emulator)
        kept = {"Authorization": f"Bearer {STORE_TOKEN}"}
        with Server(
            (pair, pair), (str(clients[0]), str(clients[1])), at=("127.0.0.1", 0), kept=lambda: Api(kit.handle.url, headers=kept)
        ) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            user = dict(zip(("client-certificate-data", "client-key-data"), map(encoded, shown), strict=True))
            url = f"https://localhost:{server.server_address[1]}"
            admin = tmp_path / "admin.conf"
            admin.write_text(kubeconfig(url, user, **{"certificate-authority-data": encoded(held.certificate)}))
            made = Cluster(url, str(clients[0]), admin, tmp_path)
            rules = [
                {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"], "verbs": ["create", "get"]}
            ]
            role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": ROLES["bootstrap"]}, "rules": rules}
            made.kubectl("create", "--validate=false", "-f", "-", given=role)
            yield made
            server.shutdown()


def real(folder: Path) -> Cluster:
    """What KUBECONFIG leads to, as it is: a file of the authority beside it."""
    assert REAL is not None
    whole = Cluster("", "", REAL, folder).kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json")
    told = json.loads(whole)["clusters"][0]["cluster"]
    (folder / "ca.crt").write_bytes(base64.b64decode(told["certificate-authority-data"]))
    return Cluster(told["server"], str(folder / "ca.crt"), REAL, folder)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(params=["ordered", "taken-over"])
def told(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The document of a worker of a cluster that we have set up, and of one that stood before us."""
    with (ordered if request.param == "ordered" else taken_over)(cluster) as document:
        yield document


@contextmanager
def taken_over(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """By a door that our adapter opened with an administrator's kubeconfig; where a real one was not set up by kubeadm there is none."""
    objects = [
        ("kube-system", "controlplane-cluster", {"tenant": "ten_one"}, {f"{OURS}/cluster": "clu_j", f"{OURS}/deployment": "cp"})
    ]
    if REAL is None:
        info = {"certificate-authority-data": encoded(Path(cluster.authority).read_text()), "server": "https://10.1.9.1:6443"}
        lines = ["clusters:", "- cluster:", *(f"    {key}: {value}" for key, value in info.items())]
        objects += [
            ("kube-system", "kubeadm-config", {"ClusterConfiguration": "clusterName: theirs\n"}, {}),
            ("kube-public", "cluster-info", {"kubeconfig": "\n".join([*lines, ""])}, {}),
        ]
    elif not cluster.kubectl("get", "configmap", "kubeadm-config", "-n", "kube-system", "--ignore-not-found", "-o", "name"):
        pytest.skip("it was not set up by kubeadm")
    for space, name, data, labels in objects:
        meta = {"name": name, "namespace": space, "labels": labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        cluster.kubectl("create", "--validate=false", "-f", "-", given=body)
    given = {"machines_of": "prv_" + "0" * 26}
    way = {"kubeconfig": cluster.kubectl("config", "view", "--raw", "--minify", "--flatten")}
    adapter = build(AdapterInput("prv_join", given, way, "cp", lambda: datetime.now(UTC)))
    subject = {"apiGroup": RBAC, "kind": "Group", "name": APPROVED_GROUP}
    bindings = [] if REAL is not None else [bound(f"theirs-{name}", role, subject) for name, role in ROLES.items()]
    for one in bindings:
        cluster.kubectl("create", "--validate=false", "-f", "-", given=one)
    try:
        door = adapter.open_door("clu_j", lasts_s=600)
        entry = Entry("kubeadm", door.version, door.server, door.token, door.authority)
        plan = replace(plain(), version=door.version, endpoint=door.server, workers=(), shapes=(HGX,))
        (file,) = entry_files(plan, entry, HGX.name)
        yield yaml.safe_load(file.content)
    finally:
        adapter.let_go("clu_j")
        adapter.close()
    assert not cluster.kubectl("get", "secrets", "-n", "kube-system", "-l", f"{OURS}/cluster=clu_j", "-o", "name")


def bound(name: str, role: str, subject: dict[str, str]) -> dict[str, Any]:
    """The role is the group's."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }


@contextmanager
def ordered(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Whose token the cluster knows as kubeadm would have made it know it."""
    document = yaml.safe_load(join_file(plain(), keys(), HGX.name).content)
    identity, secret = document["discovery"]["bootstrapToken"]["token"].split(".")
    known = {
        "token-id": identity,
        "token-secret": secret,
        "expiration": (datetime.now(UTC) + timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": APPROVED_GROUP,
    }
    metadata = {"name": f"bootstrap-token-{identity}", "namespace": "kube-system"}
    kept = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "bootstrap.kubernetes.io/token"}
    subject = {"apiGroup": RBAC, "kind": "Group", "name": APPROVED_GROUP}
    bindings = [bound(f"controlplane-test-{name}-{identity}", role, subject) for name, role in ROLES.items()]
    items: list[dict[str, Any]] = [{**kept, "data": {name: encoded(value) for name, value in known.items()}}, *bindings]
    cluster.kubectl("create", "--validate=false", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": items})
    yield document
    for one in items:
        space = one["metadata"].get("namespace", "default")
        cluster.kubectl("delete", one["kind"], one["metadata"]["name"], "-n", space, "--wait=false")


def keys() -> ClusterKeys:
    """Of this run."""
    return replace(new_keys(datetime.now(UTC)), bootstrap=f"{secrets.token_hex(3)}.{secrets.token_hex(8)}")


def test_the_token_of_a_worker_makes_it_a_node(cluster: Cluster, told: dict[str, Any], tmp_path: Path) -> None:
    """
    Its request is signed for its own name and for no other's, the Node bears the labels of its document, and neither the token nor the
    certificate opens more.
    """
    name = f"ins-{secrets.token_hex(4)}"
    token = told["discovery"]["bootstrapToken"]["token"]
    (labels,) = (one["value"] for one in told["nodeRegistration"]["kubeletExtraArgs"] if one["name"] == "node-labels")
    pair = str(tmp_path / "kubelet")
    Path(f"{pair}.crt").write_text(bootstrap(cluster.api(token), f"{pair}.key", name))
    for wrong in (f"{token[:-1]}{'0' if token[-1] != '0' else '1'}", "abcdef.0123456789abcdef"):
        with pytest.raises(Answer, match="401"):
            bootstrap(cluster.api(wrong), f"{pair}.key", name)
    with pytest.raises(Answer, match="403"):
        cluster.api(token).ask("GET", "/api/v1/namespaces/kube-system/secrets")
    node = cluster.api(pair=pair)
    status = {"conditions": [{"type": "Ready", "status": "False", "reason": "Test", "message": "a test's"}]}
    body = {"metadata": {"name": name, "labels": dict(one.split("=") for one in labels.split(","))}, "spec": {}, "status": status}
    try:
        node.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **body})
        seen = json.loads(cluster.kubectl("get", "node", name, "-o", "json"))
        assert seen["metadata"]["labels"]["node.kubernetes.io/instance-type"] == HGX.name
        assert seen["metadata"]["labels"]["controlplane.internal/gpus"] == "true"
        with pytest.raises(Answer, match="403"):
            node.ask("GET", "/api/v1/namespaces/kube-system/secrets")
    finally:
        with suppress(AssertionError):
            cluster.kubectl("delete", "node", name, "--wait=false")


def test_a_control_plane_that_joins_sees_that_another_answers(cluster: Cluster) -> None:
    """By the real kubectl as a start script calls it: as nobody, and with nobody at its input."""
    command = [str(kubectl()), *STRANGER.split(), f"--server={cluster.server}", f"--certificate-authority={cluster.authority}"]
    asked = [*command, "--request-timeout=5s", "get", "--raw", "/readyz"]
    ran = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "ok"), ran.stderr


def test_a_kubelet_takes_no_label_that_is_not_its_own() -> None:
    """As a real one, it does not even start with another's."""
    with pytest.raises(SystemExit, match="unknown labels"):
        Kubelet(Api("http://127.0.0.1:9"), {"node-role.kubernetes.io/worker": ""}, name="one")


def test_a_kubelet_is_not_newer_than_its_api_server() -> None:
    """The stand-in ends where an upgrade has brought a host before its API server."""
    with kubernetes_kit(nodes=0, kueue=False, token=STORE_TOKEN) as kit:
        api = Api(kit.handle.url, headers={"Authorization": f"Bearer {STORE_TOKEN}"})
        with pytest.raises(SystemExit, match="newer than the API server"):
            Kubelet(api, {}, name="one", node_version="v1.99.0").register()
