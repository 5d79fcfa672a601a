"""
A tenant's image on a machine that boots a kernel and that a real Ironic owns: its agent writes image and config drive, and the machine
reports.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from controlplane.local.addresses import free_port
from tests.conftest import Database
from tests.e2e.foundry import running_foundry
from tests.e2e.rack import done, key_pair
from tests.ironic_kit import running_kit
from tests.vm.test_ironic_machine import AGENT_PORT, MEMORY_MIB, NODE, WAIT_S, enroll
from tests.vm_kit import ENABLED, agent_ramdisk, log_in, memory_disk, running_vm, say

pytestmark = [ENABLED, pytest.mark.vm, pytest.mark.timeout(4800)]
MIB = 1024 * 1024
LONG_S = 2 * WAIT_S
ERASING = {"OS_DEPLOY__ENABLE_ATA_SECURE_ERASE": "false", "OS_DEPLOY__SHRED_RANDOM_OVERWRITE_ITERATIONS": "0"}
"""A virtual disk has no erasure of its own: it is overwritten, once, with zeros."""


def test_a_tenants_image_is_written_by_the_real_agent_and_reports(database: Database, tmp_path: Path) -> None:
    """
    Ironic's agent fetches the image from us, and writes it and the config drive; what starts from the disk finds its seed there, lets its
    tenant's key in and reports every stage; given back, the agent erases the disk, on which nothing of the image is left.
    """
    started = time.monotonic()
    ramdisk, port = agent_ramdisk(), free_port()
    with running_vm(memory_mib=MEMORY_MIB, ports=(22, AGENT_PORT)) as vm, running_kit(patience_s=WAIT_S, **ERASING) as kit:
        for one in ramdisk:
            (vm.files.folder / one.name).symlink_to(one)
        enroll(kit, vm, port)
        # The agent fetches images itself, and no conductor on its behalf.
        fetching = {"op": "add", "path": "/driver_info/image_download_source", "value": "http"}
        kit.call("PATCH", f"nodes/{NODE}", [fetching])
        kit.go(NODE, "provide", "available")
        say("an Ironic has the machine", started)
        with running_foundry(kit, NODE, database, tmp_path, port, patience_s=LONG_S, log_level="ERROR") as foundry:
            wipe = {"kind": "manual", "steps": [{"interface": "deploy", "step": "erase_devices"}]}
            node = foundry.register(own_images={}, wipe=wipe)
            content = memory_disk(tmp_path, f"forward={port} gpus=8")
            image = foundry.image(content)
            say(f"the node is free, and an image of {len(content) // MIB} MiB ready", started)
            key, public = key_pair(tmp_path, "tenant")
            path = foundry.order(image["id"], {"ssh_keys": [public]})
            foundry.wait(node, "Deployed; waits for the machine's own report.")
            say("Ironic has deployed it", started)
            foundry.until(foundry.tenant, path, "running")
            say("the machine has reported", started)
            (instance,) = done(foundry.tenant.get(f"{path}/instances"))["items"]
            assert log_in(vm, key, "hostname") == instance["id"].replace("_", "-")
            assert log_in(vm, key, "cloud-init query subplatform").startswith("config-disk (/dev/vda")
            say("the tenant has logged in", started)
            done(foundry.tenant.delete(path, headers={"If-Match": "*"}))
            foundry.until(foundry.tenant, path, "deleted")
            foundry.until(foundry.operator, node, "available")
            say("given back and wiped", started)
            wipes = done(foundry.operator.get(f"{node}/wipes"))["items"]
            assert [one["verified"] for one in wipes] == [True, True]
            results = [{check["name"]: check["result"] for check in one["checks"]} for one in wipes]
            assert [one["disk_wiped"] for one in results] == ["passed", "passed"]
            (boot,) = done(foundry.operator.get(f"{node}/boots"))["items"]
            assert (boot["purpose"], boot["state"]) == ("deploy", "ended")
        assert vm.read_disk(0, len(content)) == bytes(len(content))
