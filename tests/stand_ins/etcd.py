"""
In place of etcd: one member, which knows the others, whether they are a quorum, and what etcd refuses. Its list of members is kept where
the cluster's objects are; what a member has on its own disk is who it is. A server of the API is as good as the member on its host.

Source: etcd.io, "Runtime reconfiguration", "Learner", "Configuration options"; etcd, api/v3/etcdserverpb (its JSON gateway).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.stand_ins.machine import Answer, Api, fail, put, store, trusting

KEPT_AT = "/api/v1/namespaces/kube-system/configmaps"
KEPT_AS = "what-stands-in-for-etcd"
LOOK_S = 2.0
PATIENCE_S = 2.0
Members = list[dict[str, Any]]


class No(Exception):
    """
    What etcd answers instead.
    """


def members_of(kept: Api) -> tuple[Members, Any]:
    """
    All members, and the object that holds them. Raises Answer, OSError.
    """
    found = kept.ask("GET", f"{KEPT_AT}/{KEPT_AS}")
    return json.loads(found["data"]["members"]), found


def change(kept: Api, act: Callable[[Members], Any]) -> Any:
    """
    The list is as `act` left it, and nobody else changed it meanwhile. Raises No, Answer, OSError.
    """
    while True:
        members, found = members_of(kept)
        told = act(members)
        found["data"]["members"] = json.dumps(members)
        try:
            kept.ask("PUT", f"{KEPT_AT}/{KEPT_AS}", found)
        except Answer as no:
            if no.status != 409:
                raise
        else:
            return told


def quorum(voters: int) -> int:
    """
    How many of so many must answer.
    """
    return voters // 2 + 1


class Member:
    """
    This one.
    """

    def __init__(self, told: Any) -> None:
        self.told, self.peer_url = told, told.initial_advertise_peer_urls
        self.trust = trusting(told.peer_trusted_ca_file, told.peer_cert_file, told.peer_key_file)
        self.own = Path(told.data_dir) / "member" / "id"
        self.id = self._begin()
        self.up: set[str] = set()
        self.healthy = False

    def _begin(self) -> str:
        """
        Who it is: the same as before where there is data, else one of those that were announced and never started, or the first of all.
        """
        if self.own.exists():
            known = self.own.read_text("ascii")
            if known not in {one["ID"] for one in self._members()}:
                fail("the member has been permanently removed from the cluster")
            return known
        if self.told.initial_cluster_state == "new":
            if self.told.initial_cluster != f"{self.told.name}={self.peer_url}":
                fail(f"founds a cluster of {self.told.initial_cluster}")
            body = {"metadata": {"name": KEPT_AS}, "data": {"members": json.dumps([self._as_member(voter=True)])}}
            try:
                store().ask("POST", KEPT_AT, body)
            except Answer as no:
                fail(f"a second cluster is founded beside the one that is there: {no}")
        else:
            listed = dict(one.split("=", 1) for one in self.told.initial_cluster.split(","))
            if listed.get(self.told.name) != self.peer_url or len(listed) != len(self._members()):
                fail(f"error validating peerURLs: member count is unequal or {self.told.name} is not in {listed}")
            try:
                change(store(), self._start)
            except No as no:
                fail(str(no))
        found = next(one["ID"] for one in self._members() if one["peerURLs"] == [self.peer_url])
        put(self.own, found)
        return str(found)

    def _start(self, members: Members) -> None:
        mine = next((one for one in members if one["peerURLs"] == [self.peer_url]), None)
        if mine is None:
            raise No("couldn't find the local peer URL among the members")
        if mine["name"]:
            raise No("tocommit is out of range [lastIndex(0)]. Was the raft log corrupted, truncated, or lost?")
        mine |= self._as_member(voter=False) | {"ID": mine["ID"], "isLearner": mine["isLearner"]}

    def _as_member(self, *, voter: bool) -> dict[str, Any]:
        return {
            "ID": identity(self.peer_url),
            "name": self.told.name,
            "peerURLs": [self.peer_url],
            "clientURLs": [self.told.advertise_client_urls],
            "isLearner": not voter,
        }

    def _members(self) -> Members:
        while True:
            with suppress(OSError):
                return members_of(store())[0]
            time.sleep(LOOK_S)

    def look(self) -> None:
        """
        Again and again: who answers, and whether those are enough; a member that was taken out ends.
        """
        kept = store()
        while True:
            with suppress(Answer, OSError):
                members, _ = members_of(kept)
                if self.id not in {one["ID"] for one in members}:
                    fail("the member has been permanently removed from the cluster")
                others = [one for one in members if one["ID"] != self.id]
                self.up = {self.id, *(one["ID"] for one in others if self._answers(one["peerURLs"][0]))}
                voters = {one["ID"] for one in members if not one["isLearner"]}
                self.healthy = len(voters & self.up) >= quorum(len(voters))
            time.sleep(LOOK_S)

    def _answers(self, url: str) -> bool:
        """
        A peer shakes hands with our certificate, and we believe in its own.
        """
        at = urlsplit(url)
        assert at.hostname is not None
        with (
            suppress(OSError),
            socket.create_connection((at.hostname, at.port or 0), PATIENCE_S) as line,
            self.trust.wrap_socket(line, server_hostname=at.hostname) as safe,
        ):
            safe.settimeout(PATIENCE_S)
            safe.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return safe.recv(12).endswith(b"200")
        return False

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """
        What the gateway answers. Raises No, Answer, OSError.
        """
        if path == "/v3/maintenance/status":  # of this member alone
            return {"header": {"member_id": self.id}, "errors": [] if self.healthy else ["etcdserver: no leader"]}
        if not self.healthy:
            raise No("etcdserver: request timed out")
        verbs = {"list": lambda members: None, "add": self._add, "promote": self._promote, "remove": self._remove}
        verb = path.removeprefix("/v3/cluster/member/")
        if verb not in verbs:
            raise No(f"unknown path {path}")
        if verb == "list":
            return {"members": members_of(store())[0]}

        def act(members: Members) -> Members:
            verbs[verb](members, body)  # type: ignore[call-arg]
            return members

        return {"members": change(store(), act)}

    def _add(self, members: Members, body: dict[str, Any]) -> None:
        if any(one["peerURLs"] == body["peerURLs"] for one in members):
            raise No("etcdserver: Peer URLs already exists")
        if not body.get("isLearner"):
            raise No("this stand-in adds learners, as kubeadm does")
        if any(one["isLearner"] for one in members):
            raise No("etcdserver: too many learner members in cluster")
        made = identity(f"{body['peerURLs']}{time.time()}")
        members.append({"ID": made, "name": "", "peerURLs": body["peerURLs"], "clientURLs": [], "isLearner": True})

    def _promote(self, members: Members, body: dict[str, Any]) -> None:
        found = self._named(members, body)
        if not found["isLearner"]:
            raise No("etcdserver: can only promote a learner member")
        if not found["name"] or found["ID"] not in self.up:
            raise No("etcdserver: can only promote a learner member which is in sync with leader")
        found["isLearner"] = False

    def _remove(self, members: Members, body: dict[str, Any]) -> None:
        found = self._named(members, body)
        left = [one for one in members if one is not found and not one["isLearner"]]
        if not found["isLearner"] and sum(one["ID"] in self.up for one in left) < quorum(len(left)):
            raise No("etcdserver: re-configuration failed due to not enough started members")
        members.remove(found)

    def _named(self, members: Members, body: dict[str, Any]) -> dict[str, Any]:
        found = next((one for one in members if one["ID"] == body["ID"]), None)
        if found is None:
            raise No("etcdserver: member not found")
        return found


def identity(text: str) -> str:
    """
    A member's number, as etcdctl shows it.
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def asked(client: Api, path: str, body: dict[str, Any] | None = None) -> Any:
    """
    What the member said. Raises No, OSError.
    """
    try:
        return client.ask("POST", path, body or {})
    except Answer as no:
        raise No(str(no)) from None


def serve(member: Member, port: int, pair: tuple[str, str], authority: str) -> ThreadingHTTPServer:
    """
    Only who shows a certificate of etcd's own authority is heard.
    """

    class Handler(BaseHTTPRequestHandler):
        """One caller."""

        def do_POST(self) -> None:
            """What is asked is done, or no."""
            given = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                self._say(200, member.answer(self.path, json.loads(given or b"{}")))
            except (No, Answer, OSError) as no:
                self._say(503, {"error": str(no), "message": str(no)})

        def do_GET(self) -> None:
            """It is there."""
            self._say(200, {"health": "true"})

        def _say(self, status: int, told: dict[str, Any]) -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the library's
            """Nobody reads it."""

    class Safe(ThreadingHTTPServer):
        """Shakes hands in the caller's thread."""

        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            request.settimeout(30)
            with suppress(OSError), tls.wrap_socket(request, server_side=True) as line:
                super().finish_request(line, client_address)

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*pair)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(authority)
    return Safe(("0.0.0.0", port), Handler)


def main(arguments: list[str]) -> None:
    """
    With the flags that kubeadm writes into its manifest.
    """
    flags = argparse.ArgumentParser(allow_abbrev=False)
    needed = (
        "name",
        "data-dir",
        "initial-cluster",
        "initial-advertise-peer-urls",
        "advertise-client-urls",
        "cert-file",
        "key-file",
    )
    needed += ("trusted-ca-file", "peer-cert-file", "peer-key-file", "peer-trusted-ca-file")
    for name in needed:
        flags.add_argument(f"--{name}", required=True)
    flags.add_argument("--initial-cluster-state", default="new")
    for name in ("client-cert-auth", "peer-client-cert-auth"):
        flags.add_argument(f"--{name}", required=True, choices=["true"])
    told = flags.parse_args(arguments)
    member = Member(told)
    peers = serve(member, 2380, (told.peer_cert_file, told.peer_key_file), told.peer_trusted_ca_file)
    clients = serve(member, 2379, (told.cert_file, told.key_file), told.trusted_ca_file)
    threading.Thread(target=peers.serve_forever, daemon=True).start()
    threading.Thread(target=clients.serve_forever, daemon=True).start()
    print(f"[stand-in for etcd] {told.name} is {member.id}", file=sys.stderr, flush=True)
    member.look()
