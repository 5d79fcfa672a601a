"""
Hosts for tests of what is rendered: each a root file system, a /dev, a process tree and a host name of its own, all in memory, over the
installed Slurm or another release's chroot, on a network of their own. Nothing outside of them is written, and a host ends with the pipe
that its first process reads, also when the test process is killed.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from controlplane.rendering.slurm.files import Bundle

BOOT = r"""
set -eu
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/up,workdir=/mnt/work" /mnt/root
cd /mnt/root
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm
chmod 1777 dev/shm
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
for name in null zero full random urandom; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
for number in $(seq 0 "$(($2 - 1))"); do touch "dev/nvidia$number"; mount --bind /dev/null "dev/nvidia$number"; done
hostname "$3"
ip link set lo up
exec chroot . /bin/bash -c 'echo ready; while read -r _; do :; done'
"""
SYSTEMCTL = r"""#!/bin/bash
# As much of systemd as start scripts need: units with their drop-ins, as the user they name, one process each.
verb=$1 unit=${*: -1}
name=${unit%.service}
state=/run/units/$name
mkdir -p /run/units
words() { cat "/usr/lib/systemd/system/$unit" "/etc/systemd/system/$unit.d/"*.conf 2>/dev/null | sed -n "s/^$1=//p"; }
last() { words "$1" | tail -n 1; }
alive() { [ -s "$state" ] && kill -0 "$(cat "$state")" 2>/dev/null && ! grep -q '^State:.Z' "/proc/$(cat "$state")/status"; }
launch() {
  for file in $(words EnvironmentFile | sed 's/^-//'); do [ ! -e "$file" ] || { set -a; . "$file"; set +a; }; done
  for file in $(words ConditionPathExists | awk 'NF==0{n=0;next}{a[n++]=$0}END{for(i=0;i<n;i++)print a[i]}'); do
    [ -e "$file" ] || exit 0 # as systemd: not started, and success said
  done
  for word in $(words Environment | tr -d '"'); do export "${word?}"; done
  folder=$(last RuntimeDirectory)
  user=$(last User)
  case $name in
    mariadb) set -- /usr/sbin/mariadbd; folder=mysqld ;; # its unit runs a script for clusters of its own
    munge) set -- /usr/sbin/munged --foreground ;;
    *) eval "set -- $(last ExecStart | sed 's/--systemd/-D/')" ;;
  esac
  [ -z "$folder" ] || install -d -o "${user:-root}" "/run/$folder"
  [ -z "$user" ] || set -- setpriv --reuid="$user" --regid="$(id -gn "$user")" --clear-groups "$@"
  setsid bash -c 'until "$@"; do sleep 0.5; done' unit "$@" >> "/var/log/$name.out" 2>&1 < /dev/null &
  echo $! > "$state"
}
stop() { alive && { kill -- -"$(cat "$state")"; while alive; do sleep 0.05; done; }; }
case $verb in
  daemon-reload | enable) ;;
  is-active) alive ;;
  start) alive || launch ;;
  restart) stop; launch ;;
  stop) ! alive || stop ;;
  try-restart) ! alive || { stop; launch; } ;;
  *) echo "not known here: $verb" >&2; exit 1 ;;
esac
"""


@dataclass(frozen=True)
class PrivateHost:
    """
    A host that lives as long as its first process.
    """

    name: str
    """Its host name."""
    pid: int
    """Of its first process, as this machine sees it."""

    def run(self, *command: str, data: bytes = b"", timeout_s: float = 30) -> str:
        """
        What the command printed there, as root; it has succeeded.
        """
        done = self.tried(*command, data=data, timeout_s=timeout_s)
        assert done.returncode == 0, f"{self.name}: {' '.join(command)[:200]}: {done.stdout.decode()}{done.stderr.decode()}"
        return done.stdout.decode().strip()

    def tried(self, *command: str, data: bytes = b"", timeout_s: float = 30) -> subprocess.CompletedProcess[bytes]:
        """
        How the command ended there.
        """
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--uts", "--net", "--root", "--wdns=/", *command]
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        return subprocess.run(inside, input=data, env=env, check=False, capture_output=True, timeout=timeout_s)

    def put(self, bundle: Bundle) -> None:
        """
        The bundle's files are there, with their owners and permissions.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in bundle.files:
                entry = tarfile.TarInfo(file.path.lstrip("/"))
                entry.size, entry.mode = len(file.content), file.mode
                entry.uname, entry.gname = file.owner.split(":")
                archive.addfile(entry, io.BytesIO(file.content))
        self.run("tar", "-xpf", "-", "-C", "/", "--same-owner", "--unlink-first", data=packed.getvalue())

    def start(self, bundle: Bundle) -> None:
        """
        The bundle's scripts have succeeded.
        """
        for script in bundle.scripts:
            self.run("/bin/sh", "-s", data=script.content.encode())


@contextmanager
def private_network() -> Iterator[int]:
    """
    A switch that nothing but its hosts is plugged into: the process that holds it.
    """
    wire = "ip link add br0 type bridge && ip link set br0 up && echo ready && read -r _"
    with _kept(["unshare", "--net", "bash", "-c", wire]) as process:
        yield process.pid


@contextmanager
def private_host(name: str, address: str, network: int, *, gpus: int, root: str = "") -> Iterator[PrivateHost]:
    """
    A host over this machine's file system, or over the chroot `root`, with an address of the network's /24.
    """
    apart = ["unshare", "--mount", "--propagation", "private", "--pid", "--uts", "--net", "--fork", "--kill-child"]
    with _kept([*apart, "bash", "-c", BOOT, "boot", root or "/", str(gpus), name]) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii")
        host = PrivateHost(name, int(children.split()[0]))
        cable = f"v-{name}"
        _ip(network, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        _ip(network, "link", "set", cable, "master", "br0", "up")
        _ip(host.pid, "address", "add", f"{address}/24", "dev", "eth0")
        _ip(host.pid, "link", "set", "eth0", "up")
        host.run("install", "-m", "755", "/dev/stdin", "/usr/local/bin/systemctl", data=SYSTEMCTL.encode())
        yield host


@contextmanager
def _kept(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n", f"does not start: {command}"
            yield process
        finally:
            process.stdin.close()
            process.wait(timeout=30)


def _ip(pid: int, *words: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", "ip", *words], check=True, timeout=20)


def can_make_hosts() -> str:
    """
    Why no private host can be made here; empty when it can.
    """
    if os.geteuid() != 0:
        return "private hosts need root"
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--pid",
            "--uts",
            "--net",
            "--fork",
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            "lowerdir=/usr:/etc",
            "/mnt",
        ],
        check=False,
        capture_output=True,
        timeout=20,
    )
    return "" if done.returncode == 0 else f"no overlay in a namespace: {done.stderr.decode()[-200:]}"
