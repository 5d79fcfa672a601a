"""
Jobs and services in tenants' own clusters: for each cluster that has some a ground to stand on, and one who follows it.

Members are hosts, and their Nodes have names of their own: what is told of Nodes is told of members here, and the other way round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from controlplane.providers.adapters.clusterapi.clusters import Clusters, Noticed
from controlplane.providers.adapters.clusterapi.config import ClusterApiConfig
from controlplane.providers.adapters.clusterapi.doors import Door
from controlplane.providers.adapters.clusterapi.names import TENANT, notes_of
from controlplane.providers.adapters.clusterapi.tenants import Tenants
from controlplane.providers.clusters import JobSpec, JobView, OutputChunk
from controlplane.providers.errors import NotFound, ProviderError
from controlplane.providers.kube.client import Kube
from controlplane.providers.kube.work.config import WorkConfig
from controlplane.providers.kube.work.figures import OwnersGauges
from controlplane.providers.kube.work.ground import OwnGround
from controlplane.providers.kube.work.jobs import Jobs
from controlplane.providers.kube.work.names import Names
from controlplane.providers.kube.work.pool import gpus_of
from controlplane.providers.kube.work.services import Services
from controlplane.providers.kube.work.shown import Shown
from controlplane.providers.kube.work.slicing import is_partitioned, whole_gpus
from controlplane.providers.services import ServiceSpec, ServiceView
from controlplane.providers.tracking import GpuUse

log = logging.getLogger(__name__)
Json = dict[str, Any]
MOST = 256
"""Clusters that are remembered at once; who was asked about longest ago goes first."""
MOST_FOLLOWED = 64
"""Clusters whose jobs are followed by watches at once; the jobs of the others are asked for."""
SEATS_KEPT_S = 60.0
"""How long it is believed which Node is whose."""
SEATS_AGAIN_S = 10.0
"""How soon it is asked again for a Node that nobody knows."""


class Seats:
    """
    Which Node of a cluster is which member.
    """

    def __init__(self, read: Callable[[], Mapping[str, str]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._refs: Mapping[str, str] = {}
        self._at = -SEATS_KEPT_S

    def learn(self, refs: Mapping[str, str]) -> None:
        """
        These are the members by the names of their Nodes, as they were read just now.
        """
        with self._lock:
            self._refs, self._at = refs, time.monotonic()

    def known(self) -> Mapping[str, str]:
        """
        The members by the names of their Nodes as they were read last; nothing is asked.
        """
        with self._lock:
            return self._refs

    def refs(self, names: Iterable[str] = ()) -> Mapping[str, str]:
        """
        The members by the names of their Nodes; read anew where it is long ago, or where one of the names is not among them.
        """
        with self._lock:
            refs, age_s = self._refs, time.monotonic() - self._at
        if age_s < SEATS_AGAIN_S or (age_s < SEATS_KEPT_S and set(names) <= refs.keys()):
            return refs
        self.learn(self._read())
        return self.known()


class MembersGround(OwnGround):
    """
    A whole Kubernetes that is one tenant's, whose members are those that Cluster API made: a node that the owner let in itself is none.
    """

    def __init__(
        self, kube: Kube, names: Names, config: WorkConfig, whose: tuple[str, str], usable: Callable[[str, str], None], seats: Seats
    ) -> None:
        super().__init__(kube, names, config, *whose)
        self._usable = usable
        self._seats = seats

    def shown(self, workers: Iterable[Json] | None = None) -> Shown:
        """
        See `OwnGround.shown`. A volume that the operator, who made the cluster, has named is the operator's.
        """
        found = super().shown(workers)
        return replace(found, volumes={**found.volumes, **self._config.volumes})

    def check(self, cluster_id: str, tenant_id: str) -> None:
        """
        See `Ground.check`.
        """
        self._usable(cluster_id, tenant_id)
        super().check(cluster_id, tenant_id)

    def workers(self, nodes: Iterable[Json]) -> list[Json]:
        """
        Those that are members.
        """
        found = super().workers(nodes)
        refs = self._seats.refs(one["metadata"]["name"] for one in found)
        return [one for one in found if one["metadata"]["name"] in refs]


@dataclass(frozen=True, slots=True)
class Work:
    """
    What one cluster is asked about its jobs and services with.
    """

    ground: MembersGround
    """Their ground."""
    jobs: Jobs
    """Its jobs, and who follows them."""
    services: Services
    """Its services."""
    gauges: OwnersGauges
    """Who tells how busy its GPUs are."""
    seats: Seats
    """Its members."""


class Works:
    """
    The ports SupportsJobs, SupportsGlances, SupportsNews, SupportsOutput, SupportsGpuUse and SupportsServices over the clusters of one
    management cluster.
    """

    def __init__(
        self, clusters: Clusters, tenants: Tenants, names: Names, config: ClusterApiConfig, now: Callable[[], datetime]
    ) -> None:
        self._clusters = clusters
        self._tenants = tenants
        self._names = names
        self._config = config
        self._work = config.works
        self._now = now
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Work] = OrderedDict()
        self._places = threading.BoundedSemaphore(MOST_FOLLOWED)

    def close(self) -> None:
        """
        Nobody follows any cluster.
        """
        with self._lock:
            over = list(self._kept.values())
            self._kept.clear()
        for one in over:
            one.jobs.close()

    def forget(self, cluster_id: str) -> None:
        """
        Nobody follows the cluster.
        """
        with self._lock:
            known = self._kept.pop(cluster_id, None)
        if known is not None:
            known.jobs.close()

    def notice(self, cluster_id: str, refs: Mapping[str, str], nodes: Sequence[Json]) -> Noticed:
        """
        See `Notice`. Our queue there counts these Nodes from now on. What hinders a look at what is there says nothing of the cluster.
        """
        try:
            work = self._of(cluster_id)
            work.seats.learn(refs)
            offers = work.ground.offers(nodes)
            work.ground.follow(nodes)
            return Noticed(offers, {one["metadata"]["name"]: work.ground.gpus(one) for one in work.ground.workers(nodes)})
        except ProviderError as error:
            log.info("what jobs may ask for is not known", extra={"cluster_id": cluster_id, "code": error.code})
            return Noticed(None, {one["metadata"]["name"]: alone(one, self._work) for one in nodes})

    def submit(self, job: JobSpec) -> str:
        """
        See `SupportsJobs.submit`.
        """
        work = self._of(job.cluster_id)
        if job.exclude:
            names = {ref: name for name, ref in work.seats.refs().items()}
            job = replace(job, exclude=tuple(names.get(ref, ref) for ref in job.exclude))
        return work.jobs.submit(job)

    def find_job(self, cluster_id: str, token: str) -> JobView:
        """
        See `SupportsJobs.find_job`.
        """
        work = self._of(cluster_id)
        return _placed(work.jobs.find(cluster_id, token), work.seats.refs)

    def glance(self, cluster_id: str, token: str) -> JobView | None:
        """
        See `SupportsGlances.glance`. Where a Node is not known, or the cluster was not asked yet, a look is better.
        """
        with self._lock:
            work = self._kept.get(cluster_id)
        view = None if work is None else work.jobs.glance(cluster_id, token)
        if work is None or view is None or not set(view.nodes) <= work.seats.known().keys():
            return None
        return _placed(view, lambda _: work.seats.known())

    def take_news(self) -> frozenset[str]:
        """
        See `SupportsNews.take_news`.
        """
        with self._lock:
            known = list(self._kept.values())
        return frozenset(token for one in known for token in one.jobs.take_news())

    def list_jobs(self, cluster_id: str) -> tuple[JobView, ...]:
        """
        See `SupportsJobs.list_jobs`. A cluster that is gone has none.
        """
        try:
            work = self._of(cluster_id)
            return tuple(_placed(one, work.seats.refs) for one in work.jobs.list_views(cluster_id))
        except NotFound:
            return ()

    def cancel(self, cluster_id: str, token: str) -> None:
        """
        See `SupportsJobs.cancel`.
        """
        try:
            self._of(cluster_id).jobs.cancel(cluster_id, token)
        except NotFound:
            return

    def read_output(self, cluster_id: str, token: str, *, offset: int, limit: int) -> OutputChunk:
        """
        See `SupportsOutput.read_output`.
        """
        return self._of(cluster_id).jobs.read_output(cluster_id, token, offset=offset, limit=limit)

    def gpu_use(self, cluster_id: str, token: str, window_s: int) -> GpuUse:
        """
        See `SupportsGpuUse.gpu_use`.
        """
        return self._of(cluster_id).gauges.use(cluster_id, token, window_s)

    def apply_service(self, spec: ServiceSpec) -> None:
        """
        See `SupportsServices.apply_service`.
        """
        self._of(spec.cluster_id).services.apply(spec)

    def observe_service(self, cluster_id: str, service_id: str) -> ServiceView:
        """
        See `SupportsServices.observe_service`.
        """
        work = self._of(cluster_id)
        view = work.services.observe(cluster_id, service_id)
        refs = work.seats.refs(ref for one in view.replicas for ref in one.refs)
        placed = tuple(replace(one, refs=tuple(refs.get(ref, ref) for ref in one.refs)) for one in view.replicas)
        return replace(view, replicas=placed)

    def delete_service(self, cluster_id: str, service_id: str) -> None:
        """
        See `SupportsServices.delete_service`. A service went with its cluster.
        """
        try:
            self._of(cluster_id).services.delete(cluster_id, service_id)
        except NotFound:
            return

    def list_services(self, cluster_id: str) -> tuple[str, ...]:
        """
        See `SupportsServices.list_services`. A cluster that is gone has none.
        """
        try:
            return self._of(cluster_id).services.list_ids(cluster_id)
        except NotFound:
            return ()

    def read_replica(self, cluster_id: str, service_id: str, name: str, *, limit: int) -> bytes:
        """
        See `SupportsServices.read_replica`.
        """
        return self._of(cluster_id).services.read(cluster_id, service_id, name, limit=limit)

    def _of(self, cluster_id: str) -> Work:
        """
        The cluster's. Raises NotFound for one that is not there.
        """
        with self._lock:
            known = self._kept.get(cluster_id)
            if known is not None:
                self._kept.move_to_end(cluster_id)
                return known
        made = self._made(cluster_id)
        with self._lock:
            known = self._kept.setdefault(cluster_id, made)  # another thread may have been faster; nobody follows it yet
            over = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - MOST)]
        for one in over:
            one.jobs.close()
        return known

    def _made(self, cluster_id: str) -> Work:
        cluster = self._clusters.find(cluster_id)
        if cluster is None:
            raise NotFound(f"nothing of {cluster_id} is here")
        # one that is being removed is asked as long as it answers, and followed no more
        going = bool(cluster["metadata"].get("deletionTimestamp"))
        config = self._work.model_copy(update={"watches": "off"}) if going else self._work
        door = Door(
            self._tenants, cluster_id, lambda: self._clusters.find(cluster_id) is not None, page_size=self._config.page_size
        )
        seats = Seats(partial(self._clusters.refs, cluster_id))
        whose = (cluster_id, notes_of(cluster).get(TENANT, ""))
        ground = MembersGround(door, self._names, config, whose, self._clusters.must_be_usable, seats)
        jobs = Jobs(door, self._names, config, ground, self._now, self._places)
        gauges = OwnersGauges(door, self._names, lambda: ground.shown().figures)
        return Work(ground, jobs, Services(door, self._names, config, ground), gauges, seats)


def alone(node: Json, config: WorkConfig) -> int | None:
    """
    GPUs that the Node itself tells of, whole or in slices; None where it tells of none: they may be claimed.
    """
    return (whole_gpus(node, config) if is_partitioned(node, config) else gpus_of(node, config.gpu_resource)) or None


def _placed(view: JobView, refs: Callable[[Iterable[str]], Mapping[str, str]]) -> JobView:
    """
    The job on members; a Node that is none keeps its name.
    """
    if not view.nodes:
        return view
    known = refs(view.nodes)
    return replace(view, nodes=tuple(known.get(name, name) for name in view.nodes))
