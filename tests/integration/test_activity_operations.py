"""
Operations as callers see them: listed, waited for, called off, and settled by an operator, with all that follows.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from controlplane.activity.routes import router as activity
from controlplane.clusters.routes import router as clusters
from controlplane.providers.adapters.simulated.control import SimControl
from tests.conftest import Database
from tests.factories.identity import Caller, small_app
from tests.factories.nodes import SITE, TYPE, Fleet, make_fleet
from tests.factories.world import World


@pytest.fixture
def fleet(database: Database, tmp_path: Path) -> Fleet:
    """
    A fleet without a free node, and two tenants.
    """
    return make_fleet(database, tmp_path)


def order(fleet: Fleet, name: str = "train") -> tuple[str, str]:
    """
    Ids of a cluster that waits for capacity and of its operation.
    """
    spec = {"kind": "slurm", "site": SITE, "wait": True, "node_sets": [{"name": "workers", "instance_type": TYPE, "count": 2}]}
    branch = fleet.tree.left
    answer = fleet.call(branch.owner_key)("POST", f"/v1/projects/{branch.project_id}/clusters", {"name": name, "spec": spec})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"], answer.headers["Location"].rsplit("/", 1)[1]


def used(fleet: Fleet) -> Any:
    """
    GPUs and clusters that the tenant's quota counts as held; None for none.
    """
    query = (
        "SELECT string_agg(resource || ' ' || used, ', ' ORDER BY resource) FROM quotas"
        " WHERE scope_id = :t AND used > 0 AND site = '' AND resource <> 'keys'"
    )
    return fleet.one(query, t=fleet.tree.left.tenant_id)


def test_the_list_narrows_and_is_the_callers(fleet: Fleet) -> None:
    """A tenant lists its own operations by state, type and resource; its reseller sees them too, the neighbour does not."""
    cluster_id, operation_id = order(fleet)
    order(fleet, "other")
    left, right = fleet.tree.left, fleet.tree.right
    mine = fleet.call(left.owner_key)
    (one,) = mine("GET", f"/v1/operations?resource_id={cluster_id}&type=cluster.create&state=running").json()["items"]
    assert (one["id"], one["progress"]) == (operation_id, {"done": 0, "of": 5})
    assert mine("GET", "/v1/operations?state=failed").json()["items"] == []
    counts = {
        key: len(fleet.call(key)("GET", "/v1/operations").json()["items"])
        for key in (left.owner_key, left.reseller_key, right.owner_key, right.reseller_key, fleet.tree.operator_key)
    }
    assert list(counts.values()) == [2, 2, 0, 0, 2]
    everybody = fleet.call()("GET", f"/v1/admin/operations?tenant_id={left.tenant_id}").json()["items"]
    assert len(everybody) == 2
    assert mine("GET", "/v1/admin/operations").status_code == 403


def test_a_foreign_operation_is_an_unknown_one(fleet: Fleet) -> None:
    """Whatever is asked of another tenant's operation is answered as for an id that never existed."""
    _, operation_id = order(fleet)
    for key in (fleet.tree.right.owner_key, fleet.tree.right.reseller_key):
        call = fleet.call(key)
        for method, path in (("GET", ""), ("POST", "/actions/cancel")):
            foreign = call(method, f"/v1/operations/{operation_id}{path}")
            unknown = call(method, f"/v1/operations/opr_00000000000000000000000000{path}")
            assert foreign.status_code == 404
            assert foreign.json() == unknown.json()
    assert used(fleet) is not None


def test_waiting_ends_with_the_change(fleet: Fleet) -> None:
    """A long poll answers soon after the state changes, long before its time is up."""
    _, operation_id = order(fleet)
    call = fleet.call(fleet.tree.left.owner_key)
    timer = threading.Timer(0.5, lambda: fleet.sql("UPDATE operations SET state = 'needs_attention', version = version + 1"))
    timer.start()
    begun = time.monotonic()
    answer = call("GET", f"/v1/operations/{operation_id}?wait_s=20")
    timer.join()
    assert answer.json()["state"] == "needs_attention"
    assert 0.4 < time.monotonic() - begun < 10


def test_waiting_has_an_end(fleet: Fleet) -> None:
    """Nothing changes: the answer comes when the time is up; for what has ended, and for what is not there, at once."""
    cluster_id, operation_id = order(fleet)
    call = fleet.call(fleet.tree.left.owner_key)
    begun = time.monotonic()
    assert call("GET", f"/v1/operations/{operation_id}?wait_s=1").json()["state"] == "running"
    assert 0.9 < time.monotonic() - begun < 8
    begun = time.monotonic()
    call("POST", f"/v1/operations/{operation_id}/actions/cancel")
    assert call("GET", f"/v1/operations/{operation_id}?wait_s=30").json()["state"] == "cancelled"
    assert call("GET", f"/v1/operations/{cluster_id}?wait_s=30").status_code == 404
    assert time.monotonic() - begun < 8
    assert call("GET", f"/v1/operations/{operation_id}?wait_s=31").status_code == 422


def test_a_cancelled_order_leaves_nothing(fleet: Fleet) -> None:
    """An order that holds nothing yet is gone at once, its quota is back, and a second cancel is told that it has ended."""
    cluster_id, operation_id = order(fleet)
    assert used(fleet) == "clusters 1, gpus 16, operations 1"
    call = fleet.call(fleet.tree.left.owner_key)
    done = call("POST", f"/v1/operations/{operation_id}/actions/cancel")
    assert (done.status_code, done.json()["state"]) == (202, "cancelled")
    assert fleet.one("SELECT state FROM clusters WHERE id = :c", c=cluster_id) == "deleted"
    assert used(fleet) is None
    again = call("POST", f"/v1/operations/{operation_id}/actions/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "not_cancellable")


def test_a_suspended_tenant_can_stop_an_order(fleet: Fleet) -> None:
    """Suspension never stops what stops costs, nor hides it."""
    _, operation_id = order(fleet)
    fleet.sql("UPDATE tenants SET state = 'suspended' WHERE id = :t", t=fleet.tree.left.tenant_id)
    call = fleet.call(fleet.tree.left.owner_key)
    assert call("GET", f"/v1/operations/{operation_id}").status_code == 200
    assert call("GET", "/v1/events").status_code == 403
    assert call("POST", f"/v1/operations/{operation_id}/actions/cancel").status_code == 202


def test_what_is_not_an_order_is_not_cancelled(fleet: Fleet) -> None:
    """An operation on a node is not undone half-way."""
    fleet.put("maintenance")
    path = f"/v1/admin/nodes/{fleet.node_ids[0]}"
    call = fleet.call()
    version = call("GET", path).json()["version"]
    operation_id = call("POST", f"{path}/actions/requalify", {"reason": "back"}, version=version).json()["operation_id"]
    refused = call("POST", f"/v1/operations/{operation_id}/actions/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_cancellable")


@pytest.mark.parametrize(("verb", "step", "fresh"), [("resume", "asked", False), ("retry", "", True)])
def test_a_stuck_node_goes_on(fleet: Fleet, verb: str, step: str, *, fresh: bool) -> None:
    """Resume keeps what was reached, retry starts afresh under a new token; both set a new deadline and forget the attempts."""
    node_id = stick(fleet, "inspecting", operation=True)
    operation_id = fleet.one("SELECT id FROM operations")
    answer = fleet.call()("POST", f"/v1/admin/operations/{operation_id}/actions/{verb}")
    assert (answer.status_code, answer.json()["state"], answer.json()["error"]) == (202, "running", None)
    row = fleet.do(lambda session: session.execute(_node(), {"id": node_id}).mappings().one())
    assert (row["state"], row["step"], row["attention"], row["attempts"]) == ("inspecting", step, "", 0)
    assert (row["due"], row["late"], row["fence"]) == (True, False, 1)
    assert (row["task_id"] != "tsk_old") is fresh
    again = fleet.call()("POST", f"/v1/admin/operations/{operation_id}/actions/{verb}")
    assert (again.status_code, again.json()["code"]) == (409, "not_resolvable")


def test_a_retried_wipe_is_a_new_wipe(fleet: Fleet) -> None:
    """The second wipe has a record of its own, so that the first one's report cannot count for it."""
    node_id = stick(fleet, "cleaning")
    fleet.call()("POST", f"/v1/admin/attention/{node_id}/actions/retry")
    wipes = fleet.do(lambda session: session.execute(_wipes(), {"id": node_id}).scalars().all())
    assert fleet.one("SELECT task_id FROM nodes WHERE id = :n", n=node_id) in wipes


def test_what_is_given_up_has_failed(fleet: Fleet) -> None:
    """An abandoned node is where its table says failures go, with history, event and audit; its operation has failed."""
    node_id = stick(fleet, "inspecting", operation=True)
    operation_id = fleet.one("SELECT id FROM operations")
    call = fleet.call()
    answer = call("POST", f"/v1/admin/operations/{operation_id}/actions/abandon")
    assert (answer.status_code, answer.json()["state"], answer.json()["error"]["code"]) == (202, "failed", "abandoned")
    node = call("GET", f"/v1/admin/nodes/{node_id}").json()
    assert (node["status"]["state"], node["attention"]) == ("quarantined", "")
    moves = call("GET", f"/v1/admin/nodes/{node_id}/history").json()["items"]
    assert (moves[-1]["before"], moves[-1]["after"]) == ("inspecting", "quarantined")
    assert "node.quarantined" in [one["type"] for one in call("GET", f"/v1/events?resource_id={node_id}").json()["items"]]
    (entry,) = call("GET", "/v1/audit-events?action=operations:resolve").json()["items"]
    assert (entry["target"], entry["detail"]["action"]) == (node_id, "abandon")


def test_nothing_is_given_up_that_has_nowhere_to_fail(fleet: Fleet) -> None:
    """A state without a failure state keeps its resource; what does not wait for a person, and what never was, is refused too."""
    stuck, well = stick(fleet, "enrolled"), fleet.node_ids[1]
    call = fleet.call()
    assert call("POST", f"/v1/admin/attention/{stuck}/actions/abandon").json()["code"] == "not_resolvable"
    assert call("POST", f"/v1/admin/attention/{well}/actions/resume").json()["code"] == "not_resolvable"
    assert call("POST", "/v1/admin/attention/nod_none/actions/resume").status_code == 404
    assert call("POST", "/v1/admin/attention/prj_none/actions/resume").status_code == 404
    assert call("POST", "/v1/admin/operations/opr_none/actions/resume").status_code == 404
    tenant = fleet.call(fleet.tree.left.owner_key)
    assert tenant("POST", f"/v1/admin/attention/{stuck}/actions/resume").json()["code"] == "wrong_audience"


def test_attention_lists_all_that_needs_a_person(fleet: Fleet) -> None:
    """Stuck nodes, late clusters, unconfirmed deletes and silent providers are listed once each, page by page; the rest is not."""
    node_id = stick(fleet, "inspecting")
    late, _ = order(fleet, "late")
    gone, _ = order(fleet, "gone")
    order(fleet, "well")
    past = "deadline_at = cp_clock() - interval '1 s'"
    fleet.sql(f"UPDATE clusters SET {past} WHERE id = :c", c=late)
    fleet.sql(f"UPDATE clusters SET state = 'deleting', {past} WHERE id = :c", c=gone)
    fleet.sql("UPDATE providers SET seen_at = cp_clock() - interval '1 hour', problem = 'refused'")
    found, token = [], ""
    while True:
        body = fleet.call()("GET", f"/v1/admin/attention?limit=1{token}").json()
        found += [(one["kind"], one["id"], one["attention"]) for one in body["items"]]
        if body["next_page_token"] is None:
            break
        token = f"&page_token={body['next_page_token']}"
    assert found == [
        *sorted([("cluster", late, "deadline"), ("cluster", gone, "unconfirmed_delete")], key=lambda one: one[1]),
        ("node", node_id, "attempts"),
        ("provider", fleet.provider_id, "provider_silent"),
    ]
    assert [one["id"] for one in fleet.call()("GET", "/v1/admin/attention?kind=node").json()["items"]] == [node_id]
    refused = fleet.call()("POST", f"/v1/admin/attention/{gone}/actions/abandon")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_resolvable")


def stick(fleet: Fleet, state: str, *, operation: bool = False) -> str:
    """
    The node needs a person in the state; its id is returned.
    """
    if operation:
        fleet.put("maintenance")
        path = f"/v1/admin/nodes/{fleet.node_ids[0]}"
        version = fleet.call()("GET", path).json()["version"]
        fleet.call()("POST", f"{path}/actions/requalify", {"reason": "back"}, version=version)
        fleet.sql("UPDATE operations SET state = 'needs_attention'")
    node_id = fleet.put(state, step="asked", attention="attempts", attempts=6, task_id="tsk_old")
    fleet.sql("UPDATE nodes SET deadline_at = cp_clock() - interval '1 s' WHERE id = :n", n=node_id)
    return node_id


def test_a_cluster_given_up_half_way_holds_nothing_in_the_end(world: World) -> None:
    """Abandoned while its nodes are deployed: it has failed at once, its nodes come back wiped, and the quota is where it was."""
    before = world.rows("SELECT scope_id, resource, gpu_model, site, used FROM quotas WHERE used > 0 ORDER BY 1, 2, 3, 4")
    app = small_app(world.engine, clusters)
    app.include_router(activity)
    tenant, operator = Caller(app, world.keys.tenant_key), Caller(app, world.keys.operator_key)
    sets = [{"name": "workers", "instance_type": world.keys.instance_type, "count": 3}]
    spec = {"kind": "slurm", "site": world.keys.site, "node_sets": sets}
    made = tenant("POST", f"/v1/projects/{world.keys.project_id}/clusters", {"name": "train", "spec": spec})
    cluster_id, operation = made.json()["id"], made.headers["Location"]
    control = SimControl(world.region.world, now=world.clock)
    control.play("deploy_never_finishes", "deploy", count=1)
    for _ in range(6):
        world.tick()
    assert tenant("GET", operation).json()["state"] == "running"
    world.do(lambda session: session.execute(_late(), {"id": cluster_id}))
    done = operator("POST", f"{operation.replace('/v1/', '/v1/admin/')}/actions/abandon")
    assert (done.status_code, done.json()["state"]) == (202, "failed")
    (row,) = world.rows("SELECT state, attention, reason FROM clusters")
    assert tuple(row) == ("failed", "", "An operator gave it up.")
    control.heal()
    control.close()
    world.settle()
    assert world.rows("SELECT DISTINCT state FROM allocations") == [("ended",)]
    assert world.rows("SELECT DISTINCT state FROM nodes") == [("available",)]
    assert world.rows("SELECT scope_id, resource, gpu_model, site, used FROM quotas WHERE used > 0 ORDER BY 1, 2, 3, 4") == before
    assert world.rows("SELECT count(*) FROM meter_intervals") == [(0,)]


def _node() -> Any:
    return text(
        "SELECT *, due_at <= cp_clock() AS due, deadline_at < cp_clock() AS late FROM nodes WHERE id = :id",
    )


def _wipes() -> Any:
    return text("SELECT id FROM wipes WHERE node_id = :id")


def _late() -> Any:
    return text("UPDATE clusters SET deadline_at = cp_clock() - interval '1 s', attention = 'deadline' WHERE id = :id")
