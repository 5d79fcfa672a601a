"""
Boots of machines whose provider owns their life: begun with the deployment, spoken for by the machine, kept while it is tried again.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.activity.resolving import resolve
from controlplane.boots import reporting
from controlplane.boots.states import CLOUD_INIT_STAGES, Report
from controlplane.clusters import service as clusters
from controlplane.kit.secrets import Sealer
from tests.factories.world import MASTER_KEY, World
from tests.integration.test_bare_nodes import KEY

LOOKS = 60


def order(world: World, name: str) -> None:
    """One machine of the tenant's own, on its way."""
    sets = (clusters.SetOrder("workers", world.keys.instance_type, 1),)
    wanted = clusters.Order(name, "baremetal", world.keys.site, sets, wait=True, login=clusters.Login((KEY,)))
    sealer = Sealer.from_base64(MASTER_KEY)
    world.do(lambda s: clusters.order_cluster(s, world.tenant, world.keys.project_id, wanted, sealer))
    world.go_on(LOOKS)


@pytest.fixture
def deploying(world: World) -> Any:
    """A node whose provider has deployed it with what its tenant wants of it, and which has not called yet."""
    world.do(lambda s: s.execute(text("UPDATE providers SET config = config || :told"), {"told": json.dumps({"seeds": True})}))
    order(world, "own")
    (node,) = world.rows("SELECT id, boot_id, reason FROM nodes WHERE state = 'deploying'")
    assert node.reason == "Deployed; waits for the machine's own report."
    return node


def speak(world: World, boot_id: str) -> None:
    """The machine's own good word."""
    world.do(lambda s: reporting.phone_home(s, boot_id, {"instance_id": boot_id}))
    said = Report(True, dict.fromkeys(CLOUD_INIT_STAGES, ""), ())
    world.do(lambda s: reporting.take_report(s, boot_id, boot_id, said))


def test_a_deployment_that_is_tried_again_keeps_its_boot(world: World, deploying: Any) -> None:
    """The seed was handed out with the first try, so the machine's word still counts after a person had it tried again."""
    world.do(lambda s: s.execute(text("UPDATE nodes SET attention = 'attempts' WHERE id = :id"), {"id": deploying.id}))
    world.do(lambda s: resolve(s, "node", deploying.id, "retry"))
    world.go_on(LOOKS)
    assert world.rows("SELECT boot_id FROM nodes WHERE id = :id", id=deploying.id) == [(deploying.boot_id,)]
    speak(world, deploying.boot_id)
    world.settle()
    assert world.rows("SELECT state FROM nodes WHERE id = :id", id=deploying.id) == [("active",)]


def test_the_next_tenancy_has_a_boot_of_its_own(world: World, deploying: Any) -> None:
    """What an earlier tenant's machine was handed opens nothing once the machine is given back, and the next tenant's has another."""
    speak(world, deploying.boot_id)
    world.settle()
    (cluster,) = world.rows("SELECT id FROM clusters")
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster.id, lambda _: None))
    world.settle()
    assert world.rows("SELECT state FROM boots WHERE id = :id", id=deploying.boot_id) == [("ended",)]
    world.do(lambda s: s.execute(text("UPDATE nodes SET state = 'maintenance' WHERE id <> :id"), {"id": deploying.id}))
    order(world, "next")
    (node,) = world.rows("SELECT boot_id FROM nodes WHERE id = :id", id=deploying.id)
    assert node.boot_id != deploying.boot_id
    speak(world, node.boot_id)
    world.settle()
    assert world.rows("SELECT state FROM nodes WHERE id = :id", id=deploying.id) == [("active",)]
