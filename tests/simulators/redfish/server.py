"""
One controller over real HTTP, and the buttons of its faults.

What vendors really do is chosen per test through the fields of `FakeBmc`; each names who was seen doing it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import ssl
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.simulators.redfish.tree import (
    MANAGER_RESET,
    MONITOR,
    RESET,
    SESSIONS,
    SIMPLE_UPDATE,
    SYSTEM,
    TASK,
    V1,
    Tree,
    ordinary,
    ref,
)

Etags = Literal[
    "none", "empty", "strong", "weak", "changing", "demanded", "refused", "weak_shown_strong_demanded", "unshown_demanded"
]
Answer = tuple[int, Any, dict[str, str]]
Rule = Callable[[str, str, dict[str, Any]], Answer | None]
NO_BODY: dict[str, str] = {}


def no(status: int, code: str, text: str = "", *arguments: str, retry_after: str = "", related: tuple[str, ...] = ()) -> Answer:
    """A refusal in the standard's form."""
    entry = {"MessageId": code, "Message": text, "Severity": "Critical", "MessageArgs": list(arguments)}
    if related:
        entry["RelatedProperties"] = list(related)
    body = {"error": {"code": code, "message": text, "@Message.ExtendedInfo": [entry]}}
    return status, body, {"Retry-After": retry_after} if retry_after else {}


@dataclass
class Fault:
    """
    What goes wrong with the next `times` requests whose `METHOD /path` the pattern finds.
    """

    pattern: str
    kind: str
    times: int = 1
    payload: Any = None


@dataclass
class Request:
    """
    One request as it came.
    """

    line: str
    content: dict[str, Any] | None
    headers: dict[str, str]


@dataclass
class FakeBmc:
    """
    The controller's state and its ways.
    """

    tree: Tree = field(default_factory=ordinary)
    passwords: dict[str, str] = field(default_factory=lambda: {"admin": "old secret 1"})
    offers_sessions: bool = True
    """False: POST Sessions is 404, and 401 with `names_basic`, as sushy-tools does."""
    names_basic: bool = False
    session_limit: int = 6
    """BR-047: controllers have few."""
    etags: Etags = "strong"
    """Lenovo shows a weak one and demands a strong one (operations-center 1040); others none, an empty or an ever new one (BR-044)."""
    stale_reads: int = 0
    """So many reads of the system still show the power before a reset: 1 to 11 s on sushy-tools and hardware."""
    refuses_on: int = 0
    """iDRAC10 answers 409 to On for up to 60 s after Off."""
    slow_eject: int = 0
    """So many reads still show the image after an eject: Dell."""
    update: Literal["202", "204", "200"] = "202"
    task: list[tuple[str, int] | str] = field(default_factory=list)
    """What each look at the task shows: a state and a percentage, `gone`, or `done`; the last one stays."""
    keeps_settings: bool = True
    """False: a PATCH is answered 200 and forgotten (BR-038)."""
    rules: list[Rule] = field(default_factory=list)
    """Asked first; the first answer stands."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    sessions: dict[str, str] = field(default_factory=dict)
    restarts: int = 0
    """How often the controller itself was restarted; its sessions are over then."""
    silent_after_restart: int = 0
    """So many requests after it are reset: it takes minutes on hardware."""
    wrong_passwords: int = 0
    """Logins it refused since the last one that was right; what a lockout threshold counts."""
    most_wrong_passwords: int = 0
    closes: bool = False
    """Connections end after each answer, and nobody is told."""
    connections: int = 0
    """How many were opened."""
    connected: int = 0
    """How many are open now."""
    opened: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.let_go = threading.Event()
        self.hung = threading.Event()
        self.left = threading.Event()
        self._lock = threading.RLock()
        self._under_way = 0
        self._shown_power: list[str] = []
        self._ticks = 0
        self.url = ""
        self.broken: list[str] = []

    @property
    def system(self) -> dict[str, Any]:
        """The machine."""
        return self.tree[SYSTEM]

    def lines(self, method: str = "") -> list[str]:
        """`METHOD /path` of the requests so far, without those of logging in and out."""
        quiet = re.compile(rf"{SESSIONS}|GET {V1}/$")
        return [one.line for one in self.requests if one.line.startswith(method) and not quiet.search(one.line)]

    def sent(self, line: str) -> list[dict[str, Any] | None]:
        """What was sent with the requests of that line."""
        return [one.content for one in self.requests if one.line == line]

    def fail(self, pattern: str, kind: str, *, times: int = 1, payload: Any = None) -> None:
        """The next fitting requests go wrong in that way."""
        self.faults.append(Fault(pattern, kind, times, payload))

    def count_connection(self, change: int) -> None:
        """A connection came or went."""
        with self._lock:
            self.connected += change
            self.connections += max(change, 0)

    def expire_sessions(self) -> None:
        """Nobody is logged in any more."""
        self.sessions.clear()

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        """One request is answered, or not."""
        size = int(request.headers.get("Content-Length") or 0)
        raw = request.rfile.read(size) if size else b""
        content = json.loads(raw) if raw else None
        line = f"{request.command} {request.path}"
        with self._lock:
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            self.requests.append(Request(line, content, dict(request.headers)))
            fault = next((one for one in self.faults if one.times > 0 and re.search(one.pattern, line)), None)
            if fault:
                fault.times -= 1
        try:
            self._serve(request, fault, content)
        finally:
            with self._lock:
                self._under_way -= 1

    def _serve(self, request: BaseHTTPRequestHandler, fault: Fault | None, content: dict[str, Any] | None) -> None:
        kind = fault.kind if fault else ""
        if fault and kind == "say":
            _send(request, *fault.payload)
        elif kind == "hang":
            self._hang(request)
        elif kind == "reset":
            _reset(request)
        else:
            with self._lock:
                answer = self._answer(request, content if content is not None else {})
            self._deliver(request, kind, answer)

    def _deliver(self, request: BaseHTTPRequestHandler, kind: str, answer: Answer) -> None:
        raw = json.dumps(answer[1]).encode()
        if kind == "effect_hang":
            self._hang(request)
        elif kind == "effect_reset":
            _reset(request)
        elif kind == "truncate":
            _send(request, answer[0], raw[: len(raw) // 2], answer[2])
        elif kind == "cut":
            _cut(request, raw)
        elif kind in {"trickle", "trickle_head"}:
            _trickle(request, self.let_go, head=kind == "trickle_head")
        elif kind == "html":
            _send(request, 200, b"<html><body>Welcome to the BMC</body></html>", {"Content-Type": "text/html"})
        elif kind == "error_inside":
            _send(request, 200, no(0, "Base.1.8.InternalError", "it broke")[1], {})
        else:
            _send(request, *answer)

    def _hang(self, request: BaseHTTPRequestHandler) -> None:
        self.hung.set()
        self.let_go.wait(20)
        request.close_connection = True

    def _answer(self, request: BaseHTTPRequestHandler, content: dict[str, Any]) -> Answer:
        method, path = request.command, request.path
        if path != f"{V1}/" and not (method == "POST" and path == SESSIONS) and not self._let_in(request):
            return no(401, "Base.1.8.NoValidSession", "log in first")
        for rule in self.rules:
            said = rule(method, path, content)
            if said is not None:
                return said
        if path == SESSIONS and method == "POST":
            return self._open_session(content)
        if method == "DELETE":
            return self._end_session(path)
        if method == "GET":
            return self._get(path)
        return self._patch(request, path, content) if method == "PATCH" else self._post(path, content)

    def _let_in(self, request: BaseHTTPRequestHandler) -> bool:
        if not self.passwords or request.headers.get("X-Auth-Token") in self.sessions:
            return True
        kind, _, said = (request.headers.get("Authorization") or "").partition(" ")
        if kind != "Basic":
            return False
        name, _, password = base64.b64decode(said).decode().partition(":")
        return self.passwords.get(name) == password

    def _open_session(self, content: dict[str, Any]) -> Answer:
        if not self.offers_sessions:
            return (
                (401, None, {"WWW-Authenticate": 'Basic realm="x"'})
                if self.names_basic
                else no(404, "Base.1.8.ResourceMissingAtURI")
            )
        right = self.passwords.get(str(content.get("UserName"))) == content.get("Password")
        self.wrong_passwords = 0 if right else self.wrong_passwords + 1
        self.most_wrong_passwords = max(self.most_wrong_passwords, self.wrong_passwords)
        if not right:
            return no(401, "Base.1.8.ResourceAtUriUnauthorized", "unauthorized")
        if len(self.sessions) >= self.session_limit:
            return no(503, "Base.1.8.SessionLimitExceeded", "all sessions are taken")
        self.opened += 1
        # Controllers name themselves in Location by the name they were given, not by the one that they are reached by.
        token, place = f"token-{self.opened}", f"{SESSIONS}/{self.opened}"
        self.sessions[token] = place
        return 201, {"@odata.id": place}, {"X-Auth-Token": token, "Location": f"https://its-own-name.example{place}"}

    def _end_session(self, path: str) -> Answer:
        token = next((token for token, place in self.sessions.items() if place == path), None)
        if token is None:
            return no(404, "Base.1.8.ResourceMissingAtURI")
        del self.sessions[token]
        self.left.set()
        return 204, None, {}

    def _etag(self, path: str) -> str:
        self._ticks += 1
        made = hashlib.sha256(json.dumps(self.tree[path]).encode()).hexdigest()[:12]
        return {
            "none": "",
            "unshown_demanded": "",
            "weak_shown_strong_demanded": f'W/"{made}"',
            "empty": '""',
            "weak": f'W/"{made}"',
            "changing": f'"{self._ticks}"',
        }.get(self.etags, f'"{made}"')

    def _get(self, path: str) -> Answer:
        if path in {TASK, MONITOR} and self.task:
            return self._look_at_task()
        if path not in self.tree:
            return no(404, "Base.1.8.ResourceMissingAtURI", f"no {path}")
        if path == SYSTEM and self._shown_power:
            shown = self.system | {"PowerState": self._shown_power.pop()}
            return 200, shown, {}
        body = dict(self.tree[path])
        if body.get("_ejecting"):
            self.tree[path]["_ejecting"] -= 1
            if not self.tree[path]["_ejecting"]:
                self.tree[path] |= {"Image": None, "Inserted": False}
        body.pop("_ejecting", None)
        etag = self._etag(path)
        return 200, body, {"ETag": etag} if etag else {}

    def _look_at_task(self) -> Answer:
        said = self.task.pop(0) if len(self.task) > 1 else self.task[0]
        if said == "gone":
            return no(404, "Base.1.8.ResourceMissingAtURI", "no such task")
        if said == "done":
            return 204, None, {}
        state, percent = said
        body = {**ref(TASK), "TaskState": state, "PercentComplete": percent, "Messages": [{"Message": f"it is {state}"}]}
        return 202 if state == "Running" else 200, body, {}

    def _precondition(self, request: BaseHTTPRequestHandler, path: str) -> Answer | None:
        match = request.headers.get("If-Match")
        if self.etags == "refused" and match:
            return no(412, "Base.1.8.PreconditionFailed", "no preconditions here")
        if self.etags == "weak_shown_strong_demanded" and match == "*":
            return no(412, "Base.1.8.PreconditionFailed", "that is too easy")
        if self.etags.endswith("demanded") and not match:
            return no(428, "Base.1.8.PreconditionRequired", "say what you mean")
        if match in {None, "*"}:
            return None
        now = self._etag(path)
        if match != now.removeprefix("W/"):
            return no(412, "Base.1.8.PreconditionFailed", "that is not how it is")
        return None

    def _patch(self, request: BaseHTTPRequestHandler, path: str, content: dict[str, Any]) -> Answer:
        if path not in self.tree:
            return no(404, "Base.1.8.ResourceMissingAtURI", f"no {path}")
        failed = self._precondition(request, path)
        if failed is not None:
            return failed
        resource = self.tree[path]
        if "Password" in content and "UserName" in resource:
            self.passwords[resource["UserName"]] = content["Password"]
        elif self.keeps_settings:
            _merge(resource, {name: value for name, value in content.items() if not name.startswith("@")})
        return 200, resource, {}

    def _post(self, path: str, content: dict[str, Any]) -> Answer:
        if path == RESET:
            return self._switch(str(content.get("ResetType")))
        if path == MANAGER_RESET:
            self.restarts += 1
            self.sessions.clear()
            if self.silent_after_restart:
                self.fail("", "reset", times=self.silent_after_restart)
            return 204, None, {}
        if path == SIMPLE_UPDATE:
            self.tree[f"{V1}/TaskService/Tasks"]["Members"].append(ref(TASK))
            return {"202": (202, None, {"Location": MONITOR}), "204": (204, None, {"Location": TASK}), "200": (200, None, NO_BODY)}[
                self.update
            ]
        place, _, verb = path.partition("/Actions/VirtualMedia.")
        if verb and place in self.tree:
            slot = self.tree[place]
            if verb == "InsertMedia":
                if slot["Inserted"]:
                    return no(500, "Base.1.8.InternalError", "something is in it")
                slot |= {"Image": content["Image"], "Inserted": True}
            elif self.slow_eject:
                slot["_ejecting"] = self.slow_eject
            else:
                slot |= {"Image": None, "Inserted": False}
            return 204, None, {}
        return no(404, "Base.1.8.ResourceMissingAtURI", f"no {path}")

    def _switch(self, way: str) -> Answer:
        if way not in self.system["Actions"]["#ComputerSystem.Reset"]["ResetType@Redfish.AllowableValues"]:
            return no(400, "Base.1.8.ActionParameterNotSupported", f"no {way}")
        if way == "On" and self.refuses_on:
            self.refuses_on -= 1
            return no(409, "Base.1.8.ResourceInUse", "not yet")
        self._shown_power = [self.system["PowerState"]] * self.stale_reads
        self.system["PowerState"] = "On" if way in {"On", "ForceOn", "ForceRestart"} else "Off"
        return 204, None, {}


@contextmanager
def serving(*bmcs: FakeBmc, tls: ssl.SSLContext | None = None) -> Iterator[None]:
    """
    Each controller listens on an address of its own as long as the block lasts.
    """
    servers = [_listen(bmc, tls) for bmc in bmcs]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for bmc in bmcs:
            bmc.let_go.set()
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join(5)
        assert [error for bmc in bmcs for error in bmc.broken] == []


def _listen(bmc: FakeBmc, tls: ssl.SSLContext | None) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536

        def setup(self) -> None:
            super().setup()
            bmc.count_connection(1)

        def finish(self) -> None:
            bmc.count_connection(-1)
            super().finish()

        def _any(self) -> None:
            bmc.serve(self)
            self.close_connection |= bmc.closes

        do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            error = sys.exc_info()[1]
            if not isinstance(error, OSError):  # clients that gave up are part of the play
                bmc.broken.append(repr(error))

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    bmc.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    return server


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def _reset(request: BaseHTTPRequestHandler) -> None:
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.close_connection = True
    request.connection.close()


def _cut(request: BaseHTTPRequestHandler, raw: bytes) -> None:
    """Less than it promised."""
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", str(len(raw)))
    request.end_headers()
    request.wfile.write(raw[: len(raw) // 2])
    request.close_connection = True


def _trickle(request: BaseHTTPRequestHandler, until: threading.Event, *, head: bool) -> None:
    """A byte now and then, for ever: of the body, or of a header that does not end."""
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    if not head:
        request.end_headers()
    request.flush_headers()
    request.close_connection = True
    while not until.wait(0.02):
        request.wfile.write(b" ")
        request.wfile.flush()


def _send(request: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    headers = headers or {}
    request.send_response(status)
    if raw and "Content-Type" not in headers:
        request.send_header("Content-Type", "application/json")
    for name, value in headers.items():
        request.send_header(name, value)
    if status != 204:
        request.send_header("Content-Length", str(len(raw)))
    request.end_headers()
    request.wfile.write(raw if status != 204 else b"")
