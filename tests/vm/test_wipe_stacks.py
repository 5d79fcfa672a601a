"""
The wipe's script on a kernel where a tenant's arrays, volumes, mappings and swap are in use, as where all that is found is put together.
"""

from __future__ import annotations

import json
import re
import subprocess
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from tests.vm_kit import ENABLED, kernel, memory_system, say

pytestmark = [ENABLED, pytest.mark.vm, pytest.mark.timeout(1800)]
BUILDER = Path(__file__).parent / "machine-stacked.sh"
SIZE = 64 * 1024 * 1024
RUN_S = 900


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """Four empty disks."""
    made = [tmp_path / f"vd{letter}.raw" for letter in "abcd"]
    for one in made:
        with one.open("wb") as image:
            image.truncate(SIZE)
    return made


def boot(folder: Path, disks: list[Path]) -> str:
    """What the machine wrote to its console until it switched itself off."""
    memory_system()  # whatever the kernel needs is there once this is
    with as_file(files("controlplane.boots") / "scripts" / "wipe.sh") as script:
        tree = kernel().parent / "kernel"
        subprocess.run([BUILDER, tree, script, folder / "stacked.gz"], check=True, capture_output=True, timeout=RUN_S)
    say("a Debian with LVM and mdadm built")
    drives = [word for one in disks for word in ("-drive", f"file={one},format=raw,if=virtio")]
    machine = ["qemu-system-x86_64", "-accel", "tcg", "-m", "1024", "-nographic", "-no-reboot", *drives]
    started = ["-kernel", str(kernel()), "-initrd", str(folder / "stacked.gz"), "-append", "console=ttyS0 quiet panic=-1"]
    return subprocess.run([*machine, *started], check=True, capture_output=True, timeout=RUN_S).stdout.decode("utf-8", "replace")


def test_what_a_tenant_made_of_its_disks_is_taken_apart_and_wiped(tmp_path: Path, disks: list[Path]) -> None:
    """A volume on an array of two disks with a mapping on it, swap and a plain mapping are in use when the wipe begins; no byte is left."""
    console = boot(tmp_path, disks)
    made = re.search(r"made: (.*)", console)
    assert made is not None, console[-2000:]
    assert set(re.findall(r"swap 1|vd./holders: \S+|md0|dm-\d", made.group(1))) >= {
        "md0", "dm-0", "dm-1", "dm-2", "swap 1", "vda/holders: md0", "vdd/holders: dm-2",
    }  # fmt: skip
    said = [json.loads(line) for line in re.findall(r"report: (\{.*\})", console)]
    assert {one["name"]: one["result"] for one in said if one["name"].startswith("disk")} == {
        **{f"disk:vd{letter}": "passed" for letter in "abcd"},
        "disks_counted": "passed",
    }
    assert "ended: 0" in console
    assert all(one.read_bytes() == bytes(SIZE) for one in disks)
