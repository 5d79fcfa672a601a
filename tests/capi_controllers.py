"""
A test double of Cluster API's and Metal3's controllers, over the stored objects of the Kubernetes kit's emulator.

It does what the real ones were read to do, one part of each object's life at a time: a topology becomes machine deployments, those become
Machines, a Machine takes a free host that its hostSelector matches, an image goes onto it and off again with cleaning, and a Node comes
and goes with it. What is deleted waits for its finalizer. Nothing here knows the adapter.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

Json = dict[str, Any]
CAPI, INFRA, HOSTS = "cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io", "metal3.io"
OF_CLUSTER, OF_SET = "cluster.x-k8s.io/cluster-name", "topology.cluster.x-k8s.io/deployment-name"
LEADS, FIRST = "cluster.x-k8s.io/control-plane", "cluster.x-k8s.io/delete-machine"
FINALIZER = "cluster.x-k8s.io/finalizer"
FREE = ("available", "ready")
PIN = "controlplane.internal/pin"


class NodeStore(Protocol):
    """
    Nodes of tenants' clusters.
    """

    def make(self, name: str, version: str, *, leads: bool, cluster: str) -> None:
        """A kubelet of the Cluster's has registered."""

    def drop(self, name: str) -> None:
        """The Node is gone."""

    def empty(self, name: str) -> str:
        """The Node takes no new pods, and those on it were asked to leave; what keeps it from being empty, in words."""


class Controllers:
    """
    All of them, for the Clusters of one namespace.
    """

    def __init__(
        self, emulator: Any, nodes: NodeStore, namespace: str, kubeconfig: Callable[[str], bytes], pin_variable: str
    ) -> None:
        self._emulator = emulator
        self._nodes = nodes
        self._namespace = namespace
        self._kubeconfig = kubeconfig
        self._pin = pin_variable
        self._count = 0
        self._tended: dict[str, str] = {}  # hosts with nothing to do, by the version that was looked at
        self.paused: set[str] = set()
        """Parts that stand still: hosts, machines, deployments, clusters."""
        self.budgets: set[str] = set()
        """Hosts whose Nodes cannot be drained for now."""
        self.impatient: set[str] = set()
        """Machines whose time to be drained in has passed."""
        self.deaf: set[str] = set()
        """Hosts whose machine never comes up."""
        self.still: set[str] = set()
        """Names of Clusters that nobody tends: nothing of them comes any further."""
        self.held: set[str] = set()
        """Names of Clusters that have a finalizer which nobody takes away."""
        self.stuck: set[str] = set()
        """Hosts that Metal3 does not tend."""
        self.clock: Callable[[], float] = time.time
        """What time it is, in seconds since 1970."""
        self.oldest_first = False
        """Whether of Machines that may all go the oldest does; Cluster API's own choice is any."""
        self.story: list[str] = []
        """What happened to Machines, in order."""

    def step(self) -> None:
        """
        Every object has come one part further.
        """
        for part in ("clusters", "deployments", "machines", "hosts"):
            if part not in self.paused:
                getattr(self, f"_{part}")()

    # --- Metal3's own operator ---------------------------------------------------------------------------------------------------

    def _hosts(self) -> None:
        stamp = datetime.fromtimestamp(int(self.clock()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for host in self._all("baremetalhosts", HOSTS):
            name, version = host["metadata"]["name"], host["metadata"]["resourceVersion"]
            if name in self.stuck or self._tended.get(name) == version:
                continue
            if not self._change("baremetalhosts", HOSTS, host, lambda new: _reconcile_host(new, stamp)):
                self._tended[name] = version

    # --- Cluster API and its Metal3 provider -------------------------------------------------------------------------------------

    def _machines(self) -> None:
        for machine in self._all("machines", CAPI):
            if LEADS in machine["metadata"]["labels"] or machine["spec"]["clusterName"] in self.still:
                continue
            infra = self._find("metal3machines", INFRA, machine["spec"]["infrastructureRef"]["name"])
            host = self._host_of(infra)
            if machine["metadata"].get("deletionTimestamp"):
                self._end(machine, infra, host)
            elif infra is not None and host is None:
                self._associate(machine, infra)
            elif host is not None and host["status"]["provisioning"]["state"] == "provisioned":
                self._join(machine, host)

    def _associate(self, machine: Json, infra: Json) -> None:
        wanted = infra["spec"]["hostSelector"]["matchLabels"]
        for host in sorted(self._all("baremetalhosts", HOSTS), key=lambda one: str(one["metadata"]["name"])):
            labels = host["metadata"].get("labels") or {}
            free = not host["spec"].get("consumerRef") and host["status"]["provisioning"]["state"] in FREE
            if not free or not wanted.items() <= labels.items() or host["status"].get("errorMessage"):
                continue

            def taken(new: Json) -> None:
                new["metadata"]["labels"][OF_CLUSTER] = machine["spec"]["clusterName"]
                new["spec"] |= {
                    "consumerRef": {
                        "apiVersion": infra["apiVersion"],
                        "kind": "Metal3Machine",
                        "name": infra["metadata"]["name"],
                        "namespace": self._namespace,
                    },
                    "image": {"url": "http://images.example.org/node.qcow2"},
                    "online": True,
                }

            self.story.append(f"{machine['metadata']['name']} takes {host['metadata']['name']}")
            self._change("baremetalhosts", HOSTS, host, taken)
            return

    def _join(self, machine: Json, host: Json) -> None:
        if (machine.get("status") or {}).get("nodeRef") or host["metadata"]["name"] in self.deaf:
            return
        self._register(machine, leads=False)

    def _register(self, machine: Json, *, leads: bool) -> None:
        name, version = machine["metadata"]["name"], machine["spec"]["version"]
        self._nodes.make(name, version, leads=leads, cluster=machine["metadata"]["labels"][OF_CLUSTER])

        def running(new: Json) -> None:
            new["status"] = {"phase": "Running", "nodeRef": {"name": name}, "nodeInfo": {"kubeletVersion": version}}

        self._change("machines", CAPI, machine, running)

    def _end(self, machine: Json, infra: Json | None, host: Json | None) -> None:
        """
        Drained, its Node gone, its host cleaned and given back; then the finalizers go.
        """
        ref = (machine.get("status") or {}).get("nodeRef")
        held = "disruption budget" if host is not None and host["metadata"]["name"] in self.budgets else ""
        if ref and (held := held or self._drained(machine, ref["name"])):
            message = f"Drain not completed yet: cannot evict pods of {ref['name']}: {held}"
            self._change(
                "machines", CAPI, machine, lambda new: new["status"].update(phase="Deleting", conditions=[_deleting(message)])
            )
            return
        if ref:
            self._nodes.drop(ref["name"])
            self._change("machines", CAPI, machine, lambda new: new["status"].pop("nodeRef"))
            return
        if infra is not None and host is not None:
            if host["spec"].get("image"):
                self._change("baremetalhosts", HOSTS, host, lambda new: new["spec"].update(image=None, online=False))
            elif host["status"]["provisioning"]["state"] in FREE:
                self._change("baremetalhosts", HOSTS, host, lambda new: new["spec"].pop("consumerRef"))
            return
        if infra is not None:
            self._remove("metal3machines", INFRA, infra)
        self.story.append(f"{machine['metadata']['name']} is gone")
        self._remove("machines", CAPI, machine)

    def _drained(self, machine: Json, node: str) -> str:
        """
        What holds its pods; of a Cluster that goes no Machine is drained.
        """
        cluster = self._find("clusters", CAPI, machine["spec"]["clusterName"])
        going = cluster is None or cluster["metadata"].get("deletionTimestamp")
        return "" if going or machine["metadata"]["name"] in self.impatient else self._nodes.empty(node)

    def _deployments(self) -> None:
        for one in self._all("machinedeployments", CAPI):
            if one["spec"]["clusterName"] in self.still:
                continue
            mine = [
                each
                for each in self._all("machines", CAPI)
                if each["metadata"]["labels"].get("cluster.x-k8s.io/deployment-name") == one["metadata"]["name"]
            ]
            self._scale(one, mine)

    def _scale(self, deployment: Json, mine: list[Json]) -> None:
        spec = deployment["spec"]
        wanted = 0 if deployment["metadata"].get("deletionTimestamp") else spec["replicas"]
        there = [one for one in mine if not one["metadata"].get("deletionTimestamp")]
        old = [one for one in there if one["spec"]["version"] != spec["version"] or self._pin_of(one) != spec["pin"]]
        age = 1 if self.oldest_first else -1
        if len(there) > wanted:
            order = sorted(
                there, key=lambda one: (FIRST not in (one["metadata"].get("annotations") or {}), one not in old, _number(one) * age)
            )
            self._delete("machines", CAPI, order[0])
        elif len(there) < wanted:
            self._make_machine(deployment)
        elif old:
            ready = sum(1 for one in there if (one.get("status") or {}).get("nodeRef"))
            if wanted - ready < spec["maxUnavailable"]:
                self._delete("machines", CAPI, min(old, key=_number))
            elif spec["maxSurge"] and not spec["maxUnavailable"]:
                self._make_machine(deployment)
        if deployment["metadata"].get("deletionTimestamp") and not mine:
            self._remove("machinedeployments", CAPI, deployment)

    def _pin_of(self, machine: Json) -> str | None:
        """
        The pin of the template that the Machine was made of; a template that changes is rotated, and its Machines are replaced.
        """
        infra = self._find("metal3machines", INFRA, machine["spec"]["infrastructureRef"]["name"])
        return None if infra is None else infra["spec"]["hostSelector"]["matchLabels"].get(PIN)

    def _make_machine(self, deployment: Json) -> None:
        spec = deployment["spec"]
        self._count += 1
        name = f"{deployment['metadata']['name']}-{self._count:04d}"
        labels = {
            OF_CLUSTER: spec["clusterName"],
            OF_SET: deployment["metadata"]["labels"][OF_SET],
            "cluster.x-k8s.io/deployment-name": deployment["metadata"]["name"],
        }
        selector = {"matchLabels": {"sold": "yes"} if spec["pin"] is None else {PIN: spec["pin"]}}
        meta = {"name": name, "labels": labels, "finalizers": [FINALIZER]}
        self._make("metal3machines", INFRA, {"metadata": _copied(meta), "spec": {"hostSelector": selector}})
        ref = {"apiGroup": INFRA, "kind": "Metal3Machine", "name": name}
        machine = {"clusterName": spec["clusterName"], "infrastructureRef": ref, "version": spec["version"]}
        self._make("machines", CAPI, {"metadata": meta, "spec": machine})
        self.story.append(f"{name} is made at {spec['version']}")

    def _clusters(self) -> None:
        for cluster in self._all("clusters", CAPI):
            name = cluster["metadata"]["name"]
            topology = cluster["spec"].get("topology")
            if topology is None or name in self.still:
                continue
            if cluster["metadata"].get("deletionTimestamp"):
                self._take_down(cluster)
                continue
            if FINALIZER not in (cluster["metadata"].get("finalizers") or []):
                self._change("clusters", CAPI, cluster, lambda new: new["metadata"].setdefault("finalizers", []).append(FINALIZER))
                continue
            if self._find("secrets", "", f"{name}-kubeconfig") is None:
                data = {"value": self._kubeconfig(name).decode()}
                self._make("secrets", "", {"metadata": {"name": f"{name}-kubeconfig", "labels": {OF_CLUSTER: name}}, "data": data})
            leads = self._control_plane(cluster, topology)
            self._workers(cluster, topology, leads)
            self._tell(cluster, topology, leads)

    def _control_plane(self, cluster: Json, topology: Json) -> bool:
        """
        Whether the control plane is as it should be; it is brought there one machine after the other.
        """
        name = cluster["metadata"]["name"]
        wanted = (topology.get("controlPlane") or {}).get("replicas", 0)
        for number in range(wanted):
            key = f"{name}-cp-{number}"
            found = self._find("machines", CAPI, key)
            if found is None:
                labels = {OF_CLUSTER: name, LEADS: ""}
                ref = {"apiGroup": INFRA, "kind": "Metal3Machine", "name": key}
                spec = {"clusterName": name, "infrastructureRef": ref, "version": topology["version"]}
                self._make("machines", CAPI, {"metadata": {"name": key, "labels": labels}, "spec": spec})
                return False
            if not (found.get("status") or {}).get("nodeRef"):
                self._register(found, leads=True)
                return False
            if found["spec"]["version"] != topology["version"]:
                self.story.append(f"{key} is made at {topology['version']}")
                self._nodes.drop(key)

                def renewed(new: Json) -> None:
                    new["spec"]["version"] = topology["version"]
                    new["status"] = {}

                self._change("machines", CAPI, found, renewed)
                return False
        return True

    def _workers(self, cluster: Json, topology: Json, leads: bool) -> None:  # noqa: FBT001 - a state, not a flag
        name = cluster["metadata"]["name"]
        wanted = {one["name"]: one for one in (topology.get("workers") or {}).get("machineDeployments") or []}
        made = {
            one["metadata"]["labels"][OF_SET]: one
            for one in self._all("machinedeployments", CAPI)
            if one["spec"]["clusterName"] == name
        }
        for key, one in wanted.items():
            overrides = (one.get("variables") or {}).get("overrides") or []
            pin = next((each["value"] for each in overrides if each["name"] == self._pin), None)
            rolling = ((one.get("rollout") or one).get("strategy") or {}).get("rollingUpdate") or {
                "maxSurge": 1,
                "maxUnavailable": 0,
            }
            assert rolling["maxSurge"] == 0 or pin is None, "no host is there for a machine beside the others"
            spec = {"clusterName": name, "replicas": one["replicas"], "pin": pin, **rolling}
            found = made.get(key)
            if found is None:
                spec["version"] = topology["version"]
                meta = {"name": f"{name}-{key}", "labels": {OF_SET: key, OF_CLUSTER: name}, "finalizers": [FINALIZER]}
                self._make("machinedeployments", CAPI, {"metadata": meta, "spec": spec})
                continue
            # one that waits for an upgrade is not touched before it, but for its replicas
            spec |= {"version": topology["version"]} if leads else {one: found["spec"][one] for one in ("version", "pin")}
            self._change("machinedeployments", CAPI, found, lambda new, spec=spec: new.update(spec=spec))  # type: ignore[misc]
        for key in set(made) - set(wanted):
            self._delete("machinedeployments", CAPI, made[key])

    def _tell(self, cluster: Json, topology: Json, leads: bool) -> None:  # noqa: FBT001 - a state, not a flag
        old = cluster["apiVersion"].endswith("v1beta1")
        behind = [one for one in self._all("machinedeployments", CAPI) if one["spec"]["version"] != topology["version"]]
        told = [
            {
                "type": "ControlPlaneReady" if old else "ControlPlaneAvailable",
                "status": "True" if leads else "False",
                "reason": "Told",
            },
            {"type": "TopologyReconciled", "status": "False" if behind or not leads else "True", "reason": "Told"},
        ]
        self._change("clusters", CAPI, cluster, lambda new: new.update(status={"phase": "Provisioned", "conditions": told}))

    def _take_down(self, cluster: Json) -> None:
        name = cluster["metadata"]["name"]
        machines = [one for one in self._all("machines", CAPI) if one["spec"]["clusterName"] == name]
        deployments = [one for one in self._all("machinedeployments", CAPI) if one["spec"]["clusterName"] == name]
        for one in deployments:
            self._delete("machinedeployments", CAPI, one)
        if any(LEADS not in one["metadata"]["labels"] for one in machines) or deployments or name in self.held:
            return
        for one in machines:
            self._nodes.drop(one["metadata"]["name"])
            self._remove("machines", CAPI, one)
        secret = self._find("secrets", "", f"{name}-kubeconfig")
        if secret is not None:
            self._remove("secrets", "", secret)
        self._remove("clusters", CAPI, cluster)

    # --- stored objects ----------------------------------------------------------------------------------------------------------

    def _all(self, plural: str, group: str) -> list[Json]:
        return list(self._emulator.items(plural, group, self._namespace))

    def _find(self, plural: str, group: str, name: str) -> Json | None:
        found: Json | None = self._emulator.data[(group, plural)].get((self._namespace, name))
        return found

    def _host_of(self, infra: Json | None) -> Json | None:
        if infra is None:
            return None
        name = infra["metadata"]["name"]
        return next(
            (one for one in self._all("baremetalhosts", HOSTS) if (one["spec"].get("consumerRef") or {}).get("name") == name), None
        )

    def _make(self, plural: str, group: str, body: Json) -> None:
        self._emulator.make(plural, body, group, self._namespace)

    def _change(self, plural: str, group: str, old: Json, edit: Callable[[Json], Any]) -> bool:
        new = _copied(old)
        edit(new)
        if new != old:
            self._emulator.commit("MODIFIED", self._emulator.find(plural, group), new, old)
        return bool(new != old)

    def _delete(self, plural: str, group: str, thing: Json) -> None:
        self._emulator.delete(self._emulator.find(plural, group), thing, {"propagationPolicy": "Background"})

    def _remove(self, plural: str, group: str, thing: Json) -> None:
        self._emulator.commit("DELETED", self._emulator.find(plural, group), _copied(thing), thing)


def _copied(thing: Json) -> Json:
    copied: Json = pickle.loads(pickle.dumps(thing))
    return copied


def _reconcile_host(host: Json, stamp: str) -> None:
    """
    Metal3: power follows `online`; an image goes on and comes off, with a history of both.
    """
    spec, status = host["spec"], host["status"]
    where, history = status["provisioning"], status.setdefault("operationHistory", {})
    state = where["state"]
    if state in FREE and spec.get("image"):
        where["state"] = "provisioning"
        history["provision"] = {"start": stamp, "end": None}
    elif state == "provisioning":
        where |= {"state": "provisioned", "image": spec.get("image") or {}}
        history["provision"]["end"] = stamp
        status["poweredOn"] = True
    elif state == "provisioned" and not spec.get("image"):
        where["state"] = "deprovisioning"
        history["deprovision"] = {"start": stamp, "end": None}
    elif state == "deprovisioning":
        where |= {"state": "available", "image": {}}
        history["deprovision"]["end"] = stamp
    elif state in {*FREE, "provisioned"}:
        status["poweredOn"] = spec["online"]


def _deleting(message: str) -> Json:
    return {"type": "Deleting", "status": "True", "reason": "DrainingNode", "message": message}


def _number(machine: Json) -> int:
    return int(machine["metadata"]["name"].rsplit("-", 1)[1])
