"""
Firmware of bare machines through the engine's real rows: an operator's verb and a policy, and never under a tenant.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.catalog import service as catalog
from controlplane.catalog.service import Parts
from controlplane.catalog.states import FirmwareImage
from controlplane.kit.events import HistoryRow
from controlplane.nodes import service as nodes
from controlplane.nodes.errors import WrongState
from controlplane.nodes.states import NODE_STATES, Update
from tests.factories.world import World
from tests.integration.test_bare_nodes import Rack, only_bare, order

IMAGE = FirmwareImage("2.0", "http://images.example/BMC-2.0", ("/redfish/v1/UpdateService/FirmwareInventory/BMC",))
WANTED = Parts(firmware={"BMC": ("2.0",)}, images={"BMC": IMAGE})


@pytest.fixture
def rack(world: World) -> Rack:
    """Two bare machines, free."""
    made = Rack(world, 2)
    made.settle()
    assert made.states() == {"available": 2}
    return made


def want(rack: Rack, **config: Any) -> None:
    """From now on the operator wants that firmware, and has these settings of the provider."""
    world = rack.world
    world.do(lambda s: catalog.put_parts(s, world.keys.instance_type, WANTED))
    if config:
        held = "(SELECT provider_id FROM nodes WHERE id = :id)"
        for name, value in config.items():
            change = f"UPDATE providers SET config = config || jsonb_build_object('{name}', {value}), version = version + 1"
            world.rows(f"{change} WHERE id = {held} RETURNING id", id=rack.ids[0])


def ask(rack: Rack, verb: str = "update-firmware", node: int = 0) -> str:
    """The id of the operation that the operator began."""
    _, operation = rack.world.do(
        lambda s: nodes.act(s, rack.ids[node], verb, reason="new firmware", by="prn_op", check=lambda _: None)
    )
    return operation


def path_of(rack: Rack, node: int = 0) -> list[str]:
    """The states that the node went through since it was first available."""
    rows = rack.world.rows(f"SELECT after FROM {HistoryRow.__tablename__} WHERE resource_id = :id ORDER BY id", id=rack.ids[node])
    states = [row.after for row in rows]
    return states[states.index("available") + 1 :]


def row_of(rack: Rack, node: int = 0) -> Any:
    """The node's row."""
    (row,) = rack.world.rows(
        "SELECT state, reason, detail, attention, updating, inventory FROM nodes WHERE id = :id", id=rack.ids[node]
    )
    return row


def test_an_operator_updates_a_free_node(world: World, rack: Rack) -> None:
    """Updated, inspected, checked, wiped against the new baseline, and free again under the same operation; the other is left alone."""
    want(rack)
    operation = ask(rack)
    assert world.rows("SELECT state FROM nodes WHERE id = :id", id=rack.ids[0]) == [("updating",)]
    rack.settle()
    assert path_of(rack) == ["updating", "inspecting", "qualifying", "cleaning", "available"]
    assert row_of(rack).inventory["firmware"]["BMC"] == "2.0"
    assert world.rows("SELECT type, state FROM operations WHERE id = :id", id=operation) == [("node.update_firmware", "succeeded")]
    assert [rack.tools.benches[one].flashed for one in rack.ids] == [[IMAGE.url], []]
    assert world.rows("SELECT count(*) FROM wipes WHERE verified AND node_id = :id", id=rack.ids[0]) == [(2,)]


def test_workers_that_die_in_the_middle_change_nothing(world: World, rack: Rack) -> None:
    """What each second step came to is lost with its worker; the image is sent once and the update ends well."""
    want(rack)
    bench = rack.tools.benches[rack.ids[0]]
    bench.flash |= {"ends": "unknown", "looks": 3, "when": "start"}
    ask(rack)
    step, count = rack.tools.run, 0

    def dies(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count % 2:
            step(*args, **kwargs)
        return step(*args, **kwargs)

    rack.tools.run = dies  # type: ignore[method-assign]
    rack.settle()
    assert rack.states() == {"available": 2}
    assert bench.flashed == [IMAGE.url]


def test_a_failed_update_is_a_quarantine_with_a_reason(world: World, rack: Rack) -> None:
    """The operation has failed, and a person may have it tried again."""
    want(rack)
    bench = rack.tools.benches[rack.ids[0]]
    bench.flash |= {"ends": "failed"}
    operation = ask(rack)
    rack.settle()
    row = row_of(rack)
    assert (row.state, row.reason, row.detail) == ("quarantined", "Its controller could not install BMC.", "so it ended")
    assert world.rows("SELECT state FROM operations WHERE id = :id", id=operation) == [("failed",)]
    bench.flash |= {"ends": "succeeded"}
    ask(rack)
    assert row_of(rack).updating == {}
    rack.settle()
    assert rack.states() == {"available": 2}


def test_a_controller_that_never_ends_is_a_persons_at_the_deadline(world: World, rack: Rack) -> None:
    """It hangs in its own update: power is not cut under it, and by the state's longest stay a person is asked for."""
    want(rack)
    bench = rack.tools.benches[rack.ids[0]]
    bench.flash |= {"looks": 10**9}
    ask(rack)
    rack.settle(most=20)
    world.clock.advance(NODE_STATES.by_name["updating"].longest_stay_s or 0.0)
    rack.settle(most=20)
    row = row_of(rack)
    assert (row.state, row.attention) == ("updating", "deadline")
    assert Update(**row.updating).task == "task 1"
    assert rack.tools.benches[rack.ids[0]].acts[-1] == "update"


def test_a_policy_updates_at_the_next_inspection(world: World, rack: Rack) -> None:
    """Off, the node is put aside for its firmware; on, it is updated, and one whose new version does not stay is put aside, not looped."""
    want(rack)
    ask(rack, "requalify")
    rack.settle()
    assert (row_of(rack).state, "1.0 found, 2.0 expected" in row_of(rack).reason) == ("quarantined", True)
    want(rack, update_firmware="true")
    ask(rack, "requalify")
    rack.settle()
    assert path_of(rack)[-6:] == ["inspecting", "updating", "inspecting", "qualifying", "cleaning", "available"]
    bench = rack.tools.benches[rack.ids[1]]
    whole, before = bench.take_inventory, replace(bench.inventory)

    def forgets(controller: Any) -> Any:
        """The new version is shown while it is updated only."""
        seen = whole(controller)
        return seen if row_of(rack, 1).state == "updating" else replace(seen, firmware=before.firmware)

    bench.take_inventory = forgets  # type: ignore[method-assign]
    ask(rack, "requalify", 1)
    rack.settle()
    assert row_of(rack, 1).state == "quarantined"
    assert path_of(rack, 1).count("updating") == 1
    assert bench.flashed == [IMAGE.url]


def test_a_tenants_node_and_a_providers_are_never_updated(world: World, rack: Rack) -> None:
    """The verb is refused in every state of a tenancy, and for machines whose provider owns their life; what is refused changes nothing."""
    only_bare(world)
    want(rack)
    order(world, 1)
    rack.settle()
    (held,) = [row.id for row in world.rows("SELECT id FROM nodes WHERE allocation_id IS NOT NULL")]
    owned = world.rows("SELECT id FROM nodes WHERE access = '{}'::jsonb AND state = 'available' LIMIT 1")[0].id
    for node_id, words in ((held, "cannot go there"), (owned, "Its provider owns")):
        with pytest.raises(WrongState, match=words):
            world.do(lambda s, one=node_id: nodes.act(s, one, "update-firmware", reason="", by="me", check=lambda _: None))
    assert all(bench.flashed == [] for bench in rack.tools.benches.values())


def test_an_updating_node_takes_no_order(world: World, rack: Rack) -> None:
    """While its firmware is updated nobody gets it."""
    only_bare(world)
    want(rack)
    ask(rack)
    ask(rack, node=1)
    order(world, 2)
    for _ in range(3):
        world.tick()
    assert world.rows("SELECT count(*) FROM allocations WHERE node_id = ANY(:ids)", ids=rack.ids) == [(0,)]
    assert rack.states() == {"updating": 2}
