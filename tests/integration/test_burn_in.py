"""
Burn-in of nodes: the machine's own outputs through its boot's routes into the ledger, the verdict on the node, and what placement makes
of it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from controlplane.boots import reporting, service
from controlplane.boots.states import BootLinks, Facts, NewBoot
from controlplane.nodes import repository
from controlplane.nodes import service as nodes
from controlplane.qualification import service as qualification
from controlplane.qualification.states import Baseline, BurnTest, Policy
from tests.conftest import Database
from tests.factories.boots import LINKS, OCTETS, Answer, Booting, Machine, booting
from tests.factories.burning import GPUS, fit_out, prints
from tests.factories.nodes import TYPE, make_fleet
from tests.factories.qualification import SPEED, burn, make_ledger, nccl, write_bw
from tests.factories.serving import MASTER_KEY, serving
from tests.factories.world import World
from tests.integration.test_bare_nodes import CHECKED, Rack
from tests.integration.test_boots_agent import Host, eventually

GZIP = "application/gzip"
TESTS = (BurnTest("gpu_burn", 60, amount=10), BurnTest("gpu_collectives", 60), BurnTest("rdma_loopback", 60))
OUTPUTS = {"gpu_burn": burn(faulty=False), "gpu_collectives": nccl(400.0)}


class Burning(Rack):
    """Bare machines that burn in: each sends its outputs before it reports."""

    def __init__(self, world: World, count: int) -> None:
        super().__init__(world, count)
        self.outputs = {one: dict(OUTPUTS) for one in self.ids}
        self.said: dict[str, dict[str, str]] = {one: dict.fromkeys(OUTPUTS, "passed") for one in self.ids}

    def _report(self, session: Any, row: Any) -> None:
        if row.purpose == "check":
            planned = {one["name"] for one in service.views(session, [row.id])[row.id].burn_in}
            for name, text in self.outputs[row.node_id].items():
                if name.partition(".")[0] in planned:
                    reporting.take_output(session, row.id, name, gzip.compress(text.encode()))
            said = [{"name": name, "result": result, "detail": ""} for name, result in self.said[row.node_id].items()]
            self.lies[f"{row.node_id}/check"] = (*CHECKED, *(one for one in said if one["name"] in planned))
        super()._report(session, row)

    def requalify(self, node: int = 0) -> None:
        """The operator's order, carried out."""
        self.world.do(
            lambda s: nodes.act(s, self.ids[node], "requalify", reason="again", by="prn_op", check=lambda _: None),
        )
        self.settle()

    def node(self, node: int = 0) -> tuple[str, str]:
        """(state, reason) of the node."""
        (row,) = self.world.rows("SELECT state, reason FROM nodes WHERE id = :id", id=self.ids[node])
        return row.state, row.reason

    def blocked(self, node: int = 0) -> str | None:
        """Why placement leaves the node out."""
        rows = self.world.do(lambda s: repository.read_fleet(s, [self.world.keys.site]))
        (found,) = [row.blocked_reason for row in rows if row.id == self.ids[node]]
        return None if found is None else str(found)

    def policy(self, *tests: BurnTest, version: int = 0) -> None:
        """Machines of the type run these tests."""
        new = Policy(self.world.keys.instance_type, updated_by="prn_op", burn_in=tests)

        def put(session: Any) -> None:
            qualification.put_policy(session, new, lambda found: None if found == version else pytest.fail(str(found)))

        self.world.do(put)

    def baseline(self, value: float) -> str:
        """All-reduces of the type's nodes reach this; the baseline's id."""
        new = Baseline("", 0, "instance_type", self.world.keys.instance_type, "node", SPEED, "at_least", value, 0.0, "GB/s", "us")
        done, _ = self.world.do(lambda s: qualification.set_baseline(s, new))
        return str(done.id)


@pytest.fixture
def rack(world: World) -> Burning:
    """Two bare machines, enrolled; their type's policy is not set."""
    return Burning(world, 2)


def test_outputs_of_a_check_are_in_the_ledger_of_its_node(world: World, rack: Burning) -> None:
    """Under the boot's id, for every GPU; the node is available, and what nobody measured is shown as that."""
    rack.settle()
    assert rack.states() == {"available": 2}
    (boot,) = world.rows("SELECT id FROM boots WHERE node_id = :n AND purpose = 'check'", n=rack.ids[0])
    found = world.rows("SELECT tool, part, metric, value, node_id FROM measurements WHERE run_id = :run", run=boot.id)
    assert ("gpu-burn", "gpu1", "burn_passed", 1.0, rack.ids[0]) in found
    assert ("nccl-tests", "", SPEED, 400.0, rack.ids[0]) in found
    stands = {
        row.metric: row.verdict
        for row in world.rows("SELECT metric, verdict FROM standings WHERE node_id = :n AND tool = 'acceptance'", n=rack.ids[0])
    }
    assert stands["gpu_burn"] == "passed"
    assert {stands[name] for name in ("gpu_state", "gpu_diagnosis", "rdma_loopback")} == {"not_measured"}


def test_a_node_under_its_baseline_does_not_qualify_and_is_not_placed(world: World, rack: Burning) -> None:
    """Put aside with the figure in words; a stricter baseline takes the other out of placement, and requalifying it ends so."""
    rack.baseline(390.0)
    rack.outputs[rack.ids[0]]["gpu_collectives"] = nccl(350.0)
    rack.settle()
    state, reason = rack.node()
    assert (state, rack.states()) == ("quarantined", {"available": 1, "quarantined": 1})
    assert reason == f"Not good enough: {SPEED} is 350 GB/s; its baseline is at least 390."
    assert (rack.blocked(0), rack.blocked(1)) == ("quarantined", None)
    assert world.rows("SELECT below FROM node_qualifications WHERE node_id = :n", n=rack.ids[0]) == [(True,)]
    (rule,) = world.rows("SELECT id FROM baselines")
    world.do(
        lambda s: qualification.change_baseline(s, rule.id, lambda one: replace(one, value=450.0), lambda _: None),
    )
    assert rack.blocked(1) == "below_baseline"
    rack.requalify(1)
    assert "400 GB/s; its baseline is at least 450" in rack.node(1)[1]
    rack.outputs[rack.ids[1]]["gpu_collectives"] = nccl(460.0)
    rack.requalify(1)
    assert (rack.node(1)[0], rack.blocked(1)) == ("available", None)
    operations = world.rows("SELECT type, state FROM operations WHERE resource_id = :n ORDER BY id", n=rack.ids[1])
    assert operations == [("node.requalify", "failed"), ("node.requalify", "succeeded")]


def test_bad_and_missing_outputs_keep_nodes_out(world: World) -> None:
    """A GPU called faulty without a baseline, an output cut off or lost, a test that the machine says failed: each is put aside."""
    rack = Burning(world, 5)
    faulty, cut, lost, failed, _ = rack.ids
    rack.outputs[faulty]["gpu_burn"] = burn(faulty=True)
    rack.outputs[cut]["gpu_burn"] = "Burning for 60 seconds.\n"
    del rack.outputs[lost]["gpu_burn"]
    rack.said[failed]["gpu_burn"] = "failed"
    rack.settle()
    assert rack.states() == {"quarantined": 4, "available": 1}
    assert "burn_passed of gpu1 is no; so says gpu-burn" in rack.node(0)[1]
    assert {rack.node(number) for number in (1, 2, 3)} == {("quarantined", "Failed: gpu_burn.")}
    query = "SELECT node_id, verdict FROM standings WHERE tool = 'acceptance' AND metric = 'gpu_burn'"
    verdicts = {row.node_id: row.verdict for row in world.rows(query)}
    assert {verdicts[one] for one in (cut, lost, failed)} == {"failed"}


def test_the_policy_says_what_runs_and_what_cannot_be_done_without(world: World, rack: Burning) -> None:
    """Its tests stand in the boot as they were then; one that is required and not measured keeps the node out, else it does not."""
    rack.policy(*TESTS)
    rack.settle()
    assert rack.states() == {"available": 2}
    (boot,) = world.rows("SELECT burn_in FROM boots WHERE node_id = :n AND purpose = 'check'", n=rack.ids[0])
    assert boot.burn_in == [asdict(one) for one in TESTS]
    rack.policy(*TESTS[:2], replace(TESTS[2], required=True), version=1)
    rack.requalify()
    assert rack.node() == ("quarantined", "Required and not measured: rdma_loopback.")
    rack.policy(version=2)
    rack.requalify()
    assert rack.node()[0] == "available"
    assert world.rows("SELECT count(*) FROM standings WHERE metric = 'rdma_loopback' AND node_id = :n", n=rack.ids[0]) == [(1,)]


@pytest.fixture
def ground(database: Database, tmp_path: Path) -> Iterator[Booting]:
    """The whole application, and a fleet."""
    with booting(database, tmp_path) as made:
        yield made


def begin(ground: Booting, node: int = 0) -> Machine:
    """A machine whose check is under way."""
    tests = tuple(asdict(one) for one in TESTS)
    new = NewBoot(ground.fleet.node_ids[node], "check", Facts("n1", tags={"gpus": "2"}), 900, burn_in=tests)
    return ground.machine(ground.do(lambda s: service.begin(s, new)))


def send(machine: Machine, name: str, text: str | bytes) -> Answer:
    """The answer to an output."""
    raw = text if isinstance(text, bytes) else gzip.compress(text.encode())
    return machine.post(f"outputs/{name}", raw, GZIP)


def test_an_output_is_taken_once(ground: Booting) -> None:
    """The same again is welcome, another is refused; devices have one each, and operators see what became of all."""
    machine = begin(ground)
    first = send(machine, "gpu_collectives", nccl(400.0))
    assert (first.status, first.json()) == (200, {"figures": 6, "failure": ""})
    assert send(machine, "gpu_collectives", nccl(400.0)).json() == first.json()
    assert (send(machine, "gpu_collectives", nccl(401.0)).status, len(ground.view(machine.boot_id).outputs)) == (409, 1)
    assert {send(machine, f"rdma_loopback.mlx5_{n}", write_bw(390.0 + n)).json()["failure"] for n in range(2)} == {""}
    bad = send(machine, "gpu_burn", "Burning for 60 seconds.\n").json()
    assert bad["figures"] == 0
    assert "cut off" in bad["failure"]
    shown = ground.operator(f"/v1/admin/nodes/{ground.fleet.node_ids[0]}/boots").json()["items"][0]["outputs"]
    assert {one["name"]: one["figures"] > 0 for one in shown} == {
        "gpu_burn": False,
        "gpu_collectives": True,
        "rdma_loopback.mlx5_0": True,
        "rdma_loopback.mlx5_1": True,
    }
    parts = ground.fleet.one("SELECT count(DISTINCT part) FROM measurements WHERE tool = 'ib_write_bw'")
    assert parts == 2


def test_what_is_no_output_is_refused(ground: Booting) -> None:
    """Another test, no gzip, two members, a bomb, another type, another's token, and anything after the final report."""
    machine = begin(ground)
    for name in ("linpack", "gpu_burn/..", "GPU_BURN", "gpu_burn.a.b", "gpu_burn." + "x" * 41):
        assert send(machine, name, burn(faulty=False)).status == 404
    packed = gzip.compress(burn(faulty=False).encode())
    for body in (b"plain", packed[:-4], packed + packed, gzip.compress(bytes(9 * 1024 * 1024))):
        assert send(machine, "gpu_burn", body).status == 422
    assert machine.post("outputs/gpu_burn", packed, OCTETS).status == 415
    other = begin(ground, 1)
    assert send(replace(machine, token=LINKS.token(other.boot_id)[:-2] + "xx"), "gpu_burn", packed).status == 404
    assert machine.phone_home().status == 200
    done = {"name": "check", "ok": True, "exit_code": 0, "line": None, "output": ""}
    assert machine.report(scripts=[done]).json() == {"state": "ready"}
    assert send(machine, "gpu_burn", packed).status == 409
    assert ground.fleet.one("SELECT count(*) FROM boot_outputs") == 0
    assert ground.fleet.one("SELECT count(*) FROM measurements") == 0


def test_policies_name_tests(database: Database, tmp_path: Path) -> None:
    """As they are shown again; what no machine could run in time is refused with its place."""
    ledger = make_ledger(database, tmp_path)

    def put(tests: Any, version: int = 0) -> httpx.Response:
        body = {"required": [], "sell_not_measured": True, "burn_in": tests}
        return ledger("PUT", f"qualification-policies/{TYPE}", body, version=version)

    tests = [{"name": "gpu_burn", "limit_s": 900, "required": True, "amount": 600}, {"name": "linpack", "limit_s": 1800}]
    assert put(tests).status_code == 200
    shown = ledger("GET", f"qualification-policies/{TYPE}").json()["burn_in"]
    assert shown == [tests[0], {**tests[1], "required": False, "amount": 0}]
    assert put([], 1).json()["burn_in"] == []
    assert put(None, 2).json()["burn_in"] is None
    for bad in (
        [{"name": "gpu_burn", "limit_s": 900}],
        [{"name": "gpu_burn", "limit_s": 60, "amount": 60}],
        [{"name": "gpu_diagnosis", "limit_s": 900, "amount": 5}],
        [{"name": "gpu_state", "limit_s": 900, "amount": 1}],
        [{"name": "linpack", "limit_s": 9}],
        [{"name": "rm -rf", "limit_s": 90}],
        [{"name": "linpack", "limit_s": 90}] * 2,
        [{"name": "linpack", "limit_s": 9000}, {"name": "gpu_state", "limit_s": 9000}],
    ):
        assert put(bad, 3).status_code == 422, bad


def test_a_machine_burns_in_by_its_own_seed(database: Database, tmp_path: Path) -> None:
    """The boothook and the script of a real seed, under a real shell with tools that print real outputs, to the real application."""
    env = fit_out(tmp_path / "machine")
    prints(tmp_path / "machine/tools", "gpu_burn", "Burning for 60 seconds.\n")
    host = Host(tmp_path / "root")
    path = f"{tmp_path}/machine/tools:{host.environment()['PATH']}"
    told = {**host.environment(), **env, "PATH": path}
    host.environment = lambda: told  # type: ignore[method-assign]
    fleet = make_fleet(database, tmp_path)
    fleet.put("qualifying", due_at="2099-01-01T00:00:00Z")
    tests = (BurnTest("gpu_state", 60), *TESTS)
    with serving(database, machine_url="http://127.0.0.1:1") as served:
        links = BootLinks.from_master(served.url, MASTER_KEY, "cp")
        served.app.state.boots = replace(served.app.state.boots, links=links)
        facts = Facts("n1", tags={"gpus": str(GPUS)})
        new = NewBoot(fleet.node_ids[0], "check", facts, 900, burn_in=tuple(asdict(one) for one in tests))
        boot_id = str(fleet.do(lambda s: service.begin(s, new)))
        url = links.url(boot_id)
        host.boot(httpx.get(url + "user-data").raise_for_status().content)
        with host.serve() as process:
            try:
                form = urlencode({"instance_id": json.loads(httpx.get(url + "meta-data").content)["instance-id"]})
                headers = {"Content-Type": "application/x-www-form-urlencoded"}
                httpx.post(url + "phone-home", content=form, headers=headers).raise_for_status()
                host.finish()
                eventually(lambda: fleet.do(lambda s: service.views(s, [boot_id]))[boot_id].state == "ready")
            finally:
                process.kill()
    view = fleet.do(lambda s: service.views(s, [boot_id]))[boot_id]
    assert {one["name"]: one["result"] for one in view.checks} == {
        **dict.fromkeys(("gpu_count", "links", *(one.name for one in tests)), "passed"),
        "fabric_bandwidth": "not_measured",
    }
    outputs = {one.name: one for one in view.outputs}
    assert set(outputs) == {"gpu_state", "gpu_burn", "gpu_collectives", "rdma_loopback.mlx5_0", "rdma_loopback.mlx5_1"}
    assert [name for name, one in outputs.items() if one.failure] == ["gpu_burn"]
    assert fleet.one("SELECT count(DISTINCT tool) FROM measurements WHERE run_id = :run", run=boot_id) == 3
