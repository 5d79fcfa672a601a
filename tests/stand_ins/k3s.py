"""
In place of k3s: `server` and `agent` look at their settings, tokens and authorities as the real one does and are then an API server or a
kubelet; `kubectl` is the real one. A server that joins meets one that runs; etcd and its members are not played.

Source: docs.k3s.io, "k3s server", "k3s agent", "k3s token", "k3s certificate"; k3s, pkg/server and pkg/clientaccess.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import ssl
import threading
import time
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.stand_ins import certificates
from tests.stand_ins.api_server import ANYBODY, Refused, Server, answers
from tests.stand_ins.kubeadm import RBAC, _bound, _put
from tests.stand_ins.kubelet import Kubelet
from tests.stand_ins.machine import Answer, Api, be_held_up, fail, hostname, put, ready, route, store, trusting, version
from tests.unit.rendering.kubernetes_types import AGENT, SERVER, misfits

CONFIG = Path("/etc/rancher/k3s/config.yaml")
TLS = Path("/var/lib/rancher/k3s/server/tls")
OWN = Path("/var/lib/rancher/k3s/agent")
KUBECONFIG = Path("/etc/rancher/k3s/k3s.yaml")
SECURE = re.compile(r"K10([0-9a-f]{64})::([^:]+):(\S+)")
AUTHORITIES = ("server-ca", "client-ca", "request-header-ca", "etcd/server-ca", "etcd/peer-ca")
MET = Path("/run/stand-ins/met.crt")
PASSWORD = Path("/etc/rancher/node/password")


def main(arguments: list[str]) -> None:
    """
    `server`, `agent`, or `kubectl ...`.
    """
    match arguments:
        case ["kubectl", *rest]:
            given = [] if any(one.startswith("--kubeconfig") for one in rest) else [f"--kubeconfig={KUBECONFIG}"]
            os.execv("/usr/bin/kubectl", ["kubectl", *given, *rest])
        case ["--version"]:
            print(f"k3s version v{version()}+k3s1 (stand-in)")
        case ["server"]:
            serve(settings(SERVER))
        case ["agent"]:
            join(settings(AGENT))
        case _:
            fail(f"unknown command {arguments}")


def settings(wanted: dict[str, Any]) -> dict[str, Any]:
    """
    config.yaml and what stands beside it, read in the order of its names.
    """
    told: dict[str, Any] = {}
    for file in (CONFIG, *sorted(CONFIG.with_name("config.yaml.d").glob("*.yaml"))):
        told |= yaml.safe_load(file.read_text(encoding="utf-8"))
    wrong = misfits(told, wanted)
    if wrong:
        fail(f"invalid configuration: {wrong}")
    return told


def token(path: str) -> str:
    """
    The word in the file, which only root reads.
    """
    file = Path(path)
    if file.stat().st_mode & 0o077:
        fail(f"{path} can be read by others")
    return file.read_text(encoding="ascii").strip()


def serve(told: dict[str, Any]) -> None:
    """
    The first server of a cluster, or one that joins it, and its Node.
    """
    if (told.get("cluster-init") is True) == ("server" in told):
        fail("a server either founds a cluster or joins one")
    for one in AUTHORITIES:
        certificates.check_authority(str(TLS / f"{one}.crt"), str(TLS / f"{one}.key"))
    found = SECURE.fullmatch(token(told["token-file"]))
    if found is None or found[1] != digest() or found[2] != "server":
        fail("the server's token does not fit the authority that is here")
    agents = token(told["agent-token-file"])
    if "server" in told:
        meet(told["server"], found[1], found[3])
        be_held_up()
    names = ["DNS:kubernetes", "DNS:kubernetes.default.svc", f"DNS:{hostname()}", f"IP:{IPv4Network(told['service-cidr'])[1]}"]
    names += ["DNS:localhost", "IP:127.0.0.1", f"IP:{route()[1]}"]
    names += [f"IP:{one}" if re.fullmatch(r"[\d.]+", one) else f"DNS:{one}" for one in told["tls-san"]]
    servers, clients = ((str(TLS / f"{one}.crt"), str(TLS / f"{one}.key")) for one in ("server-ca", "client-ca"))
    certificates.made(str(TLS / "serving-kube-apiserver"), servers, "kube-apiserver", names=sorted(set(names)))
    certificates.made(str(TLS / "client-admin"), clients, "system:admin", ["system:masters"])
    certificates.made(str(TLS / "client-kubelet"), clients, f"system:node:{hostname()}", ["system:nodes"])
    pair = (str(TLS / "serving-kube-apiserver.crt"), str(TLS / "serving-kube-apiserver.key"))
    server = Server(pair, clients, lambda handler: extras(handler, agents, found[3], clients), says=f"v{version()}+k3s1")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    write_kubeconfig(told["write-kubeconfig-mode"])
    mark = threading.Thread(target=lead, args=(hostname(), told["node-taint"]), daemon=True)
    mark.start()
    ready()
    own = Api("https://127.0.0.1:6443", trusting(servers[0], str(TLS / "client-kubelet.crt"), str(TLS / "client-kubelet.key")))
    Kubelet(own, {}, networked=True, node_version=f"v{version()}+k3s1").run()


def lead(name: str, taints: list[str]) -> None:
    """
    The Node is marked as a control plane by the server, as a kubelet may not do it; the aggregated roles are there.
    """
    kept = store()
    _put(kept, f"{RBAC}/clusterrolebindings", _bound("cluster-admin", "cluster-admin", {"kind": "Group", "name": "system:masters"}))
    key, value, effect = re.fullmatch(r"([^=]+)=([^:]*):(\w+)", taints[0]).groups()  # type: ignore[union-attr] # else it is wrong
    labels = {"node-role.kubernetes.io/control-plane": "true", "node-role.kubernetes.io/etcd": "true"}
    body = {"metadata": {"labels": labels}, "spec": {"taints": [{"key": key, "value": value, "effect": effect}]}}
    while True:
        with suppress(Answer, OSError):
            kept.ask("PATCH", f"/api/v1/nodes/{name}", body, "application/merge-patch+json")
            return
        time.sleep(0.3)


def write_kubeconfig(mode: str) -> None:
    """
    For root on this host.
    """
    data = {name: _base64((TLS / f"{name}").read_text()) for name in ("server-ca.crt", "client-admin.crt", "client-admin.key")}
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": data["server-ca.crt"]}
    user = {"client-certificate-data": data["client-admin.crt"], "client-key-data": data["client-admin.key"]}
    whole = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "clusters": [{"name": "default", "cluster": cluster}],
        "users": [{"name": "default", "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
    }
    put(KUBECONFIG, yaml.safe_dump(whole), int(mode, 8))


def meet(server: str, digest: str, password: str) -> None:
    """
    A server that knows the servers' token and has the same authorities has answered; it is asked until it does.
    """
    while True:
        try:
            put(MET, authority(server, digest), 0o644)
            line = Api(server, trusting(str(MET)), {"Authorization": f"Basic {_base64(f'server:{password}')}"})
            if line.ask("GET", "/v1-k3s/server-bootstrap") != authorities():
                fail(f"{server} has other authorities than this host")
        except (Answer, OSError) as no:
            print(f"[stand-in for k3s] {server}: {no}", flush=True)
            time.sleep(1)
        else:
            return


def authorities() -> dict[str, str]:
    """
    What a server hands to one that joins, by digest: the real one hands it over whole.
    """
    return {one: hashlib.sha256((TLS / f"{one}.crt").read_bytes()).hexdigest() for one in AUTHORITIES}


def extras(handler: Any, agents: str, servers: str, clients: tuple[str, str]) -> bool:
    """
    What k3s answers beside the API: its authority to anybody, a kubelet's certificate to who has the agents' token, its authorities to who
    has the servers'.
    """
    if urlsplit(handler.path).path == "/cacerts":
        handler.answer(200, (TLS / "server-ca.crt").read_bytes(), "text/plain")
        return True
    if not handler.path.startswith("/v1-k3s/"):
        return False
    told = handler.headers.get("Authorization") or ""
    if handler.path == "/v1-k3s/server-bootstrap" and hmac.compare_digest(told, f"Basic {_base64(f'server:{servers}')}"):
        handler.answer(200, json.dumps(authorities()).encode())
        return True
    good = hmac.compare_digest(told, f"Basic {_base64(f'node:{agents}')}")
    name, password = (handler.headers.get(f"k3s-Node-{one}") or "" for one in ("Name", "Password"))
    if not good or not name or handler.path != "/v1-k3s/client-kubelet.crt":
        raise Refused(401, "Unauthorized", "Unauthorized")
    secret = f"/api/v1/namespaces/kube-system/secrets/{name}.node-password.k3s"
    kept = hashlib.sha256(password.encode()).hexdigest()
    try:
        if base64.b64decode(handler.store.ask("GET", secret)["data"]["hash"]).decode() != kept:
            raise Refused(403, "Forbidden", f"unable to verify password for node {name}: hash does not match")
    except Answer:
        body = {"metadata": {"name": f"{name}.node-password.k3s"}, "data": {"hash": _base64(kept)}}
        handler.store.ask("POST", "/api/v1/namespaces/kube-system/secrets", body)
    asked = handler.given.decode()
    if certificates.subject(asked) != (f"system:node:{name}", ["system:nodes"]):
        raise Refused(403, "Forbidden", f"{ANYBODY[0]} asks for somebody else")
    handler.answer(200, certificates.sign(asked, clients, client=True).encode(), "text/plain")
    return True


def join(told: dict[str, Any]) -> None:
    """
    An agent of the server that its token names; it asks until one answers.
    """
    found = SECURE.fullmatch(token(told["token-file"]))
    if found is None or found[2] != "node":
        fail("the agent's token does not say which authority it is for")
    name = hostname()
    if not PASSWORD.exists():
        put(PASSWORD, os.urandom(16).hex())
    while True:
        try:
            put(OWN / "server-ca.crt", authority(told["server"], found[1]), 0o644)
            headers = {
                "Authorization": f"Basic {_base64(f'node:{found[3]}')}",
                "k3s-Node-Name": name,
                "k3s-Node-Password": PASSWORD.read_text(encoding="ascii"),
            }
            asked = certificates.request(str(OWN / "client-kubelet.key"), f"system:node:{name}", ["system:nodes"])
            line = Api(told["server"], trusting(str(OWN / "server-ca.crt")), headers)
            status, body, _ = line.send("POST", "/v1-k3s/client-kubelet.crt", asked.encode(), [])
            if status < 300:
                put(OWN / "client-kubelet.crt", body.decode(), 0o644)
                break
            print(f"[stand-in for k3s] {status}: {body.decode()}", flush=True)
        except (Answer, OSError) as no:
            print(f"[stand-in for k3s] {told['server']}: {no}", flush=True)
        time.sleep(1)
    ready()
    labels = dict(one.split("=", 1) for one in told.get("node-label", []))
    api = Api(
        told["server"], trusting(str(OWN / "server-ca.crt"), str(OWN / "client-kubelet.crt"), str(OWN / "client-kubelet.key"))
    )
    Kubelet(api, labels, networked=True, node_version=f"v{version()}+k3s1").run()


def authority(server: str, wanted: str) -> str:
    """
    The server's, which nobody vouches for but the token's hash.
    """
    blind = ssl.create_default_context()
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    told = Api(server, blind).ask("GET", "/cacerts")
    if hashlib.sha256(told.encode()).hexdigest() != wanted:
        fail("token CA hash does not match the Cluster CA certificate hash")
    return str(told)


def digest() -> str:
    """
    How a token names the authority of this host.
    """
    return hashlib.sha256((TLS / "server-ca.crt").read_bytes()).hexdigest()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


__all__ = ["answers", "main"]
