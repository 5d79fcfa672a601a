"""
Who may use the controller: rotation that a login proves, and the lock against the host.
"""

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import AuthFailed, NotFound, Refused, Unknown, Unsupported
from controlplane.providers.hardware import Controller
from tests.simulators.redfish import ways
from tests.simulators.redfish.server import FakeBmc, no
from tests.simulators.redfish.tree import MANAGER, SESSIONS, V1
from tests.unit.redfish_control.conftest import Build

OURS = f"{V1}/AccountService/Accounts/2"
OLD, NEW = "old secret 1", "new secret 2"
INTERFACE = f"{MANAGER}/HostInterfaces/1"


def test_enabled_accounts_are_listed(adapter: RedfishAdapter, at: Controller) -> None:
    """Without empty slots and without those that cannot log in."""
    assert adapter.list_accounts(at) == ("admin",)


@pytest.mark.parametrize("auth", ["session", "basic"])
def test_a_new_password_is_used_at_once(bmc: FakeBmc, build: Build, at: Controller, auth: str) -> None:
    """By calls that still name the old one, and by those that name the new; the old lets nobody in."""
    adapter = build(auth=auth)
    adapter.observe(at)
    adapter.set_password(at, NEW)
    adapter.observe(at)
    adapter.observe(Controller("nod_1", bmc.url, password=NEW))
    assert bmc.passwords == {"admin": NEW}
    assert len(bmc.sessions) <= 1
    with pytest.raises(AuthFailed):
        build().observe(at)


@pytest.mark.parametrize("kind", ["effect_reset", "error_inside", "effect_hang"])
def test_a_lost_answer_is_settled_by_a_login(bmc: FakeBmc, build: Build, at: Controller, kind: str) -> None:
    """The controller took it and could not say so."""
    adapter = build(timeout_s=0.7, call_limit_s=10.0)
    bmc.fail(f"PATCH {OURS}", kind)
    adapter.set_password(at, NEW)
    assert bmc.passwords == {"admin": NEW}
    adapter.observe(at)


def test_a_repeat_after_a_crash_finds_it_done(bmc: FakeBmc, build: Build, at: Controller) -> None:
    """Another process, which still knows the old password only."""
    build().set_password(at, NEW)
    adapter = build()
    adapter.set_password(at, NEW)
    adapter.observe(at)
    assert bmc.lines("PATCH") == [f"PATCH {OURS}"]


def test_a_password_that_was_not_taken_leaves_the_old_one(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Whether the controller says no, breaks down, or says yes and forgets."""
    for answer, expected in (
        (no(400, "Base.1.8.PropertyValueFormatError", "too simple"), Refused),
        (no(500, "Base.1.8.InternalError"), Unknown),
        ((200, {}, {}), Refused),
    ):
        bmc.fail(f"PATCH {OURS}", "say", payload=answer)
        with pytest.raises(expected):
            adapter.set_password(at, NEW)
        adapter.observe(at)
    assert bmc.passwords == {"admin": OLD}


def test_neither_password_works(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Then an operator has to act; the controller is not tried on."""
    bmc.passwords["admin"] = "somebody else's"
    with pytest.raises(AuthFailed):
        adapter.set_password(at, NEW)


def test_a_refused_password_is_left_alone_however_often_a_new_one_is_set(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller
) -> None:
    """The pause of the old one outlives the try of the new one: else each repeat would count against the account."""
    bmc.passwords["admin"] = "somebody else's"
    for _ in range(3):
        with pytest.raises(AuthFailed):
            adapter.set_password(at, NEW)
        with pytest.raises(AuthFailed):
            adapter.observe(at)
    tried = [content["Password"] for content in bmc.sent(f"POST {SESSIONS}") if content]
    assert tried.count(OLD) == 1


def test_bad_passwords_and_accounts_are_clear_errors(bmc: FakeBmc, build: Build, adapter: RedfishAdapter, at: Controller) -> None:
    """Too short; not our account; no account at all."""
    with pytest.raises(Refused):
        adapter.set_password(at, "short")
    bmc.tree[OURS]["UserName"] = "renamed"
    with pytest.raises(NotFound):
        adapter.set_password(at, NEW)
    bmc.passwords.clear()
    with pytest.raises(Unsupported):
        build(secrets={}).set_password(at, NEW)


@pytest.mark.parametrize("there", [False, True])
def test_a_controller_without_accounts_says_so(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, there: bool) -> None:  # noqa: FBT001
    """Whether it has no service for them, or one that shows none; its password stays."""
    if there:
        del bmc.tree[f"{V1}/AccountService"]["Accounts"]
    else:
        del bmc.tree[f"{V1}/AccountService"], bmc.tree[f"{V1}/"]["AccountService"]
    for ask in (lambda: adapter.list_accounts(at), lambda: adapter.set_password(at, NEW)):
        with pytest.raises(Unsupported):
            ask()
    adapter.observe(at)


def test_the_lock_is_the_host_interface(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Off and on again, repeats harmless, read back."""
    for locked in (True, True, False):
        adapter.lock(at, locked=locked)
        assert bmc.tree[INTERFACE]["InterfaceEnabled"] is not locked
    assert len(bmc.lines("PATCH")) == 2
    bmc.keeps_settings = False
    with pytest.raises(Unknown, match="does not show it"):
        adapter.lock(at, locked=True)


def test_supermicro_locks_three_doors(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The system's, KCS and the host interface."""
    ways.as_supermicro(bmc)
    adapter.lock(at, locked=True)
    oem = f"{MANAGER}/Oem/Supermicro"
    assert bmc.tree[f"{oem}/SysLockdown"]["SysLockdownEnabled"] is True
    assert bmc.tree[f"{oem}/KCSInterface"]["Privilege"] == "Callback"
    assert bmc.tree[INTERFACE]["InterfaceEnabled"] is False


def test_dell_locks_by_attributes(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Whose names mean the ban."""
    path = ways.as_dell(bmc, model="16G Monolithic", version="7.00.60.00")
    adapter.lock(at, locked=True)
    assert bmc.tree[path]["Attributes"] == {
        "OS-BMC.1.AdminState": "Disabled",
        "LocalSecurity.1.LocalConfig": "Enabled",
        "LocalSecurity.1.PrebootConfig": "Enabled",
    }


def test_without_a_switch_there_is_no_lock(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """And nobody is told that there is one."""
    del bmc.tree[MANAGER]["HostInterfaces"]
    with pytest.raises(Unsupported) as caught:
        adapter.lock(at, locked=True)
    assert caught.value.code == "provider_no_lock"
