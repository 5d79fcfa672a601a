"""
Fabric checks of machines that boot through us: through the real routes, engine and Postgres, on controllers of the bench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from controlplane.kit import crashpoints
from tests.conftest import Database
from tests.factories.guests import SETTINGS, Guests, application
from tests.factories.qualification import nccl, write_bw
from tests.factories.world import World, make_world

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
LAPSE_S = 70.0
UNLAWFUL = (
    "INSERT INTO fabric_check_attendances (check_id, run, node_id) SELECT check_id, '9-9', node_id FROM fabric_check_attendances",
    "UPDATE fabric_check_attendances SET result = 'passed', told_at = cp_clock()",
    "UPDATE fabric_check_attendances SET result = 'passed'",
)
DIED = [
    ("failed", "bare-1 began and said nothing more for 90 s"),
    ("not_measured", "bare-1 did not come to the run"),
]
Make = Callable[..., Guests]


class Death(BaseException):
    """The process is gone from here on."""


def die_at(point: str, reached: str) -> None:
    """A hook that ends the process there."""
    if reached == point:
        raise Death


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Iterator[Make]:
    """Makes a rack of free machines, of as many as the test wants."""
    world: World = make_world(database, tmp_path, fleet=str(FLEET))
    with application(database) as app:
        yield partial(Guests, world, app=app)
    world.clock.stop()


def test_a_pair_boots_measures_and_is_off_again(make: Make) -> None:
    """Each is told of the other and of its own part; the client's output is in the ledger under the check's id."""
    rack = make(2)
    done = rack.run(rack.order("ib_write_bw"))
    assert (done["status"]["state"], done["verdict"], done["runs"][0]["result"]) == ("done", "not_judged", "passed")
    client, server = (rack.guests[one].errands for one in rack.ids)
    assert {one["role"] for one in client} == {"client"}
    assert {one["role"] for one in server} == {"server"}
    assert [one["address"] for one in client[0]["peers"]] == ["10.1.9.1", "10.1.9.2"]
    assert (client[0]["device"], client[0]["limit_s"], client[0]["options"]) == ("mlx5_0", 30, ["-F", "--report_gbits"])
    measured = rack("GET", f"measurements?run_id={done['id']}").json()["items"]
    found = {one["metric"]: (one["value"], one["subject"]["part"]) for one in measured}
    assert found["rdma_write_bandwidth_average"] == (391.5, "rail0")
    assert found["fabric_run_passed"] == (1.0, "rail0")
    purposes = rack.world.rows("SELECT count(*) FROM boots WHERE purpose = 'fabric'")
    assert purposes == [(2,)]


def test_a_leaf_is_measured_together_and_then_in_pairs(make: Make) -> None:
    """One boot for all rounds; each machine is told of the members of its own run alone; a slow leaf fails by its baseline."""
    rack = make(3)
    baseline = {
        "instance_type": rack.world.keys.instance_type,
        "subject_kind": "leaf",
        "metric": "nccl_all_reduce_bus_bandwidth_largest",
        "comparison": "at_least",
        "value": 470,
        "unit": "GB/s",
        "source": "acceptance",
    }
    assert rack("POST", "baselines", baseline).status_code == 201
    done = rack.run(rack.leaf())
    assert (done["verdict"], [one["kind"] for one in done["runs"]]) == ("failed", ["leaf", *["pair"] * 3])
    assert {one["result"] for one in done["runs"]} == {"passed"}
    parts = {one["run"]: one for node_id in rack.ids for one in rack.guests[node_id].errands if one["role"] == "head"}
    assert {name: len(one["peers"]) for name, one in parts.items()} == {"0-0": 3, "1-0": 2, "2-0": 2, "3-0": 2}
    keys = [one["key"][-1] for one in parts["1-0"]["peers"]]
    assert keys == ["A", "B"]
    assert (parts["0-0"]["gpus"], parts["0-0"]["device"], parts["0-0"]["place"]) == (8, "", 0)
    assert rack.world.rows("SELECT count(*) FROM boots WHERE purpose = 'fabric'") == [(3,)]


def test_a_machine_that_never_boots_and_one_that_dies_cost_their_own_runs_alone(make: Make) -> None:
    """
    The one is started twice and then counted out; what the other had begun has failed once its time is up, and to later runs it does not
    come. The rest is measured, and all are switched off.
    """
    rack = make(4, first_call_s=60)
    dying, *good, silent = rack.ids
    rack.silent.add(silent)
    rack.guests[dying].dies_in = "0-0"
    done = rack.run(rack.leaf("ib_write_bw"))
    assert (done["status"]["state"], done["verdict"]) == ("done", "failed")
    told = {one["name"]: (one["result"], one["detail"]) for one in done["runs"]}
    of = {one["name"]: {one["node_id"], one["peer_node_id"]} for one in done["runs"]}
    assert len(of) == 6
    for name, pair in of.items():
        if silent in pair:
            assert told[name] == ("not_measured", "bare-4 did not boot for the check: it was started twice and never called")
        elif pair == set(good):
            assert told[name] == ("passed", "")
    assert sorted(told[name] for name, pair in of.items() if dying in pair and silent not in pair) == DIED
    assert rack.tools.benches[silent].acts.count("on") == rack.tools.benches[dying].acts.count("on") + 1


def test_what_is_missing_and_what_breaks_are_told_apart(make: Make) -> None:
    """A tool that one machine lacks is not measured, and nothing is begun; one that breaks has failed, with the words of both ends."""
    rack = make(2)
    client, server = (rack.guests[one] for one in rack.ids)
    server.tools.remove("all_reduce_perf")
    done = rack.run(rack.order())
    assert (done["verdict"], done["runs"][0]["result"]) == ("not_measured", "not_measured")
    assert done["runs"][0]["detail"] == "bare-2: no all_reduce_perf in the image"
    assert client.errands == []
    client.says["client"] = {"result": "failed", "detail": "no route"}
    server.says["server"] = {"result": "failed", "detail": "nobody came"}
    done = rack.run(rack.order("ib_write_bw"))
    assert (done["verdict"], done["runs"][0]["detail"]) == ("failed", "bare-1: no route; bare-2: nobody came")
    client.says["client"] = {"output": write_bw(390.0)[:100]}
    assert rack.run(rack.order("ib_write_bw"))["verdict"] == "failed"


def until(rack: Guests, check_id: str, look: Callable[[], Any]) -> None:
    """The look has found what it looks for."""
    for _ in range(60):
        if look():
            return
        if not rack.world.tick():
            rack.world.clock.advance(1.0)
    raise AssertionError(rack.show(check_id)["status"])


def opened(rack: Guests) -> list[Any]:
    """The runs that are open."""
    return rack.world.rows("SELECT DISTINCT run FROM fabric_check_attendances WHERE closed_at IS NULL")


def test_only_the_members_of_a_run_meet_and_only_while_it_lasts(make: Make) -> None:
    """Nobody is told anything before all are there; a word of a stranger, too early, too late or another than before is refused."""
    rack = make(3)
    one, two, stranger = rack.ids
    check_id = rack.order()
    until(rack, check_id, lambda: all(rack.tools.benches[node].power_ == "on" for node in (one, two)))
    assert rack.come(stranger).status == 404
    assert rack.come(one).json()["errand"] is None
    assert rack.come(one, gpus=4).json()["code"] == "another_word"
    assert rack.say(one, "0-0").status == 404
    for changes in ({"address": "0.0.0.0"}, {"address": "x"}, {"key": "ssh-ed25519 AAAA\nssh-rsa AAAA"}, {"devices": ["a b"]}):
        assert rack.come(two, **changes).status == 422
    assert rack.come(two).json()["errand"] is None
    until(rack, check_id, lambda: opened(rack))
    assert rack.say(one, "0-0").json()["code"] == "run_over"
    for sql in UNLAWFUL:
        with pytest.raises(IntegrityError):
            rack.world.do(lambda s, sql=sql: s.connection().exec_driver_sql(sql))
    token = rack.machine(one).token
    for body in (b"plain", b"", b"{}"):
        assert rack.machine(one).call("POST", f"/v1/fabric-runs/{token}/0-0", body, "application/gzip").status == 422
    assert rack.come(one).json()["errand"] is None
    assert rack.come(two).json()["errand"]["role"] == "all"
    errand = rack.come(one).json()["errand"]
    assert (errand["role"], len(errand["peers"]), set(errand["peers"][0])) == ("head", 2, {"address", "key", "host_key"})
    assert rack.say(stranger, "0-0").status == 404
    assert rack.say(one, "0-1", output=nccl(460.0)).status == 404
    assert rack.machine(one).call("POST", f"/v1/fabric-runs/{token[:-2]}xx", b"{}", "application/json").status == 404
    assert rack.say(two, "0-0", output=nccl(1.0)).status == 200
    assert [rack.say(one, "0-0", output=nccl(460.0)).status for _ in range(2)] == [200, 200]
    assert rack.say(one, "0-0", output=nccl(470.0)).json()["code"] == "another_word"
    assert rack.come(one).json()["errand"] is None
    until(rack, check_id, lambda: not opened(rack))
    assert rack.come(one).status == 404
    done = rack.run(check_id)
    speeds = {one["value"] for one in rack("GET", f"measurements?run_id={done['id']}").json()["items"]}
    assert {1.0, 460.0} <= speeds
    assert 470.0 not in speeds
    assert rack.say(one, "0-0", output=nccl(460.0)).status == 404


@pytest.mark.parametrize("point", ["call.after", "apply.before_commit"])
def test_a_crash_anywhere_costs_nothing(make: Make, point: str) -> None:
    """The process dies at the point again and again; the check ends as ever, each figure is there once, and all are home."""
    rack = make(2, fabric_tools=SETTINGS | {"timeout_s": 600})
    check_id = rack.order("ib_write_bw")
    for _ in range(8):
        take_out = crashpoints.install(partial(die_at, point))
        with suppress(Death):
            rack.world.tick()
        take_out()
        rack.world.clock.advance(LAPSE_S)
        rack.world.tick()
        rack._speak()
    done = rack.run(check_id)
    assert (done["status"]["state"], done["runs"][0]["result"]) == ("done", "passed")
    metrics = [one["metric"] for one in rack("GET", f"measurements?run_id={check_id}").json()["items"]]
    assert len(metrics) == len(set(metrics)) >= 2


def test_a_check_that_is_stopped_gives_no_machine_back_that_is_still_on(make: Make) -> None:
    """Tokens open nothing from the moment it goes no further; neither node is free until the power of both was seen off."""
    rack = make(2)
    bench = rack.tools.benches[rack.ids[1]]
    check_id = rack.order()
    until(rack, check_id, lambda: bench.power_ == "on")
    rack.come(rack.ids[0])
    bench.stuck_on = True
    assert rack("POST", f"fabric-checks/{check_id}/actions/cancel", {}).status_code == 202
    until(rack, check_id, lambda: rack.show(check_id)["status"]["state"] == "returning")
    assert {rack.come(node_id).status for node_id in rack.ids} == {404}
    for _ in range(60):
        if not rack.world.tick():
            rack.world.clock.advance(15.0)
    assert rack.show(check_id)["status"]["state"] == "returning"
    assert rack.states() == {"checking": 2}
    assert rack.tools.benches[rack.ids[0]].power_ == "off"
    bench.stuck_on = False
    assert rack.run(check_id)["status"]["state"] == "cancelled"
