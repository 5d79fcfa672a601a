"""
The edge on a real socket: bytes that no client library would send, bodies without end, and budgets shared by two processes.
"""

import json
import os
import resource
import secrets
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.kit.access import Principal
from controlplane.kit.errors import TooMany
from controlplane.local.valkey import EmbeddedValkey
from controlplane.web.limits import Limiter, Ticket
from controlplane.web.sharing import Exchange, store_client
from tests.conftest import Database
from tests.factories.identity import Tree, make_tree
from tests.factories.serving import Served, serving

MIB = 1024 * 1024


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


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/\xff HTTP/1.1\r\nHost: x\r\n",
        b"GET /v1/projects?a=\xff HTTP/1.1\r\nHost: x\r\n",
        b"GET /v1/%00 HTTP/1.1\r\nHost: x\r\n",
        b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nX-Test: a\x00b\r\n",
        b"GET /v1/whoami HTTP/1.1\r\nHost: \xff\xfe\r\n",
        b"GET /v1/whoami HTTP/1.1\r\nHost: a\r\nHost: b\r\n",
        b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nAuthorization: \xc0\x80\r\n",
        b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nIf-Match: \xff\r\nAuthorization: Bearer x\r\n",
        b"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
        b"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n",
        b"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n",
        b"POST /v1/projects HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n",
        b"GET /v1/whoami HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 500,
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n",
        b"G\x00T / HTTP/1.1\r\nHost: x\r\n",
        b"GET /v1/whoami HTTP/9.9\r\nHost: x\r\n",
    ],
)
def test_no_bytes_make_a_failure(served: Served, head: bytes) -> None:
    """Bytes that break the rules of HTTP are answered with a 4xx, and the next caller is served."""
    answer = served.raw(head + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert b"Traceback" not in answer
    with served.client() as client:
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("bad", ["\x00", "a\x00b", "\ud800", "\ufeff", "\x1b[31m", "x" * 100_000])
def test_unstorable_text_is_refused_in_every_place(served: Served, tree: Tree, bad: str) -> None:
    """Characters that cannot be stored, and texts too long, are a 4xx wherever they stand, and nothing is stored."""
    body = {"name": "good", "labels": {"a": "b"}}
    bodies = [{**body, "name": bad}, {**body, "labels": {"a": bad + "\x07"}}, {**body, "labels": {bad: "b"}}, {**body, bad: 1}]
    with served.client(tree.right.owner_key, **{"Content-Type": "application/json"}) as client:
        for one in bodies:
            answer = client.post("/v1/projects", content=json.dumps(one).encode())
            assert answer.status_code in {413, 422}, answer.text
            assert answer.json()["errors"] or answer.status_code == 413
        raw = json.dumps(bodies[0], ensure_ascii=False).encode("utf-8", "surrogatepass")
        assert client.post("/v1/projects", content=raw).status_code in {413, 422}
        names = [one["name"] for one in client.get("/v1/projects").json()["items"]]
    assert names == ["vision"]


def test_bodies_without_end_do_not_fill_the_memory(served: Served) -> None:
    """Fifty endless chunked bodies at once are cut off with 413; the process hardly grows and serves others meanwhile."""
    head = b"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    sent = head + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 100
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ThreadPoolExecutor(50) as pool, served.client() as client:
        answers = list(pool.map(served.raw, [sent] * 50))
        assert client.get("/healthz").status_code == 200
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024
    assert grown_mib < 150
    assert {answer[:12] for answer in answers} <= {b"HTTP/1.1 413", b""}
    assert sum(answer.startswith(b"HTTP/1.1 413") for answer in answers) > 0


def test_a_huge_declared_body_is_refused_at_once(served: Served) -> None:
    """Two GiB by Content-Length are refused before a byte of them is read."""
    head = b"POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2147483648\r\n\r\n"
    answer = served.raw(head)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


def test_hostile_json_is_cheap(served: Served, tree: Tree) -> None:
    """Depth, count, bombs and doubled keys at full size are refused, and quickly."""
    bodies = {
        "deep": b"[" * MIB,
        "nested objects": b'{"a":' * 150_000,
        "many": b"[" + b"0," * 500_000 + b"0]",
        "one long text": b'{"name": "' + b"x" * (MIB - 20) + b'"}',
        "escapes": b'"' + rb"\u0000" * 150_000 + b'"',
        "digits": b"9" * MIB,
    }
    with served.client(tree.right.owner_key, **{"Content-Type": "application/json"}) as client:
        for name, body in bodies.items():
            answer = client.post("/v1/projects", content=body)
            assert answer.status_code == 422, name
            assert answer.elapsed.total_seconds() < 3, name


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Valkey of our own."""
    home = tmp_path_factory.mktemp("valkey")
    valkey = EmbeddedValkey(home, password=secrets.token_hex(8), log_path=home / "valkey.log")
    valkey.prepare()
    with subprocess.Popen(
        valkey.command(), env={**os.environ, **valkey.environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        ready = threading.Event()
        while not valkey.is_ready():
            ready.wait(0.05)
        yield valkey.url()
        process.terminate()
        process.wait(10)


def test_two_processes_share_one_budget(store_url: str) -> None:
    """What one process lets through is charged in the other at the next exchange; afterwards both limit the sum."""
    now = [0.0]
    limiters = [Limiter(10, 100, clock=lambda: now[0]) for _ in range(2)]
    exchanges = [Exchange(one, store_client(store_url), prefix="t1", clock=lambda: now[0]) for one in limiters]
    passed = 0
    for _ in range(100):
        now[0] += 1.0
        for limiter in limiters:
            passed += _spend(limiter.admit(None), 20)
        assert all(exchange.exchange() for exchange in exchanges)
    for exchange in exchanges:
        exchange.stop()
    # One budget: 100 at once and 10 a second. Two of them unshared would let twice as much through.
    assert 100 + 10 * 90 <= passed <= 200 + 10 * 100 + 20


def test_without_the_store_each_limits_alone(tmp_path: Path) -> None:
    """A store that is down leaves the local limit: neither unlimited nor closed."""
    limiter = Limiter(10, 100, clock=lambda: 0.0)
    exchange = Exchange(limiter, store_client(f"unix://{tmp_path / 'nobody.sock'}"), prefix="t2")
    assert _spend(limiter.admit(None), 60) == 60
    assert not exchange.exchange()
    assert _spend(limiter.admit(None), 60) == 40
    exchange.stop()


def _spend(ticket: Ticket, wanted: int) -> int:
    principal = Principal("prn_1", "key_1", "platform", "platform", frozenset())
    for done in range(wanted):
        try:
            ticket.check_key(principal)
        except TooMany:
            return done
    return wanted
