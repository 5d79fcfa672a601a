"""
A real Redfish emulator (sushy-tools) for tests: on a port of its own, stopped at the end, installed once for all.

Skips with a reason where the kit is absent or cannot be installed; with CONTROLPLANE_CI=1 it fails instead.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests import kits

KIT = kits.KITS / "redfish"
BASE = kits.CACHE / "redfish"
PORTS = range(18100, 18110)
ACCOUNT = ("admin", "kit secret 1")
INSTALL_S = 240


@dataclass(frozen=True)
class RedfishKit:
    """
    A running emulator.
    """

    url: str
    """Its root."""
    systems: tuple[str, ...]
    """Ids of its systems."""


def system_id(number: int) -> str:
    """
    The id of the kit's system of that number, the same with every driver.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu-node-{number:04d}.example"))


@contextmanager
def running_kit(*, systems: int, driver: str = "fake") -> Iterator[RedfishKit]:
    """
    An emulator of so many systems that asks for an account, as long as the block lasts.

    Driver `test` adds BIOS settings and SimpleUpdate, and needs libvirt's Python module in the kit: `install.sh BASE vm`.
    """
    if not (KIT / "fake.sh").is_file():
        kits.unusable("Redfish emulator", f"{KIT} is not there")
    with ExitStack() as stack:
        _install(stack)
        if driver == "test" and not list((BASE / "venv").glob("lib/*/site-packages/libvirt.py")):
            pytest.skip(f"no libvirt in the kit: {KIT}/install.sh {BASE} vm")
        port = _free_port(stack)
        environment = os.environ | {"AUTH": ":".join(ACCOUNT), "DRIVER": driver}
        started = _run("fake.sh", "start", str(BASE), str(port), str(systems), env=environment, limit_s=60)
        stack.callback(_run, "fake.sh", "stop", str(BASE), str(port), env=environment, limit_s=30)
        if started.returncode != 0:
            kits.unusable("Redfish emulator", f"it did not start: {started.stderr[-300:]}")
        yield RedfishKit(f"http://127.0.0.1:{port}", tuple(system_id(number) for number in range(systems)))


@contextmanager
def recorded(tree: str) -> Iterator[str]:
    """
    The url of a controller that answers as the recorded one did, and takes every change without making it.
    """
    if not (KIT / "static.sh").is_file():
        kits.unusable("Redfish recording", f"{KIT} is not there")
    with ExitStack() as stack:
        _install(stack)
        port = _free_port(stack)
        started = _run("static.sh", "start", str(BASE), str(port), tree, env=dict(os.environ), limit_s=60)
        stack.callback(_run, "static.sh", "stop", str(BASE), str(port), env=dict(os.environ), limit_s=30)
        if started.returncode != 0:
            kits.unusable("Redfish recording", f"it did not start: {started.stderr[-300:]}")
        yield f"http://127.0.0.1:{port}"


def emulator() -> Path:
    """
    The emulator's command, installed.
    """
    with ExitStack() as stack:
        _install(stack)
    return BASE / "venv" / "bin" / "sushy-emulator"


def _install(stack: ExitStack) -> None:
    """
    One process installs, the others wait for it.
    """
    try:
        BASE.mkdir(parents=True, exist_ok=True)
        lock = stack.enter_context((BASE / "install.lock").open("w"))
    except OSError as error:
        kits.unusable("Redfish emulator", f"{BASE} cannot be written: {error}")
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (BASE / "venv" / "bin" / "sushy-emulator").exists():
        done = _run("install.sh", str(BASE), env=dict(os.environ), limit_s=INSTALL_S)
        if done.returncode != 0:
            kits.unusable("Redfish emulator", f"it could not be installed: {(done.stdout + done.stderr)[-300:]}")
    fcntl.flock(lock, fcntl.LOCK_UN)


def _free_port(stack: ExitStack) -> int:
    for port in PORTS:
        lock: IO[str] = stack.enter_context((BASE / f"port-{port}.lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return port
    return kits.unusable("Redfish emulator", "all its ports are taken")


def _run(script: str, *arguments: str, env: dict[str, str], limit_s: float) -> subprocess.CompletedProcess[str]:
    command = [str(KIT / script), *arguments]
    try:
        return subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{script} took longer than {limit_s} s")
