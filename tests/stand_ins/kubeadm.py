"""
In place of kubeadm: `init` and `join` look at their documents, the host and the authorities as the real one does, write what it writes, and
leave at the API what it leaves there; `upgrade` is beside it. A control plane that joins another is not played.

Source: kubernetes.io, "Implementation details" of kubeadm, "kubeadm init", "kubeadm join", "Certificates".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import socket
import ssl
import time
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import yaml

from tests.stand_ins import certificates, kubeadm_upgrade
from tests.stand_ins.api_server import answers
from tests.stand_ins.machine import Answer, Api, documents, fail, hostname, put, route, run, trusting, version
from tests.unit.rendering.kubernetes_types import DOCUMENTS, VERSIONS, misfits

Json = dict[str, Any]
FOLDER = Path("/etc/kubernetes")
PKI = FOLDER / "pki"
ADMINS = "kubeadm:cluster-admins"
JOINERS = "system:bootstrappers:kubeadm:default-node-token"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
BOOTSTRAP = FOLDER / "bootstrap-kubelet.conf"
PATIENCE_S = 240.0


def main(arguments: list[str]) -> None:
    """
    `init` or `join`, with `--config FILE` and perhaps `--ignore-preflight-errors=all`; `upgrade`; or its version.
    """
    match arguments:
        case ["version", "-o", "short"]:
            print(f"v{version()}")
        case ["init" | "join" as verb, "--config", file, *rest] if set(rest) <= {"--ignore-preflight-errors=all"}:
            told = checked(documents(file))
            (init if verb == "init" else join)(told, careful=not rest)
        case ["upgrade", "apply", wanted, "--yes"]:
            kubeadm_upgrade.apply(wanted)
        case ["upgrade", "node"]:
            kubeadm_upgrade.node()
        case _:
            fail(f"unknown command {arguments}")


def checked(found: list[Json]) -> dict[str, Json]:
    """
    The documents by kind, each of the API version and the types that the real one reads strictly.
    """
    wrong = [f"{one.get('kind')}: {each}" for one in found for each in misfits(one, DOCUMENTS.get(one["kind"], {}))]
    wrong += [f"{one['kind']} {one['apiVersion']}" for one in found if VERSIONS.get(one["kind"]) != one["apiVersion"]]
    kinds = [one["kind"] for one in found]
    if wrong or len(set(kinds)) < len(kinds):
        fail(f"error unmarshaling configuration: {wrong or kinds}")
    return {one["kind"]: one for one in found}


def preflight(registration: Json, *, careful: bool) -> None:
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
        wrong += [
            f"{one} already exists" for one in (FOLDER / "manifests/kube-apiserver.yaml", FOLDER / "kubelet.conf") if one.exists()
        ]
        wrong += [f"Port {port} is in use" for port in (6443, 10250) if answers(port)]
    if wrong:
        fail(f"[ERROR] {'; '.join(wrong)}")


def init(told: dict[str, Json], *, careful: bool) -> None:
    """
    This host is the first control plane of a cluster.
    """
    if set(told) != {"InitConfiguration", "ClusterConfiguration", "KubeletConfiguration", "KubeProxyConfiguration"}:
        fail(f"init is not told {sorted(told)}")
    cluster, settings = told["ClusterConfiguration"], told["InitConfiguration"]
    if cluster["kubernetesVersion"] != f"v{version()}":
        fail(f"this kubeadm is v{version()} and does not deploy {cluster['kubernetesVersion']}")
    if cluster["certificatesDir"] != str(PKI) or not re.fullmatch(r"\d+h\d+m\d+s", cluster["certificateValidityPeriod"]):
        fail("certificatesDir or certificateValidityPeriod is not what this stand-in reads")
    preflight(settings["nodeRegistration"], careful=careful)
    _certificates(cluster)
    server = f"https://{cluster['controlPlaneEndpoint']}"
    authority = (PKI / "ca.crt").read_text(encoding="ascii")
    name = hostname()
    for file, user, groups in (
        ("admin", "kubernetes-admin", [ADMINS]),
        ("super-admin", "kubernetes-super-admin", ["system:masters"]),
        ("kubelet", f"system:node:{name}", ["system:nodes"]),
    ):
        certificates.made(f"/var/lib/stand-ins/{file}", (str(PKI / "ca.crt"), str(PKI / "ca.key")), user, groups)
        put(FOLDER / f"{file}.conf", _kubeconfig(server, authority, f"/var/lib/stand-ins/{file}"))
    flags = [
        "--tls-cert-file=/etc/kubernetes/pki/apiserver.crt",
        "--tls-private-key-file=/etc/kubernetes/pki/apiserver.key",
        "--client-ca-file=/etc/kubernetes/pki/ca.crt",
        *(f"--{one['name']}={one['value']}" for one in cluster["apiServer"]["extraArgs"]),
    ]
    image = f"{cluster.get('imageRepository', 'registry.k8s.io')}/kube-apiserver:{cluster['kubernetesVersion']}"
    container = {"name": "kube-apiserver", "image": image, "command": ["kube-apiserver", *flags]}
    pod = {"containers": [container], "hostNetwork": True}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-apiserver", "namespace": "kube-system"}, "spec": pod}
    put(FOLDER / "manifests/kube-apiserver.yaml", yaml.safe_dump(body))
    _start_kubelet(yaml.safe_dump(told["KubeletConfiguration"]), settings["nodeRegistration"])
    pair = "/var/lib/stand-ins/super-admin"
    api = Api(server, trusting(str(PKI / "ca.crt"), f"{pair}.crt", f"{pair}.key"))
    _wait(lambda: api.ask("GET", "/readyz") == "ok", "the API")
    _wait(lambda: bool(api.ask("GET", f"/api/v1/nodes/{name}")), "this Node")
    _leave(api, told, server, authority, name)


def _certificates(cluster: Json) -> None:
    """
    Authorities are those that are there; what they sign is made.
    """
    for one in ("ca", "front-proxy-ca", "etcd/ca"):
        certificates.check_authority(str(PKI / f"{one}.crt"), str(PKI / f"{one}.key"))
    certificates.check_pair(str(PKI / "sa.pub"), str(PKI / "sa.key"))
    domain = cluster["networking"]["dnsDomain"]
    first = str(IPv4Network(cluster["networking"]["serviceSubnet"])[1])
    endpoint = cluster["controlPlaneEndpoint"].rsplit(":", 1)[0]
    if socket.gethostbyname(endpoint) not in cluster["apiServer"]["certSANs"]:
        fail(f"{endpoint} is not this cluster")
    own = (hostname(), endpoint, "kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{domain}")
    names = {f"DNS:{one}" for one in own} | {f"IP:{one}" for one in (first, route()[1])}
    names |= {f"IP:{one}" if re.fullmatch(r"[\d.]+", one) else f"DNS:{one}" for one in cluster["apiServer"]["certSANs"]}
    signer, etcd, proxy = ((str(PKI / f"{one}.crt"), str(PKI / f"{one}.key")) for one in ("ca", "etcd/ca", "front-proxy-ca"))
    certificates.made(str(PKI / "apiserver"), signer, "kube-apiserver", names=sorted(names))
    certificates.made(str(PKI / "apiserver-kubelet-client"), signer, "kube-apiserver-kubelet-client", [ADMINS])
    certificates.made(str(PKI / "apiserver-etcd-client"), etcd, "kube-apiserver-etcd-client")
    certificates.made(str(PKI / "front-proxy-client"), proxy, "front-proxy-client")


def _leave(api: Api, told: dict[str, Json], server: str, authority: str, name: str) -> None:
    """
    What `kubeadm init` puts into a new cluster, as far as nodes that join and programs of ours need it.
    """
    (token,) = told["InitConfiguration"]["bootstrapTokens"]
    identity, secret = token["token"].split(".")
    if token["ttl"] != "0s" or set(token["usages"]) != {"signing", "authentication"}:
        fail("a token that ends, or may not be used for what nodes that join need")
    known = {
        "token-id": identity,
        "token-secret": secret,
        "auth-extra-groups": ",".join(token["groups"]),
        **{f"usage-bootstrap-{one}": "true" for one in token["usages"]},
    }
    kept = {"type": "bootstrap.kubernetes.io/token", "stringData": known, "data": {k: _base64(v) for k, v in known.items()}}
    del kept["stringData"]
    whom = _kubeconfig(server, authority, "")
    public = {"kubeconfig": whom, f"jws-kubeconfig-{identity}": _signature(whom, identity, secret)}
    anybody = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:anonymous"}
    joiners, nodes, admins = (
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": one} for one in (JOINERS, "system:nodes", ADMINS)
    )
    asks = {
        "apiGroups": ["certificates.k8s.io"],
        "resources": ["certificatesigningrequests"],
        "verbs": ["create", "get", "list", "watch"],
    }
    looks = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    for kind, body in (
        ("clusterroles", {"metadata": {"name": "system:node-bootstrapper"}, "rules": [asks]}),
        ("clusterroles", {"metadata": {"name": "kubeadm:get-nodes"}, "rules": [looks]}),
        ("clusterrolebindings", _bound(ADMINS, "cluster-admin", admins)),
        ("clusterrolebindings", _bound("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", joiners)),
        ("clusterrolebindings", _bound("kubeadm:get-nodes", "kubeadm:get-nodes", joiners)),
    ):
        _put(api, f"{RBAC}/{kind}", body)
    _put(api, "/api/v1/namespaces/kube-system/secrets", {"metadata": {"name": f"bootstrap-token-{identity}"}, **kept})
    cluster = yaml.safe_dump(told["ClusterConfiguration"])
    kubelet = yaml.safe_dump(told["KubeletConfiguration"])
    for space, file, data, subjects in (
        ("kube-public", "cluster-info", public, [anybody]),
        ("kube-system", "kubeadm-config", {"ClusterConfiguration": cluster}, [joiners, nodes]),
        ("kube-system", "kubelet-config", {"kubelet": kubelet}, [joiners, nodes]),
    ):
        _put(api, f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": file}, "data": data})
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [file], "verbs": ["get"]}
        _put(api, f"{RBAC}/namespaces/{space}/roles", {"metadata": {"name": f"kubeadm:{file}"}, "rules": [rule]})
        _put(
            api, f"{RBAC}/namespaces/{space}/rolebindings", {**_bound(f"kubeadm:{file}", f"kubeadm:{file}", *subjects, kind="Role")}
        )
    role = "node-role.kubernetes.io/control-plane"
    marked = {"metadata": {"labels": {role: ""}}, "spec": {"taints": [{"key": role, "effect": "NoSchedule"}]}}
    api.ask("PATCH", f"/api/v1/nodes/{name}", marked, "application/merge-patch+json")


def join(told: dict[str, Json], *, careful: bool) -> None:
    """
    This host is a worker of the cluster that its document names, and whose authority it has seen to be the right one.
    """
    settings = told.get("JoinConfiguration")
    if settings is None or set(told) != {"JoinConfiguration"}:
        fail(f"join is not told {sorted(told)}")
    if "controlPlane" in settings:
        fail("a control plane that joins is not played")
    preflight(settings["nodeRegistration"], careful=careful)
    found = settings["discovery"]["bootstrapToken"]
    server = f"https://{found['apiServerEndpoint']}"
    authority = _discover(server, found["token"], found["caCertHashes"])
    put(PKI / "ca.crt", authority, 0o644)
    api = Api(server, trusting(str(PKI / "ca.crt")), {"Authorization": f"Bearer {found['token']}"})
    name = hostname()
    try:
        kubelet = api.ask("GET", "/api/v1/namespaces/kube-system/configmaps/kubelet-config")["data"]["kubelet"]
        cluster = yaml.safe_load(
            api.ask("GET", "/api/v1/namespaces/kube-system/configmaps/kubeadm-config")["data"]["ClusterConfiguration"]
        )
        if careful and _is_ready(api, name):
            fail(f"a Node with name {name!r} and status Ready already exists in the cluster")
    except (Answer, OSError) as no:
        fail(f"{server}: {no}")
    if cluster["kubernetesVersion"] != f"v{version()}":
        fail(f"this host has v{version()}, the cluster {cluster['kubernetesVersion']}")
    put(BOOTSTRAP, _kubeconfig(server, authority, "", found["token"]))
    _start_kubelet(kubelet, settings["nodeRegistration"])
    _wait((FOLDER / "kubelet.conf").exists, "the kubelet's TLS bootstrap")
    BOOTSTRAP.unlink()


def _is_ready(api: Api, name: str) -> bool:
    try:
        there = api.ask("GET", f"/api/v1/nodes/{name}")
    except Answer:
        return False
    return any(one["type"] == "Ready" and one["status"] == "True" for one in there["status"]["conditions"])


def _discover(server: str, token: str, pins: list[str]) -> str:
    """
    The authority, first of a server that nobody vouches for: its words are signed with the token, and its authority has the right pin.
    """
    identity, secret = token.split(".")
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    where = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
    try:
        told = Api(server, blind).ask("GET", where)["data"]
        if told.get(f"jws-kubeconfig-{identity}") != _signature(told["kubeconfig"], identity, secret):
            fail(f"token id {identity} is invalid for this cluster, or its secret is wrong")
        found = base64.b64decode(
            yaml.safe_load(told["kubeconfig"])["clusters"][0]["cluster"]["certificate-authority-data"]
        ).decode()
        if certificates.pin(found) not in pins:
            fail("cluster CA found in cluster-info ConfigMap is invalid: none of the public keys is pinned")
        put("/run/stand-ins/found.crt", found, 0o644)
        if Api(server, trusting("/run/stand-ins/found.crt")).ask("GET", where)["data"] != told:
            fail("the second look at cluster-info differs from the first")
    except (Answer, OSError) as no:
        fail(f"couldn't validate the identity of the API Server: {server}: {no}")
    return found


def _start_kubelet(settings: str, registration: Json) -> None:
    put("/var/lib/kubelet/config.yaml", settings, 0o644)
    given = " ".join(f"--{one['name']}={one['value']}" for one in registration.get("kubeletExtraArgs", []))
    put("/var/lib/kubelet/kubeadm-flags.env", f'KUBELET_KUBEADM_ARGS="{given}"\n', 0o644)
    run("systemctl", "restart", "kubelet.service")


def _put(api: Api, where: str, body: Json) -> None:
    """
    The object is there; one of that name stays as it is, as after a start that was cut off.
    """
    try:
        api.ask("POST", where, body)
    except Answer as no:
        if no.status != 409:
            fail(f"{where}: {no}")


def _bound(name: str, role: str, *subjects: Json, kind: str = "ClusterRole") -> Json:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return {"metadata": {"name": name}, "roleRef": reference, "subjects": list(subjects)}


def _kubeconfig(server: str, authority: str, pair: str, token: str = "") -> str:
    user = {"token": token} if token else {"client-certificate": f"{pair}.crt", "client-key": f"{pair}.key"} if pair else {}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}],
            "users": [{"name": "it", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }
    )


def _signature(text: str, identity: str, secret: str) -> str:
    """
    As the bootstrap signer's: JWS by HS256 without its payload.
    """
    head = _url(json.dumps({"alg": "HS256", "kid": identity}, separators=(",", ":")).encode())
    mark = hmac.new(secret.encode(), f"{head}.{_url(text.encode())}".encode(), hashlib.sha256).digest()
    return f"{head}..{_url(mark)}"


def _url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _wait(met: Any, what: str) -> None:
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
