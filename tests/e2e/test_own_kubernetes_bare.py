"""
A Kubernetes of one's own on hosts that really boot and whose image has none of its programs: no stand-ins, the start script goes as far as
a real machine can go without a kubelet, says where it ended, and the order ends with it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rack import Metal, done, key_pair
from tests.e2e.test_broken_boots import deployed
from tests.e2e.test_broken_boots import free as given_back
from tests.e2e.test_own_kubernetes_hosts import free, order
from tests.slurm_kit import SLOW

pytestmark = [*SLOW[1:], pytest.mark.timeout(1800)]
PATIENCE_S = 600.0
HOSTS = 4
MISSING = "kubeadm is not installed"


def ended(boot: dict[str, Any]) -> tuple[str, int, str]:
    """Which script ended the boot, at which of its lines, and its last words, by the machine's own report."""
    (stage,) = (one for one in boot["stages"] if one["name"].startswith("script:start-") and not one["ok"])
    found = re.match(r"line (\d+), exit code 1: (.*)", stage["detail"], re.DOTALL)
    assert found is not None, stage
    return stage["name"].removeprefix("script:"), int(found[1]), found[2].strip()


def test_an_image_without_kubernetes_ends_the_order_with_a_reason(metal: Metal, tmp_path: Path) -> None:
    """
    Files are laid down and the kernel is set, then each host says which program is missing, and where; the order fails after as many as
    orders may break, each tried once; all are wiped, none is in the fleet again before a person looked, and the tenant deletes its order.
    """
    nodes = free(metal, HOSTS, PATIENCE_S)
    _key, public = key_pair(tmp_path, "owner")
    path = order(metal, public, 1)
    seen = metal.until(path, "failed", "running", client=metal.tenant, within_s=PATIENCE_S)
    assert (seen["status"]["state"], [one["code"] for one in seen["status"]["issues"]]) == ("failed", ["deploy_failed"]), seen
    broken = 0
    for one in nodes:
        back = given_back(metal, one)
        assert all(each["verified"] for each in done(metal.operator.get(f"/v1/admin/nodes/{one}/wipes"))["items"])
        (boot,) = deployed(metal, one)
        if not boot["failure_code"]:  # the last one was still booting when the order ended
            assert back["holds"] == []
            continue
        broken += 1
        script, line, words = ended(boot)
        assert words.splitlines()[-1] == MISSING, boot
        assert (boot["failure_code"], boot["failure"]) == ("script_failed", f"The script {script} failed at line {line}."), boot
        assert {stage["name"] for stage in boot["stages"] if not stage["ok"]} == {f"script:{script}"}
        assert back["holds"][0]["reason"].startswith("deploy_failed")
    assert broken >= 3, nodes
    done(metal.tenant.delete(path, headers={"If-Match": "*"}))
    metal.until(path, "deleted", client=metal.tenant, within_s=PATIENCE_S)
