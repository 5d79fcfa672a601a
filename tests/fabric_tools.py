"""
FRR and sshd for the fabric of the tests: the installed ones, or Debian's packages unpacked once and kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests import kits

PACKAGES = ("frr", "libyang2", "libc-ares2", "libpcre2-8-0", "libjson-c5", "libreadline8", "libcap2", "openssh-server", "libwrap0")
PROGRAMS = ("ip", "bridge", "flock", "nsenter", "unshare", "mount")


def installed_tools() -> Path:
    """
    A folder with FRR and sshd to be laid over the machine's own `usr`; an empty one where both are installed.
    """
    if os.geteuid() != 0:
        kits.unusable("FRR fabric", "network namespaces need root")
    missing = [one for one in PROGRAMS if shutil.which(one) is None]
    if missing:
        kits.unusable("FRR fabric", f"there is no {', '.join(missing)}")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "controlplane-tests"
    mark = hashlib.blake2b(" ".join(PACKAGES).encode(), digest_size=6).hexdigest()
    tools = cache / f"frr-{mark}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if tools.is_dir():
            return tools
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            fresh = Path(folder) / "root"
            fresh.mkdir()
            if not all(Path(one).exists() for one in ("/usr/lib/frr/bgpd", "/usr/sbin/sshd")):
                _unpack(Path(folder), fresh)
            fresh.rename(tools)
    return tools


def _unpack(folder: Path, root: Path) -> None:
    try:
        command = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", *PACKAGES]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=120)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        kits.unusable("FRR fabric", f"FRR is not installed and its package cannot be had: {error}")
    # Debian's /lib is a link to /usr/lib, and packages of this release still ship files in both.
    shutil.copytree(root / "lib", root / "usr" / "lib", dirs_exist_ok=True, symlinks=True)
    shutil.rmtree(root / "lib")
    shutil.rmtree(root / "etc", ignore_errors=True)
