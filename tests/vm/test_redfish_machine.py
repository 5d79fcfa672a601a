"""
The Redfish adapter and firmware that obeys: what it inserts and chooses is what an emulated machine boots, and Secure Boot is enforced.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from controlplane.boots.disc import burn
from controlplane.providers.adapters.redfish.adapter import RedfishAdapter, build
from controlplane.providers.hardware import Controller, HardwareView
from controlplane.providers.registry import AdapterInput
from tests.vm_kit import ACCOUNT, ENABLED, VirtualMachine, deploy_disc, disk_image, running_vm, say, signed_disc, until

pytestmark = [ENABLED, pytest.mark.vm, pytest.mark.timeout(1200)]
MEMORY_MIB = 1024
BOOT_S = 240.0
POWER_S = 60.0


@pytest.fixture
def vm() -> Iterator[VirtualMachine]:
    """A machine with one empty disk."""
    with running_vm(memory_mib=MEMORY_MIB) as machine:
        yield machine


@pytest.fixture
def adapter() -> Iterator[RedfishAdapter]:
    """An adapter with the kit's account."""
    secrets = dict(zip(("username", "password"), ACCOUNT, strict=True))
    made = build(AdapterInput("prv_vm", {}, secrets, "test", lambda: datetime.now(UTC)))
    yield made
    made.close()


def seen(adapter: RedfishAdapter, controller: Controller, good: Callable[[HardwareView], bool]) -> HardwareView:
    """The first view that is good."""

    def look() -> HardwareView | None:
        view = adapter.observe(controller)
        return view if good(view) else None

    return until(look, POWER_S, lambda: str(adapter.observe(controller)))


def start(adapter: RedfishAdapter, controller: Controller, *, media: str, source: str) -> None:
    """The machine, off, has the disc in its drive and has been switched on to boot from there."""
    adapter.insert_media(controller, media)
    adapter.boot_from(controller, source)  # type: ignore[arg-type]
    view = adapter.observe(controller)
    assert (view.power, view.media, view.boot_source) == ("off", media, source)
    adapter.power(controller, on=True)
    seen(adapter, controller, lambda view: view.power == "on")


def test_a_machine_is_deployed_through_virtual_media_alone(vm: VirtualMachine, adapter: RedfishAdapter) -> None:
    """
    A deploy system booted from the virtual drive writes a disk image; the disk boots, finds our seed in the same drive and calls under the
    name that stands in it; the power button shuts it down, and the drive is empty in the end.
    """
    started = time.monotonic()
    controller = Controller("nod_vm", vm.bmc_url, system=vm.system)
    image = disk_image(vm, f"phone_home={vm.files.guest_url}/")
    written = image.read_bytes()
    disc = deploy_disc(vm, "deploy", f"deploy_url={vm.files.guest_url}/golden.raw", f"phone_home={vm.files.guest_url}/")
    say("discs and images made", started)
    start(adapter, controller, media=disc, source="media")
    call = vm.call("deployed", BOOT_S)
    assert call["instance_id"] == "deploy"
    assert call["system_uuid"].lower() == vm.system
    say("booted from the virtual drive, disk written, called", started)
    adapter.power(controller, on=False, force=True)
    seen(adapter, controller, lambda view: view.power == "off")
    assert vm.read_disk(0, len(written)) == written
    seed = vm.files.folder / "seed.iso"
    name = {"instance-id": "iid-ours", "local-hostname": "node-7"}
    meta = "".join(f"{key}: {value}\n" for key, value in name.items())
    seed.write_bytes(burn({"meta-data": meta.encode(), "user-data": b"#cloud-config\n{}\n"}))
    start(adapter, controller, media=f"{vm.files.url}/seed.iso", source="disk")
    call = vm.call("booted", BOOT_S)
    assert (call["instance_id"], call["hostname"]) == ("iid-ours", "node-7")
    say("booted from its disk, seed read, called", started)
    adapter.power(controller, on=False)
    seen(adapter, controller, lambda view: view.power == "off")
    adapter.eject_media(controller)
    assert adapter.observe(controller).media is None
    say("shut down by its power button, drive empty", started)


def test_secure_boot_is_enforced_and_read_back(vm: VirtualMachine, adapter: RedfishAdapter) -> None:
    """
    With Secure Boot switched on by the adapter the firmware refuses an unsigned disc, which it boots otherwise, and boots a signed one; the
    adapter reads back that it is in force.
    """
    started = time.monotonic()
    controller = Controller("nod_vm", vm.bmc_url, system=vm.system)
    assert adapter.read_settings(controller)["secure_boot"] == "off"
    adapter.change_settings(controller, {"secure_boot": "on"})
    assert adapter.read_settings(controller)["secure_boot"] == "on"
    disc = deploy_disc(vm, "unsigned", f"phone_home={vm.files.guest_url}/")
    start(adapter, controller, media=disc, source="media")
    until(
        lambda: re.search(r"Security Violation|Access Denied", vm.console()),
        BOOT_S,
        lambda: f"nothing was refused: {vm.console()[-1500:]}",
    )
    assert vm.files.calls == []
    assert adapter.read_settings(controller)["secure_boot"] == "on"
    assert "secure_boot" not in adapter.observe(controller).pending
    say("unsigned disc refused by the firmware", started)
    adapter.power(controller, on=False, force=True)
    seen(adapter, controller, lambda view: view.power == "off")
    trusted = signed_disc(vm, "signed", f"phone_home={vm.files.guest_url}/")
    start(adapter, controller, media=trusted, source="media")
    vm.call("booted", BOOT_S)
    assert "Secure boot enabled" in vm.console()
    say("signed disc booted, and its kernel knows that it was checked", started)
    adapter.power(controller, on=False, force=True)
    seen(adapter, controller, lambda view: view.power == "off")
