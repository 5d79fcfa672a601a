"""
What really is at a management cluster, kept beside its controllers: who had which host and when, and whose data is on it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Any

from tests.capi_kit import NAMESPACE, CapiKit

CAPI, HOSTS, OF_CLUSTER = "cluster.x-k8s.io", "metal3.io", "cluster.x-k8s.io/cluster-name"
OURS = "controlplane.internal/"
Json = dict[str, Any]


class Ledger:
    """
    The judge. Everything is called where the server's objects are, but for what only reads its own notes.
    """

    def __init__(self, kit: CapiKit, clock: Callable[[], datetime]) -> None:
        self._kit, self._clock = kit, clock
        self._emulator = kit.emulator
        self.residue: dict[str, str] = {}
        """Host to the Cluster whose data is on it."""
        self._states: dict[str, str] = {}
        self.had: dict[str, dict[str, None]] = {}
        """Cluster to the hosts that it ever had, or was to have."""
        self.joined: dict[tuple[str, str], datetime] = {}
        """(Cluster, host) to when its Node was there first."""
        self.taken: dict[tuple[str, str], list[str]] = {}
        """(Cluster, host) to the Metal3Machines that had it, one after the other."""
        self.findings: list[str] = []
        """What must not be, since it was asked last."""

    def clusters(self) -> list[str]:
        """Names of Clusters that are there."""
        return [one["metadata"]["name"] for one in self._emulator.items("clusters", CAPI, NAMESPACE)]

    def hosts(self) -> list[Json]:
        """All of them as they are."""
        return list(self._emulator.items("baremetalhosts", HOSTS, NAMESPACE))

    def hosts_of(self, cluster: str) -> list[str]:
        """Hosts that the Cluster has had, or was to have."""
        return list(self.had.get(cluster, {}))

    def look(self) -> None:
        """Somebody at the peer has done something."""
        machines = {one["metadata"]["name"]: one for one in self._emulator.items("machines", CAPI, NAMESPACE)}
        for host in self.hosts():
            name, state = host["metadata"]["name"], host["status"]["provisioning"]["state"]
            labels = host["metadata"].get("labels") or {}
            before, self._states[name] = self._states.get(name, ""), state
            if before == "deprovisioning" and state == "available":
                self.residue.pop(name, None)
            marked = labels.get(f"{OURS}cluster")
            if marked:
                self.had.setdefault(f"cp-{marked}".replace("_", "-"), {})[name] = None
            machine = (host["spec"].get("consumerRef") or {}).get("name")
            if machine:
                self._held(name, state, labels.get(OF_CLUSTER, ""), machines.get(machine), machine)

    def _held(self, host: str, state: str, cluster: str, machine: Json | None, name: str) -> None:
        left = self.residue.get(host, "")
        if state in {"provisioning", "provisioned"}:
            if left not in {"", cluster}:
                self.findings.append(f"I7 {host}: {cluster} got it with data of {left}")
            self.residue[host] = cluster
        self.had.setdefault(cluster, {})[host] = None
        turns = self.taken.setdefault((cluster, host), [])
        if not turns or turns[-1] != name:
            turns.append(name)
        if machine is not None and (machine.get("status") or {}).get("nodeRef"):
            self.joined.setdefault((cluster, host), self._clock())

    def consumers(self) -> dict[str, str]:
        """Host to the Cluster whose Machine has it now."""
        return {
            one["metadata"]["name"]: (one["metadata"].get("labels") or {}).get(OF_CLUSTER, "")
            for one in self.hosts()
            if one["spec"].get("consumerRef")
        }

    def tell(self) -> tuple[dict[str, str], dict[str, str], list[str], list[str]]:
        """Host to Cluster that has it, host to Cluster whose data is on it, all Clusters; and what must not be, since it was asked."""
        findings, self.findings = self.findings, []
        return self.consumers(), dict(self.residue), self.clusters(), findings

    def versions(self, cluster: str) -> set[str]:
        """What its Machines have."""
        machines = self._emulator.items("machines", CAPI, NAMESPACE)
        return {one["spec"]["version"] for one in machines if one["spec"]["clusterName"] == cluster}

    # What goes wrong

    def has_secret(self, cluster: str) -> bool:
        """Whether Cluster API keeps a kubeconfig of it."""
        return (NAMESPACE, f"{cluster}-kubeconfig") in self._emulator.data[("", "secrets")]

    def edit_secret(self, cluster: str, value: str) -> bool:
        """The kubeconfig is another; whether there was one."""
        found = self._emulator.data[("", "secrets")].get((NAMESPACE, f"{cluster}-kubeconfig"))
        return found is not None and self._edit("secrets", "", found, lambda new: new["data"].update(value=value))

    def trouble(self, hosts: list[str], words: str) -> None:
        """Metal3 says so of these hosts; empty: they are well."""
        for one in self.hosts():
            if one["metadata"]["name"] in hosts:
                self._edit("baremetalhosts", HOSTS, one, lambda new: new["status"].update(errorMessage=words, errorType="power"))

    def delete_machine(self, cluster: str) -> bool:
        """Somebody deletes a Machine of a worker; whether there was one."""
        for one in self._emulator.items("machines", CAPI, NAMESPACE):
            worker = "cluster.x-k8s.io/control-plane" not in one["metadata"]["labels"]
            if worker and one["spec"]["clusterName"] == cluster and not one["metadata"].get("deletionTimestamp"):
                self._emulator.delete(self._emulator.find("machines", CAPI), one, {"propagationPolicy": "Background"})
                return True
        return False

    def touch_nodes(self, cluster: str, *, silent: bool | None) -> bool:
        """Its workers' Nodes are silent, or cordoned by their owner, or neither; whether there were any."""
        names = {
            (one.get("status") or {}).get("nodeRef", {}).get("name")
            for one in self._emulator.items("machines", CAPI, NAMESPACE)
            if one["spec"]["clusterName"] == cluster and "cluster.x-k8s.io/control-plane" not in one["metadata"]["labels"]
        }
        some = [one for one in list(self._emulator.items("nodes")) if one["metadata"]["name"] in names]

        def touched(new: Json) -> None:
            ready = next(one for one in new["status"]["conditions"] if one["type"] == "Ready")
            ready["status"] = "Unknown" if silent else "True"
            new["spec"]["unschedulable"] = True if silent is False else None

        for one in some:
            self._edit("nodes", "", one, touched)
        return bool(some)

    def _edit(self, plural: str, group: str, old: Json, edit: Callable[[Json], Any]) -> bool:
        new = copy.deepcopy(old)
        edit(new)
        if new != old:
            self._emulator.commit("MODIFIED", self._emulator.find(plural, group), new, old)
        return True
