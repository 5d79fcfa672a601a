"""
A Slurm of one's own with a login and a history, on hosts that really boot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hosts_kit
from tests.e2e.rack import Metal, done, enroll, key_pair, log_in
from tests.e2e.test_dedicated_slurm import OFFER, PLAIN, addresses, members
from tests.hosts_kit import Lab

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.skipif(os.environ.get("CONTROLPLANE_SLOW") != "1", reason="slow: runs with CONTROLPLANE_SLOW=1"),
]
HISTORY = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
AS_TENANT = "sudo -u tenant -H sh -c"
PATIENCE_S = 600.0


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three hosts whose system can keep a history of jobs, too; it is built once, which takes its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOSTS_EXTRA_PACKAGES", " ".join(HISTORY))
        hosts_kit._ensure_installed()
        hosts_kit.run("base", timeout_s=900)
        with hosts_kit.running_lab(3) as running:
            yield running


def order(metal: Metal, public: str) -> str:
    """The path of a Slurm that was just ordered: a head that keeps a history, a login and one worker."""
    sets = [
        {"name": "head", "role": "head", "count": 1, **PLAIN},
        {"name": "door", "role": "login", "count": 1, **PLAIN},
        {"name": "workers", "count": 1, **PLAIN},
    ]
    login, slurm = {"ssh_keys": [public]}, {"accounting": True}
    spec = {"kind": "slurm", "site": "lab", "node_sets": sets, "wait": True, "login": login, "slurm": slurm}
    made = done(metal.tenant.post(f"/v1/projects/{metal.project}/clusters", json={"name": "own", "spec": spec}))
    return f"/v1/projects/{metal.project}/clusters/{made['id']}"


def history(address: str, key: Path, count: int) -> list[str]:
    """How so many jobs ended, as the head's books tell at the login; they are written a moment after a job's end."""
    ended = f"sacct -nPXa -S now-1hour -o state | grep -xc COMPLETED | grep -qx {count}"
    eventually(address, key, ended)
    return eventually(address, key, "sacct -nPXa -S now-1hour -o state").split()


def eventually(address: str, key: Path, command: str) -> str:
    """What the command prints once it works there; a host that was cycled takes its time to let anybody in."""
    end = time.monotonic() + 120
    while True:
        try:
            return log_in(address, key, command)
        except AssertionError:
            if time.monotonic() > end:
                raise


def test_a_login_submits_and_tells_what_ran(metal: Metal, tmp_path: Path) -> None:
    """A job submitted at the login runs on the worker, and the head's books, slurmdbd over MariaDB, tell the login how it ended."""
    nodes = enroll(metal, 3, slurm={**OFFER, "accounting": True})
    for one in nodes:
        free = metal.until(f"/v1/admin/nodes/{one}", "available", "quarantined", within_s=PATIENCE_S)
        assert free["status"]["state"] == "available", free
    key, public = key_pair(tmp_path, "owner")
    path = order(metal, public)
    made = metal.until(path, "running", "failed", client=metal.tenant, within_s=PATIENCE_S)
    assert made["status"]["state"] == "running", made
    at = addresses(metal, path)
    (door,), (first,) = (members(metal, path, name) for name in ("door", "workers"))
    worker = first.replace("_", "-")
    assert eventually(at[door], key, f"{AS_TENANT} 'cd; srun --gres=gpu:h100:8 hostname'") == worker
    assert history(at[door], key, 1) == ["COMPLETED"]
