"""
The wipe's script on real block devices: loop devices that hold a tenant's bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from tests import kits

SCRIPT = files("controlplane.boots") / "scripts" / "wipe.sh"
SIZE = 8 * 1024 * 1024
CANARY = b"the last tenant's secret "


@contextmanager
def disk(home: Path, name: str, *, read_only: bool = False) -> Iterator[Path]:
    """A disk full of a tenant's bytes, under this name."""
    image = home / f"{name}.img"
    image.write_bytes((CANARY * (SIZE // len(CANARY) + 1))[:SIZE])
    options = ["--read-only"] if read_only else []
    made = subprocess.run(["losetup", "--find", "--show", *options, str(image)], check=False, capture_output=True, text=True)
    if made.returncode:
        kits.unusable("loop device", made.stderr.strip())
    device = made.stdout.strip()
    seen = home / "sys" / name
    seen.mkdir(parents=True)
    (seen / "size").write_text(f"{SIZE // 512}\n")
    (seen / "dev").write_text((Path("/sys/block") / Path(device).name / "dev").read_text())
    (home / "dev").mkdir(exist_ok=True)
    (home / "dev" / name).symlink_to(device)
    try:
        yield image
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def wipe(home: Path, purpose: str = "wipe", **env: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The script's exit code and what it reported: name to (result, detail)."""
    checks = home / "checks.jsonl"
    (home / "sys").mkdir(exist_ok=True)
    given = {
        "BOOT_PURPOSE": purpose,
        "BOOT_CHECKS": str(checks),
        "WIPE_SYS": str(home / "sys"),
        "WIPE_DEV": str(home / "dev"),
        **env,
    }
    done = subprocess.run(
        ["bash", "-eET", "-o", "pipefail", str(SCRIPT)], env={**os.environ, **given}, check=False, capture_output=True, timeout=120
    )
    lines = checks.read_text().splitlines() if checks.exists() else []
    said = [json.loads(line) for line in lines]
    return done.returncode, {one["name"]: (one["result"], one["detail"]) for one in said}


@pytest.fixture
def root() -> None:
    """Only root makes loop devices."""
    if os.geteuid() != 0:
        kits.unusable("loop device", "only root makes one")


@pytest.mark.usefixtures("root")
def test_every_disk_is_wiped_and_read_back(tmp_path: Path) -> None:
    """No byte of the last tenant is left, and each disk and their number are reported."""
    with ExitStack() as stack:
        images = [stack.enter_context(disk(tmp_path, name)) for name in ("sda", "sdb")]
        code, said = wipe(tmp_path)
    assert code == 0
    assert said["disks_counted"] == ("passed", "2")
    assert {said["disk:sda"][0], said["disk:sdb"][0]} == {"passed"}
    assert all(image.read_bytes() == bytes(SIZE) for image in images)


@pytest.mark.usefixtures("root")
def test_a_disk_that_keeps_its_bytes_fails_the_wipe(tmp_path: Path) -> None:
    """A drive that cannot be written ends the wipe as failed; it is never counted."""
    with disk(tmp_path, "sda", read_only=True) as image:
        code, said = wipe(tmp_path)
    assert code != 0
    assert said["disk:sda"][0] == "failed"
    assert "disks_counted" not in said
    assert CANARY in image.read_bytes()


@pytest.mark.usefixtures("root")
def test_a_disk_in_use_is_not_touched(tmp_path: Path) -> None:
    """A mounted disk is the machine's own: the wipe fails before it writes."""
    with disk(tmp_path, "sda") as image:
        device = str((tmp_path / "dev" / "sda").readlink())
        (tmp_path / "mount").mkdir()
        subprocess.run(["mkfs.ext4", "-q", "-E", "nodiscard", device], check=True)
        subprocess.run(["mount", device, str(tmp_path / "mount")], check=True)
        try:
            code, said = wipe(tmp_path)
        finally:
            subprocess.run(["umount", str(tmp_path / "mount")], check=True)
        assert CANARY in image.read_bytes()
    assert code != 0
    assert said["disk:sda"] == ("failed", "in use")


def test_no_disk_is_no_proof(tmp_path: Path) -> None:
    """A machine that shows no disk has measured nothing, unless it is known to have none."""
    assert wipe(tmp_path)[1]["disks_counted"][0] == "not_measured"
    (tmp_path / "checks.jsonl").unlink()
    assert wipe(tmp_path, DISKLESS="yes")[1]["disks_counted"][0] == "passed"


def test_a_boot_for_something_else_wipes_nothing(tmp_path: Path) -> None:
    """The script refuses to run on a boot that is not a wipe."""
    code, said = wipe(tmp_path, "deploy")
    assert code == 2
    assert said == {}
