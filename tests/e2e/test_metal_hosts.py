"""
Bare metal on hosts that really boot: enrolled, inspected, checked, wiped, ordered, logged in to, given back, wiped and sold again.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
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

pytestmark = [pytest.mark.timeout(600)]
CANARY = "a tenant was here"
USER_DATA = f"""#cloud-config
write_files:
  - path: /var/lib/tenant/canary
    content: "{CANARY}"
"""


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
        The resource once it has come to one of the states; the API is asked to wait, so nothing sleeps here.
        """
        ask = client or self.operator
        end = time.monotonic() + within_s
        while True:
            seen: dict[str, Any] = done(ask.get(path))
            if seen["status"]["state"] in states:
                return seen
            assert time.monotonic() < end, f"{path} stays {seen['status']['state']}: {seen}"
            ask.get("/v1/events", params={"limit": 1})


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


def enroll(metal: Metal, count: int) -> list[str]:
    """
    The first hosts of the lab are nodes of a Redfish provider; their ids.
    """
    provider = done(
        metal.operator.post(
            "/v1/admin/providers",
            json={
                "name": "rack-1",
                "adapter": "redfish",
                "site": "lab",
                "config": {"boot": "network", "diskless": True, "first_call_s": 120, "inventory_patience_s": 0},
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
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def another_tenant(metal: Metal, seller: httpx.Client) -> tuple[httpx.Client, str]:
    """
    A second tenant of the same reseller: its client and its project.
    """
    ordered = {"name": "umbra", "limits": {"gpus": 64}, "owner": {"name": "Uma", "email": "uma@umbra.example"}}
    made = done(seller.post("/v1/reseller/tenants", json=ordered))
    client = metal.served.client(made["owner"]["key"]["key"])
    return client, done(client.post("/v1/projects", json={"name": "vision"}))["id"]


def order(client: httpx.Client, project: str, public: str, count: int, user_data: str | None = None) -> str:
    """
    The path of a bare-metal cluster that was just ordered.
    """
    sets = [{"name": "workers", "instance_type": "hgx-h100-8", "count": count}]
    login = {"ssh_keys": [public], "user_data": user_data}
    spec = {"kind": "baremetal", "site": "lab", "node_sets": sets, "wait": True, "login": login}
    made = done(client.post(f"/v1/projects/{project}/clusters", json={"name": "bare", "spec": spec}))
    assert "canary" not in str(made)
    return f"/v1/projects/{project}/clusters/{made['id']}"


def test_hosts_are_sold_as_bare_metal_wiped_and_sold_again(metal: Metal, tmp_path: Path) -> None:
    """
    Power-on to tenant and back, on machines that really boot, with nobody's hands: each boots for its checks, for its wipe and for its
    tenant, who logs in with a key of its own; the next tenant finds nothing of it and is not let in by its key.
    """
    nodes = enroll(metal, 2)
    for node_id in nodes:
        metal.until(f"/v1/admin/nodes/{node_id}", "available", "quarantined")
    key, public = key_pair(tmp_path, "first")
    tenant, project = metal.tenant, metal.project
    path = order(tenant, project, public, 2, USER_DATA)
    metal.until(path, "running", client=tenant)
    for one in done(tenant.get(f"{path}/instances"))["items"]:
        assert log_in(one["address"], key, "hostname") == one["id"].replace("_", "-")
        assert log_in(one["address"], key, "cat /var/lib/tenant/canary") == CANARY
    done(tenant.delete(path, headers={"If-Match": "*"}))
    metal.until(path, "deleted", client=tenant)
    for node_id in nodes:
        metal.until(f"/v1/admin/nodes/{node_id}", "available", "quarantined")
        wipes = done(metal.operator.get(f"/v1/admin/nodes/{node_id}/wipes"))["items"]
        assert [one["verified"] for one in wipes] == [True, True]
    with metal.served.client(metal.reseller_key) as seller:
        other, theirs = another_tenant(metal, seller)
    with closing(other):
        new_key, new_public = key_pair(tmp_path, "second")
        path = order(other, theirs, new_public, 1)
        metal.until(path, "running", client=other)
        (instance,) = done(other.get(f"{path}/instances"))["items"]
        assert log_in(instance["address"], new_key, "sudo find / -xdev -name canary") == ""
        with pytest.raises(AssertionError, match="Permission denied"):
            log_in(instance["address"], key, "true")
        done(other.delete(path, headers={"If-Match": "*"}))
        metal.until(path, "deleted", client=other)
