"""
The member of etcd that an API server stores in, and `etcdctl` as `kubectl exec` calls it in that member's pod.

Source: etcd.io, "etcdctl" (the simple form of its list); k8s.io/apimachinery, pkg/util/remotecommand ("v5.channel.k8s.io"): what a program
prints comes in frames whose first byte says which stream it is; RFC 6455.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from tests.stand_ins.etcd import No, asked
from tests.stand_ins.machine import Api, trusting

PROTOCOL = "v5.channel.k8s.io"
MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OUT, ERRORS, STATUS = 1, 2, 3
LOOK_S = 1.0
GIVEN_UP_S = 20.0
"""How long an API server lives without its store: then its liveness probe ends it."""
FILES = {"cacert": "ca.crt", "cert": "server.crt", "key": "server.key"}


class Etcd:
    """
    What an API server knows of its store.
    """

    def __init__(self, url: str, authority: str, certificate: str, key: str) -> None:
        self._context = trusting(authority, certificate, key)
        self._url, self.healthy = url, False

    def at(self, url: str) -> Api:
        """
        A member, asked as the API server is known to it.
        """
        return Api(url, self._context, timeout_s=5.0)

    def _is_well(self, api: Api) -> bool:
        with suppress(No, OSError, ValueError):
            return not asked(api, "/v3/maintenance/status")["errors"]
        return False

    def wait(self) -> None:
        """
        It answers.
        """
        while not self._is_well(self.at(self._url)):
            time.sleep(LOOK_S)
        self.healthy = True

    def look(self) -> None:
        """
        Again and again; where it is away for too long, the program ends.
        """
        api, seen = self.at(self._url), time.monotonic()
        while True:
            self.healthy = self._is_well(api)
            now = time.monotonic()
            seen = now if self.healthy else seen
            if now - seen > GIVEN_UP_S:
                print("[stand-in for kube-apiserver] etcd does not answer", file=sys.stderr, flush=True)
                os._exit(1)
            time.sleep(LOOK_S)


def execute(handler: Any, host: str, command: list[str], etcd: Etcd) -> None:
    """
    The caller has seen what the program printed in the pod of this host's member.
    """
    at = node_address(handler.store, host)
    try:
        told, code = etcdctl(command, etcd.at(f"https://{at}:2379")), 0
    except (No, OSError) as no:
        told, code = f"{no}\n", 1
    key = handler.headers["Sec-WebSocket-Key"]
    spoken = [one.strip() for one in (handler.headers.get("Sec-WebSocket-Protocol") or "").split(",")]
    if handler.headers.get("Upgrade", "").lower() != "websocket" or PROTOCOL not in spoken:
        raise ConnectionError("speaks no protocol that is known here")
    mark = base64.b64encode(hashlib.sha1(f"{key}{MAGIC}".encode(), usedforsecurity=False).digest()).decode()
    handler.send_response(101)
    for name, value in (
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", mark),
        ("Sec-WebSocket-Protocol", PROTOCOL),
    ):
        handler.send_header(name, value)
    handler.end_headers()
    causes = {"reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
    status = {"status": "Success"} if not code else {"status": "Failure", "message": f"exit code {code}", **causes}
    for stream, text in ((ERRORS if code else OUT, told), (STATUS, json.dumps({"metadata": {}, **status}))):
        handler.wfile.write(frame(0x82, bytes([stream]) + text.encode()))
    handler.wfile.write(frame(0x88, (1000).to_bytes(2, "big")))
    handler.wfile.flush()
    handler.close_connection = True
    threading.Event().wait(0.2)  # for its own farewell: a line that is torn first is an error to it


def frame(kind: int, body: bytes) -> bytes:
    """
    As a server sends it, unmasked.
    """
    size = len(body)
    head = bytes([kind, size]) if size < 126 else bytes([kind, 126]) + size.to_bytes(2, "big")
    return head + body


def node_address(kept: Api, host: str) -> str:
    """
    Where the Node says that it is.
    """
    addresses = kept.ask("GET", f"/api/v1/nodes/{host}")["status"]["addresses"]
    return str(next(one["address"] for one in addresses if one["type"] == "InternalIP"))


def etcdctl(command: list[str], member: Api) -> str:
    """
    What it prints. Raises No, OSError.
    """
    flags = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    flags.add_argument("--endpoints", required=True)
    for name in FILES:
        flags.add_argument(f"--{name}", required=True)
    flags.add_argument("words", nargs="+")
    told = flags.parse_args(command[1:])
    wrong = [name for name, file in FILES.items() if getattr(told, name) != f"/etc/kubernetes/pki/etcd/{file}"]
    if command[0] != "etcdctl" or wrong or told.endpoints != "https://127.0.0.1:2379":
        raise No(f"{command[0]}: {wrong} {told.endpoints}")
    match told.words:
        case ["member", "list"]:
            listed = asked(member, "/v3/cluster/member/list")["members"]
            lines = ([one["ID"], "started" if one["name"] else "unstarted", one["name"], *_urls(one)] for one in listed)
            return "".join(f"{', '.join(one)}\n" for one in lines)
        case ["member", "remove", identity]:
            asked(member, "/v3/cluster/member/remove", {"ID": identity})
            return f"Member {identity} removed from cluster\n"
        case _:
            raise No(f"unknown command {told.words}")


def _urls(one: dict[str, Any]) -> list[str]:
    return [",".join(one["peerURLs"]), ",".join(one["clientURLs"]), str(one["isLearner"]).lower()]
