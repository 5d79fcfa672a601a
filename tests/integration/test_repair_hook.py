"""
The operator's webhook: signed, told until it takes note, and once for each ticket.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from controlplane.nodes import service as nodes
from controlplane.settings import Settings
from tests.conftest import Database
from tests.factories.world import World, make_world
from workers.sweeps import mend, tell_repairs
from workers.webhooks import RepairHook

KEY = b"a key of thirty-two bytes, or so"


class Receiver:
    """Somebody's ticket system: answers with the next of its codes, the last one for ever."""

    def __init__(self) -> None:
        self.codes = [200]
        self.heard: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.heard.append(({name.lower(): value for name, value in self.headers.items()}, body))
                code = receiver.codes.pop(0) if len(receiver.codes) > 1 else receiver.codes[0]
                self.send_response(code)
                if code in {301, 302}:
                    self.send_header("location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        """Nobody listens any more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Somebody's ticket system."""
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def hook(receiver: Receiver) -> Iterator[RepairHook]:
    """The way to it."""
    made = RepairHook.of(
        Settings(
            repair_webhook_url=f"http://127.0.0.1:{receiver.port}/tickets",
            repair_webhook_secret=SecretStr("whsec_" + base64.b64encode(KEY).decode()),
        )
    )
    assert made is not None
    yield made
    made.close()


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A region with one sick node, put aside."""
    made = make_world(database, tmp_path)
    made.settle()
    (idle,) = made.rows("SELECT id FROM nodes WHERE state = 'available' ORDER BY id LIMIT 1")
    made.do(lambda s: nodes.report(s, [nodes.Report(idle.id, "bmc", "fan", "quarantine", "Fan 3 is gone.")]))
    made.clock.advance(61)
    assert mend(made.engine) == 1
    yield made
    made.clock.stop()


def test_a_repair_is_told_once_signed(world: World, hook: RepairHook, receiver: Receiver) -> None:
    """The message says where the machine stands and what is wrong; its signature is the standard's; it is not sent again."""
    assert tell_repairs(world.engine, hook) == 1
    assert tell_repairs(world.engine, hook) == 0
    ((headers, body),) = receiver.heard
    message = json.loads(body)
    assert message["node"]["ref"]
    assert message["reports"] == [{"source": "bmc", "check": "fan", "class": "quarantine", "message": "Fan 3 is gone."}]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.parametrize("code", [500, 404, 302])
def test_what_was_not_taken_is_told_again_later(world: World, hook: RepairHook, receiver: Receiver, code: int) -> None:
    """A refusal, a failure and a redirect (which is not followed) are tried again, later each time, under the same id."""
    receiver.codes = [code, code, 204]
    taken = []
    for wait_s in (0, 1, 11, 1, 21):
        world.clock.advance(wait_s)
        taken.append(tell_repairs(world.engine, hook))
    assert taken == [0, 0, 0, 0, 1]
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 1
    assert len(receiver.heard) == 3


def test_a_hook_that_is_down_stops_nothing(world: World, hook: RepairHook, receiver: Receiver) -> None:
    """A receiver that is gone costs a try; it is told when it is back."""
    receiver.close()
    assert tell_repairs(world.engine, hook) == 0
    assert world.rows("SELECT attempts, delivered_at FROM repair_tickets") == [(1, None)]


def test_a_hook_needs_a_key() -> None:
    """Unsigned messages are not sent: the worker says so when it starts."""
    with pytest.raises(ValueError, match="REPAIR_WEBHOOK_SECRET"):
        RepairHook.of(Settings(repair_webhook_url="http://127.0.0.1:1/x"))
    assert RepairHook.of(Settings()) is None
