"""
Changes that the API of a Kubernetes that was taken over turns down for good, through the API in this process.
"""

from __future__ import annotations

import pytest

from tests.integration.test_taken_kubernetes import SECRETS, Scene, instance_of
from tests.integration.test_taken_kubernetes import scene as scene  # noqa: PLC0414 - a fixture
from tests.kubernetes_kit import UNTIDY

pytestmark = UNTIDY
LET_IN = {"method": "POST", "path": SECRETS}
LET_OUT = {"method": "DELETE", "path": "/api/v1/nodes/"}


@pytest.mark.parametrize(("rule", "workers"), [(LET_IN, 3), (LET_OUT, 1)], ids=["a worker too many", "a worker out"])
def test_what_its_api_turns_down_leaves_it_as_it_was(scene: Scene, rule: dict[str, str], workers: int) -> None:
    """Nobody new, nobody barred or let go, billed and charged as before; the operation says so, and the same change succeeds later."""
    cluster_id = scene.adopt()
    scene.rack.settle(60)
    leaving = {"leaving": [instance_of(scene, scene.used[2])]} if workers == 1 else {}
    body = {"node_sets": [{"name": "workers", "count": workers}], **leaving}
    before = (scene.names(), scene.machines(), scene.billed(), scene.charged())
    scene.kit.handle.post("/_emu/faults", [{**rule, "times": 100_000, "status": 422}])
    scene.world.clock.advance(60)
    asked = scene.send("PATCH", f"/clusters/{cluster_id}", body, **{"If-Match": "*"})
    assert asked.status_code == 202, asked.text
    scene.rack.settle()
    assert (scene.state(cluster_id), scene.names(), scene.machines(), scene.billed(), scene.charged()) == ("running", *before)
    assert scene.world.rows("SELECT state, error->>'code' AS code FROM operations WHERE type = 'cluster.update'") == [
        ("failed", "provider_refused")
    ]
    assert [one for one in scene.kit.ask("GET", "/api/v1/nodes")["items"] if one["spec"].get("unschedulable")] == []
    assert scene.kit.ask("GET", SECRETS)["items"] == []
    scene.kit.handle.post("/_emu/faults", [])
    scene.world.clock.advance(60)
    assert scene.send("PATCH", f"/clusters/{cluster_id}", body, **{"If-Match": "*"}).status_code == 202
    scene.rack.settle()
    assert (scene.state(cluster_id), scene.billed()) == ("running", 1 + workers)
