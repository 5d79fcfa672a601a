"""
A chroot with Slurm 23.11 as Ubuntu 24.04 has it: the release between those of Debian 12 and 13, which do not understand each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests import kits

ROOT = os.environ.get("CONTROLPLANE_SLURM_2311_ROOT", "/var/tmp/controlplane-slurm-noble")
MIRROR = "http://archive.ubuntu.com/ubuntu"
SUITE = "noble"
KEYRING_SHA256 = "80a36b0a6de2f69f49d2df75ef473ccde121e9e190b9ea01d20a4f63778d5c31"
"""Of ubuntu-archive-keyring.gpg, which has the key F6ECB3762474EDA9D21B7022871920D1991BC93C: everything else is checked by it."""
PACKAGES = (
    *("slurmctld", "slurmd", "slurmdbd", "slurmrestd", "slurm-client", "munge", "iproute2"),
    *("slurm-wlm-jwt-plugin", "slurm-wlm-mysql-plugin"),
)
INSTALL = """
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
root=$1
shift
DEBIAN_FRONTEND=noninteractive exec chroot "$root" apt-get install -y -qq --no-install-recommends "$@"
"""


def ubuntu_root() -> str:
    """
    Its folder; made once and kept. Skips where it cannot be made.
    """
    with Path(f"{ROOT}.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (Path(ROOT) / "usr/sbin/slurmdbd").exists():
            _make(Path(f"{ROOT}.new"))
    return ROOT


def _make(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    keyring = _keyring(root / "keys")
    system = root / "system"
    scripts = "/usr/share/debootstrap/scripts/jammy"
    wanted = ["--variant=minbase", "--components=main,universe", f"--keyring={keyring}"]
    _try("debootstrap", *wanted, SUITE, str(system), MIRROR, scripts)
    deny = system / "usr/sbin/policy-rc.d"
    deny.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    deny.chmod(0o755)
    apart = ("unshare", "--mount", "--propagation", "private")
    _try(*apart, "bash", "-ec", INSTALL, "install", str(system), *PACKAGES)
    system.rename(ROOT)
    shutil.rmtree(root)


def _keyring(folder: Path) -> Path:
    """
    Ubuntu's keys, by their digest: Debian has no package of them.
    """
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "cache/archives/partial").mkdir(parents=True)
    (folder / "sources").write_text(f"deb [trusted=yes] {MIRROR} {SUITE} main\n", encoding="ascii")
    own = {
        "Etc::sourcelist": folder / "sources",
        "Etc::sourceparts": "-",
        "State::lists": folder / "lists",
        "Cache": folder / "cache",
    }
    options = [f"-oDir::{name}={value}" for name, value in own.items()]
    _try("apt-get", *options, "-qq", "update")
    _try("apt-get", *options, "-qq", "download", "ubuntu-keyring", cwd=folder)
    (package,) = folder.glob("ubuntu-keyring_*.deb")
    _try("dpkg-deb", "-x", str(package), str(folder / "x"))
    keyring = folder / "x/usr/share/keyrings/ubuntu-archive-keyring.gpg"
    if hashlib.sha256(keyring.read_bytes()).hexdigest() != KEYRING_SHA256:
        kits.unusable("Slurm 23.11", "Ubuntu's keys are not those that are known here")
    return keyring


def _try(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900, cwd=cwd)
    if done.returncode:
        kits.unusable("Slurm 23.11", f"{command[0]}: {done.stderr[-300:]}")
