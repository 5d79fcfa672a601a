"""
A real fabric for tests: a spine and two leaves with FRR, four machines and a management controller, each a network namespace.

FRR is the installed one, or Debian's package unpacked beside the machine's own files: a mount namespace shows it, and only in there.
Nothing of the lab is outside its namespaces; what a killed run left behind is removed at the start of the next. Skips with a reason
where it cannot run; with CONTROLPLANE_CI=1 it fails instead.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from controlplane.providers.registry import AdapterInput, build_adapter
from tests import kits
from tests.fabric_tools import installed_tools

Made = TypeVar("Made")
PREFIX = "fxl"
SLOTS = 8
LEAVES = ("l1", "l2")
PORTS = ("p1", "p2")
BMC_ADDRESS = "10.97.9.2"
SERVICE_PORT = 7000
CLONE_NEWNET = 0x40000000
PEOPLE = {
    "passwd": "frr:x:964:964::/nonexistent:/usr/sbin/nologin\nsshd:x:963:65534::/run/sshd:/usr/sbin/nologin\n",
    "group": "frr:x:964:\nfrrvty:x:965:root,frr\n",
}
PAM = "auth sufficient pam_permit.so\naccount sufficient pam_permit.so\nsession sufficient pam_permit.so\n"
MOUNTS = """
set -e
[ ! -d "$1/usr" ] || mount -t overlay lab -o "lowerdir=$1/usr:/usr" /usr
mount -t overlay lab -o "lowerdir=$2/etc:/etc" /etc
echo ready
exec cat
"""


@dataclass(frozen=True)
class Machine:
    """
    One machine of the lab.
    """

    name: str
    """Its namespace is called after it."""
    switch: str
    """The leaf its cable ends at."""
    port: str
    """The leaf's port."""


MACHINES = tuple(Machine(f"m{leaf[1]}{port[1]}", leaf, port) for leaf in LEAVES for port in PORTS)


class FabricLab:
    """
    A running fabric. Every leaf has ports `p1` and `p2` with a machine each, `bmc0` with a management controller behind it, and `spine`.
    """

    def __init__(self, directory: Path, slot: int, tools: Path) -> None:
        self.directory = directory
        self.prefix = f"{PREFIX}{slot}-"
        self._tools = tools
        self._stack = ExitStack()
        self._answers: dict[str, str] = {}
        self.holder = 0

    def ns(self, name: str) -> str:
        """
        The namespace of a switch or a machine.
        """
        return self.prefix + name

    def sweep(self) -> None:
        """
        Nothing of this slot is left, of this run or of one that was killed.
        """
        listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
        for name in [line.split()[0] for line in listed.splitlines() if line.startswith(self.prefix)]:
            pids = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True).stdout.split()
            for pid in pids:
                if int(pid) != os.getpid():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """
        Switches and machines are cabled, FRR runs, every machine answers with its name on TCP; no tenant network exists.
        """
        self.sweep()
        self._stack.callback(self.sweep)
        self.directory.mkdir(mode=0o755)
        for name in ("s1", *LEAVES, "oob", *(one.name for one in MACHINES)):
            self.ip("netns", "add", self.ns(name))
            self.on(name, "ip", "link", "set", "lo", "up")
        for name in ("s1", *LEAVES):
            self.on(name, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        # Namespaces first: a mount namespace sees those that were there, and later ones only where the machine's mounts are shared.
        self.holder = self._stack.enter_context(_mount_namespace(self._tools, self.directory))
        for number, leaf in enumerate(LEAVES, 1):
            self._cable_leaf(leaf, number)
        for one in MACHINES:
            self._cable(one.name, "eth0", one.switch, one.port)
            self.on(one.name, "ip", "link", "set", "eth0", "up")
            self._answer(one.name)
        self._out_of_band()
        self._route()

    def stop(self) -> None:
        """
        Nothing is left of it.
        """
        self._stack.close()

    def inside(self, name: str) -> list[str]:
        """
        What to put before a command so that it runs on the switch, with FRR's programs in their places.
        """
        return ["nsenter", f"--mount=/proc/{self.holder}/ns/mnt", "ip", "netns", "exec", self.ns(name)]

    def door(self, name: str) -> list[str]:
        """
        The way to the switch that an adapter is given: it can be closed.
        """
        return [str(self.directory / name / "door"), *self.inside(name)]

    def close_door(self, name: str) -> None:
        """
        The switch cannot be reached any more.
        """
        (self.directory / name / "door").rename(self.directory / name / "closed")

    def open_door(self, name: str) -> None:
        """
        The switch can be reached again.
        """
        (self.directory / name / "closed").rename(self.directory / name / "door")

    def made_on(self, name: str) -> list[str]:
        """
        What the adapters have made on the switch and not removed.
        """
        return [line.split()[0] for line in self.on(name, "ip", "-br", "link").splitlines() if line.startswith(("cpb", "cpx"))]

    def on(self, name: str, *command: str) -> str:
        """
        What a command on a switch or a machine printed; it has succeeded.
        """
        return _run("ip", "netns", "exec", self.ns(name), *command)

    def ip(self, *words: str) -> str:
        """
        The same for `ip` on this machine.
        """
        return _run("ip", *words)

    def vtysh(self, name: str) -> list[str]:
        """
        The command that asks the switch's FRR, on the switch.
        """
        folder = str(self.directory / name)
        return ["vtysh", "--vty_socket", folder, "--config_dir", folder]

    def config(self, **more: Any) -> dict[str, Any]:
        """
        As an operator would register this fabric.
        """
        switches = {
            leaf: {
                "reach": {"kind": "exec", "argv_prefix": self.door(leaf)},
                "vtep": f"10.97.0.{number}",
                "ports": list(PORTS),
                "reserved": ["bmc0"],
                "uplinks": ["spine"],
                "vtysh": self.vtysh(leaf),
                "lock_file": str(self.directory / leaf / "lock"),
            }
            for number, leaf in enumerate(LEAVES, 1)
        }
        return {"switches": switches, "reserved_segments": [99], **more}

    def adapter(
        self, config: dict[str, Any] | None = None, *, secrets: dict[str, str] | None = None, deployment: str = "lab"
    ) -> Any:
        """
        An adapter of the fabric, built as in production.
        """
        given = AdapterInput(
            provider_id="prv_fabric",
            config=self.config() if config is None else config,
            secrets=secrets or {},
            deployment=deployment,
            now=lambda: datetime.now(UTC),
        )
        return build_adapter("frr-evpn", given)

    def address(self, machine: str, address: str, *routes: str) -> None:
        """
        The machine has this address and no other, and sends everything for `routes` out of its cable.
        """
        self.on(machine, "ip", "addr", "flush", "dev", "eth0")
        self.on(machine, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        for route in routes:
            self.on(machine, "ip", "route", "replace", route, "dev", "eth0")

    def asked(self, machine: str, address: str, *, within_s: float = 0.6) -> str:
        """
        The name of who answers at the address when the machine connects to it; empty for nobody within the time.
        """
        with _in_namespace(self.ns(machine), socket.socket) as connection:
            connection.settimeout(within_s)
            try:
                connection.connect((address, SERVICE_PORT))
                return connection.recv(64).decode()
            except OSError:
                return ""

    def ssh(self, name: str) -> tuple[str, str]:
        """
        An sshd on the switch's own loopback lets root in: the client's private key and the host key.
        """
        folder = self.directory / name
        for key in ("host", "client"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(folder / key))
        (folder / "allowed").write_text((folder / "client.pub").read_text(encoding="utf-8"), encoding="utf-8")
        settings = {"HostKey": folder / "host", "AuthorizedKeysFile": folder / "allowed", "ListenAddress": "127.0.0.1:22"}
        settings |= {"StrictModes": "no", "UsePAM": "no", "PidFile": "none", "PermitRootLogin": "yes", "AcceptEnv": "none"}
        (folder / "sshd.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()), encoding="utf-8")
        start = f"mount -t tmpfs -o mode=0755 lab /run && mkdir /run/sshd && exec /usr/sbin/sshd -f {folder}/sshd.conf"
        _run(*self.inside(name), "unshare", "--mount", "sh", "-c", start)
        kind, words, _ = (folder / "host.pub").read_text(encoding="utf-8").split()
        return (folder / "client").read_text(encoding="utf-8"), f"{kind} {words}"

    def from_inside(self, name: str, act: Callable[[], Made]) -> Made:
        """
        What the call returned, made with the switch's or machine's network as its own, children included.
        """
        return _in_namespace(self.ns(name), act)

    def send(self, machine: str, address: str) -> None:
        """
        The machine has sent a datagram to the address.
        """
        with _in_namespace(self.ns(machine), _datagrams) as sender, suppress(OSError):
            sender.sendto(machine.encode(), (address, SERVICE_PORT))

    @contextmanager
    def hearing(self, name: str) -> Iterator[Callable[[], list[str]]]:
        """
        A function that tells what datagrams have come to the machine, each once.
        """
        with _in_namespace(self.ns(name), _datagrams) as receiver:
            receiver.bind(("0.0.0.0", SERVICE_PORT))
            receiver.settimeout(0.3)

            def heard() -> list[str]:
                found = []
                with suppress(TimeoutError):
                    while True:
                        found.append(receiver.recv(64).decode())
                return found

            yield heard

    def _cable(self, name: str, device: str, far_name: str, far_device: str) -> None:
        self.ip(
            *("link", "add", device, "netns", self.ns(name), "type", "veth"),
            *("peer", "name", far_device, "netns", self.ns(far_name)),
        )

    def _cable_leaf(self, leaf: str, number: int) -> None:
        self._cable("s1", leaf, leaf, "spine")
        self.on(leaf, "ip", "addr", "add", f"10.97.0.{number}/32", "dev", "lo")
        self.on(leaf, "ip", "addr", "add", f"10.97.{number}.1/31", "dev", "spine")
        self.on(leaf, "ip", "link", "set", "spine", "up")
        self.on("s1", "ip", "addr", "add", f"10.97.{number}.0/31", "dev", leaf)
        self.on("s1", "ip", "link", "set", leaf, "up")

    def _out_of_band(self) -> None:
        """
        A management controller behind `bmc0` of the first leaf, on a bridge where the leaf has an address: it could route there.
        """
        self._cable("oob", "eth0", "l1", "bmc0")
        self.on("l1", "ip", "link", "add", "oob", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        self.on("l1", "ip", "link", "set", "bmc0", "master", "oob", "up")
        self.on("l1", "ip", "addr", "add", "10.97.9.1/24", "dev", "oob")
        self.on("l1", "ip", "link", "set", "oob", "up")
        self.on("oob", "ip", "addr", "add", f"{BMC_ADDRESS}/24", "dev", "eth0")
        self.on("oob", "ip", "link", "set", "eth0", "up")
        self.on("oob", "ip", "route", "add", "default", "via", "10.97.9.1")
        self._cable("l2", "bmc0", "s1", "oob2")
        self._answer("oob")
        self._answer("l1")

    def _answer(self, name: str) -> None:
        """
        Whoever connects to the machine, at any of its addresses, is told its name.
        """
        listener = self._stack.enter_context(_in_namespace(self.ns(name), socket.socket))
        listener.bind(("0.0.0.0", SERVICE_PORT))
        listener.listen(16)
        self._stack.enter_context(_serving(listener, name))

    def reboot(self, name: str, *, configured: bool = True) -> None:
        """
        The leaf has started anew: nothing that was made in its kernel since the lab started, nothing under `/run`, its ports shut, and FRR
        with the operator's configuration, or with none.
        """
        self.halt(name)
        for device in self.made_on(name):
            self.on(name, "ip", "link", "del", "dev", device)
        for port in PORTS:
            self.on(name, "ip", "link", "set", "dev", port, "down")
        shutil.rmtree(self.directory / name / "lock.turns", ignore_errors=True)
        self.start_frr(name, configured=configured)

    def halt(self, name: str) -> None:
        """
        The switch's FRR has ended, and so have its routes.
        """
        for daemon in ("bgpd", "zebra"):
            pid = int((self.directory / name / f"{daemon}.pid").read_text(encoding="utf-8"))
            os.kill(pid, signal.SIGTERM)
            until(lambda pid=pid: Path(f"/proc/{pid}/exe").exists(), lambda there: not there)  # type: ignore[misc]

    def start_frr(self, name: str, *, configured: bool = True) -> None:
        """
        FRR runs on the switch, with the operator's configuration or an empty one.
        """
        folder = self.directory / name
        (folder / "empty.conf").touch()
        wanted = folder / ("frr.conf" if configured else "empty.conf")
        where = ["--vty_socket", str(folder), "-z", str(folder / "zserv.api"), "-f", str(wanted)]
        for daemon, more in (("zebra", []), ("bgpd", ["-p", "179"])):
            _run(
                *self.inside(name),
                *(f"/usr/lib/frr/{daemon}", "-d", *where, "-i", str(folder / f"{daemon}.pid")),
                *("-u", "root", "-g", "root", "-P", "0", "--log", f"file:{folder / daemon}.log", *more),
            )

    def _route(self) -> None:
        neighbours = {
            "s1": [("10.97.1.1", 65001), ("10.97.2.1", 65002)],
            "l1": [("10.97.1.0", 65000)],
            "l2": [("10.97.2.0", 65000)],
        }
        numbers = {"s1": 65000, "l1": 65001, "l2": 65002}
        for name, peers in neighbours.items():
            folder = self.directory / name
            folder.mkdir()
            (folder / "vtysh.conf").touch()
            (folder / "door").write_text('#!/bin/sh\nexec "$@"\n', encoding="utf-8")
            (folder / "door").chmod(0o755)
            (folder / "frr.conf").write_text(_frr_config(name, numbers[name], peers), encoding="utf-8")
            self.start_frr(name)


@contextmanager
def running_lab() -> Iterator[FabricLab]:
    """
    A lab in a slot of its own; gone at the end.
    """
    tools = installed_tools()
    with _slot() as slot:
        lab = FabricLab(Path(tempfile.gettempdir()) / f"{PREFIX}{slot}", slot, tools)
        try:
            lab.start()
        except subprocess.CalledProcessError as error:
            lab.stop()
            kits.unusable("FRR fabric", f"{' '.join(error.cmd)}: {error.stderr}")
        try:
            yield lab
        finally:
            lab.stop()


def until(look: Callable[[], Made], good: Callable[[Made], object], *, within_s: float = 20.0) -> Made:
    """
    What was seen when it was good. Fails with what was last seen.
    """
    ends_at = time.monotonic() + within_s
    while True:
        seen = look()
        if good(seen):
            return seen
        assert time.monotonic() < ends_at, f"not within {within_s} s; last seen: {seen!r}"
        threading.Event().wait(0.05)


@contextmanager
def _slot() -> Iterator[int]:
    for number in range(SLOTS):
        gate = (Path(tempfile.gettempdir()) / f"{PREFIX}{number}.lock").open("w")
        try:
            fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            gate.close()
            continue
        with gate:
            yield number
        return
    kits.unusable("FRR fabric", "every slot for a lab is taken")


@contextmanager
def _mount_namespace(tools: Path, directory: Path) -> Iterator[int]:
    """
    The process that holds a mount namespace in which FRR, its accounts and its PAM service are in their places.
    """
    etc = directory / "etc"
    (etc / "pam.d").mkdir(parents=True)
    (etc / "pam.d" / "frr").write_text(PAM, encoding="utf-8")
    for name, more in PEOPLE.items():
        known = Path("/etc", name).read_text(encoding="utf-8")
        fresh = [line for line in more.splitlines(keepends=True) if f"\n{line.partition(':')[0]}:" not in known]
        (etc / name).write_text(known + "".join(fresh), encoding="utf-8")
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", MOUNTS, "sh", str(tools), str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stderr is not None
        if held.stdout.readline().strip() != "ready":
            kits.unusable("FRR fabric", f"no overlay mounts: {held.stderr.read()}")
        try:
            yield held.pid
        finally:
            held.kill()


def _datagrams() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _in_namespace(name: str, make: Callable[[], Made]) -> Made:
    """
    What was made in the network namespace; a socket stays there.
    """

    def enter() -> Made:
        handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            assert ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET) == 0, f"cannot enter {name}"
        finally:
            os.close(handle)
        return make()

    # Only this one thread changes its namespace, and it ends.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter).result()


@contextmanager
def _serving(listener: socket.socket, name: str) -> Iterator[None]:
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            ready.register(theirs, selectors.EVENT_READ)
            while not any(key.fileobj is theirs for key, _ in ready.select()):
                with suppress(OSError), listener.accept()[0] as connection:
                    connection.sendall(name.encode())

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ours.close()
        thread.join()
        theirs.close()


def _frr_config(name: str, number: int, peers: Sequence[tuple[str, int]]) -> str:
    addresses = [address for address, _ in peers]
    lines = [
        *("frr defaults datacenter", f"hostname {name}", f"router bgp {number}"),
        f" bgp router-id 10.97.0.{ {'s1': 100}.get(name) or name[1:] }",
        *(" no bgp ebgp-requires-policy", " no bgp default ipv4-unicast", " timers bgp 3 9"),
        *(f" neighbor {address} remote-as {remote}" for address, remote in peers),
        *(f" neighbor {address} timers connect 1" for address in addresses),
        *(
            " address-family ipv4 unicast",
            "  network " + f"10.97.0.{name[1:]}/32" if name in LEAVES else "  redistribute connected",
        ),
        *(f"  neighbor {address} activate" for address in addresses),
        *(" exit-address-family", " address-family l2vpn evpn"),
        *(f"  neighbor {address} activate" for address in addresses),
        *(["  advertise-all-vni"] if name in LEAVES else []),
        " exit-address-family",
    ]
    return "\n".join(lines) + "\n"


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
