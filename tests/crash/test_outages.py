"""
Servers that go away: the broker, the database, and a step that kills every worker that tries it.
"""

from __future__ import annotations

import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import redis

from controlplane.local import spawn
from controlplane.local.addresses import LOOPBACK
from controlplane.local.postgres import EmbeddedPostgres
from tests.conftest import ROOT, Database
from tests.crash.real import PATIENT_S, Cloud, cloud
from tests.factories.processes import Running, until

ATTEMPTS = 3
ASKED = "SELECT attention FROM nodes WHERE attention <> '' UNION SELECT attention FROM clusters WHERE id = :id AND attention <> ''"


def turnover(made: Cloud, name: str) -> list[str]:
    """
    A cluster was ordered, ran, and is gone. What was wrong with it: promises that do not hold, requests that were slow or failed.
    """
    cluster_id = made.order(name)
    made.until_running(cluster_id)
    made.delete(cluster_id)
    made.until_clean()
    slow = [f"a request took {made.slowest_s:.1f} s"] if made.slowest_s >= PATIENT_S else []
    failed = [f"a request was answered {one}" for one in made.statuses if one >= httpx.codes.INTERNAL_SERVER_ERROR]
    return [*made.broken(), *slow, *failed]


@contextmanager
def black_hole() -> Iterator[str]:
    """
    The URL of a broker that takes connections and never answers.
    """
    with socket.create_server((LOOPBACK, 0), backlog=512) as listener:
        yield f"redis://{LOOPBACK}:{listener.getsockname()[1]}/0"


def test_without_a_broker_all_is_done(database: Database, tmp_path: Path) -> None:
    """I9: no broker at all; sweeps find everything."""
    with cloud(database, tmp_path, workers=1) as made:
        assert turnover(made, "absent") == []


def test_a_broker_that_forgets_or_dies_changes_nothing_but_speed(database: Database, tmp_path: Path) -> None:
    """BR-082, BR-088: hints are purged while orders are under way, then the broker is stopped for good; all finishes, nobody waits."""
    with cloud(database, tmp_path, workers=1, broker=True) as made:
        assert turnover(made, "before") == []
        first = made.order("purged")
        broker = redis.Redis.from_url(made.running.broker_url)
        broker.flushall()
        made.until_running(first)
        second = made.order("stopped")
        broker.shutdown(nosave=True, now=True)
        broker.close()
        made.until_running(second)
        for one in (first, second):
            made.delete(one)
        made.until_clean()
        assert turnover(made, "after") == []


def test_a_broker_that_never_answers_holds_up_nobody(database: Database, tmp_path: Path) -> None:
    """BR-086: the broker takes connections and is silent; requests stay quick and everything still finishes."""
    with black_hole() as url, cloud(database, tmp_path, workers=0, broker_url=url) as made:
        assert turnover(made, "hole") == []


class Refusing(socketserver.BaseRequestHandler):
    """
    Refuses everything.
    """

    def handle(self) -> None:
        """
        Whatever is asked, the answer is an error.
        """
        while self.request.recv(4096):
            self.request.sendall(b"-ERR this is no broker\r\n")


@contextmanager
def refuser() -> Iterator[str]:
    """
    The URL of a broker that refuses every command.
    """
    with socketserver.ThreadingTCPServer((LOOPBACK, 0), Refusing) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"redis://{LOOPBACK}:{server.server_address[1]}/0"
        finally:
            server.shutdown()
            thread.join()


def test_a_broker_that_refuses_everything_ends_no_worker(database: Database, tmp_path: Path) -> None:
    """No hint is ever heard; all is done all the same, and SIGTERM still ends the worker at once."""
    with refuser() as url, cloud(database, tmp_path, workers=0, broker_url=url) as made:
        assert turnover(made, "refused") == []
        worker = made.running.workers[0]
        assert not spawn.has_ended(worker.child)
        worker.child.send_signal(signal.SIGTERM)
        assert worker.child.wait(20) == 0
        made.running.workers.remove(worker)


def test_the_database_is_cut_off_and_comes_back(tmp_path: Path) -> None:
    """In mid-flight the database stops at once: the API answers 503, never 500; when it is back all goes on by itself."""
    home = Path(tempfile.mkdtemp(prefix="cpcut", dir="/var/tmp"))
    home.chmod(0o755)
    server = EmbeddedPostgres(home / "pg", password="cut-off", log_path=home / "log")
    server.prepare()

    def begin() -> subprocess.Popen[bytes]:
        child = spawn.spawn(
            server.command(),
            log_path=server.log_path,
            environment=server.environment,
            directory=server.directory,
            account=server.account,
        )
        until(server.is_ready, "the database is up")
        return child

    child = begin()
    database = Database(server.owner_url(), "cut")
    try:
        with cloud(database, tmp_path, workers=2) as made:
            first = made.order("before")
            spawn.end(child, stop_signal=signal.SIGQUIT, grace_s=5)
            with made.running.apis[0].client(made.world.keys.tenant_key) as client:
                answers = [client.get(f"{made.project}/clusters/{first}") for _ in range(5)]
            assert {one.status_code for one in answers} == {httpx.codes.SERVICE_UNAVAILABLE}
            assert {one.headers["content-type"].split(";")[0] for one in answers} == {"application/problem+json"}
            child = begin()
            database.engine.dispose()
            database.owner.dispose()
            made.until_running(first)
            made.delete(first)
            made.until_clean()
            assert turnover(made, "after") == []
    finally:
        database.close()
        spawn.end(child, stop_signal=signal.SIGINT, grace_s=10)
        server.remove()
        shutil.rmtree(home)


def immortal(worker: Running, stopping: threading.Event) -> None:
    """
    The worker is started again whenever it has died, until told otherwise.
    """
    while not stopping.wait(0.1):
        if spawn.has_ended(worker.child):
            worker.child.wait()
            worker.child = spawn.spawn(worker.command, log_path=worker.log_path, environment=worker.environment, directory=ROOT)


def test_a_poisoned_step_ends_with_a_person_and_not_in_a_loop(database: Database, tmp_path: Path) -> None:
    """BR-091: whoever steps one cluster is killed; its attempts are counted all the same, then a person is asked; others go on."""
    poison = tmp_path / "poison"
    with cloud(database, tmp_path, workers=1, max_attempts=ATTEMPTS) as made:
        worker = made.running.workers[0]
        worker.kill()
        bad, good = made.order("poisoned"), made.order("innocent")
        poison.write_text(bad, encoding="ascii")
        entry = [sys.executable, "-m", "tests.crash.worker_entry", *worker.command[worker.command.index("workers") + 1 :]]
        worker.command, worker.environment = entry, {**worker.environment, "POISON": str(poison)}
        worker.child = spawn.spawn(entry, log_path=worker.log_path, environment=worker.environment, directory=ROOT)
        stopping = threading.Event()
        keeper = threading.Thread(target=immortal, args=(worker, stopping))
        keeper.start()
        try:
            row = "SELECT attention, attempts FROM clusters WHERE id = :id"
            until(lambda: made.world.rows(row, id=bad)[0].attention == "attempts", "a person is asked", within_s=200)
            assert made.world.rows(row, id=bad)[0].attempts > ATTEMPTS
            states = made.world.rows("SELECT state FROM operations WHERE resource_id = :id", id=bad)
            assert [one.state for one in states] == ["needs_attention"]
            asked = made.world.rows(ASKED, id=good)
            assert asked == [], f"others share the fate of the poisoned: {asked}"
            made.until_running(good)
        finally:
            stopping.set()
            keeper.join()
        poison.unlink()
        made.another_worker("worker-healed")  # the last one ended with the thread that started it
        made.delete(bad)
        made.delete(good)
        made.until_clean()
        assert made.broken() == []
