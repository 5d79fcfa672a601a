"""
What a tenant sends breaks the boot of its machines, on hosts that really boot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rack import Metal, done, enroll, key_pair
from tests.e2e.test_metal_hosts import order
from tests.slurm_kit import SLOW

pytestmark = [*SLOW[1:], pytest.mark.timeout(1800)]
PATIENCE_S = 600.0
LAST_WORDS = "the last words of a tenants machine"
BREAKS = f"""#cloud-config
bootcmd:
  - [sh, -c, "echo {LAST_WORDS}; exit 7"]
"""


def deployed(metal: Metal, node_id: str) -> list[dict[str, Any]]:
    """The node's boots for a tenant."""
    boots = done(metal.operator.get(f"/v1/admin/nodes/{node_id}/boots"))["items"]
    return [one for one in boots if one["purpose"] == "deploy"]


def free(metal: Metal, node_id: str) -> dict[str, Any]:
    """The node once it is wiped."""
    seen = metal.until(f"/v1/admin/nodes/{node_id}", "available", "quarantined", within_s=PATIENCE_S)
    assert seen["status"]["state"] == "available", seen
    return seen


def test_machines_that_their_tenants_data_breaks_end_clearly(metal: Metal, tmp_path: Path) -> None:
    """
    The order fails after three hosts, each tried once, and the fourth is left alone; the three are wiped and held for a person with a
    reason, an operator reads what each wrote, and the tenant deletes its order.
    """
    nodes = enroll(metal, 4)
    for one in nodes:
        free(metal, one)
    _key, public = key_pair(tmp_path, "own")
    path = order(metal.tenant, metal.project, public, 1, BREAKS)
    ended = metal.until(path, "failed", "running", client=metal.tenant, within_s=PATIENCE_S)
    assert (ended["status"]["state"], [one["code"] for one in ended["status"]["issues"]]) == ("failed", ["deploy_failed"]), ended
    tried = {one: boots for one in nodes if (boots := deployed(metal, one))}
    assert [len(boots) for boots in tried.values()] == [1, 1, 1]
    for node_id, (boot,) in tried.items():
        assert boot["failure_code"] == "cloud_init_failed", boot
        assert LAST_WORDS in done(metal.operator.get(f"/v1/admin/boots/{boot['id']}/console"))["text"]
        assert free(metal, node_id)["holds"][0]["reason"].startswith("deploy_failed")
        assert len(deployed(metal, node_id)) == 1
    (spare,) = set(nodes) - set(tried)
    assert free(metal, spare)["holds"] == []
    done(metal.tenant.delete(path, headers={"If-Match": "*"}))
    metal.until(path, "deleted", client=metal.tenant, within_s=PATIENCE_S)
