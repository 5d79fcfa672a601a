"""
What jobs and services of one cluster stand on: their namespace, the nodes, a queue where there is one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from controlplane.providers.errors import Busy, NotFound, ProviderError, Refused
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.abilities import Offers, features
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.devices import Devices, usable
from controlplane.providers.kube.work.names import LEADS, Names, grouped
from controlplane.providers.kube.work.pool import Pool
from controlplane.providers.kube.work.queues import Queues
from controlplane.providers.kube.work.shown import Showing, Shown, places
from controlplane.providers.kube.work.slicing import most_on_a_node
from controlplane.providers.kube.work.walls import Queueing, own_space, queue

log = logging.getLogger(__name__)
Json = dict[str, Any]
STANDS_S = 60.0
"""How long what was made here is believed to be there still; whoever rules the cluster may take it away."""
NODES_KEPT_S = 10.0
"""How long nodes are remembered by those who need no more than a hint of them."""


class Ground(Protocol):
    """
    A part of a Kubernetes, or a whole one.
    """

    @property
    def pool(self) -> Pool:
        """
        Its nodes.
        """
        ...

    def settings(self, gpu_model: str = "") -> WorkConfig:
        """
        What an operator said of it or, where nobody did, what it shows of itself, for GPUs that the catalog calls so.
        """
        ...

    def check(self, cluster_id: str, tenant_id: str) -> None:
        """
        Work of the tenant may be handed over now. Raises NotFound, Busy, and Refused for work of another tenant.
        """
        ...

    def kueue(self) -> Queueing | None:
        """
        The Kueue that is there and that we may use; None for none.
        """
        ...

    def mpi(self) -> bool:
        """
        Whether there is an MPI operator that we may use, and a Kueue that admits its objects whole: the operator itself knows no gangs.
        """
        ...

    def nodes_now(self, cluster_id: str) -> list[Json]:
        """
        The nodes that pods of the cluster can be on, as the server tells them.
        """
        ...

    def nodes_lately(self, cluster_id: str) -> list[Json]:
        """
        Those nodes as they were a few seconds ago; none when that is not known.
        """
        ...

    def admit_slices(self, cluster_id: str, nodes: list[Json]) -> None:
        """
        Quota and queue of the cluster, where it has them, know of the slices that these nodes of it have now.
        """
        ...


class OwnGround:
    """
    A whole Kubernetes that is one tenant's. Its owner may change and remove whatever is here: it is made anew for the next job or service.
    """

    def __init__(self, kube: Kube, names: Names, config: WorkConfig, cluster_id: str, tenant_id: str) -> None:
        self._kube = kube
        self._names = names
        self._config = config
        self._cluster_id = cluster_id
        self._tenant_id = tenant_id
        self._devices = Devices(kube, config)
        self._showing = Showing(kube, config, self._devices, names.namespace(cluster_id), self._workers_now)
        self._queues = Queues(kube, config)
        self._levels: tuple[str, ...] = ()
        """Labels that our queue places by."""
        self._lock = threading.Lock()
        self._made_at = -STANDS_S
        self._nodes: tuple[float, list[Json]] = (-NODES_KEPT_S, [])
        self._told: dict[str, str] = {}
        """What our queue was told last that the nodes have."""

    @property
    def pool(self) -> Pool:
        """
        See `Ground.pool`. Workers' GPUs are counted as they are given out now.
        """
        return Pool(self._kube, self._names, self.settings(), self._devices)

    def settings(self, gpu_model: str = "") -> WorkConfig:
        """
        See `Ground.settings`. Where a driver has one name for all GPUs and the catalog has one, they are of the same.
        """
        shown = self.shown()
        told: Json = {"topology_labels": list(self._levels), "volumes": dict(shown.volumes)}
        if shown.claims:
            told |= {"gpus_by": "dra", "queues_count_claims": shown.counted}
            # what an operator says of models is about labels of nodes, and the driver has names of its own
            told["gpu_models"] = {gpu_model: shown.product} if gpu_model and shown.product else {}
            told |= {} if shown.nvlink else {"nvlink_attribute": ""}
        return self._config.model_copy(update=told)

    def shown(self, workers: Iterable[Json] | None = None) -> Shown:
        """
        What the cluster shows of itself in the place of an operator's word, as it was within the last minute.
        """
        return self._showing.lately(workers)

    def gpus(self, node: Json) -> int | None:
        """
        What a device plugin counts on the node, whole or in slices, or what a DRA driver publishes: a tenant may have either, and with the
        driver no node shows a count. None when it does not tell yet.
        """
        pool = self.pool
        counted, devices = pool.gpus(node), pool.devices
        if counted != 0 or not devices.api():
            return counted
        return sum(1 for one in devices.on(node["metadata"]["name"]) if usable(one))

    def offers(self, nodes: Iterable[Json]) -> Offers:
        """
        What jobs and services may ask for, as the cluster is now with these nodes.
        """
        there = self.workers(nodes)
        shown = self.shown(there)
        settings = self.settings()
        sliced = most_on_a_node(there, settings)
        gauged = shown.figures is not None
        able = features(settings, queues=self.kueue() is not None, sliced=bool(sliced), launches=self.mpi(), gauged=gauged)
        return Offers(able, tuple(settings.volumes), sliced)

    def check(self, cluster_id: str, tenant_id: str) -> None:
        """
        See `Ground.check`. The namespace and what belongs to it are there.
        """
        self.check_name(cluster_id)
        if tenant_id != self._tenant_id:
            raise Refused(f"{tenant_id} is not the tenant of {cluster_id}", code="provider_wrong_user")
        found = self._kube.find(f"/api/v1/namespaces/{self._names.namespace(cluster_id)}")
        if found is not None and found["metadata"].get("deletionTimestamp"):
            raise Busy("the namespace is being removed by somebody", retry_in_s=10.0, code="provider_namespace_terminating")
        if found is None or time.monotonic() - self._made_at > STANDS_S:
            self._make()

    def check_name(self, cluster_id: str) -> None:
        """
        Raises NotFound for any cluster but the one that this Kubernetes is.
        """
        if cluster_id != self._cluster_id:
            raise NotFound(f"{cluster_id} is not the cluster that this Kubernetes is")

    def kueue(self) -> Queueing | None:
        """
        See `Ground.kueue`. A queue that does not count claims would admit gangs that find no GPUs.
        """
        found = self._queues.there()
        if found is None:
            return None
        shown = self.shown()
        return None if shown.claims and not shown.counted else found

    def mpi(self) -> bool:
        """
        See `Ground.mpi`. Whoever installed the operator may remove it: programs that are under way then end by their time limit.
        """
        return self.kueue() is not None and self._queues.launches()

    def nodes_now(self, cluster_id: str) -> list[Json]:
        """
        See `Ground.nodes_now`. Control planes are left out.
        """
        self.check_name(cluster_id)
        found = self._workers_now()
        with self._lock:
            self._nodes = (time.monotonic(), found)
        return found

    def nodes_lately(self, cluster_id: str) -> list[Json]:
        """
        See `Ground.nodes_lately`.
        """
        self.check_name(cluster_id)
        with self._lock:
            at, found = self._nodes
        return found if time.monotonic() - at < NODES_KEPT_S else []

    def admit_slices(self, cluster_id: str, nodes: list[Json]) -> None:
        """
        See `Ground.admit_slices`.
        """
        self.check_name(cluster_id)
        self.follow(nodes)

    def follow(self, nodes: Iterable[Json]) -> None:
        """
        Our queue, where we have made one, counts these nodes. What hinders that says nothing of the nodes, so nothing is raised.
        """
        try:
            there = self.workers(nodes)
            kueue = self.kueue()
            placed = bool(self._levels) or kueue is None or not kueue.topology or not self._places(there)
            if kueue is None or (placed and self._sums(there) == self._told):
                return
            path = grouped(kueue.api, "clusterqueues", self._names.outside(self._cluster_id))
            if self._kube.find(path) is not None:
                self._tell(kueue, there)
        except ProviderError as error:
            log.info("a queue was not told its nodes", extra={"cluster_id": self._cluster_id, "code": error.code})

    def workers(self, nodes: Iterable[Json]) -> list[Json]:
        """
        Those of its nodes that pods of ours come to.
        """
        return workers(nodes)

    def _make(self) -> None:
        for one in own_space(self._names, self._cluster_id, self._tenant_id, self._config):
            self._kube.apply(one.path, one.body)
        kueue = self.kueue()
        if kueue is not None:
            self._tell(kueue, self.nodes_now(self._cluster_id))
        self._made_at = time.monotonic()

    def _tell(self, kueue: Queueing, nodes: Sequence[Json]) -> None:
        sums = self._sums(nodes)
        self._levels = tuple(self._levels_of(kueue, nodes)) if kueue.topology else ()
        for one in queue(self._names, self._cluster_id, self.settings(), kueue, sums):
            self._kube.apply(one.path, one.body)
        self._told = sums

    def _levels_of(self, kueue: Queueing, nodes: Sequence[Json]) -> list[str]:
        """
        What our queue places by: once its flavor has a topology that cannot be changed, so it stays though a new worker has no place yet.
        """
        name = self._names.outside(self._cluster_id)
        flavor = self._kube.find(grouped(kueue.api, "resourceflavors", name)) or {}
        held = (flavor.get("spec") or {}).get("topologyName")
        found = self._kube.find(grouped(kueue.api, "topologies", str(held))) if held else None
        return self._places(nodes) if found is None else [str(one["nodeLabel"]) for one in found["spec"]["levels"]]

    def _places(self, nodes: Sequence[Json]) -> list[str]:
        return places(nodes, self._config.topology_labels)

    def _workers_now(self) -> list[Json]:
        return self.workers(self._kube.list_all("/api/v1/nodes"))

    def _sums(self, nodes: Iterable[Json]) -> dict[str, str]:
        return self.pool.room(one for one in nodes if not one.get("spec", {}).get("unschedulable"))


def workers(nodes: Iterable[Json]) -> list[Json]:
    """
    Those of the nodes that pods of a tenant come to.
    """
    return [one for one in nodes if LEADS not in (one["metadata"].get("labels") or {})]
