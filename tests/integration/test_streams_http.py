"""
Streams on a real socket: a HEAD of one ends at once, and open ones do not hold up a shutdown.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.serving import GRACEFUL_STOP_S
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.processes import processes
from tests.factories.serving import Served, serving

STREAM = "/v1/events/stream"
MARGIN_S = 15.0


@pytest.fixture(scope="module")
def tree(migrated: Database) -> Tree:
    """Two resellers with a tenant each."""
    migrated.reset()
    return make_tree(migrated.engine)


@pytest.fixture(scope="module")
def served(migrated: Database, tree: Tree) -> Iterator[Served]:
    """The application."""
    del tree
    with serving(migrated) as one:
        yield one


def test_a_head_of_a_stream_ends_at_once(served: Served, tree: Tree) -> None:
    """It has the headers of the stream, no body and no length, and the connection serves on."""
    head = f"HEAD {STREAM} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tree.left.owner_key}\r\n\r\n"
    answer = served.raw(head.encode() + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    first, second = answer.split(b"\r\n\r\n", 1)
    assert first.startswith(b"HTTP/1.1 200")
    assert b"text/event-stream" in first
    assert b"content-length" not in first.lower()
    assert second.startswith(b"HTTP/1.1 200"), second[:200]
    assert not served.app.state.streams.open


def test_a_head_of_a_stream_is_refused_as_a_get_is(served: Served) -> None:
    """Without a credential it is a 401."""
    with served.client() as client:
        assert client.head(STREAM).status_code == 401


def test_an_open_stream_does_not_hold_up_a_shutdown(database: Database, tmp_path: Path) -> None:
    """The server ends within its grace, though the client never lets go."""
    key = make_tree(database.engine).left.owner_key
    with processes(database, tmp_path, apis=1, workers=0) as running:
        (api,) = running.apis
        with api.client(key) as client, client.stream("GET", STREAM) as stream:
            pieces = stream.iter_raw()  # kept: the stream is closed with it
            assert next(pieces) != b""
            asked_at = time.monotonic()
            api.child.send_signal(signal.SIGTERM)
            api.child.wait(timeout=GRACEFUL_STOP_S + MARGIN_S)
            assert time.monotonic() - asked_at >= GRACEFUL_STOP_S - 1, "the stream was not open"
