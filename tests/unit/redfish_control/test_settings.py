"""
Firmware settings: in force, waiting, and refused.
"""

import pytest

from controlplane.providers.adapters.redfish.adapter import RedfishAdapter
from controlplane.providers.errors import Busy, Refused, Unsupported
from controlplane.providers.hardware import Controller
from tests.simulators.redfish.server import FakeBmc, no
from tests.simulators.redfish.tree import SYSTEM

BIOS, FUTURE, SECURE = f"{SYSTEM}/Bios", f"{SYSTEM}/Bios/Settings", f"{SYSTEM}/SecureBoot"
ON_RESET = {"@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}


def reboot(bmc: FakeBmc) -> None:
    """What was accepted comes into force."""
    bmc.tree[BIOS]["Attributes"] |= bmc.tree[FUTURE]["Attributes"]
    bmc.tree[FUTURE]["Attributes"] = {}
    bmc.tree[SECURE]["SecureBootCurrentBoot"] = "Enabled" if bmc.tree[SECURE]["SecureBootEnable"] else "Disabled"


def test_changes_wait_for_a_reboot_and_are_shown(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """In the types that the attributes have, when to apply included; what is in force is not claimed before."""
    bmc.tree[BIOS]["Attributes"]["AdminPassword"] = "of the firmware"
    before = {"ProcTurbo": "Enabled", "Retries": "3", "Quiet": "true", "secure_boot": "off"}
    assert adapter.read_settings(at) == before
    adapter.change_settings(at, {"Retries": "5", "Quiet": "false", "ProcTurbo": "Enabled", "secure_boot": "on"})
    assert bmc.sent(f"PATCH {FUTURE}") == [{"Attributes": {"Retries": 5, "Quiet": False}} | ON_RESET]
    assert adapter.read_settings(at) == before
    assert adapter.observe(at).pending == ("Quiet", "Retries", "secure_boot")
    reboot(bmc)
    assert adapter.observe(at).pending == ()
    assert adapter.read_settings(at) == before | {"Retries": "5", "Quiet": "false", "secure_boot": "on"}


def test_a_repeat_sends_nothing(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Neither while the change waits nor when it is in force; going back on it does."""
    for _ in range(2):
        adapter.change_settings(at, {"Retries": "5", "secure_boot": "on"})
    reboot(bmc)
    adapter.change_settings(at, {"Retries": "5", "secure_boot": "on"})
    assert len(bmc.lines("PATCH")) == 2
    adapter.change_settings(at, {"Retries": "6"})
    adapter.change_settings(at, {"Retries": "5"})
    assert bmc.sent(f"PATCH {FUTURE}")[-1] == {"Attributes": {"Retries": 5}} | ON_RESET
    assert adapter.observe(at).pending == ()


@pytest.mark.parametrize(
    "wanted",
    [{"Unheard": "1"}, {"Retries": "many"}, {"Retries": "--5"}, {"Quiet": "perhaps"}, {"secure_boot": "maybe"}],
    ids=lambda one: next(iter(one)),
)
def test_what_cannot_be_is_refused_before_it_is_sent(
    bmc: FakeBmc, adapter: RedfishAdapter, at: Controller, wanted: dict[str, str]
) -> None:
    """With the setting's name in the words."""
    with pytest.raises(Refused, match=next(iter(wanted))):
        adapter.change_settings(at, wanted)
    assert bmc.lines("PATCH") == []


def test_a_controller_that_applies_at_once(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Without a settings object the BIOS itself is written."""
    del bmc.tree[BIOS]["@Redfish.Settings"]
    adapter.change_settings(at, {"Retries": "5"})
    assert bmc.sent(f"PATCH {BIOS}") == [{"Attributes": {"Retries": 5}}]
    assert adapter.read_settings(at)["Retries"] == "5"


def test_a_licence_that_hides_secure_boot_makes_it_unknown(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Supermicro: not off."""
    bmc.fail(f"GET {SECURE}", "say", times=9, payload=no(403, "SMC.1.0.OemLicenseNotPassed"))
    assert adapter.read_settings(at)["secure_boot"] == "unknown"
    with pytest.raises(Unsupported):
        adapter.change_settings(at, {"secure_boot": "on"})


def test_a_breakdown_over_secure_boot_hides_nothing_else(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """As sushy-tools does with one of its drivers."""
    bmc.fail(f"GET {SECURE}", "say", times=9, payload=no(500, "Base.1.8.InternalError"))
    assert adapter.read_settings(at) == {"ProcTurbo": "Enabled", "Retries": "3", "Quiet": "true", "secure_boot": "unknown"}


def test_a_machine_without_settings(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """Reads as such, and refuses changes in words."""
    del bmc.system["Bios"], bmc.system["SecureBoot"]
    assert adapter.read_settings(at) == {"secure_boot": "unknown"}
    for wanted in ({"Retries": "5"}, {"secure_boot": "on"}):
        with pytest.raises(Unsupported):
            adapter.change_settings(at, wanted)


def test_settings_that_cannot_be_read_are_not_called_in_force(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """The power can still be observed."""
    bmc.fail(f"GET {BIOS}", "say", times=9, payload=no(500, "Base.1.8.InternalError"))
    view = adapter.observe(at)
    assert (view.power, view.pending) == ("off", ("unreadable",))


def test_a_job_that_waits_already_is_busy(bmc: FakeBmc, adapter: RedfishAdapter, at: Controller) -> None:
    """An iDRAC takes no second change before the first is applied."""
    bmc.fail("PATCH", "say", payload=no(409, "IDRAC.2.8.SYS011", "a job is pending"))
    with pytest.raises(Busy):
        adapter.change_settings(at, {"Retries": "5"})
