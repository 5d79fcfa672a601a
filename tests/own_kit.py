"""
A Kubernetes that somebody set up before us, on the kit's emulator: nodes as machines, what kubeadm or k3s leave in it, and the part of its
controllers that signs certificates, which the emulator lacks.

Source: kubernetes.io, "Certificates and Certificate Signing Requests": what is approved for kubernetes.io/kube-apiserver-client is signed
with usage client auth, for `expirationSeconds`.
"""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from controlplane.kit.certificates import sign_client
from controlplane.rendering.kubernetes.keys import Authority
from tests.kubernetes_kit import KubernetesKit, emulator_module, kubeconfig
from tests.tls_door import tls_door

LEADS = "node-role.kubernetes.io/control-plane"
SIGNER = "kubernetes.io/kube-apiserver-client"
NAME = "api.theirs.example"
"""In the certificate of its API server."""
KUBEADM = """apiVersion: kubeadm.k8s.io/v1beta4
clusterName: research
controlPlaneEndpoint: 10.1.9.1:6443
kind: ClusterConfiguration
kubernetesVersion: v1.36.2
"""


def uuid_of(number: int) -> str:
    """
    What the firmware of the machine calls it.
    """
    return f"4c4c4544-0046-3510-8052-b4c04f4e{number:04d}"


def stand(kit: KubernetesKit, authority: Authority, *, leads: int = 1, first: int = 1, k3s: bool = False) -> list[str]:
    """
    The emulator is a cluster of this authority, whose nodes are the machines from that number on, control planes before the others; their
    names are returned.
    """
    names = sorted(name for _, name in kit.emulator.data[("", "nodes")])
    for number, name in enumerate(names):
        seat(kit, name, first + number, leads=number < leads)
    if k3s:
        _play_k3s(kit, authority)
    else:
        put(kit, "kube-system", "kubeadm-config", {"ClusterConfiguration": KUBEADM})
        lines = ["clusters:", "- cluster:", f"    certificate-authority-data: {encoded(authority.certificate)}"]
        text = "\n".join([*lines, "    server: https://10.1.9.1:6443", "  name: ''", ""])
        put(kit, "kube-public", "cluster-info", {"kubeconfig": text})
    _play_signer(kit, authority)
    return names


@contextmanager
def administrators(kit: KubernetesKit, authority: Authority, folder: Path) -> Iterator[str]:
    """
    A kubeconfig of an administrator, by a certificate, for a door that has the API's name and lets in whom the authority signed for.
    """
    both, now = (authority.certificate, authority.key), datetime.now(UTC)
    certificate, key = sign_client(both, "admin", ["system:masters"], now, now + timedelta(days=1))
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    server = {"certificate-authority-data": encoded(authority.certificate), "tls-server-name": NAME}
    with tls_door(int(kit.handle.url.rsplit(":", 1)[1]), folder, both, NAME) as door:
        yield kubeconfig(door.url, user, **server)


def encoded(text: str) -> str:
    """
    As kubeconfigs hold it.
    """
    return base64.b64encode(text.encode()).decode()


def seat(kit: KubernetesKit, name: str, number: int, *, leads: bool = False) -> None:
    """
    The node is the machine of that number.
    """
    info = {"systemUUID": uuid_of(number).upper(), "machineID": f"{number:032x}"}
    addresses = [{"type": "InternalIP", "address": f"10.1.9.{number}"}, {"type": "Hostname", "address": name}]
    kit.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": info, "addresses": addresses}})
    if leads:
        taint = {"key": LEADS, "effect": "NoSchedule"}
        kit.ask("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {LEADS: ""}}, "spec": {"taints": [taint]}})


def put(kit: KubernetesKit, namespace: str, name: str, data: dict[str, str]) -> None:
    """
    The ConfigMap is there.
    """
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    kit.ask("POST", f"/api/v1/namespaces/{namespace}/configmaps", body, "application/json")


def join(kit: KubernetesKit, name: str, number: int) -> None:
    """
    Another machine has joined as a worker, ready with eight GPUs.
    """
    first = copy.deepcopy(next(iter(kit.emulator.data[("", "nodes")].values())))
    labels = {key: value for key, value in first["metadata"]["labels"].items() if "controlplane" not in key and key != LEADS}
    labels["kubernetes.io/hostname"] = name
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}, "status": first["status"]}
    kit.ask("POST", "/api/v1/nodes", body, "application/json")
    kit.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": first["status"]})
    seat(kit, name, number)


def _play_signer(kit: KubernetesKit, authority: Authority) -> None:
    """Whatever is approved is signed. The emulator drops what is written to `/approval`, where servers take the conditions alone."""
    kubelet, update = kit.emulator.c_kubelet, kit.emulator.update

    def updated(res: Any, prev: Any, wanted: Any, manager: str, sub: str | None = None, *rest: Any, **more: Any) -> Any:
        if sub == "approval":
            told = {**(prev.get("status") or {}), "conditions": (wanted.get("status") or {}).get("conditions")}
            return update(res, prev, {**copy.deepcopy(prev), "status": told}, manager, "status", *rest, **more)
        return update(res, prev, wanted, manager, sub, *rest, **more)

    def c_kubelet() -> None:
        for one in list(kit.emulator.items("certificatesigningrequests", "certificates.k8s.io")):
            status = one.get("status") or {}
            approved = any(each["type"] == "Approved" and each["status"] == "True" for each in status.get("conditions") or [])
            if approved and not status.get("certificate") and one["spec"]["signerName"] == SIGNER:
                signed = copy.deepcopy(one)
                signed["status"]["certificate"] = encoded(_signed(one["spec"], authority))
                kit.emulator.commit("MODIFIED", kit.emulator.find("certificatesigningrequests", "certificates.k8s.io"), signed, one)
        kubelet()

    kit.emulator.c_kubelet, kit.emulator.update = c_kubelet, updated


def _signed(spec: dict[str, Any], authority: Authority) -> str:
    """The certificate, as the controller manager would make it; what it would refuse is an error here."""
    assert spec["usages"] == ["client auth"]
    assert spec["expirationSeconds"] >= 600
    asked = x509.load_pem_x509_csr(base64.b64decode(spec["request"]))
    assert asked.is_signature_valid
    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    key = load_pem_private_key(authority.key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(asked.subject)
        .issuer_name(issuer.subject)
        .public_key(asked.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(seconds=spec["expirationSeconds"]))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM).decode()


def _play_k3s(kit: KubernetesKit, authority: Authority) -> None:
    """Its version says that it is k3s, kubelets' too, and its servers hand out their authority."""
    module, route = emulator_module(), kit.emulator.route
    for _, name in list(kit.emulator.data[("", "nodes")]):
        kit.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": {"kubeletVersion": "v1.36.2+k3s1"}}})

    async def k3s(request: Any) -> Any:
        if request.path == "/cacerts":
            await asyncio.sleep(0)
            return module.web.Response(body=authority.certificate.encode())
        if request.path == "/version":
            await asyncio.sleep(0)
            return module.web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.2+k3s1"})
        return await route(request)

    kit.emulator.route = k3s
