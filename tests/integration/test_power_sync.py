"""
The power that machines say they have, beside what their states want: on benches, by the pass itself, in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.nodes import discovering, powering
from controlplane.nodes.sightings import Listing, Sighting
from tests.conftest import Database
from tests.factories.world import World, make_world
from tests.integration.test_bare_nodes import Rack
from tests.integration.test_instance_actions import Flat
from tests.schedules.run import FLEET
from workers.watch import Watch

AMISS = ("info", powering.WORDS)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A small region on virtual time."""
    made = make_world(database, tmp_path, fleet=str(FLEET))
    made.settle()
    yield made
    made.clock.stop()


@pytest.fixture
def flat(world: World) -> Flat:
    """A tenant with one bare machine."""
    return Flat(Rack(world, 2))


def _looked(flat: Flat, **bench: Any) -> tuple[str, list[tuple[str, str]]]:
    """What is recorded of the tenant's machine after another pass, and what is reported of its power."""
    for name, value in bench.items():
        setattr(flat.bench, name, value)
    flat.world.clock.advance(61)
    with Watch(flat.world.engine, flat.rack.tools) as watch:
        watch.whole_round()
    (node,) = flat.world.rows("SELECT power FROM nodes WHERE id = :id", id=flat.node_id)
    query = "SELECT class, message FROM health_reports WHERE node_id = :id AND check_name = 'power_state'"
    return node.power, [(row[0], row[1]) for row in flat.world.rows(query, id=flat.node_id)]


def test_off_twice_is_reported_and_on_again_taken_back(flat: Flat) -> None:
    """One look proves nothing, nor does silence; the report makes nobody's machine sick."""
    assert _looked(flat) == ("on", [])
    assert _looked(flat, power_="off") == ("off", [])
    assert _looked(flat, mute=True) == ("off", [])
    assert _looked(flat, mute=False) == ("off", [AMISS])
    assert flat.world.rows("SELECT health, state FROM nodes WHERE id = :id", id=flat.node_id) == [("info", "active")]
    assert _looked(flat, power_="on") == ("on", [("ok", "")])
    assert flat.world.rows("SELECT health FROM nodes WHERE id = :id", id=flat.node_id) == [("ok",)]


def test_one_look_that_was_wrong_is_forgotten(flat: Flat) -> None:
    """Controllers show the old power for a while, and `unknown` while it changes: that says nothing in either direction."""
    assert _looked(flat, power_="off") == ("off", [])
    assert _looked(flat, power_="unknown") == ("off", [])
    assert _looked(flat, power_="on") == ("on", [])
    assert _looked(flat, power_="off") == ("off", [])


def test_a_tenants_own_stop_is_no_fault(flat: Flat) -> None:
    """Stopped by its tenant it is off for as long as they like; what was seen before does not count after they started it again."""
    assert _looked(flat, power_="off") == ("off", [])
    flat.bench.power_ = "on"
    flat.done("stop")
    assert flat.bench.power_ == "off"
    for _ in range(3):
        assert _looked(flat)[1] == []
    flat.done("start")
    assert _looked(flat, power_="off") == ("off", [])
    assert _looked(flat, power_="off") == ("off", [AMISS])


def test_a_machine_that_nobody_has_may_be_off(flat: Flat) -> None:
    """Only a tenant's should be on."""
    free = next(one for one in flat.rack.ids if one != flat.node_id)
    flat.rack.tools.benches[free].power_ = "off"
    for _ in range(3):
        _looked(flat)
    assert flat.world.rows("SELECT power FROM nodes WHERE id = :id", id=free) == [("off",)]
    assert flat.world.rows("SELECT count(*) FROM health_reports WHERE check_name = 'power_state'") == [(0,)]


def test_a_providers_list_tells_power_too(flat: Flat) -> None:
    """Where a provider owns its machines' lives, its list of all of them has their power: no machine is asked by itself."""
    rows = flat.world.rows("SELECT provider_id, ref FROM nodes WHERE id = :id", id=flat.node_id)
    provider_id, ref = rows[0]

    def listed(power: str) -> list[Any]:
        flat.world.clock.advance(discovering.EVERY_S)
        listing = Listing((Sighting(ref, power=power), Sighting("a stranger", power="off")), complete=False)
        flat.world.do(lambda s: discovering.store_listing(s, provider_id, listing))
        query = "SELECT n.power, r.class FROM nodes n LEFT JOIN health_reports r ON r.node_id = n.id WHERE n.id = :id"
        return [tuple(row) for row in flat.world.rows(query, id=flat.node_id)]

    assert listed("on") == [("on", None)]
    assert listed("off") == [("off", None)]
    assert listed("off") == [("off", "info")]
