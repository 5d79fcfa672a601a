"""
What is done with controllers between tenants, spoken to real controllers' ways: one that plays faults and locks accounts, and
sushy-tools' emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.kit.outcome import Fail, Outcome, Wait
from controlplane.nodes.states import Access, Boot, NodeSnapshot, ProviderRef, Rotation
from controlplane.nodes.steps import STEPS
from controlplane.nodes.steps.metal.accounts import renew
from controlplane.providers.adapters.redfish.adapter import RedfishAdapter, build
from controlplane.providers.errors import ProviderError, Transient
from controlplane.providers.registry import AdapterInput
from tests.factories.metal import NOW, Tools, bare_node, learnt
from tests.factories.processes import until
from tests.redfish_kit import ACCOUNT, RedfishKit, running_kit
from tests.simulators.redfish.server import Answer, FakeBmc, no, serving
from tests.simulators.redfish.tree import MANAGER, SESSIONS, V1

OLD = "old secret 1"
OURS = f"{V1}/AccountService/Accounts/2"
LOCKED_AFTER = 3
SLOWEST_POWER_S = 30.0
Worker = Callable[[], Any]


@pytest.fixture
def worker() -> Iterator[Worker]:
    """Makes what a fresh worker process has: an adapter that knows no session and no password."""
    with ExitStack() as stack:

        def make() -> Any:
            given = AdapterInput(
                "prv_1", {"timeout_s": 5.0, "retry_delay_s": 0.0, "silence_s": 0.0}, {}, "test", lambda: datetime.now(UTC)
            )
            adapter: RedfishAdapter = build(given)
            stack.callback(adapter.close)
            return Tools(adapter)  # type: ignore[arg-type]

        yield make


@pytest.fixture
def bmc() -> Iterator[FakeBmc]:
    """A controller that locks its account for good after three wrong passwords in a row."""
    fake = FakeBmc()

    def lockout(method: str, path: str, content: dict[str, Any]) -> Answer | None:
        del content
        locked = fake.most_wrong_passwords >= LOCKED_AFTER and (method, path) == ("POST", SESSIONS)
        return no(401, "Base.1.8.AccountLocked", "the account is locked") if locked else None

    fake.rules.append(lockout)
    with serving(fake):
        yield fake


def node_at(url: str, state: str = "cleaning", **changes: Any) -> NodeSnapshot:
    """A node behind that controller whose password is due for a change."""
    access = Access(url, username="admin", sealed=OLD.encode())
    return bare_node(state, **{"access": access, "rotation": Rotation("due"), **changes})


def passwords(node: NodeSnapshot) -> set[str]:
    """Those that are stored."""
    assert node.access is not None
    return {one.decode() for one in (node.access.sealed, node.access.sealed_next) if one is not None}


@pytest.mark.parametrize("fault", ["", "effect_reset", "reset", "truncate"])
@pytest.mark.parametrize("forgotten", [(), (1,), (2,), (1, 1, 2, 2)])
def test_a_rotation_ends_well_wherever_workers_die(bmc: FakeBmc, worker: Worker, fault: str, forgotten: tuple[int, ...]) -> None:
    """
    What the named calls came to was never stored, and each is followed by a fresh process; the account is never near its lockout.
    """
    node, left = node_at(bmc.url), list(forgotten)
    node = learnt(node, renew(node, worker()).facts)
    assert node.rotation.state == "prepared"
    if fault:
        bmc.fail(f"PATCH {OURS}", fault)
    for _ in range(12):
        part = 1 if node.rotation.state == "prepared" else 2
        outcome: Outcome | None = None
        with suppress(Transient):
            outcome = renew(node, worker())
        assert bmc.passwords["admin"] in passwords(node)
        if part in left:
            left.remove(part)
            continue
        node = learnt(node, outcome.facts if outcome is not None else None)
        if node.rotation.state == "rotated":
            break
    assert node.rotation == Rotation("rotated")
    assert passwords(node) == {bmc.passwords["admin"]} != {OLD}
    assert bmc.most_wrong_passwords < LOCKED_AFTER


def test_a_changed_password_does_not_lock_the_account(bmc: FakeBmc, worker: Worker) -> None:
    """A round tries each of ours once, whichever process takes it."""
    bmc.passwords["admin"] = "somebody else's"
    node = node_at(bmc.url)
    node = learnt(node, renew(node, worker()).facts)
    outcome = renew(node, worker())
    assert isinstance(outcome, Wait)
    assert (outcome.facts.rotation, outcome.facts.refused) == ("prepared", True)
    assert bmc.most_wrong_passwords == 2


def test_a_wipe_restarts_and_a_tenant_is_locked_out_for_real(bmc: FakeBmc, worker: Worker) -> None:
    """The manager is restarted and answers; the host interface is off for the tenant and on again after it."""
    tools = worker()
    bmc.silent_after_restart = 2
    node = node_at(bmc.url, step="restart", rotation=Rotation())
    told = STEPS["cleaning"](node, tools)
    assert (told.step, bmc.restarts) == ("answering", 1)
    node = replace(learnt(node, told.facts), step="answering")
    with pytest.raises(ProviderError):
        STEPS["cleaning"](node, tools)
    assert STEPS["cleaning"](node, tools).step == "rotate"
    deploying = node_at(bmc.url, "deploying", step="lock", rotation=Rotation())
    assert STEPS["deploying"](deploying, tools).facts.door == "locked"
    assert bmc.tree[f"{MANAGER}/HostInterfaces/1"]["InterfaceEnabled"] is False
    releasing = node_at(bmc.url, "releasing", step="unlock", door="locked", rotation=Rotation())
    assert STEPS["releasing"](releasing, tools).facts.door == "unlocked"
    assert bmc.tree[f"{MANAGER}/HostInterfaces/1"]["InterfaceEnabled"] is True


@pytest.fixture(scope="module")
def kit() -> Iterator[RedfishKit]:
    """A running emulator, whose accounts are not its own to change."""
    with running_kit(systems=1) as running:
        yield running


def test_an_emulator_without_accounts_gets_a_finding_and_goes_on(kit: RedfishKit, worker: Worker) -> None:
    """It has no accounts, no lock and no restart: each is said, the old password stays, and only `require_lock` stops the tenant."""
    tools, (username, password) = worker(), ACCOUNT
    access = Access(kit.url, system=kit.systems[0], username=username, sealed=password.encode())
    node = node_at(kit.url, access=access)
    for _ in range(3):
        node = learnt(node, renew(node, tools).facts)
    assert node.rotation == Rotation("not_supported")
    assert node.access == access
    wiping = replace(node, step="restart", restarted_for_s=None)
    told = STEPS["cleaning"](wiping, tools)
    assert (told.step, told.facts) == ("answering", None)
    assert STEPS["cleaning"](replace(wiping, step="accounts"), tools).step == "held"
    deploying = replace(bare_node("deploying", step="lock"), access=access)
    assert STEPS["deploying"](deploying, tools).facts.door == "not_supported"
    strict = replace(deploying, provider=ProviderRef("prv_1", "redfish", {"require_lock": True}, None, 1))
    refused = STEPS["deploying"](strict, tools)
    assert isinstance(refused, Fail)
    assert refused.code == "controller_not_locked"


def test_secure_boot_is_put_right_and_read_back(kit: RedfishKit, worker: Worker) -> None:
    """Changed before the wipe's start, in force after it, on a controller that nobody of us wrote."""
    tools, (username, password) = worker(), ACCOUNT
    access = Access(kit.url, system=kit.systems[0], username=username, sealed=password.encode())
    provider = ProviderRef("prv_1", "redfish", {"settings_wanted": {"secure_boot": "on"}}, None, 1)
    node = bare_node("cleaning", access=access, provider=provider, boot=Boot("bot_1", "ready", 9.0, NOW))
    tools.bench.change_settings(_at(node), {"secure_boot": "off"})  # other tests share the controller
    before = STEPS["cleaning"](replace(node, step="held"), tools)
    assert isinstance(before, Fail)
    for step in ("adjust", "light"):
        STEPS["cleaning"](replace(node, step=step), tools)
    until(lambda: tools.bench.observe(_at(node)).power == "on", "the machine has power", within_s=SLOWEST_POWER_S)
    held = STEPS["cleaning"](replace(node, step="held"), tools)
    assert isinstance(held, Wait), held
    assert held.step == "compare"


def _at(node: NodeSnapshot) -> Any:
    access = node.access
    assert access is not None
    return Tools(None).controller(  # type: ignore[arg-type]
        node.id, url=access.url, system=access.system, username=access.username, sealed=access.sealed
    )
