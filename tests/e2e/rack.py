"""
A cloud whose machines are hosts that really boot, and what operators and tenants do with it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane import seeding
from controlplane.local.addresses import free_port
from tests.conftest import Database
from tests.factories.serving import Served, serving, settings_for
from tests.hosts_kit import Lab
from workers.engine import Engine

LOOK_S = 0.25
"""Between two looks at a resource: hosts need the machine's processors more than whoever waits for them."""


class Metal:
    """
    The API, a worker and a rack of hosts.
    """

    def __init__(self, served: Served, keys: seeding.DemoKeys, lab: Lab, operator: httpx.Client, tenant: httpx.Client) -> None:
        self.served = served
        self.operator = operator
        self.tenant = tenant
        self.project = keys.project_id
        self.reseller_key = keys.reseller_key
        self.lab = lab

    def until(self, path: str, *states: str, client: httpx.Client | None = None, within_s: float = 240.0) -> dict[str, Any]:
        """
        The resource once it has come to one of the states.
        """
        ask = client or self.operator
        pause, end = threading.Event(), time.monotonic() + within_s
        while True:
            seen: dict[str, Any] = done(ask.get(path))
            if seen["status"]["state"] in states:
                return seen
            assert time.monotonic() < end, f"{path} stays {seen['status']['state']}: {seen}"
            pause.wait(LOOK_S)


def done(answer: httpx.Response) -> Any:
    """
    The body of an answer that must be good.
    """
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    return answer.json() if answer.content else None


@pytest.fixture
def metal(database: Database, tmp_path: Path, lab: Lab) -> Iterator[Metal]:
    """
    A cloud whose only machines are the lab's.
    """
    keys = seeding.sow_people(database.engine, "USD", site="lab")
    with ExitStack() as stack:
        port = free_port()
        url = f"http://{lab.gateway}:{port}"
        served = stack.enter_context(serving(database, at=("0.0.0.0", port), data_dir=tmp_path, machine_url=url))
        settings = settings_for(database, data_dir=tmp_path, machine_url=url, sweep_interval_s=0.3, observe_interval_s=2.0)
        engine = Engine(settings)
        engine.start()
        stack.callback(engine.stop)
        operator = stack.enter_context(served.client(keys.operator_key))
        tenant = stack.enter_context(served.client(keys.tenant_key))
        yield Metal(served, keys, lab, operator, tenant)


def enroll(metal: Metal, count: int, **settings: Any) -> list[str]:
    """
    The first hosts of the lab are nodes of a Redfish provider with these settings besides its own; their ids.
    """
    provider = done(
        metal.operator.post(
            "/v1/admin/providers",
            json={
                "name": "rack-1",
                "adapter": "redfish",
                "site": "lab",
                "config": {"boot": "network", "diskless": True, "first_call_s": 120, "inventory_patience_s": 0, **settings},
                "secrets": {},
                "shared": True,
            },
        )
    )
    nodes = [
        {
            "ref": host.name,
            "block": "b1",
            "leaf": "leaf1",
            "rack": "r1",
            "instance_type": "hgx-h100-8",
            "controller": {"url": metal.lab.bmc_url, "system": host.uuid},
            "address": host.address,
        }
        for host in metal.lab.hosts[:count]
    ]
    body = {"provider_id": provider["id"], "nodes": nodes}
    enrolled: list[str] = done(metal.operator.post("/v1/admin/nodes", json=body))["enrolled"]
    return enrolled


def key_pair(folder: Path, name: str) -> tuple[Path, str]:
    """
    A tenant's own key.
    """
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada", "-f", str(path)], check=True)
    return path, path.with_suffix(".pub").read_text().strip()


def log_in(address: str, key: Path, command: str) -> str:
    """
    What a command printed for the tenant, logged in with its key.
    """
    options = [
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "ConnectTimeout=10",
    ]
    ran = subprocess.run(
        ["ssh", *options, "-i", str(key), f"ops@{address}", command], check=False, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
    return ran.stdout.strip()
