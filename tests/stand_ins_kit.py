"""
Hosts whose image has stand-ins for kubeadm, a kubelet, etcd, containerd and k3s, the real kubectl, and what keeps the objects of the one
cluster that they make: the Kubernetes kit's emulator, at the hosts' gateway.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests import hosts_kit, kubernetes_kit
from tests.kits import CACHE
from tests.kubernetes_kit import KubernetesKit
from tests.stand_ins.machine import HOME, STORE_PORT, STORE_TOKEN, put

TESTS = Path(__file__).resolve().parent
SOURCES = (*sorted((TESTS / "stand_ins").glob("*.py")), TESTS / "unit" / "rendering" / "kubernetes_types.py")
PROGRAMS = {
    "usr/bin/kubeadm": "kubeadm",
    "usr/bin/kubelet": "kubelet",
    "usr/bin/kube-apiserver": "api_server",
    "usr/bin/etcd": "etcd",
    "usr/bin/containerd": "containerd",
    "usr/local/bin/k3s": "k3s",
}
PROGRAM = """#!/usr/bin/python3
# No {name}: a stand-in for tests. What it does stands in {home}/tests/stand_ins/{module}.py.
import sys
sys.path.insert(0, "{home}")
from tests.stand_ins.{module} import main
main(sys.argv[1:])
"""
UNITS = {
    "containerd.service": """[Unit]
Description=Stand-in for containerd
[Service]
Type=notify
ExecStart=/usr/bin/containerd
Restart=always
[Install]
WantedBy=multi-user.target
""",
    # as the packages of kubernetes.io have it, with their drop-in
    "kubelet.service": """[Unit]
Description=Stand-in for a kubelet
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
""",
    "kubelet.service.d/10-kubeadm.conf": """[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \\
 --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
""",
}
VERSION = "1.36.2"
MARK = "stand-ins"
PIECE_BYTES = 65536


@contextmanager
def image() -> Iterator[None]:
    """
    Labs that start within the block boot from an image with the stand-ins: the hosts kit's own, its files by hard links, and ours beside.
    """
    hosts_kit._ensure_installed()
    tool = kubernetes_kit.kubectl()
    plain = Path(hosts_kit.run("base", timeout_s=900))
    words = [PROGRAM, *PROGRAMS, *UNITS.values(), str(plain), VERSION, str(tool.stat().st_size)]
    content = sha256("".join([*words, *(one.read_text("utf-8") for one in SOURCES)]).encode()).hexdigest()[:12]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTS_EXTRA_PACKAGES", f"{MARK}-{content}")  # the kit's name for an image follows from its packages
        asked = f"import runpy; print(runpy.run_path({str(hosts_kit.HOSTS)!r})['base_root']())"
        told = subprocess.run(
            [sys.executable, "-c", asked], env=hosts_kit.environment(), capture_output=True, text=True, check=True
        )
        _build(plain, Path(told.stdout.strip()), tool)
        yield


def _build(plain: Path, root: Path, tool: Path) -> None:
    with (CACHE / "hosts.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so nobody has a host that runs on what is removed
        if root.exists():
            return
        for old in root.parent.parent.glob(f"*/{MARK}"):
            shutil.rmtree(old.parent)
        fresh = root.with_name("rootfs.new")
        shutil.rmtree(fresh, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        (root.parent / MARK).touch()
        subprocess.run(["cp", "-al", str(plain), str(fresh)], check=True)
        for path, text, mode in _files():
            put(fresh / path, text, mode)
        _link(tool, fresh / "usr/bin/kubectl")
        fresh.rename(root)


def _files() -> Iterator[tuple[str, str, int]]:
    home = str(HOME).lstrip("/")
    for path, module in PROGRAMS.items():
        yield path, PROGRAM.format(name=Path(path).name, home=HOME, module=module), 0o755
    for one in SOURCES:
        yield f"{home}/tests/{one.relative_to(TESTS)}", one.read_text("utf-8"), 0o644
    yield f"{home}/version", f"{VERSION}\n", 0o644
    for name, text in UNITS.items():
        yield f"usr/lib/systemd/system/{name}", text, 0o644


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextmanager
def objects(gateway: str) -> Iterator[KubernetesKit]:
    """
    An API without nodes that keeps a cluster's objects: nobody comes in but the server on its control plane, who says for whom it asks.
    """
    more = ("extensions",)
    with kubernetes_kit.kubernetes_kit(nodes=0, kueue=False, token=STORE_TOKEN, more=more) as kit:
        let_act(kit.emulator)
        with socket.create_server((gateway, STORE_PORT)) as listener:
            receiver = threading.Thread(target=_receive, args=(listener, kit.handle.port), daemon=True)
            receiver.start()
            try:
                yield kit
            finally:
                with suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                receiver.join(10)


def let_act(emulator: Any) -> None:
    """
    The administrator may ask in anybody's name, by the headers that Kubernetes has for it; the kit knows none.
    """
    own = emulator.who

    def who(request: Any) -> tuple[str, list[str]]:
        user, groups = own(request)
        named = request.headers.get("Impersonate-User")
        if named is None or "system:masters" not in groups:
            return user, groups
        return named, list(request.headers.getall("Impersonate-Group", []))

    emulator.who = who


def _receive(listener: socket.socket, port: int) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(caller, port), daemon=True).start()


def _join(caller: socket.socket, port: int) -> None:
    """One connection: this thread carries what comes in, another what goes out; both ends are closed when either is."""
    with suppress(OSError), caller, socket.create_connection(("127.0.0.1", port)) as server:
        back = threading.Thread(target=_carry, args=(server, caller), daemon=True)
        back.start()
        _carry(caller, server)
        back.join()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
