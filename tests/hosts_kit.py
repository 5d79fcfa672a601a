"""
Light hosts with a real systemd and a real cloud-init behind a Redfish controller, for tests: a lab of its own, on a network of its
own, gone at the end.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import httpx
import pytest

from controlplane.local.addresses import free_port
from tests import kits, redfish_kit

KIT = kits.KITS / "hosts"
HOSTS = KIT / "hosts"
CACHE = kits.CACHE
PACKAGES = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "dnsmasq": "dnsmasq-base",
    "ssh": "openssh-client",
}
LAB = "cpm"
SUBNET = "10.98.37"


@dataclass(frozen=True)
class Host:
    """
    One host of the lab.
    """

    name: str
    """In the lab."""
    uuid: str
    """The controller's name of it."""
    address: str
    """Its own."""


@dataclass(frozen=True)
class Lab:
    """
    Hosts, powered off, and the controller in front of them.
    """

    hosts: tuple[Host, ...]
    """In order of name."""
    bmc_url: str
    """Root of the controller that all of them share."""

    @property
    def gateway(self) -> str:
        """
        This machine, as the hosts see it.
        """
        return f"{SUBNET}.1"

    def run(self, *arguments: str, check: bool = True) -> str:
        """
        What a command of the kit printed.
        """
        return run(*arguments, check=check)

    def on(self, host: Host, command: str) -> str:
        """
        What a shell command printed inside the host, run as root from outside.
        """
        return run("exec", host.name, command)


def environment() -> dict[str, str]:
    """
    By which the kit's commands find this lab.
    """
    return {
        **os.environ,
        "HOSTS_BASE": str(CACHE / "hosts"),
        "HOSTS_LAB": LAB,
        "HOSTS_SUBNET": f"{SUBNET}.0/24",
        "HOSTS_PREFIX": "cpm",
    }


def run(*arguments: str, check: bool = True, timeout_s: float = 280.0) -> str:
    """
    What a command of the kit printed; it has succeeded unless `check` is off.
    """
    command = [str(HOSTS), *arguments]
    done = subprocess.run(
        command, env=environment(), check=False, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )
    assert not check or done.returncode == 0, f"hosts {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


@contextmanager
def running_lab(count: int) -> Iterator[Lab]:
    """
    A lab that lives as long as the block; one at a time on a machine.
    """
    _ensure_installed()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "hosts.lock").open("w") as lock, ExitStack() as stack:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("destroy", check=False)  # what a killed test left behind
        stack.callback(run, "destroy", check=False)
        listed = json.loads(run("up", str(count), "--dhcp", "--gpus", "8", "--json"))
        hosts = tuple(Host(one["name"], one["uuid"], str(one["ip"]).split("/")[0]) for one in listed)
        url = stack.enter_context(_controller())
        yield Lab(hosts, url)


@contextmanager
def _controller() -> Iterator[str]:
    """
    sushy-tools' emulator in front of the lab.
    """
    port = free_port()
    emulator = redfish_kit.emulator()
    log = CACHE / f"sushy-{port}.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [str(emulator), "--config", str(KIT / "sushy_conf.py"), "-i", "127.0.0.1", "-p", str(port)],
            env=environment(),
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, child, log)
        yield url
    finally:
        child.terminate()
        child.wait(20)
        log.unlink()


def _wait_for(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    pause, end_at = threading.Event(), time.monotonic() + 60
    while True:
        try:
            if httpx.get(f"{url}/redfish/v1/Systems", timeout=10).is_success:
                return
        except httpx.TransportError:
            pass
        assert child.poll() is None, f"the controller ended: {log.read_text()[-500:]}"
        assert time.monotonic() < end_at, f"the controller does not answer: {log.read_text()[-500:]}"
        pause.wait(0.1)


@cache
def _ensure_installed() -> None:
    if not HOSTS.exists():
        kits.unusable("host", "the kit is not beside this checkout")
    if os.geteuid() != 0:
        kits.unusable("host", "only root can start one")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
        if missing:
            _try("apt-get", "update", "-qq")
            _try("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)
    said = subprocess.run([str(HOSTS), "doctor"], env=environment(), check=False, capture_output=True, text=True, timeout=60)
    if said.returncode:
        kits.unusable("host", f"this machine cannot run one: {said.stdout[-500:]}")


def _try(*command: str) -> None:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=280, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    )
    if done.returncode:
        kits.unusable("host", f"{command[0]} failed: {done.stderr[-300:]}")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """
    Four hosts for the tests of one file. Not for longer: another process of the same run may be waiting for its turn.
    """
    with running_lab(4) as running:
        yield running
