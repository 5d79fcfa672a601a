"""
The ledger over HTTP: outputs in, verdicts, standings and trends out.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from tests.conftest import Database
from tests.factories.nodes import SITE, TYPE
from tests.factories.qualification import BANDWIDTH, LEAF, SPEED, Ledger, burn, make_ledger, nccl, write_bw


@pytest.fixture
def ledger(database: Database, tmp_path: Path) -> Ledger:
    """
    Three free nodes.
    """
    return make_ledger(database, tmp_path)


def test_an_output_becomes_figures_with_verdicts(ledger: Ledger) -> None:
    """Every figure is in the ledger with its run, digest and the baseline it was held against."""
    baseline = ledger.baseline(470, tolerance=0.02).json()
    recorded = ledger.reduce(465.0, run_id="burn-in-1")
    assert (recorded["run_id"], recorded["recorded"], len(recorded["items"])) == ("burn-in-1", 6, 6)
    found = {one["metric"]: one for one in recorded["items"]}
    speed = found[SPEED]
    assert (speed["value"], speed["unit"], speed["verdict"], speed["judged_by"]) == (465.0, "GB/s", "passed", "baseline")
    assert speed["baseline"] == {"id": baseline["id"], "version": 1}
    assert speed["digest"] == sha256(nccl(465.0).encode()).hexdigest()
    assert found["nccl_all_reduce_failed"]["judged_by"] == "tool"
    assert found["nccl_all_reduce_bus_bandwidth_best"]["verdict"] == "not_judged"
    assert ledger("GET", f"measurements/{speed['id']}").json() == speed
    listed = ledger("GET", f"measurements?run_id=burn-in-1&metric={SPEED}&node_id={ledger.node_ids[0]}").json()["items"]
    assert listed == [speed]


def test_figures_of_gpus_stand_apart(ledger: Ledger) -> None:
    """One faulty GPU is named, the other is not blamed."""
    answer = ledger.post("gpu-burn", burn(faulty=True), {"kind": "node", "node_id": ledger.node_ids[0]})
    passed = {one["subject"]["part"]: one["verdict"] for one in answer.json()["items"] if one["metric"] == "burn_passed"}
    assert passed == {"gpu0": "passed", "gpu1": "failed"}
    known = ledger("GET", f"node-qualifications/{ledger.node_ids[0]}").json()
    assert known["refusal"] == "below_baseline"
    assert [(one["metric"], one["part"]) for one in known["reasons"]] == [("burn_passed", "gpu1")]


def test_an_unreadable_output_is_refused_with_its_line(ledger: Ledger) -> None:
    """Nothing of it is recorded, and the problem says where it broke."""
    subject = {"kind": "pair", "node_id": ledger.node_ids[0], "peer_node_id": ledger.node_ids[1]}
    broken = write_bw(391.55).replace("5000 ", "five ")
    refused = ledger.post("ib_write_bw", broken, subject)
    body = refused.json()
    assert (refused.status_code, body["code"], body["line"]) == (422, "unreadable_output", 3)
    assert (body["errors"][0]["field"], "line 3" in body["errors"][0]["message"]) == ("body.output", True)
    assert ledger.post("ib_write_bw", "nonsense", subject).json()["line"] is None
    assert ledger("GET", "measurements").json()["items"] == []


REFUSED: list[tuple[str, dict[str, Any], dict[str, str], str]] = [
    ("gpu-burn", {"kind": "leaf", "site": SITE, "leaf": LEAF}, {}, "wrong_subject"),
    ("ib_write_bw", {"kind": "leaf", "site": SITE, "leaf": LEAF}, {}, "wrong_subject"),
    ("nccl-tests", {"kind": "node", "node_id": "@0"}, {}, "wrong_collective"),
    ("gpu-burn", {"kind": "node", "node_id": "@0"}, {"collective": "all_reduce"}, "wrong_collective"),
    ("gpu-burn", {"kind": "node", "node_id": "nod_never"}, {}, "unknown_node"),
    ("HPL", {"kind": "leaf", "site": SITE, "leaf": "b9-l9"}, {}, "unreadable_output"),
    ("nccl-tests", {"kind": "leaf", "site": SITE, "leaf": "b9-l9"}, {"collective": "all_reduce"}, "unknown_leaf"),
    ("gpu-burn", {"kind": "node", "node_id": "@0"}, {"taken_at": "2190-01-01T00:00:00Z"}, "in_the_future"),
    ("gpu-burn", {"kind": "node", "node_id": "@0", "rail": 1}, {}, "value_error"),
    ("ib_write_bw", {"kind": "pair", "node_id": "@0", "peer_node_id": "@0"}, {}, "value_error"),
    ("gpu-burn", {"kind": "node"}, {}, "value_error"),
    ("rocm-smi", {"kind": "node", "node_id": "@0"}, {}, "literal_error"),
]


def test_what_cannot_be_recorded(ledger: Ledger) -> None:
    """Each refusal names its field by a stable code, and the ledger stays empty."""
    for tool, subject, more, code in REFUSED:
        output = nccl(400.0) if tool == "nccl-tests" else burn(faulty=False)
        named = {name: ledger.node_ids[0] if value == "@0" else value for name, value in subject.items()}
        answer = ledger.post(tool, output, named, **more)
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, code), (tool, subject, more)
    assert ledger("GET", "measurements").json()["items"] == []


def test_a_run_is_recorded_once(ledger: Ledger) -> None:
    """The same output of a run changes nothing, another is refused, other figures of the run are welcome, and so is a repeated request."""
    first = ledger.reduce(400.0, run_id="r1")
    again = ledger.reduce(400.0, run_id="r1")
    assert (again["recorded"], again["items"]) == (0, first["items"])
    subject = {"kind": "node", "node_id": ledger.node_ids[0]}
    other = ledger.post("nccl-tests", nccl(401.0), subject, collective="all_reduce", run_id="r1")
    assert (other.status_code, other.json()["code"], other.json()["run_id"]) == (409, "run_recorded", "r1")
    gather = ledger.post("nccl-tests", nccl(300.0), subject, collective="all_gather", run_id="r1")
    assert (gather.status_code, gather.json()["recorded"]) == (201, 6)
    keyed = [ledger.post("nccl-tests", nccl(399.0), subject, collective="all_reduce", once="k1").json() for _ in range(2)]
    assert keyed[0] == keyed[1]
    assert len(ledger("GET", f"measurements?metric={SPEED}").json()["items"]) == 2
    assert ledger.standing()["value"] == 399.0


def test_the_latest_figure_stands_even_when_older_ones_arrive(ledger: Ledger) -> None:
    """A late report is kept and counts in the trend, and does not turn the clock back."""
    ledger.reduce(400.0, day=10)
    ledger.reduce(300.0, day=9)
    standing = ledger.standing()
    assert (standing["value"], standing["taken_at"]) == (400.0, "2026-01-11T00:00:00Z")
    trend = ledger("GET", f"standings/{standing['id']}/trend").json()
    assert [one["value"] for one in trend["points"]] == [300.0, 400.0]
    ledger.reduce(401.0, day=11)
    assert ledger.standing()["value"] == 401.0


def test_a_falling_figure_warns_before_it_fails(ledger: Ledger) -> None:
    """While it still passes the standing is drifting, there is one event, and its trend says when the baseline is crossed."""
    ledger.baseline(360)
    for day, speed in enumerate([380.0, 378.0, 376.0, 374.0, 372.0, 370.0]):
        ledger.reduce(speed, day=day)
    (drifting,) = ledger("GET", "standings?drifting=true").json()["items"]
    assert (drifting["metric"], drifting["verdict"]) == (SPEED, "passed")
    assert drifting["trend"]["slope_per_day"] == pytest.approx(-2)
    assert drifting["trend"]["days_to_limit"] == pytest.approx(5)
    assert ledger.events().count("standing.drifting") == 1
    assert ledger.blocked()[ledger.node_ids[0]] is None
    ledger.reduce(358.0, day=6)
    assert (ledger.standing()["verdict"], ledger.standing()["drifting"]) == ("failed", False)
    assert len(ledger("GET", f"standings/{drifting['id']}/measurements").json()["items"]) == 7


def test_events_tell_of_changes_and_of_nothing_else(ledger: Ledger) -> None:
    """A first pass is no news, a failure is, so is the way back; the node's own events go with them."""
    ledger.baseline(360)
    before = len(ledger.events())
    ledger.reduce(380.0)
    ledger.reduce(381.0)
    assert len(ledger.events()) == before
    ledger.reduce(350.0)
    ledger.reduce(351.0)
    ledger.reduce(382.0)
    assert ledger.events()[before:] == ["standing.failed", "node.qualification", "standing.passed", "node.qualification"]


def test_pages_of_every_list_meet_every_row_once(ledger: Ledger) -> None:
    """Following the tokens lists each row exactly once."""
    for value, metric in ((1.0, "a"), (2.0, "b"), (3.0, "c")):
        ledger.baseline(value, metric)
    for node in range(3):
        ledger.reduce(400.0, node)
    for path, total in (("measurements", 18), ("standings", 18), ("baselines", 3), ("node-qualifications", 3)):
        seen, token = [], ""
        while True:
            body = ledger("GET", f"{path}?limit=2{token}").json()
            seen += [one.get("id") or one["node_id"] for one in body["items"]]
            if body["next_page_token"] is None:
                break
            token = f"&page_token={body['next_page_token']}"
        assert (len(seen), len(set(seen))) == (total, total), path


def test_filters_show_exactly_what_they_name(ledger: Ledger) -> None:
    """Pairs are found from either end, leaves and rails by their leaf."""
    ledger.reduce(400.0, 0)
    ledger.pair(390.0, 0, 1)
    for kind, more in (("leaf", {}), ("rail", {"rail": 3})):
        subject = {"kind": kind, "site": SITE, "leaf": LEAF, **more}
        assert ledger.post("nccl-tests", nccl(350.0), subject, collective="all_reduce").status_code == 201
    one, two, three = ledger.node_ids
    for query, kinds in (
        (f"node_id={one}", {"node", "pair"}),
        (f"node_id={two}", {"pair"}),
        (f"node_id={three}", set()),
        (f"site={SITE}&leaf={LEAF}", {"leaf", "rail"}),
        (f"leaf={LEAF}&subject_kind=rail", {"rail"}),
        (f"metric={BANDWIDTH}", {"pair"}),
        ("tool=ib_write_bw", {"pair"}),
        ("verdict=failed", set()),
    ):
        for path in ("standings", "measurements"):
            items = ledger("GET", f"{path}?{query}").json()["items"]
            assert {item["subject"]["kind"] for item in items} == kinds, (path, query)


def test_a_baseline_has_versions_and_no_other_past(ledger: Ledger) -> None:
    """A change is a new version under If-Match; each measurement keeps the one it was judged by; a withdrawn one goes on under its id."""
    made = ledger.baseline(360)
    path = f"baselines/{made.json()['id']}"
    assert (made.status_code, made.headers["Location"]) == (201, f"/v1/admin/{path}")
    ledger.reduce(365.0)
    again = ledger.baseline(370)
    assert (again.status_code, again.json()["code"], again.json()["baseline_id"]) == (409, "baseline_exists", made.json()["id"])
    change = {"comparison": "at_least", "value": 370.0, "unit": "GB/s", "source": "second batch"}
    assert ledger("PUT", path, change).status_code == 428
    assert ledger("PUT", path, change, version=7).status_code == 412
    changed = ledger("PUT", path, change, version=1)
    assert (changed.json()["version"], changed.headers["ETag"]) == (2, '"2"')
    assert ledger.standing()["baseline"]["version"] == 2
    assert ledger.standing()["verdict"] == "failed"
    (measured,) = ledger("GET", f"measurements?metric={SPEED}").json()["items"]
    assert (measured["verdict"], measured["baseline"]["version"]) == ("passed", 1)
    gone = ledger("DELETE", path, version=2)
    assert (gone.status_code, gone.json()["withdrawn"], gone.json()["version"]) == (200, True, 3)
    assert (ledger.standing()["verdict"], ledger.standing()["baseline"]) == ("not_judged", None)
    assert ledger("PUT", path, change, version=3).json()["code"] == "baseline_withdrawn"
    assert ledger("GET", "baselines").json()["items"] == []
    back = ledger.baseline(350)
    assert (back.json()["id"], back.json()["version"]) == (made.json()["id"], 4)
    versions = ledger("GET", f"{path}/versions").json()["items"]
    assert [(one["version"], one["value"], one["withdrawn"]) for one in versions] == [
        (1, 360.0, False),
        (2, 370.0, False),
        (3, 370.0, True),
        (4, 350.0, False),
    ]


NO_BASELINES: list[tuple[dict[str, Any], str]] = [
    ({"instance_type": "abacus"}, "unknown_instance_type"),
    ({"instance_type": None, "gpu_model": "ABACUS"}, "unknown_gpu_model"),
    ({"unit": "Gbit/s"}, "wrong_unit"),
    ({"unit": "parsec"}, "literal_error"),
    ({"gpu_model": "H100-SXM5-80GB"}, "value_error"),
    ({"tolerance": 1.0}, "less_than"),
    ({"value": 1e31}, "less_than_equal"),
    ({"metric": "With Space"}, "string_pattern_mismatch"),
    ({"source": ""}, "string_too_short"),
]


def test_what_is_no_baseline(ledger: Ledger) -> None:
    """Unknown hardware, other units than are measured, and limits that are none are refused by name."""
    ledger.reduce(400.0)
    for change, code in NO_BASELINES:
        answer = ledger.baseline(**({"value": 360.0} | change))
        assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, code), change
    assert ledger("GET", "baselines").json()["items"] == []


def test_nobody_can_rewrite_what_was_measured(ledger: Ledger, database: Database) -> None:
    """Neither the application nor the owner of the tables changes or removes a measurement or a version of a baseline."""
    ledger.baseline(360)
    ledger.reduce(400.0)
    for table, column in (("measurements", "value"), ("baselines", "value")):
        for statement in (f"UPDATE {table} SET {column} = 1", f"DELETE FROM {table}"):
            with pytest.raises(DBAPIError, match="permission denied"):
                ledger.fleet.sql(statement)
            with database.owner.connect() as connection, pytest.raises(DBAPIError, match="never changed"):
                connection.exec_driver_sql(statement)


def test_only_operators_may_look_and_only_writers_may_write(ledger: Ledger) -> None:
    """No other key learns anything of what was measured."""
    paths = ("measurements", "standings", "baselines", "node-qualifications", f"qualification-policies/{TYPE}")
    for key in (ledger.fleet.tree.left.reseller_key, ledger.fleet.tree.left.owner_key):
        for path in paths:
            answer = ledger.fleet.call(key)("GET", f"/v1/admin/{path}")
            assert (answer.status_code, answer.json()["code"]) == (403, "wrong_audience")
    for path in ("measurements/msr_never", "standings/std_never", "standings/std_never/trend", "baselines/bsl_never"):
        assert ledger("GET", path).status_code == 404
    assert ledger("GET", "qualification-policies/abacus").status_code == 404
    assert ledger("GET", "node-qualifications/nod_never").status_code == 404
