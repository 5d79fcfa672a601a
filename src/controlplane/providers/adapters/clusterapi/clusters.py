"""
Clusters of ours in a management cluster: told whole, read back, and removed without a trace.

Which host becomes whose worker is decided by us alone. A node set's hosts carry a pin, its machine deployment takes hosts with that pin
and no other, and has as many machines as there are pins. Who leaves loses its pin first, so nothing takes its host again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from controlplane.providers.adapters.clusterapi import folding
from controlplane.providers.adapters.clusterapi.adopted import layout
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.directory import Directory
from controlplane.providers.adapters.clusterapi.folding import machine_of
from controlplane.providers.adapters.clusterapi.hosts import Hosts
from controlplane.providers.adapters.clusterapi.names import (
    ADOPTED,
    CLUSTER,
    DRAIN,
    GOES_FIRST,
    MEMBERS,
    OF_CLUSTER,
    OF_SET,
    PIN,
    TENANT,
    UP_SINCE,
    VERIFIED,
    Names,
    labels_of,
    notes_of,
)
from controlplane.providers.adapters.clusterapi.objects import Workers, cluster_object
from controlplane.providers.adapters.clusterapi.tenants import Tenants, drained_by_us
from controlplane.providers.clusters import ClusterList, ClusterSpec, ClusterView, Member, MemberView
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import Busy, NotFound, Refused
from controlplane.providers.kube.client import Conflict, Kube
from controlplane.providers.kube.reading import instant, ready_condition
from controlplane.providers.kube.work.abilities import Offers
from controlplane.providers.machines import Check

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Noticed:
    """
    What a cluster shows of itself beside its Nodes.
    """

    offers: Offers | None = None
    """What jobs and services may ask for there; None: unknown."""
    gpus: Mapping[str, int | None] = field(default_factory=dict)
    """GPUs of workers by the names of their Nodes; None: not told."""


Notice = Callable[[str, Mapping[str, str], Sequence[Json]], Noticed]
"""Is told a cluster's members by the names of their Nodes, and its Nodes."""


@dataclass(frozen=True, slots=True)
class Seat:
    """
    One host of a cluster with what Cluster API made of it.
    """

    host: Json
    """The BareMetalHost."""
    machine: Json | None
    """Its Machine; None while none has it."""

    @property
    def ref(self) -> str:
        """
        The host's name.
        """
        return str(self.host["metadata"]["name"])

    @property
    def pinned(self) -> bool:
        """
        Whether it is to stay.
        """
        return PIN in labels_of(self.host)

    @property
    def node(self) -> str:
        """
        The name of its Node; empty for none.
        """
        ref = {} if self.machine is None else self.machine.get("status", {}).get("nodeRef") or {}
        return str(ref.get("name") or "")


class Clusters:
    """
    The Clusters port.
    """

    def __init__(
        self,
        kube: Kube,
        names: Names,
        config: ClusterApiConfig,
        hosts: Hosts,
        tenants: Tenants,
        directory: Directory,
        now: Callable[[], datetime],
    ) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._hosts = hosts
        self._tenants = tenants
        self._directory = directory
        self._now = now

    def apply(self, spec: ClusterSpec) -> None:
        """
        See `Clusters.apply_cluster`. Hosts are looked at before anything is made, so that a cluster that cannot be leaves nothing.
        """
        cluster = self._ours_or_refused(spec)
        self._check(spec, cluster)
        there = {one["metadata"]["name"]: one for one in self._hosts.marked(spec.cluster_id)}
        wanted = {one.ref: there.get(one.ref) or self._hosts.read_free(spec.cluster_id, one.ref) for one in spec.members}
        leaving = [self._hosts.unpin(host) for ref, host in there.items() if ref not in wanted]
        named = "" if cluster is None or ADOPTED not in notes_of(cluster) else str(cluster["metadata"]["name"])
        joined = [self._hosts.join(spec.cluster_id, one, wanted[one.ref], named) for one in spec.members]
        machines = self._machines(spec.cluster_id) if cluster is not None else []
        staying = [Seat(one, machine_of(one, machines)) for one in joined]
        going = [Seat(one, machine_of(one, machines)) for one in leaving]
        version = spec.version or _present_version(cluster) or self._config.versions[0]
        if cluster is not None and named:
            body = self._adopted(cluster, spec, version, staying, going, machines)
        else:
            self._mark_going(staying, going)
            workers = self._workers(spec.members, staying, going)
            body = cluster_object(self._names, spec, self._config, workers, api=self._directory.api(), version=version)
        self._kube.apply(self._path(spec.cluster_id), body)
        for seat in going:
            if seat.machine is None and not folding.consumer(seat.host):
                self._hosts.leave(seat.host)

    def observe(self, cluster_id: str, notice: Notice) -> ClusterView:
        """
        See `Clusters.observe_cluster`. The first look that finds the cluster complete writes down when. Raises Busy while the cluster's own
        API does not answer: then nothing is known of its members. Of a cluster with Nodes, `notice` is told and says what jobs may ask for.
        """
        cluster = self.find(cluster_id)
        hosts = self._hosts.marked(cluster_id)
        if cluster is None:
            return self._remains(cluster_id, hosts)
        machines = self._machines(cluster_id)
        if cluster["metadata"].get("deletionTimestamp"):
            return ClusterView(cluster_id, (), checks=(_stuck(cluster, machines),))
        seats = [Seat(one, machine_of(one, machines)) for one in hosts]
        # its API may be long in coming, and is not asked before Cluster API itself has seen a Node there
        nodes = self._tenants.nodes(cluster_id) if any(one.node for one in seats) else {}
        told_there = notice(cluster_id, refs_of(seats), list(nodes.values())) if nodes else Noticed()
        views = [
            self._seen(one, nodes.get(one.node), told_there.gpus.get(one.node))
            for one in seats
            if one.pinned or one.machine is not None
        ]
        told = folding.control_plane_check(cluster)
        checks = [told, *filter(None, [folding.topology_check(cluster)])]
        notes = notes_of(cluster)
        verified = instant(notes.get(VERIFIED))
        complete = notes.get(MEMBERS) == str(len(views)) and all(one.state == "up" for one in views)
        if verified is None and complete and views and told.result == "passed":
            verified = self._verify(cluster, views)
        version = folding.version_of(machines, _present_version(cluster))
        view = ClusterView(cluster_id, tuple(views), verified_at=verified, checks=tuple(checks), version=version)
        able = told_there.offers
        return view if able is None else replace(view, job_features=able.features, volumes=able.volumes, mig=dict(able.mig))

    def delete(self, cluster_id: str) -> None:
        """
        See `Clusters.delete_cluster`. Hosts lose their marks at once; one that a Machine has is still refused to everybody else.
        """
        self._tenants.forget(cluster_id)
        cluster = self.find(cluster_id)
        if cluster is not None and not cluster["metadata"].get("deletionTimestamp"):
            self._kube.delete(self._path(cluster_id), uid=cluster["metadata"]["uid"])
        for host in self._hosts.marked(cluster_id):
            self._hosts.leave(host)

    def list_ids(self) -> ClusterList:
        """
        See `Clusters.list_clusters`.
        """
        made = self._kube.list_all(self._names.capi_path(self._directory.api(), "clusters"), labels=self._names.selector())
        found = {labels_of(one)[CLUSTER] for one in [*made, *self._hosts.marked()]}
        return ClusterList(tuple(sorted(found)), complete=True)

    def foreign(self) -> tuple[str, ...]:
        """
        Names of Clusters of the namespace that are not ours, sorted.
        """
        found = self._kube.list_all(self._names.capi_path(self._directory.api(), "clusters"))
        return tuple(
            sorted(one["metadata"]["name"] for one in found if not self._names.marks(one, labels_of(one).get(CLUSTER, "")))
        )

    def drain(self, cluster_id: str, refs: Iterable[str], reason: str) -> None:
        """
        See `Clusters.drain`: a cordon of the Node in the tenant's cluster.
        """
        for seat in self._seats(cluster_id, refs):
            self._tenants.cordon(cluster_id, seat.node, reason)

    def undrain(self, cluster_id: str, refs: Iterable[str]) -> None:
        """
        See `Clusters.undrain`.
        """
        for seat in self._seats(cluster_id, refs):
            self._tenants.uncordon(cluster_id, seat.node)

    def issue(self, cluster_id: str, tenant_id: str, lifetime_s: int) -> Kubeconfig:
        """
        See `SupportsKubeconfigs.issue_kubeconfig`.
        """
        self.must_be_usable(cluster_id, tenant_id)
        return self._tenants.issue(cluster_id, lifetime_s)

    def find(self, cluster_id: str) -> Json | None:
        """
        The Cluster, when it is there and ours.
        """
        return self._directory.find(cluster_id)

    def must_be_usable(self, cluster_id: str, tenant_id: str) -> None:
        """
        The cluster is there and the tenant's. Raises NotFound, Refused for another's, Busy for one that is being removed.
        """
        cluster = self.find(cluster_id)
        if cluster is None:
            raise NotFound(f"nothing of {cluster_id} is here")
        if notes_of(cluster).get(TENANT) != tenant_id:
            raise Refused(f"{tenant_id} is not the tenant of {cluster_id}", code="provider_wrong_user")
        if cluster["metadata"].get("deletionTimestamp"):
            raise Busy("the cluster is being removed", retry_in_s=5.0, code="provider_cluster_terminating")

    def refs(self, cluster_id: str) -> dict[str, str]:
        """
        Its members by the names of their Nodes, those that have one. Two lists.
        """
        machines = self._machines(cluster_id)
        seats = [Seat(one, machine_of(one, machines)) for one in self._hosts.marked(cluster_id)]
        return refs_of(seats)

    def _check(self, spec: ClusterSpec, cluster: Json | None) -> None:
        """
        Raises Refused for what the operator does not offer, before anything is made. A version that it has already it may keep.
        """
        odd = sorted({one.instance_type for one in spec.members} - set(self._config.machine_classes))
        if odd:
            raise Refused(f"no machine class is configured for {', '.join(odd)}", code="provider_no_machine_class")
        if spec.version not in {"", _present_version(cluster), *self._config.versions}:
            raise Refused(f"Kubernetes {spec.version} is not offered", code="provider_no_such_version")

    def _ours_or_refused(self, spec: ClusterSpec) -> Json | None:
        found = self.find(spec.cluster_id) or self._kube.find(self._path(spec.cluster_id))
        if found is None:
            return None
        if not self._names.marks(found, spec.cluster_id) or notes_of(found).get(TENANT) not in {None, spec.tenant_id}:
            raise Refused(f"the Cluster {found['metadata']['name']} is somebody else's", code="provider_cluster_held")
        if found["metadata"].get("deletionTimestamp"):
            raise Busy(f"the Cluster is being removed: {_stuck(found, []).detail}", code="provider_cluster_terminating")
        return found

    def _adopted(
        self,
        cluster: Json,
        spec: ClusterSpec,
        version: str,
        staying: Sequence[Seat],
        going: Sequence[Seat],
        machines: Sequence[Json],
    ) -> Json:
        """
        Our part of a Cluster that was taken over. A Machine on a host that is no member's goes first, too: where nothing pins Machines to
        hosts yet, Cluster API may have made one anywhere.
        """
        plan = layout(self._names, self._config, cluster, spec, api=self._directory.api(), version=version)
        seated = {one.machine["metadata"]["name"] for one in [*staying, *going] if one.machine is not None}
        astray = [one for one in machines if one["metadata"]["name"] not in seated and labels_of(one).get(OF_SET) in plan.sets]
        self._mark_going(staying, [*going, *(Seat({"metadata": {"name": ""}}, one) for one in astray)])
        kinds = {one.ref: one.node_set for one in spec.members}
        return plan.body(
            [(kinds[one.ref], one.machine) for one in staying], [one.machine for one in going if one.machine is not None]
        )

    def _mark_going(self, staying: Sequence[Seat], going: Sequence[Seat]) -> None:
        """
        Machines of hosts that leave are the first that Cluster API takes, and those of hosts that stay are not.
        """
        for seats, patch in ((going, "yes"), (staying, None)):
            for machine in [one.machine for one in seats if one.machine is not None]:
                if (GOES_FIRST in notes_of(machine)) is (patch is None):
                    path = self._names.capi_path(self._directory.api(), "machines", machine["metadata"]["name"])
                    self._kube.patch(path, {"metadata": {"annotations": {GOES_FIRST: patch}}})

    def _workers(self, members: Sequence[Member], staying: Sequence[Seat], going: Sequence[Seat]) -> list[Workers]:
        """
        How many machines each node set has. A machine that goes is counted until every host that stays has one: then there is one too many,
        and it is the one that is marked. So a machine is replaced after the other has its host, and never by a host that was not chosen.
        """
        kinds = {one.node_set: one.instance_type for one in members}
        counts = Counter(one.node_set for one in members)
        sets = {one.ref: one.node_set for one in members}
        hostless = {sets[one.ref] for one in staying if one.machine is None}
        for seat in going:
            machine = seat.machine
            node_set = "" if machine is None else labels_of(machine).get(OF_SET, "")
            if machine is not None and node_set in hostless and not machine["metadata"].get("deletionTimestamp"):
                counts[node_set] += 1
        return [Workers(name, kind, counts[name]) for name, kind in kinds.items()]

    def _seats(self, cluster_id: str, refs: Iterable[str]) -> list[Seat]:
        """
        The members by name. Raises NotFound for a host that is none, Busy for one that has no Node yet.
        """
        if self.find(cluster_id) is None:
            raise NotFound(f"nothing of {cluster_id} is here")
        machines = self._machines(cluster_id)
        found = {one["metadata"]["name"]: Seat(one, machine_of(one, machines)) for one in self._hosts.marked(cluster_id)}
        chosen = []
        for ref in refs:
            if ref not in found:
                raise NotFound(f"{ref} is not a member of {cluster_id}")
            if not found[ref].node:
                raise Busy(f"{ref} has no Node yet", retry_in_s=5.0)
            chosen.append(found[ref])
        return chosen

    def _path(self, cluster_id: str) -> str:
        return self._directory.path(self._directory.name(cluster_id))

    def _machines(self, cluster_id: str) -> list[Json]:
        labels = f"{OF_CLUSTER}={self._directory.name(cluster_id)}"
        return self._kube.list_all(self._names.capi_path(self._directory.api(), "machines"), labels=labels)

    def _seen(self, seat: Seat, node: Json | None, gpus: int | None) -> MemberView:
        state = folding.member_state(seat.machine, node, pinned=seat.pinned)
        since = instant(notes_of(seat.host).get(UP_SINCE))
        if state == "up" and since is None:
            since = self._hosts.keep_up_since(seat.host, self._peer_now())
        notes = {} if node is None else notes_of(node)
        info = {} if node is None else node.get("status", {}).get("nodeInfo") or {}
        return MemberView(
            ref=seat.ref,
            state=state,
            gpus=gpus,
            reason=self._reason(seat, node, notes),
            drained_by_us=node is not None and drained_by_us(node),
            up_since=since,
            version=str(info.get("kubeletVersion", "")).removeprefix("v"),
        )

    def _reason(self, seat: Seat, node: Json | None, notes: Mapping[str, str]) -> str:
        """
        What is told of a member that is not in use, for operators.
        """
        if node is None:
            if seat.machine is None:
                return folding.trouble(seat.host) or f"no Machine has it yet; it is {folding.state_of(seat.host)}"
            return f"Machine {seat.machine.get('status', {}).get('phase', '')}; host {folding.state_of(seat.host)}".strip()
        ready = ready_condition(node) or {}
        if ready.get("status") != "True":
            return f"{ready.get('reason', 'NotReady')}: {ready.get('message', '')}".rstrip(": ")[:500]
        if not node.get("spec", {}).get("unschedulable"):
            return ""
        return str(notes[DRAIN]) if DRAIN in notes else "cordoned by its owner"

    def _verify(self, cluster: Json, views: Sequence[MemberView]) -> datetime | None:
        """
        When the cluster was first seen complete, once every member says since when it is up; None when somebody was faster.
        """
        if any(one.up_since is None for one in views):
            return None
        at = self._peer_now()
        kept = {"resourceVersion": cluster["metadata"]["resourceVersion"], "annotations": {VERIFIED: at.isoformat()}}
        path = self._names.capi_path(self._directory.api(), "clusters", cluster["metadata"]["name"])
        try:
            self._kube.patch(path, {"metadata": kept})
        except Conflict:
            return None
        return at

    def _remains(self, cluster_id: str, hosts: Sequence[Json]) -> ClusterView:
        """
        What is left of a cluster without a Cluster. Raises NotFound for nothing.
        """
        machines = self._machines(cluster_id)
        if not hosts and not machines:
            raise NotFound(f"nothing of {cluster_id} is here")
        words = [f"{len(hosts)} hosts still carry its marks"] if hosts else []
        words += [f"{len(machines)} Machines are still there"] if machines else []
        left = tuple(MemberView(one["metadata"]["name"], "absent", None) for one in hosts)
        return ClusterView(cluster_id, left, checks=(Check("removed", "failed", "; ".join(words)),))

    def _peer_now(self) -> datetime:
        return self._kube.seen_at or self._now()


def refs_of(seats: Iterable[Seat]) -> dict[str, str]:
    """
    Hosts by the names of their Nodes.
    """
    return {one.node: one.ref for one in seats if one.node}


def _present_version(cluster: Json | None) -> str:
    topology = {} if cluster is None else cluster.get("spec", {}).get("topology") or {}
    return str(topology.get("version") or "").removeprefix("v")


def _stuck(cluster: Json, machines: Sequence[Json]) -> Check:
    """
    What keeps a Cluster from going, in Cluster API's words.
    """
    since = cluster["metadata"].get("deletionTimestamp", "")
    told = [folding.condition(one, "Deleting") or {} for one in [cluster, *machines]]
    said = [str(one.get("message", "")) for one in told if one.get("message")]
    held = ", ".join(cluster["metadata"].get("finalizers") or [])
    words = "; ".join(said[:5]) or f"its finalizers are still there: {held}" if held or said else "its objects are being removed"
    return Check("removed", "failed", f"being removed since {since}: {words}"[:1000])
