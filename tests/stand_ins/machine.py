"""
The host that a stand-in runs on: who and where it is, how it fails, and the API that is asked.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import yaml

HOME = Path("/opt/kubernetes-stand-ins")
"""Where the image has them."""
PUT = HOME / "put"
"""Where an operator's commands leave the version of a program that they have put in place of the image's, by its name."""
STORE_PORT, STORE_TOKEN = 26443, "what-stands-behind-the-stand-ins"
"""At the network's gateway: what keeps a cluster's objects, in place of an etcd."""
TIMEOUT_S = 20
HOLDS, HOLD = "/api/v1/namespaces/kube-system/configmaps", "what-holds-up-a-join"


def fail(words: str) -> NoReturn:
    """
    The program has ended with these words.
    """
    sys.exit(f"[stand-in for {Path(sys.argv[0]).name}] {words}")


def run(*command: str, given: str | None = None) -> str:
    """
    What the command printed; the stand-in fails with it.
    """
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def hostname() -> str:
    """
    As a kubelet takes it; it must be a name that a Node may have.
    """
    name = socket.gethostname().lower()
    if not all(part and part.strip("-") == part and part.replace("-", "").isalnum() for part in name.split(".")):
        fail(f"a Node cannot be named {name!r}")
    return name


@cache
def route() -> tuple[str, str]:
    """
    The gateway, and the address that this host is reached at: that of its default route's interface.
    """
    found = json.loads(run("ip", "-j", "-4", "route", "show", "default"))
    if not found:
        fail("there is no default route")
    device = json.loads(run("ip", "-j", "-4", "address", "show", "dev", found[0]["dev"]))
    return found[0]["gateway"], device[0]["addr_info"][0]["local"]


def put(path: str | Path, text: str, mode: int = 0o600) -> Path:
    """
    The file holds the text.
    """
    where = Path(path)
    where.parent.mkdir(parents=True, exist_ok=True)
    where.touch(mode=mode)
    where.chmod(mode)
    where.write_text(text, encoding="utf-8")
    return where


def version() -> str:
    """
    Of the Kubernetes that this program is said to be of: the image's, or what was put in its place.
    """
    own = PUT / Path(sys.argv[0]).name
    return (own if own.exists() else HOME / "version").read_text(encoding="ascii").strip()


def minor(text: str) -> int:
    """
    Of the version, with or without what a distribution has before and behind it.
    """
    return int(text.split(".")[1])


def documents(path: str) -> list[dict[str, Any]]:
    """
    All documents of the file, which only root may read.
    """
    mode = Path(path).stat().st_mode & 0o777
    if mode & 0o077:
        fail(f"{path} has the mode {mode:04o}: others read the token")
    return [one for one in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if one is not None]


class Answer(Exception):
    """
    The API said no.
    """

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status}: {words}")
        self.status = status


class Api:
    """
    An API that is asked over one connection at a time.
    """

    def __init__(
        self,
        url: str,
        context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        parts = urlsplit(url)
        self._timeout_s = timeout_s
        assert parts.hostname is not None
        self._host, self._port, self._context, self._headers = parts.hostname, parts.port or 443, context, dict(headers or {})
        self._line: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """
        What it answered. Raises Answer, OSError.
        """
        status, told, _ = self.send(method, path, None if body is None else json.dumps(body).encode(), [("Content-Type", kind)])
        text = told.decode()
        if status >= 400:
            raise Answer(status, text[:400])
        return json.loads(text) if text.startswith(("{", "[")) else text

    def send(self, method: str, path: str, body: bytes | None, headers: Sequence[tuple[str, str]]) -> tuple[int, bytes, str]:
        """
        The status, the body and its type. Raises OSError.
        """
        for fresh in (False, True):
            line = self._connection(fresh)
            try:
                line.putrequest(method, path)
                for name, value in (*self._headers.items(), *headers, ("Content-Length", str(len(body or b"")))):
                    line.putheader(name, value)
                line.endheaders(body)
                answer = line.getresponse()
                return answer.status, answer.read(), answer.headers.get("Content-Type") or ""
            except (http.client.HTTPException, ConnectionError):
                self._line = None
                if fresh:
                    raise
        raise AssertionError

    def _connection(self, fresh: bool) -> http.client.HTTPConnection:  # noqa: FBT001 - one caller
        if self._line is None or fresh:
            if self._context is None:
                self._line = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            else:
                self._line = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._context)
        return self._line


def store() -> Api:
    """
    What keeps the cluster's objects.
    """
    return Api(f"http://{route()[0]}:{STORE_PORT}", headers={"Authorization": f"Bearer {STORE_TOKEN}"})


def be_held_up() -> None:
    """
    A test may want one host that joins to stand still: the first that comes here, for as long as the object is there that says so.
    """
    kept = store()
    while True:
        try:
            found = kept.ask("GET", f"{HOLDS}/{HOLD}")
            if found["data"].setdefault("host", hostname()) != hostname():
                return
            kept.ask("PUT", f"{HOLDS}/{HOLD}", found)
        except Answer as no:
            if no.status != 409:
                return
        time.sleep(0.5)


def trusting(authority: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """
    Believes in servers that this authority signed, by their names; shows the certificate if there is one. All are paths.
    """
    context = ssl.create_default_context(cafile=authority)
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def ready() -> None:
    """
    Whoever manages services here, systemd, has been told that this one is up.
    """
    at = os.environ.get("NOTIFY_SOCKET")
    if at:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(b"READY=1", f"\0{at[1:]}" if at.startswith("@") else at)
