"""
Passwords of controllers as rows: two phases that no crash breaks, a new one after every tenant, and the operator's way in.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import text

from controlplane import bootstrap
from controlplane.clusters import service as clusters
from controlplane.kit.errors import Conflict, NotFound
from controlplane.kit.secrets import Sealer
from controlplane.nodes import rotating, watching
from controlplane.nodes.steps.metal.accounts import MOST_REFUSALS, PAUSE_S
from controlplane.nodes.steps.metal.accounts import renew as next_part
from tests.conftest import Database
from tests.factories.metal import Bench
from tests.factories.world import MASTER_KEY, World, make_world
from tests.integration.test_bare_nodes import ENROLLED_WITH, Rack, only_bare, order
from workers.sweeps import rotate_controllers

FLEET = Path(__file__).parents[1] / "schedules" / "fleet.yaml"
SEALER = Sealer.from_base64(MASTER_KEY)
LAPSE_S = 200.0
"""Longer than any lease with its grace."""
UNDER_WAY = {"prepared", "told"}


class Controller:
    """One machine's controller, and its row."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rack = Rack(world, 1)
        (self.id,) = self.rack.ids

    @property
    def bench(self) -> Bench:
        """The controller itself."""
        return self.rack.tools.benches[self.id]

    @property
    def row(self) -> Any:
        """What is stored of it."""
        (found,) = self.world.rows(
            "SELECT state, step, rotation, refusals, rotate_at, sealed, sealed_next, attention, door FROM nodes WHERE id = :id",
            id=self.id,
        )
        return found

    def stored(self) -> set[str]:
        """The passwords that we have."""
        row = self.row
        return {bootstrap.open_password(SEALER, self.id, one) for one in (row.sealed, row.sealed_next) if one is not None}

    def ask(self, password: str = "") -> None:
        """An operator wants another password."""
        self.world.do(lambda s: rotating.ask_rotation(s, self.id, SEALER, password=password, check=lambda _: None))

    def put(self, state: str) -> None:
        """The node stands in that state, at its beginning."""
        due = "cp_clock()" if state == "inspecting" else "NULL"
        moved = f"UPDATE nodes SET state = :state, step = '', attempts = 0, deadline_at = NULL, due_at = {due} WHERE id = :id"
        self.world.do(lambda s: s.execute(text(moved), {"state": state, "id": self.id}))

    def sweep(self) -> int:
        """One look for rotations that are due on nodes at rest."""
        with ThreadPoolExecutor(1) as pool:
            return rotate_controllers(self.world.engine, self.world.tools, pool)

    def swept(self, most: int = 8) -> None:
        """All of them have come as far as they do without waiting."""
        for _ in range(most):
            if not self.sweep():
                return
        raise AssertionError(self.row)


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    """A small region on virtual time, whose simulated machines take no orders."""
    made = make_world(database, tmp_path, fleet=str(FLEET))
    made.settle()
    only_bare(made)
    yield made
    made.clock.stop()


@pytest.fixture
def controller(world: World) -> Controller:
    """One bare machine, just enrolled."""
    return Controller(world)


def test_a_machine_has_a_password_of_its_own_before_it_is_offered(controller: Controller) -> None:
    """The operator's is changed at inspection, sealed, and stands nowhere in the clear."""
    controller.rack.settle()
    row = controller.row
    assert (row.state, row.rotation, row.sealed_next) == ("available", "rotated", None)
    assert controller.stored() == {controller.bench.secret}
    assert controller.bench.secret != ENROLLED_WITH
    assert controller.bench.most_wrong == 0
    assert controller.bench.acts.count("password") == 1
    seen = controller.world.rows(
        "SELECT count(*) FROM events WHERE type = 'node.controller_rotated' AND resource_id = :id", id=controller.id
    )
    assert seen == [(1,)]
    for table in ("events", "audit_entries", "state_history", "nodes"):
        (found,) = controller.world.rows(
            f"SELECT count(*) FROM {table} t WHERE position(:s in t::text) > 0", s=controller.bench.secret
        )
        assert found == (0,), table


def test_every_tenant_is_followed_by_another_password(controller: Controller) -> None:
    """Locked while it is a tenant's; restarted, opened and changed when it comes back, and the wipe's record says so."""
    world, bench = controller.world, controller.bench
    controller.rack.settle()
    before = bench.secret
    cluster_id = order(world, 1)
    controller.rack.settle()
    assert (controller.row.state, controller.row.door, bench.locked) == ("active", "locked", True)
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    controller.rack.settle()
    assert (controller.row.state, controller.row.door, bench.locked) == ("available", "unlocked", False)
    assert controller.stored() == {bench.secret}
    assert bench.secret != before
    assert bench.unsafe == []
    (wipe,) = world.rows("SELECT checks FROM wipes WHERE node_id = :id ORDER BY requested_at DESC LIMIT 1", id=controller.id)
    found = {one["name"]: one["result"] for one in wipe.checks}
    assert {name: found[name] for name in ("controller_restarted", "controller_password", "baseline_accounts")} == dict.fromkeys(
        ("controller_restarted", "controller_password", "baseline_accounts"), "passed"
    )


def test_an_account_that_a_tenant_made_keeps_the_machine_out(controller: Controller) -> None:
    """Quarantined with the reason in its wipe's record."""
    world = controller.world
    controller.rack.settle()
    cluster_id = order(world, 1)
    controller.rack.settle()
    controller.bench.accounts = ("admin", "backdoor")
    world.do(lambda s: clusters.delete_cluster(s, world.tenant, world.keys.project_id, cluster_id, lambda _: None))
    controller.rack.settle()
    assert controller.row.state == "quarantined"
    (wipe,) = world.rows(
        "SELECT verified, checks FROM wipes WHERE node_id = :id ORDER BY requested_at DESC LIMIT 1", id=controller.id
    )
    assert not wipe.verified
    assert [one["detail"] for one in wipe.checks if one["name"] == "baseline_accounts"] == ["not there at inspection: backdoor"]


def test_an_operator_changes_it_while_a_tenant_holds_the_host(controller: Controller) -> None:
    """Without touching the tenant: only the password changes."""
    world, bench = controller.world, controller.bench
    controller.rack.settle()
    cluster_id = order(world, 1)
    controller.rack.settle()
    before, acts = bench.secret, len(bench.acts)
    controller.ask()
    controller.swept()
    assert (controller.row.state, controller.row.rotation) == ("active", "rotated")
    assert bench.acts[acts:] == ["password"]
    assert controller.stored() == {bench.secret} != {before}
    assert world.rows("SELECT state FROM clusters WHERE id = :id", id=cluster_id) == [("running",)]


def test_a_node_that_is_chosen_meanwhile_waits_for_the_password(controller: Controller) -> None:
    """Nobody drives a node while its password is being changed; what was begun is finished by whoever drives it next."""
    world = controller.world
    controller.rack.settle()
    controller.ask()
    ((node, fence),) = world.do(lambda s: rotating.claim_rotations(s, 10))
    order(world, 1)
    for _ in range(5):
        world.tick()
    assert controller.row.state == "reserved"
    outcome = next_part(node, world.tools)
    assert world.do(lambda s: rotating.store_rotation(s, node.id, fence, outcome))
    assert controller.row.rotation == "prepared"
    controller.rack.settle()
    assert (controller.row.state, controller.row.rotation) == ("active", "rotated")
    assert controller.stored() == {controller.bench.secret}


def test_a_late_claim_changes_nothing(controller: Controller) -> None:
    """What a worker stores after another has taken over is dropped."""
    controller.rack.settle()
    controller.ask()
    ((node, fence),) = controller.world.do(lambda s: rotating.claim_rotations(s, 10))
    late = next_part(node, controller.world.tools)
    controller.world.clock.advance(LAPSE_S)
    controller.swept()
    assert not controller.world.do(lambda s: rotating.store_rotation(s, node.id, fence, late))
    assert controller.stored() == {controller.bench.secret}


def test_somebody_else_changed_it(controller: Controller) -> None:
    """Three rounds, far apart, then a person, who tells what it is now; the account never saw more than a few wrong ones in a row."""
    world, bench = controller.world, controller.bench
    controller.rack.settle()
    bench.secret = "changed by hand"
    bench.most_wrong = 0
    controller.ask()
    for _ in range(2):
        controller.sweep()
    rounds = 0
    while controller.row.rotate_at is not None:
        wrong = bench.wrong
        world.clock.advance(PAUSE_S + 1)
        controller.swept()
        assert bench.wrong - wrong <= 2
        rounds += 1
        assert rounds <= MOST_REFUSALS
    assert (controller.row.refusals, controller.row.rotation) == (MOST_REFUSALS, "prepared")
    assert world.rows(
        "SELECT count(*) FROM events WHERE type = 'node.controller_refuses' AND resource_id = :id", id=controller.id
    ) == [(1,)]
    assert not controller.sweep()
    looked = [one.id for one in world.do(lambda s: watching.due_machines(s, 100))]
    assert controller.id not in looked
    controller.ask("changed by hand")
    controller.swept()
    assert (controller.row.rotation, controller.row.refusals) == ("rotated", 0)
    assert controller.stored() == {bench.secret}


def test_a_controller_of_several_nodes_keeps_its_password(controller: Controller) -> None:
    """Changing it for one would lock the others out."""
    world = controller.world
    world.do(
        lambda s: s.execute(
            text(
                "INSERT INTO nodes (id, provider_id, ref, site, block, leaf, rack, instance_type, gpus, state, access, due_at)"
                " SELECT 'nod_twin', provider_id, 'twin', site, block, leaf, rack, instance_type, gpus, 'enrolled', access, NULL"
                " FROM nodes WHERE id = :id"
            ),
            {"id": controller.id},
        )
    )
    controller.rack.settle()
    assert (controller.row.state, controller.row.rotation) == ("available", "shared")
    assert controller.bench.secret == ENROLLED_WITH


def test_nodes_without_a_controller_of_ours_are_refused(controller: Controller) -> None:
    """Others are driven by their providers; and where the settings leave passwords to somebody else, none is changed."""
    world = controller.world
    (other,) = world.rows("SELECT id FROM nodes WHERE access = '{}'::jsonb LIMIT 1")
    for node_id, expected in ((other.id, Conflict), ("nod_none", NotFound)):
        with pytest.raises(expected):
            world.do(lambda s, one=node_id: rotating.ask_rotation(s, one, SEALER, password="", check=lambda _: None))
    world.do(
        lambda s: s.execute(
            text("UPDATE providers SET config = '{\"rotate_passwords\": false}', version = version + 1 WHERE adapter = 'redfish'")
        )
    )
    with pytest.raises(Conflict):
        controller.ask()
    controller.rack.settle()
    assert (controller.row.state, controller.row.rotation, controller.bench.secret) == ("available", "off", ENROLLED_WITH)


FAULTS = ("", "", "", "lost", "dropped", "stubborn", "refused")


class Rotating(RuleBasedStateMachine):
    """
    Whatever crashes, whoever takes over, whatever the controller does: a stored password lets us in; and when all is well again,
    exactly one is left.
    """

    controller: Controller

    def __init__(self) -> None:
        super().__init__()
        self.world = self.controller.world
        self.driver = self.world.drivers["node"]

    @initialize()
    def begin(self) -> None:
        """The node is at rest, and so is its controller."""
        bench = self.controller.bench
        bench.goes_wrong, bench.most_wrong, bench.wrong = {}, 0, 0
        if self.controller.row.state != "quarantined":
            self.controller.put("quarantined")

    @rule(kind=st.sampled_from(FAULTS))
    def break_controller(self, kind: str) -> None:
        """The next change goes wrong in this way."""
        self.controller.bench.goes_wrong = {"set_password": [kind]} if kind else {}

    @rule()
    def ask(self) -> None:
        """An operator wants another password."""
        self.controller.ask()

    @precondition(lambda self: self.controller.row.state == "quarantined")
    @rule()
    def requalify(self) -> None:
        """The node is driven again."""
        self.controller.put("inspecting")
        self.world.do(lambda s: rotating.make_due(s, [self.controller.id]))

    @precondition(lambda self: self.controller.row.state in {"inspecting", "qualifying"})
    @rule()
    def quarantine(self) -> None:
        """It is at rest again, whatever was under way."""
        self.controller.put("quarantined")

    @rule(ends=st.sampled_from(("applied", "applied", "lost before the call", "lost after the call", "overtaken")))
    def drive(self, ends: str) -> None:
        """The engine's part: claim, step, apply, each of which may be the last that a worker does."""
        claims = self.driver.claim(10)
        if ends == "lost before the call":
            self.world.clock.advance(LAPSE_S)
            return
        results = [self.driver.step(claim, self.world.tools) for claim in claims]
        if ends != "applied":
            self.world.clock.advance(LAPSE_S)
        if ends == "overtaken":
            self.driver.apply([self.driver.step(claim, self.world.tools) for claim in self.driver.claim(10)])
        if ends in {"applied", "overtaken"}:
            self.driver.apply(results)

    @rule(ends=st.sampled_from(("stored", "stored", "lost before the call", "lost after the call", "overtaken")))
    def sweep(self, ends: str) -> None:
        """The same of the sweep for nodes at rest."""
        if ends == "stored":
            self.controller.sweep()
            return
        claimed = self.world.do(lambda s: rotating.claim_rotations(s, 10))
        outcomes = []
        if ends != "lost before the call":
            outcomes = [(node.id, fence, self.world.tools.run(next_part, node, attempt=1)[0]) for node, fence in claimed]
        self.world.clock.advance(LAPSE_S)
        if ends == "overtaken":
            self.controller.sweep()
            for node_id, fence, outcome in outcomes:
                self.world.do(lambda s, one=node_id, its=fence, said=outcome: rotating.store_rotation(s, one, its, said))

    @rule()
    def later(self) -> None:
        """Pauses are over."""
        self.world.clock.advance(PAUSE_S + 1)

    @invariant()
    def somebody_is_let_in(self) -> None:
        """One of the stored passwords is the controller's."""
        row = self.controller.row
        assert self.controller.bench.secret in self.controller.stored()
        assert (row.sealed_next is not None) == (row.rotation in UNDER_WAY)
        assert self.controller.bench.most_wrong <= 2 * MOST_REFUSALS

    def teardown(self) -> None:
        """All is well again: one password is left, and it is the one."""
        self.controller.bench.goes_wrong = {}
        if self.controller.row.state != "quarantined":
            self.controller.put("quarantined")
        self.controller.ask()
        for _ in range(6):
            self.world.clock.advance(PAUSE_S + 1)
            self.controller.swept()
        row = self.controller.row
        assert (row.rotation, row.sealed_next, row.refusals) == ("rotated", None, 0)
        assert self.controller.stored() == {self.controller.bench.secret}


def test_no_crash_locks_us_out(controller: Controller) -> None:
    """The law, over random schedules on the real rows."""
    quiet = settings(
        max_examples=12, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    controller.rack.settle()
    controller.put("quarantined")
    machine = type("RotatingHere", (Rotating,), {"controller": controller})
    run_state_machine_as_test(machine, settings=quiet)
    assert replace(controller.bench, acts=[]).unsafe == []
