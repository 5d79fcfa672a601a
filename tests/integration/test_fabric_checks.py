"""
Checks of the network between nodes: through the real routes, engine and Postgres, on simulated machines with good and bad links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from controlplane.activity.routes import router as activity
from controlplane.fabric_checks.routes import router
from controlplane.fabric_checks.states import FABRIC_CHECK_STATES
from controlplane.kit import crashpoints
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.nodes import service as nodes
from controlplane.nodes.routes import router as nodes_routes
from controlplane.providers.adapters.simulated.control import SimControl
from controlplane.qualification.routes import router as qualification
from tests.conftest import Database
from tests.factories.identity import Caller, small_app
from tests.factories.world import World, make_world
from workers.sweeps import check_repaired

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
LEAF = {"kind": "leaf", "site": "one", "leaf": "one-b1-l1"}
LAPSE_S = 70.0


class Death(BaseException):
    """The process is gone from here on."""


def die_at(point: str, reached: str) -> None:
    """A hook that ends the process there."""
    if reached == point:
        raise Death


class Spine:
    """
    Six free machines on two leaves, the operator's requests, and the hand that spoils links.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = small_app(world.engine, router)
        for other in (nodes_routes, qualification, activity):
            self.app.include_router(other)
        self.sim = SimControl(world.region.world)
        world.settle()
        rows = world.rows("SELECT id, ref FROM nodes ORDER BY ref")
        self.ids: dict[str, str] = {row.ref: row.id for row in rows}
        self.on_leaf = [row.id for row in rows if row.ref.startswith("one-b1-l1-")]

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return Caller(self.app, self.world.keys.operator_key)(method, f"/v1/admin/{path}", body, **more)

    def order(self, scope: dict[str, Any] | None = None, tool: str = "nccl-tests") -> str:
        """The id of a check that is under way."""
        answer = self("POST", "fabric-checks", {"scope": scope or LEAF, "tool": tool})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def pair(self) -> dict[str, Any]:
        """The first two machines."""
        return {"kind": "pair", "node_id": self.on_leaf[0], "peer_node_id": self.on_leaf[1]}

    def show(self, check_id: str) -> dict[str, Any]:
        """The check as operators see it."""
        shown: dict[str, Any] = self("GET", f"fabric-checks/{check_id}").json()
        return shown

    def run(self, scope: dict[str, Any] | None = None, tool: str = "nccl-tests") -> dict[str, Any]:
        """A check after its end."""
        check_id = self.order(scope, tool)
        self.world.settle()
        return self.show(check_id)

    def baseline(self, metric: str, kind: str, value: float, unit: str) -> None:
        """This is good enough for the machines."""
        body = {
            "instance_type": "hgx-h100-8",
            "subject_kind": kind,
            "metric": metric,
            "comparison": "at_least",
            "value": value,
            "unit": unit,
            "source": "acceptance",
        }
        assert self("POST", "baselines", body).status_code == 201

    def speeds(self) -> None:
        """Baselines a little under what good links reach."""
        for kind in ("pair", "leaf", "rail"):
            self.baseline("nccl_all_reduce_bus_bandwidth_largest", kind, 350, "GB/s")
        self.baseline("rdma_write_bandwidth_average", "pair", 380, "Gbit/s")

    def states(self) -> set[str]:
        """The states that nodes are in."""
        return {row.state for row in self.world.rows("SELECT DISTINCT state FROM nodes")}

    def until(self, check_id: str, state: str) -> None:
        """The check is in the state."""
        for _ in range(60):
            if self.show(check_id)["status"]["state"] == state:
                return
            if not self.world.tick():
                self.world.clock.advance(1.0)
        raise AssertionError(self.show(check_id)["status"])


@pytest.fixture
def spine(database: Database, tmp_path: Path) -> Iterator[Spine]:
    """
    Six free machines on two leaves.
    """
    made = Spine(make_world(database, tmp_path, fleet=str(FLEET)))
    yield made
    made.sim.close()
    made.world.clock.stop()


def test_a_good_leaf_passes_and_its_nodes_are_free_again(spine: Spine) -> None:
    """All figures are in the ledger under the check's id; nobody is blamed; every node is as free as before."""
    spine.speeds()
    done = spine.run()
    assert (done["status"]["state"], done["verdict"], done["blamed"]) == ("done", "passed", [])
    assert {one["result"] for one in done["runs"]} == {"passed"}
    assert [(one["kind"], one["nodes"]) for one in done["runs"]] == [("leaf", 3)] + [("pair", 2)] * 3
    measured = spine("GET", f"measurements?run_id={done['id']}&limit=200").json()["items"]
    kinds = {(one["subject"]["kind"], one["metric"]) for one in measured}
    assert {("leaf", "nccl_all_reduce_bus_bandwidth_largest"), ("pair", "fabric_run_passed")} <= kinds
    assert {one["verdict"] for one in measured} <= {"passed", "not_judged"}
    assert spine.states() == {"available"}
    assert done["ended_at"] is not None
    assert spine.sim.checks(done["id"]) == (True, 4)
    operation = Caller(spine.app, spine.world.keys.operator_key)("GET", "/v1/operations").json()["items"][-1]
    assert (operation["type"], operation["state"]) == ("fabric_check.create", "succeeded")


@pytest.mark.parametrize("factor", [0.6, 0.0])
def test_the_bad_node_of_a_leaf_is_found_by_its_pairs(spine: Spine, factor: float) -> None:
    """A slow and a dead port alike: it fails with both others, they do well together; it is kept out of placement with the reason."""
    spine.speeds()
    bad = spine.ids["one-b1-l1-r1-n02"]
    spine.sim.spoil_link("one-b1-l1-r1-n02", factor=factor)
    done = spine.run()
    assert (done["status"]["state"], done["verdict"]) == ("done", "failed")
    assert done["blamed"] == [{"node_id": bad, "fails_with": sorted(one for one in spine.on_leaf if one != bad)}]
    reasons = spine("GET", f"node-qualifications/{bad}").json()["reasons"]
    assert "suspect_in_pairs" in {one["code"] for one in reasons}
    good = next(one for one in spine.on_leaf if one != bad)
    others = spine("GET", f"node-qualifications/{good}").json()["reasons"]
    assert "suspect_in_pairs" not in {one["code"] for one in others}
    spine.sim.heal()
    assert spine.run()["verdict"] == "passed"
    assert spine("GET", f"node-qualifications/{bad}").json()["reasons"] == []


def test_a_dead_rail_shows_on_its_rail_alone(spine: Spine) -> None:
    """Rail 3 of the leaf is dead: writes on rail 2 do well, those on rail 3 break, and all partners fail alike."""
    spine.speeds()
    spine.sim.spoil_link("one-b1-l1-*", rail=3, factor=0.0)
    good = spine.run(LEAF | {"rail": 2}, "ib_write_bw")
    assert (good["verdict"], {one["rail"] for one in good["runs"]}) == ("passed", {2})
    dead = spine.run(LEAF | {"rail": 3}, "ib_write_bw")
    assert (dead["verdict"], {one["result"] for one in dead["runs"]}) == ("failed", {"failed"})
    parts = {one["subject"]["part"] for one in spine("GET", f"measurements?run_id={dead['id']}").json()["items"]}
    assert parts == {"rail3"}
    whole = spine.run({"kind": "rail", "site": "one", "leaf": "one-b1-l1", "rail": 3})
    assert whole["runs"][0]["kind"] == "rail"
    assert whole["verdict"] == "failed"


def test_a_block_measures_its_leaves_and_the_spine_between_them(spine: Spine) -> None:
    """Both leaves at once, their pairs, and a pair across."""
    done = spine.run({"kind": "block", "site": "one", "block": "one-b1"})
    assert (done["status"]["state"], len(done["node_ids"]), done["verdict"]) == ("done", 6, "not_judged")
    assert [one["leaf"] for one in done["runs"] if one["kind"] == "leaf"] == ["one-b1-l1", "one-b1-l2"]
    across = [
        one
        for one in done["runs"]
        if one["kind"] == "pair" and (one["node_id"] in spine.on_leaf) != (one["peer_node_id"] in spine.on_leaf)
    ]
    assert len(across) == 1


def test_what_is_not_there_is_not_measured(spine: Spine) -> None:
    """A missing tool says so in the ledger; nothing passes and nothing fails, and nobody is kept out."""
    spine.sim.spoil_link("*", factor=None)
    missing = spine.run(spine.pair())
    assert (missing["status"]["state"], missing["verdict"]) == ("done", "not_measured")
    assert missing["runs"][0]["detail"] == "nccl-tests is not there"
    (one,) = spine("GET", f"measurements?run_id={missing['id']}").json()["items"]
    assert (one["metric"], one["verdict"], one["value"]) == ("fabric_run_passed", "not_measured", None)


def test_an_output_that_is_cut_off_is_a_failed_run(spine: Spine) -> None:
    """What cannot be read is believed in no part."""
    spine.sim.play("check_output_cut", "begin_checks")
    done = spine.run(spine.pair())
    assert (done["verdict"], done["runs"][0]["result"]) == ("failed", "failed")
    metrics = {one["metric"] for one in spine("GET", f"measurements?run_id={done['id']}").json()["items"]}
    assert metrics == {"fabric_run_passed"}


def test_only_free_nodes_are_touched(spine: Spine) -> None:
    """A pair with a node in use is refused by name; of a leaf it is left out; a dry run says what would be and holds nothing."""
    spine.world.do(
        lambda session: session.execute(text("UPDATE nodes SET state = 'maintenance' WHERE id = :n"), {"n": spine.on_leaf[0]})
    )
    refused = spine("POST", "fabric-checks", {"scope": spine.pair()})
    assert (refused.status_code, refused.json()["code"]) == (409, "nodes_not_free")
    assert refused.json()["states"] == {spine.on_leaf[0]: "maintenance"}
    dry = spine("POST", "fabric-checks?dry_run=true", {"scope": LEAF})
    assert sorted(dry.json()["node_ids"]) == sorted(spine.on_leaf[1:])
    assert dry.json()["left_out"] == [{"node_id": spine.on_leaf[0], "state": "maintenance"}]
    assert spine("GET", "fabric-checks").json()["items"] == []
    assert spine.states() == {"available", "maintenance"}
    for scope in ({"kind": "leaf", "site": "one", "leaf": "no"}, spine.pair() | {"peer_node_id": "nod_00000000000000000000000000"}):
        assert spine("POST", "fabric-checks", {"scope": scope}).status_code == 422


def test_no_verb_and_no_second_check_reaches_a_lent_node(spine: Spine) -> None:
    """While it is lent: verbs are refused, another check does not get it, and the database stores neither loan nor allocation beside it."""
    check_id = spine.order()
    spine.world.tick()
    node = spine("GET", f"nodes/{spine.on_leaf[0]}").json()
    assert node["status"]["state"] == "checking"
    assert check_id in node["status"]["reason"]
    verb = spine("POST", f"nodes/{spine.on_leaf[0]}/actions/requalify", {"reason": "now"}, version=node["version"])
    assert (verb.status_code, verb.json()["code"]) == (409, "wrong_state")
    again = spine("POST", "fabric-checks", {"scope": LEAF})
    assert (again.status_code, again.json()["code"]) == (409, "nodes_not_free")
    for change in ("allocation_id = 'alc_x'", "check_id = NULL", "state = 'available'"):
        with pytest.raises(IntegrityError):
            spine.world.do(
                lambda session, sql=change: session.execute(text(f"UPDATE nodes SET {sql} WHERE id = :n"), {"n": spine.on_leaf[0]})
            )
    spine.world.settle()
    assert spine.show(check_id)["status"]["state"] == "done"


def test_of_an_order_and_a_check_one_gets_the_node(spine: Spine) -> None:
    """Each of six nodes is wanted by both at once, from two connections: never both, never neither."""
    world = spine.world
    tenant, project_id = world.people[0]

    def quickest(work: Callable[[Session], Any]) -> bool:
        with Session(world.engine) as session:
            raise_wall(session, EVERYTHING)
            won = bool(work(session))
            session.commit()
            return won

    def ordered(node_id: str) -> bool:
        wanted = nodes.Hold(node_id, "clu_x", "nst_x", f"{tenant.tenant_id}", f"{tenant.reseller_id}", project_id)
        return quickest(lambda session: nodes.hold(session, [wanted]))

    with ThreadPoolExecutor(2) as pool:
        for node_id in spine.ids.values():
            one = pool.submit(ordered, node_id)
            two = pool.submit(quickest, lambda session, node=node_id: nodes.lend(session, [node], "fck_x"))  # type: ignore[misc]
            assert one.result() != two.result()
    held = world.rows("SELECT id FROM nodes WHERE (state = 'checking') <> (allocation_id IS NULL)")
    assert held == []


@pytest.mark.parametrize("state", ["starting", "running", "judging", "returning"])
def test_a_check_is_stopped_in_every_state(spine: Spine, state: str) -> None:
    """The wish is honoured at the next step; the nodes are free only after the peer let go; a check that returns already says so."""
    check_id = spine.order()
    spine.until(check_id, state)
    answer = spine("POST", f"fabric-checks/{check_id}/actions/cancel", {})
    if state == "returning":
        assert (answer.status_code, answer.json()["code"]) == (409, "check_ending")
    else:
        assert answer.status_code == 202, answer.text
        assert spine("POST", f"fabric-checks/{check_id}/actions/cancel", {}).status_code == 202
    assert "checking" in spine.states()
    spine.world.settle()
    ended = spine.show(check_id)
    # What was measured whole is judged all the same.
    assert ended["status"]["state"] == ("cancelled" if state in {"starting", "running"} else "done")
    assert spine.states() == {"available"}
    assert (spine.sim.checks(check_id) or (False, 0))[0] is True
    late = spine("POST", f"fabric-checks/{check_id}/actions/cancel", {})
    assert late.json()["code"] == "check_ending"


@pytest.mark.parametrize("point", ["call.after", "apply.before_commit", "decide.before_commit"])
def test_a_crash_between_step_and_apply_costs_nothing(spine: Spine, point: str) -> None:
    """The process dies at the point, once in each look; the lease lapses, and the check ends as ever, each figure once."""
    check_id = spine.order()
    for _ in range(4):
        take_out = crashpoints.install(partial(die_at, point))
        with suppress(Death):
            spine.world.tick()
        take_out()
        spine.world.clock.advance(LAPSE_S)
        spine.world.tick()
    spine.world.settle()
    done = spine.show(check_id)
    assert (done["status"]["state"], done["verdict"]) == ("done", "not_judged")
    assert spine.sim.checks(check_id) == (True, 4)
    ended = [one["metric"] for one in spine("GET", f"measurements?run_id={check_id}&limit=200").json()["items"]]
    assert ended.count("fabric_run_passed") == 4
    assert spine.states() == {"available"}


def test_a_stale_lease_changes_nothing(spine: Spine) -> None:
    """What an old claim says after another took over is dropped, its figures too."""
    check_id = spine.order()
    spine.until(check_id, "running")
    driver = spine.world.drivers["fabric_check"]
    spine.world.clock.advance(10)
    (old,) = driver.claim(10)
    spine.world.clock.advance(LAPSE_S)
    (new,) = driver.claim(10)
    assert new.fence > old.fence
    late = driver.step(old, spine.world.tools)
    assert driver.apply([replace(late, claim=old)]) == 0
    assert driver.apply([driver.step(new, spine.world.tools)]) == 1
    spine.world.settle()
    assert spine.show(check_id)["status"]["state"] == "done"


@pytest.mark.parametrize("fault", ["effect_then_timeout", "late_success", "duplicate_effect", "flapping_404", "stale_read"])
def test_faults_of_the_peer_end_no_check_and_lose_no_node(spine: Spine, fault: str) -> None:
    """Whatever happens to its calls: it ends, its runs are there once, and no node is free while the peer holds it."""
    operations = ["observe_checks"] if fault == "stale_read" else ["prepare_checks", "begin_checks", "end_checks", "observe_checks"]
    for operation in operations:
        if fault in {"late_success", "duplicate_effect"} and operation == "observe_checks":
            continue
        spine.sim.play(fault, operation)
    done = spine.run()
    assert (done["status"]["state"], done["verdict"]) == ("done", "not_judged")
    assert spine.sim.checks(done["id"]) == (True, 4)
    assert spine.states() == {"available"}


def test_a_check_that_does_not_end_gives_its_nodes_back(spine: Spine) -> None:
    """Past its state's time it has failed with a code; one that cannot give back stays in sight and is tried on."""
    spine.sim.play("5xx_before_effect", "begin_checks", count=None)
    check_id = spine.order()
    spine.until(check_id, "running")
    spine.world.clock.advance(1 + (FABRIC_CHECK_STATES.by_name["running"].longest_stay_s or 0))
    spine.sim.play("5xx_before_effect", "end_checks", count=3)
    spine.world.tick()
    assert spine.show(check_id)["status"]["state"] == "returning"
    spine.world.settle()
    ended = spine.show(check_id)
    assert (ended["status"]["state"], ended["status"]["issues"][0]["code"]) == ("failed", "fabric_check_timeout")
    assert ended["verdict"] is None
    assert spine.states() == {"available"}


def test_nodes_that_cannot_be_given_back_stay_held_and_in_sight(spine: Spine) -> None:
    """The peer answers no more: the check needs a person, its nodes are nobody's, and when the peer is back it ends by itself."""
    check_id = spine.order()
    spine.until(check_id, "returning")
    spine.sim.play("busy_429_without", "end_checks", count=None)
    for _ in range(8):
        spine.world.clock.advance(1200)
        spine.world.tick()
    seen = Caller(spine.app, spine.world.keys.operator_key)("GET", "/v1/admin/attention?kind=fabric_check").json()["items"]
    assert [(one["kind"], one["id"]) for one in seen] == [("fabric_check", check_id)]
    assert spine.states() == {"available", "checking"}
    spine.sim.heal()
    spine.world.settle()
    assert (spine.show(check_id)["status"]["state"], spine.states()) == ("done", {"available"})


def test_a_repair_brings_a_check_about_only_where_it_is_wanted(spine: Spine) -> None:
    """Off by default; once for a repair; the leaf of the node that came back."""
    make = text(
        "INSERT INTO repair_tickets (id, node_id, reports, delivered_at, closed_at) VALUES ('tkt_x', :n, '[]', cp_clock(), cp_clock())"
    )
    spine.world.do(lambda session: session.execute(make, {"n": spine.on_leaf[0]}))
    assert spine.world.settings.fabric_check_after_repair is False
    assert check_repaired(spine.world.engine, wanted=False) == 0
    assert check_repaired(spine.world.engine, wanted=True) == 1
    assert check_repaired(spine.world.engine, wanted=True) == 0
    spine.world.settle()
    assert check_repaired(spine.world.engine, wanted=True) == 0
    (made,) = spine("GET", "fabric-checks?leaf=one-b1-l1").json()["items"]
    assert (made["created_by"], made["status"]["state"]) == ("system", "done")


def test_tenants_do_not_know_of_checks(spine: Spine) -> None:
    """Neither the list nor one of them, whatever right their keys have."""
    check_id = spine.order()
    mine = Caller(spine.app, spine.world.keys.tenant_key)
    for path in ("fabric-checks", f"fabric-checks/{check_id}"):
        assert mine("GET", f"/v1/admin/{path}").status_code in {403, 404}


def test_where_nothing_can_be_measured_policy_decides_what_is_sold(spine: Spine) -> None:
    """A provider without the port: the check ends as not measured, holds nobody, and its leaf is free until a policy asks for more."""
    good = spine.run({"kind": "leaf", "site": "one", "leaf": "one-b1-l2"})
    assert good["runs"][0]["result"] == "passed"
    spine.world.do(
        lambda session: session.execute(text("UPDATE providers SET adapter = 'redfish', config = '{}', version = version + 1"))
    )
    done = spine.run()
    assert (done["status"]["state"], done["verdict"], done["blamed"]) == ("done", "not_measured", [])
    assert {(one["result"], one["detail"]) for one in done["runs"]} == {
        ("not_measured", "The provider has no tools between its nodes.")
    }
    measured = spine("GET", f"measurements?run_id={done['id']}").json()["items"]
    assert {(one["metric"], one["verdict"], one["value"]) for one in measured} == {("fabric_run_passed", "not_measured", None)}
    assert spine.states() == {"available"}

    def free() -> int:
        items = Caller(spine.app, spine.world.keys.operator_key)("GET", "/v1/availability?site=one").json()["items"]
        return sum(int(one["free"]) for one in items)

    def policy(version: int, *, sell: bool) -> dict[str, Any]:
        body = {"required": ["fabric_run_passed"], "sell_not_measured": sell}
        answer = spine("PUT", "qualification-policies/hgx-h100-8", body, version=version)
        assert answer.status_code == 200, answer.text
        changed: dict[str, Any] = answer.json()
        return changed

    assert free() == 6
    assert sorted(policy(0, sell=False)["impact"]["falls_out"]) == sorted(spine.on_leaf)
    assert free() == 3
    reasons = spine("GET", f"node-qualifications/{spine.on_leaf[0]}").json()["reasons"]
    assert [(one["code"], one["metric"]) for one in reasons] == [("not_measured", "fabric_run_passed")]
    assert policy(1, sell=True)["impact"]["comes_back_count"] == 3
    assert free() == 6
