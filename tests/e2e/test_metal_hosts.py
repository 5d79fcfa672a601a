"""
Bare metal on hosts that really boot: enrolled, inspected, checked, wiped, ordered, logged in to, given back, wiped and sold again.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.e2e.rack import Metal, done, enroll, key_pair, log_in

CANARY = "a tenant was here"
USER_DATA = f"""#cloud-config
write_files:
  - path: /var/lib/tenant/canary
    content: "{CANARY}"
"""


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
