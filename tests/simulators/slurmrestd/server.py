"""
A slurmrestd that plays faults over real HTTP, and a scontrol that reaches the same world.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.simulators.slurmrestd.world import World

Mutate = Callable[[dict[str, Any]], Any]
NOTHING_NEW = {"description": "No job changes since update_time[1795827696]", "source": "op_handler_jobs"}
SCONTROL = Path(__file__).with_name("scontrol.py")


@dataclass
class Fault:
    """
    What goes wrong with the next `times` requests whose `METHOD /path` the pattern finds.
    """

    pattern: str
    kind: str
    times: int = 1
    mutate: Mutate | None = None
    payload: Any = None


class FakeSlurmrestd:
    """
    The server and the buttons of its faults.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.let_go = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # one packet an answer: small ones would wait for the client's delayed acknowledgement

            def _any(self) -> None:
                fake.answer(self)

            do_GET = do_POST = do_DELETE = _any  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # clients that gave up are part of the play

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """
        Where it listens.
        """
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def cli(self) -> dict[str, Any]:
        """
        The adapter's `cli` config for the scontrol that reaches this world.
        """
        return {"argv_prefix": [sys.executable, "-S", "-E", str(SCONTROL), self.url]}

    def fail(self, pattern: str, kind: str, *, times: int = 1, mutate: Mutate | None = None, payload: Any = None) -> None:
        """
        The next fitting requests go wrong in that way.
        """
        self.faults.append(Fault(pattern, kind, times, mutate, payload))

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """
        One request is answered, or not.
        """
        size = int(request.headers.get("Content-Length") or 0)
        content = json.loads(request.rfile.read(size)) if size else {}
        path = request.path.split("?")[0]
        if path == "/scontrol":
            code, out, err = self.world.scontrol(content["argv"], content["stdin"])
            _send(request, 200, json.dumps({"code": code, "out": out, "err": err}).encode())
            return
        line = f"{request.command} {path}"
        self.requests.append(line)
        fault = self._fault(line)
        kind = fault.kind if fault else ""
        if fault and kind == "status":
            _send(request, fault.payload, b"no", "text/plain")
            return
        if fault and kind == "say":
            status, body = fault.payload
            _send(request, status, json.dumps(body).encode())
            return
        status, body = self._effect(request, path, content)
        self._reply(request, kind, fault, status, body)

    def _reply(self, request: BaseHTTPRequestHandler, kind: str, fault: Fault | None, status: int, body: Any) -> None:
        if kind == "effect_500":
            status, body = 500, {"errors": [{"error": "Unspecified error", "errno": -1}]}
        if kind == "effect_hang":
            self.let_go.wait(20)
            request.close_connection = True
            return
        if kind == "effect_reset":
            request.close_connection = True
            request.connection.close()
            return
        if kind == "mutate":
            assert fault is not None
            assert fault.mutate is not None
            body = fault.mutate(body)
        raw = json.dumps(body).encode()
        if kind == "truncate":
            raw = raw[: len(raw) // 2]
        if kind == "noise":
            raw = b"slurmrestd: warning: plugin is chatty\n" + raw
        if kind == "huge":
            raw = b'{"pad": "' + b"x" * (3 * 1024 * 1024) + b'"}'
        _send(request, status, raw)

    def _fault(self, line: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.pattern, line):
                fault.times -= 1
                return fault
        return None

    def _effect(self, request: BaseHTTPRequestHandler, path: str, content: dict[str, Any]) -> tuple[int, Any]:
        prefix = f"/slurm/v0.0.{self.world.generation}"
        if path == "/openapi/v3":
            return 200, {"paths": {f"{prefix}/jobs": {}, "/slurm/v0.0.36/jobs": {}}}
        if not path.startswith(prefix):
            return 404, {}
        rest = path.removeprefix(prefix)
        if request.command == "POST" and rest == "/job/submit":
            job = content["job"]
            return self.world.submit({"job": {k: v for k, v in job.items() if k != "script"}}, request.headers["X-SLURM-USER-NAME"])
        if request.command == "DELETE":
            return self.world.cancel(int(rest.rsplit("/", 1)[1]))
        return self._read(request.path, rest)

    def _read(self, path: str, rest: str) -> tuple[int, Any]:
        if rest.startswith("/node/"):
            return self._one_node(rest.rsplit("/", 1)[1])
        since = re.search(r"[?&]update_time=(\d+)", path)
        if since and self.world.modern and int(since[1]) - 1 >= self.world.clock_s:
            return 200, {"jobs": [], "errors": [], "last_update": self.world.number(0), "warnings": [NOTHING_NEW]}
        return 200, self.world.listing(rest.strip("/"))

    def _one_node(self, name: str) -> tuple[int, Any]:
        body = self.world.listing("nodes")
        found = [row for row in body["nodes"] if row["name"] == name]
        if found:
            return 200, {**body, "nodes": found}
        if self.world.modern:
            return 200, {"errors": [{"description": f"Failure to query node {name}", "error_number": 0, "error": "No error"}]}
        return 500, {"errors": [{"errno": 2018, "error": "Invalid node name specified"}], "nodes": []}

    def start(self) -> None:
        """
        It listens.
        """
        self._thread.start()

    def stop(self) -> None:
        """
        It does not any more.
        """
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def fake_slurmrestd(generation: int) -> Iterator[FakeSlurmrestd]:
    """
    A server of v0.0.`generation` that lives as long as the block.
    """
    fake = FakeSlurmrestd(World(generation=generation))
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()


def _send(request: BaseHTTPRequestHandler, status: int, raw: bytes, kind: str = "application/json") -> None:
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.send_header("Content-Length", str(len(raw)))
    request.end_headers()
    request.wfile.write(raw)
