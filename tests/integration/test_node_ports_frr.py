"""
Ports of bare machines on a real fabric: a leaf that starts anew gets its networks back by the sweep, and nobody meets anybody meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from controlplane.nodes import service as nodes
from controlplane.nodes.registering import NewPort
from controlplane.providers.fabrics import PortRef
from tests.conftest import Database
from tests.fabric_lab import BMC_ADDRESS, MACHINES, FabricLab, running_lab, until
from tests.factories.wired import FLEET, WiredRack
from tests.factories.world import make_world
from tests.integration.test_bare_nodes import only_bare
from tests.integration.test_node_ports import order

HOMES = {"m11": "10.50.0.1", "m21": "10.50.0.2", "m12": "10.50.0.3", "m22": "10.50.0.4"}
"""Both tenants' machines in one subnet, so that only the fabric keeps them apart."""
OUTSIDE = (BMC_ADDRESS, "10.97.9.1", "10.97.0.1", "10.97.1.1")
"""A management controller, and the leaf's own addresses."""


class LabRack(WiredRack):
    """Four bare machines whose data ports end at the lab's two leaves."""

    def cables(self, number: int, fabric_id: str) -> tuple[NewPort, ...]:
        one = MACHINES[number - 1]
        self.refs = (*self.refs, PortRef(one.switch, one.port))
        return (NewPort("p1", fabric_id, one.switch, one.port),)


@pytest.fixture
def lab() -> Iterator[FabricLab]:
    """A fabric of its own."""
    with running_lab() as running:
        yield running


@pytest.fixture
def rack(database: Database, tmp_path: Path, lab: FabricLab) -> Iterator[LabRack]:
    """The lab's machines: the first port of each leaf is one tenant's, the second another's."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    world.settle()
    only_bare(world)
    made = LabRack(world, 4)
    config = text("UPDATE providers SET config = CAST(:config AS jsonb), version = version + 1 WHERE adapter = 'frr-evpn'")
    world.do(lambda s: s.execute(config, {"config": json.dumps(lab.config())}))
    made.settle()
    others = [one for one, machine in zip(made.ids, MACHINES, strict=True) if machine.port == "p2"]
    holds = [world.do(partial(nodes.place_hold, node_id=one, reason="later", by="test", until=None)) for one in others]
    order(made, 2)
    for node_id, hold in zip(others, holds, strict=True):
        world.do(partial(nodes.lift_hold, node_id=node_id, hold_id=hold.id))
    order(made, 2, person=1)
    for name, address in HOMES.items():
        lab.address(name, address, "10.97.0.0/16")
    yield made
    made.tools.close()
    world.clock.stop()


def meets(lab: FabricLab, machine: str) -> set[str]:
    """Whom the machine reaches, of all machines and of what is the operator's."""
    addresses = [one for name, one in HOMES.items() if name != machine]
    with ThreadPoolExecutor(len(addresses) + len(OUTSIDE)) as pool:
        return set(pool.map(partial(lab.asked, machine), (*addresses, *OUTSIDE))) - {""}


def test_a_leaf_that_starts_anew_gets_its_ports_back(rack: LabRack, lab: FabricLab) -> None:
    """Cut off and never joined: after the look each machine reaches its own tenant's again, and at no time anybody else."""
    own = {"m11": {"m21"}, "m21": {"m11"}, "m12": {"m22"}, "m22": {"m12"}}
    for name, mates in own.items():
        until(partial(meets, lab, name), mates.__eq__)
    rack.look()
    assert rack.troubles() == []
    lab.reboot("l1")
    assert [meets(lab, name) for name in own] == [set()] * 4
    assert rack.look() == 2
    assert len(rack.troubles()) == 2
    for name, mates in own.items():
        assert until(partial(_only, lab, name, mates), bool) == mates
    until(lambda: (rack.look(), rack.troubles())[1], lambda left: left == [])
    assert sorted(kind for kind, _ in rack.events()) == ["right", "right", "wrong", "wrong"]


def test_a_leaf_whose_frr_has_no_configuration_is_told_of_until_it_has_one(rack: LabRack, lab: FabricLab) -> None:
    """The sweep does what is its own, says what is the operator's to do, and finds all well once that is done; walls stand throughout."""
    own = {"m11": {"m21"}, "m12": {"m22"}}
    for name, mates in own.items():
        until(partial(meets, lab, name), mates.__eq__)
    lab.reboot("l1", configured=False)
    rack.look()
    rack.look()
    assert [words.split(", and ")[1] for words in rack.troubles()] == ["FRR does not answer, or its EVPN is off."] * 2
    assert [meets(lab, name) for name in own] == [set()] * 2
    lab.halt("l1")
    lab.start_frr("l1")
    for name, mates in own.items():
        assert until(partial(_only, lab, name, mates), bool) == mates
    until(lambda: (rack.look(), rack.troubles())[1], lambda left: left == [])


def _only(lab: FabricLab, machine: str, mates: set[str]) -> set[str]:
    """Whom the machine reaches; fails at once when that is anybody but its mates."""
    met = meets(lab, machine)
    assert met <= mates, f"{machine} reaches {met}"
    return met
