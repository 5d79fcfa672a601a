"""
Tenants' actions on their bare machines: through the real routes and the real engine, on benches and virtual time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane import bootstrap
from controlplane.activity.routes import router as activity
from controlplane.boots import reporting
from controlplane.boots import service as boots
from controlplane.clusters import replacing
from controlplane.clusters import service as clusters
from controlplane.clusters.routes import router
from controlplane.kit import crashpoints
from controlplane.kit.errors import NotFound
from controlplane.kit.secrets import Sealer
from controlplane.nodes import service as nodes
from controlplane.nodes.states import ACTING, NODE_STATES
from controlplane.providers.circuits import Circuit
from controlplane.providers.errors import Unknown
from controlplane.providers.toolbox import Guarded
from tests.conftest import Database
from tests.factories.identity import Caller, small_app
from tests.factories.world import MASTER_KEY, World, make_world
from tests.integration.test_bare_nodes import KEY, Rack, only_bare, order
from tests.schedules.run import FLEET
from workers.watch import Watch

VERBS = {"reboot", "power-cycle", "stop", "start", "reinstall", "rescue", "unrescue"}
ROUND = ("reboot", "stop", "start", "rescue", "unrescue", "reinstall")
"""Actions that lead from a machine in use back to one."""
LAPSE_S = 70.0


class Death(BaseException):
    """The process is gone from here on."""


class Silence:
    """A controller that never answers."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            raise Unknown(f"no answer to {name}")

        return call


class Flat:
    """A tenant with one bare machine, and its way into the API."""

    def __init__(self, rack: Rack) -> None:
        self.rack, self.world = rack, rack.world
        only_bare(self.world)
        rack.settle()
        self.cluster_id = order(self.world, 1)
        rack.settle()
        (row,) = self.world.rows("SELECT id, instance_id, node_id FROM allocations WHERE state = 'active'")
        self.allocation_id, self.instance_id, self.node_id = row.id, row.instance_id, row.node_id
        self.app = small_app(self.world.engine, router)
        self.app.include_router(activity)
        self.call = Caller(self.app, self.world.keys.tenant_key)
        self.base = f"/v1/projects/{self.world.keys.project_id}/clusters/{self.cluster_id}"
        self.path = f"{self.base}/instances/{self.instance_id}"

    @property
    def bench(self) -> Any:
        """Its machine."""
        return self.rack.tools.benches[self.node_id]

    @property
    def version(self) -> int:
        """Of its cluster."""
        return int(self.call("GET", self.base).json()["version"])

    def ask(self, verb: str) -> Any:
        """The answer to the verb."""
        return self.call("POST", f"{self.path}/actions/{verb}", version=self.version)

    def done(self, verb: str) -> dict[str, Any]:
        """The operation of the verb once all has settled."""
        answer = self.ask(verb)
        assert answer.status_code == 202, answer.text
        assert answer.json()["operation"] == answer.headers["Location"].rpartition("/")[2]
        self.rack.settle()
        operation: dict[str, Any] = self.call("GET", answer.headers["Location"]).json()
        return operation

    @property
    def machine(self) -> str:
        """What its owner is shown of the machine."""
        (one,) = self.call("GET", f"{self.base}/instances").json()["items"]
        return str(one["machine"])

    def allowed(self) -> set[str]:
        """The verbs that are allowed now."""
        return {verb for verb, why in self.call("GET", f"{self.path}/actions").json()["actions"].items() if not why}


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A small region on virtual time."""
    made = make_world(database, tmp_path, fleet=str(FLEET))
    made.settle()
    yield made
    made.clock.stop()


@pytest.fixture
def flat(world: World) -> Flat:
    """A tenant with one of two bare machines."""
    return Flat(Rack(world, 2))


def test_a_tenant_does_with_its_machine_what_it_likes(flat: Flat) -> None:
    """Each action is an operation that ends well; the machine is seen so, stays the tenant's, stays metered, and shows no name of ours."""
    expected = {
        "reboot": ("active", "on", {"reboot", "power-cycle", "stop", "reinstall", "rescue"}),
        "power-cycle": ("active", "on", {"reboot", "power-cycle", "stop", "reinstall", "rescue"}),
        "stop": ("stopped", "off", {"start", "reinstall", "rescue"}),
        "start": ("active", "on", {"reboot", "power-cycle", "stop", "reinstall", "rescue"}),
        "rescue": ("rescued", "on", {"stop", "reinstall", "unrescue"}),
        "unrescue": ("active", "on", {"reboot", "power-cycle", "stop", "reinstall", "rescue"}),
        "reinstall": ("active", "on", {"reboot", "power-cycle", "stop", "reinstall", "rescue"}),
    }
    assert set(expected) == VERBS
    for verb, (machine, power, allowed) in expected.items():
        operation = flat.done(verb)
        assert (operation["state"], operation["type"]) == ("succeeded", f"instance.{verb.replace('-', '_')}"), operation
        assert (operation["resource_kind"], operation["resource_id"]) == ("instance", flat.instance_id)
        assert flat.node_id not in str(operation)
        assert (flat.machine, flat.bench.power_, flat.bench.media) == (machine, power, None), verb
        assert flat.allowed() == allowed, verb
    assert flat.bench.unsafe == []
    assert flat.world.rows("SELECT count(*), bool_and(upper_inf(during)) FROM meter_intervals") == [(1, True)]
    told = [one["type"] for one in flat.call("GET", f"/v1/events?resource_id={flat.instance_id}&limit=200").json()["items"]]
    assert told[:2] == ["instance.restarting", "instance.active"]
    assert "instance.rescued" in told
    assert flat.world.rows("SELECT state FROM clusters") == [("running",)]


def test_what_is_not_allowed_is_refused_with_the_reason(flat: Flat) -> None:
    """Without a version 428, in the wrong state 409 with what is allowed, a second action 409 with the first one's operation."""
    assert flat.call("POST", f"{flat.path}/actions/stop").status_code == 428
    assert flat.call("POST", f"{flat.path}/actions/stop", version=flat.version + 1).status_code == 412
    refused = flat.ask("start")
    assert (refused.status_code, refused.json()["code"], refused.json()["state"]) == (409, "wrong_state", "active")
    assert set(refused.json()["allowed"]) == flat.allowed()
    unknown = f"{flat.base}/instances/ins_00000000000000000000000000/actions/stop"
    assert flat.call("POST", unknown, version=flat.version).status_code == 404
    first = flat.call("POST", f"{flat.path}/actions/stop", version=flat.version, once="same")
    again = flat.call("POST", f"{flat.path}/actions/stop", version=flat.version, once="same")
    assert first.json() == again.json()
    second = flat.ask("reboot")
    assert (second.status_code, second.json()["operation_id"]) == (409, first.json()["operation"])
    assert flat.allowed() == set()
    cancelled = flat.call("POST", f"{first.headers['Location']}/actions/cancel")
    assert (cancelled.status_code, cancelled.json()["code"]) == (409, "not_cancellable")
    flat.rack.settle()
    assert flat.machine == "stopped"


def test_machines_that_others_drive_are_not_acted_on(world: World) -> None:
    """A provider that owns its machines' lives, and a cluster that is no bare metal, refuse each verb with a code of its own."""
    given = clusters.Login((KEY,))
    sealer = Sealer.from_base64(MASTER_KEY)
    sets = (clusters.SetOrder("workers", world.keys.instance_type, 1),)
    app = small_app(world.engine, router)
    call = Caller(app, world.keys.tenant_key)
    for kind, login in (("baremetal", given), ("slurm", None)):
        wanted = clusters.Order(kind, kind, world.keys.site, sets, wait=True, login=login)
        view, _ = world.do(lambda s, one=wanted: clusters.order_cluster(s, world.tenant, world.keys.project_id, one, sealer))
        world.settle()
        base = f"/v1/projects/{world.keys.project_id}/clusters/{view.row.id}"
        (instance,) = call("GET", f"{base}/instances").json()["items"]
        path = f"{base}/instances/{instance['id']}/actions"
        version = call("GET", base).json()["version"]
        refused = call("POST", f"{path}/reboot", version=version)
        assert (refused.status_code, refused.json()["code"]) == (409, "action_not_offered"), kind
        reasons = call("GET", path).json()["actions"]
        assert set(reasons) == VERBS
        assert all(reasons.values())


def test_a_rescue_needs_another_place_to_start_from(flat: Flat) -> None:
    """Where machines start from their own disks only, what would start is the tenant's own system: that is refused, not pretended."""
    flat.world.do(
        lambda s: s.connection().exec_driver_sql("UPDATE providers SET config = '{\"boot\": \"disk\"}' WHERE adapter = 'redfish'")
    )
    refused = flat.ask("rescue")
    assert (refused.status_code, refused.json()["code"]) == (409, "action_not_offered")
    assert "rescue" not in flat.allowed()


def test_a_rescue_knows_the_keys_and_nothing_else(flat: Flat) -> None:
    """Its seed has the tenant's login; the token of the deployment opens nothing meanwhile, and opens again afterwards."""
    (deployed,) = flat.world.rows("SELECT boot_id AS id FROM nodes WHERE id = :n", n=flat.node_id)
    flat.done("rescue")
    (rescue,) = flat.world.rows("SELECT id, purpose, tenant_id FROM boots WHERE state = 'ready'")
    assert (rescue.purpose, rescue.tenant_id) == ("rescue", flat.world.keys.tenant_id)
    links, sealer = _links(flat.world), Sealer.from_base64(MASTER_KEY)
    content, machine = flat.world.do(lambda s: reporting.content_for(s, sealer, links, rescue.id))
    assert (content.ssh_keys, content.user_data, content.scripts, content.files) == ((KEY,), "", (), ())
    assert machine.facts.hostname == flat.instance_id.replace("_", "-")
    with pytest.raises(NotFound):
        flat.world.do(lambda s: reporting.content_for(s, sealer, links, deployed.id))
    flat.done("unrescue")
    reopened = flat.world.do(lambda s: reporting.content_for(s, sealer, links, deployed.id))[1]
    assert reopened.facts.hostname == machine.facts.hostname
    with pytest.raises(NotFound):
        flat.world.do(lambda s: reporting.content_for(s, sealer, links, rescue.id))
    assert flat.world.rows("SELECT boot_id FROM nodes WHERE id = :n", n=flat.node_id) == [(deployed.id,)]


def _links(world: World) -> Any:
    from_settings = world.settings.model_copy(update={"machine_url": "http://cp"})
    return bootstrap.boot_links(from_settings)


@pytest.mark.parametrize("verb", ["rescue", "reinstall"])
def test_what_does_not_come_up_is_left_stopped(flat: Flat, verb: str) -> None:
    """A machine that never calls is off, still the tenant's, and its operation has failed with the reason; a start brings back what was."""
    flat.rack.silent = {flat.node_id}
    operation = flat.done(verb)
    assert operation["state"] == "failed"
    assert operation["error"]["code"].endswith("_silent")
    assert (flat.machine, flat.bench.power_) == ("stopped", "off")
    assert flat.world.rows("SELECT count(*) FROM allocations WHERE state = 'active'") == [(1,)]
    flat.rack.silent = set()
    assert flat.done("start")["state"] == "succeeded"
    (boot,) = flat.world.rows(
        "SELECT b.purpose, b.state FROM nodes n JOIN boots b ON b.id = n.boot_id WHERE n.id = :n", n=flat.node_id
    )
    assert tuple(boot) == ("deploy", "ready")


@pytest.mark.parametrize(("verb", "ticks"), [("stop", 0), ("reboot", 4), ("rescue", 2), ("reinstall", 6)])
def test_giving_it_back_wins(flat: Flat, verb: str, ticks: int) -> None:
    """Whatever the tenant's action is at, a deletion takes the machine, ends the action's operation, and wipes before anybody else."""
    answer = flat.ask(verb)
    for _ in range(ticks):
        flat.world.tick()
    flat.world.do(
        lambda s: clusters.delete_cluster(s, flat.world.tenant, flat.world.keys.project_id, flat.cluster_id, lambda _: None)
    )
    flat.rack.settle()
    assert flat.rack.states() == {"available": 2}
    assert flat.call("GET", answer.headers["Location"]).json()["state"] in {"cancelled", "succeeded"}
    assert flat.world.rows("SELECT count(*) FROM operations WHERE state NOT IN ('succeeded', 'cancelled')") == [(0,)]
    assert flat.world.rows("SELECT count(*) FROM wipes WHERE verified AND node_id = :n", n=flat.node_id) == [(2,)]
    assert flat.world.rows("SELECT count(*) FROM meter_intervals WHERE upper_inf(during)") == [(0,)]
    assert flat.world.rows("SELECT resource, used FROM quotas WHERE used <> 0 AND resource IN ('gpus', 'clusters')") == []
    assert flat.bench.unsafe == []


def looked_at(flat: Flat) -> int:
    """How many controllers a round of looks has asked."""
    with Watch(flat.world.engine, flat.rack.tools) as watch:
        watch.whole_round()
    query = "SELECT count(*) AS n FROM nodes WHERE id = ANY(:ids) AND looked_at > cp_clock() - interval '1 s'"
    return int(flat.world.rows(query, ids=flat.rack.ids)[0].n)


def test_a_stopped_machine_is_neither_sick_nor_replaced(flat: Flat) -> None:
    """Its controller is not asked while it is off, and a report of trouble takes it from nobody; once it runs again both happen."""
    flat.done("stop")
    flat.world.clock.advance(61)
    assert looked_at(flat) == 1
    flat.world.do(lambda s: nodes.report(s, [nodes.Report(flat.node_id, "agent", "heartbeat", "drain", "silent")]))
    flat.world.clock.advance(120)
    assert flat.world.do(replacing.replace_sick) == 0
    flat.done("start")
    flat.world.clock.advance(120)
    assert looked_at(flat) == 2
    assert flat.world.do(replacing.replace_sick) == 1


def test_a_controller_that_does_not_obey_brings_a_person(flat: Flat) -> None:
    """Past its longest stay the action asks for a person; resumed it goes on, given up it has failed and the machine stays its tenant's."""
    operator = Caller(flat.app, flat.world.keys.operator_key)

    def stuck() -> str:
        flat.bench.stuck_on = True
        place = flat.ask("stop").headers["Location"]
        flat.world.clock.advance(3700)
        flat.rack.settle()
        operation = flat.call("GET", place).json()
        assert (operation["state"], operation["error"]["code"]) == ("needs_attention", "deadline")
        asked = operator("GET", "/v1/admin/attention?kind=node").json()["items"]
        assert [(one["id"], one["operation_id"]) for one in asked] == [(flat.node_id, operation["id"])]
        flat.bench.stuck_on = False
        return str(operation["id"])

    first = stuck()
    assert operator("POST", f"/v1/admin/operations/{first}/actions/resume").json()["state"] == "running"
    flat.rack.settle()
    assert (flat.call("GET", f"/v1/operations/{first}").json()["state"], flat.machine) == ("succeeded", "stopped")
    flat.done("start")
    second = stuck()
    assert operator("POST", f"/v1/admin/operations/{second}/actions/abandon").json()["state"] == "failed"
    assert flat.machine == "active"
    assert flat.done("reboot")["state"] == "succeeded"


def test_no_action_is_without_an_end(flat: Flat) -> None:
    """The controller never answers again: by its longest stay each action stands before a person, and goes on once it answers."""
    operator = Caller(flat.app, flat.world.keys.operator_key)
    bench = flat.bench
    met = set()
    for verb in ROUND:
        place = flat.ask(verb).headers["Location"]
        met.add(flat.machine)
        flat.rack.tools.benches[flat.node_id] = Silence()  # type: ignore[assignment]
        flat.world.clock.advance(10)
        flat.world.tick()
        flat.world.clock.advance(NODE_STATES.by_name[flat.machine].longest_stay_s)
        for _ in range(3):
            flat.world.tick()
        asked = flat.call("GET", place).json()
        assert (asked["state"], asked["error"]["code"]) == ("needs_attention", "deadline"), verb
        flat.rack.tools.benches[flat.node_id] = bench
        operator("POST", f"/v1/admin/attention/{flat.node_id}/actions/retry")
        flat.rack.settle()
        assert flat.call("GET", place).json()["state"] == "succeeded", verb
    assert met == ACTING


def test_consoles_show_what_ran_for_their_owner_and_nothing_else(flat: Flat) -> None:
    """Every boot of the tenancy with its output; never a wipe, a check, another owner's boot or another's instance."""
    flat.done("rescue")
    rows = flat.world.rows("SELECT id, purpose FROM boots WHERE node_id = :n ORDER BY id", n=flat.node_id)
    for row in rows:
        flat.world.do(lambda s, one=row: boots.append_console(s, one.id, f"canary {one.purpose} {one.id}".encode()))
    by_purpose = {row.purpose: row.id for row in rows}
    assert set(by_purpose) == {"check", "wipe", "deploy", "rescue"}
    last = flat.call("GET", f"{flat.path}/console").json()
    assert [one["purpose"] for one in last["boots"]] == ["deploy", "rescue"]
    assert (last["boot"], last["text"]) == (by_purpose["rescue"], f"canary rescue {by_purpose['rescue']}")
    first = flat.call("GET", f"{flat.path}/console?boot={by_purpose['deploy']}&after=7").json()
    assert (first["text"], first["offset"], first["next_offset"]) == (f"deploy {by_purpose['deploy']}", 7, first["size"])
    for hidden in (by_purpose["wipe"], by_purpose["check"], "bot_00000000000000000000000000"):
        answer = flat.call("GET", f"{flat.path}/console?boot={hidden}")
        assert answer.status_code == 404
        assert "canary" not in answer.text
    flat.world.do(
        lambda s: clusters.delete_cluster(s, flat.world.tenant, flat.world.keys.project_id, flat.cluster_id, lambda _: None)
    )
    flat.rack.settle()
    assert flat.call("GET", f"{flat.path}/console").status_code == 404
    cluster_id = order(flat.world, 2)
    flat.rack.settle()
    base = f"/v1/projects/{flat.world.keys.project_id}/clusters/{cluster_id}"
    for instance in flat.call("GET", f"{base}/instances").json()["items"]:
        shown = flat.call("GET", f"{base}/instances/{instance['id']}/console")
        assert len(shown.json()["boots"]) == 1
        assert "canary" not in shown.text
        old = flat.call("GET", f"{base}/instances/{instance['id']}/console?boot={by_purpose['deploy']}")
        assert old.status_code == 404


def test_death_at_any_point_changes_nothing(flat: Flat) -> None:
    """A process that dies at every third pass of a point, before or after its call or commit, does each action once all the same."""
    flat.rack.tools.benches[flat.node_id] = Guarded(flat.bench, Circuit())  # type: ignore[assignment]
    # Every death costs a lease, and the boot is as old as all of them together before its machine has power.
    patient = "UPDATE providers SET config = config || '{\"first_call_s\": 7200}', version = version + 1 WHERE adapter = 'redfish'"
    flat.world.do(lambda s: s.connection().exec_driver_sql(patient))
    for point in (
        "claim.before_commit",
        "claim.after_commit",
        "call.before",
        "call.after",
        "apply.before_commit",
        "apply.after_commit",
    ):
        passes: Counter[str] = Counter()

        def die(passed: str, point: str = point, passes: Counter[str] = passes) -> None:
            passes[passed] += 1
            if passed == point and passes[passed] % 3 == 0:
                raise Death

        for verb in ROUND:
            answer = flat.ask(verb)
            assert answer.status_code == 202, (point, verb, answer.text)
            take_out = crashpoints.install(die)
            try:
                _settle(flat)
            finally:
                take_out()
            operation = flat.call("GET", answer.headers["Location"]).json()
            assert operation["state"] == "succeeded", (point, verb, operation)
        assert passes[point] >= 3, point
        assert (flat.machine, flat.bench.power_, flat.bench.media) == ("active", "on", None), point
    assert flat.bench.unsafe == []
    assert flat.world.rows("SELECT count(*) FROM meter_intervals") == [(1,)]


def _settle(flat: Flat) -> None:
    while True:
        try:
            flat.rack.settle()
        except Death:
            flat.world.clock.advance(LAPSE_S)
        else:
            return
