"""
`controlplane up` as a newcomer runs it: the first time, again, killed in the middle, and on servers that exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.local import addresses, spawn
from controlplane.local.postgres import throwaway_postgres
from controlplane.local.supervisor import ChildSpec, Supervisor
from controlplane.local.valkey import EmbeddedValkey

PATIENCE_S = 90.0
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


class Place:
    """A data directory and a port: one deployment."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = folder / "data"
        self.port = addresses.free_port()
        self.environment = ENVIRONMENT | {"DATA_DIR": str(self.data_dir), "PORT": str(self.port), "WORKERS": "1"}

    def up_once(self, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the main job and end."""
        return subprocess.run(
            [sys.executable, "-m", "controlplane.cli", "up"],
            env=self.environment | {"ONCE": "1"} | more,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    @contextlib.contextmanager
    def serving(self) -> Iterator[subprocess.Popen[str]]:
        """Yield the process of an `up` that serves; it is gone afterwards."""
        with subprocess.Popen(
            [sys.executable, "-m", "controlplane.cli", "up"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                lines = []
                while "Ctrl-C stops everything" not in (line := process.stdout.readline()):
                    lines.append(line)
                    assert line, "it ended early:\n" + "".join(lines)
                yield process
            finally:
                process.kill()
                assert eventually(lambda: self.processes() == []), "children outlive a killed supervisor"

    def keys(self) -> dict[str, str]:
        """The keys that `up` keeps."""
        content = json.loads((self.data_dir / "keys.json").read_text())
        assert isinstance(content, dict)
        return content

    def get(self, path: str) -> Any:
        """What the API answers the tenant."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {self.keys()['tenant_key']}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def processes(self) -> list[int]:
        """Every process that works for this deployment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                if str(self.data_dir).encode() in words and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
        return found

    def child(self, word: str) -> int:
        """The one child whose command line has this word."""
        found = [each for each in self.processes() if word.encode() in Path(f"/proc/{each}/cmdline").read_bytes()]
        assert len(found) == 1, (word, found)
        return found[0]

    def is_ready(self) -> bool:
        """Whether the API says so."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A deployment whose first start is part of the first test that asks for it."""
    folder = Path(tempfile.mkdtemp(prefix="controlplane-up-"))
    folder.chmod(0o711)  # the servers' user must get through
    yield Place(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def first(place: Place) -> tuple[subprocess.CompletedProcess[str], float]:
    """The first start, and its seconds."""
    started_s = time.monotonic()
    return place.up_once(), time.monotonic() - started_s


def eventually(happened: Callable[[], bool]) -> bool:
    """Tell whether it happened in time."""
    until_s = time.monotonic() + PATIENCE_S
    while not happened():
        if time.monotonic() > until_s:
            return False
    return True


def test_first_start_does_the_main_job(place: Place, first: tuple[subprocess.CompletedProcess[str], float]) -> None:
    """From an empty directory to the output of a gang job and its cost, leaving no process behind; how long it took is printed."""
    done, seconds = first
    print(f"first start: {seconds:.1f} s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert len(set(re.findall(r"hello from (\S+)", done.stdout))) == 4
    assert "USD" in done.stdout
    assert place.processes() == []


@pytest.mark.usefixtures("first")
def test_secrets_stay_in_two_files(place: Place) -> None:
    """Keys and passwords are readable by their owner only, and in no log."""
    secrets: dict[str, str] = {}
    for name in ("secrets.json", "keys.json"):
        path = place.data_dir / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        secrets |= json.loads(path.read_text())
    hidden = [value for name, value in secrets.items() if not name.endswith(("_id", "site", "instance_type"))]
    for log in (place.data_dir / "logs").iterdir():
        text = log.read_text(errors="replace")
        assert not [each for each in hidden if each in text], log.name


@pytest.mark.usefixtures("first")
def test_second_start_goes_on_where_it_was(place: Place) -> None:
    """
    Nothing is ordered or minted twice; while it serves, others are refused and a crash of any child is repaired; SIGTERM ends all with 0.
    """
    before = place.keys()
    with place.serving() as process:
        assert place.keys() == before
        clusters = place.get(f"/v1/projects/{before['project_id']}/clusters")["items"]
        assert [each["name"] for each in clusters] == ["demo"]
        assert_others_are_refused(place, process.pid)
        for word in ("-m\0workers", "postgres\0-D", "-m\0controlplane.serving"):
            victim = place.child(word)
            os.kill(victim, signal.SIGKILL)
            assert spawn.wait_for_exit(victim, deadline_s=PATIENCE_S)
        assert eventually(place.is_ready)
        assert place.get(f"/v1/projects/{before['project_id']}/clusters")["items"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert place.processes() == []


def assert_others_are_refused(place: Place, owner: int) -> None:
    """A second one on the directory, or on the port, ends with a message that names what to change."""
    same_directory = place.up_once()
    assert same_directory.returncode == 1
    assert f"process {owner}" in same_directory.stdout
    other = Place(place.data_dir.parent / "other")
    same_port = other.up_once(PORT=str(place.port))
    assert same_port.returncode == 1
    assert "PORT=" in same_port.stdout


@pytest.mark.usefixtures("first")
def test_killed_supervisor_leaves_nothing_and_can_start_again(place: Place) -> None:
    """After kill -9 of `up` no process is left, and the next start works as if nothing had happened."""
    with place.serving() as process:
        process.kill()
    assert eventually(lambda: place.processes() == [])
    done = place.up_once()
    assert done.returncode == 0, done.stdout + done.stderr


def test_servers_that_exist_are_used() -> None:
    """With DATABASE_URL and BROKER_URL no server is started, and the main job runs on those."""
    folder = Path(tempfile.mkdtemp(prefix="controlplane-up-"))
    broker = EmbeddedValkey(folder / "broker", password="secret", log_path=folder / "broker.log")
    broker.prepare()
    supervisor = Supervisor(report=print)
    place = Place(folder)
    try:
        supervisor.start(
            ChildSpec(
                name="Valkey",
                command=broker.command(),
                environment=broker.environment,
                directory=broker.directory,
                log_path=broker.log_path,
                is_ready=broker.is_ready,
            )
        )
        with throwaway_postgres() as owner_url:
            done = place.up_once(DATABASE_URL=owner_url, BROKER_URL=broker.url())
        assert done.returncode == 0, done.stdout + done.stderr
        assert not (place.data_dir / "postgres").exists()
        assert not (place.data_dir / "valkey").exists()
    finally:
        supervisor.stop()
        shutil.rmtree(folder)
