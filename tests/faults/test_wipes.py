"""
Wipes that fail, lie, say nothing or are refused: a node with traces of somebody is given to nobody.
"""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.kit.errors import NoCapacity
from controlplane.providers.adapters.simulated import judge
from controlplane.providers.adapters.simulated.metal import PLACES, WIPE_CHECKS
from tests.faults.region import NODES, Grounds

BAD: list[tuple[str, dict[str, Any]]] = [
    ("wipe_empty_report", {}),
    ("wipe_fails", {}),
    ("wipe_lies", {}),
    *(("wipe_check_fails", {"place": place}) for place in PLACES),
]


def leave(grounds: Grounds) -> str:
    """
    A tenant used one node and gave it back; the machine's name is returned.
    """
    cluster_id = grounds.order(count=1)
    grounds.world.settle()
    grounds.delete(cluster_id)
    (tenancy,) = grounds.ledger().tenancies
    assert grounds.sim.contents(tenancy.ref) != ()
    return str(tenancy.ref)


@pytest.mark.parametrize(("fault", "params"), BAD)
def test_a_wipe_that_is_not_one_keeps_the_node_out(grounds: Grounds, fault: str, params: dict[str, Any]) -> None:
    """BR-031, BR-032, BR-037, BR-038: not performed, failed, failed in one place, or claimed and not done: out until a person decides."""
    grounds.sim.play(fault, "wipe", count=None, params=params)
    ref = leave(grounds)
    grounds.world.settle()
    (node,) = grounds.world.rows("SELECT id, state, reason FROM nodes WHERE ref = :ref", ref=ref)
    assert node.state == "quarantined"
    assert node.reason != ""
    assert grounds.world.rows("SELECT count(*) FROM wipes WHERE node_id = :n AND verified", n=node.id)[0][0] == 1, "the first one"
    with pytest.raises(NoCapacity):
        grounds.order("next", NODES, who=1)
    cluster_id = grounds.order("next", NODES - 1, who=1)
    grounds.world.settle()
    assert grounds.state("clusters", cluster_id) == "running"
    assert ref not in {one.ref for one in grounds.ledger().tenancies if one.cluster_id == cluster_id}
    assert judge.unwiped_reuse(grounds.ledger()) == []
    last = grounds.ledger().tenancies[0]
    assert (last.detached_at, last.powered_off_at) != (None, None), "nobody reaches what is left on it"


def test_a_wiped_node_holds_nothing_of_its_last_tenant(grounds: Grounds) -> None:
    """BR-037: disk, memory, GPU memory, firmware and BMC are empty before the next tenant gets the machine."""
    ref = leave(grounds)
    grounds.world.settle()
    assert grounds.sim.contents(ref) == ()
    last = "SELECT checks FROM wipes w JOIN nodes n ON n.id = w.node_id WHERE n.ref = :r ORDER BY w.requested_at DESC LIMIT 1"
    (wipe,) = grounds.world.rows(last, r=ref)
    assert {one["name"] for one in wipe.checks if one["result"] == "passed"} >= set(WIPE_CHECKS.values())
    cluster_id = grounds.order("next", NODES, who=1)
    grounds.world.settle()
    assert grounds.state("clusters", cluster_id) == "running"
    assert judge.unwiped_reuse(grounds.ledger()) == []
    grounds.run_out()


def test_a_gpu_reset_that_is_in_use_is_tried_again(grounds: Grounds) -> None:
    """BR-040: refused three times because something holds the device, then done: the node comes back."""
    rule = grounds.sim.play("gpu_reset_in_use", "wipe", count=3)
    ref = leave(grounds)
    grounds.world.settle()
    assert grounds.sim.played(rule) == 3
    assert grounds.states("nodes") == ["available"] * NODES
    assert grounds.sim.contents(ref) == ()
    grounds.run_out()


def test_a_gpu_reset_that_is_always_in_use_is_never_skipped(grounds: Grounds) -> None:
    """BR-040: it is never offered; after its bound a person is asked, with the provider's words, and may give it up to quarantine."""
    grounds.sim.play("gpu_reset_in_use", "wipe", count=None)
    ref = leave(grounds)
    grounds.overstay(4 * 3600)
    (node,) = grounds.world.rows("SELECT id, state, detail FROM nodes WHERE ref = :ref", ref=ref)
    assert node.state == "cleaning"
    assert "device in use" in node.detail
    assert grounds.attention()[node.id] == "deadline"
    with pytest.raises(NoCapacity):
        grounds.order("next", NODES, who=1)
    grounds.operator("POST", f"/v1/admin/attention/{node.id}/actions/abandon")
    grounds.world.settle()
    assert grounds.state("nodes", node.id) == "quarantined"
    assert grounds.used() == 0


def test_a_wipe_without_an_end_is_never_believed(grounds: Grounds) -> None:
    """BR-032: a wipe that hangs is waited for up to its bound; the node is offered only after one that came to an end."""
    grounds.sim.play("wipe_never_finishes", "wipe", count=None)
    ref = leave(grounds)
    grounds.overstay(4 * 3600)
    (node,) = grounds.world.rows("SELECT id, state FROM nodes WHERE ref = :ref", ref=ref)
    assert (node.state, grounds.attention()[node.id]) == ("cleaning", "deadline")
    grounds.heal()
    grounds.resume_all()
    grounds.world.settle()
    assert grounds.sim.contents(ref) == ()
    grounds.run_out()
