"""
The Kubernetes product of a simulated region, as somebody meets it who tries it on a laptop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, Database
from tests.crash.main_job import ServiceLife
from tests.factories.world import make_world
from tests.schedules.invariants import broken_promises
from tests.schedules.run import FLEET


@pytest.fixture
def life(database: Database, tmp_path: Path) -> Iterator[ServiceLife]:
    """A region whose tenant has a running Kubernetes cluster."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    world.settle()
    made = ServiceLife(world, whole=False)
    yield made
    made.close()
    world.clock.stop()


def test_services_run_and_kubeconfigs_are_refused_in_words(life: ServiceLife) -> None:
    """The guide's service comes to run on an ordered cluster; there is no API server to be let into; all of it goes with the cluster."""
    refused = life.send("POST", f"/clusters/{life.cluster}/kubeconfigs", {"lifetime_s": 900})
    assert (refused.status_code, refused.json()["code"]) == (409, "kubeconfig_not_offered")
    guide = (ROOT / "docs" / "guides" / "services.md").read_text("utf-8")
    example = json.loads(re.findall(r"```json\n(.*?)```", guide, re.DOTALL)[0])
    example["spec"]["cluster_id"] = life.cluster
    made = life.ask("POST", "/services", example)
    life.drive(f"services/{made['id']}", "running", takeover=False)
    assert broken_promises(life.world) == []
    life.change(f"/clusters/{life.cluster}", "DELETE", None)
    life.drive(f"services/{made['id']}", "deleted", takeover=False)
    life.drive(f"clusters/{life.cluster}", "deleted", takeover=False)
    assert broken_promises(life.world) == []
