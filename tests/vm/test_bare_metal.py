"""
The whole product and a machine that boots a kernel: enrolled, checked, wiped, sold with an image of its tenant's, which is written to its
disk and started from there, given back, wiped again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane import seeding
from controlplane.local.addresses import free_port
from tests.conftest import Database
from tests.e2e.rack import done, key_pair
from tests.factories.images import declared, uploaded
from tests.factories.serving import serving, settings_for
from tests.vm_kit import (
    ACCOUNT,
    ENABLED,
    VirtualMachine,
    kernel,
    log_in,
    memory_disk,
    memory_system,
    running_vm,
    say,
    until,
)
from workers.engine import Engine

pytestmark = [ENABLED, pytest.mark.vm, pytest.mark.timeout(4800)]
MEMORY_MIB = 2048
MIB = 1024 * 1024
GPUS = 8
BOOT_S = 900.0
WAIT_S = 1800.0
STEP_S = 0.5
FROM_DISK = "from=disk"
SCRIPT = """#!ipxe
kernel {files}/vmlinuz initrd=initrd.gz console=ttyS0,115200 panic=5 {arguments}
initrd {files}/initrd.gz
boot
"""


@dataclass
class Cloud:
    """A cloud whose only machine is the emulated one."""

    vm: VirtualMachine
    operator: httpx.Client
    tenant: httpx.Client
    project: str
    arguments: str
    started: float

    def until(self, client: httpx.Client, path: str, *states: str) -> dict[str, Any]:
        """The resource once it has come to one of the states; every step on the way is shown."""
        shown: list[tuple[str, str]] = []

        def look() -> dict[str, Any] | None:
            seen: dict[str, Any] = done(client.get(path))
            now = (seen["status"]["state"], str(seen["status"].get("reason") or seen["status"].get("message") or ""))
            if shown[-1:] != [now]:
                shown.append(now)
                say(f"{path.rsplit('/', 2)[1]} {': '.join(one for one in now if one)}", self.started)
            return seen if seen["status"]["state"] in states else None

        return until(look, WAIT_S, lambda: f"{path}: {shown}; console: {self.vm.console()[-3000:]}", STEP_S)


@pytest.fixture
def cloud(database: Database, tmp_path: Path) -> Iterator[Cloud]:
    """The API, which looks after images, a worker and the machine, whose network offers a system that lives in memory."""
    started = time.monotonic()
    initrd = memory_system()
    keys = seeding.sow_people(database.engine, "USD", site="lab")
    with ExitStack() as stack:
        vm = stack.enter_context(running_vm(memory_mib=MEMORY_MIB, disks=2, netboot=True))
        port = free_port()
        (vm.files.folder / "vmlinuz").symlink_to(kernel())
        (vm.files.folder / "initrd.gz").symlink_to(initrd)
        arguments = f"forward={port} gpus={GPUS}"
        (vm.files.folder / "boot.ipxe").write_text(SCRIPT.format(files=vm.files.guest_url, arguments=arguments))
        # One address for the controller, which fetches the seed, and for the machine, which forwards its own loopback.
        url = f"http://127.0.0.1:{port}"
        told = {"data_dir": tmp_path, "machine_url": url, "log_level": "ERROR"}
        served = stack.enter_context(serving(database, at=("127.0.0.1", port), **told))
        engine = Engine(settings_for(database, **told, sweep_interval_s=0.3, observe_interval_s=5.0))
        engine.start()
        stack.callback(engine.stop)
        operator = stack.enter_context(served.client(keys.operator_key))
        tenant = stack.enter_context(served.client(keys.tenant_key))
        say("API, worker and controller are up", started)
        yield Cloud(vm, operator, tenant, keys.project_id, arguments, started)


def enroll(cloud: Cloud) -> str:
    """The machine is a node of a Redfish provider; its path."""
    told = {"boot": "network", "first_call_s": BOOT_S, "inventory_patience_s": 0}
    wanted = {"name": "rack-1", "adapter": "redfish", "site": "lab", "config": told, "secrets": {}, "shared": True}
    provider = done(cloud.operator.post("/v1/admin/providers", json=wanted))
    username, password = ACCOUNT
    controller = {"url": cloud.vm.bmc_url, "system": cloud.vm.system, "username": username, "password": password}
    place = {"block": "b1", "leaf": "leaf1", "rack": "r1", "instance_type": "hgx-h100-8"}
    node = {"ref": "vm-1", **place, "controller": controller, "address": "127.0.0.1"}
    body = {"provider_id": provider["id"], "nodes": [node]}
    (node_id,) = done(cloud.operator.post("/v1/admin/nodes", json=body))["enrolled"]
    return f"/v1/admin/nodes/{node_id}"


def test_a_machine_that_boots_a_kernel_is_sold_and_taken_back(cloud: Cloud, tmp_path: Path) -> None:
    """
    Every boot finds its seed in the virtual drive and reports by itself; the tenant's image is written to the disk and what runs from there
    lets its key in; after the deletion the power is off, the drive empty, and nothing of the image is left on the disk.
    """
    node = enroll(cloud)
    content = memory_disk(tmp_path, cloud.arguments, FROM_DISK)
    image = uploaded(cloud.tenant, content, spec=declared(content, format="raw")["spec"])
    assert image["status"]["state"] == "ready"
    say(f"an image of {len(content) // MIB} MiB is ready", cloud.started)
    seen = cloud.until(cloud.operator, node, "available", "quarantined")
    assert seen["status"]["state"] == "available", done(cloud.operator.get(f"{node}/boots"))
    key, public = key_pair(tmp_path, "tenant")
    sets = [{"name": "workers", "instance_type": "hgx-h100-8", "count": 1}]
    login = {"ssh_keys": [public]}
    spec = {"kind": "baremetal", "site": "lab", "node_sets": sets, "image": image["id"], "wait": True, "login": login}
    clusters = f"/v1/projects/{cloud.project}/clusters"
    path = f"{clusters}/{done(cloud.tenant.post(clusters, json={'name': 'bare', 'spec': spec}))['id']}"
    cloud.until(cloud.tenant, path, "running", "failed")
    (instance,) = done(cloud.tenant.get(f"{path}/instances"))["items"]
    assert log_in(cloud.vm, key, "hostname") == instance["id"].replace("_", "-")
    assert FROM_DISK in log_in(cloud.vm, key, "cat /proc/cmdline")
    say("the tenant has logged in to its image", cloud.started)
    done(cloud.tenant.delete(path, headers={"If-Match": "*"}))
    cloud.until(cloud.tenant, path, "deleted")
    cloud.until(cloud.operator, node, "available", "quarantined")
    wipes = done(cloud.operator.get(f"{node}/wipes"))["items"]
    assert [one["verified"] for one in wipes] == [True, True]
    boots = done(cloud.operator.get(f"{node}/boots"))["items"]
    assert sorted((one["purpose"], one["state"]) for one in boots) == [
        ("check", "ended"),
        ("deploy", "ended"),
        ("install", "ended"),
        ("wipe", "ended"),
        ("wipe", "ended"),
    ], boots
    assert cloud.vm.read_disk(0, len(content)) == bytes(len(content))
    say("wiped; nothing of the image is left", cloud.started)
