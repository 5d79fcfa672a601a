"""
What tenants do with their instances, on hosts that really boot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.rack import Metal, done, enroll, key_pair, log_in
from tests.e2e.test_metal_hosts import CANARY, USER_DATA, order
from tests.factories.processes import until

BOOTED = "systemctl show --property=UserspaceTimestampMonotonic"
SEEN = "cat /var/lib/tenant/canary 2>/dev/null || true"
ENTERED = "echo in"
TENANTS = "ls /var/lib/tenant 2>/dev/null | xargs"
WITHIN_S = 240.0


class Held:
    """
    A cluster of its tenant's and the tenant's key.
    """

    def __init__(self, metal: Metal, folder: Path, count: int) -> None:
        self.metal = metal
        for node_id in enroll(metal, count):
            metal.until(f"/v1/admin/nodes/{node_id}", "available", "quarantined")
        self.key, public = key_pair(folder, "own")
        self.path = order(metal.tenant, metal.project, public, count, USER_DATA)
        metal.until(self.path, "running", client=metal.tenant)

    def instances(self) -> list[dict[str, Any]]:
        """The machines as their tenant sees them."""
        found: list[dict[str, Any]] = done(self.metal.tenant.get(f"{self.path}/instances"))["items"]
        return found

    def machine(self, instance: dict[str, Any]) -> str:
        """What its tenant is shown of the machine."""
        (one,) = (one for one in self.instances() if one["id"] == instance["id"])
        return str(one["machine"])

    def boots(self, instance: dict[str, Any]) -> list[dict[str, Any]]:
        """Those whose consoles its tenant may read."""
        found: list[dict[str, Any]] = done(self.metal.tenant.get(f"{self.path}/instances/{instance['id']}/console"))["boots"]
        return found

    def ask(self, instance: dict[str, Any], verb: str) -> str:
        """Where the operation is that the verb began."""
        answer = self.metal.tenant.post(f"{self.path}/instances/{instance['id']}/actions/{verb}", headers={"If-Match": "*"})
        done(answer)
        return str(answer.headers["Location"])

    def ends(self, operation: str) -> dict[str, Any]:
        """The operation once it has ended well."""
        until(lambda: self._state(operation) in {"succeeded", "failed"}, f"{operation} ends", within_s=WITHIN_S)
        seen: dict[str, Any] = done(self.metal.tenant.get(operation))
        assert seen["state"] == "succeeded", seen
        return seen

    def _state(self, operation: str) -> str:
        return str(done(self.metal.tenant.get(operation))["state"])

    def says(self, instance: dict[str, Any], command: str) -> str:
        """What the machine answers its tenant; empty while it answers nobody."""
        try:
            return log_in(instance["address"], self.key, command)
        except AssertionError:
            return ""

    def booted_anew(self, instance: dict[str, Any], before: str) -> str:
        """When the machine booted, once it has since `before` and lets its tenant in."""
        until(lambda: self.says(instance, BOOTED) not in {"", before}, "it booted anew and lets its tenant in", within_s=WITHIN_S)
        return self.says(instance, BOOTED)

    def give_back(self) -> None:
        """The cluster is deleted."""
        done(self.metal.tenant.delete(self.path, headers={"If-Match": "*"}))
        self.metal.until(self.path, "deleted", client=self.metal.tenant)


def test_a_tenant_restarts_and_stops_hosts(metal: Metal, tmp_path: Path) -> None:
    """
    One is rebooted and lets its tenant in again with its data; the other is stopped, which is seen at the host itself, and given back so.
    """
    held = Held(metal, tmp_path, 2)
    first, second = held.instances()
    before = held.says(first, BOOTED)
    rebooted, stopped = held.ask(first, "reboot"), held.ask(second, "stop")
    held.ends(stopped)
    assert [one["machine"] for one in held.instances() if one["id"] == second["id"]] == ["stopped"]
    assert held.says(second, "true; echo up") == ""
    held.ends(rebooted)
    held.booted_anew(first, before)
    assert held.says(first, SEEN) == CANARY
    held.give_back()


def test_a_tenant_rescues_and_reinstalls_hosts(metal: Metal, tmp_path: Path) -> None:
    """
    One whose tenant has shut itself out boots a rescue system that its key opens and none of its user-data has touched, and then its own
    again; the other is reinstalled, and what had been written to it since it was ordered is gone.
    """
    held = Held(metal, tmp_path, 2)
    shut, marked = held.instances()
    held.says(shut, "rm .ssh/authorized_keys")
    assert held.says(shut, ENTERED) == ""
    held.says(marked, "sudo touch /var/lib/tenant/mark")
    before = held.says(marked, BOOTED)
    assert held.says(marked, TENANTS) == "canary mark"
    rescue, reinstall = held.ask(shut, "rescue"), held.ask(marked, "reinstall")

    held.ends(rescue)
    assert held.machine(shut) == "rescued"
    until(lambda: held.says(shut, ENTERED) == "in", "its key opens the rescue system", within_s=WITHIN_S)
    assert held.says(shut, "hostname") == shut["id"].replace("_", "-")
    assert held.says(shut, f"{TENANTS}; echo none") == "none"
    unrescue = held.ask(shut, "unrescue")

    held.ends(reinstall)
    held.booted_anew(marked, before)
    assert held.says(marked, TENANTS) == "canary"
    assert [one["purpose"] for one in held.boots(marked)] == ["deploy", "deploy"]

    held.ends(unrescue)
    assert [held.machine(one) for one in (shut, marked)] == ["active", "active"]
    until(lambda: held.says(shut, TENANTS) == "canary", "its own system runs again", within_s=WITHIN_S)
    assert [one["purpose"] for one in held.boots(shut)] == ["deploy", "rescue"]
    held.give_back()
