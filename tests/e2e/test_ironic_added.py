"""
What we add to the time that an Ironic takes by itself, on fake hardware that takes a minute: a figure, measured when it is asked for
(`make added`).
"""

from __future__ import annotations

import json
import os
import statistics
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from controlplane.local.addresses import free_port
from tests.conftest import Database
from tests.e2e.foundry import Foundry, running_foundry
from tests.e2e.rack import done
from tests.ironic_kit import IronicKit, running_kit

ROUNDS = int(os.environ.get("ROUNDS", "3"))
PATIENCE_S = 600.0
CALL_S = 30
"""What the fake hardware takes to prepare a deployment, and again to deploy."""
GOAL_S, GOAL_SHARE = 2.0, 0.05
OURS, PLAIN = "ours", "plain"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Ql2ZyVjzQ0bZ4mVbq1m0Vf3y7d8n5k2s9q4w6e8r0 ada"
pytestmark = [pytest.mark.timeout(2400), pytest.mark.skipif(os.environ.get("ADDED") != "1", reason="a figure: make added")]


@pytest.fixture
def foundry(database: Database, tmp_path: Path) -> Iterator[Foundry]:
    """A cloud with one machine of an Ironic, which has another one for a script."""
    with running_kit(patience_s=PATIENCE_S, OS_FAKE__DEPLOY_DELAY=str(CALL_S)) as kit:
        for name in (OURS, PLAIN):
            kit.make(name)
        with running_foundry(kit, OURS, database, tmp_path, free_port(), patience_s=PATIENCE_S, log_level="ERROR") as made:
            yield made


def test_what_we_add_to_a_deploy_by_ironic(foundry: Foundry) -> None:
    """From order to active, less what a plain script needs on the same Ironic at the same time."""
    node = foundry.register()
    ours, plain = [], []
    for _ in range(ROUNDS):
        path = foundry.order(None, {"ssh_keys": [KEY]})
        plain.append(by_script(foundry.kit))
        ordered = done(foundry.tenant.get(path))
        foundry.until(foundry.tenant, path, "running")
        ours.append((moment(done(foundry.operator.get(node))["status"]["since"]) - moment(ordered["created_at"])).total_seconds())
        done(foundry.tenant.delete(path, headers={"If-Match": "*"}))
        foundry.kit.go(PLAIN, "deleted", "available")
        foundry.until(foundry.operator, node, "available")
    own_s = statistics.median(plain)
    added_s = statistics.median(ours) - own_s
    figures = {
        "question": "what we add to a deploy, Ironic with fake hardware",
        "order_to_active_s": [round(one, 2) for one in ours],
        "plain_script_s": [round(one, 2) for one in plain],
        "added_s": round(added_s, 2),
        "ratio": round(statistics.median(ours) / own_s, 3),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))
    assert added_s < GOAL_S, figures
    assert added_s / own_s < GOAL_SHARE, figures


def moment(said: str) -> datetime:
    """When that was."""
    return datetime.fromisoformat(said)


def by_script(kit: IronicKit) -> float:
    """Seconds until the node is active for somebody who asks Ironic and nobody else."""
    began_at = time.monotonic()
    kit.call("PATCH", f"nodes/{PLAIN}", [{"op": "add", "path": "/instance_uuid", "value": str(uuid.uuid4())}])
    kit.go(PLAIN, "active", "active", configdrive={"meta_data": {"name": PLAIN}})
    kit.call("PUT", f"nodes/{PLAIN}/states/power", {"target": "power on"})  # which a driver that is none leaves to whoever asks
    kit.until(PLAIN, lambda seen: seen["power_state"] == "power on")
    return time.monotonic() - began_at
