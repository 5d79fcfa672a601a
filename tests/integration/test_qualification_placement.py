"""
What the ledger means for placement: who is left out, why, and what a change of the rules would do.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from controlplane.clusters import service as clusters
from controlplane.kit.db import EVERYTHING, raise_wall
from controlplane.kit.errors import NoCapacity
from controlplane.nodes import repository
from controlplane.qualification import service
from tests.conftest import Database
from tests.factories.nodes import SITE, TYPE
from tests.factories.qualification import BANDWIDTH, LEAF, SPEED, Ledger, make_ledger, nccl
from tests.factories.world import make_world

BURN_IN = "gpu_burn_in"
FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"


@pytest.fixture
def ledger(database: Database, tmp_path: Path) -> Ledger:
    """
    Five free nodes on one leaf.
    """
    return make_ledger(database, tmp_path, more=2)


def check(ledger: Ledger, run: str, result: str, *nodes: int, name: str = BURN_IN) -> None:
    """The nodes' providers report this of one acceptance check."""
    checks = [{"name": name, "result": result, "detail": "as seen"}]
    batch = [service.NodeChecks(ledger.node_ids[node], run, checks) for node in nodes]
    ledger.fleet.do(lambda session: service.record_checks(session, batch))


def test_a_node_under_its_baseline_is_not_placed(ledger: Ledger) -> None:
    """It leaves the free ones by every way of counting, with its reason, and comes back with its next good figure."""
    ledger.baseline(360)
    ledger.reduce(380.0, 1)
    assert ledger.free() == 5
    ledger.reduce(350.0, 0)
    assert ledger.blocked() == dict.fromkeys(ledger.node_ids) | {ledger.node_ids[0]: "below_baseline"}
    assert ledger.free() == 4
    ledger.reduce(380.0, 0)
    assert ledger.free() == 5


def test_policy_decides_whether_what_is_not_measured_may_be_sold(ledger: Ledger) -> None:
    """Not measured, never looked at, and too old are alike; a pass opens the node, and a lenient policy opens all."""
    check(ledger, "t1", "passed", 0)
    check(ledger, "t1", "not_measured", 1)
    assert ledger.free() == 5
    strict = ledger.policy([BURN_IN], sell=False)
    assert (strict.status_code, strict.json()["version"]) == (200, 1)
    assert sorted(strict.json()["impact"]["falls_out"]) == sorted(ledger.node_ids[1:])
    assert set(ledger.blocked().values()) == {None, "not_measured"}
    assert ledger.free() == 1
    check(ledger, "t2", "passed", 1, 2)
    assert ledger.free() == 3
    lenient = ledger.policy([BURN_IN], sell=True, version=1)
    assert lenient.json()["impact"]["comes_back_count"] == 2
    assert ledger.free() == 5


def test_a_node_nobody_ever_looked_at_is_not_sold_under_a_strict_policy(ledger: Ledger) -> None:
    """Not even one that was enrolled after the policy was set, and of which the ledger has no row."""
    ledger.policy([BURN_IN], sell=False)
    ledger.enroll("late")
    assert ledger.fleet.one("SELECT count(*) FROM node_qualifications WHERE node_id = :n", n=ledger.node_ids[-1]) == 0
    assert ledger.blocked()[ledger.node_ids[-1]] == "not_measured"
    assert ledger.free() == 0
    check(ledger, "t1", "passed", 5)
    assert ledger.free() == 1


def test_what_was_measured_becomes_too_old(ledger: Ledger, database: Database) -> None:
    """Without any worker, by the clock alone; and both ways of telling agree to the second."""
    virtual = database.virtual_clock()
    try:
        check(ledger, "t1", "passed", *range(5))
        ledger.policy([BURN_IN], sell=False, max_age_s=3600)
        virtual.advance(3599)
        assert ledger.free() == 5
        virtual.advance(1)
        assert ledger.free() == 0
        assert set(ledger.blocked().values()) == {"not_measured"}
        check(ledger, "t2", "passed", 0)
        assert ledger.free() == 1
    finally:
        virtual.stop()


def test_a_dry_run_tells_who_would_fall_out_and_changes_nothing(ledger: Ledger) -> None:
    """The same answer as the real change gives, and not even a version is used up."""
    for node, speed in enumerate([380.0, 370.0, 360.0]):
        ledger.reduce(speed, node)
    dry = ledger.baseline(365, dry_run=True)
    assert dry.status_code == 200
    assert dry.json()["impact"]["falls_out"] == [ledger.node_ids[2]]
    assert (ledger.free(), ledger("GET", "baselines").json()["items"]) == (5, [])
    real = ledger.baseline(365)
    assert real.json()["impact"] == dry.json()["impact"]
    assert real.json()["impact"]["judged"] == 3
    path = f"baselines/{real.json()['id']}"
    change = {"comparison": "at_least", "value": 375.0, "unit": "GB/s", "source": "stricter"}
    stricter = ledger("PUT", f"{path}?dry_run=true", change, version=1)
    assert (stricter.json()["impact"]["falls_out"], stricter.json()["impact"]["comes_back"]) == ([ledger.node_ids[1]], [])
    assert ledger("GET", path).json()["version"] == 1
    assert ledger("DELETE", f"{path}?dry_run=true", version=1).json()["impact"]["comes_back"] == [ledger.node_ids[2]]
    assert ledger.free() == 4
    assert ledger("DELETE", path, version=1).json()["impact"]["comes_back_count"] == 1
    assert ledger.free() == 5


def test_one_bad_pair_blames_nobody_and_two_blame_the_one_they_share(ledger: Ledger) -> None:
    """The shared end is left out and names its partners; when its pairs are good again it is back."""
    ledger.baseline(380, BANDWIDTH, subject_kind="pair", unit="Gbit/s")
    ledger.pair(350.0, 0, 1)
    assert ledger.free() == 5
    ledger.pair(351.0, 2, 0)
    assert ledger.blocked() == dict.fromkeys(ledger.node_ids) | {ledger.node_ids[0]: "below_baseline"}
    known = ledger("GET", f"node-qualifications/{ledger.node_ids[0]}").json()
    assert known["fails_with"] == sorted([ledger.node_ids[1], ledger.node_ids[2]])
    assert known["reasons"][0]["code"] == "suspect_in_pairs"
    (listed,) = ledger("GET", "node-qualifications?below=true").json()["items"]
    assert listed == known
    ledger.pair(390.0, 0, 1)
    assert ledger.free() == 5
    assert ledger("GET", f"node-qualifications/{ledger.node_ids[0]}").json()["fails_with"] == []


def test_blame_moves_when_another_explains_more(ledger: Ledger) -> None:
    """Two partners of a bad node are cleared when it fails with more, though they are not part of the last measurement."""
    ledger.baseline(380, BANDWIDTH, subject_kind="pair", unit="Gbit/s")
    for one, other in ((0, 1), (1, 2)):
        ledger.pair(350.0, one, other)
    assert [reason for reason in ledger.blocked().values() if reason] == ["below_baseline"]
    assert ledger.blocked()[ledger.node_ids[1]] == "below_baseline"
    ledger.pair(350.0, 0, 3)
    ledger.pair(350.0, 0, 4)
    assert ledger.blocked()[ledger.node_ids[0]] == "below_baseline"
    assert ledger.blocked()[ledger.node_ids[1]] is None


def test_pairs_are_blamed_by_a_new_baseline_too(ledger: Ledger) -> None:
    """Setting and withdrawing one lays the blame anew."""
    for one, other in ((0, 1), (0, 2), (1, 2)):
        ledger.pair(350.0 if one == 0 else 390.0, one, other)
    made = ledger.baseline(380, BANDWIDTH, subject_kind="pair", unit="Gbit/s").json()
    assert made["impact"]["falls_out"] == [ledger.node_ids[0]]
    assert ledger.free() == 4
    ledger("DELETE", f"baselines/{made['id']}", version=1)
    assert ledger.free() == 5


@pytest.mark.parametrize("rail", [None, 3])
def test_a_bad_leaf_or_rail_keeps_its_nodes_out(ledger: Ledger, rail: int | None) -> None:
    """All of them, because the figure singles nobody out, and until it is good again."""
    kind = "leaf" if rail is None else "rail"
    ledger.baseline(300, SPEED, subject_kind=kind)
    subject: dict[str, Any] = {"kind": kind, "site": SITE, "leaf": LEAF} | ({} if rail is None else {"rail": rail})
    for speed, free in ((290.0, 0), (310.0, 5)):
        assert ledger.post("nccl-tests", nccl(speed), subject, collective="all_reduce").status_code == 201
        assert ledger.free() == free


def test_a_providers_failed_check_is_recorded_and_left_to_the_nodes_state(ledger: Ledger) -> None:
    """The ledger shows it; it keeps a node out by itself only where the policy asks for it, and a baseline may overrule the provider."""
    check(ledger, "t1", "failed", 0)
    standing = ledger.standing(BURN_IN)
    assert (standing["verdict"], standing["judged_by"], standing["tool"]) == ("failed", "provider", "acceptance")
    (measured,) = ledger("GET", f"measurements?run_id=t1&metric={BURN_IN}").json()["items"]
    assert measured["detail"] == "as seen"
    assert ledger.free() == 5
    ledger.policy([BURN_IN], sell=True)
    assert ledger.blocked()[ledger.node_ids[0]] == "below_baseline"
    made = ledger.baseline(0, BURN_IN, unit="yes").json()
    assert (ledger.standing(BURN_IN)["verdict"], ledger.free()) == ("passed", 5)
    ledger("DELETE", f"baselines/{made['id']}", version=1)
    assert (ledger.standing(BURN_IN)["verdict"], ledger.standing(BURN_IN)["judged_by"]) == ("failed", "provider")


def test_checks_of_a_batch_take_as_many_statements_as_of_one(ledger: Ledger) -> None:
    """However many nodes are qualified at once; a repeat of the run adds nothing."""
    seen: list[str] = []
    event.listen(ledger.fleet.engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    check(ledger, "t1", "not_measured", 0)
    alone = len(seen)
    check(ledger, "t2", "not_measured", *range(5))
    assert len(seen) == 2 * alone
    check(ledger, "t2", "not_measured", *range(5))
    assert len(ledger("GET", "measurements?run_id=t2").json()["items"]) == 5


def test_two_recorders_at_once_lose_no_verdict(ledger: Ledger) -> None:
    """One waits for the other's node, and then sees the failure that was committed meanwhile."""
    ledger.baseline(360)
    engine, node = ledger.fleet.engine, ledger.node_ids[0]
    output = service.Output("nccl-tests", nccl(350.0), service.Subject("node", node), "all_reduce")
    with ThreadPoolExecutor(1) as pool, Session(engine) as first, first.begin():
        raise_wall(first, EVERYTHING)
        service.record_output(first, output)
        second = pool.submit(check, ledger, "t9", "passed", 0)
        wait_for_lock(ledger, second)
        first.commit()
        second.result(timeout=30)
    assert ledger.blocked()[node] == "below_baseline"


def test_a_baseline_waits_for_what_is_being_recorded(ledger: Ledger) -> None:
    """A figure that was judged by nothing when it was recorded is judged by the baseline that was set meanwhile."""
    output = service.Output("nccl-tests", nccl(350.0), service.Subject("node", ledger.node_ids[0]), "all_reduce")
    with ThreadPoolExecutor(1) as pool, Session(ledger.fleet.engine) as first, first.begin():
        raise_wall(first, EVERYTHING)
        service.record_output(first, output)
        made = pool.submit(ledger.baseline, 360)
        wait_for_lock(ledger, made)
        first.commit()
        assert made.result(timeout=30).json()["impact"]["falls_out"] == [ledger.node_ids[0]]
    assert ledger.standing()["verdict"] == "failed"


def wait_for_lock(ledger: Ledger, other: Future[Any]) -> None:
    """The other one stands at a lock of the database."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not ledger.fleet.one(waiting):
        assert not other.done()


def test_a_policy_needs_the_version_it_was_read_at(ledger: Ledger) -> None:
    """The first one is version 0; unknown types and doubled figures are refused."""
    shown = ledger("GET", f"qualification-policies/{TYPE}")
    assert (shown.json()["version"], shown.json()["sell_not_measured"], shown.headers["ETag"]) == (0, True, '"0"')
    body = {"required": [BURN_IN], "sell_not_measured": False}
    assert ledger("PUT", f"qualification-policies/{TYPE}", body).status_code == 428
    assert ledger.policy([BURN_IN], sell=False, version=3).status_code == 412
    assert ledger.policy([BURN_IN, BURN_IN], sell=False).status_code == 422
    assert ledger("PUT", "qualification-policies/abacus", body, version=0).status_code == 404
    dry = ledger("PUT", f"qualification-policies/{TYPE}?dry_run=true", body, version=0)
    assert (dry.json()["impact"]["falls_out_count"], ledger.free()) == (5, 5)
    assert ledger("GET", "qualification-policies").json()["items"] == []
    ledger.policy([BURN_IN], sell=False)
    (listed,) = ledger("GET", "qualification-policies").json()["items"]
    assert (listed["instance_type"], listed["required"]) == (TYPE, [BURN_IN])
    assert ledger.events().count("qualification_policy.changed") == 1


def test_what_providers_check_decides_over_orders(database: Database, tmp_path: Path) -> None:
    """Every node of a region has its acceptance checks in the ledger by itself, and an order obeys the policy on them."""
    world = make_world(database, tmp_path, fleet=str(FLEET))
    try:
        world.settle()
        nodes = world.rows("SELECT id, task_id FROM nodes ORDER BY id")
        checked = (
            "SELECT DISTINCT node_id FROM measurements WHERE tool = 'acceptance' AND metric = 'fabric' AND verdict = 'not_measured'"
        )
        assert {row.node_id for row in world.rows(checked)} == {row.id for row in nodes}
        assert world.rows("SELECT count(*) FROM standings WHERE verdict = 'failed'") == [(0,)]
        kind = world.keys.instance_type
        strict = service.Policy(kind, ("fabric",), sell_not_measured=False)
        impact = world.do(lambda session: service.put_policy(session, strict, lambda _: None))[1]
        assert impact.falls_out
        sets = (clusters.SetOrder("workers", kind, 1),)
        wanted = clusters.Order("train", "slurm", world.keys.site, sets, False)

        def order(session: Session) -> str:
            return str(clusters.order_cluster(session, world.tenant, world.keys.project_id, wanted)[0].row.id)

        with pytest.raises(NoCapacity) as refused:
            world.do(order)
        assert refused.value.fields["missing"] == 1
        fleet = world.do(lambda session: repository.read_fleet(session, [world.keys.site]))
        assert {row.blocked_reason for row in fleet if row.instance_type == kind} == {"not_measured"}
        lenient = service.Policy(kind, ("fabric",), sell_not_measured=True)
        world.do(lambda session: service.put_policy(session, lenient, lambda _: None))
        world.do(order)
        world.settle()
        assert world.rows("SELECT state FROM clusters") == [("running",)]
    finally:
        world.clock.stop()
