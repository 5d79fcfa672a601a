"""
A Slurm of one's own whose head is down while its workers boot, on hosts that really boot.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.e2e.rack import Metal, done, enroll, key_pair, log_in
from tests.e2e.test_dedicated_slurm import OFFER, addresses, cut_power, members, order, run_gang
from tests.factories.processes import until
from tests.slurm_kit import SLOW

pytestmark = [*SLOW, pytest.mark.timeout(1800)]
PATIENCE_S = 600.0
ASKS = "systemctl is-active --quiet munge.service && systemctl is-enabled --quiet slurmd.service && echo asks"


def answers(address: str, key: Path, command: str) -> str:
    """What the host prints for its tenant; empty while it lets nobody in or the command fails."""
    try:
        return log_in(address, key, command)
    except AssertionError:
        return ""


def comes_up(address: str, key: Path) -> None:
    """The host lets its tenant in and has its part of Slurm set to start."""
    until(lambda: answers(address, key, ASKS) == "asks", "it is up and asks for its head", within_s=PATIENCE_S)


def operation_ends(metal: Metal, where: str) -> None:
    """The operation has succeeded; a busy machine takes its time."""
    end = time.monotonic() + PATIENCE_S
    while (seen := done(metal.tenant.get(where)))["state"] != "succeeded":
        assert seen["state"] not in {"failed", "cancelled", "needs_attention"}, seen
        assert time.monotonic() < end, seen
        metal.tenant.get("/v1/events", params={"limit": 1})


def test_workers_that_boot_without_their_head_wait_and_join(metal: Metal, tmp_path: Path) -> None:
    """
    The head loses its power; a worker is restarted and another boots for the first time meanwhile. Both come up and wait, nothing is given
    up, and when the head has its power back, both join by themselves and a gang runs on them.
    """
    nodes = enroll(metal, 3, slurm=OFFER)
    for one in nodes:
        free = metal.until(f"/v1/admin/nodes/{one}", "available", "quarantined", within_s=PATIENCE_S)
        assert free["status"]["state"] == "available", free
    key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1)
    made = metal.until(path, "running", "failed", client=metal.tenant, within_s=PATIENCE_S)
    assert made["status"]["state"] == "running", made
    at, (head,), (first,) = addresses(metal, path), members(metal, path, "head"), members(metal, path, "workers")
    by_address = {one.address: one for one in metal.lab.hosts}
    cut_power(metal, at[head])
    metal.lab.run("power", by_address[at[first]].name, "cycle")
    wanted = {"node_sets": [{"name": "workers", "count": 2}]}
    grown = metal.tenant.patch(path, json=wanted, headers={"If-Match": "*"})
    done(grown)
    until(lambda: len(members(metal, path, "workers")) == 2, "the new worker has booted", within_s=PATIENCE_S)
    both = members(metal, path, "workers")
    at = addresses(metal, path)
    for one in both:
        comes_up(at[one], key)
    assert done(metal.tenant.get(path))["status"]["state"] == "updating"
    metal.lab.run("power", by_address[at[head]].name, "on")
    operation_ends(metal, grown.headers["location"])
    assert first in both
    assert (members(metal, path, "head"), members(metal, path, "workers")) == ([head], both)
    assert {done(metal.operator.get(f"/v1/admin/nodes/{one}"))["status"]["state"] for one in nodes} == {"active"}
    names = {one.replace("_", "-") for one in both}
    assert run_gang(metal, path, 2) == dict.fromkeys(names, "0,1,2,3,4,5,6,7")
