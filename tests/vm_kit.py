"""
Virtual machines under emulation behind sushy-tools' Redfish emulator: they boot what their controller was told, or do not.

One at a time on a machine, in a folder and on ports of its own, stopped and deleted at the end. What they boot is built once and kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qsl

import pytest

from controlplane.local.addresses import free_port, port_is_free
from tests import kits
from tests.redfish_kit import system_id

KIT = kits.KITS / "redfish"
BUILT = kits.CACHE / "vm"
MACHINE = Path(__file__).resolve().parent / "vm" / "machine"
ACCOUNT = ("admin", "kit secret 1")
INSTALL_S = 900.0
HOST = "10.0.2.2"
"""This machine's loopback, as a guest of QEMU's user-mode network sees it."""
PIECE_BYTES = 1024 * 1024

ENABLED = pytest.mark.skipif(os.environ.get("CONTROLPLANE_VM") != "1", reason="takes minutes: runs with `make test-vm`")
Found = TypeVar("Found")


def say(words: str, since: float | None = None) -> None:
    """
    The words are shown as they happen (`pytest -s`), with the seconds since.
    """
    took = "" if since is None else f"{time.monotonic() - since:7.1f} s  "
    print(f"  {took}{words}", flush=True)


@dataclass
class Files:
    """
    A folder served over HTTP on loopback, and what was posted there.
    """

    folder: Path
    """What lies here is served."""
    port: int
    """On 127.0.0.1."""
    calls: list[dict[str, str]] = field(default_factory=list)
    """Forms in the order they came."""

    @property
    def url(self) -> str:
        """
        As this machine and its controllers see it.
        """
        return f"http://127.0.0.1:{self.port}"

    @property
    def guest_url(self) -> str:
        """
        As a guest sees it.
        """
        return f"http://{HOST}:{self.port}"


@contextmanager
def serving_files(folder: Path, port: int) -> Iterator[Files]:
    """
    The folder is served until the end of the block.
    """
    files = Files(folder, port)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(send=False)

        def do_GET(self) -> None:
            self._answer(send=True)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            files.calls.append(dict(parse_qsl(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _answer(self, *, send: bool) -> None:
            path = folder / self.path.lstrip("/")
            if not path.is_file() or ".." in self.path:
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(path.stat().st_size))
            self.end_headers()
            if send:
                with path.open("rb") as source:
                    shutil.copyfileobj(source, self.wfile, PIECE_BYTES)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@dataclass(frozen=True)
class VirtualMachine:
    """
    One machine, powered off, and its controller.
    """

    base: Path
    """Everything of it is below this folder."""
    bmc_url: str
    """Root of its controller."""
    system: str
    """The controller's name of it."""
    files: Files
    """What it can fetch, and where it may call."""
    forwarded: Mapping[int, int]
    """Its TCP ports, and those of this machine that lead there."""

    def console(self) -> str:
        """
        What it has written to its serial line so far.
        """
        logs = (self.base / "vm" / "serial").glob("*.log")
        return "".join(log.read_text("utf-8", "replace") for log in logs)

    def read_disk(self, number: int, length: int) -> bytes:
        """
        The first bytes of its disk, read from outside while it is off.
        """
        disk = sorted((self.base / "vm" / "disks").glob("*.qcow2"))[number]
        command = ["qemu-img", "dd", "-f", "qcow2", "-O", "raw", "bs=1M", f"count={length // PIECE_BYTES}", f"if={disk}"]
        out = self.base / "disk.raw"
        subprocess.run([*command, f"of={out}"], check=True, capture_output=True)
        found = out.read_bytes()
        out.unlink()
        return found

    def call(self, stage: str, within_s: float) -> dict[str, str]:
        """
        The first call of that stage that it makes.
        """
        return until(
            lambda: next((one for one in self.files.calls if one.get("stage") == stage), None),
            within_s,
            lambda: f"no call {stage!r}: {self.files.calls}; console: {self.console()[-1500:]}",
        )


def until(look: Callable[[], Found | None], within_s: float, why: Callable[[], str], pause_s: float = 0.3) -> Found:
    """
    What was looked for, once it is there.
    """
    pause, end_at = threading.Event(), time.monotonic() + within_s
    while True:
        found = look()
        if found is not None:
            return found
        assert time.monotonic() < end_at, why()
        pause.wait(pause_s)


@contextmanager
def running_vm(
    *, memory_mib: int, disks: int = 1, ports: tuple[int, ...] = (22,), netboot: bool = False
) -> Iterator[VirtualMachine]:
    """
    A machine that lives as long as the block, off at first, with empty disks. With `netboot` its network offers `boot.ipxe` of its files.
    """
    _ensure_installed()
    with (BUILT / "machine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep()
        base = Path(tempfile.mkdtemp(prefix=f"cpv-{os.getpid()}-", dir="/var/tmp"))
        base.chmod(0o755)
        (base / "venv").symlink_to(kits.CACHE / "redfish" / "venv")
        (base / "www").mkdir()
        port, first = free_port(), _free_row(len(ports))
        with serving_files(base / "www", free_port()) as files:
            offered = {"TFTP": str(base / "www"), "BOOTFILE": f"{files.guest_url}/boot.ipxe"} if netboot else {}
            wanted = {
                "MEM": str(memory_mib),
                "FWD": str(first),
                "GUEST_PORTS": " ".join(map(str, ports)),
                "AUTH": ":".join(ACCOUNT),
            }
            try:
                _kit("vm.sh", "start", str(base), str(port), "1", **wanted, **offered)
                for number in range(1, disks):
                    _attach_disk(base, number)
                forwarded = {inside: first + number for number, inside in enumerate(ports)}
                yield VirtualMachine(base, f"http://127.0.0.1:{port}", system_id(0), files, forwarded)
            finally:
                _kit("vm.sh", "stop", str(base))
                shutil.rmtree(base)


def log_in(vm: VirtualMachine, key: Path, command: str) -> str:
    """
    What a command printed for the holder of the key.
    """
    options = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=240")
    words = [word for option in options for word in ("-o", option)]
    return _must(["ssh", "-q", *words, "-i", str(key), "-p", str(vm.forwarded[22]), "ops@127.0.0.1", command]).strip()


def kernel() -> Path:
    """
    The kernel that everything here boots: Debian's, signed.
    """
    return BUILT / "image" / "vmlinuz"


def memory_system() -> Path:
    """
    The initramfs of `machine/`: a Debian with the real cloud-init that lives in memory. Built once for each version of what builds it.
    """
    _ensure_installed()
    version = hashlib.sha256(b"".join(part.read_bytes() for part in sorted(MACHINE.iterdir()))).hexdigest()[:16]
    out = BUILT / "os" / version
    with (BUILT / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "initrd.gz").exists():
            started = time.monotonic()
            _must([str(MACHINE / "build.sh"), str(BUILT / "image" / "kernel"), str(out)])
            say("Debian in memory built", started)
    return out / "initrd.gz"


def deploy_disc(vm: VirtualMachine, name: str, *arguments: str, seeded: bool = True) -> str:
    """
    The URL of a bootable disc of the kit's small system, for BIOS and UEFI, unsigned; with a seed in it, or to look for one elsewhere.
    """
    seed = vm.base / f"{name}.seed"
    seed.mkdir()
    if seeded:
        (seed / "meta-data").write_text(f"instance-id: {name}\nlocal-hostname: {name}\n")
        (seed / "user-data").write_text("")
    _kit("node-iso.sh", str(BUILT), str(vm.files.folder / f"{name}.iso"), str(seed), *arguments)
    return f"{vm.files.url}/{name}.iso"


def signed_disc(vm: VirtualMachine, name: str, *arguments: str) -> str:
    """
    The URL of a disc with the same system, started by loaders and a kernel that firmware with the usual keys trusts; UEFI only.
    """
    _must([str(MACHINE.parent / "signed-disc.sh"), str(BUILT), str(vm.files.folder / f"{name}.iso"), *arguments])
    return f"{vm.files.url}/{name}.iso"


def disk_image(vm: VirtualMachine, *arguments: str) -> Path:
    """
    A whole disk that boots the kit's small system by UEFI, served as `golden.raw`.
    """
    image = vm.files.folder / "golden.raw"
    _kit("disk-image.sh", str(BUILT), str(image), *arguments)
    return image


def memory_disk(folder: Path, *arguments: str) -> bytes:
    """
    An image of a whole disk that starts the memory system by UEFI, with these kernel arguments.
    """
    image = folder / "memory.raw"
    _must([str(MACHINE.parent / "image-disk.sh"), str(kernel()), str(memory_system()), str(image), *arguments])
    content = image.read_bytes()
    image.unlink()
    return content


def agent_ramdisk() -> tuple[Path, ...]:
    """
    Kernel, ramdisk and boot partition with the real ironic-python-agent, built once.
    """
    _ensure_installed()
    home = BUILT / "ironic"
    home.mkdir(exist_ok=True)
    for part in ("venv", "bin"):
        if not (home / part).is_symlink():
            (home / part).symlink_to(kits.CACHE / "ironic" / part)
    made = tuple(BUILT / "www" / name for name in ("ipa-kernel", "ipa-ramdisk.gz", "esp.img"))
    with (BUILT / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(one.exists() for one in made):
            started = time.monotonic()
            _must([str(kits.KITS / "ironic" / "ramdisk.sh"), str(BUILT)])
            say("agent ramdisk built", started)
    return made


def _ensure_installed() -> None:
    if not (KIT / "vm.sh").is_file():
        kits.unusable("virtual machine", f"{KIT} is not there")
    if os.geteuid() != 0:
        kits.unusable("virtual machine", "only root can install and start what it needs")
    BUILT.mkdir(parents=True, exist_ok=True)
    redfish = kits.CACHE / "redfish"
    redfish.mkdir(exist_ok=True)
    with (redfish / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (BUILT / "venv").is_symlink():
            (BUILT / "venv").symlink_to(redfish / "venv")
        programs = ("qemu-system-x86_64", "libvirtd", "virsh", "xorriso", "grub-mkrescue", "busybox")
        if any(shutil.which(one) is None for one in programs) or not list(redfish.glob("venv/lib/*/site-packages/libvirt.py")):
            started = time.monotonic()
            _try([str(KIT / "install.sh"), str(redfish), "vm"])
            say("QEMU, libvirt and the emulator installed", started)
        if shutil.which("mmdebstrap") is None:
            _try(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"])
        _try([str(KIT / "image.sh"), str(BUILT)])


def _attach_disk(base: Path, number: int) -> None:
    disk = base / "vm" / "disks" / f"more-{number}.qcow2"
    _must(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "6G"])
    disk.chmod(0o666)
    socket = f"qemu:///session?socket={base}/vm/run/libvirt/libvirt-sock"
    target = f"vd{chr(ord('a') + number)}"
    how = ["--targetbus", "virtio", "--driver", "qemu", "--subdriver", "qcow2", "--config"]
    _must(["virsh", "-q", "-c", socket, "attach-disk", "gpu-node-0000", str(disk), target, *how])


def _free_row(count: int) -> int:
    """
    The first of so many ports in a row that are free now.
    """
    while True:
        first = free_port()
        if all(port_is_free(first + number) for number in range(1, count)):
            return first


def _sweep() -> None:
    """
    What a killed test left running is stopped and deleted.
    """
    for left in Path("/var/tmp").glob("cpv-*"):
        pid = left.name.split("-")[1]
        if left.is_dir() and not Path(f"/proc/{pid}").exists():
            subprocess.run([KIT / "vm.sh", "stop", left], check=False, capture_output=True, timeout=100)
            shutil.rmtree(left, ignore_errors=True)


def _kit(script: str, *arguments: str, **environment: str) -> str:
    return _must([str(KIT / script), *arguments], **environment)


def _must(command: list[str], **environment: str) -> str:
    done = _run(command, **environment)
    assert done.returncode == 0, f"{' '.join(command)}: {(done.stdout + done.stderr)[-800:]}"
    return done.stdout


def _try(command: list[str]) -> None:
    done = _run(command, DEBIAN_FRONTEND="noninteractive")
    if done.returncode:
        kits.unusable("virtual machine", f"{command[0]} failed: {(done.stdout + done.stderr)[-300:]}")


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    # To files, not pipes: what the scripts start outlives them and keeps what it inherited open.
    with tempfile.TemporaryFile("w+") as out:
        code = subprocess.run(
            command,
            env={**os.environ, **environment},
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=INSTALL_S,
        ).returncode
        out.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), "")
