"""
A real Slurm for tests: one a session, in a folder and on ports of its own, stopped and deleted at the end.

Skips with a reason where the kit is absent or cannot be used; with CONTROLPLANE_CI=1 it fails instead.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

from controlplane.providers.adapters.slurm.adapter import SlurmAdapter, build
from controlplane.providers.registry import AdapterInput
from tests import kits

KIT = kits.KITS / "slurm" / "slurmkit"
GPU_MODEL = "H100-SXM5-80GB"
GPU_TYPE = "h100"
DEPLOYMENT = "test"
FIRST_PORT = 18000
PORTS_EACH = 30
SLOTS = 400
# accounts of Debian that own no running process: scrubbing kills what their owners run, so no two kits share one
USERS = (("games", "man"), ("lp", "mail"), ("news", "uucp"), ("proxy", "backup"), ("list", "irc"))
EXTRA = """
PartitionName=tenants Nodes={nodes} ReqResv=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE
PartitionName=admin Nodes={nodes} AllowGroups=root MaxTime=INFINITE PriorityTier=1 PreemptMode=OFF
"""


@dataclass(frozen=True)
class SlurmKit:
    """
    A running Slurm and how to reach it.
    """

    base: Path
    """Everything of it is below this folder."""
    port: int
    """Its first port."""
    nodes: tuple[str, ...]
    """NodeNames, each with 8 fake GPUs."""
    users: tuple[str, ...]
    """Accounts that tenants may be given, different from those of other kits that run now."""
    root: str = ""
    """The chroot of another release; empty for the installed one."""

    @property
    def url(self) -> str:
        """
        Of slurmrestd.
        """
        return f"http://127.0.0.1:{self.port + 2}"

    @property
    def env(self) -> dict[str, str]:
        """
        By which the kit's commands find this cluster.
        """
        return {**os.environ, "SLURMKIT_BASE": str(self.base), "SLURMKIT_QUIET": "1"}

    def run(self, *arguments: str) -> str:
        """
        What a command of the kit printed; it has succeeded.
        """
        done = subprocess.run([str(KIT), *arguments], env=self.env, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"slurmkit {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def scontrol(self, *arguments: str) -> str:
        """
        What scontrol of this cluster's version printed.
        """
        return self.slurm("scontrol", *arguments)

    def slurm(self, *command: str) -> str:
        """
        What a Slurm command of this cluster's version printed; it has succeeded.
        """
        if self.root:
            return self.run("exec", *command)
        env = {**os.environ, "SLURM_CONF": str(self.base / "etc" / "slurm.conf")}
        done = subprocess.run(command, env=env, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def free(self) -> None:
        """
        Its nodes carry nobody's mark: the next test's installation is another one.
        """
        self.scontrol("update", f"nodename={','.join(self.nodes)}", "extra=")

    def secrets(self, *, mint: bool = False) -> dict[str, str]:
        """
        An administrator's token, or the key to mint tokens with.
        """
        if mint:
            return {"jwt_key": base64.b64encode((self.base / "state" / "jwt_hs256.key").read_bytes()).decode()}
        return {"token": self.run("token", "root", "7200")}

    def config(self) -> dict[str, Any]:
        """
        As an operator would register this Slurm.
        """
        work = self.base / "work"
        inside = {"argv_prefix": [str(KIT), "exec"], "env": {"SLURMKIT_BASE": str(self.base), "SLURMKIT_QUIET": "1"}}
        return {
            "url": self.url,
            "cli": inside if self.root else {"env": {"SLURM_CONF": str(self.base / "etc" / "slurm.conf")}},
            "partition": "tenants",
            "admin_partition": "admin",
            "node_gres": {GPU_MODEL: GPU_TYPE},
            "output_dir": f"{work}/out/{{user}}",
            "scrub": {"enabled": True, "report_dir": f"{work}/scrub", "timeout_s": 60, "paths": [f"{work}/scratch"]},
        }

    def adapter(self, clock: Any, *, mint: bool = False, **config: Any) -> SlurmAdapter:
        """
        An adapter registered for this Slurm; keyword arguments replace parts of the config.
        """
        return build(
            AdapterInput(
                provider_id="prv_slurm",
                config={**self.config(), **config},
                secrets=self.secrets(mint=mint),
                deployment=DEPLOYMENT,
                now=clock,
            )
        )


WRITES = """#!/bin/bash
# [-d DEVICE] alone: waits for its client; with a server's name: prints what a real one did.
device=$2 server=${3:-}
if [ -z "$server" ]; then touch "FLAG.$SLURMD_NODENAME.$SLURM_JOB_ID"; sleep 60; exit 0; fi
[ -e "FLAG.$server.$SLURM_JOB_ID" ] || { echo "Couldn't connect to $server" >&2; exit 1; }
echo "# client $SLURMD_NODENAME of $server by $device"
cat OUTPUT
"""
REDUCES = """#!/bin/bash
[ "$SLURM_PROCID" = 0 ] || exit 0
echo "# $1 GPUs each on" $(scontrol show hostnames "$SLURM_JOB_NODELIST")
cat OUTPUT
"""


def checks_config(kit: SlurmKit, reduced: str, written: str) -> dict[str, Any]:
    """
    As an operator would say which tools measure between nodes: programs in the kit's folder, which print these.
    """
    tools = kit.base / "work" / "tools"
    tools.mkdir(exist_ok=True)
    for name, text, output in (("all_reduce_perf", REDUCES, reduced), ("ib_write_bw", WRITES, written)):
        (tools / f"{name}.out").write_text(output)
        program = tools / name
        program.write_text(text.replace("OUTPUT", f"{program}.out").replace("FLAG", f"{tools}/listens"))
        program.chmod(0o755)
    return {
        "report_dir": str(kit.base / "work" / "scrub"),
        "all_reduce": [str(tools / "all_reduce_perf"), "{gpus}"],
        "ib_write_bw": [str(tools / "ib_write_bw"), "-d", "{device}"],
        "rails": ["mlx5_0", "mlx5_1"],
        "timeout_s": 60,
    }


@contextmanager
def running_kit(*, nodes: int = 4, root: str = "", extra: str = "", accounting: bool = False) -> Iterator[SlurmKit]:
    """
    A Slurm that lives as long as the block.
    """
    if not root:
        _ensure_installed("--dbd" if accounting else "")
    _sweep()
    with _own_users() as users:
        kit = _started(nodes, root, extra, users, {"SLURMKIT_DBD": "1"} if accounting else {})
        try:
            _prepare(kit)
            yield kit
        finally:
            subprocess.run([str(KIT), "clean"], env=kit.env, check=True, capture_output=True, timeout=120)


@cache
def session_kit() -> SlurmKit:
    """
    The test process's Slurm: the installed version, 4 nodes of 8 GPUs; stopped and deleted when the process ends.
    """
    stack = ExitStack()
    kit = stack.enter_context(running_kit())
    atexit.register(stack.close)
    return kit


@cache
def other_kit() -> SlurmKit:
    """
    The same with another release: 24.11 in a chroot that is made once and kept.
    """
    root = os.environ.get("CONTROLPLANE_SLURM_ROOT", "/var/tmp/controlplane-slurm-trixie")
    _ensure_installed()
    done = subprocess.run([str(KIT), "install-root", root, "trixie"], check=False, capture_output=True, text=True, timeout=290)
    if done.returncode:
        unusable(f"another release cannot be installed: {done.stderr[-300:]}")
    stack = ExitStack()
    kit = stack.enter_context(running_kit(root=root))
    atexit.register(stack.close)
    return kit


@pytest.fixture
def slurm_kit() -> Iterator[SlurmKit]:
    """
    The same for a test, which may leave marks on its nodes.
    """
    kit = session_kit()
    yield kit
    kit.free()


SLOW = (
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1"),
)
"""Marks of what has a target of its own."""


def unusable(reason: str) -> NoReturn:
    """
    The test is skipped with the reason; in CI it fails.
    """
    kits.unusable("Slurm", reason)


def _ensure_installed(more: str = "") -> None:
    if not KIT.exists():
        unusable("the kit is not beside this checkout")
    if all(shutil.which(program) for program in ("slurmctld", "slurmrestd", *(("slurmdbd", "mariadbd") if more else ()))):
        return
    if os.geteuid() != 0:
        unusable("Slurm is not installed and only root can install it")
    with Path("/tmp/controlplane-slurm-install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [str(KIT), "install", *filter(None, [more])]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
    if done.returncode:
        unusable(f"it cannot be installed: {done.stderr[-300:]}")


def _sweep() -> None:
    """
    What killed test processes left running is stopped and deleted.
    """
    for left in Path("/tmp").glob("cp-slurm-*-*"):
        pid = left.name.split("-")[2]
        if left.is_dir() and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            env = {**os.environ, "SLURMKIT_BASE": str(left)}
            subprocess.run([str(KIT), "clean"], env=env, check=False, capture_output=True, timeout=120)


def _started(nodes: int, root: str, extra: str, users: tuple[str, str], settings: Mapping[str, str]) -> SlurmKit:
    if os.geteuid() != 0:
        unusable("jobs can only run as tenants' users when root starts Slurm")
    said = ""
    for attempt in range(5):
        slot = (os.getpid() + attempt * 37) % SLOTS
        base = Path(f"/tmp/cp-slurm-{os.getpid()}-{attempt}{'-other' if root else ''}")
        names = f"n[1-{nodes}]" if nodes > 1 else "n1"
        conf = Path(f"{base}.conf")
        conf.write_text(EXTRA.format(nodes=names) + extra)
        kit = SlurmKit(
            base=base,
            port=FIRST_PORT + slot * PORTS_EACH,
            nodes=tuple(f"n{number}" for number in range(1, nodes + 1)),
            users=users,
            root=root,
        )
        env: Mapping[str, str] = {
            **kit.env,
            "SLURMKIT_PORT": str(kit.port),
            "SLURMKIT_NODES": str(nodes),
            "SLURMKIT_EXTRA": str(conf),
            "SLURMKIT_ROOT": root,
            **settings,
        }
        done = subprocess.run([str(KIT), "up"], env=env, check=False, capture_output=True, text=True, timeout=120)
        conf.unlink()
        if done.returncode == 0:
            return kit
        said = done.stdout + done.stderr
        subprocess.run([str(KIT), "clean"], env=kit.env, check=False, capture_output=True, timeout=120)
    pytest.fail(f"Slurm does not start: {said[-1000:]}")


@contextmanager
def _own_users() -> Iterator[tuple[str, str]]:
    """
    Two accounts that no other kit on this machine uses while the block lasts.
    """
    for number, pair in enumerate(USERS):
        with Path(f"/tmp/controlplane-slurm-users-{number}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield pair
            return
    unusable(f"{len(USERS)} of them run already")


def _prepare(kit: SlurmKit) -> None:
    """
    What docs/providers/slurm.md tells an operator to prepare.
    """
    for partition in ("batch", "urgent"):
        kit.scontrol("update", f"partitionname={partition}", "allowgroups=root")
    work = kit.base / "work"
    (work / "out").mkdir()
    for user in kit.users:
        folder = work / "out" / user
        folder.mkdir(mode=0o700)
        os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    (work / "scrub").mkdir(mode=0o700)
    scratch = work / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
