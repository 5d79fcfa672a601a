"""
In place of an API server and its controllers: TLS with the certificate that was made on this host, who calls by certificate or bootstrap
token, what a kubelet may do, and kubelets' certificates signed. Objects and all other rights are the store's, which is asked in the name
of whoever called, as a server behind another one is.
"""

from __future__ import annotations

import argparse
import base64
import hmac
import json
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.stand_ins import certificates
from tests.stand_ins.etcdctl import Etcd, execute
from tests.stand_ins.machine import Answer, Api, store

TOKEN = re.compile(r"Bearer ([a-z0-9]{6})\.([a-z0-9]{16})")
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
IMAGE_TAG = "STAND_IN_IMAGE_TAG"
"""Variable by which the kubelet says which image's tag the program is to stand for."""
OPEN = ("/readyz", "/livez", "/healthz", "/version")
ANYBODY = ("system:anonymous", ["system:unauthenticated"])
AUTHENTICATED = "system:authenticated"
MASTERS = "system:masters"
NOT_ITS_OWN = re.compile(r"(node-role|node-restriction)\.kubernetes\.io/")
SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
APPROVED_GROUP = "system:bootstrappers:kubeadm:default-node-token"
ADMINS = "kubeadm:cluster-admins"
EXEC = re.compile(r"/api/v1/namespaces/kube-system/pods/etcd-([^/]+)/exec")
GRACE_S = 50.0
"""How long a Node may be silent. Source: kube-controller-manager, --node-monitor-grace-period."""
Caller = tuple[str, list[str]]


class Refused(Exception):
    """
    The caller is told this.
    """

    def __init__(self, status: int, reason: str, words: str) -> None:
        super().__init__(words)
        self.body = json.dumps(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "reason": reason,
                "message": words,
                "code": status,
            }
        ).encode()
        self.status = status


class Server(ThreadingHTTPServer):
    """
    Listens at port 6443 of every address, unless it is told another.
    """

    daemon_threads = True

    def __init__(
        self,
        pair: tuple[str, str],
        clients: tuple[str, str],
        extras: Callable[[Any], bool] = lambda handler: False,
        at: tuple[str, int] = ("0.0.0.0", 6443),
        kept: Callable[[], Api] = store,
        says: str = "",
        etcd: Etcd | None = None,
    ) -> None:
        super().__init__(at, Handler)
        self.etcd = etcd  # none: a k3s, whose own is not played
        self.says = says  # the version that it is of; the store's own where there is none
        self.kept = kept
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(*pair)
        self.tls.verify_mode = ssl.CERT_OPTIONAL
        self.tls.load_verify_locations(clients[0])
        self.authority, self.extras = clients, extras
        self.changed = threading.Event()
        threading.Thread(target=self._control, daemon=True).start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """
        The handshake is made by the thread of the caller: one that says nothing holds nobody up.
        """
        request.settimeout(60)
        with suppress(OSError), self.tls.wrap_socket(request, server_side=True) as line:
            super().finish_request(line, client_address)

    def _control(self) -> None:
        """
        A pod of every DaemonSet is on each node that its selector names, and none on nodes that are gone.
        """
        while True:
            self.changed.wait(5)
            self.changed.clear()
            with suppress(Answer, OSError):
                place_daemons(self.kept())
                call_silent(self.kept())


def place_daemons(kept: Api) -> None:
    """
    See `Server._control`: tolerations are not looked at, as all of ours tolerate everything.
    """
    nodes = {one["metadata"]["name"]: one["metadata"].get("labels") or {} for one in kept.ask("GET", "/api/v1/nodes")["items"]}
    pods = kept.ask("GET", "/api/v1/pods")["items"]
    there = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in pods}
    for one in pods:
        if one["spec"].get("nodeName") and one["spec"]["nodeName"] not in nodes:
            kept.ask("DELETE", f"/api/v1/namespaces/{one['metadata']['namespace']}/pods/{one['metadata']['name']}")
    for daemon in kept.ask("GET", "/apis/apps/v1/daemonsets")["items"]:
        meta, template = daemon["metadata"], daemon["spec"]["template"]
        wanted = (template["spec"].get("nodeSelector") or {}).items()
        for node, labels in nodes.items():
            name = f"{meta['name']}-{node}"
            if any(labels.get(key) != value for key, value in wanted) or (meta["namespace"], name) in there:
                continue
            owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
            made = {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": {**template["spec"], "nodeName": node}}
            kept.ask("POST", f"/api/v1/namespaces/{meta['namespace']}/pods", body)


def call_silent(kept: Api) -> None:
    """
    Of a Node that has given no sign of life for so long nobody knows whether it is ready; one that never gave any is left alone.
    """
    now = datetime.now(UTC)
    for one in kept.ask("GET", "/api/v1/nodes")["items"]:
        conditions = one["status"].get("conditions") or []
        seen = [datetime.fromisoformat(each["lastHeartbeatTime"]) for each in conditions if each.get("lastHeartbeatTime")]
        if seen and (now - max(seen)).total_seconds() > GRACE_S and any(each["status"] != "Unknown" for each in conditions):
            words = {"status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
            status = {"status": {"conditions": [{**each, **words} for each in conditions]}}
            kept.ask("PATCH", f"/api/v1/nodes/{one['metadata']['name']}/status", status, "application/merge-patch+json")


class Handler(BaseHTTPRequestHandler):
    """
    One caller.
    """

    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.store = self.server.kept()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
        """
        To the journal, where a person looks for it.
        """
        print(self.command, self.path, *args[1:2], file=sys.stderr)

    def do_GET(self) -> None:
        """
        What the store says, or no.
        """
        self.given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if not self.server.extras(self):
                self._pass(self._caller())
        except Refused as no:
            self.answer(no.status, no.body)
        except Answer as no:
            self.answer(no.status, str(no).encode())

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - the library's names

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        """
        The caller has this.
        """
        self.send_response(status)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _caller(self) -> Caller:
        assert isinstance(self.connection, ssl.SSLSocket)
        shown: Any = self.connection.getpeercert()
        if shown:
            words = [pair for part in shown["subject"] for pair in part]
            user = next(value for name, value in words if name == "commonName")
            return user, [*(value for name, value in words if name == "organizationName"), AUTHENTICATED]
        told = self.headers.get("Authorization")
        if told is None or not told.lower().startswith("bearer "):  # as a real one, which looks at nothing else
            return ANYBODY
        found = TOKEN.fullmatch(told)
        if found is None:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return self._by_token(*found.groups())

    def _by_token(self, name: str, secret: str) -> Caller:
        try:
            kept = self.store.ask("GET", f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{name}")
        except Answer:
            raise Refused(401, "Unauthorized", "Unauthorized") from None
        data = {key: base64.b64decode(value).decode() for key, value in kept["data"].items()}
        good = hmac.compare_digest(data["token-secret"], secret) and data.get("usage-bootstrap-authentication") == "true"
        if not good or kept["type"] != "bootstrap.kubernetes.io/token":
            raise Refused(401, "Unauthorized", "Unauthorized")
        groups = [one for one in data.get("auth-extra-groups", "").split(",") if one]
        return f"system:bootstrap:{name}", ["system:bootstrappers", *groups, AUTHENTICATED]

    def _pass(self, caller: Caller) -> None:
        user, groups = caller
        where = urlsplit(self.path)
        if self.server.etcd is not None and not self.server.etcd.healthy:
            raise Refused(500, "InternalError", "etcdserver: request timed out")
        if self.server.says and (self.command, where.path) == ("GET", "/version"):
            self.answer(200, json.dumps(told_version(self.server.says)).encode())
            return
        anonymous = user == ANYBODY[0]
        if anonymous and where.path not in OPEN and "/configmaps/cluster-info" not in where.path:
            raise Refused(403, "Forbidden", f'User "{user}" cannot {self.command.lower()} path "{where.path}"')
        if "system:nodes" in groups and user.startswith("system:node:"):
            self._check_node(user.removeprefix("system:node:"), where.path, parse_qs(where.query))
            groups = [MASTERS]
        executing = EXEC.fullmatch(where.path)
        if executing and self.server.etcd is not None:
            if not {MASTERS, ADMINS} & set(groups):
                raise Refused(403, "Forbidden", f'User "{user}" cannot create resource "pods/exec"')
            execute(self, executing[1], parse_qs(where.query)["command"], self.server.etcd)
            return
        given = self.given
        asks_for_certificate = self.command == "POST" and where.path == REQUESTS
        if asks_for_certificate:
            body = json.loads(given)
            body["spec"] |= {"username": user, "groups": groups}
            given = json.dumps(body).encode()
        headers = [(name, value) for name in ("Content-Type", "Accept", "User-Agent") if (value := self.headers.get(name))]
        headers += [("Impersonate-User", user), *(("Impersonate-Group", one) for one in groups)]
        status, told, kind = self.store.send(self.command, self.path, given or None, headers)
        if asks_for_certificate and status < 300:
            self._sign(json.loads(told), caller)
        self.answer(status, told, kind)
        if self.command != "GET" and status < 300 and re.search(r"/(nodes|daemonsets)(/|\?|$)", self.path):
            self.server.changed.set()

    def _check_node(self, name: str, path: str, query: dict[str, list[str]]) -> None:
        """
        What the Node authorizer and NodeRestriction let a kubelet do, as far as a stand-in asks for it.
        """
        body = json.loads(self.given) if self.given else {}
        labels = (body.get("metadata") or {}).get("labels") or {}
        own = re.fullmatch(rf"/api/v1/nodes/{re.escape(name)}(/status)?", path)
        makes_itself = self.command == "POST" and path == "/api/v1/nodes" and body["metadata"]["name"] == name
        spec, meta = body.get("spec") or {}, body.get("metadata") or {}
        mirrors = self.command == "POST" and path.endswith("/pods") and spec.get("nodeName") == name
        mirrors = mirrors and "kubernetes.io/config.mirror" in (meta.get("annotations") or {})
        own = own or mirrors or (self.command == "GET" and path.startswith("/api/v1/namespaces/kube-system/pods/"))
        reads = self.command == "GET" and (
            (path == "/api/v1/pods" and query.get("fieldSelector") == [f"spec.nodeName={name}"])
            or re.fullmatch(r"/api/v1/namespaces/[^/]+/configmaps/[^/]+", path)
            or path.startswith("/apis/node.k8s.io/v1/runtimeclasses/")
        )
        if any(NOT_ITS_OWN.match(one) for one in labels) or not (makes_itself or own or reads):
            raise Refused(403, "Forbidden", f'node "{name}" may not {self.command} {path}')

    def _sign(self, made: dict[str, Any], caller: Caller) -> None:
        """
        As the controllers that approve and sign kubelets' requests: only for who may join, and only a Node's own name.
        """
        asked = base64.b64decode(made["spec"]["request"]).decode()
        user, groups = certificates.subject(asked)
        fits = made["spec"]["signerName"] == SIGNER and user.startswith("system:node:") and groups == ["system:nodes"]
        if not fits or APPROVED_GROUP not in caller[1]:
            return
        signed = certificates.sign(asked, self.server.authority, client=True)
        condition = {"type": "Approved", "status": "True", "reason": "AutoApproved"}
        status = {"conditions": [condition], "certificate": base64.b64encode(signed.encode()).decode()}
        where = f"{REQUESTS}/{made['metadata']['name']}/status"
        self.store.ask("PATCH", where, {"status": status}, "application/merge-patch+json")


def told_version(git: str) -> dict[str, str]:
    """
    What a server of the version says of itself to everybody.
    """
    major, minor, _ = git.removeprefix("v").split(".", 2)
    own = {"major": major, "minor": minor, "gitVersion": git, "gitCommit": "", "gitTreeState": "clean", "buildDate": ""}
    return {**own, "goVersion": "none", "compiler": "none", "platform": "linux/amd64"}


def main(arguments: list[str]) -> None:
    """
    With the flags of a kube-apiserver that matter here.
    """
    flags = argparse.ArgumentParser()
    for name in (
        "tls-cert-file",
        "tls-private-key-file",
        "client-ca-file",
        "etcd-servers",
        "etcd-cafile",
        "etcd-certfile",
        "etcd-keyfile",
    ):
        flags.add_argument(f"--{name}", required=True)
    told, _ = flags.parse_known_args(arguments)
    key = str(Path(told.client_ca_file).with_suffix(".key"))
    pair = (told.tls_cert_file, told.tls_private_key_file)
    etcd = Etcd(told.etcd_servers, told.etcd_cafile, told.etcd_certfile, told.etcd_keyfile)
    etcd.wait()  # a real one ends and is started again until it reaches its member
    threading.Thread(target=etcd.look, daemon=True).start()
    Server(pair, (told.client_ca_file, key), says=os.environ[IMAGE_TAG], etcd=etcd).serve_forever()


def answers(port: int) -> bool:
    """
    Somebody listens at the port of this host.
    """
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False
