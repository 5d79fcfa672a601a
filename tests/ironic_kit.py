"""
A real Ironic for tests: one a test process, with fake hardware, in a folder and on ports of its own, stopped and deleted at the end.

Skips with a reason where the kit is absent or cannot be used; with CONTROLPLANE_CI=1 it fails instead.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.providers.adapters.ironic.adapter import IronicAdapter, build
from controlplane.providers.registry import AdapterInput
from tests.kits import CACHE, KITS, unusable

KIT = KITS / "ironic"
INSTALLED = CACHE
PORTS = range(18130, 18150, 2)
DEPLOYMENT = "test"
API = {"X-OpenStack-Ironic-API-Version": "1.115"}
FAKES = ("boot", "deploy", "inspect", "bios", "raid", "firmware", "vendor", "management", "power", "rescue")
STEPS = ({"interface": "vendor", "step": "log_passthrough"}, {"interface": "bios", "step": "factory_reset", "proves": "disk_wiped"})
PATIENCE_S = 30.0
POLL_S = 0.1


@dataclass(frozen=True)
class IronicKit:
    """
    A running Ironic and how to reach it.
    """

    base: Path
    """Everything of it is below this folder."""
    port: int
    """Of its API."""
    http: httpx.Client
    """An administrator's client."""
    patience_s: float = PATIENCE_S
    """Longest that a change of a node may take."""

    @property
    def url(self) -> str:
        """
        Of its API.
        """
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, content: Any = None) -> Any:
        """
        What Ironic answered to an administrator; it was a success.
        """
        answer = self.http.request(method, f"/v1/{path}", json=content)
        assert answer.status_code < 400, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def node(self, name: str) -> dict[str, Any]:
        """
        The node as an administrator sees it.
        """
        said: dict[str, Any] = self.call("GET", f"nodes/{name}")
        return said

    def until(self, name: str, good: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
        """
        The node once it is good.
        """
        ends_at = time.monotonic() + self.patience_s
        while not good(seen := self.node(name)):
            assert time.monotonic() < ends_at, f"{name}: {seen['provision_state']}, {seen['last_error']}"
            time.sleep(POLL_S)
        return seen

    def go(self, name: str, target: str, state: str, **more: Any) -> None:
        """
        An administrator has moved the node into the state.
        """
        self.call("PUT", f"nodes/{name}/states/provision", {"target": target, **more})
        self.until(name, lambda seen: seen["provision_state"] == state and seen["reservation"] is None)

    def make(self, name: str) -> None:
        """
        A free node of fake hardware, off, with 8 GPUs by its properties.
        """
        fakes = {f"{one}_interface": "fake" for one in FAKES}
        properties = {"gpus": 8, "gpu_model": "H100-SXM5-80GB", "memory_mb": 2097152, "cpus": 192}
        place = {"region": "eu", "block": "b1", "leaf": "l1", "rack": "r1"}
        wanted = {"name": name, "driver": "fake-hardware", "resource_class": "hgx-h100-8", "properties": properties, "extra": place}
        self.call("POST", "nodes", {**wanted, **fakes})
        self.go(name, "manage", "manageable")
        self.call("PUT", f"nodes/{name}/states/power", {"target": "power off"})
        self.until(name, lambda seen: seen["power_state"] == "power off" and seen["reservation"] is None)
        self.go(name, "provide", "available")

    def drop(self, name: str) -> None:
        """
        The node is forgotten, whatever it was doing.
        """
        self.until(name, lambda seen: seen["reservation"] is None)
        self.call("PUT", f"nodes/{name}/maintenance", {})
        self.call("DELETE", f"nodes/{name}")

    def config(self) -> dict[str, Any]:
        """
        As an operator would register this Ironic.
        """
        pointers = {name: f"/extra/{name}" for name in ("region", "block", "leaf", "rack")}
        return {
            "url": self.url,
            "site": "ams1",
            "page_size": 2,
            "images": {"default": {}},
            "wipe": {"kind": "manual", "steps": list(STEPS)},
            "positions": pointers,
        }

    def adapter(self, **config: Any) -> IronicAdapter:
        """
        An adapter registered for this Ironic; keyword arguments replace parts of the config.
        """
        return build(
            AdapterInput(
                provider_id="prv_ironic",
                config={**self.config(), **config},
                secrets={},
                deployment=DEPLOYMENT,
                now=lambda: datetime.now(UTC),
            )
        )


@contextmanager
def running_kit(*, patience_s: float = PATIENCE_S, **settings: str) -> Iterator[IronicKit]:
    """
    An Ironic that lives as long as the block; settings are named as in its environment (`OS_FAKE__DEPLOY_DELAY`).
    """
    _ensure_installed()
    _sweep()
    with _own_port() as port:
        base = Path(tempfile.mkdtemp(prefix=f"cp-ironic-{os.getpid()}-", dir="/tmp"))
        home = base / "ironic"
        home.mkdir(parents=True)
        for part in ("venv", "bin"):
            (home / part).symlink_to(INSTALLED / "ironic" / part)
        _copy_schema(home / "state" / "ironic.sqlite")
        _run("start", base, port, **settings)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=API, timeout=30, trust_env=False, verify=False) as http:
                yield IronicKit(base, port, http, patience_s)
        finally:
            _run("stop", base, port)
            shutil.rmtree(base)


@cache
def session_kit() -> IronicKit:
    """
    The test process's Ironic; stopped and deleted when the process ends.
    """
    stack = ExitStack()
    kit = stack.enter_context(running_kit())
    atexit.register(stack.close)
    return kit


def _ensure_installed() -> None:
    if not KIT.exists():
        unusable("Ironic", "the kit is not beside this checkout")
    if (INSTALLED / "ironic" / "venv" / "bin" / "ironic").exists() and (INSTALLED / "ironic" / "bin" / "mkisofs").exists():
        return
    if os.geteuid() != 0:
        unusable("Ironic", "it is not installed and only root can install what it calls")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    with (INSTALLED / "ironic.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([KIT / "install.sh", INSTALLED], check=False, capture_output=True, text=True, timeout=290)
    if done.returncode:
        unusable("Ironic", f"it cannot be installed: {done.stderr[-300:]}")


def _copy_schema(to: Path) -> None:
    """
    An empty database is in its place. The first to need it makes it: that takes longer than Ironic's whole start.
    """
    with (INSTALLED / "ironic.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        venv = INSTALLED / "ironic" / "venv"
        made = venv / "empty.sqlite"
        if not made.exists():
            conf, raw = venv / "empty.conf", venv / "empty.part"
            raw.unlink(missing_ok=True)
            conf.write_text(f"[database]\nconnection = sqlite:///{raw}\n")
            command = [venv / "bin" / "ironic-dbsync", "--config-file", conf, "create_schema"]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
            if done.returncode:
                unusable("Ironic", f"its database cannot be made: {done.stderr[-300:]}")
            raw.rename(made)
    to.parent.mkdir()
    shutil.copyfile(made, to)


def _sweep() -> None:
    """
    What killed test processes left running is stopped and deleted.
    """
    for left in Path("/tmp").glob("cp-ironic-*"):
        pid = left.name.split("-")[2]
        if left.is_dir() and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            subprocess.run([KIT / "ironic.sh", "stop", left, "0"], check=False, capture_output=True, timeout=100)
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _own_port() -> Iterator[int]:
    for port in PORTS:
        with Path(f"/tmp/controlplane-ironic-{port}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield port
            return
    unusable("Ironic", f"{len(PORTS)} of them run already")


def _run(what: str, base: Path, port: int, **settings: str) -> None:
    env = {**os.environ, "SYNC": "900", **settings}  # a power check of all nodes would lock them under a test
    done = subprocess.run(
        [KIT / "ironic.sh", what, base, str(port)],
        env=env,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
    )
    if done.returncode:
        pytest.fail(f"Ironic does not {what}: {(done.stdout + done.stderr)[-600:]}")
