"""
What kubeadm looks at and writes on a host, whether it founds a cluster or joins one.

Source: kubernetes.io, "Implementation details" of kubeadm, "PKI certificates and requirements"; kubernetes, cmd/kubeadm/app/preflight.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import socket
import time
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import yaml

from tests.stand_ins import certificates
from tests.stand_ins.api_server import answers
from tests.stand_ins.machine import Answer, Api, fail, hostname, put, route, run, trusting

Json = dict[str, Any]
FOLDER = Path("/etc/kubernetes")
PKI = FOLDER / "pki"
MANIFESTS = FOLDER / "manifests"
DATA = Path("/var/lib/etcd")
ADMINS = "kubeadm:cluster-admins"
PATIENCE_S = 240.0
SHARED = ("ca", "front-proxy-ca", "etcd/ca")
MERGE = "application/merge-patch+json"


def preflight(registration: Json, *, careful: bool, leads: bool) -> None:
    """
    What the real one looks at before it begins. Socket and forwarding are needed however little careful one is.
    """
    wrong = []
    with socket.socket(socket.AF_UNIX) as line:
        try:
            line.connect(registration["criSocket"].removeprefix("unix://"))
        except OSError as error:
            wrong.append(f"container runtime is not running: {error}")
    if Path("/proc/sys/net/ipv4/ip_forward").read_text(encoding="ascii").strip() != "1":
        wrong.append("/proc/sys/net/ipv4/ip_forward contents are not set to 1")
    if "enabled" not in run("systemctl", "is-enabled", "kubelet.service"):
        wrong.append("kubelet service is not enabled")
    if careful:
        manifests = [MANIFESTS / f"{one}.yaml" for one in ("kube-apiserver", "etcd")] if leads else []
        wrong += [f"{one} already exists" for one in (*manifests, FOLDER / "kubelet.conf") if one.exists()]
        wrong += [f"Port {port} is in use" for port in ((6443, 2379, 2380, 10250) if leads else (10250,)) if answers(port)]
        if leads and DATA.exists() and any(DATA.iterdir()):
            wrong.append(f"{DATA} is not empty")
    if wrong:
        fail(f"[ERROR] {'; '.join(wrong)}")


def check_shared(cluster: Json, authority: str) -> None:
    """
    Every control plane has the same authorities and the same key of accounts, or it may not be one.
    """
    if not cluster.get("controlPlaneEndpoint"):
        fail("unable to add a new control plane instance to a cluster that doesn't have a stable controlPlaneEndpoint address")
    missing = [one for one in (*SHARED, "sa") if not (PKI / f"{one}.key").exists()]
    if missing:
        fail(f"the certificates that must be shared among control plane instances are not provided: failure loading {missing}")
    if (PKI / "ca.crt").read_text(encoding="ascii").strip() != authority.strip():
        fail("the authority of this host is not the cluster's")


def leaves(cluster: Json) -> None:
    """
    Authorities are those that are there; what they sign is made, where it is not there yet.
    """
    for one in SHARED:
        certificates.check_authority(str(PKI / f"{one}.crt"), str(PKI / f"{one}.key"))
    certificates.check_pair(str(PKI / "sa.pub"), str(PKI / "sa.key"))
    domain = cluster["networking"]["dnsDomain"]
    first = str(IPv4Network(cluster["networking"]["serviceSubnet"])[1])
    endpoint = cluster["controlPlaneEndpoint"].rsplit(":", 1)[0]
    if socket.gethostbyname(endpoint) not in {*cluster["apiServer"]["certSANs"], route()[1]}:
        fail(f"{endpoint} is not this cluster")
    own = (hostname(), endpoint, "kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{domain}")
    names = {f"DNS:{one}" for one in own} | {f"IP:{one}" for one in (first, route()[1])}
    names |= {f"IP:{one}" if re.fullmatch(r"[\d.]+", one) else f"DNS:{one}" for one in cluster["apiServer"]["certSANs"]}
    proxy, etcd, signer = ((str(PKI / f"{one}.crt"), str(PKI / f"{one}.key")) for one in ("front-proxy-ca", "etcd/ca", "ca"))
    here = [f"DNS:{hostname()}", "DNS:localhost", f"IP:{route()[1]}", "IP:127.0.0.1"]
    for one in ("server", "peer"):
        certificates.made(str(PKI / "etcd" / one), etcd, hostname(), names=here, peer=True)
    certificates.made(str(PKI / "etcd/healthcheck-client"), etcd, "kube-etcd-healthcheck-client")
    certificates.made(str(PKI / "apiserver"), signer, "kube-apiserver", names=sorted(names))
    certificates.made(str(PKI / "apiserver-kubelet-client"), signer, "kube-apiserver-kubelet-client", [ADMINS])
    certificates.made(str(PKI / "apiserver-etcd-client"), etcd, "kube-apiserver-etcd-client")
    certificates.made(str(PKI / "front-proxy-client"), proxy, "front-proxy-client")


def serve_api(cluster: Json) -> None:
    """
    The API server's manifest is there: it asks the member of etcd on this host and no other.
    """
    flags = [
        "--tls-cert-file=/etc/kubernetes/pki/apiserver.crt",
        "--tls-private-key-file=/etc/kubernetes/pki/apiserver.key",
        "--client-ca-file=/etc/kubernetes/pki/ca.crt",
        "--etcd-servers=https://127.0.0.1:2379",
        "--etcd-cafile=/etc/kubernetes/pki/etcd/ca.crt",
        "--etcd-certfile=/etc/kubernetes/pki/apiserver-etcd-client.crt",
        "--etcd-keyfile=/etc/kubernetes/pki/apiserver-etcd-client.key",
        *(f"--{one['name']}={one['value']}" for one in cluster["apiServer"]["extraArgs"]),
    ]
    image = f"{cluster.get('imageRepository', 'registry.k8s.io')}/kube-apiserver:{cluster['kubernetesVersion']}"
    _pod("kube-apiserver", image, flags, {})


def etcd_pod(members: str, state: str) -> None:
    """
    The manifest of this host's member is there, which begins with these.
    """
    own = route()[1]
    etcd = "/etc/kubernetes/pki/etcd"
    flags = [
        f"--name={hostname()}",
        f"--data-dir={DATA}",
        f"--initial-cluster={members}",
        f"--initial-cluster-state={state}",
        f"--initial-advertise-peer-urls=https://{own}:2380",
        f"--advertise-client-urls=https://{own}:2379",
        f"--cert-file={etcd}/server.crt",
        f"--key-file={etcd}/server.key",
        f"--trusted-ca-file={etcd}/ca.crt",
        "--client-cert-auth=true",
        f"--peer-cert-file={etcd}/peer.crt",
        f"--peer-key-file={etcd}/peer.key",
        f"--peer-trusted-ca-file={etcd}/ca.crt",
        "--peer-client-cert-auth=true",
    ]
    told = {"kubeadm.kubernetes.io/etcd.advertise-client-urls": f"https://{own}:2379"}
    _pod("etcd", "registry.k8s.io/etcd:3.6.8-0", flags, told)


def _pod(name: str, image: str, flags: list[str], annotations: dict[str, str]) -> None:
    container = {"name": name, "image": image, "command": [name, *flags]}
    metadata = {"name": name, "namespace": "kube-system", "labels": {"component": name, "tier": "control-plane"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "annotations": annotations}}
    put(MANIFESTS / f"{name}.yaml", yaml.safe_dump({**body, "spec": {"containers": [container], "hostNetwork": True}}))


def start_kubelet(settings: str, registration: Json) -> None:
    """
    It runs anew with these settings and flags.
    """
    put("/var/lib/kubelet/config.yaml", settings, 0o644)
    given = " ".join(f"--{one['name']}={one['value']}" for one in registration.get("kubeletExtraArgs", []))
    put("/var/lib/kubelet/kubeadm-flags.env", f'KUBELET_KUBEADM_ARGS="{given}"\n', 0o644)
    run("systemctl", "restart", "kubelet.service")


def admin() -> Api:
    """
    The API as the administrator of this host reaches it.
    """
    whole = yaml.safe_load((FOLDER / "admin.conf").read_text(encoding="utf-8"))
    pair = "/var/lib/stand-ins/admin"
    server = whole["clusters"][0]["cluster"]["server"]
    return Api(server, trusting(str(PKI / "ca.crt"), f"{pair}.crt", f"{pair}.key"))


def mark(api: Api, name: str) -> None:
    """
    The Node is a control plane's.
    """
    role = "node-role.kubernetes.io/control-plane"
    marked = {"metadata": {"labels": {role: ""}}, "spec": {"taints": [{"key": role, "effect": "NoSchedule"}]}}
    api.ask("PATCH", f"/api/v1/nodes/{name}", marked, MERGE)


def kubeconfig(server: str, authority: str, pair: str, token: str = "") -> str:
    """
    For whoever has the pair, the token, or nothing.
    """
    user = {"token": token} if token else {"client-certificate": f"{pair}.crt", "client-key": f"{pair}.key"} if pair else {}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority-data": encoded(authority)}}],
            "users": [{"name": "it", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }
    )


def signature(text: str, identity: str, secret: str) -> str:
    """
    As the bootstrap signer's: JWS by HS256 without its payload.
    """
    head = _url(json.dumps({"alg": "HS256", "kid": identity}, separators=(",", ":")).encode())
    made = hmac.new(secret.encode(), f"{head}.{_url(text.encode())}".encode(), hashlib.sha256).digest()
    return f"{head}..{_url(made)}"


def _url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def encoded(text: str) -> str:
    """
    In base64.
    """
    return base64.b64encode(text.encode()).decode()


def wait(met: Any, what: str) -> None:
    """
    It has come to pass.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            if met():
                return
        except (Answer, OSError):
            pass
        if time.monotonic() > end:
            fail(f"timed out waiting for {what}")
        time.sleep(0.3)
