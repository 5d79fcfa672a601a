"""
The Ironic adapter and a real Ironic that drives a machine which boots: from a disc, and from a disk that the real agent has written.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.providers.adapters.ironic.adapter import IronicAdapter
from controlplane.providers.adapters.ironic.naming import Names
from controlplane.providers.errors import Busy
from controlplane.providers.machines import Deployment, MachineView
from tests.ironic_kit import DEPLOYMENT, IronicKit, running_kit
from tests.vm_kit import ACCOUNT, ENABLED, VirtualMachine, agent_ramdisk, deploy_disc, disk_image, running_vm, say, until

pytestmark = [ENABLED, pytest.mark.vm, pytest.mark.timeout(2400)]
MEMORY_MIB = 2048
AGENT_PORT = 9999
NODE = "vm-1"
WAIT_S = 900.0
POLL_S = 2.0
HELD = Deployment(NODE, "alc_vm1", "ten_a", "clu_a", network="net-ten_a")
REDFISH = ("bios", "firmware", "inspect", "management", "power")


@dataclass
class Metal:
    """An Ironic, its one node, and our adapter."""

    ironic: IronicKit
    vm: VirtualMachine
    adapter: IronicAdapter
    started: float

    def do(self, ask: Callable[[], None], good: Callable[[MachineView], bool], words: str) -> MachineView:
        """What was asked is asked again while the node is busy, and has been seen; how long it took since the start is shown."""

        def asked() -> bool | None:
            try:
                ask()
            except Busy:
                return None
            return True

        until(asked, WAIT_S, self.why, POLL_S)

        def look() -> MachineView | None:
            view = self.adapter.observe(NODE)
            assert view.phase != "failed", f"{view.failure}; console: {self.vm.console()[-3000:]}"
            return view if good(view) else None

        view = until(look, WAIT_S, self.why, POLL_S)
        say(words, self.started)
        return view

    def why(self) -> str:
        """What stands at Ironic and on the console."""
        node = self.ironic.node(NODE)
        return f"{node['provision_state']}: {node['last_error']}; console: {self.vm.console()[-3000:]}"


@contextmanager
def metal(image: Callable[[VirtualMachine], dict[str, Any]], *, agent: bool) -> Iterator[Metal]:
    """The node is enrolled with the controller of a machine that really boots; `image` makes what is deployed."""
    started = time.monotonic()
    with ExitStack() as stack:
        ramdisk = agent_ramdisk() if agent else ()
        vm = stack.enter_context(running_vm(memory_mib=MEMORY_MIB, ports=(22, AGENT_PORT)))
        for one in ramdisk:
            (vm.files.folder / one.name).symlink_to(one)
        kit = stack.enter_context(running_kit(patience_s=WAIT_S))
        wipe = {"kind": "manual", "steps": [{"interface": "deploy", "step": "erase_devices_metadata"}]}
        adapter = kit.adapter(images={"default": image(vm)}, wipe=wipe)
        stack.callback(adapter.close)
        say("Ironic and a machine are up", started)
        enroll(kit, vm)
        say("enrolled", started)
        yield Metal(kit, vm, adapter, started)


def enroll(kit: IronicKit, vm: VirtualMachine, *more: int) -> None:
    """
    As an operator of Ironic does it: driver, agent and the ports, `more` besides Ironic's own, by which agent, controller and conductor use
    the same addresses.
    """
    username, password = ACCOUNT
    ports = ",".join(str(port) for port in (kit.port, kit.port + 1, vm.files.port, *more))
    agent = f"ipa-insecure=1 ipa-advertise-host=127.0.0.1 ipa-advertise-port={vm.forwarded[AGENT_PORT]} fwdports={ports}"
    info = {
        "redfish_address": vm.bmc_url,
        "redfish_system_id": f"/redfish/v1/Systems/{vm.system}",
        "redfish_username": username,
        "redfish_password": password,
        "redfish_verify_ca": False,
        "deploy_kernel": f"{vm.files.url}/ipa-kernel",
        "deploy_ramdisk": f"{vm.files.url}/ipa-ramdisk.gz",
        "bootloader": f"{vm.files.url}/esp.img",
        "kernel_append_params": f"console=ttyS0,115200 {agent}",
    }
    node = {
        "name": NODE,
        "driver": "redfish",
        "resource_class": "hgx-h100-8",
        "properties": {"capabilities": "boot_mode:uefi", "gpus": 8, "gpu_model": "H100-SXM5-80GB"},
        "driver_info": info,
        "boot_interface": "redfish-virtual-media",
        **{f"{one}_interface": "redfish" for one in REDFISH},
    }
    kit.call("POST", "nodes", node)
    kit.go(NODE, "manage", "manageable")
    kit.call("PUT", f"nodes/{NODE}/states/power", {"target": "power off"})
    kit.until(NODE, lambda seen: seen["power_state"] == "power off" and seen["reservation"] is None)


def live(vm: VirtualMachine) -> dict[str, Any]:
    """A disc that the machine runs from."""
    url = deploy_disc(vm, "live", f"phone_home={vm.files.guest_url}/", seeded=False)
    return {"deploy_interface": "ramdisk", "boot_iso": url, "ramdisk_image_download_source": "http"}


def golden(vm: VirtualMachine) -> dict[str, Any]:
    """A disk that the agent writes."""
    digest = hashlib.sha256(disk_image(vm, f"phone_home={vm.files.guest_url}/").read_bytes()).hexdigest()
    url = f"{vm.files.url}/golden.raw"
    named = {"image_os_hash_algo": "sha256", "image_os_hash_value": digest, "image_checksum": digest}
    return {"deploy_interface": "direct", "image_source": url, "image_disk_format": "raw", **named}


def live_through(metal: Metal) -> None:
    """Inspected, deployed and called under the name that its config drive holds, then taken back and off."""
    adapter, instance = metal.adapter, Names(DEPLOYMENT).instance_uuid(HELD.token)
    view = metal.do(lambda: adapter.inspect(NODE, "tsk_1"), lambda view: view.inventory is not None, "inspected")
    assert view.inventory is not None
    assert view.inventory.memory_gib == MEMORY_MIB // 1024
    metal.do(lambda: adapter.deploy(HELD), lambda view: view.phase == "deployed" and view.ready_at is not None, "deployed")
    call = metal.vm.call("booted", WAIT_S)
    say("its system has called", metal.started)
    assert (call["instance_id"], call["hostname"]) == (instance, HELD.token.replace("_", "-"))
    assert call["system_uuid"].lower() == metal.vm.system
    view = adapter.observe(NODE)
    assert (view.power, view.token, view.network) == ("on", HELD.token, HELD.network)
    now = datetime.now(UTC)
    view = metal.do(lambda: adapter.release(NODE, HELD.token, accepted_at=now), lambda view: view.phase == "released", "taken back")
    assert view.power == "off"
    assert metal.ironic.node(NODE)["provision_state"] == "manageable"


def test_a_machine_runs_from_a_disc_by_ironics_ramdisk_deploy() -> None:
    """
    Our adapter has Ironic boot a live disc with our config drive beside it; the system calls under our ids.
    """
    with metal(live, agent=False) as made:
        live_through(made)


def test_a_machine_is_deployed_and_cleaned_by_the_real_agent() -> None:
    """
    Our adapter has Ironic's own agent write a disk image with our config drive; the disk boots and calls under our ids; after the release
    the agent erases the disk's metadata, and the wipe is reported as exactly that and no more.
    """
    with metal(golden, agent=True) as made:
        live_through(made)
        wiped = made.do(
            lambda: made.adapter.wipe(NODE, "tsk_2"), lambda view: view.wipe is not None and view.wipe.token == "tsk_2", "wiped"
        )
        assert wiped.wipe is not None
        results = {one.name: one.result for one in wiped.wipe.checks}
        assert results["disk_metadata_erased"] == "passed"
        assert results["disk_wiped"] == "not_measured"
        head = made.vm.read_disk(0, 1024 * 1024)
        assert b"EFI PART" not in head
